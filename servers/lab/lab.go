// Package lab is a client host and a server host with an emulated bottleneck link between them, all inside this process.
//
// The two hosts are network stacks of gVisor's netstack; what they say to each other goes through a link.Link per direction. Client and
// Server return them as implementations of host.Host, so that the same client and server code runs here as on the kernel. No privilege,
// no device and no network is needed.
//
// In real time the link's packets are delivered when their time has come. A driver that the operating system wakes late delivers late,
// which adds to the delays of that moment; it changes neither the rate nor what the queue does, and Stats tells how late it was. Packets
// that a host receives carry the time at which the link delivered them (host.LinkStamp), not the time at which the driver came to it.
//
// In virtual time both stacks and both hosts share a clock that stands still while anything in the process can run, and jumps to the
// next event when nothing can. A run then takes as long as its computations do, and its result depends on the seed alone. See Lab.Run
// for what that asks of the caller.
//
// TCP is gVisor's, with SACK, RACK and always with CUBIC: its Reno collapses on a deep buffer. Two things are mended for it, so that the
// hosts behave as kernels do: the growth of its window (see growth), and its acknowledging of every single segment (see delayedAck).
// Nothing negotiates ECN.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// Name is the name that both hosts resolve to the server's addresses.
const Name = "lab"

// The addresses of the two hosts, from the ranges for documentation (RFC 5737, RFC 3849). Other addresses of 192.0.2.0/24 and
// 2001:db8::/64 are routed over the link and belong to nobody.
var (
	clientIPv4, serverIPv4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	clientIPv6, serverIPv6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

const (
	mtu = 1500 // bytes of the largest IP packet

	// Unlimited is a rate that makes a link as fast as the process can go; it has no queue then.
	Unlimited = bitrate.Bitrate(-1)

	unlimitedBuffer = 64 << 20 // bytes; it holds only what comes between two wakes of the driver
)

// Lab is two hosts and the link between them. Its methods may be called from any goroutine.
type Lab struct {
	config      Config
	description Description
	base        time.Time // the clock's origin
	client      *Host
	server      *Host

	started atomic.Bool
	ended   chan struct{} // closed when Run has returned
	stop    context.CancelFunc
	done    <-chan struct{} // closed when the lab is over: whatever waits in it gives up
	over    context.Context
	calls   sync.WaitGroup // the goroutines of fired timers
	closing sync.Once

	virtual    atomic.Int64 // time since base, in virtual time
	delivering atomic.Int64 // while the driver delivers a packet: the time of its arrival; otherwise negative
	monotonic  atomic.Int64 // the latest time that a stack was told
	kick       chan struct{}
	waker      waker // real time only

	mu       sync.Mutex
	down, up *link.Link
	arrivals []arrival       // what has left the links and is not delivered yet, oldest first
	turns    []chan struct{} // virtual time: who may go on, one after the other
	timers   timers
	sequence uint64
	armed    time.Duration // until when the driver sleeps; 0 while it is awake
	spare    []*transit
	lateness link.Lateness
	closed   bool
}

type arrival struct {
	t      *transit
	marked bool
	at     time.Duration
}

// never is later than every event.
const never = time.Duration(1<<63 - 1)

// New returns a lab whose link is at rest: packets move and timers fire while Run runs. The caller must call Close. An error names the
// parameter, its value and its range.
func New(c Config) (*Lab, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Lab{config: c, base: time.Now(), ended: make(chan struct{}), kick: make(chan struct{}, 1)}
	if c.Virtual {
		l.base = virtualEpoch
	}
	l.over, l.stop = context.WithCancel(context.Background())
	l.done = l.over.Done()
	l.delivering.Store(-1)
	if err := l.newLinks(); err != nil {
		l.stop()
		return nil, err
	}
	l.client = l.newHost("client", clientIPv4, clientIPv6, 2*c.Seed)
	l.server = l.newHost("server", serverIPv4, serverIPv6, 2*c.Seed+1)
	l.client.nic.out, l.client.nic.peer = l.up, l.server.nic
	l.server.nic.out, l.server.nic.peer = l.down, l.client.nic
	for _, h := range []*Host{l.client, l.server} {
		if err := h.attach(); err != nil {
			l.Close()
			return nil, err
		}
	}
	return l, nil
}

func (l *Lab) newLinks() error {
	var err error
	if l.down, l.up, err = l.config.links(l.dropped, l.clone); err != nil {
		return err
	}
	l.description = l.config.describe()
	l.description.Carrier = "in process, real time"
	if l.config.Virtual {
		l.description.Carrier = "in process, virtual time"
	}
	return nil
}

// Client returns the host at 192.0.2.1 and 2001:db8::1. It resolves Name to the server's addresses, IPv4 first.
func (l *Lab) Client() *Host { return l.client }

// Server returns the host at 192.0.2.2 and 2001:db8::2.
func (l *Lab) Server() *Host { return l.server }

// Describe returns the link's parameters as they are in effect.
func (l *Lab) Describe() Description { return l.description }

// Stats is what the lab saw so far: the truth that a measurement through it can be checked against.
type Stats struct {
	Down, Up link.Stats
	// Lateness is how long after its time each packet was delivered, by the driver's own fault; empty in virtual time. Beyond a few
	// milliseconds the machine was too busy for its delays to be trusted.
	Lateness link.Lateness
	// SocketDrops are datagrams that the link delivered and that were then lost at a socket, whose buffer was full: loss that is not the link's.
	SocketDrops uint64
}

// Stats returns the counters.
func (l *Lab) Stats() Stats {
	l.mu.Lock()
	s := Stats{Down: l.down.Stats(), Up: l.up.Stats(), Lateness: l.lateness}
	l.mu.Unlock()
	for _, h := range []*Host{l.client, l.server} {
		s.SocketDrops += h.stack.Stats().UDP.ReceiveBufferErrors.Value()
	}
	return s
}

// QueueStats returns what the queues counted, of the download and of the upload, as "tc -s qdisc" shows it.
func (l *Lab) QueueStats() (down, up link.QueueStats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down.QueueStats(), l.up.QueueStats()
}

// Run drives the link and the clock until ctx is done, and then returns nil; it may be called once. The lab is over with it: its
// connections return net.ErrClosed, its timers do not fire any more. Let servers and clients end first, so ctx should not be the one
// that an interrupt ends.
//
// In virtual time the hosts' sleeps, dials and listens wait until Run is in charge, because what goes on before that runs in parallel and
// in any order. Run sets GOMAXPROCS to 1, has garbage collected between events alone, and restores both when it returns; a second virtual
// Run in the process waits until the first is over. The clock moves only when every goroutine waits for something: for the lab, for each
// other, for a timer of the time package, or for a socket of the kernel. Code that runs in the lab must therefore wait on the host's clock
// only; what it waits for outside is not seen, and virtual time passes it by. A goroutine in a system call (a file being written) is waited
// for, for at most 50 ms.
//
// Two runs with the same seed are the same to the packet as far as the order is, in which goroutines that begin at the same moment come to
// their turn. That is Go's scheduler's to choose; it is the same as a rule, but on a busy machine it may interrupt one of them.
func (l *Lab) Run(ctx context.Context) error {
	if l.started.Swap(true) {
		return errors.New("lab: Run was called twice; a lab runs once")
	}
	defer close(l.ended)
	defer l.stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.over, cancel)()
	if l.config.Virtual {
		l.runVirtual(ctx)
		return nil
	}
	return l.runReal(ctx)
}

