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

// Delays is a series of round-trip times in the order in which they were taken, and the same in order of size, for all that is computed from one
// series: sorting costs more than the rest. A slice that was sorted for it may serve again for the next: see Sort.
type Delays struct {
	x, sorted []time.Duration
}

// Sort returns the delays of a series. It keeps x, and in sorted, which it overwrites and extends as needed, a sorted copy.
func Sort(x, sorted []time.Duration) Delays {
	sorted = append(sorted[:0], x...)
	slices.Sort(sorted)
	return Delays{x, sorted}
}

// Sorted returns the series in order of size.
func (d Delays) Sorted() []time.Duration { return d.sorted }

// Summarize describes replies with the round-trip times rtts and lost losses. rtts is not modified.
func Summarize(rtts []time.Duration, lost int) Summary { return Sort(rtts, nil).Summarize(lost) }

// Summarize describes the series as replies, with lost losses beside them.
func (d Delays) Summarize(lost int) Summary {
	s := Summary{N: len(d.x), Lost: lost}
	s.MedianWithLoss, _ = withLoss(d.sorted, lost, 0.5)
	s.P90WithLoss, _ = withLoss(d.sorted, lost, 0.9)
	if s.N == 0 {
		return s
	}
	x := sortedSpan(d.sorted)
	s.Min, s.Max = x.base, x.top
	s.P10, s.Median, s.P90, s.P99 = x.quantile(0.1), x.quantile(0.5), x.quantile(0.9), x.quantile(0.99)
	s.HasP99 = s.N >= MinSamples(0.99)
	s.Mean = x.above(x.mean())
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
func Ladder(x []time.Duration) []Rung { return Sort(x, nil).Ladder() }

// Ladder returns what the function of that name does.
func (d Delays) Ladder() []Rung {
	if len(d.x) == 0 {
		return nil
	}
	s := sortedSpan(d.sorted)
	var out []Rung
	for _, q := range LadderQuantiles() {
		r := Rung{Q: q, OK: len(d.x) >= MinSamples(q)}
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
