// Package link models one direction of a bottleneck link: a queue, a serializer of exact rate, and a delay line.
//
// A packet is charged by its Framing, waits in the queue, then in the device (Options.Device), is transmitted, and may be lost, damaged,
// duplicated, delayed or overtaken on its way (Effects). A Schedule changes rate, delay and loss at given times.
//
// The package is pure: it reads no clock, starts no goroutine and does no I/O. The caller hands in packets and the time, and a Link
// runs every event (end of a transmission, a packet's departure from the queue, its delivery) at the event's own time, whenever the
// caller gets round to it. A driver that wakes late therefore adds noise to the delay that it causes itself, and never an error to
// the rate or to what the queue decides.
//
// All times are offsets from an origin that the caller chooses; they must not be negative.
package link

import (
	"fmt"
	"time"

	"bufferbloat/internal/bitrate"
)

// Limits of Options and Packet.
const (
	MinRate   = bitrate.Kbit
	MaxRate   = 1000 * bitrate.Gbit
	MaxDelay  = time.Minute
	MaxDevice = 1 << 24   // bytes
	MaxPacket = 1<<16 - 1 // bytes; a longer Packet.Size is cut to it, a negative one is 0
)

// Packet is what crosses a Link. It is passed by value and holds no bytes of the packet.
type Packet struct {
	Handle   any    // the owner's buffer; the link never looks into it
	Flow     uint64 // hash of what the queue keeps apart, such as Flow.Hash
	From, To uint32 // hashes of the hosts, for queues that share between them, such as Flow.Hosts
	Size     int    // bytes of the IP packet
	DS       uint8  // the DS byte, code point and ECN
	// PureACK is a TCP segment that says no more than that all up to ACK has arrived: without payload, SACK blocks, and flags but ACK.
	PureACK bool
	ACK     uint32
	// Marked is set by a queue that signals congestion on a packet with an ECT code point: the owner writes CE into it.
	Marked    bool
	Corrupted bool // set by Link: the owner damages the packet, or gives it up as a bad checksum would

	Wire    int           // set by Link: bytes charged by Options.Framing
	Entered time.Duration // set by Link: when it was sent into the link
}

// ECT reports whether the packet may be marked instead of dropped (RFC 3168: ECT(0), ECT(1), and CE which is marked already).
func (p Packet) ECT() bool { return p.DS&3 != 0 }

// Options are the parameters of a Link.
type Options struct {
	Rate    bitrate.Bitrate // of the serializer, on Packet.Wire; 0 means unlimited
	Delay   time.Duration   // from the end of the transmission to the delivery
	Framing Framing
	Queue   Discipline // required
	// Device is how many bytes the device takes from the queue ahead, that in transmission included, as Linux's byte queue limits do: it
	// takes packets until it holds more. What it holds, no queue discipline can reorder or drop. With 0 it takes one when the last is sent.
	Device   int
	Effects  Effects
	Schedule Schedule
	Seed     uint64 // of Effects, and of what is random in the queue
	// Drop is told of every packet that the link gives up, while Send or Advance runs; it must not call the link. May be nil.
	Drop func(p Packet, r Reason)
	// Clone returns the handle of a copy of a packet; required for Effects.Duplicate.
	Clone func(handle any) any
}

// Link is one direction of a link. It is not safe for concurrent use.
type Link struct {
	o      Options
	queue  Queue
	shaper Shaper // the queue, where it is one
	now    time.Duration
	stats  Stats

	waiting bool          // the queue holds packets back,
	wake    time.Duration // and is asked again then

	device      ring[Packet] // left the queue, not yet in transmission
	deviceBytes int          // in device and in transmission

	busy    bool // a packet is in transmission
	sending Packet
	sent    time.Duration // when its transmission ends at the present rate
	started time.Duration // when need was true
	// need is what remains to be transmitted, in bits times 1e9; of what is left of that at the last whole nanosecond, remainder is carried
	// to the next packet, so that the rate is exact over any time.
	need, remainder int64

	state   state
	changes []change
	change  int           // the next of changes
	period  time.Duration // when the present turn of the schedule began

	dice   dice
	line   line
	latest time.Duration // arrival of the last packet that was not held back
	held   []held
}

