// Package memnet is a host in memory for tests in fake time: TCP streams with a delay, a rate and a bounded buffer.
//
// It is made for bubbles of testing/synctest, whose clock it uses. It knows no loss and no congestion control, and a reader's
// window is the same buffer as the writer's queue. Datagrams and echo it has not.
package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"bufferbloat/internal/host"
)

// Net is a network with one client and one server, both at the same Net. Its fields must be set before it is used.
type Net struct {
	Delay     time.Duration // one way, each way
	BytesPerS int           // of each stream, each way
	Buffer    int           // bytes that a stream holds before its writer blocks
	NoTCPInfo bool          // the stack does not tell
	// Descriptors is how many sockets may be open that listen or were accepted; a process with so many gets no more. 0 is no limit.
	Descriptors int
	Refuse      func(to netip.AddrPort) error
	Blackholed  func(to netip.AddrPort) bool

	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	port      uint16
	open      int // of Descriptors
}

var _ host.Host = (*Net)(nil)

// Name implements host.Network.
func (n *Net) Name() string { return "memory" }

// Now implements host.Clock.
func (n *Net) Now() time.Time { return time.Now() }

// AfterFunc implements host.Clock.
func (n *Net) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(d, f) }

// SleepUntil implements host.Clock.
func (n *Net) SleepUntil(ctx context.Context, t time.Time) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Resolve implements host.Network for addresses in text.
func (n *Net) Resolve(_ context.Context, name string, _ host.Family) ([]netip.Addr, error) {
	a, err := netip.ParseAddr(name)
	return []netip.Addr{a}, err
}

// DialUDP implements host.Network: there are no datagrams.
func (n *Net) DialUDP(context.Context, netip.AddrPort, host.Options) (host.PacketConn, error) {
	return nil, errors.ErrUnsupported
}

// ListenUDP implements host.Network: there are no datagrams.
func (n *Net) ListenUDP(context.Context, netip.AddrPort, host.Options) (host.PacketConn, error) {
	return nil, errors.ErrUnsupported
}

// DialEcho implements host.Network: there are no datagrams.
func (n *Net) DialEcho(context.Context, netip.Addr, host.Options) (host.EchoConn, error) {
	return nil, errors.ErrUnsupported
}

// take counts a socket against Descriptors, or returns the error of who has too many. n.mu is held.
func (n *Net) take(call string) error {
	if n.Descriptors > 0 && n.open >= n.Descriptors {
		return os.NewSyscallError(call, syscall.EMFILE)
	}
	n.open++
	return nil
}

// give takes back what take counted.
func (n *Net) give() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open--
}

// freePort returns a port that was not used before; n.mu is held.
func (n *Net) freePort() uint16 {
	if n.port == 0 {
		n.port = 40000
	}
	n.port++
	return n.port
}

// ListenTCP implements host.Network.
func (n *Net) ListenTCP(_ context.Context, at netip.AddrPort, o host.Options) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o.CongestionControl != "" && o.CongestionControl != "cubic" {
		return nil, fmt.Errorf("congestion control %q: %w", o.CongestionControl, os.ErrNotExist)
	}
	if at.Port() == 0 {
		at = netip.AddrPortFrom(at.Addr(), n.freePort())
	}
	if n.listeners == nil {
		n.listeners = map[netip.AddrPort]*listener{}
	}
	if n.listeners[at] != nil {
		return nil, fmt.Errorf("listen at %v: %w", at, syscall.EADDRINUSE)
	}
	if err := n.take("socket"); err != nil {
		return nil, fmt.Errorf("listen at %v: %w", at, err)
	}
	l := &listener{net: n, at: at, o: o, backlog: make(chan *conn, 64), done: make(chan struct{})}
	n.listeners[at] = l
	return l, nil
}

// DialTCP implements host.Network.
func (n *Net) DialTCP(ctx context.Context, to netip.AddrPort, o host.Options) (net.Conn, error) {
	if n.Blackholed != nil && n.Blackholed(to) {
		<-ctx.Done()
		return nil, fmt.Errorf("connect to %v: %w", to, context.Cause(ctx))
	}
	if err := n.SleepUntil(ctx, time.Now().Add(2*n.Delay)); err != nil {
		return nil, fmt.Errorf("connect to %v: %w", to, err)
	}
	if n.Refuse != nil {
		if err := n.Refuse(to); err != nil {
			return nil, fmt.Errorf("connect to %v: %w", to, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[to]
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if l == nil && any.Is4() == to.Addr().Is4() {
			l = n.listeners[netip.AddrPortFrom(any, to.Port())]
		}
	}
	if l == nil {
		return nil, fmt.Errorf("connect to %v: %w", to, syscall.ECONNREFUSED)
	}
	from := to.Addr()
	if o.Source.IsValid() {
		from = o.Source
	}
	ours, theirs := n.pair(netip.AddrPortFrom(from, n.freePort()), to, o, l.o)
	select {
	case l.backlog <- theirs:
		return ours, nil
	default:
		return nil, fmt.Errorf("connect to %v: %w", to, syscall.ECONNREFUSED)
	}
}

// TCPInfo implements host.Network.
func (n *Net) TCPInfo(c net.Conn) (host.TCPInfo, error) {
	m, ok := c.(*conn)
	if !ok || n.NoTCPInfo {
		return host.TCPInfo{}, errors.ErrUnsupported
	}
	acked, queued := m.out.progress()
	info := host.TCPInfo{BytesAcked: acked, HasBytesAcked: true, HasRetransmits: true, CongestionControl: "cubic",
		RTT: 2*n.Delay + queued, MinRTT: 2 * n.Delay, SendBuffer: n.Buffer, ReceiveBuffer: n.Buffer, DS: m.o.DSCP.Byte(), HasDS: true}
	return info, nil
}

type listener struct {
	net     *Net
	at      netip.AddrPort
	o       host.Options
	backlog chan *conn
	held    *conn // that came and could not be accepted; Accept is called from one goroutine
	once    sync.Once
	done    chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	if l.held == nil {
		select {
		case <-l.done:
			return nil, net.ErrClosed
		case l.held = <-l.backlog:
		}
	}
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if err := l.net.take("accept4"); err != nil {
		return nil, err
	}
	c := l.held
	l.held, c.counted = nil, true
	return c, nil
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.net.mu.Lock()
		defer l.net.mu.Unlock()
		delete(l.net.listeners, l.at)
		l.net.open--
	})
	return nil
}

func (l *listener) Addr() net.Addr { return net.TCPAddrFromAddrPort(l.at) }
