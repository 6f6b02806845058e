package queue

import (
	"time"

	"bufferbloat/servers/lab/link"
)

// DRR is deficit round robin (Shreedhar and Varghese, 1995) over classes, each with a queue of its own, as Linux's drr schedules them:
// a class may send as long as its next packet is no longer than its deficit; else it goes to the end of the round, and gets a quantum. A
// class that had nothing to send joins the end of the round with a fresh deficit.
//
// Flows are hashed to the classes, as a flow filter would do in Linux. The leaf is a FIFO of 127 packets unless set; DRR over PIE is
// "drr leaf pie".
type DRR struct {
	Flows   int    // classes; 0 means 1024
	Quantum int    // bytes per round of a class of weight 1; 0 means 1514
	Weights string // of the classes in turn, as in "1:2:4"; "" means "1"
	Leaf    Discipline
}

func (o *DRR) describe() (string, []parameter) {
	return "drr", append([]parameter{size("quantum", &o.Quantum, defaultQuantum, 1, maxQuanta)},
		classParameters(&o.Flows, &o.Weights, &o.Leaf)...)
}

// Check implements Discipline.
func (o DRR) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o DRR) String() string { return write(o) }

// Capacity implements Discipline.
func (o DRR) Capacity(wire int) int {
	o, _ = complete(o)
	return min(o.Flows*o.Leaf.Capacity(wire), MaxFIFO)
}

// New implements Discipline.
func (o DRR) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	q := &drr{core: newCore(e), o: o, turns: make([]drrTurn, o.Flows+1)}
	if q.classes, err = q.newClasses(o.Flows, o.Leaf); err != nil {
		return nil, err
	}
	w, err := parseWeights(o.Weights)
	for i := range o.Flows {
		q.turns[i+1].quantum = o.Quantum * w[i%len(w)]
	}
	return q, err
}

type drr struct {
	core
	o          DRR
	classes    []class
	turns      []drrTurn // of class i in turn i+1
	head, tail int32     // of the round
}

type drrTurn struct {
	quantum, deficit int
	next             int32
	active           bool
}

func (q *drr) Enqueue(p link.Packet, now time.Duration) {
	i := spread(p.Flow, q.env.Seed, len(q.classes))
	c := &q.classes[i]
	q.give(c, p, now)
	t := &q.turns[i+1]
	if !t.active && c.leaf.Len() > 0 {
		t.active, t.deficit = true, t.quantum
		q.append(int32(i + 1))
	}
}

func (q *drr) append(i int32) {
	q.turns[i].next = none
	if q.head == none {
		q.head = i
	} else {
		q.turns[q.tail].next = i
	}
	q.tail = i
}

func (q *drr) remove() int32 {
	i := q.head
	q.head = q.turns[i].next
	return i
}

func (q *drr) Dequeue(now time.Duration) (link.Packet, bool) {
	for q.head != none {
		i := q.head
		t, c := &q.turns[i], &q.classes[i-1]
		switch p := c.head(now); {
		case p == nil: // the leaf dropped the rest
			t.active = false
			q.remove()
		case p.Wire <= t.deficit:
			t.deficit -= p.Wire
			sent := c.take()
			q.took(sent)
			if c.leaf.Len() == 0 {
				t.active = false
				q.remove()
			}
			return sent, true
		default:
			t.deficit += t.quantum
			q.append(q.remove())
		}
	}
	return link.Packet{}, false
}

// Report implements link.Reporter.
func (q *drr) Report() link.Report {
	active := 0
	for i := q.head; i != none; i = q.turns[i].next {
		active++
	}
	return link.Report{Kind: "drr", Extra: []link.Counter{number("active_classes", active)}}
}