// Stats counts what a Link did. In + Duplicated == Out + Dropped() + Backlog at any time between two calls, in packets and in bytes.
type Stats struct {
	In, Out    Count // sent into the link; delivered. Bytes are Packet.Wire
	Drops      [Reasons]Count
	Duplicated Count  // copies that the link made
	Corrupted  uint64 // packets that it damaged
	Held       uint64 // packets that it held back until others had overtaken them
	Marked     uint64 // packets that the queue marked, whatever became of them after that
	Backlog    Count  // inside now: queue, device, transmission and delay line
	Queued     Count  // of these, in the queue
	// MaxQueued is the most that the queue held at any time, each of its fields on its own.
	MaxQueued Count
}

// Count is a number of packets and of their bytes.
type Count struct{ Packets, Bytes uint64 }

func (c *Count) add(wire int) { c.Packets++; c.Bytes += uint64(wire) }

func (c *Count) subtract(o Count) { c.Packets -= o.Packets; c.Bytes -= o.Bytes }

// Dropped returns the drops of all reasons together.
func (s Stats) Dropped() Count {
	var sum Count
	for _, c := range s.Drops {
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
	}
	return sum
}

// New returns a link, or an error that names the parameter, its value and its range.
func New(o Options) (*Link, error) {
	var err error
	if o.Effects, err = o.Effects.check(); err != nil {
		return nil, err
	}
	switch {
	case o.Rate != 0 && (o.Rate < MinRate || o.Rate > MaxRate):
		return nil, fmt.Errorf("link rate %v: want 0 (unlimited) or %v to %v", o.Rate, MinRate, MaxRate)
	case o.Delay < 0 || o.Delay > MaxDelay:
		return nil, fmt.Errorf("link delay %v: want 0 to %v", o.Delay, MaxDelay)
	case o.Framing.Overhead < 0 || o.Framing.Overhead > MaxOverhead:
		return nil, fmt.Errorf("link overhead %d bytes: want 0 to %d", o.Framing.Overhead, MaxOverhead)
	case o.Framing.Min < 0 || o.Framing.Min > maxMin:
		return nil, fmt.Errorf("link minimum packet of %d bytes: want 0 to %d", o.Framing.Min, maxMin)
	case o.Device < 0 || o.Device > MaxDevice:
		return nil, fmt.Errorf("link device limit of %d bytes: want 0 to %d", o.Device, MaxDevice)
	case o.Queue == nil:
		return nil, fmt.Errorf("link without a queue: want a discipline")
	case o.Effects.Duplicate > 0 && o.Clone == nil:
		return nil, fmt.Errorf("link duplication %v: the carrier cannot copy packets", o.Effects.Duplicate)
	}
	l := &Link{o: o, dice: newDice(o.Seed), state: state{rate: o.Rate, delay: o.Delay}}
	if l.changes, err = o.Schedule.changes(l.state); err != nil {
		return nil, err
	}
	l.line.reorders = o.Effects.Jitter.MayReorder || o.Effects.Reorder.Share > 0
	if l.queue, err = o.Queue(Env{Drop: l.drop, Mark: l.mark, Rate: o.Rate, Seed: o.Seed}); err != nil {
		return nil, err
	}
	l.shaper, _ = l.queue.(Shaper)
	return l, nil
}

func (l *Link) drop(p Packet, r Reason) {
	l.stats.Drops[r].add(p.Wire)
	if l.o.Drop != nil {
		l.o.Drop(p, r)
	}
}

func (l *Link) mark() { l.stats.Marked++ }

