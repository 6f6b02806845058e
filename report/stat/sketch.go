package stat

import (
	"math"
	"math/bits"
	"time"
)

// SketchError bounds how far a quantile of a Sketch lies from the same quantile of the samples themselves, as a share of it: 0.2%.
const SketchError = 1.0 / (2 << subBits)

const (
	subBits = 8                    // a power of two is divided into 2^subBits classes
	sub     = 1 << subBits         // classes below 2*sub ns are one nanosecond wide and therefore exact
	classes = (64 - subBits) * sub // up to the longest Duration
)

// Sketch summarises any number of delays in constant memory (112 KiB): counts in classes whose width is a fixed share of the delay. Its quantiles
// follow the same Rule within SketchError; number, minimum, maximum, losses and mean are exact. Sketches of parts merge into the sketch
// of the whole, whatever the order. The zero value is ready; it is not safe for concurrent use.
type Sketch struct {
	counts  [classes]uint64
	n, lost uint64
	least   time.Duration
	top     time.Duration
	moments Moments
}

// class returns the class of a delay: its leading subBits+1 bits, and how many follow them.
func class(d time.Duration) int {
	v := uint64(d)
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift*sub + int(v>>shift)
}

// middle returns the middle of a class.
func middle(i int) float64 {
	if i < 2*sub {
		return float64(i)
	}
	shift := i/sub - 1
	low := float64(uint64(i-shift*sub) << shift)
	return low + float64(uint64(1)<<shift-1)/2
}

// Add takes one delay. It reports false, and leaves the sketch as it was, for a negative one. It allocates nothing.
func (s *Sketch) Add(d time.Duration) bool {
	if d < 0 {
		return false
	}
	if s.n == 0 {
		s.least, s.top = d, d
	}
	s.least, s.top = min(s.least, d), max(s.top, d)
	s.n++
	s.counts[class(d)]++
	s.moments.Add(d)
	return true
}

// AddLost takes n losses.
func (s *Sketch) AddLost(n uint64) { s.lost += n }

// Merge adds all that o holds; o stays as it is.
func (s *Sketch) Merge(o *Sketch) {
	s.lost += o.lost
	if o.n == 0 {
		return
	}
	if s.n == 0 {
		s.least, s.top = o.least, o.top
	}
	s.least, s.top = min(s.least, o.least), max(s.top, o.top)
	s.n += o.n
	for i, c := range o.counts {
		s.counts[i] += c
	}
	s.moments.Merge(o.moments)
}

// N returns the number of delays.
func (s *Sketch) N() uint64 { return s.n }

// Moments returns the running moments of the delays.
func (s *Sketch) Moments() Moments { return s.moments }

// Quantile returns the q-quantile by Rule, within SketchError and a nanosecond of rounding. Its errors are those of the function Quantile.
func (s *Sketch) Quantile(q float64) (time.Duration, error) {
	if err := check(int(min(s.n, math.MaxInt)), q); err != nil {
		return 0, err
	}
	at := q * float64(s.n-1)
	k := min(uint64(at), s.n-1)
	low, high := s.order(k)
	v := low + (at-float64(k))*(high-low)
	return s.between(v), nil
}

// between returns a time that no sample lies beyond.
func (s *Sketch) between(ns float64) time.Duration {
	switch {
	case ns <= float64(s.least):
		return s.least
	case ns >= float64(s.top):
		return s.top
	}
	return min(max(time.Duration(math.Round(ns)), s.least), s.top)
}

// order returns about the k-th smallest delay, counted from 0, and the one after it. The smallest and the largest are exact.
func (s *Sketch) order(k uint64) (v, next float64) {
	exact := func(k uint64, class int) float64 {
		switch k {
		case 0:
			return float64(s.least)
		case s.n - 1:
			return float64(s.top)
		}
		return middle(class)
	}
	var seen uint64
	i := 0
	for ; seen+s.counts[i] <= k; i++ {
		seen += s.counts[i]
	}
	v = exact(k, i)
	if k+1 >= s.n {
		return v, v
	}
	for ; seen+s.counts[i] <= k+1; i++ {
		seen += s.counts[i]
	}
	return v, exact(k+1, i)
}

// withLoss is QuantileWithLoss.
func (s *Sketch) withLoss(q float64) Bound {
	n := s.n + s.lost
	if n == 0 {
		return Bound{}
	}
	rank := uint64(ceilRank(int(n), q))
	if rank > s.n {
		return Bound{Unbounded: true}
	}
	v, _ := s.order(rank - 1)
	return Bound{Value: s.between(v)}
}

// Summary returns what Summarize returns of the same delays and losses, its quantiles within SketchError.
func (s *Sketch) Summary() Summary {
	out := Summary{N: int(s.n), Lost: int(s.lost), MedianWithLoss: s.withLoss(0.5), P90WithLoss: s.withLoss(0.9)}
	if s.n == 0 {
		return out
	}
	at := func(q float64) time.Duration {
		v, _ := s.Quantile(q) // it fails on no samples alone
		return v
	}
	out.Min, out.Max = s.least, s.top
	out.P10, out.Median, out.P90, out.P99 = at(0.1), at(0.5), at(0.9), at(0.99)
	out.HasP99 = out.N >= MinSamples(0.99)
	out.Mean, _ = s.moments.Mean()
	return out
}