// Close ends the lab: Run returns, connections and listeners are aborted, and everything that the lab started is gone when Close
// returns. Closing twice is harmless.
func (l *Lab) Close() error {
	l.closing.Do(func() {
		l.stop()
		if l.started.Swap(true) {
			<-l.ended
		}
		l.mu.Lock()
		l.closed = true
		for _, t := range l.timers {
			t.index = -1 // a stack that is closed stops its timers, and must not look for them here
		}
		l.timers = nil
		for _, a := range l.arrivals {
			a.t.pkt.DecRef()
		}
		l.arrivals = nil
		l.down.Drain()
		l.up.Drain()
		l.mu.Unlock()
		l.client.close()
		l.server.close()
		l.calls.Wait()
	})
	return nil
}

// begun is called as a host is asked to wait, dial or listen. It returns why ctx or the lab is over, where they are. In virtual time it
// waits until the lab runs, and then for the caller's turn.
func (l *Lab) begun(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if over(l.done) {
		return l.errOver()
	}
	if !l.config.Virtual {
		return nil
	}
	turn := make(chan struct{}, 1)
	l.wake(turn)
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.done:
		return l.errOver()
	}
}

// wake lets the goroutine that waits for c go on: now, or in virtual time when all others wait, and before anything else happens.
func (l *Lab) wake(c chan struct{}) {
	if !l.config.Virtual {
		signal(c)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.turns = append(l.turns, c)
		l.arm()
	}
}

// signal puts a signal into c, unless one is there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errOver is what an operation gets when the lab is over.
func (l *Lab) errOver() error {
	return fmt.Errorf("the lab is over: %w", net.ErrClosed)
}

// dropped is told of each packet that a link gives up. It holds l.mu.
func (l *Lab) dropped(p link.Packet, _ link.Reason) {
	t := p.Handle.(*transit)
	t.pkt.DecRef()
	l.recycle(t)
}

// clone returns the handle of a copy of a packet. It holds l.mu.
func (l *Lab) clone(handle any) any {
	t := *handle.(*transit)
	t.pkt = stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: t.pkt.ToBuffer()})
	return &t
}

// arrived is told of each packet that comes out of a link. A damaged one is not delivered: its checksum would not be right. It holds l.mu.
func (l *Lab) arrived(p link.Packet, at time.Duration) {
	if p.Corrupted {
		l.dropped(p, link.Lost)
		return
	}
	l.arrivals = append(l.arrivals, arrival{p.Handle.(*transit), p.Marked, at})
}

// next returns when the driver has something to do, never where nothing is pending. The caller holds l.mu.
func (l *Lab) next() time.Duration {
	if len(l.turns) > 0 {
		return 0
	}
	if len(l.arrivals) > 0 {
		return l.arrivals[0].at
	}
	next := never
	if at, ok := l.down.NextDelivery(); ok {
		next = min(next, at)
	}
	if at, ok := l.up.NextDelivery(); ok {
		next = min(next, at)
	}
	if len(l.timers) > 0 {
		next = min(next, l.timers[0].at)
	}
	return next
}

// arm makes a sleeping driver wake no later than for the next event. The caller holds l.mu.
func (l *Lab) arm() {
	next := l.next()
	if next >= l.armed {
		return
	}
	l.armed = next
	if l.waker != nil {
		l.waker.arm(next - l.elapsed())
		return
	}
	signal(l.kick)
}
