package iperf3

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	wire "bufferbloat/internal/wire/iperf3"
)

// at is where the servers of these tests listen.
var at = netip.MustParseAddrPort("127.0.0.1:5201")

// inMemory runs a server of TCP tests on a network in memory and calls f in a bubble of fake time; then nothing of the server may be left.
func inMemory(t testing.TB, o Options, f func(h *memnet.Net, v *service)) {
	t.Helper()
	withDescriptors(t, 0, o, f)
}

// withDescriptors is inMemory with a limit of sockets.
func withDescriptors(t testing.TB, n int, o Options, f func(h *memnet.Net, v *service)) {
	t.Helper()
	h := &memnet.Net{Delay: 10 * time.Millisecond, BytesPerS: 250_000, Buffer: 100_000, Descriptors: n}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	v, err := newService(o, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l, err := h.ListenTCP(ctx, at, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() { _ = v.accept(ctx, l) })
	f(h, v)
	cancel()
	accepting.Wait()
	v.sessions.Wait()
	v.mu.Lock()
	defer v.mu.Unlock()
	all, accounts := v.clients.InUse()
	if quota := o.MaxTestsPerHour > 0 || o.MaxBytesPerHour > 0; all.Tests != 0 || accounts != 0 && !quota || len(v.half) != 0 || len(v.waiting) != 0 || len(v.opening) != 0 {
		t.Errorf("left after the end: %d tests, %d accounts, %d connections, %d waiting, %d opening", all.Tests, accounts, len(v.half), len(v.waiting), len(v.opening))
	}
}

// peer is a raw client.
type peer struct {
	testing.TB
	host   host.Host
	conn   net.Conn
	cookie wire.Cookie
}

func dial(t testing.TB, h host.Host, at netip.AddrPort) *peer {
	t.Helper()
	conn, err := h.DialTCP(context.Background(), at, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &peer{TB: t, host: h, conn: conn, cookie: wire.NewCookie()}
}

// begin dials and goes as far as the parameters; it does not send them.
func begin(t testing.TB, h host.Host, at netip.AddrPort) *peer {
	t.Helper()
	p := dial(t, h, at)
	p.write(p.cookie[:])
	p.expect(time.Second, wire.ParamExchange)
	return p
}

func (p *peer) write(b []byte) {
	p.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.Fatal(err)
	}
}

// expect reads states, within a time.
func (p *peer) expect(within time.Duration, states ...wire.State) {
	p.Helper()
	_ = p.conn.SetReadDeadline(p.host.Now().Add(within))
	for _, want := range states {
		var b [1]byte
		if _, err := io.ReadFull(p.conn, b[:]); err != nil || wire.State(int8(b[0])) != want {
			p.Fatalf("got %v, %v; want %v", wire.State(int8(b[0])), err, want)
		}
	}
}

// refused reads an error, within a time.
func (p *peer) refused(within time.Duration) wire.ErrorCode {
	p.Helper()
	p.expect(within, wire.ServerError)
	return wire.ReadError(p.conn).Code
}

// closed reports whether the server ends the connection within a time, without another byte.
func (p *peer) closed(within time.Duration) bool {
	_ = p.conn.SetReadDeadline(p.host.Now().Add(within))
	n, err := p.conn.Read(make([]byte, 1))
	return n == 0 && err == io.EOF
}

// open sends the parameters and opens the data connections.
func (p *peer) open(q wire.Params, at netip.AddrPort) []net.Conn {
	p.Helper()
	p.write(q.AppendTo(nil))
	p.expect(time.Second, wire.CreateStreams)
	var data []net.Conn
	client, server := q.Sends()
	for range client + server {
		conn, err := p.host.DialTCP(context.Background(), at, host.Options{})
		if err != nil {
			p.Fatal(err)
		}
		if _, err := conn.Write(p.cookie[:]); err != nil {
			p.Fatal(err)
		}
		data = append(data, conn)
	}
	p.expect(time.Second, wire.TestStart, wire.TestRunning)
	return data
}

// end ends the test with results that name so many streams, and returns the server's.
func (p *peer) end(streams int) wire.Results {
	p.Helper()
	p.write([]byte{wire.TestEnd.Byte()})
	p.expect(5*time.Second, wire.ExchangeResults)
	own := wire.Results{}
	for i := range streams {
		own.Streams = append(own.Streams, wire.StreamResult{ID: wire.StreamID(i)})
	}
	p.write(own.AppendTo(nil))
	_ = p.conn.SetReadDeadline(p.host.Now().Add(5 * time.Second))
	b, err := wire.ReadMessage(p.conn, wire.MaxResults)
	if err != nil {
		p.Fatal(err)
	}
	r, err := wire.ParseResults(b)
	if err != nil {
		p.Fatal(err)
	}
	p.expect(time.Second, wire.DisplayResults)
	p.write([]byte{wire.Done.Byte()})
	_ = p.conn.Close()
	return r
}

// real is a client as they should be: a test of one upload of some bytes. It fails unless it is served within a second.
func real(t testing.TB, h host.Host) {
	t.Helper()
	began := h.Now()
	p := begin(t, h, at)
	data := p.open(wire.Params{Parallel: 1, Time: time.Second}, at)
	if d := h.Now().Sub(began); d > time.Second {
		t.Errorf("the next client is served after %v", d)
	}
	if _, err := data[0].Write(bytes.Repeat([]byte{1}, 1000)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if r := p.end(1); r.Streams[0].Bytes != 1000 {
		t.Errorf("the server counts %d bytes of 1000", r.Streams[0].Bytes)
	}
	_ = data[0].Close()
}

// netAddr parses an address.
func netAddr(t testing.TB, text string) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
