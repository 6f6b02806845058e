package queue

import (
	"math"
	"time"

	"bufferbloat/servers/lab/link"
)

// codel is the state of the CoDel algorithm (RFC 8289) over one queue: when to drop or mark the packet at the head. Target (5 ms) and
// interval (100 ms), the law interval/sqrt(count), and the memory of 16 intervals are the RFC's (sections 4.3 and 5.5).
type codel struct {
	target, interval time.Duration
	maxPacket        int // with no more bytes than this left behind, nothing is dropped

	firstAbove time.Duration // when a sojourn time that stays above target becomes too much; 0 while it is below
	dropNext   time.Duration
	count      int // drops since dropping began
	lastCount  int // count when dropping last began
	dropping   bool
	sojourn    time.Duration // of the last packet
}

// backlog is a queue that codel controls.
type backlog interface {
	// take removes the packet at the head; false where there is none.
	take() (link.Packet, bool)
	// left is the bytes that remain.
	left() int
	// congested drops p and returns false, or returns it marked, and true: then it is to be transmitted.
	congested(p link.Packet) (link.Packet, bool)
}

// above notes the sojourn time of a packet that leaves left bytes behind, and says whether the packet may be dropped: its sojourn time, and
// that of all before it, has been above target for an interval.
func (c *codel) above(sojourn time.Duration, left int, now time.Duration) bool {
	c.sojourn = sojourn
	if sojourn < c.target || left <= c.maxPacket {
		c.firstAbove = 0
		return false
	}
	if c.firstAbove == 0 {
		c.firstAbove = now + c.interval
		return false
	}
	return now >= c.firstAbove
}

// next removes the head of q (RFC 8289, 5.5, dodequeue).
func (c *codel) next(q backlog, now time.Duration) (p link.Packet, ok, mayDrop bool) {
	p, ok = q.take()
	if !ok {
		c.firstAbove, c.sojourn = 0, 0
		return p, false, false
	}
	return p, true, c.above(now-p.Entered, q.left(), now)
}

// dequeue is the algorithm of RFC 8289, 5.5, with the marking of Linux: a marked packet ends the search as it is sent.
func (c *codel) dequeue(q backlog, now time.Duration) (link.Packet, bool) {
	p, ok, mayDrop := c.next(q, now)
	if !c.dropping {
		if mayDrop {
			if p, ok = q.congested(p); !ok {
				p, ok, _ = c.next(q, now)
			}
			c.begin(now)
		}
		return p, ok
	}
	c.dropping = mayDrop
	for c.dropping && now >= c.dropNext {
		c.count++
		if marked, sent := q.congested(p); sent {
			c.dropNext = c.after(c.dropNext)
			return marked, true
		}
		if p, ok, c.dropping = c.next(q, now); c.dropping {
			c.dropNext = c.after(c.dropNext)
		}
	}
	return p, ok
}

// begin enters the dropping state with a first drop. Where the last one ended not long ago, the rate of drops that held the queue then is
// a good start.
func (c *codel) begin(now time.Duration) {
	delta := c.count - c.lastCount
	c.count = 1
	if delta > 1 && now-c.dropNext < 16*c.interval {
		c.count = delta
	}
	c.dropping = true
	c.dropNext = c.after(now)
	c.lastCount = c.count
}

// after is the control law: the next drop comes interval/sqrt(count) after t.
func (c *codel) after(t time.Duration) time.Duration {
	return t + time.Duration(float64(c.interval)/math.Sqrt(float64(c.count)))
}

// The parameters of CoDel in every discipline that has it.
const (
	codelTarget   = 5 * time.Millisecond
	codelInterval = 100 * time.Millisecond
)

func codelParameters(target, interval, threshold *time.Duration) []parameter {
	return []parameter{span("target", target, codelTarget, time.Microsecond, time.Minute),
		span("interval", interval, codelInterval, time.Microsecond, time.Minute),
		span("ce_threshold", threshold, 0, 0, time.Minute)}
}
