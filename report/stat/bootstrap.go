package stat

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/montanaflynn/stats"
)

// Level is the confidence level of every interval of this package.
const Level = 0.95

// Method names how intervals are made. They cover the chance within a run and not how runs differ from each other.
const Method = "circular block bootstrap within the run"

// FewEffective is the effective sample size below which an interval is too narrow by an unknown amount: fewer than six independent
// values have no 95% interval for their median at all.
const FewEffective = 6

const (
	maxResamples = 2000
	minResamples = 200
	maxWork      = 100_000_000 // values drawn for one estimate; more samples get fewer resamples, down to minResamples
)

// Estimate is a quantile of one series of samples, with the interval that the dependence between the samples leaves.
type Estimate struct {
	Value     time.Duration
	Low, High time.Duration // at Level
	N         int           // samples
	NEff      float64       // as many independent samples would say as much
	Block     int           // samples in a block of the bootstrap
	Resamples int

	draws []float64 // the statistic of each resample, in ns
}

// Weak reports whether the interval rests on fewer than FewEffective independent samples.
func (e Estimate) Weak() bool { return e.NEff < FewEffective }

// EffectiveSize returns n_eff = n / (1 + 2 sum rho_k) of samples in the order in which they were taken, and the sum's whole
// bracket, the integrated autocorrelation time in samples (at least 1). The sum ends where a pair of neighbouring rho is no
// longer positive (Geyer 1992, initial positive sequence). Constant samples say nothing of their dependence and count in full.
func EffectiveSize(x []time.Duration) (nEff, tau float64) {
	n := len(x)
	if n == 0 {
		return 0, 1
	}
	d := distances(x, slices.Min(x))
	mean, _ := stats.Mean(d)
	var variance float64
	for i := range d {
		d[i] -= mean
		variance += d[i] * d[i]
	}
	if variance == 0 {
		return float64(n), 1
	}
	rho := func(lag int) float64 {
		var c float64
		for i := lag; i < n; i++ {
			c += d[i] * d[i-lag]
		}
		return c / variance
	}
	tau = -1
	for k := 0; k+1 < n; k += 2 {
		pair := rho(k) + rho(k+1)
		if pair <= 0 {
			break
		}
		tau += 2 * pair
	}
	tau = min(max(tau, 1), float64(n))
	return float64(n) / tau, tau
}

// blockLength returns the bootstrap's block: at least n^(1/3), about twice the integrated autocorrelation time, and at most a quarter
// of the samples, because blocks as long as the series would all be the series itself.
func blockLength(n int, tau float64) int {
	b := max(math.Cbrt(float64(n)), 2*tau)
	return max(min(int(math.Ceil(b)), (n+3)/4), 1)
}

// EstimateQuantile is EstimateQuantiles for one quantile.
func EstimateQuantile(x []time.Duration, q float64, src rand.Source) (Estimate, error) {
	e, err := EstimateQuantiles(x, src, q)
	if err != nil {
		return Estimate{}, err
	}
	return e[0], nil
}

// EstimateQuantiles returns quantiles of x by Rule with intervals from a circular block bootstrap: blocks of successive samples
// (x is in the order in which they were taken, the end joined to the start) are drawn with replacement until there are as many
// samples as before, and the quantiles are taken again, many times. All randomness comes from src. Its errors are Quantile's.
func EstimateQuantiles(x []time.Duration, src rand.Source, qs ...float64) ([]Estimate, error) {
	nEff, tau := EffectiveSize(x)
	out := make([]Estimate, len(qs))
	for i, q := range qs {
		v, err := Quantile(x, q)
		if err != nil {
			return nil, err
		}
		out[i] = Estimate{Value: v, N: len(x), NEff: nEff, Block: blockLength(len(x), tau), Resamples: min(max(maxWork/len(x), minResamples), maxResamples)}
		out[i].draws = make([]float64, out[i].Resamples)
	}
	if len(qs) == 0 {
		return nil, nil
	}
	resample(x, qs, out[0].Block, out[0].Resamples, rand.New(src), func(t int, v []float64) {
		for i := range out {
			out[i].draws[t] = v[i]
		}
	})
	for i := range out {
		out[i].interval()
	}
	return out, nil
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

// resample calls took with the quantiles of each resample, in ns; the slice is valid until it returns. It counts how often each rank was drawn
// and walks the counts, which spares sorting every resample; TestResampleIsTheQuantileOfItsResample holds it to Quantile.
func resample(x []time.Duration, qs []float64, block, times int, r *rand.Rand, took func(t int, v []float64)) {
	n := len(x)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x[a], x[b]) })
	rank, sorted := make([]int, n), make([]float64, n)
	for k, i := range order {
		rank[i], sorted[k] = k, float64(x[i])
	}
	count, v := make([]int, n), make([]float64, len(qs))
	for t := range times {
		clear(count)
		for left := n; left > 0; {
			start := r.IntN(n)
			for j := range min(block, left) {
				count[rank[(start+j)%n]]++
			}
			left -= min(block, left)
		}
		for i, q := range qs {
			at := q * float64(n-1)
			k := int(at)
			v[i] = orderStatistic(sorted, count, k, at-float64(k))
		}
		took(t, v)
	}
}

// orderStatistic returns the value at position k+frac of the multiset in which sorted[i] occurs count[i] times.
func orderStatistic(sorted []float64, count []int, k int, frac float64) float64 {
	seen, i := 0, 0
	for seen+count[i] <= k {
		seen += count[i]
		i++
	}
	low := sorted[i]
	if frac == 0 || seen+count[i] > k+1 {
		return low
	}
	for i++; count[i] == 0; {
		i++
	}
	return low + frac*(sorted[i]-low)
}

// Between is an estimate that is not computed from samples: a value of which no more is known than that it lies within low..high. A
// ratio of such estimates spans what the ends allow.
func Between(value, low, high time.Duration) Estimate {
	return Estimate{Value: value, Low: low, High: high, N: FewSamples, NEff: FewEffective, draws: []float64{float64(low), float64(high)}}
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
		e.draws = append(e.draws, o.draws...)
	}
	e.interval()
	return e
}

// Difference returns a - b with the interval of the difference, the two drawn independently of each other; it may be negative.
func Difference(a, b Estimate, src rand.Source) Estimate {
	r := rand.New(src)
	e := Estimate{Value: a.Value - b.Value, N: min(a.N, b.N), NEff: min(a.NEff, b.NEff)}
	e.Block, e.Resamples = max(a.Block, b.Block), max(a.Resamples, b.Resamples)
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
