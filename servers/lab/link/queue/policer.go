package queue

import (
	"fmt"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// Policer drops what exceeds a token bucket before it reaches the leaf, as Linux's "action police" does with "conform-exceed drop" and one
// rate: of every packet that arrives, its bytes are taken from a bucket of Burst bytes that fills at Rate, or it is dropped if there are
// not so many. It delays nothing.
type Policer struct {
	Rate  bitrate.Bitrate // of Packet.Wire; required
	Burst int             // bytes; 0 means what Rate carries in 10 ms, and at least 10 packets of 1514 bytes
	Leaf  Discipline      // nil means a BFIFO
}

func (o *Policer) describe() (string, []parameter) {
	return "policer", shaperParameters(&o.Rate, &o.Burst, max(int(o.Rate/800), 10*frame), frame, &o.Leaf)
}

// shaperParameters are those of a bucket over a leaf. The default of the burst depends on the rate, which is read before it is needed.
func shaperParameters(rate *bitrate.Bitrate, burst *int, otherwise, least int, l *Discipline) []parameter {
	otherwise = min(otherwise, maxBurst)
	return []parameter{required(speed("rate", rate, 0), rate, "18mbit"), size("burst", burst, otherwise, least, maxBurst),
		leaf(l, BFIFO{}, anyQueue)}
}

// Check implements Discipline.
func (o Policer) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o Policer) String() string { return write(o) }

// Capacity implements Discipline.
func (o Policer) Capacity(wire int) int { o, _ = complete(o); return o.Leaf.Capacity(wire) }

// New implements Discipline.
func (o Policer) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	q := &policer{wrapper: wrapper{core: newCore(e)}, bucket: newBucket(o.Rate, o.Burst)}
	return q, q.build("policer", o.Leaf)
}

type policer struct {
	wrapper
	bucket bucket
}

func (q *policer) Enqueue(p link.Packet, now time.Duration) {
	q.bucket.advance(now)
	if !q.bucket.has(p.Wire) {
		q.overlimits++
		q.refuse(p, link.Policed)
		return
	}
	q.bucket.take(p.Wire)
	q.give(&q.class, p, now)
}

// Report implements link.Reporter.
func (q *policer) Report() link.Report {
	return q.report("policer", number("tokens_bytes", float64(q.bucket.tokens)/float64(token)))
}

// wrapper is a queue with one other below it, and the packet that is next.
type wrapper struct {
	core
	class
	shaper link.Shaper // the leaf, where it is one
}

func (q *wrapper) build(name string, d Discipline) error {
	leaf, err := d.New(q.below(0))
	if err != nil {
		return fmt.Errorf("%s leaf: %w", name, err)
	}
	q.leaf = leaf
	q.shaper, _ = leaf.(link.Shaper)
	return nil
}

// Dequeue implements link.Queue for those that hold nothing back.
func (q *wrapper) Dequeue(now time.Duration) (link.Packet, bool) {
	p, ok := q.leaf.Dequeue(now)
	if ok {
		q.took(p)
	}
	return p, ok
}

// Wake implements link.Shaper.
func (q *wrapper) Wake(now time.Duration) (time.Duration, bool) {
	if q.shaper == nil {
		return 0, false
	}
	return q.shaper.Wake(now)
}

// report puts the leaf's counters behind those of q.
func (q *wrapper) report(kind string, extra ...link.Counter) link.Report {
	r := link.Report{Kind: kind, Overlimits: q.overlimits, Extra: extra}
	if l, ok := q.leaf.(link.Reporter); ok {
		below := l.Report()
		r.Kind += " leaf " + below.Kind
		r.Overlimits += below.Overlimits
		r.Extra = append(r.Extra, below.Extra...)
	}
	return r
}
