// Package link models one direction of a bottleneck link: a queue, a serializer of exact rate, and a delay line.
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

// EthernetOverhead is what Linux's qdiscs charge beyond an IP packet on an Ethernet device: the header, without preamble, checksum and gap.
const EthernetOverhead = 14

// Limits of Options and Packet.
const (
	MinRate     = bitrate.Kbit
	MaxRate     = 1000 * bitrate.Gbit
	MaxDelay    = time.Minute
	MaxOverhead = 1024
	MaxPacket   = 1<<16 - 1 // bytes; a longer Packet.Size is cut to it, a negative one is 0
)

// Packet is what crosses a Link. It is passed by value and holds no bytes of the packet.
type Packet struct {
	Handle any    // the owner's buffer; the link never looks into it
	Flow   uint64 // hash of what the queue keeps apart, such as Flow.Hash
	Size   int    // bytes of the IP packet
	DS     uint8  // the DS byte, code point and ECN
	// Marked is set by a queue that signals congestion on a packet with an ECT code point: the owner writes CE into it.
	Marked bool

	Wire    int           // set by Link: bytes charged, Size and the overhead
	Entered time.Duration // set by Link: when it was sent into the link
}

// ect reports whether the packet may be marked instead of dropped (RFC 3168: ECT(0), ECT(1), and CE which is marked already).
func (p Packet) ect() bool { return p.DS&3 != 0 }

// Options are the parameters of a Link.
type Options struct {
	Rate     bitrate.Bitrate // of the serializer, on Packet.Wire; 0 means unlimited
	Delay    time.Duration   // from the end of the transmission to the delivery
	Overhead int             // bytes charged per packet beyond Packet.Size
	Queue    Discipline      // required
	// Drop is told of every packet that the link gives up, while Send or Advance runs; it must not call the link. May be nil.
	Drop func(p Packet, r Reason)
}

// Link is one direction of a link. It is not safe for concurrent use.
type Link struct {
	o     Options
	queue Queue
	now   time.Duration
	stats Stats

	busy      bool // a packet is being transmitted; it has left the queue
	sending   Packet
	sent      time.Duration // when its transmission ends
	remainder int64         // of the division bits x 1e9 / rate, carried so that the rate is exact over any time

	line ring[arrival]
}

type arrival struct {
	p  Packet
	at time.Duration
}

// Stats counts what a Link did. In.Packets == Out.Packets + Dropped() + Backlog.Packets at any time between two calls.
type Stats struct {
	In, Out Count // sent into the link; delivered. Bytes are Packet.Wire
	Drops   [Reasons]Count
	Marked  uint64 // packets delivered or under way with Packet.Marked
	Backlog Count  // inside now: queue, transmission and delay line
	Queued  Count  // of these, in the queue
	// MaxQueued is the most that the queue held at any time, each of its fields on its own.
	MaxQueued Count
}

// Count is a number of packets and of their bytes.
type Count struct{ Packets, Bytes uint64 }

func (c *Count) add(wire int) { c.Packets++; c.Bytes += uint64(wire) }

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
	switch {
	case o.Rate != 0 && (o.Rate < MinRate || o.Rate > MaxRate):
		return nil, fmt.Errorf("link rate %v: want 0 (unlimited) or %v to %v", o.Rate, MinRate, MaxRate)
	case o.Delay < 0 || o.Delay > MaxDelay:
		return nil, fmt.Errorf("link delay %v: want 0 to %v", o.Delay, MaxDelay)
	case o.Overhead < 0 || o.Overhead > MaxOverhead:
		return nil, fmt.Errorf("link overhead %d bytes: want 0 to %d", o.Overhead, MaxOverhead)
	case o.Queue == nil:
		return nil, fmt.Errorf("link without a queue: want a discipline such as FIFO")
	}
	l := &Link{o: o}
	queue, err := o.Queue(Env{Drop: l.drop, Mark: l.mark})
	if err != nil {
		return nil, err
	}
	l.queue = queue
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
	p.Wire, p.Entered, p.Marked = p.Size+l.o.Overhead, l.now, false
	l.stats.In.add(p.Wire)
	l.queue.Enqueue(p, l.now)
	l.stats.MaxQueued.Packets = max(l.stats.MaxQueued.Packets, uint64(l.queue.Len()))
	l.stats.MaxQueued.Bytes = max(l.stats.MaxQueued.Bytes, uint64(l.queue.Bytes()))
	if !l.busy {
		l.remainder = 0
		l.transmit(l.now)
	}
}

// transmit starts on the next packet of the queue, if there is one. At an unlimited rate it empties the queue.
func (l *Link) transmit(now time.Duration) {
	for {
		p, ok := l.queue.Dequeue(now)
		if !ok {
			l.busy = false
			return
		}
		if l.o.Rate != 0 {
			bits := int64(p.Wire)*8*int64(time.Second) + l.remainder
			l.remainder = bits % int64(l.o.Rate)
			l.sending, l.busy, l.sent = p, true, now+time.Duration(bits/int64(l.o.Rate))
			return
		}
		l.line.push(arrival{p, now + l.o.Delay})
	}
}

// Advance runs all events up to and including now, in the order of their times, and calls deliver for each packet that arrives, with
// the time of its arrival. deliver must not call the link.
func (l *Link) Advance(now time.Duration, deliver func(p Packet, at time.Duration)) {
	for {
		sent := l.busy && l.sent <= now
		if head := l.line.head(); head != nil && head.at <= now && (!sent || head.at < l.sent) {
			a := l.line.pop()
			l.now = max(l.now, a.at)
			l.stats.Out.add(a.p.Wire)
			deliver(a.p, a.at)
			continue
		}
		if !sent {
			break
		}
		l.now = l.sent
		l.line.push(arrival{l.sending, l.sent + l.o.Delay})
		l.sending = Packet{}
		l.transmit(l.sent)
	}
	l.now = max(l.now, now)
}

// NextDelivery returns the earliest time at which a packet can arrive, or false while the link is empty. A packet that is sent
// later arrives no earlier, so that a driver may sleep until then.
func (l *Link) NextDelivery() (time.Duration, bool) {
	if head := l.line.head(); head != nil {
		return head.at, true
	}
	if l.busy {
		return l.sent + l.o.Delay, true
	}
	return 0, false
}

// Stats returns the counters as they stand at the latest time that the link has seen.
func (l *Link) Stats() Stats {
	s := l.stats
	s.Queued = Count{uint64(l.queue.Len()), uint64(l.queue.Bytes())}
	dropped := s.Dropped()
	s.Backlog = Count{uint64(l.line.len() + l.queue.Len()), s.In.Bytes - s.Out.Bytes - dropped.Bytes}
	if l.busy {
		s.Backlog.Packets++
	}
	return s
}

// Drain gives up everything inside, with reason Closed, or with the queue's own where it drops on the way out.
func (l *Link) Drain() {
	for p, ok := l.queue.Dequeue(l.now); ok; p, ok = l.queue.Dequeue(l.now) {
		l.drop(p, Closed)
	}
	if l.busy {
		l.drop(l.sending, Closed)
		l.busy, l.sending = false, Packet{}
	}
	for l.line.head() != nil {
		l.drop(l.line.pop().p, Closed)
	}
}
