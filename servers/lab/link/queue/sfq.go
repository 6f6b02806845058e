package queue

import (
	"math/rand/v2"
	"time"

	"bufferbloat/servers/lab/link"
)

// SFQ is stochastic fairness queueing (McKenney, 1990) as Linux's sfq has it: flows are hashed to buckets and served in turn, a quantum
// each; a full queue drops the last packet of the longest flow, found in constant time by a list of flows for each length; and the hash
// changes every Perturb, when the packets that wait are sorted anew. A new flow joins the end of the round.
//
// The defaults are those of the manual page of tc-sfq: 1024 buckets, 127 flows of 127 packets, 127 packets in all.
type SFQ struct {
	Limit    int           // packets in all; 0 means 127
	Depth    int           // packets of one flow; 0 means 127
	Flows    int           // that hold packets at one time; 0 means 127
	Divisor  int           // buckets of the hash; 0 means 1024
	Quantum  int           // bytes per turn; 0 means 1514
	Perturb  time.Duration // between changes of the hash; 0 means never
	HeadDrop bool          // drop the first packet of the longest flow instead of the last
}

func (o *SFQ) describe() (string, []parameter) {
	return "sfq", []parameter{packets("limit", &o.Limit, 127, 1, 1<<16), packets("depth", &o.Depth, 127, 1, 1<<16),
		count("flows", &o.Flows, 127, 1, 1<<16), count("divisor", &o.Divisor, 1024, 1, 1<<16),
		size("quantum", &o.Quantum, defaultQuantum, 1, maxQuanta), span("perturb", &o.Perturb, 0, time.Millisecond, time.Hour),
		flag("headdrop", "taildrop", &o.HeadDrop)}
}

// Check implements Discipline.
func (o SFQ) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o SFQ) String() string { return write(o) }

// Capacity implements Discipline.
func (o SFQ) Capacity(wire int) int { o, _ = complete(o); return ofPackets(o.Limit, wire) }

// New implements Discipline.
func (o SFQ) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	q := &sfq{core: newCore(e), o: o, random: newRandom(e.Seed, 14), buckets: make([]int32, o.Divisor), slots: make([]sfqSlot, o.Flows+1),
		lengths: make([]int32, o.Depth+1), next: o.Perturb}
	q.key = q.random.Uint64()
	for i := range o.Flows {
		q.list(int32(o.Flows - i)) // as slots of length 0
	}
	return q, nil
}

type sfq struct {
	core
	o       SFQ
	random  *rand.Rand
	key     uint64        // of the hash
	next    time.Duration // when the key changes
	buckets []int32       // the slot of each bucket, none where it holds no packet
	slots   []sfqSlot
	last    int32   // the slot served last, in a ring; none where no packet is held
	lengths []int32 // by number of packets: a slot that holds so many; none where there is none
	longest int     // the greatest length in use
	rehash  chain   // packets that are sorted anew
	changes uint64
}

// sfqSlot is a flow that holds packets.
type sfqSlot struct {
	line       chain
	bucket     int
	allot      int
	ring       int32 // the slot that is served next
	more, less int32 // neighbours in the list of slots of the same length
}

// list puts slot i into the list of its length.
func (q *sfq) list(i int32) {
	s := &q.slots[i]
	head := &q.lengths[s.line.n]
	s.less, s.more = none, *head
	if *head != none {
		q.slots[*head].less = i
	}
	*head = i
	q.longest = max(q.longest, s.line.n)
}

// unlist takes slot i out of the list of its length.
func (q *sfq) unlist(i int32) {
	s := &q.slots[i]
	if s.more != none {
		q.slots[s.more].less = s.less
	}
	if s.less != none {
		q.slots[s.less].more = s.more
		return
	}
	q.lengths[s.line.n] = s.more
}

// shorten is told that slot i has lost a packet, and is not listed.
func (q *sfq) shorten(i int32) {
	q.list(i)
	for q.longest > 0 && q.lengths[q.longest] == none {
		q.longest--
	}
}

