package irtt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/internal/wire/irtt/hmacmd5"
)

// serving runs a server on the kernel's loopback until the test's end and returns where.
func serving(t *testing.T, address string, o Options) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(address, "0"))
	if err != nil {
		facility.Missing(t, "loopback "+address, err.Error())
	}
	c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	o.Ready = func(at []netip.AddrPort) { ready <- at[0] }
	go func() {
		s := Server{Options: o}
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

// stockClient runs the irtt program as a client and returns what it printed.
func stockClient(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	program, err := exec.LookPath("irtt")
	if err != nil {
		facility.Missing(t, "irtt", err.Error())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, program, append([]string{"client"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// stockResult is what a test looks at in the JSON output of irtt.
type stockResult struct {
	Config struct {
		Params struct {
			Interval, Duration time.Duration
			Length, DSCP       int
			StampAt            string `json:"stamp_at"`
			ServerFill         string `json:"server_fill"`
		}
	}
	Stats struct {
		Sent           int `json:"packets_sent"`
		Received       int `json:"packets_received"`
		ServerReceived int `json:"server_packets_received"`
		Duplicates     int
		BytesReceived  int `json:"bytes_received"`
	}
	RoundTrips []struct {
		Lost  string
		Delay struct{ RTT, Send, Receive int64 }
	} `json:"round_trips"`
}

func TestStockClientsGetEveryReply(t *testing.T) {
	for _, c := range []struct {
		claim   string
		address string
		o       Options
		args    string
		bytes   int // of each reply
		check   func(r stockResult) bool
	}{
		{claim: "by default", address: "127.0.0.1", bytes: 60},
		{claim: "IPv6", address: "::1", bytes: 60},
		{claim: "with a key", address: "127.0.0.1", o: Options{HMAC: hmacmd5.New([]byte("swordfish"))}, args: "--hmac=swordfish", bytes: 76},
		{claim: "with a key in digits", address: "127.0.0.1", o: Options{HMAC: hmacmd5.New([]byte{0, 255})}, args: "--hmac=0x00ff", bytes: 76},
		{claim: "VoIP's length", address: "127.0.0.1", args: "-l 172", bytes: 172},
		{claim: "an Ethernet frame's length", address: "127.0.0.1", args: "-l 1472", bytes: 1472},
		{claim: "random payload", address: "127.0.0.1", args: "-l 172 --fill=rand", bytes: 172},
		{claim: "random payload both ways", address: "127.0.0.1", args: "-l 172 --fill=rand --sfill=rand", bytes: 172,
			check: func(r stockResult) bool { return r.Config.Params.ServerFill == "rand" }},
		{claim: "marked", address: "127.0.0.1", args: "--dscp=0xb8", bytes: 60, check: func(r stockResult) bool { return r.Config.Params.DSCP == 0xb8 }},
		{claim: "marked, IPv6", address: "::1", args: "--dscp=0xb8", bytes: 60},
		{claim: "marked as irtt's help says", address: "127.0.0.1", args: "--dscp=46", bytes: 60},
		{claim: "one stamp, one clock", address: "127.0.0.1", args: "--tstamp=receive --clock=monotonic --stats=count", bytes: 28},
		{claim: "midpoint by the wall clock", address: "127.0.0.1", args: "--tstamp=midpoint --clock=wall", bytes: 36},
		{claim: "midpoint by the monotonic clock", address: "127.0.0.1", args: "--tstamp=midpoint --clock=monotonic", bytes: 36},
		{claim: "midpoint by both clocks", address: "127.0.0.1", args: "--tstamp=midpoint", bytes: 44},
		{claim: "a window, and when it was sent by the wall clock", address: "127.0.0.1", args: "--stats=window --tstamp=send --clock=wall", bytes: 32},
		{claim: "both stamps by the wall clock", address: "127.0.0.1", args: "--clock=wall", bytes: 44},
		{claim: "both stamps by the monotonic clock, a count", address: "127.0.0.1", args: "--stats=count --clock=monotonic", bytes: 36},
		{claim: "statistics alone", address: "127.0.0.1", args: "--tstamp=none", bytes: 28},
		{claim: "a fill that the server has not", address: "127.0.0.1", args: "--loose -l 100 --sfill=pattern:0102", bytes: 100,
			check: func(r stockResult) bool { return r.Config.Params.ServerFill == "" }},
		{claim: "nothing but the sequence", address: "127.0.0.1", args: "--tstamp=none --stats=none", bytes: 16},
		{claim: "restricted", address: "127.0.0.1", args: "--loose -l 500 --sfill=none --dscp=0xb8", bytes: 100,
			o: Options{MaxDuration: 200 * time.Millisecond, MinInterval: 20 * time.Millisecond, MaxLength: 100, NoDSCP: true},
			check: func(r stockResult) bool {
				p := r.Config.Params
				return p.Duration == 200*time.Millisecond && p.Interval == 20*time.Millisecond && p.Length == 100 && p.DSCP == 0 && p.ServerFill == ""
			}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			at := serving(t, c.address, c.o)
			// The default wait of 3 times the highest RTT is too short where the machine is busy just then.
			args := append([]string{"-Q", "-o", "-", "-i", "10ms", "-d", "300ms", "--wait=500ms"}, strings.Fields(c.args)...)
			stdout, stderr, err := stockClient(t, append(args, at.String())...)
			var r stockResult
			if jsonErr := json.Unmarshal([]byte(stdout), &r); err != nil || stderr != "" || jsonErr != nil {
				t.Fatalf("irtt client: %v, %s, JSON: %v", err, stderr, jsonErr)
			}
			s := r.Stats
			if s.Sent < 5 || s.Received != s.Sent || s.Duplicates != 0 || s.BytesReceived != s.Received*c.bytes {
				t.Errorf("sent %d, received %d, %d duplicates, %d bytes, want all, %d bytes each", s.Sent, s.Received, s.Duplicates, s.BytesReceived, c.bytes)
			}
			if !strings.Contains(c.args, "--stats=none") && !strings.Contains(c.args, "--stats=window") && s.ServerReceived != s.Sent {
				t.Errorf("the server says it received %d of %d", s.ServerReceived, s.Sent)
			}
			for i, trip := range r.RoundTrips {
				if trip.Lost != "false" || trip.Delay.RTT <= 0 {
					t.Errorf("round trip %d: %+v, want an RTT", i, trip)
				}
			}
			if c.check != nil && !c.check(r) {
				t.Errorf("it ran with %+v", r.Config.Params)
			}
		})
	}
}

func TestStockClientsThatGetNothing(t *testing.T) {
	for _, c := range []struct {
		claim string
		o     Options
		args  string
		want  string // in the standard error; "" for success
	}{
		{"no test is what was wanted", Options{}, "-n -Q", ""},
		{"no test, with a key", Options{HMAC: hmacmd5.New([]byte("swordfish"))}, "-n -Q --hmac=swordfish", ""},
		{"another key", Options{HMAC: hmacmd5.New([]byte("swordfish"))}, "-n -Q --hmac=wrong --timeouts=200ms", "no reply from server"},
		{"no key", Options{HMAC: hmacmd5.New([]byte("swordfish"))}, "-n -Q --timeouts=200ms", "no reply from server"},
		{"a key that is not wanted", Options{}, "-n -Q --hmac=swordfish --timeouts=200ms", "no reply from server"},
		{"a restriction that a strict client does not take", Options{MinInterval: time.Second}, "-Q -i 10ms", "server increased interval from 10ms to 1s"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			at := serving(t, "127.0.0.1", c.o)
			_, stderr, err := stockClient(t, append(strings.Fields(c.args), at.String())...)
			if (err != nil) != (c.want != "") || !strings.Contains(stderr, c.want) {
				t.Errorf("irtt client: %v, %q, want %q", err, stderr, c.want)
			}
		})
	}
}

// TestAnswersComeFromTheAddressAsked: the client's socket is connected to it and hears no other.
func TestAnswersComeFromTheAddressAsked(t *testing.T) {
	at := serving(t, "0.0.0.0", Options{HMAC: hmacmd5.New([]byte("swordfish"))})
	asked := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), at.Port())
	_, stderr, err := stockClient(t, "-Q", "-n", "--hmac=swordfish", "--timeouts=2s", "--local=127.0.0.1:0", asked.String())
	if err != nil {
		t.Errorf("irtt client: %v, %s", err, stderr)
	}
}

func TestRepliesAreMarkedOnTheWire(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		at := serving(t, address, Options{})
		k := host.NewKernel()
		c, err := k.DialUDP(t.Context(), at, host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetReadDeadline(k.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		exchange := func(request []byte) ([]byte, host.Datagram) {
			t.Helper()
			b := make([]byte, 200)
			if _, err := c.Send(request, at); err != nil {
				t.Fatal(err)
			}
			d, err := c.Receive(b)
			if err != nil {
				t.Fatal(err)
			}
			return b[:d.N], d
		}
		p := asked
		p.DS = 0xbb // EF with both ECN bits
		reply, _ := exchange(wire.Open{Flags: wire.FlagOpen, Params: p}.AppendTo(nil))
		o, err := wire.ParseOpen(reply)
		if err != nil {
			t.Fatal(err)
		}
		if o.Params.DS == 0 {
			facility.Missing(t, "marks per datagram", "the stack's sockets cannot")
		}
		e := wire.Echo{Token: o.Token}
		_, d := exchange(e.AppendTo(nil, p.Fields()))
		if !d.HasDS || d.DS != 0xb8 {
			t.Errorf("%s: the reply has DS byte %#x, told %v, want 0xb8", address, d.DS, d.HasDS)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var at []netip.AddrPort
	s := Server{Options: Options{Ready: func(a []netip.AddrPort) { at = a; cancel() }}}
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	if err := s.Serve(ctx, host.NewKernel(), loopback, loopback); err != nil {
		t.Errorf("stopped: %v, want nil", err)
	}
	if len(at) != 2 || at[0].Port() == 0 || at[0].Port() == at[1].Port() {
		t.Errorf("it listened at %v, want two ports", at)
	}
	for _, a := range at {
		c, err := net.ListenPacket("udp", a.String())
		if err != nil {
			t.Errorf("%v is still taken: %v", a, err)
			continue
		}
		c.Close()
	}
}

func TestServeSaysWhyItCannot(t *testing.T) {
	taken, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.LocalAddr().(*net.UDPAddr).AddrPort()
	free := netip.MustParseAddrPort("127.0.0.1:0")
	err = (&Server{}).Serve(t.Context(), host.NewKernel(), free, at)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), at.String()) {
		t.Errorf("a port that is taken: %v", err)
	}
	if err := (&Server{}).Serve(t.Context(), host.NewKernel()); err == nil {
		t.Error("no address to listen at is no error")
	}
	for _, o := range []Options{{MaxDuration: -1}, {MinInterval: -1}, {MinInterval: time.Minute}, {Burst: -1}, {MaxLength: 75}, {MaxLength: 70000},
		{MaxSessions: -1}, {OpensPerSecond: -1}, {Timeout: time.Millisecond}} {
		if err := (&Server{Options: o}).Serve(t.Context(), host.NewKernel(), free); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// brokenHost is a host whose sockets have an error whenever they receive.
type brokenHost struct{ *host.Kernel }

func (brokenHost) ListenUDP(context.Context, netip.AddrPort, host.Options) (host.PacketConn, error) {
	return brokenConn{}, nil
}

func (brokenHost) SleepUntil(context.Context, time.Time) error { return nil }

type brokenConn struct{ host.PacketConn }

func (brokenConn) Receive([]byte) (host.Datagram, error) {
	return host.Datagram{}, syscall.ENETDOWN
}
func (brokenConn) LocalAddr() netip.AddrPort { return netip.AddrPort{} }
func (brokenConn) Close() error              { return nil }

func TestABrokenSocketEndsServe(t *testing.T) {
	err := (&Server{}).Serve(t.Context(), brokenHost{host.NewKernel()}, client, other)
	if !errors.Is(err, syscall.ENETDOWN) {
		t.Errorf("%v, want %v", err, syscall.ENETDOWN)
	}
}
