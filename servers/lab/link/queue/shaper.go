package queue

import (
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// TBF is a token bucket filter over a leaf (Linux's tbf): a packet leaves when the bucket holds as many tokens as it has bytes. A packet
// longer than the bucket could never leave, and is dropped on arrival.
type TBF struct {
	Rate  bitrate.Bitrate // of Packet.Wire; required
	Burst int             // bytes; 0 means what Rate carries in 4 ms, and at least 1600
	Leaf  Discipline      // nil means a BFIFO
}

func (o *TBF) describe() (string, []parameter) {
	return "tbf", shaperParameters(&o.Rate, &o.Burst, max(int(o.Rate/2000), 1600), frame, &o.Leaf)
}

// Check implements Discipline.
func (o TBF) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o TBF) String() string { return write(o) }

// Capacity implements Discipline.
func (o TBF) Capacity(wire int) int { o, _ = complete(o); return o.Leaf.Capacity(wire) }

// New implements Discipline.
func (o TBF) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	return newShaper(e, "tbf", o.Rate, o.Burst, false, o.Leaf)
}

// HTB is one class of Linux's htb over a leaf: as TBF, but a packet leaves as soon as the bucket is not in debt, and may put it into debt.
// There is no tree, no borrowing and no second rate: the class is its own ceiling.
type HTB struct {
	Rate  bitrate.Bitrate // of Packet.Wire; required
	Burst int             // bytes; 0 means 1600 and what Rate carries in 1 ms, about what tc computes
	Leaf  Discipline      // nil means a BFIFO
}

func (o *HTB) describe() (string, []parameter) {
	return "htb", shaperParameters(&o.Rate, &o.Burst, int(o.Rate/8000)+1600, 1, &o.Leaf)
}

// Check implements Discipline.
func (o HTB) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o HTB) String() string { return write(o) }

// Capacity implements Discipline.
func (o HTB) Capacity(wire int) int { o, _ = complete(o); return o.Leaf.Capacity(wire) }

// New implements Discipline.
func (o HTB) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	return newShaper(e, "htb", o.Rate, o.Burst, true, o.Leaf)
}

func newShaper(e link.Env, kind string, rate bitrate.Bitrate, burst int, debt bool, d Discipline) (link.Queue, error) {
	if e.Rate == 0 || e.Rate > rate {
		e.Rate = rate // for what the leaf derives from it
	}
	q := &shaper{wrapper: wrapper{core: newCore(e)}, kind: kind, bucket: newBucket(rate, burst), burst: burst, debt: debt}
	if err := q.build(kind, d); err != nil {
		return nil, err
	}
	return q, nil
}

type shaper struct {
	wrapper
	kind   string
	bucket bucket
	burst  int
	debt   bool   // a packet may leave with too few tokens
	long   uint64 // packets longer than the burst
	stuck  bool   // the last Dequeue lacked tokens
}

// price is how many tokens p must find.
func (q *shaper) price(p *link.Packet) int {
	if q.debt {
		return 0
	}
	return p.Wire
}

func (q *shaper) Enqueue(p link.Packet, now time.Duration) {
	if !q.debt && p.Wire > q.burst {
		q.long++
		q.refuse(p, link.Tail)
		return
	}
	q.give(&q.class, p, now)
}

func (q *shaper) Dequeue(now time.Duration) (link.Packet, bool) {
	q.bucket.advance(now)
	q.stuck = false
	p := q.head(now)
	if p == nil {
		return link.Packet{}, false
	}
	if !q.bucket.has(q.price(p)) {
		q.overlimits++
		q.stuck = true
		return link.Packet{}, false
	}
	q.bucket.take(p.Wire)
	sent := q.take()
	q.took(sent)
	return sent, true
}

// Wake implements link.Shaper.
func (q *shaper) Wake(now time.Duration) (time.Duration, bool) {
	if q.stuck {
		return q.bucket.when(q.price(&q.next)), true
	}
	return q.wrapper.Wake(now)
}

// Report implements link.Reporter.
func (q *shaper) Report() link.Report {
	return q.report(q.kind, number("tokens_bytes", float64(q.bucket.tokens)/float64(token)), number("too_long", q.long))
}
