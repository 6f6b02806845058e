package link

import (
	"math"
	"time"
)

// codel is the state of the CoDel algorithm (RFC 8289) over one queue: when to drop or mark the packet at the head.
type codel struct {
	target, interval time.Duration
	maxPacket        int // with no more bytes than this left behind, nothing is dropped

	firstAbove time.Duration // when a sojourn time that stays above target becomes too much; 0 while it is below
	dropNext   time.Duration
	count      int // drops since dropping began
	lastCount  int // count when dropping last began
	dropping   bool
}

// backlog is a queue that codel controls.
type backlog interface {
	// pop removes the packet at the head; false where there is none.
	pop() (Packet, bool)
	// left is the bytes that remain.
	left() int
	// signal drops p and returns false, or returns it marked, and true: then it is to be transmitted.
	signal(p Packet) (Packet, bool)
}

// take removes the head of q and says whether it may be dropped: its sojourn time, and that of all before it, has been above target
// for an interval (RFC 8289, 5.5, dodequeue).
func (c *codel) take(q backlog, now time.Duration) (p Packet, ok, mayDrop bool) {
	p, ok = q.pop()
	if !ok || now-p.Entered < c.target || q.left() <= c.maxPacket {
		c.firstAbove = 0
		return p, ok, false
	}
	if c.firstAbove == 0 {
		c.firstAbove = now + c.interval
		return p, true, false
	}
	return p, true, now >= c.firstAbove
}

// dequeue is the algorithm of RFC 8289, 5.5, with the marking of Linux: a marked packet ends the search as it is sent.
func (c *codel) dequeue(q backlog, now time.Duration) (Packet, bool) {
	p, ok, mayDrop := c.take(q, now)
	if !c.dropping {
		if mayDrop {
			p, ok = c.begin(q, p, now)
		}
		return p, ok
	}
	c.dropping = mayDrop
	for c.dropping && now >= c.dropNext {
		c.count++
		if marked, sent := q.signal(p); sent {
			c.dropNext = c.after(c.dropNext)
			return marked, true
		}
		if p, ok, c.dropping = c.take(q, now); c.dropping {
			c.dropNext = c.after(c.dropNext)
		}
	}
	return p, ok
}

// begin signals on p and enters the dropping state. Where the last one ended not long ago, the rate of drops that held the queue then
// is a good start.
func (c *codel) begin(q backlog, p Packet, now time.Duration) (Packet, bool) {
	p, ok := q.signal(p)
	if !ok {
		p, ok, _ = c.take(q, now)
	}
	delta := c.count - c.lastCount
	c.count = 1
	if delta > 1 && now-c.dropNext < 16*c.interval {
		c.count = delta
	}
	c.dropping = true
	c.dropNext = c.after(now)
	c.lastCount = c.count
	return p, ok
}

// after is the control law: the next drop comes interval/sqrt(count) after t.
func (c *codel) after(t time.Duration) time.Duration {
	return t + time.Duration(float64(c.interval)/math.Sqrt(float64(c.count)))
}
