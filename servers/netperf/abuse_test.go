package netperf

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/servers/internal/bounds"
)

// stranger opens a connection to the server under abuse and does with it what the name says. What it opens is in the returned list.
type stranger func(t *testing.T, h host.Host, at netip.AddrPort) []net.Conn

func connection(t *testing.T, h host.Host, at netip.AddrPort) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := h.DialTCP(ctx, at, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// says is a stranger that sends bytes and then nothing.
func says(b []byte) stranger {
	return func(t *testing.T, h host.Host, at netip.AddrPort) []net.Conn {
		c := connection(t, h, at)
		_, _ = c.Write(b) // it may be put out meanwhile
		return []net.Conn{c}
	}
}

// midTest is a client in the middle of a test.
func midTest(test wire.Test) stranger {
	return func(t *testing.T, h host.Host, at netip.AddrPort) []net.Conn {
		c := connection(t, h, at)
		_, _ = c.Write(wire.Omni(test, wire.IPv4, 100).AppendTo(nil))
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		record := make([]byte, wire.Size)
		if err := readAll(c, record, len(record)); err != nil {
			return []net.Conn{c} // there was no room for it
		}
		response, err := wire.ParseResponse(record)
		if err != nil || response.Error != 0 {
			return []net.Conn{c}
		}
		if test == wire.UDPRR || test == wire.UDPStream {
			return []net.Conn{c}
		}
		data := connection(t, h, netip.AddrPortFrom(at.Addr(), response.DataPort))
		_, _ = data.Write([]byte("x"))
		return []net.Conn{c, data}
	}
}

// absurd is a request of random numbers in a valid frame.
func absurd(seed uint64) stranger {
	rnd := rand.New(rand.NewPCG(seed, 7))
	record := make([]byte, wire.Size)
	for i := range record {
		record[i] = byte(rnd.Uint32())
	}
	copy(record, []byte{0, 0, 0, 97})
	return says(record)
}

// TestARealClientIsServedWhateverStrangersDo has strangers of each kind come in crowds, looks at how soon a real client is served among them,
// kills them all, and looks for what is left.
func TestARealClientIsServedWhateverStrangersDo(t *testing.T) {
	h := host.NewKernel()
	half := wire.Omni(wire.TCPStream, wire.IPv4, 1).AppendTo(nil)[:300]
	crowds := map[string]struct {
		n    int
		does stranger
	}{
		"silent clients":        {150, says(nil)},
		"half greetings":        {150, says(half)},
		"HTTP":                  {100, says([]byte("GET / HTTP/1.1\r\n\r\n"))},
		"TLS":                   {100, says([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))},
		"absurd numbers":        {100, absurd(1)},
		"unknown tests":         {100, says(wire.Type(9999).AppendTo(nil, -1))},
		"old clients":           {100, says(make([]byte, wire.OldSize))},
		"uploads, killed":       {40, midTest(wire.TCPStream)},
		"downloads, killed":     {40, midTest(wire.TCPMaerts)},
		"transactions, killed":  {40, midTest(wire.TCPRR)},
		"connections, killed":   {40, midTest(wire.TCPCRR)},
		"datagrams, killed":     {40, midTest(wire.UDPRR)},
		"datagram flow, killed": {40, midTest(wire.UDPStream)},
	}
	v, at, stop := abused(t, h)
	before := runtime.NumGoroutine()
	var open []net.Conn
	for name, crowd := range crowds {
		for range crowd.n {
			open = append(open, crowd.does(t, h, at)...)
		}
		begin := time.Now()
		p := dial(t, h, at)
		data, _ := p.data(wire.Omni(wire.TCPMaerts, wire.IPv4, 100), at)
		_ = data.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := data.Read(make([]byte, 1)); err != nil {
			t.Errorf("%s: a real client reads %v", name, err)
		}
		// It takes some 5 ms. The bound is for machines that are starved by others.
		if d := time.Since(begin); d > 3*time.Second {
			t.Errorf("%s: a real client is served after %v", name, d)
		}
		open = append(open, p.conn, data)
	}
	for _, c := range open {
		_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
		_ = c.Close()
	}
	within(t, "connections and tests are counted", func() (int, bool) {
		all, _ := v.clients.InUse()
		return all.Connections + all.Tests, all == bounds.Use{}
	})
	within(t, "goroutines run", func() (int, bool) { n := runtime.NumGoroutine(); return n, n <= before+2 })
	stop()
}

// abused runs a server whose log nobody reads.
func abused(t *testing.T, h host.Host) (*service, netip.AddrPort, func()) {
	t.Helper()
	v, err := newService(Options{MaxTests: 300, MaxTestsPerAddress: 300, Log: func(string) {}}, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l, err := h.ListenTCP(ctx, netip.MustParseAddrPort("127.0.0.1:0"), host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() { _ = v.accept(ctx, l) })
	stop := sync.OnceFunc(func() { cancel(); accepting.Wait(); v.sessions.Wait() })
	t.Cleanup(stop)
	return v, host.AddrPortOf(l.Addr()), stop
}

// within waits until what is counted is gone, as nothing tells when the kernel has delivered the last reset.
func within(t *testing.T, what string, gone func() (int, bool)) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		n, ok := gone()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d %s 10 s after the last client was killed", n, what)
		}
	}
}
