package netperf

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"os"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
)

// udp asks for a UDP test and returns a socket connected to its data port.
func (p *peer) udp(r wire.Request, at netip.AddrPort) host.PacketConn {
	p.Helper()
	response, err := wire.ParseResponse(p.send(r.AppendTo(nil)).record(5 * time.Second))
	if err != nil || response.Error != 0 {
		p.Fatalf("response %+v, %v", response, err)
	}
	conn, err := p.host.DialUDP(context.Background(), netip.AddrPortFrom(at.Addr(), response.DataPort), host.Options{})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close() })
	return conn
}

// exchange sends n bytes and returns the length of what comes back within a time, or -1.
func exchange(t *testing.T, h host.Host, conn host.PacketConn, n int, within time.Duration) int {
	t.Helper()
	if _, err := conn.Send(make([]byte, n), netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(h.Now().Add(within))
	d, err := conn.Receive(make([]byte, 1<<16))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return -1
	}
	if err != nil {
		t.Fatal(err)
	}
	return d.N
}

func TestUDPTransactionsOverTheKernel(t *testing.T) {
	h := host.NewKernel()
	at, lines := serve(t, h, Options{})
	p := dial(t, h, at)
	r := wire.Omni(wire.UDPRR, wire.IPv4, 60)
	r.RequestSize, r.ResponseSize = 64, 512
	conn := p.udp(r, at)
	for range 3 {
		if got := exchange(t, h, conn, 64, 5*time.Second); got != 512 {
			t.Errorf("a request of 64 bytes is answered with %d, want 512", got)
		}
	}
	if got := exchange(t, h, conn, 60, 50*time.Millisecond); got != -1 {
		t.Errorf("part of a request is answered with %d bytes", got)
	}
	if got := exchange(t, h, conn, 10, 5*time.Second); got != 512 {
		t.Errorf("the rest of a request is answered with %d bytes, want 512", got)
	}
	begin := h.Now()
	for range 3 {
		_, _ = conn.Send(nil, netip.AddrPort{}) // the second may meet a closed port
	}
	got := p.results(5 * time.Second)
	if got.Transactions != 4 || got.RxBytes != 256 || got.TxBytes != 2048 || got.Retransmits != -1 {
		t.Errorf("results %+v; log %q", got, lines())
	}
	if d := h.Now().Sub(begin); d > 4*time.Second {
		t.Errorf("the test ended %v after the empty datagram", d)
	}
	r.Length = -2
	conn = p.udp(r, at)
	for range 2 {
		exchange(t, h, conn, 64, 5*time.Second)
	}
	if got := p.results(5 * time.Second); got.Transactions != 2 {
		t.Errorf("counted: results %+v", got)
	}
}

func TestAUDPTestOverTheKernelEndsWithItsControlConnection(t *testing.T) {
	h := host.NewKernel()
	at, _ := serve(t, h, Options{MaxTests: 1})
	p := dial(t, h, at)
	p.udp(wire.Omni(wire.UDPRR, wire.IPv4, 600), at)
	_ = p.conn.Close()
	for deadline := h.Now().Add(10 * time.Second); ; {
		q := dial(t, h, at)
		response, _ := wire.ParseResponse(q.send(wire.Omni(wire.UDPRR, wire.IPv4, 600).AppendTo(nil)).record(5 * time.Second))
		if response.Error == 0 {
			return
		}
		if response.Error != wire.Busy || h.Now().After(deadline) {
			t.Fatalf("response %+v", response)
		}
	}
}

func TestAUDPSocketAnswersOnlyTheControlConnectionsAddress(t *testing.T) {
	h := host.NewKernel()
	at, _ := serve(t, h, Options{})
	p := dial(t, h, at)
	conn := p.udp(wire.Omni(wire.UDPRR, wire.IPv4, 60), at)
	// The response does not say the port to others, so the stranger learns it from the socket; 127.0.0.2 is this host too.
	response, err := h.DialUDP(t.Context(), remoteOf(t, p, at), host.Options{Source: netip.MustParseAddr("127.0.0.2")})
	if err != nil {
		t.Skip("no second loopback address: ", err)
	}
	defer response.Close()
	if got := exchange(t, h, response, 1, 50*time.Millisecond); got != -1 {
		t.Errorf("a stranger's request is answered with %d bytes", got)
	}
	if got := exchange(t, h, conn, 1, 5*time.Second); got != 1 {
		t.Errorf("the client's request is answered with %d bytes", got)
	}
}

// remoteOf starts a second test and returns where its data socket is.
func remoteOf(t *testing.T, p *peer, at netip.AddrPort) netip.AddrPort {
	t.Helper()
	q := dial(t, p.host, at)
	response, err := wire.ParseResponse(q.send(wire.Omni(wire.UDPRR, wire.IPv4, 60).AppendTo(nil)).record(5 * time.Second))
	if err != nil || response.Error != 0 {
		t.Fatalf("response %+v, %v", response, err)
	}
	return netip.AddrPortFrom(at.Addr(), response.DataPort)
}

