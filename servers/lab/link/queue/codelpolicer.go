package queue

import (
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// CoDelPolicer is a policer without the brick wall: it lets bursts pass, and asks a flow that stays above the rate to slow down by single
// drops, ever closer together, in the place of dropping everything that exceeds.
//
// It is this project's own design. It keeps a virtual queue: a counter of bytes that grows with every packet that passes, and shrinks at
// Rate. No packet waits; but the counter over Rate is the time that it would have waited in a shaper of that rate, and to this virtual sojourn
// time, taken as each packet arrives, the control law of CoDel is applied (RFC 8289, with its target and interval): once it has been above
// Target for Interval, one packet is dropped, or marked, the next one Interval/sqrt(2) later, and so on, until it falls below the target. A
// packet that is dropped does not enter the virtual queue, and at most one is dropped per arrival.
//
// A flow that does not slow down would let the virtual queue grow for ever. Above Limit, a time too, every packet is dropped that would not
// fit, so that in any time no more bytes pass than the rate carries in that time and in Limit: for those who do not listen, it is a
// policer with that burst.
type CoDelPolicer struct {
	Rate     bitrate.Bitrate // of Packet.Wire; required
	Target   time.Duration   // virtual sojourn time to hold; 0 means 5 ms
	Interval time.Duration   // at least a round-trip time of the flows; 0 means 100 ms
	Limit    time.Duration   // virtual sojourn time above which all is dropped; 0 means 250 ms
	NoECN    bool            // drop also what could be marked
	Leaf     Discipline      // nil means a BFIFO
}

func (o *CoDelPolicer) describe() (string, []parameter) {
	return "codel_policer", []parameter{required(speed("rate", &o.Rate, 0), &o.Rate, "18mbit"),
		span("target", &o.Target, codelTarget, time.Microsecond, time.Minute),
		span("interval", &o.Interval, codelInterval, time.Microsecond, time.Minute),
		span("limit", &o.Limit, 250*time.Millisecond, time.Millisecond, time.Minute), flag("noecn", "ecn", &o.NoECN),
		leaf(&o.Leaf, BFIFO{}, anyQueue)}
}

// Check implements Discipline.
func (o CoDelPolicer) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o CoDelPolicer) String() string { return write(o) }

// Capacity implements Discipline.
func (o CoDelPolicer) Capacity(wire int) int { o, _ = complete(o); return o.Leaf.Capacity(wire) }

// New implements Discipline.
func (o CoDelPolicer) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	// A bucket's lack of tokens is the virtual queue.
	burst := max(int(min(o.Limit.Seconds()*float64(o.Rate)/8, maxBurst)), frame)
	q := &codelPolicer{wrapper: wrapper{core: newCore(e)}, o: o, bucket: newBucket(o.Rate, burst)}
	q.codel = codel{target: o.Target, interval: o.Interval, maxPacket: frame}
	return q, q.build("codel_policer", o.Leaf)
}

type codelPolicer struct {
	wrapper
	o      CoDelPolicer
	bucket bucket
	codel  codel
	sparse uint64 // drops and marks by the control law
	wall   uint64 // drops above the limit
}

func (q *codelPolicer) Enqueue(p link.Packet, now time.Duration) {
	q.bucket.advance(now)
	virtual := q.bucket.most - q.bucket.tokens
	sojourn := time.Duration(virtual / q.bucket.rate)
	if q.codel.police(sojourn, int(virtual/token), now) {
		q.sparse++
		q.overlimits++
		var ok bool
		if p, ok = q.signal(p, !q.o.NoECN); !ok {
			return
		}
	}
	if !q.bucket.has(p.Wire) {
		q.wall++
		q.overlimits++
		q.refuse(p, link.Policed)
		return
	}
	q.bucket.take(p.Wire)
	q.give(&q.class, p, now)
}

// police says whether the packet that arrives now is to be dropped, where those before it would have kept it waiting for sojourn, behind
// left bytes.
func (c *codel) police(sojourn time.Duration, left int, now time.Duration) bool {
	mayDrop := c.above(sojourn, left, now)
	if !c.dropping {
		if mayDrop {
			c.begin(now)
		}
		return mayDrop
	}
	c.dropping = mayDrop
	if !mayDrop || now < c.dropNext {
		return false
	}
	c.count++
	c.dropNext = c.after(c.dropNext)
	return true
}

// Report implements link.Reporter.
func (q *codelPolicer) Report() link.Report {
	return q.report("codel_policer", number("sparse", q.sparse), number("wall", q.wall), number("count", q.codel.count),
		nanos("virtual_delay_ns", q.codel.sojourn))
}
