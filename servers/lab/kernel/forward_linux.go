package kernel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"bufferbloat/servers/lab/link"
)

// The files that a forwarder inherits, as Build hands them over.
const (
	controlFile = 3 // where the client's end gives its orders
	clientFile  = 4 // the packet socket of the client's device
	serverFile  = 5
)

// Orders to the forwarder, one byte each, and answered with one JSON document each.
const (
	orderBegin = 'B' // put the link in the place of the wire that the carrier's own cost is measured on
	orderStats = 'S'
)

// answer is the forwarder's answer to an order.
type answer struct {
	Stats Stats
	Error string
}

// NewLinks makes the two directions of the link; drop is told of each packet that a link gives up, clone copies a packet's handle.
type NewLinks func(drop func(link.Packet, link.Reason), clone func(handle any) any) (down, up *link.Link, err error)

// Forward is the link of a lab that Build made: the process that Build started for it calls this, and it returns nil when the lab is over.
// Errors in the link's parameters reach the caller of Build.
func Forward(ctx context.Context, links NewLinks) error {
	if err := unix.SetNonblock(controlFile, true); err != nil {
		return fmt.Errorf("the forwarder of a lab is started by the lab alone: %w", err)
	}
	control := os.NewFile(controlFile, "control")
	defer control.Close()
	f, err := newForwarder(clientFile, serverFile, links)
	if err != nil {
		reply(control, answer{Error: err.Error()})
		return err
	}
	defer unix.Close(f.kick)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.obey(ctx, control) })
	group.Go(func() error {
		defer control.Close() // obey need not wait for orders that nobody can carry out
		return f.run()
	})
	return group.Wait()
}

// forwarder moves packets between two ports through the two directions of a link.
type forwarder struct {
	origin   time.Time // of the link's time
	pool     pool
	lateness link.Lateness
	client   *port // its device is the client's; what it reads goes up
	server   *port
	down, up *link.Link
	enter    func(*frame, int64)                     // take, bound once
	begin    func() (down, up *link.Link, err error) // the real link
	unread   uint64
	foreign  uint64
	stopped  bool

	polls [3]unix.PollFd
	kick  int         // eventfd: there is an order
	todo  chan func() // orders, run by the forwarder's own thread

	toClient, toServer func(link.Packet, time.Duration)

	// Of the present turn:
	now      time.Duration
	skew     int64 // wall clock less the link's time
	stepped  bool  // the wall clock was set
	entering *link.Link
	leaving  func(link.Packet, time.Duration)
}