func TestADatagramStreamOverTheKernelIsCounted(t *testing.T) {
	h := host.NewKernel()
	at, _ := serve(t, h, Options{})
	p := dial(t, h, at)
	r := wire.Omni(wire.UDPStream, wire.IPv4, 60)
	conn := p.udp(r, at)
	for range 20 {
		if _, err := conn.Send(make([]byte, 1400), netip.AddrPort{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		_, _ = conn.Send(nil, netip.AddrPort{})
	}
	if got := p.results(5 * time.Second); got.RxBytes != 28000 || got.RxCalls != 20 || got.Transactions != 0 || got.TxBytes != 0 {
		t.Errorf("results %+v", got)
	}
}

func TestTheDatagramsOfANetperfWithoutOmniTests(t *testing.T) {
	h := host.NewKernel()
	at, _ := serve(t, h, Options{})
	p := dial(t, h, at)
	old := func(name string, test wire.Test) host.PacketConn {
		response, err := wire.ParseLegacyResponse(p.send(capture(t, name+".c2s")).record(5*time.Second), test)
		if err != nil || response.Error != 0 {
			t.Fatalf("%s: response %+v, %v", name, response, err)
		}
		conn, err := h.DialUDP(t.Context(), netip.AddrPortFrom(at.Addr(), response.DataPort), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	conn := old("legacy-udp-rr", wire.UDPRR)
	for range 3 {
		if got := exchange(t, h, conn, 1, 5*time.Second); got != 1 {
			t.Errorf("a request is answered with %d bytes, want 1", got)
		}
	}
	if got := p.oldResults(wire.UDPRR, 10*time.Second); got.Units != 3 || got.Bytes != 6 {
		t.Errorf("UDP_RR: results %+v", got)
	}
	conn = old("legacy-udp-stream", wire.UDPStream)
	for range 5 {
		_, _ = conn.Send(make([]byte, 1400), netip.AddrPort{})
	}
	_, _ = conn.Send(make([]byte, 4), netip.AddrPort{}) // another size ends it
	if got := p.oldResults(wire.UDPStream, 10*time.Second); got.Units != 5 || got.Bytes != 7000 || got.CPUPercent != -1 {
		t.Errorf("UDP_STREAM: results %+v", got)
	}
}

func TestAnAnswerBeginsWithItsRequest(t *testing.T) {
	h := host.NewKernel()
	at, _ := serve(t, h, Options{})
	p := dial(t, h, at)
	r := wire.Omni(wire.UDPRR, wire.IPv4, 60)
	r.RequestSize, r.ResponseSize = 16, 32
	conn := p.udp(r, at)
	_, _ = conn.Send([]byte("0123456789abcdef"), netip.AddrPort{})
	_ = conn.SetReadDeadline(h.Now().Add(5 * time.Second))
	b := make([]byte, 64)
	d, err := conn.Receive(b)
	if err != nil || d.N != 32 || string(b[:16]) != "0123456789abcdef" {
		t.Errorf("got %d bytes, %q, %v", d.N, b[:16], err)
	}
}

func TestDatagramsOverTheRateAreAnsweredLaterAndNotDropped(t *testing.T) {
	h := host.NewKernel()
	at, _ := serve(t, h, Options{MaxRate: 10_000_000})
	p := dial(t, h, at)
	r := wire.Omni(wire.UDPRR, wire.IPv4, 60)
	r.RequestSize, r.ResponseSize = 1400, 1400
	conn := p.udp(r, at)
	begin := h.Now()
	const n = 100 // 112 ms of the rate
	for i := range n {
		if got := exchange(t, h, conn, 1400, 5*time.Second); got != 1400 {
			t.Fatalf("request %d is answered with %d bytes", i, got)
		}
	}
	if d := h.Now().Sub(begin); d < 112*time.Millisecond-credit-2*time.Millisecond {
		t.Errorf("%d transactions took %v, faster than the rate", n, d)
	}
}

func TestTheRateIsSaidOfTransactionsExactly(t *testing.T) {
	h := host.NewKernel()
	for _, rate := range []bitrate.Bitrate{8_000, 10_000_000, 10_000_000_000} {
		at, _ := serve(t, h, Options{MaxRate: rate})
		for _, test := range []wire.Test{wire.TCPRR, wire.TCPCRR, wire.UDPRR} {
			for _, size := range []int32{1, 1400} {
				r := wire.Omni(test, wire.IPv4, 60)
				r.RequestSize, r.ResponseSize = size, size
				p := dial(t, h, at)
				got, err := wire.ParseResponse(p.send(r.AppendTo(nil)).record(5 * time.Second))
				said := float64(got.PaceBurst) * float64(got.SendSize) * 8 / float64(got.PaceMicros) * 1e6
				if err != nil || math.Abs(said/float64(rate)-1) > 1e-3 {
					t.Errorf("%v of %d bytes at %v: %d in %d µs are %.0f bit/s, %v", test, size, rate, got.PaceBurst, got.PaceMicros, said, err)
				}
				_ = p.conn.Close()
			}
		}
	}
}
