package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	probes "bufferbloat/probe"
	"bufferbloat/probe/irtt"
	irttserver "bufferbloat/servers/irtt"
)

// spoiler is a wire on loopback between an irtt client and an irtt server that spoils echoes of some numbers. It counts what it did.
type spoiler struct {
	what     spoiling
	up       bool // requests, otherwise replies
	chosen   func(seq uint32) bool
	outside  *net.UDPConn // where clients send to
	inside   *net.UDPConn // towards the server
	mu       sync.Mutex   // guards all below
	client   netip.AddrPort
	held     []byte
	count    int
	lastSeen uint32
	lastHit  uint32
}

// spoiling is what is done to an echo.
type spoiling string

const (
	dropped spoiling = "dropped"
	doubled spoiling = "doubled"
	swapped spoiling = "swapped" // with the one after it
)

func newSpoiler(t *testing.T, server netip.AddrPort, what spoiling, up bool, chosen func(uint32) bool) *spoiler {
	t.Helper()
	s := &spoiler{what: what, up: up, chosen: chosen}
	var err error
	if s.outside, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		t.Fatal(err)
	}
	if s.inside, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(server)); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { s.pump(s.outside, true) })
	running.Go(func() { s.pump(s.inside, false) })
	t.Cleanup(func() { s.outside.Close(); s.inside.Close(); running.Wait() })
	return s
}

func (s *spoiler) at() netip.AddrPort { return s.outside.LocalAddr().(*net.UDPAddr).AddrPort() }

func (s *spoiler) pump(from *net.UDPConn, up bool) {
	b := make([]byte, 2000)
	for {
		n, addr, err := from.ReadFromUDPAddrPort(b)
		if err != nil {
			if up || strings.Contains(err.Error(), "closed") {
				return
			}
			continue // the server's port is closed, which no test here does on purpose
		}
		s.mu.Lock()
		if up {
			s.client = addr
		}
		for _, d := range s.pass(b[:n], up) {
			if up {
				_, _ = s.inside.Write(d)
			} else {
				_, _ = s.outside.WriteToUDPAddrPort(d, s.client)
			}
		}
		s.mu.Unlock()
	}
}

// pass returns what goes on of one datagram. s.mu is held.
func (s *spoiler) pass(b []byte, up bool) [][]byte {
	const openClose = 1 | 4
	if up != s.up || len(b) < 16 || b[3]&openClose != 0 {
		return [][]byte{b}
	}
	seq := binary.LittleEndian.Uint32(b[12:])
	s.lastSeen = seq
	var out [][]byte
	if !s.chosen(seq) || s.held != nil {
		out = append(out, b)
		if s.held != nil {
			out, s.held = append(out, s.held), nil
		}
		return out
	}
	s.count++
	s.lastHit = seq
	switch s.what {
	case doubled:
		return [][]byte{b, b}
	case swapped:
		s.held = bytes.Clone(b)
		time.AfterFunc(10*irttInterval, func() { s.release(seq) })
	}
	return nil
}

// release lets go of a held echo that nothing came after. It counts as untouched: it overtook nobody and nobody overtook it.
func (s *spoiler) release(seq uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil || binary.LittleEndian.Uint32(s.held[12:]) != seq {
		return
	}
	if s.up {
		_, _ = s.inside.Write(s.held)
	} else {
		_, _ = s.outside.WriteToUDPAddrPort(s.held, s.client)
	}
	s.held = nil
	s.count--
}

// counts returns how many echoes were spoilt, and whether the last one was among them: what became of that nobody is told.
func (s *spoiler) counts() (n int, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.count > 0 && s.lastSeen == s.lastHit
}

// spoilings are what both pairs of client and server go through.
var spoilings = []struct {
	name   string
	what   spoiling
	up     bool
	chosen func(uint32) bool
}{
	{"every fifth reply dropped, the last one among them", dropped, false, func(n uint32) bool { return n%5 == 4 }},
	{"every seventh request dropped", dropped, true, func(n uint32) bool { return n%7 == 3 }},
	{"every fifth reply doubled", doubled, false, func(n uint32) bool { return n%5 == 1 }},
	{"every fifth request doubled", doubled, true, func(n uint32) bool { return n%5 == 1 }},
	{"every fifth reply swapped with the next", swapped, false, func(n uint32) bool { return n%5 == 1 }},
	{"every fifth request swapped with the next", swapped, true, func(n uint32) bool { return n%5 == 1 }},
}