func newForwarder(client, server int, links NewLinks) (*forwarder, error) {
	f := &forwarder{todo: make(chan func(), 4)} // obey has one order on its way, and the last
	drop := func(p link.Packet, _ link.Reason) { f.pool.release(p.Handle.(*segment)) }
	f.begin = func() (down, up *link.Link, err error) { return links(drop, f.pool.clone) }
	// A link that cannot be made is found out before anybody waits for it.
	if _, _, err := f.begin(); err != nil {
		return nil, err
	}
	var err error
	if f.down, f.up, err = wire(drop); err != nil {
		return nil, err
	}
	if f.kick, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	f.client, f.server = newPort(client, &f.pool, &f.lateness), newPort(server, &f.pool, &f.lateness)
	f.enter = f.take
	f.toClient, f.toServer = f.sender(f.client), f.sender(f.server)
	for i, fd := range []int{f.kick, client, server} {
		f.polls[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	return f, nil
}

// wireDelay is the delay of each direction of the link that the carrier's own delay is measured on. With none, nobody would wait for a
// timer, and the cost of that would be missing.
const wireDelay = 500 * time.Microsecond

// wire makes a link that does nothing but take that long.
func wire(drop func(link.Packet, link.Reason)) (down, up *link.Link, err error) {
	var both [2]*link.Link
	for i := range both {
		if both[i], err = link.New(link.Options{Delay: wireDelay, Queue: newPassage, Drop: drop}); err != nil {
			return nil, nil, err
		}
	}
	return both[0], both[1], nil
}

// passage is the queue of a link that never has one, being of unlimited rate.
type passage struct{ packets []link.Packet }

func newPassage(link.Env) (link.Queue, error) { return &passage{}, nil }

func (q *passage) Enqueue(p link.Packet, _ time.Duration) { q.packets = append(q.packets, p) }

func (q *passage) Dequeue(time.Duration) (link.Packet, bool) {
	if len(q.packets) == 0 {
		return link.Packet{}, false
	}
	p := q.packets[0]
	q.packets = q.packets[:copy(q.packets, q.packets[1:])]
	return p, true
}

func (q *passage) Len() int { return len(q.packets) }

func (q *passage) Bytes() (sum int) {
	for _, p := range q.packets {
		sum += p.Wire
	}
	return sum
}

// sender returns what takes the packets that a link delivers for a port.
func (f *forwarder) sender(p *port) func(link.Packet, time.Duration) {
	return func(packet link.Packet, at time.Duration) {
		s := packet.Handle.(*segment)
		if packet.Corrupted {
			f.pool.release(s) // its checksum would not have passed
			return
		}
		p.send(s, packet.Marked, f.now-at)
	}
}

// obey reads orders until nobody can give any more, and then stops the forwarder.
func (f *forwarder) obey(ctx context.Context, control *os.File) error {
	defer context.AfterFunc(ctx, func() { control.SetReadDeadline(time.Unix(0, 1)) })()
	defer f.order(func() { f.stopped = true })
	for order := make([]byte, 1); ; {
		if _, err := control.Read(order); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("the lab's orders: %w", err)
		}
		var a answer
		done := make(chan struct{})
		f.order(func() { defer close(done); a = f.carryOut(order[0]) })
		select {
		case <-done:
		case <-ctx.Done():
			return nil
		}
		reply(control, a)
	}
}

func reply(control *os.File, a answer) {
	text, err := json.Marshal(a)
	if err != nil {
		text = []byte(`{"Error":"an answer that is no JSON"}`)
	}
	_, _ = control.Write(text) // who does not listen any more is gone, which the next read shows
}

// order has do run by the forwarder's thread.
func (f *forwarder) order(do func()) {
	f.todo <- do
	_, _ = unix.Write(f.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // it can fail only where the counter is full, and then it is not zero
}

// carryOut runs on the forwarder's thread.
func (f *forwarder) carryOut(order byte) answer {
	var a answer
	var err error
	switch order {
	case orderBegin:
		err = f.start()
	case orderStats:
		a.Stats, err = f.stats()
	default:
		err = fmt.Errorf("order %q is unknown", order)
	}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

// start puts the real link in the place of the wire, at rest and with all counters at zero.
func (f *forwarder) start() error {
	f.down.Drain()
	f.up.Drain()
	var err error
	if f.down, f.up, err = f.begin(); err != nil {
		return err
	}
	if _, err = f.stats(); err != nil {
		return err
	}
	f.unread, f.foreign, f.client.unsent, f.server.unsent, f.lateness = 0, 0, 0, 0, link.Lateness{}
	f.origin = time.Now()
	f.look()
	return nil
}

func (f *forwarder) stats() (Stats, error) {
	for _, p := range []*port{f.client, f.server} {
		n, err := p.unread()
		if err != nil {
			return Stats{}, err
		}
		f.unread += n
	}
	s := Stats{Down: f.down.Stats(), Up: f.up.Stats(), DownQueue: f.down.QueueStats(), UpQueue: f.up.QueueStats(), Lateness: f.lateness}
	s.Outside = OutsideDrops{Unread: f.unread, Unsent: f.client.unsent + f.server.unsent, Foreign: f.foreign}
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		return Stats{}, fmt.Errorf("getrusage: %w", err)
	}
	s.Busy = time.Duration(use.Utime.Nano() + use.Stime.Nano())
	return s, nil
}

// run moves packets until it is stopped. It is not locked to a thread: all of them are alike, and the runtime, which interrupts every
// goroutine after some milliseconds, needs two more threads to bring a locked one back.
func (f *forwarder) run() error {
	f.origin = time.Now()
	f.look()
	for !f.stopped {
		if err := f.wait(); err != nil {
			return err
		}
		if f.polls[0].Revents != 0 {
			f.orders()
		}
		f.look()
		if err := f.turn(); err != nil {
			return err
		}
	}
	f.down.Drain()
	f.up.Drain()
	return nil
}

// maxWait bounds how long the runtime may have to wait for this goroutine, should its signal get lost.
const maxWait = time.Second

// wait returns when there is something to read, an order, or a packet to deliver.
func (f *forwarder) wait() error {
	next := time.Hour
	for _, l := range []*link.Link{f.down, f.up} {
		if at, ok := l.NextDelivery(); ok {
			next = min(next, at-time.Since(f.origin))
		}
	}
	timeout := unix.NsecToTimespec(int64(min(max(next, 0), maxWait)))
	// A raw call keeps its place in the runtime's scheduler. Given up and asked back for each packet, that place has to be waited for,
	// behind locks whose holders may not be running.
	_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&f.polls[0])), uintptr(len(f.polls)), uintptr(unsafe.Pointer(&timeout)), 0, 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return fmt.Errorf("wait for packets: %w", errno)
	}
	if errno != 0 {
		for i := range f.polls {
			f.polls[i].Revents = 0
		}
	}
	return nil
}

