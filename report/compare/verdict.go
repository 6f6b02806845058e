package compare

import (
	"fmt"
	"math"

	"bufferbloat/report/stat"
)

// OneRunEach marks what rests on one run on either side.
const OneRunEach = "one run each"

// pair is the figures of one metric of both sets, of the runs that count.
type pair struct{ old, new []figure }

// reachable reports whether so many runs can come to a verdict between runs at all, among so many judged metrics.
func reachable(old, new, judged int) bool {
	return stat.SmallestP(old, new)*float64(judged) <= Alpha+1e-12
}

// estimate computes the shift, its interval, and the chance of the runs if the shift were just the margin.
func (f *Figure) estimate(p *pair, m Margins, judged int) {
	if len(p.old) == 0 || len(p.new) == 0 {
		return
	}
	f.Margin = m.of(f.Unit, f.Old.Value)
	shift, _ := stat.HodgesLehmann(f.Old.Values, f.New.Values) // figures are finite, and there is one on either side
	f.Shift = Interval{shift.Value, shift.Low, shift.High, shift.HasInterval}
	if ratio, ok, _ := stat.RatioShift(f.Old.Values, f.New.Values); ok {
		f.Ratio, f.HasRatio = Interval{ratio.Value, ratio.Low, ratio.High, ratio.HasInterval}, true
	}
	f.Basis = BetweenRuns
	switch {
	case !shift.HasInterval:
		f.Basis = ""
		if low, high, ok := p.envelope(); ok {
			f.Basis = WithinRuns
			f.Shift.Low, f.Shift.High, f.Shift.HasInterval = min(low, shift.Value), max(high, shift.Value), true
		}
		if f.HasRatio {
			f.Ratio.Low, f.Ratio.High, f.Ratio.HasInterval = p.ratioEnvelope(f.Ratio.Value)
		}
	case f.Judged && reachable(len(p.old), len(p.new), judged):
		f.p, f.HasP = f.chance(), true
	}
}

// chance returns the two-sided chance that runs lie so far beyond the margin, on their side of it, where the true shift is just the margin.
func (f *Figure) chance() float64 {
	moved := func(by float64) []float64 {
		out := make([]float64, len(f.Old.Values))
		for i, v := range f.Old.Values {
			out[i] = v + by
		}
		return out
	}
	above, _ := stat.MannWhitney(f.New.Values, moved(f.Margin))
	below, _ := stat.MannWhitney(f.New.Values, moved(-f.Margin))
	return min(2*min(above.Greater, below.Less), 1)
}

// envelope returns the widest ends of the differences of all pairs of runs, each from the intervals within the two; false where a run has none.
func (p *pair) envelope() (low, high float64, ok bool) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, a := range p.old {
		for _, b := range p.new {
			if !a.interval || !b.interval {
				return 0, 0, false
			}
			l, h := stat.DifferenceInterval(a.value, a.low, a.high, b.value, b.low, b.high)
			low, high = min(low, l), max(high, h)
		}
	}
	return low, high, true
}

// ratioEnvelope is envelope for new / old.
func (p *pair) ratioEnvelope(value float64) (low, high float64, ok bool) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, a := range p.old {
		for _, b := range p.new {
			if !a.interval || !b.interval || a.low <= 0 || b.low <= 0 {
				return 0, 0, false
			}
			l, h := stat.DifferenceInterval(math.Log(a.value), math.Log(a.low), math.Log(a.high), math.Log(b.value), math.Log(b.low), math.Log(b.high))
			low, high = min(low, l), max(high, h)
		}
	}
	return min(math.Exp(low), value), max(math.Exp(high), value), true
}

// beyond returns the verdict of an interval that lies wholly beyond a margin, "" where it does not.
func (f *Figure) beyond(low, high, margin float64) Verdict {
	up, down := low > margin, high < -margin
	switch {
	case !up && !down:
		return ""
	case up == f.HigherIsBetter:
		return Improvement
	}
	return Regression
}

