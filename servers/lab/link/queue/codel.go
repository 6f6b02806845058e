package queue

import (
	"time"

	"bufferbloat/servers/lab/link"
)

// CoDel is a FIFO under the AQM of RFC 8289. The limit of 1000 packets, the threshold for CE and the absence of marks unless asked for are
// Linux's.
type CoDel struct {
	Limit       int           // packets; 0 means 1000
	Target      time.Duration // sojourn time to hold; 0 means 5 ms
	Interval    time.Duration // at least a round-trip time of the flows; 0 means 100 ms
	CEThreshold time.Duration // mark whatever waited longer, besides; 0 means never
	ECN         bool          // mark what can be marked instead of dropping it
}

func (o *CoDel) describe() (string, []parameter) {
	return "codel", append([]parameter{packets("limit", &o.Limit, 1000, 1, maxPackets), flag("ecn", "noecn", &o.ECN)},
		codelParameters(&o.Target, &o.Interval, &o.CEThreshold)...)
}

// Check implements Discipline.
func (o CoDel) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o CoDel) String() string { return write(o) }

// Capacity implements Discipline.
func (o CoDel) Capacity(wire int) int { o, _ = complete(o); return ofPackets(o.Limit, wire) }

// New implements Discipline.
func (o CoDel) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	return &codelQueue{core: newCore(e), o: o, codel: codel{target: o.Target, interval: o.Interval, maxPacket: frame}}, nil
}

type codelQueue struct {
	core
	o     CoDel
	line  chain
	codel codel
	over  uint64 // packets that met a full queue
	ce    uint64 // marks above the threshold
}

func (q *codelQueue) Enqueue(p link.Packet, _ time.Duration) {
	if q.Len() >= q.o.Limit {
		q.over++
		q.refuse(p, link.Tail)
		return
	}
	q.push(&q.line, p)
}

func (q *codelQueue) Dequeue(now time.Duration) (link.Packet, bool) {
	p, ok := q.codel.dequeue(q, now)
	if ok && exceeds(p, q.o.CEThreshold, now) {
		q.ce++
		p = q.mark(p)
	}
	return p, ok
}

// exceeds reports whether p waited so long that it is to be marked, whatever the AQM says.
func exceeds(p link.Packet, threshold, now time.Duration) bool {
	return threshold > 0 && p.ECT() && now-p.Entered > threshold
}

func (q *codelQueue) take() (link.Packet, bool)                   { return q.pop(&q.line) }
func (q *codelQueue) left() int                                   { return q.line.bytes }
func (q *codelQueue) congested(p link.Packet) (link.Packet, bool) { return q.signal(p, q.o.ECN) }

// Report implements link.Reporter.
func (q *codelQueue) Report() link.Report {
	c := &q.codel
	dropping := 0
	if c.dropping {
		dropping = 1
	}
	return link.Report{Kind: "codel", Extra: []link.Counter{number("count", c.count), number("lastcount", c.lastCount),
		nanos("ldelay_ns", c.sojourn), number("dropping", dropping), nanos("drop_next_ns", c.dropNext),
		number("drop_overlimit", q.over), number("ce_mark", q.ce)}}
}
