package irtt

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/servers/irtt"

	"bufferbloat/internal/wire/irtt/hmacmd5"
)

// stockServer starts the irtt program as a server on a loopback port of its own, until the test's end. It answers what a starved machine lets loose at once.
func stockServer(t *testing.T, address string, args ...string) netip.AddrPort {
	t.Helper()
	program, err := exec.LookPath("irtt")
	if err != nil {
		facility.Missing(t, "irtt", err.Error())
	}
	at := freePort(t, address)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	cmd := exec.CommandContext(ctx, program, append([]string{"server", "-b", at.String(), "--pburst=1000"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() }) // it is killed, so it has an error
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "[ListenerStart]") {
			return at
		}
	}
	t.Fatalf("irtt server did not start: %v", lines.Err())
	return at
}

// freePort returns an address with a UDP port that was free a moment ago.
func freePort(t *testing.T, address string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(address, "0"))
	if err != nil {
		facility.Missing(t, "loopback "+address, err.Error())
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// ourServer runs our server on the kernel's loopback until the test's end.
func ourServer(t *testing.T, address string, o irtt.Options) netip.AddrPort {
	t.Helper()
	freePort(t, address) // skips the test where there is no such address
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	o.Ready = func(at []netip.AddrPort) { ready <- at[0] }
	go func() {
		s := irtt.Server{Options: o}
		ended <- s.Serve(ctx, host.NewKernel(), netip.AddrPortFrom(netip.MustParseAddr(address), 0))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	select {
	case at := <-ready:
		return at
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	return netip.AddrPort{}
}

// quick is a handshake that a loopback server answers in time, and a test can wait for.
var quick = Options{Opens: []time.Duration{0, 500 * time.Millisecond}, OpenWait: 5 * time.Second}

func TestRealServersAnswerEveryProbe(t *testing.T) {
	for _, c := range []struct {
		claim   string
		address string
		ours    bool
		server  []string // of the stock server
		options irtt.Options
		o       Options
		dscp    dscp.CodePoint
		oneWay  bool
		warning string
	}{
		{claim: "stock", address: "127.0.0.1", oneWay: true},
		{claim: "stock, IPv6", address: "::1", oneWay: true},
		{claim: "stock with a key", address: "127.0.0.1", server: []string{"--hmac=swordfish"}, o: Options{HMAC: hmacmd5.New([]byte("swordfish"))}, oneWay: true},
		{claim: "stock, long and marked", address: "127.0.0.1", o: Options{Length: 172}, dscp: 46, oneWay: true},
		{claim: "stock that gives one stamp", address: "127.0.0.1", server: []string{"--tstamp=single"}, oneWay: true,
			warning: "the irtt server gives only one time stamp per probe: RTT includes its own processing time"},
		{claim: "stock that gives no stamps", address: "127.0.0.1", server: []string{"--tstamp=none"},
			warning: "the irtt server gives no time stamps: RTT includes its own processing time, and there are no one-way delays"},
		{claim: "stock with a limit on the duration", address: "127.0.0.1", server: []string{"-d", "10s"}, oneWay: true,
			warning: "the irtt server ends the session after 10s"},
		{claim: "ours", address: "127.0.0.1", ours: true, o: Options{Duration: time.Minute}, oneWay: true},
		{claim: "ours, IPv6", address: "::1", ours: true, o: Options{Duration: time.Minute}, oneWay: true},
		{claim: "ours with a key", address: "127.0.0.1", ours: true, options: irtt.Options{HMAC: hmacmd5.New([]byte("swordfish"))},
			o: Options{HMAC: hmacmd5.New([]byte("swordfish")), Duration: time.Minute}, oneWay: true},
		{claim: "ours, long and marked", address: "127.0.0.1", ours: true, o: Options{Length: MaxSafeLength, Duration: time.Minute}, dscp: 46, oneWay: true},
		{claim: "ours, marked, IPv6", address: "::1", ours: true, o: Options{Duration: time.Minute}, dscp: 46, oneWay: true},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			var at netip.AddrPort
			if c.ours {
				at = ourServer(t, c.address, c.options)
			} else {
				at = stockServer(t, c.address, c.server...)
			}
			o := c.o
			o.Opens, o.OpenWait = quick.Opens, quick.OpenWait
			po := probe.Options{Interval: 20 * time.Millisecond, Socket: host.Options{DSCP: c.dscp}}
			tr := dialReal(t, at, po, o)
			if tr.Warning() != c.warning {
				t.Errorf("warning %q, want %q", tr.Warning(), c.warning)
			}
			tally := checkReal(t, tr, po, c.oneWay)
			// Loopback changes no mark, so what our server says of marked probes is what was sent; a stock one does not say.
			if m := tally.UpMarks; c.ours && c.dscp != 0 && (len(m) != 1 || m[0].DS != c.dscp.Byte()) || !(c.ours && c.dscp != 0) && m != nil {
				t.Errorf("probes came in at the server as %v, sent as %v", m, c.dscp)
			}
		})
	}
}

func dialReal(t *testing.T, at netip.AddrPort, po probe.Options, o Options) *Transport {
	t.Helper()
	tr, err := Dial(t.Context(), host.NewKernel(), at, po, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// checkReal runs 25 probes on loopback: each that was sent is answered.
func checkReal(t *testing.T, tr *Transport, po probe.Options, oneWay bool) probe.Tally {
	t.Helper()
	k := host.NewKernel()
	got := make(map[probe.Outcome]int)
	tally, err := probe.Run(t.Context(), t.Context(), k, tr, po, k.Now(), 25, func(s probe.Sample) {
		got[s.Outcome]++
		if s.Outcome == probe.Unsent {
			return // this machine was too busy
		}
		if s.RTT <= 0 || s.HasOneWay != oneWay {
			t.Errorf("%+v, want an RTT, and one-way delays: %v", s, oneWay)
		}
		// All clocks are one, so both ways make up the RTT. A kernel's stamp may be a little off.
		if s.HasOneWay && (min(s.Up, s.Down) < -time.Millisecond || (s.Up+s.Down-s.RTT).Abs() > time.Millisecond) {
			t.Errorf("%+v, want delays up and down that make up the RTT", s)
		}
	})
	if err != nil || got[probe.Received]+got[probe.Unsent] != 25 || got[probe.Received] == 0 {
		t.Errorf("outcomes %v, %v, want 25 received", got, err)
	}
	if tally.Corrupt+tally.Stray+tally.Duplicates+tally.Rejected+tally.ReceiveErrors != 0 {
		t.Errorf("tally %+v, want nothing in it", tally)
	}
	return tally
}

func TestRealServersThatDoNotServe(t *testing.T) {
	impatient := Options{Opens: []time.Duration{0}, OpenWait: 300 * time.Millisecond}
	keyed := impatient
	keyed.HMAC = hmacmd5.New([]byte("wrong"))
	restricted := func(parameter string) func(error) bool {
		return func(err error) bool {
			r, ok := errors.AsType[*RestrictedError](err)
			return ok && r.Parameter == parameter
		}
	}
	long := quick
	long.Length = 500
	for _, c := range []struct {
		claim  string
		server []string
		o      Options
		check  func(err error) bool
	}{
		{"no marks", []string{"--no-dscp"}, quick, restricted("DSCP")},
		{"shorter packets", []string{"-l", "100"}, long, restricted("length")},
		{"a session timeout that the interval is too long for", []string{"--timeout=40ms"}, quick, restricted("interval")},
		{"a key that the client lacks", []string{"--hmac=swordfish"}, impatient, func(err error) bool { return errors.Is(err, ErrNoAnswer) }},
		{"another key", []string{"--hmac=swordfish"}, keyed, func(err error) bool { return errors.Is(err, ErrNoAnswer) }},
		{"a higher least interval", []string{"-i", "50ms"}, quick, func(err error) bool {
			var r *RestrictedError
			return errors.As(err, &r) && r.Parameter == "interval" && r.Interval == 50*time.Millisecond
		}},
		{"a shorter session", []string{"-d", "10s"}, Options{Duration: time.Minute, Opens: quick.Opens, OpenWait: quick.OpenWait}, func(err error) bool {
			var r *RestrictedError
			return errors.As(err, &r) && r.Parameter == "duration" && r.Duration == 10*time.Second
		}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			at := stockServer(t, "127.0.0.1", c.server...)
			tr, err := Dial(t.Context(), host.NewKernel(), at, probe.Options{Interval: 20 * time.Millisecond, Socket: host.Options{DSCP: 46}}, c.o)
			if !c.check(err) {
				t.Errorf("%v, want another error", err)
			}
			if err == nil {
				tr.Close()
			}
		})
	}
}

func TestNobodyListeningIsSaidAtOnce(t *testing.T) {
	at := freePort(t, "127.0.0.1")
	_, err := Dial(t.Context(), host.NewKernel(), at, probe.Options{}, Options{Opens: []time.Duration{0}, OpenWait: time.Minute})
	if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "no irtt server runs there") {
		t.Errorf("%v, want that no server runs there", err)
	}
}

// TestAServerThatGoesAwayRefusesProbes: what its host's ICMP errors quote tells which probes they concern.
func TestAServerThatGoesAwayRefusesProbes(t *testing.T) {
	needQuotedErrors(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	go func() {
		s := irtt.Server{Options: irtt.Options{Ready: func(at []netip.AddrPort) { ready <- at[0] }}}
		ended <- s.Serve(ctx, host.NewKernel(), netip.MustParseAddrPort("127.0.0.1:0"))
	}()
	po := probe.Options{Interval: 20 * time.Millisecond}
	tr := dialReal(t, <-ready, po, Options{Duration: time.Minute, Opens: quick.Opens, OpenWait: quick.OpenWait})
	k := host.NewKernel()
	got := make(map[probe.Outcome]int)
	tally, err := probe.Run(t.Context(), t.Context(), k, tr, po, k.Now(), 25, func(s probe.Sample) {
		got[s.Outcome]++
		if s.Outcome == probe.Received && ctx.Err() == nil {
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("server: %v", err)
			}
		}
	})
	if err != nil || got[probe.Received] == 0 || got[probe.Lost] == 0 || int(tally.Rejected) != got[probe.Lost] {
		t.Errorf("outcomes %v, %d refused, %v, want some received and the rest lost because they were refused", got, tally.Rejected, err)
	}
	if !strings.Contains(tally.FirstError, "refused") {
		t.Errorf("first error %q, want connection refused", tally.FirstError)
	}
}

// needQuotedErrors skips the test where the kernel does not tell which packet an ICMP error is about.
func needQuotedErrors(t *testing.T) {
	t.Helper()
	k := host.NewKernel()
	at := freePort(t, "127.0.0.1")
	c, err := k.DialUDP(t.Context(), at, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(k.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Send([]byte("anybody?"), at); err != nil {
		t.Fatal(err)
	}
	if d, err := c.Receive(make([]byte, 100)); err != nil || d.Rejected == nil || d.N == 0 {
		facility.Missing(t, "quoted ICMP errors", "the socket says no more than "+errorText(err))
	}
}

func errorText(err error) string {
	if err == nil {
		return "that there was one"
	}
	return err.Error()
}
