package netperf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/servers/internal/bounds"
)

// stranger opens a connection to the server under abuse and does with it what the name says. What it opens is in the returned list.
type stranger func(t *testing.T, h host.Host, at netip.AddrPort) []net.Conn

// connection dials. It returns nil where the server's queue is full, which is no fault of a test that fills it.
func connection(t *testing.T, h host.Host, at netip.AddrPort) net.Conn {
	t.Helper()
	ctx, cancel := host.WithTimeout(context.Background(), h, 10*time.Second)
	defer cancel()
	c, err := h.DialTCP(ctx, at, host.Options{})
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// says is a stranger that sends bytes and then nothing.
func says(b []byte) stranger {
	return func(t *testing.T, h host.Host, at netip.AddrPort) []net.Conn {
		c := connection(t, h, at)
		if c == nil {
			return nil
		}
		_ = c.SetWriteDeadline(h.Now().Add(50 * time.Millisecond)) // not all may be read
		_, _ = c.Write(b)                                          // it may be put out meanwhile
		return []net.Conn{c}
	}
}

// dribbles is a stranger that sends one byte each 20 ms, until its connection is closed by either end.
func dribbles(b []byte) stranger {
	return func(t *testing.T, h host.Host, at netip.AddrPort) []net.Conn {
		c := connection(t, h, at)
		if c == nil {
			return nil
		}
		go func() {
			for i := range b {
				if _, err := c.Write(b[i : i+1]); err != nil {
					return
				}
				_ = h.SleepUntil(context.Background(), h.Now().Add(20*time.Millisecond))
			}
		}()
		return []net.Conn{c}
	}
}

// midTest is a client in the middle of a test.
func midTest(test wire.Test) stranger {
	return func(t *testing.T, h host.Host, at netip.AddrPort) []net.Conn {
		c := connection(t, h, at)
		if c == nil {
			return nil
		}
		_, _ = c.Write(wire.Omni(test, wire.IPv4, 100).AppendTo(nil))
		_ = c.SetReadDeadline(h.Now().Add(10 * time.Second))
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
		if data == nil {
			return []net.Conn{c}
		}
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

// crowd is strangers of one kind. Those who hold what they have by right are within the limits of tests.
type crowd struct {
	name    string
	n       int
	does    stranger
	byRight bool
}

// crowds are all kinds; those of datagrams are for a stack that has them.
func crowds(datagrams bool) []crowd {
	upload := wire.Omni(wire.TCPStream, wire.IPv4, 100).AppendTo(nil)
	list := []crowd{
		{"silent clients", 400, says(nil), false},
		{"half greetings", 300, says(upload[:300]), false},
		{"HTTP", 100, says([]byte("GET / HTTP/1.1\r\n\r\n")), false},
		{"TLS", 100, says([]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")), false},
		{"one byte each 20 ms", 80, dribbles(upload), false},
		{"absurd numbers", 100, absurd(1), false},
		{"more records than a test has", 20, says(bytes.Repeat(upload, 50)), true},
		{"unknown tests", 100, says(wire.Type(9999).AppendTo(nil, -1)), false},
		{"old clients", 100, says(make([]byte, wire.OldSize)), false},
		{"uploads, killed", 200, midTest(wire.TCPStream), true},
		{"downloads, killed", 40, midTest(wire.TCPMaerts), true},
		{"transactions, killed", 40, midTest(wire.TCPRR), true},
		{"connections, killed", 40, midTest(wire.TCPCRR), true},
	}
	if datagrams {
		list = append(list, crowd{"datagrams, killed", 40, midTest(wire.UDPRR), true}, crowd{"datagram flow, killed", 40, midTest(wire.UDPStream), true})
	}
	return list
}

// first has a real client ask for a download, and returns how long it took until its first byte.
func first(t *testing.T, h host.Host, at netip.AddrPort) time.Duration {
	t.Helper()
	begin := h.Now()
	p := dial(t, h, at)
	data, _ := p.data(wire.Omni(wire.TCPMaerts, wire.IPv4, 100), at)
	_ = data.SetReadDeadline(h.Now().Add(10 * time.Second))
	if _, err := data.Read(make([]byte, 1)); err != nil {
		t.Errorf("a real client reads %v", err)
	}
	d := h.Now().Sub(begin)
	_, _ = data.Close(), p.conn.Close()
	return d
}

// In virtual time, whatever the machine does meanwhile: a second is a second of waiting.
func TestTheNextRealClientIsServedWithinASecond(t *testing.T) {
	for _, descriptors := range []int{0, 64} {
		for _, c := range crowds(false) {
			t.Run(fmt.Sprintf("%s, %d descriptors", c.name, descriptors), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := memory()
					h.Descriptors = descriptors
					lines := 0
					v, at, stop := abused(t, h, Options{MaxTests: 300, MaxTestsPerAddress: 300, Log: func(string) { lines++ }})
					begin := h.Now()
					var open []net.Conn
					for range c.n {
						open = append(open, c.does(t, h, at)...)
					}
					among := func(when string) {
						time.Sleep(10 * time.Millisecond) // until what was closed is gone
						if d := first(t, h, at); d > time.Second {
							t.Errorf("%s: a real client has its first byte after %v", when, d)
						}
					}
					if descriptors == 0 || !c.byRight {
						among("meanwhile")
					}
					for _, one := range open {
						_ = one.(interface{ SetLinger(int) error }).SetLinger(0)
						_ = one.Close()
					}
					among("afterwards")
					time.Sleep(time.Second)
					synctest.Wait()
					if all, _ := v.clients.InUse(); all != (bounds.Use{}) {
						t.Errorf("a second after the last was killed: %+v in use", all)
					}
					stop()
					if most := 64 + 1 + int(h.Now().Sub(begin)/(100*time.Millisecond)); lines > most {
						t.Errorf("%d lines of log in %v, want at most %d", lines, h.Now().Sub(begin), most)
					}
				})
			})
		}
	}
}

// TestARealClientIsServedWhateverStrangersDo has strangers of each kind come in crowds over the kernel's stack, and looks for what is left of them.
func TestARealClientIsServedWhateverStrangersDo(t *testing.T) {
	h := host.NewKernel()
	v, at, stop := abused(t, h, Options{MaxTests: 600, MaxTestsPerAddress: 600, Log: func(string) {}})
	before := runtime.NumGoroutine()
	var open []net.Conn
	for _, c := range crowds(true) {
		for range min(c.n, 150) {
			open = append(open, c.does(t, h, at)...)
		}
		// It takes some 5 ms; what it may take is tested in virtual time.
		if d := first(t, h, at); d > 10*time.Second {
			t.Errorf("%s: a real client is served after %v", c.name, d)
		}
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

// abused runs a server until stop is called, or the test ends.
func abused(t *testing.T, h host.Host, o Options) (v *service, at netip.AddrPort, stop func()) {
	t.Helper()
	v, err := newService(o, h)
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
	stop = sync.OnceFunc(func() { cancel(); accepting.Wait(); v.sessions.Wait() })
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
