package queue

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"bufferbloat/servers/lab/link"
)

// class is one of the queues that a scheduler or a shaper has below it. To know the size of the next packet it takes it out of the leaf
// ahead of time, as Linux does: what the leaf's AQM decides about a packet, it decides when the packet becomes the next of its class.
type class struct {
	leaf   link.Queue
	next   link.Packet
	peeked bool
}

// head returns the next packet in place, nil where there is none. The pointer is valid until the next call.
func (c *class) head(now time.Duration) *link.Packet {
	if !c.peeked {
		if c.next, c.peeked = c.leaf.Dequeue(now); !c.peeked {
			return nil
		}
	}
	return &c.next
}

// take removes the packet that head returned.
func (c *class) take() link.Packet {
	p := c.next
	c.next, c.peeked = link.Packet{}, false
	return p
}

// below returns the Env of a leaf, which tells q of what the leaf drops.
func (q *core) below(seed uint64) link.Env {
	e := q.env
	e.Seed = e.Seed*1024 + seed
	e.Drop = func(p link.Packet, r link.Reason) {
		q.packets--
		q.held -= p.Wire
		q.env.Drop(p, r)
	}
	return e
}

// give hands p to a leaf. It counts as held until the leaf drops it, or until took.
func (q *core) give(c *class, p link.Packet, now time.Duration) {
	q.packets++
	q.held += p.Wire
	c.leaf.Enqueue(p, now)
}

// took accounts for a packet that left by way of a class.
func (q *core) took(p link.Packet) {
	q.packets--
	q.held -= p.Wire
}

// newClasses builds n leaves.
func (q *core) newClasses(n int, d Discipline) ([]class, error) {
	all := make([]class, n)
	for i := range all {
		leaf, err := d.New(q.below(uint64(i)))
		if err != nil {
			return nil, fmt.Errorf("leaf: %w", err)
		}
		all[i].leaf = leaf
	}
	return all, nil
}

// singleQueue accepts the disciplines that may be the leaves of a scheduler: those of one queue.
func singleQueue(d Discipline) error {
	switch d.(type) {
	case PFIFO, BFIFO, CoDel, PIE, RED:
		return nil
	}
	return fmt.Errorf("leaf %v: want pfifo, bfifo, codel, pie or red", d)
}

// maxNesting is how many shapers and policers may stand one below the other.
const maxNesting = 4

// anyQueue accepts the disciplines that may stand below a shaper or a policer.
func anyQueue(d Discipline) error {
	for n := 1; d != nil; n++ {
		if n > maxNesting {
			return fmt.Errorf("leaf: more than %d disciplines one below the other", maxNesting)
		}
		switch o := d.(type) {
		case TBF:
			d = o.Leaf
		case HTB:
			d = o.Leaf
		case Policer:
			d = o.Leaf
		case CoDelPolicer:
			d = o.Leaf
		default:
			d = nil
		}
	}
	return nil
}

// maxWeight bounds the shares of classes.
const maxWeight = 1024

// weights is a list of shares, as in 1:2:4; class i of a scheduler has that of position i modulo their number.
func weights(v *string) parameter {
	check := func() error {
		if *v == "" {
			*v = "1"
		}
		_, err := parseWeights(*v)
		return err
	}
	return parameter{name: "weights", read: func(word string) error { *v = word; return check() }, check: check,
		write: func() string { return "weights " + *v }}
}

func parseWeights(s string) ([]int, error) {
	var all []int
	for _, word := range strings.Split(s, ":") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > maxWeight || len(all) >= 64 {
			return nil, fmt.Errorf("weights %q: want up to 64 numbers from 1 to %d, as in 1:2:4", s, maxWeight)
		}
		all = append(all, n)
	}
	return all, nil
}

// classParameters are those of the schedulers over leaves.
func classParameters(flows *int, w *string, l *Discipline) []parameter {
	return []parameter{count("flows", flows, defaultFlows, 1, maxClasses), weights(w), leaf(l, PFIFO{Limit: 127}, singleQueue)}
}

// maxClasses bounds the leaves of a scheduler.
const maxClasses = 1 << 14
