package stat

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	maxResamples = 2000
	minResamples = 200
	maxWork      = 100_000_000 // values drawn for one estimate; more samples get fewer resamples, down to minResamples
)

// blockLength returns the bootstrap's block: at least n^(1/3), about twice the integrated autocorrelation time, and at most a quarter
// of the samples, because blocks as long as the series would all be the series itself.
func blockLength(n int, tau float64) int {
	b := max(math.Cbrt(float64(n)), 2*tau)
	return max(min(int(math.Ceil(b)), (n+3)/4), 1)
}

// BlockBootstrap is EstimateQuantiles by a circular block bootstrap: blocks of successive samples (x is in the order in which they were taken,
// the end joined to the start) are drawn with replacement until there are as many samples as before, and the quantiles are taken again, many
// times. It is the better known method, and holds the truth less often than it says: docs/statistics.md has both. All randomness comes from src.
func BlockBootstrap(x []time.Duration, src rand.Source, qs ...float64) ([]Estimate, error) {
	nEff, tau := EffectiveSize(x)
	out := make([]Estimate, len(qs))
	for i, q := range qs {
		v, err := Quantile(x, q)
		if err != nil {
			return nil, err
		}
		out[i] = Estimate{Value: v, N: len(x), NEff: nEff, Block: blockLength(len(x), tau), Resamples: min(max(maxWork/len(x), minResamples), maxResamples)}
		out[i].weak = nEff*min(q, 1-q) < FewEffective && q > 0 && q < 1
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
