package icmp

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// bubble is the clock of a synctest bubble: the time package itself.
type bubble struct{}

func (bubble) Now() time.Time { return time.Now() }

func (bubble) SleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (bubble) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(d, f) }

// packet is what a fake socket receives, after a delay.
type packet struct {
	delay    time.Duration
	b        []byte
	rejected *host.RejectedError
}

// wire is a Network with nothing but echo sockets: peer says what comes back for a request that was sent.
type wire struct {
	host.Network
	peer    func(request []byte) []packet
	id      uint16
	hasID   bool
	err     error
	options host.Options // as the last DialEcho was given them
	to      netip.Addr
}

func (w *wire) DialEcho(_ context.Context, to netip.Addr, o host.Options) (host.EchoConn, error) {
	w.options, w.to = o, to
	if w.err != nil {
		return nil, w.err
	}
	return &fakeConn{wire: w, in: make(chan host.Datagram, 1<<16), packets: make(chan []byte, 1<<16), wake: make(chan struct{}, 1),
		closed: make(chan struct{})}, nil
}

type fakeConn struct {
	host.EchoConn
	wire    *wire
	in      chan host.Datagram
	packets chan []byte // the contents of in
	wake    chan struct{}
	closed  chan struct{}

	mu    sync.Mutex
	timer *time.Timer
}

func (c *fakeConn) Identifier() (uint16, bool) { return c.wire.id, c.wire.hasID }

func (c *fakeConn) Send(b []byte, to netip.AddrPort) (time.Time, error) {
	at := time.Now()
	for _, p := range c.wire.peer(append([]byte(nil), b...)) {
		if p.delay == 0 {
			c.arrive(p)
			continue
		}
		time.AfterFunc(p.delay, func() { c.arrive(p) })
	}
	return at, nil
}

func (c *fakeConn) arrive(p packet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets <- p.b
	c.in <- host.Datagram{N: len(p.b), At: time.Now(), Stamp: host.KernelStamp, Rejected: p.rejected}
}

func (c *fakeConn) Receive(b []byte) (host.Datagram, error) {
	select {
	case d := <-c.in:
		d.N = copy(b, <-c.packets)
		return d, nil
	case <-c.wake:
		return host.Datagram{}, os.ErrDeadlineExceeded
	case <-c.closed:
		return host.Datagram{}, net.ErrClosed
	}
}

func (c *fakeConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.timer = time.AfterFunc(time.Until(t), func() {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	})
	return nil
}

func (c *fakeConn) Close() error { close(c.closed); return nil }

var target4, target6 = netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")

func dial(t testing.TB, w *wire, target netip.Addr, o probe.Options) *Transport {
	t.Helper()
	tr, err := Dial(t.Context(), w, target, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// run probes through tr and counts the outcomes.
func run(t *testing.T, tr *Transport, o probe.Options, count uint64) (map[probe.Outcome]int, probe.Tally) {
	t.Helper()
	outcomes := map[probe.Outcome]int{}
	tally, err := probe.Run(t.Context(), t.Context(), bubble{}, tr, o, time.Now(), count, func(s probe.Sample) { outcomes[s.Outcome]++ })
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	return outcomes, tally
}

// echo makes the reply of a request, altered by f where that is not nil.
func echo(request []byte, f func(reply []byte) []byte) []byte {
	reply := append([]byte(nil), request...)
	switch reply[0] {
	case echoRequest4:
		reply[0] = echoReply4
	case echoRequest6:
		reply[0] = echoReply6
	}
	if f != nil {
		reply = f(reply)
	}
	return reply
}
