package irtt

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
)

var (
	clientAt = netip.MustParseAddr("192.0.2.1")
	serverAt = netip.MustParseAddrPort("192.0.2.2:2112")
)

// pathDelay is how long the fake network takes each way where a test says nothing else.
const pathDelay = 10 * time.Millisecond

// fakeNet is a UDP network in memory, in the fake time of a synctest bubble: sockets that dialled are the client's, those that listen are
// the server's.
type fakeNet struct {
	// path returns when the copies of a datagram arrive, counted from its sending; none: it is lost. nil means pathDelay.
	path func(p packet) []time.Duration
	// change may replace a datagram on its way. nil leaves all as they are.
	change func(p packet) []byte

	mu    sync.Mutex
	conns map[netip.AddrPort]*fakeConn
	ports uint16
	sent  []packet
}

// packet is a datagram on its way.
type packet struct {
	up   bool   // from the client
	port uint16 // the client's
	at   time.Time
	b    []byte
	mark dscp.CodePoint
}

// flags returns the flags byte of the datagram.
func (p packet) flags() wire.Flags { return wire.Flags(p.b[3]) }

// echo returns the sequence number of an unsigned echo request or reply, or -1.
func (p packet) echo() int {
	e, _, err := wire.ParseEcho(p.b, 0)
	if err != nil {
		return -1
	}
	return int(e.Seq)
}

func newFakeNet() *fakeNet { return &fakeNet{conns: make(map[netip.AddrPort]*fakeConn), ports: 40000} }

// log returns the datagrams sent so far.
func (n *fakeNet) log() []packet {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]packet(nil), n.sent...)
}

func (n *fakeNet) send(from, to netip.AddrPort, p packet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = append(n.sent, p)
	delays := []time.Duration{pathDelay}
	if n.path != nil {
		delays = n.path(p)
	}
	if n.change != nil {
		p.b = n.change(p)
	}
	for _, d := range delays {
		time.AfterFunc(d, func() {
			n.mu.Lock()
			c := n.conns[to]
			n.mu.Unlock()
			if c != nil {
				c.deliver(from, p)
			}
		})
	}
}

// fakeHost is one host of a fakeNet. Its clock is ahead of the bubble's by ahead.
type fakeHost struct {
	host.Host // only what is below is used
	net       *fakeNet
	ahead     time.Duration
	at        func() netip.Addr // the client's address of the moment, the zero Addr for none; nil means clientAt
}

// local returns the address that a client's socket gets now.
func (h *fakeHost) local() netip.Addr {
	if h.at == nil {
		return clientAt
	}
	return h.at()
}

func (h *fakeHost) Name() string { return "fake" }

func (h *fakeHost) Now() time.Time { return time.Now().Add(h.ahead) }

func (h *fakeHost) SleepUntil(ctx context.Context, t time.Time) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(t.Sub(h.Now()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *fakeHost) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(d, f) }

func (h *fakeHost) DialUDP(_ context.Context, to netip.AddrPort, o host.Options) (host.PacketConn, error) {
	if !h.local().IsValid() {
		return nil, syscall.ENETUNREACH
	}
	h.net.mu.Lock()
	h.net.ports++
	local := netip.AddrPortFrom(h.local(), h.net.ports)
	h.net.mu.Unlock()
	return h.open(local, to, o), nil
}

func (h *fakeHost) ListenUDP(_ context.Context, at netip.AddrPort, o host.Options) (host.PacketConn, error) {
	return h.open(at, netip.AddrPort{}, o), nil
}

func (h *fakeHost) open(local, peer netip.AddrPort, o host.Options) *fakeConn {
	c := &fakeConn{host: h, local: local, peer: peer, mark: o.DSCP,
		inbox: make(chan arrival, 10000), moved: make(chan struct{}), closed: make(chan struct{})}
	h.net.mu.Lock()
	defer h.net.mu.Unlock()
	h.net.conns[local] = c
	return c
}

