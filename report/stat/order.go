package stat

import (
	"errors"
	"math"
	"slices"
	"time"
)

// ErrTooFew says that there are samples, but too few for what was asked.
var ErrTooFew = errors.New("too few samples")

// Ranks are the two order statistics, counted from 1, that a quantile lies between.
type Ranks struct {
	Low, High int
	// Coverage is the chance that the quantile lies at or above X(Low) and below X(High); at least Level.
	Coverage float64
}

// QuantileRanks returns the interval of the q-quantile of n independent samples by order statistics, whatever their distribution:
//
//	P(X(l) <= Q < X(u)) = sum over k = l..u-1 of C(n,k) q^k (1-q)^(n-k)
//
// It takes the narrowest l < u with at least Level; of several equally narrow the one whose middle is nearest to q(n+1), the lower
// one where two are. The error is Quantile's, or ErrTooFew where even all of the samples do not reach Level: a median takes 6, a 90th
// percentile 29. Samples of one run depend on each other and are not independent; figures of separate runs are.
func QuantileRanks(n int, q float64) (Ranks, error) {
	if err := check(n, q); err != nil {
		return Ranks{}, err
	}
	first, p := binomial(n, q)
	best := Ranks{}
	distance := func(r Ranks) float64 { return math.Abs(float64(r.Low+r.High)/2 - q*float64(n+1)) }
	// The window's sum is kept while both ends move on; k = 0 and k = n bound nothing, because there is no X(0) and no X(n+1).
	low, sum := max(first, 1), 0.0
	for high := low; high < first+len(p) && high < n; high++ {
		for sum += p[high-first]; low < high && sum-p[low-first] >= Level; low++ {
			sum -= p[low-first]
		}
		r := Ranks{low, high + 1, sum}
		if sum < Level {
			continue
		}
		width, narrowest := r.High-r.Low, best.High-best.Low
		if best.High == 0 || width < narrowest || width == narrowest && distance(r) < distance(best)-1e-9 {
			best = r
		}
	}
	if best.High == 0 {
		return Ranks{}, ErrTooFew
	}
	return best, nil
}

// binomial returns the chances of first, first+1, ... successes in n trials; what it leaves out at both ends is below 1e-17 of the most likely.
func binomial(n int, q float64) (first int, p []float64) {
	switch q {
	case 0:
		return 0, []float64{1}
	case 1:
		return n, []float64{1}
	}
	mode := min(int(q*float64(n+1)), n)
	const negligible = 1e-17
	var below, above []float64
	odds := q / (1 - q)
	for k, v := mode, 1.0; k > 0; k-- {
		if v *= float64(k) / (float64(n-k+1) * odds); v < negligible {
			break
		}
		below = append(below, v)
	}
	for k, v := mode, 1.0; k < n; k++ {
		if v *= float64(n-k) * odds / float64(k+1); v < negligible {
			break
		}
		above = append(above, v)
	}
	slices.Reverse(below)
	p = slices.Concat(below, []float64{1}, above)
	var sum float64
	for _, v := range p {
		sum += v
	}
	for i := range p {
		p[i] /= sum
	}
	return mode - len(below), p
}

// QuantileInterval returns the order statistics of QuantileRanks for independent delays and lost losses, a loss being later than any
// delay: a bound that falls among the lost is Unbounded. Its errors are those of QuantileRanks.
func QuantileInterval(x []time.Duration, lost int, q float64) (low, high Bound, err error) {
	ranks, err := QuantileRanks(len(x)+lost, q)
	if err != nil {
		return Bound{}, Bound{}, err
	}
	s := slices.Sorted(slices.Values(x))
	at := func(rank int) Bound {
		if rank > len(s) {
			return Bound{Unbounded: true}
		}
		return Bound{Value: s[rank-1]}
	}
	return at(ranks.Low), at(ranks.High), nil
}