func (f *forwarder) orders() {
	var count [8]byte
	_, _ = unix.Read(f.kick, count[:])
	for {
		select {
		case do := <-f.todo:
			do()
		default:
			return
		}
	}
}

// maxStep is how far the two clocks drift apart between two looks at most where nobody sets one of them.
const maxStep = time.Millisecond

// look reads the clocks. Time stamps of packets are the wall clock's.
func (f *forwarder) look() {
	t := time.Now()
	f.now = t.Sub(f.origin)
	skew := t.UnixNano() - int64(f.now)
	f.stepped = time.Duration(skew-f.skew).Abs() > maxStep
	f.skew = skew
}

// maxReads bounds the batches that are read in one turn, so that a flood cannot keep packets from leaving.
const maxReads = 4

// turn reads what came, and sends what is due.
func (f *forwarder) turn() error {
	if f.polls[1].Revents != 0 {
		f.entering, f.leaving = f.up, f.toServer
		if err := f.readAll(f.client); err != nil {
			return err
		}
	}
	if f.polls[2].Revents != 0 {
		f.entering, f.leaving = f.down, f.toClient
		if err := f.readAll(f.server); err != nil {
			return err
		}
	}
	f.now = time.Since(f.origin)
	f.up.Advance(f.now, f.toServer)
	f.down.Advance(f.now, f.toClient)
	f.server.flush()
	f.client.flush()
	return nil
}

func (f *forwarder) readAll(p *port) error {
	for range maxReads {
		n, err := p.read(f.enter)
		if err != nil || n < readBatch {
			return err
		}
	}
	return nil
}

// take sends a frame into the link, at the time at which the kernel took it.
func (f *forwarder) take(r *frame, wall int64) {
	if !r.parse() {
		r.pool.discard(r)
		f.foreign++
		return
	}
	at := f.now
	if wall != 0 && !f.stepped {
		if at = time.Duration(wall - f.skew); at > f.now {
			f.now = time.Since(f.origin)
			at = min(at, f.now)
		}
	}
	f.entering.Advance(at, f.leaving)
	r.refs = 1 // or the link that drops the first segment would free the frame
	for i := range r.segments() {
		f.entering.Send(f.pool.segment(r, i).packet(), at)
	}
	if r.refs--; r.refs == 0 {
		f.pool.discard(r)
	}
}