const irttCount, irttInterval = 50, 20 * time.Millisecond // of each, all at once

// TestOurIRTTClientCountsWhatHappensBeforeAStockServer has Debian's irtt at the server's end.
func TestOurIRTTClientCountsWhatHappensBeforeAStockServer(t *testing.T) {
	t.Parallel()
	server := stockIRTTServer(t)
	var group sync.WaitGroup
	defer group.Wait()
	for _, c := range spoilings {
		s := newSpoiler(t, server, c.what, c.up, c.chosen)
		group.Go(func() {
			h, o := host.NewKernel(), probes.Options{Interval: irttInterval}
			tr, err := irtt.Dial(t.Context(), h, s.at(), o, irtt.Options{OpenWait: 10 * time.Second})
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				return
			}
			got := map[probes.Outcome]int{}
			tally, err := probes.Run(t.Context(), t.Context(), h, tr, o, h.Now(), irttCount, func(x probes.Sample) { got[x.Outcome]++ })
			n, last := s.counts()
			want := map[probes.Outcome]int{probes.Unsent: got[probes.Unsent], probes.Received: irttCount - got[probes.Unsent]}
			if c.what == dropped {
				where, unknown := probes.LostDown, 0
				if c.up {
					where = probes.LostUp
				}
				if last {
					unknown = 1
				}
				want[probes.Received] -= n
				want[probes.Lost], want[where] = unknown, n-unknown
			}
			for outcome := probes.Received; outcome <= probes.Invalid; outcome++ {
				if got[outcome] != want[outcome] {
					t.Errorf("%s: %d %v, want %d of %d spoilt (all: %v)", c.name, got[outcome], outcome, want[outcome], n, got)
				}
			}
			duplicates, reordered := 0, 0
			switch c.what {
			case doubled:
				duplicates = n
			case swapped:
				reordered = n
			}
			if err != nil || n == 0 || int(tally.Duplicates) != duplicates || int(tally.Reordered) != reordered || tally.Stray+tally.Corrupt+tally.TooLate != 0 {
				t.Errorf("%s: %v, tally %+v, want %d duplicates and %d reordered", c.name, err, tally, duplicates, reordered)
			}
		})
	}
}