func (q *sfq) Enqueue(p link.Packet, now time.Duration) {
	q.perturb(now)
	bucket := spread(p.Flow, q.key, q.o.Divisor)
	i := q.buckets[bucket]
	if i == none {
		if i = q.lengths[0]; i == none { // as many flows as there may be
			q.refuse(p, link.Tail)
			return
		}
	}
	if s := &q.slots[i]; s.line.n >= q.o.Depth {
		if !q.o.HeadDrop {
			q.refuse(p, link.Tail)
			return
		}
		q.unlist(i)
		head, _ := q.pop(&s.line)
		q.shorten(i)
		q.env.Drop(head, link.Overflow)
	}
	q.insert(i, bucket, p)
	if q.Len() > q.o.Limit {
		q.relieve()
	}
}

// insert appends p to slot i.
func (q *sfq) insert(i int32, bucket int, p link.Packet) {
	s := &q.slots[i]
	q.unlist(i)
	q.push(&s.line, p)
	q.list(i)
	if q.buckets[bucket] != none {
		return
	}
	q.buckets[bucket], s.bucket, s.allot = i, bucket, q.o.Quantum
	if q.last == none {
		s.ring = i
	} else {
		s.ring = q.slots[q.last].ring
		q.slots[q.last].ring = i
	}
	q.last = i
}

// relieve drops a packet of the longest flow. Where all flows hold one packet, that is the next to be served.
func (q *sfq) relieve() {
	i := q.lengths[q.longest]
	before := q.last
	if q.longest == 1 {
		i = q.slots[q.last].ring
	}
	s := &q.slots[i]
	q.unlist(i)
	var p link.Packet
	if q.o.HeadDrop {
		p, _ = q.pop(&s.line)
	} else {
		p = q.popTail(&s.line)
	}
	q.shorten(i)
	if s.line.n == 0 {
		q.leave(before)
	}
	q.env.Drop(p, link.Overflow)
}

// leave takes the slot behind slot before, which is empty, out of the round.
func (q *sfq) leave(before int32) {
	i := q.slots[before].ring
	q.buckets[q.slots[i].bucket] = none
	if i == before {
		q.last = none
		return
	}
	q.slots[before].ring = q.slots[i].ring
}

func (q *sfq) Dequeue(now time.Duration) (link.Packet, bool) {
	q.perturb(now)
	if q.last == none {
		return link.Packet{}, false
	}
	i := q.slots[q.last].ring
	for q.slots[i].allot <= 0 {
		q.slots[i].allot += q.o.Quantum
		q.last, i = i, q.slots[i].ring
	}
	s := &q.slots[i]
	q.unlist(i)
	p, _ := q.pop(&s.line)
	q.shorten(i)
	if s.line.n == 0 {
		q.leave(q.last)
	} else {
		s.allot -= p.Wire
	}
	return p, true
}

// perturb changes the hash when that is due, and sorts the packets that wait anew. Packets of one flow keep their order.
func (q *sfq) perturb(now time.Duration) {
	if q.o.Perturb == 0 || now < q.next {
		return
	}
	q.next += (now - q.next + q.o.Perturb) / q.o.Perturb * q.o.Perturb
	q.key = q.random.Uint64()
	q.changes++
	for q.last != none {
		i := q.slots[q.last].ring
		s := &q.slots[i]
		q.unlist(i)
		for p, ok := q.pop(&s.line); ok; p, ok = q.pop(&s.line) {
			q.push(&q.rehash, p)
		}
		q.shorten(i)
		q.leave(q.last)
	}
	for n := q.rehash.n; n > 0; n-- {
		p, _ := q.pop(&q.rehash)
		bucket := spread(p.Flow, q.key, q.o.Divisor)
		i := q.buckets[bucket]
		if i == none {
			i = q.lengths[0]
		}
		if i == none || q.slots[i].line.n >= q.o.Depth { // flows that shared a bucket, and need two now; or the other way round
			q.refuse(p, link.Overflow)
			continue
		}
		q.insert(i, bucket, p)
	}
}

// Report implements link.Reporter.
func (q *sfq) Report() link.Report {
	flows := 0
	for i := q.lengths[0]; i != none; i = q.slots[i].more {
		flows++
	}
	return link.Report{Kind: "sfq", Extra: []link.Counter{number("flows", q.o.Flows-flows), number("longest", q.longest),
		number("perturbations", q.changes)}}
}
