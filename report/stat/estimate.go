package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Level is the confidence level of every interval of this package.
const Level = 0.95

// Method names how the intervals of estimates are made. They cover the chance within a run and not how runs differ from each other.
const Method = "order statistics at the effective sample size, within the run"

// FewEffective is how many effective samples there must be on the rarer side of a quantile (8 in all for a median, 40 for a 90th
// percentile): with fewer, the dependence between the samples is not known well enough, and an interval is too narrow by an unknown amount.
const FewEffective = 4

// draws is how many times an estimate is drawn for the intervals of what is computed from it.
const drawn = 2000

// Estimate is a quantile of one series of samples, with the interval that the dependence between the samples leaves.
type Estimate struct {
	Value     time.Duration
	Low, High time.Duration // at Level
	N         int           // samples
	NEff      float64       // as many independent samples would say as much
	Block     int           // samples over which dependence was looked for, or in a block of the bootstrap
	Resamples int           // values drawn

	weak  bool
	draws []float64 // what the quantile may be, in ns, as often as it may be so
}

// Weak reports whether the interval rests on fewer than FewEffective samples on one side of the quantile.
func (e Estimate) Weak() bool { return e.weak }

// EstimateQuantile is EstimateQuantiles for one quantile.
func EstimateQuantile(x []time.Duration, q float64, src rand.Source) (Estimate, error) {
	e, err := EstimateQuantiles(x, src, q)
	if err != nil {
		return Estimate{}, err
	}
	return e[0], nil
}

// EstimateQuantiles returns quantiles of x by Rule with intervals that count the dependence between the samples (x is in the order in which they
// were taken). How many samples lie below a quantile varies as in n_eff independent ones, with n_eff = n / tau from the autocorrelation of
// being below the quantile (Woodruff, JASA 47, 1952, with dependence in the variance); the interval is Wilson's for that share, with Student's
// t in place of the normal quantile for what is not known of tau, turned back into order statistics. docs/statistics.md has its coverage. src
// draws the values that Difference and the ratios combine. Its errors are Quantile's.
func EstimateQuantiles(x []time.Duration, src rand.Source, qs ...float64) ([]Estimate, error) {
	return Sort(x, nil).Estimate(src, qs...)
}

// Estimate is EstimateQuantiles of the series.
func (d Delays) Estimate(src rand.Source, qs ...float64) ([]Estimate, error) {
	x, sorted := d.x, d.sorted
	out := make([]Estimate, 0, len(qs))
	for _, q := range qs {
		if err := check(len(x), q); err != nil {
			return nil, err
		}
	}
	if len(qs) == 0 {
		return nil, nil
	}
	s, r := sortedSpan(sorted), rand.New(src)
	raw := dependenceOf(len(x), func(i int) float64 { return float64(uint64(x[i]) - uint64(s.base)) })
	for _, q := range qs {
		v := s.quantile(q)
		below := dependenceOf(len(x), func(i int) float64 {
			if x[i] <= v {
				return 1
			}
			return 0
		})
		e := Estimate{Value: v, N: len(x), Resamples: drawn, draws: make([]float64, drawn)}
		w := below.spread(raw, q)
		e.NEff, e.Block = float64(len(x))/w.tau, w.window
		e.weak = e.NEff*min(q, 1-q) < FewEffective && q > 0 && q < 1
		at := func(z float64) time.Duration {
			i := int(shareAt(q, e.NEff, z) * float64(len(x)))
			return sorted[min(max(i, 0), len(x)-1)]
		}
		t := student(w.freedom)
		e.Low, e.High = min(at(-t), v), max(at(t), v)
		for i := range e.draws {
			e.draws[i] = float64(at(r.NormFloat64() * t / z))
		}
		out = append(out, e)
	}
	return out, nil
}

// shareAt returns the share that q of n may really be, z standard errors off: an end of Wilson's interval (1927) for each sign of z.
func shareAt(q, n, z float64) float64 {
	return (q + z*z/(2*n) + z*math.Sqrt(q*(1-q)/n+z*z/(4*n*n))) / (1 + z*z/n)
}