// TestAStockIRTTClientCountsWhatHappensBeforeOurServer has Debian's irtt at the client's end.
func TestAStockIRTTClientCountsWhatHappensBeforeOurServer(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("irtt")
	if err != nil {
		facility.Missing(t, "irtt", err.Error())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	go func() {
		s := irttserver.Server{Options: irttserver.Options{Ready: func(at []netip.AddrPort) { ready <- at[0] }}}
		ended <- s.Serve(ctx, host.NewKernel(), netip.MustParseAddrPort("127.0.0.1:0"))
	}()
	server := <-ready
	t.Cleanup(func() { cancel(); <-ended })
	var group sync.WaitGroup
	defer group.Wait()
	for _, c := range spoilings {
		s := newSpoiler(t, server, c.what, c.up, c.chosen)
		group.Go(func() {
			limited, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(limited, program, "client", "-Q", "-o", "-", "-i", irttInterval.String(), "-d", (irttCount * irttInterval).String(),
				"--wait=1s", s.at().String())
			out, err := cmd.Output()
			var r struct {
				Stats struct {
					Sent       int `json:"packets_sent"`
					Received   int `json:"packets_received"`
					Duplicates int `json:"duplicates"`
				} `json:"stats"`
				RoundTrips []struct {
					Lost string `json:"lost"`
				} `json:"round_trips"`
			}
			if err == nil {
				err = json.Unmarshal(out, &r)
			}
			if err != nil {
				t.Errorf("%s: irtt client: %v: %.300s", c.name, err, out)
				return
			}
			lost := map[string]int{}
			for _, trip := range r.RoundTrips {
				lost[trip.Lost]++
			}
			n, last := s.counts()
			want := map[string]int{"false": r.Stats.Sent}
			if c.what == dropped {
				want["false"] -= n
				where := "true_down"
				if c.up {
					where = "true_up"
				}
				want[where] = n
				if last {
					want[where], want["true"] = n-1, 1
				}
			}
			duplicates := 0
			if c.what == doubled {
				duplicates = n
			}
			for word, k := range want {
				if lost[word] != k {
					t.Errorf("%s: %d round trips lost: %q, want %d of %d spoilt (all: %v)", c.name, lost[word], word, k, n, lost)
				}
			}
			if n == 0 || r.Stats.Sent < 5 || r.Stats.Duplicates != duplicates || r.Stats.Received != want["false"]+duplicates {
				t.Errorf("%s: %+v, want %d duplicates", c.name, r.Stats, duplicates)
			}
		})
	}
}

// stockIRTTServer runs the irtt program as a server on loopback until the test's end.
func stockIRTTServer(t *testing.T) netip.AddrPort {
	t.Helper()
	program, err := exec.LookPath("irtt")
	if err != nil {
		facility.Missing(t, "irtt", err.Error())
	}
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	at := c.LocalAddr().(*net.UDPAddr).AddrPort()
	c.Close()
	cmd := exec.Command(program, "server", "-b", at.String(), "--pburst=1000")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	said := bufio.NewScanner(out)
	for said.Scan() {
		if strings.Contains(said.Text(), "[ListenerStart]") {
			return at
		}
	}
	t.Fatal(fmt.Errorf("irtt server did not start: %w", said.Err()))
	return at
}

// The server has several addresses, of both families, and one of a link: it answers from the one that was asked, or a client would not take it.
func TestTheIRTTServerAnswersFromTheAddressThatWasAsked(t *testing.T) {
	t.Parallel()
	n := testnet.New(t)
	n.Router.Do(t, "addr", "add", "192.0.2.77/24", "dev", n.Down.Name)
	n.Router.Do(t, "addr", "add", "203.0.113.77/32", "dev", "lo")
	out, err := n.Router.Command("ip", "-6", "-o", "addr", "show", "dev", n.Down.Name, "scope", "link").Output()
	found := regexp.MustCompile(`fe80::[0-9a-f:]+`).Find(out)
	if err != nil || found == nil {
		t.Fatalf("no link-local address: %v, %s", err, out)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h := host.NewKernel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		s := irttserver.Server{Options: irttserver.Options{Ready: func([]netip.AddrPort) { close(ready) }}}
		ended <- s.Serve(ctx, inside{h, n.Router, t}, netip.MustParseAddrPort("0.0.0.0:2112"), netip.MustParseAddrPort("[::]:2112"))
	}()
	defer func() { cancel(); <-ended }()
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	for _, to := range []string{n.Router.IP.String(), "192.0.2.77", "203.0.113.77", n.Router.IP6.String(), string(found) + "%" + n.ClientDevice.Name} {
		o := probes.Options{Interval: 10 * time.Millisecond, Socket: host.Options{DSCP: 46}}
		var tr *irtt.Transport
		n.Client.Inside(t, func() {
			tr, err = irtt.Dial(t.Context(), h, netip.AddrPortFrom(netip.MustParseAddr(to), irtt.DefaultPort), o, irtt.Options{})
		})
		if err != nil {
			t.Errorf("%s: %v", to, err)
			continue
		}
		got := map[probes.Outcome]int{}
		tally, err := probes.Run(t.Context(), t.Context(), h, tr, o, h.Now(), 10, func(x probes.Sample) { got[x.Outcome]++ })
		if err != nil || got[probes.Received] == 0 || got[probes.Received]+int(tally.SenderLate) != 10 || len(tally.Marks) != 1 || tally.Marks[0].DS != 46<<2 {
			t.Errorf("%s: %v, %+v, %v; want all answered, and marked", to, got, tally, err)
		}
	}
}