// decide turns the numbers into a verdict. The P of all judged metrics must have been corrected.
func (f *Figure) decide(p *pair, judged int) {
	switch {
	case f.never:
		f.Verdict = NotJudged
	case len(p.old) == 0 || len(p.new) == 0:
		f.Verdict, f.Why = Invalid, f.nothing(p)
	case f.HasP && f.P <= Alpha+1e-12 && f.beyond(f.Shift.Low, f.Shift.High, f.Margin) != "":
		f.Verdict = f.beyond(f.Shift.Low, f.Shift.High, f.Margin)
	case f.Shift.HasInterval && -f.Margin <= f.Shift.Low && f.Shift.High <= f.Margin:
		f.Verdict = Equivalent
	case f.HasP:
		f.Verdict = Inconclusive
		f.lack(p)
	default:
		f.small(p, judged)
	}
	if !f.Judged {
		if f.Verdict != Invalid {
			f.Why = ""
		}
		f.Verdict, f.Missing = NotJudged, Missing{}
	}
}

// small decides where there are too few runs for a chance between runs: every pair of runs must differ by more than SmallSets or
// SingleRuns margins, whatever varies within the two.
func (f *Figure) small(p *pair, judged int) {
	low, high, ok := p.envelope()
	f.Verdict = Inconclusive
	if ok && p.old[0].bursty && low <= 0 && high >= 0 {
		// Of a few hundred probes hardly any is lost, so that the interval is wide whatever the line does: it would make every comparison inconclusive.
		f.Verdict, f.Why = NotJudged, p.few()+": no difference is seen, and too few probes were lost to exclude one"
		return
	}
	margins := p.margins()
	if v := f.beyond(low, high, float64(margins)*f.Margin); ok && v != "" {
		if !p.old[0].bursty {
			f.Verdict = v
			f.Why = fmt.Sprintf("%s; every pair of runs differs by more than %d margins", p.few(), margins)
			return
		}
		f.Why = p.few() + "; losses come in bursts, and a burst is not told from a rate"
	}
	f.Missing = Missing{Old: 1, New: 1}
	for k := max(len(p.old), len(p.new)); ; k++ {
		if reachable(max(k, len(p.old)), max(k, len(p.new)), judged) {
			f.Missing = Missing{Old: max(k-len(p.old), 0), New: max(k-len(p.new), 0)}
			return
		}
	}
}

// margins is how many margins every pair of so few runs must differ by.
func (p *pair) margins() int {
	if len(p.old) == 1 || len(p.new) == 1 {
		return SingleRuns
	}
	return SmallSets
}

func (p *pair) few() string {
	if len(p.old) == 1 && len(p.new) == 1 {
		return OneRunEach
	}
	return fmt.Sprintf("%d and %d runs", len(p.old), len(p.new))
}

// lack estimates how many runs it takes for the interval to be clear of the margin on one side or the other: its width falls with the root
// of their number.
func (f *Figure) lack(p *pair) {
	half := (f.Shift.High - f.Shift.Low) / 2
	room := math.Abs(math.Abs(f.Shift.Value) - f.Margin)
	k := float64(min(len(p.old), len(p.new)))
	need := math.Ceil(k * (half / room) * (half / room))
	if math.IsNaN(need) || need-k > maxMissing {
		f.Missing = Missing{Many: true}
		return
	}
	f.Missing = Missing{Old: max(int(need)-len(p.old), 0), New: max(int(need)-len(p.new), 0)}
	if f.Missing == (Missing{}) { // the estimate says that it is enough, the interval says that it is not
		f.Missing = Missing{Old: 1, New: 1}
	}
}

// nothing says why a metric cannot be compared.
func (f *Figure) nothing(p *pair) string {
	side := func(name string, s *Side) string {
		if len(s.Absent) == 0 {
			return "no " + name + " run"
		}
		more := ""
		if n := len(s.Absent) - 1; n > 0 {
			more = fmt.Sprintf(" (and %d more)", n)
		}
		return "no " + name + " run has it: " + s.Absent[0] + more
	}
	switch {
	case len(p.old) == 0 && len(p.new) == 0:
		return side("old", &f.Old) + "; " + side("new", &f.New)
	case len(p.old) == 0:
		return side("old", &f.Old)
	}
	return side("new", &f.New)
}