// Send takes a packet at time now. The caller has called Advance with now before, so that the queue is in the state of that moment;
// a now before the latest time that the link has seen is taken as that one.
func (l *Link) Send(p Packet, now time.Duration) {
	l.now = max(l.now, now)
	p.Size = min(max(p.Size, 0), MaxPacket)
	p.Wire, p.Entered, p.Marked, p.Corrupted = l.o.Framing.Wire(p.Size), l.now, false, false
	l.stats.In.add(p.Wire)
	l.queue.Enqueue(p, l.now)
	l.stats.MaxQueued.Packets = max(l.stats.MaxQueued.Packets, uint64(l.queue.Len()))
	l.stats.MaxQueued.Bytes = max(l.stats.MaxQueued.Bytes, uint64(l.queue.Bytes()))
	l.serve(l.now)
}

// serve moves packets from the queue to the device, and starts on the next where none is in transmission.
func (l *Link) serve(now time.Duration) {
	if l.busy {
		l.fill(now)
		return
	}
	l.remainder = 0
	l.transmit(now)
}

// fill lets the device take packets from the queue.
func (l *Link) fill(now time.Duration) {
	for l.deviceBytes <= l.o.Device {
		p, ok := l.queue.Dequeue(now)
		if !ok {
			l.waiting = false
			if l.shaper != nil {
				l.wake, l.waiting = l.shaper.Wake(now)
				l.wake = max(l.wake, now+1)
			}
			return
		}
		l.deviceBytes += p.Wire
		l.device.push(p)
	}
	l.waiting = false // a device that has no room asks when it has
}

// transmit starts on the next packet, if there is one. At an unlimited rate it empties the queue.
func (l *Link) transmit(now time.Duration) {
	for {
		l.fill(now)
		if l.state.stopped || l.device.len() == 0 {
			return
		}
		p := l.device.pop()
		if l.state.rate != 0 {
			l.sending, l.busy, l.started = p, true, now
			l.need = int64(p.Wire)*8*int64(time.Second) + l.remainder
			l.time()
			return
		}
		l.deviceBytes -= p.Wire
		l.depart(p, now)
	}
}

// time works out when the packet in transmission is sent, from what it needs since l.started.
func (l *Link) time() {
	switch rate := int64(l.state.rate); {
	case l.state.stopped:
		l.sent, l.remainder = never, l.need
	case rate == 0:
		l.sent, l.remainder = l.started, 0
	default:
		l.sent, l.remainder = l.started+time.Duration(l.need/rate), l.need%rate
	}
}

// finish ends the transmission.
func (l *Link) finish(now time.Duration) {
	p := l.sending
	l.busy, l.sending = false, Packet{}
	l.deviceBytes -= p.Wire
	l.depart(p, now)
	l.transmit(now)
}

// turn makes the next change of the schedule.
func (l *Link) turn(now time.Duration) {
	if l.busy && !l.state.stopped {
		l.need -= int64(l.state.rate) * int64(now-l.started)
	}
	l.state = l.changes[l.change].state
	if l.change++; l.change == len(l.changes) && l.o.Schedule.Repeat > 0 {
		l.change, l.period = 0, l.period+l.o.Schedule.Repeat
	}
	if l.busy {
		l.started = now
		l.time()
		return
	}
	l.serve(now)
}

// never is later than every event.
const never = time.Duration(1<<63 - 1)

// event is something that happens in a link by itself.
type event uint8

const (
	nothing event = iota
	turning
	finishing
	waking
	releasing
	arriving
)

// next returns what happens next, and when. Of what happens at one time, the first in the list of events comes first.
func (l *Link) next() (event, time.Duration) {
	what, at := nothing, never
	if l.change < len(l.changes) {
		what, at = turning, l.period+l.changes[l.change].at
	}
	if l.busy && l.sent < at {
		what, at = finishing, l.sent
	}
	if l.waiting && l.wake < at {
		what, at = waking, l.wake
	}
	if by, ok := l.releases(); ok && by < at {
		what, at = releasing, by
	}
	if next, ok := l.line.next(); ok && next < at {
		what, at = arriving, next
	}
	return what, at
}

