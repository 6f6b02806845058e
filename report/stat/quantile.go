package stat

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/montanaflynn/stats"
)

// Rule names the definition of every quantile of this package, except those that count losses (LossRule).
const Rule = "Hyndman-Fan type 7"

// LossRule names the definition of the quantiles that count a lost probe as infinitely late.
const LossRule = "ceil(q n)-th of n, lost probes last"

// Errors that a caller may test for.
var (
	// ErrNoSamples says that there is nothing to compute from. It stands for absence: the median of nothing is not 0.
	ErrNoSamples = errors.New("no samples")
	// ErrQuantile says that a quantile was asked for outside 0..1, or NaN.
	ErrQuantile = errors.New("quantile is not within 0..1")
)

// Quantile returns the q-quantile of x by Rule, rounded to the nearest nanosecond; 0 is the minimum and 1 the maximum. x need not be
// sorted and is not modified. The error is ErrNoSamples for an empty x and ErrQuantile for a q outside 0..1.
func Quantile(x []time.Duration, q float64) (time.Duration, error) {
	if err := check(len(x), q); err != nil {
		return 0, err
	}
	return spanOf(x).quantile(q), nil
}

func check(n int, q float64) error {
	if math.IsNaN(q) || q < 0 || q > 1 {
		return ErrQuantile
	}
	if n == 0 {
		return ErrNoSamples
	}
	return nil
}

// distances returns how far each value of x lies above base, its minimum, in ns. The values are small whole numbers however large the
// offset that all delays share, so that sums and interpolation keep their digits.
func distances(x []time.Duration, base time.Duration) stats.Float64Data {
	d := make(stats.Float64Data, len(x))
	for i, v := range x {
		d[i] = float64(uint64(v) - uint64(base)) // exact in two's complement whatever the signs
	}
	return d
}

// span is a series as distances from its minimum, or in sorted where it is longer than libraryMost.
type span struct {
	base, top time.Duration
	d         stats.Float64Data
	sorted    []time.Duration
}

// libraryMost is how many values the library is given: it copies and sorts them anew for each percentile. TestLongSeriesFollowTheSameRule holds what
// stands in for it to the library's values.
const libraryMost = 1000

// sortedSpan needs one value at least, in order of size.
func sortedSpan(x []time.Duration) span {
	s := span{base: x[0], top: x[len(x)-1]}
	if len(x) > libraryMost {
		s.sorted = x
	} else {
		s.d = distances(x, s.base)
	}
	return s
}

// distance is how far the value at place i lies above the base, in ns.
func (s span) distance(i int) float64 { return float64(uint64(s.sorted[i]) - uint64(s.base)) }

// mean is the mean distance from the base.
func (s span) mean() float64 {
	if s.sorted == nil {
		mean, _ := stats.Mean(s.d) // it fails on no values alone
		return mean
	}
	var sum float64
	for i := range s.sorted {
		sum += s.distance(i)
	}
	return sum / float64(len(s.sorted))
}

// spanOf needs one value at least.
func spanOf(x []time.Duration) span {
	base := slices.Min(x)
	return span{base: base, top: slices.Max(x), d: distances(x, base)}
}

// quantile needs a valid q.
func (s span) quantile(q float64) time.Duration {
	if s.sorted != nil {
		at := q * float64(len(s.sorted)-1)
		k := int(at)
		if k+1 >= len(s.sorted) {
			return s.top
		}
		low, high := s.distance(k), s.distance(k+1)
		return s.above(low + (at-float64(k))*(high-low))
	}
	v, err := stats.Percentile(s.d, q*100)
	switch {
	case err == nil:
		return s.above(v)
	case q < 0.5: // 0, which the library refuses; next to an end q*100 may also leave (0, 100] by its rounding
		return s.base
	}
	return s.top
}

// above returns base + ns. Distances above 2^53 ns are rounded, which must not lead beyond the top.
func (s span) above(ns float64) time.Duration {
	if d := math.Round(ns); d < float64(uint64(s.top)-uint64(s.base)) {
		return min(time.Duration(uint64(s.base)+uint64(d)), s.top)
	}
	return s.top
}

// Bound is a quantile of a series in which lost probes count as infinitely late.
type Bound struct {
	Value     time.Duration // valid unless Unbounded
	Unbounded bool          // the quantile lies among the lost: it is above every reply
}

// QuantileWithLoss returns the q-quantile of len(x) replies and lost losses where a loss is later than any reply: the
// ceil(q n)-th of all n. Its errors are Quantile's.
func QuantileWithLoss(x []time.Duration, lost int, q float64) (Bound, error) {
	n := len(x) + lost
	if err := check(n, q); err != nil {
		return Bound{}, err
	}
	return withLoss(slices.Sorted(slices.Values(x)), lost, q)
}

// withLoss is QuantileWithLoss of replies in order of size.
func withLoss(sorted []time.Duration, lost int, q float64) (Bound, error) {
	n := len(sorted) + lost
	if err := check(n, q); err != nil {
		return Bound{}, err
	}
	rank := ceilRank(n, q)
	if rank > len(sorted) {
		return Bound{Unbounded: true}, nil
	}
	return Bound{Value: sorted[rank-1]}, nil
}

// ceilRank returns ceil(q n), at least 1. A product that is whole but for its rounding error counts as whole.
func ceilRank(n int, q float64) int {
	p := q * float64(n)
	if r := math.Round(p); math.Abs(p-r) <= 4e-16*p {
		p = r
	}
	return min(max(int(math.Ceil(p)), 1), n)
}

// MinSamples returns how many independent samples it takes before the largest of them bounds the q-quantile from above with 95%
// confidence: the smallest n with 1 - q^n >= 0.95. It is 29 for 0.9, 59 for 0.95 and 299 for 0.99; for a q below a half it is
// that of 1-q, the same question asked from below.
func MinSamples(q float64) int {
	q = max(q, 1-q)
	if q >= 1 {
		return 1 // the extremes of a sample are what they are
	}
	n := int(math.Ceil(math.Log(0.05) / math.Log(q)))
	return max(n, 1)
}
