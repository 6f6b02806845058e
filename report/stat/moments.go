package stat

import (
	"math"
	"time"
)

// Moments are the running mean, variance and skewness of delays, by Welford's method with Pebay's update of the third moment (Sandia report
// SAND2008-6212). They count from the first delay, so that an offset that all delays share costs no digits. The zero value is
// ready; it is not safe for concurrent use.
type Moments struct {
	n          uint64
	base       time.Duration
	mean       float64 // of the distances from base, in ns
	m2, m3     float64 // sums of powers of the distances from the mean
	least, top time.Duration
}

// Add takes one delay.
func (m *Moments) Add(d time.Duration) {
	if m.n == 0 {
		m.base, m.least, m.top = d, d, d
	}
	m.least, m.top = min(m.least, d), max(m.top, d)
	m.n++
	n := float64(m.n)
	delta := float64(d-m.base) - m.mean
	step := delta / n
	term := delta * step * (n - 1)
	m.mean += step
	m.m3 += term*step*(n-2) - 3*step*m.m2
	m.m2 += term
}

// Merge adds what o has seen; o stays as it is.
func (m *Moments) Merge(o Moments) {
	if o.n == 0 {
		return
	}
	if m.n == 0 {
		*m = o
		return
	}
	a, b := float64(m.n), float64(o.n)
	n := a + b
	delta := float64(o.base-m.base) + (o.mean - m.mean)
	m.m3 += o.m3 + delta*delta*delta*a*b*(a-b)/(n*n) + 3*delta*(a*o.m2-b*m.m2)/n
	m.m2 += o.m2 + delta*delta*a*b/n
	m.mean += delta * b / n
	m.n += o.n
	m.least, m.top = min(m.least, o.least), max(m.top, o.top)
}

// N returns the number of delays.
func (m *Moments) N() uint64 { return m.n }

// Mean returns the mean to the nearest nanosecond, or false without delays. It lies between the smallest and the largest of them.
func (m *Moments) Mean() (time.Duration, bool) {
	return min(max(m.base+time.Duration(math.Round(m.mean)), m.least), m.top), m.n > 0
}

// StdDev returns the sample's standard deviation (divisor n-1), or false with fewer than two delays.
func (m *Moments) StdDev() (time.Duration, bool) {
	if m.n < 2 {
		return 0, false
	}
	return time.Duration(math.Round(math.Sqrt(m.m2 / float64(m.n-1)))), true
}

// Skew returns the skewness m3 / m2^1.5 with the population's moments (divisor n), positive with a long tail upwards; false with
// fewer than two delays or where all are equal.
func (m *Moments) Skew() (float64, bool) {
	if m.n < 2 || m.m2 <= 0 {
		return 0, false
	}
	return math.Sqrt(float64(m.n)) * m.m3 / math.Pow(m.m2, 1.5), true
}