// fakeConn is a socket.
type fakeConn struct {
	host        *fakeHost
	local, peer netip.AddrPort
	mark        dscp.CodePoint
	inbox       chan arrival

	mu       sync.Mutex
	deadline time.Time
	moved    chan struct{} // closed when the deadline moves
	closed   chan struct{}
}

// arrival is a datagram or an ICMP error that waits to be received.
type arrival struct {
	d host.Datagram
	b []byte
}

func (c *fakeConn) deliver(from netip.AddrPort, p packet) {
	c.inbox <- arrival{host.Datagram{From: from, To: c.local.Addr(), At: c.host.Now(), Stamp: host.LinkStamp}, p.b}
}

// reject delivers an ICMP error about a datagram that begins with quoted.
func (c *fakeConn) reject(quoted []byte, err error) {
	c.inbox <- arrival{host.Datagram{At: c.host.Now(), Rejected: &host.RejectedError{By: serverAt.Addr(), Err: err}}, quoted}
}

func (c *fakeConn) Send(b []byte, to netip.AddrPort) (time.Time, error) {
	return c.SendMarked(b, netip.Addr{}, to, c.mark)
}

func (c *fakeConn) SendFrom(b []byte, from netip.Addr, to netip.AddrPort) (time.Time, error) {
	return c.SendMarked(b, from, to, c.mark)
}

func (c *fakeConn) SendMarked(b []byte, _ netip.Addr, to netip.AddrPort, mark dscp.CodePoint) (time.Time, error) {
	select {
	case <-c.closed:
		return time.Time{}, net.ErrClosed
	default:
	}
	up := c.peer.IsValid()
	if up {
		to = c.peer
		if c.local.Addr() != c.host.local() {
			return time.Time{}, syscall.EINVAL
		}
	}
	port := to.Port()
	if up {
		port = c.local.Port()
	}
	now := c.host.Now()
	c.host.net.send(c.local, to, packet{up, port, now, append([]byte(nil), b...), mark})
	return now, nil
}

func (c *fakeConn) Receive(b []byte) (host.Datagram, error) {
	for {
		c.mu.Lock()
		deadline, moved := c.deadline, c.moved
		c.mu.Unlock()
		var expired <-chan time.Time
		if !deadline.IsZero() {
			timer := time.NewTimer(deadline.Sub(c.host.Now()))
			defer timer.Stop()
			expired = timer.C
		}
		select {
		case <-c.closed:
			return host.Datagram{}, net.ErrClosed
		case <-expired:
			return host.Datagram{}, os.ErrDeadlineExceeded
		case <-moved:
		case a := <-c.inbox:
			a.d.N = copy(b, a.b)
			a.d.Truncated = a.d.N < len(a.b)
			return a.d, nil
		}
	}
}

func (c *fakeConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	close(c.moved)
	c.moved = make(chan struct{})
	return nil
}

func (c *fakeConn) LocalAddr() netip.AddrPort { return c.local }

func (c *fakeConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.closed:
	default:
		close(c.closed)
		c.host.net.mu.Lock()
		delete(c.host.net.conns, c.local)
		c.host.net.mu.Unlock()
	}
	return nil
}

// inFakeTime runs f in a bubble with a client's host on a new network.
func inFakeTime(t *testing.T, f func(t *testing.T, client *fakeHost)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, &fakeHost{net: newFakeNet()}) })
}

// answer runs a server that answers each datagram with what reply returns of it, until the test's end.
func (n *fakeNet) answer(t *testing.T, reply func(b []byte) [][]byte) {
	t.Helper()
	conn := (&fakeHost{net: n}).open(serverAt, netip.AddrPort{}, host.Options{})
	var loop sync.WaitGroup
	loop.Go(func() {
		b := make([]byte, 2048)
		for {
			d, err := conn.Receive(b)
			if err != nil {
				return
			}
			for _, r := range reply(b[:d.N]) {
				conn.Send(r, d.From)
			}
		}
	})
	t.Cleanup(func() { conn.Close(); loop.Wait() })
}
