package stat

import (
	"cmp"
	"errors"
	"math"
	"slices"
)

// The figures of this file are of whole runs, one number a run, all in the same unit: runs are independent of each other, the probes
// within a run are not.

// maxExact is the number of values up to which the distribution of U is counted out rather than approximated.
const maxExact = 60

// z is the normal quantile that belongs to Level.
const z = 1.959963984540054

// ErrNotFinite says that a figure is NaN or infinite.
var ErrNotFinite = errors.New("figures must be finite")

// Test is the outcome of a Mann-Whitney test.
type Test struct {
	U        float64 // pairs in which a's value is the larger; an equal pair counts half
	Less     float64 // chance of so small a U, or smaller, where a and b come from one distribution
	Greater  float64 // chance of so large a U, or larger
	TwoSided float64 // chance of a U so far from its mean, on either side
	Exact    bool    // the chances are counted and not from the normal approximation
}

// MannWhitney compares a with b by U = R - n(n+1)/2, R being the sum of a's ranks among all values, ties sharing the mean of their ranks. Up to 60
// values the chances are exact, given the ties: every choice of which values are a's is counted. Beyond, they are normal, with the
// variance corrected for ties and the continuity correction. The error is ErrNoSamples where a side is empty, or ErrNotFinite.
func MannWhitney(a, b []float64) (Test, error) {
	if len(a) == 0 || len(b) == 0 {
		return Test{}, ErrNoSamples
	}
	all := slices.Concat(a, b)
	if !allFinite(all) {
		return Test{}, ErrNotFinite
	}
	ranks, ties := twiceRanks(all)
	sum := 0
	for _, r := range ranks[:len(a)] {
		sum += r
	}
	na, nb := len(a), len(b)
	u := sum - na*(na+1) // twice U
	t := Test{U: float64(u) / 2, Exact: len(all) <= maxExact}
	if t.Exact {
		t.count(ranks, na, sum)
		return t, nil
	}
	n := float64(na + nb)
	sd := math.Sqrt(float64(na) * float64(nb) / 12 * (n + 1 - ties/(n*(n-1))))
	d := t.U - float64(na)*float64(nb)/2
	if sd == 0 {
		t.Less, t.Greater, t.TwoSided = 1, 1, 1
		return t, nil
	}
	t.Less, t.Greater = normal((d+0.5)/sd), normal((0.5-d)/sd)
	t.TwoSided = min(2*normal((0.5-math.Abs(d))/sd), 1)
	return t, nil
}

// normal is the standard normal distribution.
func normal(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }

func allFinite(x []float64) bool {
	return !slices.ContainsFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

// twiceRanks returns twice the rank of each value, whole numbers also where ties share a rank, and the sum of t^3 - t over the ties.
func twiceRanks(x []float64) (ranks []int, ties float64) {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(x[i], x[j]) })
	ranks = make([]int, len(x))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && x[order[j]] == x[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			ranks[k] = i + 1 + j // the mean of ranks i+1 .. j, twice
		}
		t := float64(j - i)
		ties += t*t*t - t
		i = j
	}
	return ranks, ties
}

// count fills in the chances: ways[k][s] is in how many ways k of the ranks sum up to s.
func (t *Test) count(ranks []int, na, sum int) {
	total := 0
	for _, r := range ranks {
		total += r
	}
	ways := make([][]float64, na+1)
	for k := range ways {
		ways[k] = make([]float64, total+1)
	}
	ways[0][0] = 1
	for i, r := range ranks {
		for k := min(i+1, na); k > 0; k-- {
			for s := total; s >= r; s-- {
				ways[k][s] += ways[k-1][s-r]
			}
		}
	}
	var all, less, greater, far float64
	n := len(ranks)
	mean := na * (n + 1) // twice the mean of the sum of a's ranks, as all sums here
	for s, w := range ways[na] {
		all += w
		if s <= sum {
			less += w
		}
		if s >= sum {
			greater += w
		}
		if abs(s-mean) >= abs(sum-mean) {
			far += w
		}
	}
	t.Less, t.Greater, t.TwoSided = less/all, greater/all, far/all
}

func abs(n int) int { return max(n, -n) }

// SmallestP returns the smallest two-sided chance that a Mann-Whitney test of na and nb values without ties can come to: 2 / C(na+nb, na). Both must be positive.
func SmallestP(na, nb int) float64 {
	p := 2.0
	for i := 1; i <= min(na, nb); i++ {
		p *= float64(i) / float64(na+nb-min(na, nb)+i)
	}
	return min(p, 1)
}