// Advance runs all events up to and including now, in the order of their times, and calls deliver for each packet that arrives, with
// the time of its arrival. deliver must not call the link.
func (l *Link) Advance(now time.Duration, deliver func(p Packet, at time.Duration)) {
	for {
		what, at := l.next()
		if at > now || what == nothing {
			break
		}
		l.now = max(l.now, at)
		switch what {
		case turning:
			l.turn(at)
		case finishing:
			l.finish(at)
		case waking:
			l.serve(at)
		case releasing:
			l.release(at)
		case arriving:
			a := l.line.pop()
			l.stats.Out.add(a.p.Wire)
			deliver(a.p, a.at)
		}
	}
	l.now = max(l.now, now)
}

// NextDelivery returns the earliest time at which a packet can arrive, or false while none can without another being sent. A driver may
// sleep until then, or until it sends the next packet. It may come too early: then Advance delivers nothing, and NextDelivery returns a
// later time.
func (l *Link) NextDelivery() (time.Duration, bool) {
	at := never
	if next, ok := l.line.next(); ok {
		at = next
	}
	if by, ok := l.releases(); ok {
		at = min(at, by)
	}
	if l.busy && !l.state.stopped {
		at = min(at, l.sent+l.state.delay)
	}
	if l.waiting {
		at = min(at, l.wake+l.state.delay)
	}
	if inside := l.busy || l.device.len() > 0 || l.waiting; inside && l.change < len(l.changes) {
		at = min(at, l.period+l.changes[l.change].at)
	}
	return at, at != never
}

// Stats returns the counters as they stand at the latest time that the link has seen.
func (l *Link) Stats() Stats {
	s := l.stats
	s.Queued = Count{uint64(l.queue.Len()), uint64(l.queue.Bytes())}
	dropped := s.Dropped()
	s.Backlog = Count{uint64(l.line.len() + len(l.held) + l.device.len() + l.queue.Len()),
		s.In.Bytes + s.Duplicated.Bytes - s.Out.Bytes - dropped.Bytes}
	if l.busy {
		s.Backlog.Packets++
	}
	return s
}

// QueueStats is what "tc -s qdisc" shows of a queue.
type QueueStats struct {
	Report
	Sent    Count // given to the device
	Dropped Count
	Marked  uint64
	Backlog Count
}

// QueueStats returns what the queue counted. Its Kind is "" where the queue does not say.
func (l *Link) QueueStats() QueueStats {
	var q QueueStats
	if r, ok := l.queue.(Reporter); ok {
		q.Report = r.Report()
	}
	q.Dropped = l.stats.Dropped()
	q.Dropped.subtract(l.stats.Drops[Lost])
	q.Dropped.subtract(l.stats.Drops[Closed])
	q.Marked = l.stats.Marked
	q.Backlog = Count{uint64(l.queue.Len()), uint64(l.queue.Bytes())}
	q.Sent = l.stats.In
	q.Sent.subtract(q.Dropped)
	q.Sent.subtract(q.Backlog)
	return q
}

// Drain gives up everything inside, with reason Closed, or with the queue's own where it drops on the way out. The link is of no use
// after that.
func (l *Link) Drain() {
	now := l.now
	for {
		if p, ok := l.queue.Dequeue(now); ok {
			l.drop(p, Closed)
			continue
		}
		if l.shaper == nil {
			break
		}
		at, more := l.shaper.Wake(now)
		if !more {
			break
		}
		now = max(at, now+1)
	}
	if l.busy {
		l.drop(l.sending, Closed)
	}
	for l.device.len() > 0 {
		l.drop(l.device.pop(), Closed)
	}
	for _, h := range l.held {
		l.drop(h.p, Closed)
	}
	for l.line.len() > 0 {
		l.drop(l.line.pop().p, Closed)
	}
	l.busy, l.waiting, l.sending, l.held, l.deviceBytes = false, false, Packet{}, nil, 0
}
