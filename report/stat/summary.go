package stat

import (
	"slices"
	"time"

	"github.com/montanaflynn/stats"
)

// FewSamples is the number of replies below which the percentiles of a Summary are hardly more than its single values: they are
// marked, and no ratio is built on them.
const FewSamples = 10

// Summary describes the round-trip times of one series in one phase. With N == 0 it has no times: their zeros mean nothing, and OK
// says so. Min <= P10 <= Median <= P90 <= P99 <= Max and Min <= Mean <= Max always hold.
type Summary struct {
	N    int // replies
	Lost int // probes whose loss is decided; N + Lost were sent and decided

	Min, P10, Median, Mean, P90, P99, Max time.Duration
	// HasP99 says that there are enough replies for a P99 that is more than the maximum in disguise (MinSamples).
	HasP99 bool

	// MedianWithLoss and P90WithLoss count a lost probe as infinitely late (LossRule); valid unless N + Lost is 0.
	MedianWithLoss, P90WithLoss Bound
}

// Summarize describes replies with the round-trip times rtts and lost losses. rtts is not modified.
func Summarize(rtts []time.Duration, lost int) Summary {
	s := Summary{N: len(rtts), Lost: lost}
	s.MedianWithLoss, _ = QuantileWithLoss(rtts, lost, 0.5)
	s.P90WithLoss, _ = QuantileWithLoss(rtts, lost, 0.9)
	if s.N == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(rtts))
	x := spanOf(sorted)
	s.Min, s.Max = x.base, x.top
	s.P10, s.Median, s.P90, s.P99 = x.quantile(0.1), x.quantile(0.5), x.quantile(0.9), x.quantile(0.99)
	s.HasP99 = s.N >= MinSamples(0.99)
	mean, _ := stats.Mean(x.d)
	s.Mean = x.above(mean)
	return s
}

// OK reports whether there was any reply, that is, whether the times are valid.
func (s Summary) OK() bool { return s.N > 0 }

// Few reports whether there were replies, but fewer than FewSamples.
func (s Summary) Few() bool { return s.N > 0 && s.N < FewSamples }

// Loss returns the lost share of the decided probes, 0..1, or false where none was decided.
func (s Summary) Loss() (float64, bool) {
	if s.N+s.Lost == 0 {
		return 0, false
	}
	return float64(s.Lost) / float64(s.N+s.Lost), true
}

// LadderQuantiles are the quantiles that describe a whole distribution.
func LadderQuantiles() []float64 {
	return []float64{0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999, 1}
}

// Rung is one step of a ladder of quantiles.
type Rung struct {
	Q     float64
	Value time.Duration // valid with OK
	OK    bool          // false with fewer than MinSamples(Q) samples
}

// Ladder returns the quantiles of x at LadderQuantiles, those without enough samples marked as absent; nil without samples.
func Ladder(x []time.Duration) []Rung {
	if len(x) == 0 {
		return nil
	}
	s := spanOf(slices.Sorted(slices.Values(x)))
	var out []Rung
	for _, q := range LadderQuantiles() {
		r := Rung{Q: q, OK: len(x) >= MinSamples(q)}
		if r.OK {
			r.Value = s.quantile(q)
		}
		out = append(out, r)
	}
	return out
}

// MeanStdDev returns the mean of x weighted by w and the standard deviation of x about its own mean (the population's, divisor n), both 0
// for an empty x. The weights must be positive, one for each value.
func MeanStdDev(x, w []float64) (mean, sd float64) {
	if len(x) == 0 {
		return 0, 0
	}
	var sum, weight float64
	for i, v := range x {
		sum += v * w[i]
		weight += w[i]
	}
	sd, _ = stats.StandardDeviationPopulation(x)
	return sum / weight, sd
}

// Jain returns Jain's fairness index (sum x)^2 / (n sum x^2) of non-negative shares: 1 where all are equal, 1/n where one has everything. It is
// false where x is empty or all zero.
func Jain(x []float64) (float64, bool) {
	var sum, squares float64
	for _, v := range x {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 0, false
	}
	return sum * sum / (float64(len(x)) * squares), true
}