// Shift is how far b lies from a: the Hodges-Lehmann estimate, the median of all differences b[j] - a[i], with its interval.
type Shift struct {
	Value     float64
	Low, High float64 // valid with HasInterval
	// HasInterval says that there are enough values for an interval at Level: four on each side, or more on one for fewer on the other.
	HasInterval bool
	Exact       bool // the interval is counted and not from the normal approximation
}

// HodgesLehmann estimates the shift from a to b. The interval is from the c-th smallest to the c-th largest difference, c from the distribution of U
// (exact up to 60 values, counted without ties, which makes it no narrower than it should be). The error is MannWhitney's.
func HodgesLehmann(a, b []float64) (Shift, error) {
	if len(a) == 0 || len(b) == 0 {
		return Shift{}, ErrNoSamples
	}
	if !allFinite(a) || !allFinite(b) {
		return Shift{}, ErrNotFinite
	}
	d := make([]float64, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			d = append(d, y-x)
		}
	}
	slices.Sort(d)
	n := len(d)
	s := Shift{Value: d[(n-1)/2] + (d[n/2]-d[(n-1)/2])/2, Exact: len(a)+len(b) <= maxExact}
	c := 0
	if s.Exact {
		c = exactRank(len(a), len(b))
	} else {
		na, nb := float64(len(a)), float64(len(b))
		c = int(na*nb/2 - z*math.Sqrt(na*nb*(na+nb+1)/12))
	}
	if c >= 1 {
		s.Low, s.High, s.HasInterval = d[c-1], d[n-c], true
	}
	return s, nil
}

// exactRank returns the largest c with P(U < c) <= (1 - Level) / 2, 0 where there is none.
func exactRank(na, nb int) int {
	// ways[k][u] is in how many orders of k of the a's and all the b's so far u pairs have the a after the b.
	ways := make([][]float64, na+1)
	for k := range ways {
		ways[k] = make([]float64, na*nb+1)
		ways[k][0] = 1
	}
	for b := 1; b <= nb; b++ {
		for k := 1; k <= na; k++ {
			// The last of k a's and b b's is a b; or it is an a, behind all b of the b's.
			for u := b; u < len(ways[k]); u++ {
				ways[k][u] += ways[k-1][u-b]
			}
		}
	}
	var all float64
	for _, w := range ways[na] {
		all += w
	}
	c, below := 0, 0.0
	for _, w := range ways[na] {
		if below += w; below/all > (1-Level)/2+1e-12 {
			break
		}
		c++
	}
	return c
}

// RatioShift is HodgesLehmann on logarithms: how many times larger b is than a, with its interval. It is false where a value is not positive; the error
// is HodgesLehmann's.
func RatioShift(a, b []float64) (Shift, bool, error) {
	logs := func(x []float64) (out []float64, ok bool) {
		for _, v := range x {
			if v <= 0 {
				return nil, false
			}
			out = append(out, math.Log(v))
		}
		return out, true
	}
	if !allFinite(a) || !allFinite(b) {
		return Shift{}, false, ErrNotFinite
	}
	la, oka := logs(a)
	lb, okb := logs(b)
	if !oka || !okb {
		return Shift{}, false, nil
	}
	s, err := HodgesLehmann(la, lb)
	s.Value, s.Low, s.High = math.Exp(s.Value), math.Exp(s.Low), math.Exp(s.High)
	return s, err == nil, err
}

// Holm returns the chances of several tests corrected for their number, in the same order (Holm 1979): a test that stands below 5% after it
// stands among all of them with that risk. p is not modified.
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(p[i], p[j]) })
	out := make([]float64, len(p))
	worst := 0.0
	for k, i := range order {
		worst = max(worst, min(p[i]*float64(len(p)-k), 1))
		out[i] = worst
	}
	return out
}

// Median returns the median of figures by Rule; 0 for none.
func Median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(x))
	n := len(s)
	return s[(n-1)/2] + (s[n/2]-s[(n-1)/2])/2
}

// ShareInterval returns Wilson's interval, at Level, of a share of which k out of n were seen, where the n are independent of each other
// (Wilson 1927); 0 to 1 for n = 0. It is never empty: 0 of 300 leaves up to 1.3%.
func ShareInterval(k, n int) (low, high float64) {
	if n <= 0 {
		return 0, 1
	}
	p, m := float64(k)/float64(n), float64(n)
	mid := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return min(max(mid-half, 0), p), max(min(mid+half, 1), p)
}

// DifferenceInterval returns the interval of b - a from the intervals of the two, which are independent of each other: the distances of the ends
// add up like errors do (Zou and Donner 2008; for shares it is Newcombe's).
func DifferenceInterval(a, aLow, aHigh, b, bLow, bHigh float64) (low, high float64) {
	return b - a - math.Hypot(b-bLow, aHigh-a), b - a + math.Hypot(bHigh-b, a-aLow)
}
