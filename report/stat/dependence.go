package stat

import (
	"math"
	"slices"
	"time"
)

// maxBins bounds the work of an autocorrelation: a longer series is averaged down to as many values.
const maxBins = 8192

// dependence is a series about its mean, ready for its autocorrelation.
type dependence struct {
	d        []float64 // of at most maxBins values, each the mean of per samples
	per      int
	variance float64 // sum of the squares of d
	scale    float64 // tau of the samples is scale times the tau of d
}

// newDependence does not keep x.
func newDependence(x []float64) dependence {
	return dependenceOf(len(x), func(i int) float64 { return x[i] })
}

// dependenceOf is newDependence of n values, each of which is asked for twice: however many they are, it holds maxBins at most.
func dependenceOf(n int, value func(i int) float64) dependence {
	s := dependence{per: max(1, (n+maxBins-1)/maxBins), scale: 1}
	var mean, full float64
	for i := range n {
		mean += value(i)
	}
	mean /= float64(n)
	bins := n / s.per
	s.d = make([]float64, bins)
	for i := range n {
		v := value(i) - mean
		full += v * v
		if bin := i / s.per; bin < bins {
			s.d[bin] += v / float64(s.per)
		}
	}
	s.variance = full
	if s.per > 1 {
		s.variance = 0
		for i := range s.d {
			s.variance += s.d[i] * s.d[i]
		}
		if full > 0 { // the variance of a long mean is the same by samples and by bins
			s.scale = float64(s.per) * (s.variance / float64(bins)) / (full / float64(n))
		}
	}
	return s
}

// rho is the autocorrelation at a lag in values of d; the variance must not be 0.
func (s *dependence) rho(lag int) float64 {
	var c float64
	for i := lag; i < len(s.d); i++ {
		c += s.d[i] * s.d[i-lag]
	}
	return c / s.variance
}

// positive returns 1 + 2 sum rho_k in values of d. The sum ends where a pair of neighbouring rho is no longer positive (Geyer 1992,
// initial positive sequence), at lag.
func (s *dependence) positive() (tau float64, lag int) {
	tau = -1
	for ; lag+1 < len(s.d); lag += 2 {
		pair := s.rho(lag) + s.rho(lag+1)
		if pair <= 0 {
			break
		}
		tau += 2 * pair
	}
	return max(tau, 1), lag
}

// windowed returns 1 + 2 sum (1 - k/b) rho_k over k < b (Bartlett 1950), in values of d; it sees what swings back after the
// first sign change. What the mean's own estimation hides of it is added.
func (s *dependence) windowed(b int) float64 {
	tau := 1.0
	for k := 1; k < b && k < len(s.d); k++ {
		tau += 2 * (1 - float64(k)/float64(b)) * s.rho(k)
	}
	return tau / max(1-float64(b)/float64(len(s.d)), 0.3)
}

// spread is what is known of how far dependence reaches.
type spread struct {
	tau     float64 // integrated autocorrelation time, in samples
	window  int     // samples over which it was looked for
	freedom float64 // degrees of freedom of tau
}

// spread returns the dependence of being below the q-quantile. raw, the samples' own, steadies it: few samples are on the rarer side of a high
// quantile, and the few say too little of how they cluster. The two are averaged geometrically, a third of the weight on raw at the median
// and a half at the ends, and never below what the few say. The weights are those with which the simulated intervals hold best.
func (s dependence) spread(raw dependence, q float64) spread {
	n := float64(len(s.d))
	if raw.variance == 0 {
		return spread{1, 1, n}
	}
	if s.variance == 0 {
		s = raw
	}
	own, lag := s.positive()
	whole, wide := raw.positive()
	own, whole = corrected(own, lag, n), corrected(whole, wide, n)
	longest := max(own, whole)
	b := int(max(6*longest, math.Cbrt(n)))
	if float64(b) > n/4 { // too short a series for such a window
		tau := math.Sqrt(longest * own)
		lag = max(lag, wide, 1)
		return spread{min(max(tau*s.scale, 1), n*float64(s.per)), 2 * lag * s.per, n / float64(2*lag)}
	}
	const floor = 0.25
	own, whole = max(s.windowed(b)*s.scale, floor), max(raw.windowed(b)*raw.scale, floor)
	weight := 0.5 - 4*q*(1-q)/6
	tau := max(own*math.Pow(whole/own, weight), own, 2*floor)
	return spread{tau, b * s.per, 1.5 * n / float64(b)}
}

// corrected adds to a tau of n values what the mean's own estimation hides of it, over the lags that it sums up.
func corrected(tau float64, lag int, n float64) float64 {
	return min(tau/max(1-float64(2*lag+1)/n, 0.25), n)
}

// EffectiveSize returns n_eff = n / (1 + 2 sum rho_k) of samples in the order in which they were taken, and the sum's whole
// bracket, the integrated autocorrelation time in samples (at least 1). The sum ends where a pair of neighbouring rho is no
// longer positive (Geyer 1992, initial positive sequence). Constant samples say nothing of their dependence and count in full.
func EffectiveSize(x []time.Duration) (nEff, tau float64) {
	n := len(x)
	if n == 0 {
		return 0, 1
	}
	s := newDependence(distances(x, slices.Min(x)))
	if s.variance == 0 {
		return float64(n), 1
	}
	tau, _ = s.positive()
	tau = min(max(tau*s.scale, 1), float64(n))
	return float64(n) / tau, tau
}
