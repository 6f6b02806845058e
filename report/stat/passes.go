package stat

import (
	"iter"
	"math"
	"time"
)

// QuantileInPasses returns the q-quantile of values by Rule, as Quantile does, with the largest of them and how many there are; n is 0 where there is none.
// It reads the values some five times and holds none of them: for series that are too long to be held in order. Each reading must give the same values. q is
// within 0..1.
func QuantileInPasses(values iter.Seq[time.Duration], q float64) (value, top time.Duration, n int) {
	s := span{base: math.MaxInt64, top: math.MinInt64}
	for v := range values {
		s.base, s.top = min(s.base, v), max(s.top, v)
		n++
	}
	if n == 0 {
		return 0, 0, 0
	}
	at := q * float64(n-1)
	k := int(at)
	if k+1 >= n {
		return s.top, s.top, n
	}
	low, below := nth(values, s, k)
	high, same := s.top, 0
	for v := range values {
		switch {
		case v == low:
			same++
		case v > low:
			high = min(high, v)
		}
	}
	if below+same > k+1 {
		high = low
	}
	a, b := float64(uint64(low)-uint64(s.base)), float64(uint64(high)-uint64(s.base))
	return s.above(a + (at-float64(k))*(b-a)), s.top, n
}

// nth returns the value that has place k in order of size, from 0, and how many are smaller. Each reading of the values narrows the range that it is in.
func nth(values iter.Seq[time.Duration], s span, k int) (value time.Duration, below int) {
	counts := make([]uint32, 1<<16)
	low, width := uint64(s.base), uint64(s.top)-uint64(s.base)
	for width > 0 { // the range is low to low+width, both included
		step := width/uint64(len(counts)) + 1
		clear(counts)
		for v := range values {
			if far := uint64(v) - low; far <= width && v >= time.Duration(low) {
				counts[far/step]++
			}
		}
		i := 0
		for ; below+int(counts[i]) <= k; i++ {
			below += int(counts[i])
		}
		low += uint64(i) * step
		width = min(step-1, width-uint64(i)*step)
	}
	return time.Duration(low), below
}