// student returns the 97.5% quantile of Student's t with at least one degree of freedom, by the first terms of its expansion about the normal
// quantile (Abramowitz and Stegun 26.7.5): within 1% from four degrees on, and too small below.
func student(freedom float64) float64 {
	f := max(freedom, 1)
	z3 := z * z * z
	z5 := z3 * z * z
	return z + (z3+z)/(4*f) + (5*z5+16*z3+3*z)/(96*f*f)
}

func (e *Estimate) interval() {
	low, high := bounds(e.draws)
	e.Low, e.High = min(time.Duration(math.Round(low)), e.Value), max(time.Duration(math.Round(high)), e.Value)
}

// bounds returns the ends of the middle Level of the draws.
func bounds(draws []float64) (low, high float64) {
	s := slices.Sorted(slices.Values(draws))
	tail := (1 - Level) / 2
	last := float64(len(s) - 1)
	return s[int(math.Floor(tail*last))], s[int(math.Ceil((1-tail)*last))]
}

// Between is an estimate that is not computed from samples: a value of which no more is known than that it lies within low..high. A
// ratio of such estimates spans what the ends allow.
func Between(value, low, high time.Duration) Estimate {
	return Estimate{Value: value, Low: low, High: high, N: FewSamples, NEff: FewSamples, draws: []float64{float64(low), float64(high)}}
}

// Restored returns an estimate that was written down: e's exported fields, and whether it is weak. What is computed from it spans what its ends allow,
// which is no less than what the samples would.
func Restored(e Estimate, weak bool) Estimate {
	e.weak, e.draws = weak, []float64{float64(e.Low), float64(e.High)}
	return e
}

// Mix returns an estimate of the given value whose interval covers what all of the estimates say: a resample takes one of them by
// chance. It is for a baseline that was measured several times, so that a drift between the times widens the interval. It needs one at least.
func Mix(value time.Duration, of ...Estimate) Estimate {
	e := Estimate{Value: value}
	for _, o := range of {
		e.N += o.N
		e.NEff += o.NEff
		e.Block = max(e.Block, o.Block)
		e.Resamples = max(e.Resamples, o.Resamples)
		e.weak = e.weak || o.weak
		e.draws = append(e.draws, o.draws...)
	}
	e.interval()
	return e
}

// Difference returns a - b with the interval of the difference, the two drawn independently of each other; it may be negative.
func Difference(a, b Estimate, src rand.Source) Estimate {
	r := rand.New(src)
	e := Estimate{Value: a.Value - b.Value, N: min(a.N, b.N), NEff: min(a.NEff, b.NEff)}
	e.Block, e.Resamples, e.weak = max(a.Block, b.Block), max(a.Resamples, b.Resamples), a.weak || b.weak
	for range pairs(a, b) {
		e.draws = append(e.draws, a.draw(r)-b.draw(r))
	}
	e.interval()
	return e
}

func (e Estimate) draw(r *rand.Rand) float64 { return e.draws[r.IntN(len(e.draws))] }

// pairs returns how many independent pairs are drawn of estimates.
func pairs(of ...Estimate) int {
	n := 1000
	for _, e := range of {
		n = max(n, min(len(e.draws), maxResamples))
	}
	return n
}

// MeanInterval returns the interval, at Level, of the mean of values in the order in which they were taken, with their dependence counted as in
// EstimateQuantiles. The error is ErrTooFew below eight values. x is not modified.
func MeanInterval(x []float64) (low, high, nEff float64, err error) {
	n := len(x)
	if n < 8 {
		return 0, 0, 0, ErrTooFew
	}
	s := newDependence(slices.Clone(x))
	var mean float64
	for _, v := range x {
		mean += v / float64(n)
	}
	if s.variance == 0 {
		return mean, mean, float64(n), nil
	}
	w := s.spread(s, 0.5)
	nEff = float64(n) / w.tau
	variance := s.variance / s.scale * float64(s.per) / float64(len(s.d)) // of one value; see newDependence
	half := student(w.freedom) * math.Sqrt(variance/max(nEff-1, 1))
	return mean - half, mean + half, nEff, nil
}
