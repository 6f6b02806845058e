package queue

import (
	"math"
	"math/rand/v2"
	"time"
)

// cobalt is the AQM of cake over one queue: CoDel whose count also falls by its law, when a queue recovers, and BLUE, which drops at random
// when the queue overflows although CoDel is at work (Hoeiland-Joergensen, Taht, Morton, "Piece of CAKE", 2018; the steps of BLUE, 1/256
// up and 1/4096 down, are those of Linux).
type cobalt struct {
	count    uint32
	dropping bool
	dropNext time.Duration
	chance   float64       // of BLUE's drop
	blue     time.Duration // when chance last changed
}

// cobaltOptions are the same for all queues of a tin.
type cobaltOptions struct {
	target, interval time.Duration
	packet           time.Duration // that a full-sized packet takes at the tin's rate
}

const (
	blueUp   = 1. / 256
	blueDown = 1. / 4096
)

func (c *cobalt) after(t time.Duration, o *cobaltOptions) time.Duration {
	return t + time.Duration(float64(o.interval)/math.Sqrt(float64(max(c.count, 1))))
}

// overflowed is told that the queue lost a packet because there was no room for it.
func (c *cobalt) overflowed(o *cobaltOptions, now time.Duration) (up bool) {
	if now-c.blue > o.target {
		up = c.chance == 0
		c.chance = min(c.chance+blueUp, 1)
		c.blue = now
	}
	c.dropping, c.dropNext = true, now
	c.count = max(c.count, 1)
	return up
}

// emptied is told that the queue was found empty.
func (c *cobalt) emptied(o *cobaltOptions, now time.Duration) (down bool) {
	if c.chance > 0 && now-c.blue > o.target {
		if c.chance -= blueDown; c.chance < blueDown/2 {
			c.chance, down = 0, true
		}
		c.blue = now
	}
	c.dropping = false
	if c.count > 0 && now >= c.dropNext {
		c.count--
		c.dropNext = c.after(c.dropNext, o)
	}
	return down
}

// rest reports whether the queue's state has decayed, so that it can be forgotten.
func (c *cobalt) rest(now time.Duration) bool {
	return c.chance == 0 && c.count == 0 && now >= c.dropNext
}

// judge decides about a packet that leaves the queue after sojourn, with so many bulk flows beside it: to drop it, or to mark it where it
// can be marked.
func (c *cobalt) judge(sojourn time.Duration, flows int, ect bool, o *cobaltOptions, now time.Duration, random *rand.Rand) (drop, mark bool) {
	over := sojourn > o.target && sojourn > o.packet*time.Duration(flows*2) && sojourn > o.packet*4
	due := c.count > 0 && now >= c.dropNext
	if over {
		if !c.dropping {
			c.dropping = true
			c.dropNext = c.after(now, o)
		}
		c.count = max(c.count, 1)
	} else {
		c.dropping = false
	}
	if due && c.dropping {
		mark = ect
		drop = !ect
		if c.count < math.MaxUint32 {
			c.count++
		}
		c.dropNext = c.after(c.dropNext, o)
	} else {
		for due {
			c.count--
			c.dropNext = c.after(c.dropNext, o)
			due = c.count > 0 && now >= c.dropNext
		}
	}
	if c.chance > 0 && random.Float64() < c.chance {
		drop = true
	}
	switch {
	case c.count == 0:
		c.dropNext = now + o.interval // as a time-out of the state
	case now > c.dropNext && !drop:
		c.dropNext = now
	}
	return drop, mark && !drop
}
