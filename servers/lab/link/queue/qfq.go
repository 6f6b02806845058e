package queue

import (
	"math/bits"
	"time"

	"bufferbloat/servers/lab/link"
)

// QFQ is quick fair queueing (Checconi, Rizzo and Valente, "QFQ: Efficient Packet Scheduling with Tight Guarantees", 2013) over classes,
// each with a queue of its own: a class is served in proportion to its weight, and is never further from that than a few packets.
//
// As in the paper, a class with packets has a virtual start and finish time; classes are put into groups whose slot is the least power of
// two that holds the virtual length of a largest packet; within a group they lie in buckets by their start times, rounded down to the
// slot; and the group with the least finish time is served among those that have started. The paper finds that group in constant time
// from four sets of groups; here the groups that hold packets are looked through, of which there are as many as there are magnitudes among
// the weights. The choice is the same. Virtual time advances by the bytes sent over the weights of the classes that hold packets, where the
// paper, with fixed classes, divides by the weights of all; with a thousand hashed flows that would nearly stop it.
//
// Flows are hashed to the classes, as a flow filter would do in Linux. The leaf is a FIFO of 127 packets unless set; QFQ over PIE is
// "qfq leaf pie".
type QFQ struct {
	Flows     int    // classes; 0 means 1024
	MaxPacket int    // bytes; longer ones are dropped; 0 means 2048
	Weights   string // of the classes in turn, as in "1:2:4"; "" means "1"
	Leaf      Discipline
}

func (o *QFQ) describe() (string, []parameter) {
	return "qfq", append([]parameter{size("maxpkt", &o.MaxPacket, 2048, 64, 1<<17)}, classParameters(&o.Flows, &o.Weights, &o.Leaf)...)
}

// Check implements Discipline.
func (o QFQ) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o QFQ) String() string { return write(o) }

// Capacity implements Discipline.
func (o QFQ) Capacity(wire int) int {
	o, _ = complete(o)
	return min(o.Flows*o.Leaf.Capacity(wire), MaxFIFO)
}

// New implements Discipline.
func (o QFQ) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	q := &qfq{core: newCore(e), o: o, entries: make([]qfqEntry, o.Flows+1)}
	if q.classes, err = q.newClasses(o.Flows, o.Leaf); err != nil {
		return nil, err
	}
	w, err := parseWeights(o.Weights)
	for i := range o.Flows {
		n := &q.entries[i+1]
		n.weight = w[i%len(w)]
		n.perByte = qfqOne / int64(n.weight)
		n.group = bits.Len64(uint64(int64(o.MaxPacket)*n.perByte - 1))
	}
	return q, err
}

// qfqOne is the virtual time of one byte at weight 1.
const qfqOne = 1 << 20

type qfq struct {
	core
	o       QFQ
	classes []class
	entries []qfqEntry // of class i in entry i+1
	groups  [64]qfqGroup
	used    uint64 // bit i is set where groups[i] holds classes
	virtual int64
	weight  int64 // sum over the classes that hold packets
	epoch   uint64
	long    uint64 // packets longer than MaxPacket
}

type qfqEntry struct {
	weight        int
	perByte       int64
	group         int // the slot is 1<<group
	start, finish int64
	epoch         uint64 // in which finish is true
	next          int32
	active        bool
}

// qfqGroup holds classes in buckets by start time; buckets[first] begins at start.
type qfqGroup struct {
	start   int64
	first   int
	full    uint64 // bit i is set where buckets[first+i] holds classes
	buckets [64]turns
}

func (q *qfq) Enqueue(p link.Packet, now time.Duration) {
	if p.Wire > q.o.MaxPacket {
		q.long++
		q.refuse(p, link.Tail)
		return
	}
	i := spread(p.Flow, q.env.Seed, len(q.classes))
	c, n := &q.classes[i], &q.entries[i+1]
	q.give(c, p, now)
	if n.active || c.leaf.Len() == 0 {
		return
	}
	head := c.head(now)
	if head == nil {
		return
	}
	if q.weight == 0 { // nothing is held: time begins anew
		q.virtual = 0
		q.epoch++
	}
	n.start = q.virtual
	if n.epoch == q.epoch {
		n.start = max(n.start, n.finish)
	}
	n.epoch, n.active = q.epoch, true
	n.finish = n.start + int64(head.Wire)*n.perByte
	q.weight += int64(n.weight)
	q.insert(int32(i + 1))
}

// insert puts a class into the bucket of its start time.
func (q *qfq) insert(i int32) {
	n := &q.entries[i]
	g := &q.groups[n.group]
	start := n.start >> n.group << n.group
	if g.full == 0 {
		g.start, g.first = start, 0
		q.used |= 1 << n.group
	}
	if start < g.start {
		by := int((g.start - start) >> n.group)
		g.start, g.first = start, (g.first-by)&63
		g.full <<= by
	}
	slot := min(int((start-g.start)>>n.group), 63)
	g.full |= 1 << slot
	l := &g.buckets[(g.first+slot)&63]
	n.next = none
	if l.head == none {
		l.head = i
	} else {
		q.entries[l.tail].next = i
	}
	l.tail = i
}

// advance moves the group on to its first bucket that holds classes.
func (q *qfq) advance(group int) {
	g := &q.groups[group]
	if g.buckets[g.first].head != none {
		return
	}
	g.full &^= 1
	if g.full == 0 {
		q.used &^= 1 << group
		return
	}
	by := bits.TrailingZeros64(g.full)
	g.full >>= by
	g.first = (g.first + by) & 63
	g.start += int64(by) << group
}

// choose returns the group with the least finish time among those that have started; one has, where classes hold packets.
func (q *qfq) choose() int {
	earliest := int64(1<<63 - 1)
	for used := q.used; used != 0; used &= used - 1 {
		earliest = min(earliest, q.groups[bits.TrailingZeros64(used)].start)
	}
	q.virtual = max(q.virtual, earliest)
	best, finish := 0, int64(1<<63-1)
	for used := q.used; used != 0; used &= used - 1 {
		i := bits.TrailingZeros64(used)
		if g := &q.groups[i]; g.start <= q.virtual && g.start+2<<i < finish {
			best, finish = i, g.start+2<<i
		}
	}
	return best
}

func (q *qfq) Dequeue(now time.Duration) (link.Packet, bool) {
	if q.used == 0 {
		return link.Packet{}, false
	}
	group := q.choose()
	g := &q.groups[group]
	l := &g.buckets[g.first]
	i := l.head
	n, c := &q.entries[i], &q.classes[i-1]
	l.head = n.next
	p := c.take()
	q.took(p)
	q.virtual += int64(p.Wire) * qfqOne / q.weight
	if next := c.head(now); next != nil {
		n.start = n.finish
		n.finish = n.start + int64(next.Wire)*n.perByte
		q.insert(i)
	} else {
		n.active = false
		q.weight -= int64(n.weight)
	}
	q.advance(group)
	return p, true
}

// Report implements link.Reporter.
func (q *qfq) Report() link.Report {
	return link.Report{Kind: "qfq", Extra: []link.Counter{number("groups", bits.OnesCount64(q.used)),
		number("active_weight", float64(q.weight)), number("too_long", q.long)}}
}
