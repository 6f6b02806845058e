package bufferbloat

import (
	"math"
	"time"
)

// times holds times, each as how far it is from where it would be if they came at even steps.
type times struct {
	blocks
	n          int
	last, step time.Duration
}

func (t *times) add(at time.Duration) {
	var p piece
	t.append(&p, at)
	t.put(&p)
}

// append puts the next time into a piece.
func (t *times) append(p *piece, at time.Duration) {
	p.varint(int64(at - t.last - t.step))
	t.step, t.last = at-t.last, at
	t.n++
}

// timesReader reads times.
type timesReader struct {
	cursor
	last, step time.Duration
}

func (r *timesReader) next() time.Duration {
	r.step += time.Duration(r.varint())
	r.last += r.step
	return r.last
}

// packedPoints holds readings: of each its time and by how much the counter grew.
type packedPoints struct {
	times
	first, last Point
}

func (k *packedPoints) add(p Point) {
	if k.n == 0 {
		k.first = p
	}
	var e piece
	k.append(&e, p.At)
	e.varint(int64(p.Bytes - k.last.Bytes))
	k.put(&e)
	k.last = p
}

func (k *packedPoints) all() []Point {
	out := make([]Point, 0, k.n)
	r := timesReader{cursor: cursor{from: &k.blocks}}
	var bytes uint64
	for r.more() {
		at := r.next()
		bytes += uint64(r.varint())
		out = append(out, Point{at, bytes})
	}
	return out
}

// packedValues holds what a quantity was and when. Quantities that are read together have the same times: those that were declared one after the other share
// them as long as they are the same.
type packedValues struct {
	shelf  *shelf
	before *packedValues // of the quantity that was declared before this one, nil for none
	times  *times        // nil while there are none
	own    bool          // nobody else adds to times
	at     timesReader   // of times, behind the n-th; only where they are another's
	n      int
	values blocks
	last   float64
	form   form // of last
}

func (k *packedValues) addAll(at []time.Duration, values []float64) {
	for i := range at {
		k.add(at[i], values[i])
	}
}

func (k *packedValues) add(at time.Duration, value float64) {
	if k.times == nil {
		k.values.shelf = k.shelf
		k.begin()
	}
	if !k.own && (!k.at.more() || k.at.next() != at) {
		k.part()
	}
	if k.own {
		k.times.add(at)
	}
	k.n++
	k.addValue(value)
}

// begin takes the times of the quantity before, as long as no other come.
func (k *packedValues) begin() {
	if k.before == nil || k.before.times == nil {
		k.times, k.own = &times{blocks: blocks{shelf: k.shelf}}, true
		return
	}
	k.times = k.before.times
	k.at = timesReader{cursor: cursor{from: &k.times.blocks}}
}

// part gives the quantity times of its own, with what it shared so far.
func (k *packedValues) part() {
	own := &times{blocks: blocks{shelf: k.shelf}}
	shared := timesReader{cursor: cursor{from: &k.times.blocks}}
	for range k.n {
		shared.more()
		own.add(shared.next())
	}
	k.times, k.own, k.at = own, true, timesReader{}
}

func (k *packedValues) all() (at []time.Duration, values []float64) {
	if k.n == 0 {
		return nil, nil
	}
	at, values = make([]time.Duration, 0, k.n), make([]float64, 0, k.n)
	for t, v := range k.each {
		at, values = append(at, t), append(values, v)
	}
	return at, values
}

func (k *packedValues) each(yield func(at time.Duration, value float64) bool) {
	if k.n == 0 {
		return
	}
	t, v := timesReader{cursor: cursor{from: &k.times.blocks}}, cursor{from: &k.values}
	last := 0.0
	for range k.n {
		t.more()
		v.more()
		last = nextValue(&v, last)
		if !yield(t.next(), last) {
			return
		}
	}
}

// form is a way in which a value comes from a whole number. Most values do, and then the difference of two such numbers takes a byte or two.
type form uint8

const (
	plain      form = iota // the number
	microsAsMs             // a time in microseconds, as milliseconds
	nanosAsMs              // one in nanoseconds, as milliseconds
	microsAsS              // one in microseconds, as seconds
	noNumber               // it does not: the eight bytes of the value
	formBits   = 3
)

// value returns the value of a number, by the same arithmetic that made it.
func (f form) value(m int64) float64 {
	switch f {
	case microsAsMs:
		return time.Duration(m*1000).Seconds() * 1e3
	case nanosAsMs:
		return time.Duration(m).Seconds() * 1e3
	case microsAsS:
		return time.Duration(m * 1000).Seconds()
	}
	return float64(m)
}

// number returns the number that is nearest to a value's, 0 for a value that is beyond all numbers.
func (f form) number(v float64) int64 {
	switch f {
	case microsAsMs:
		v *= 1e3
	case nanosAsMs, microsAsS:
		v *= 1e6
	}
	if !(math.Abs(v) < 1<<53) {
		return 0
	}
	return int64(math.Round(v))
}

// is reports whether a value is exactly that of its number.
func (f form) is(v float64) bool {
	return math.Float64bits(f.value(f.number(v))) == math.Float64bits(v)
}

func (k *packedValues) addValue(v float64) {
	f := k.form
	for i := plain; i <= noNumber && (f == noNumber || !f.is(v)); i++ {
		f = i
	}
	var p piece
	if f == noNumber {
		p.byte(byte(f))
		p.bits(math.Float64bits(v))
	} else {
		p.uvarint(zigzag(f.number(v)-f.number(k.last))<<formBits | uint64(f))
	}
	k.values.put(&p)
	k.last, k.form = v, f
}

// nextValue reads the value after the one that is last.
func nextValue(c *cursor, last float64) float64 {
	head := c.uvarint()
	f := form(head & (1<<formBits - 1))
	if f == noNumber {
		return math.Float64frombits(c.bits())
	}
	return f.value(f.number(last) + unzigzag(head>>formBits))
}
