package report

import (
	"fmt"
	"math/rand/v2"
	"time"

	"bufferbloat"
	"bufferbloat/report/stat"
)

// Induced is what the load of one phase added to the latency of the primary series: loaded minus idle, of like quantiles. It is
// negative where the loaded delay was below the idle one.
type Induced struct {
	Phase  string
	Series string
	OK     bool
	Why    string // why there is no figure, "" with OK
	Idle   stat.Summary
	Loaded stat.Summary
	Median stat.Estimate // with the interval of the difference
	P90    stat.Estimate
	// NoInterval is why Median and P90 have no interval, "" where they have; Factor has no value then.
	NoInterval string
	// Factor is the loaded median over the idle median.
	Factor stat.Ratio
	// NearResolution says that the idle median is so small that the resolution of the stamps bears on Factor.
	NearResolution bool
	// BaselineMoved says that the idle latency after the load differs from the one before it.
	BaselineMoved bool
}

// baseline returns the first phase of a kind with replies to the primary series, or nil.
func (r *Result) baseline(kind bufferbloat.PhaseKind) *Phase {
	for i := range r.Phases {
		p := &r.Phases[i]
		if p.Kind == kind && p.Primary() != nil && p.Primary().OK() {
			return p
		}
	}
	return nil
}

// moved reports whether two baselines differ by more than 1 ms and a tenth, and by more than their intervals allow.
func moved(a, b *Latency) bool {
	d := (a.Median - b.Median).Abs()
	if !a.Has(Median) || !b.Has(Median) || a.Few() || b.Few() || d <= max(time.Millisecond, min(a.Median, b.Median)/10) {
		return false
	}
	if a.Stated != nil || b.Stated != nil {
		return true // there are no intervals that could excuse it
	}
	return a.MedianRange.High < b.MedianRange.Low || b.MedianRange.High < a.MedianRange.Low
}

// baselineMoved reports whether the idle latency after the load differs from the one before it.
func (r *Result) baselineMoved() bool {
	before, after := r.baseline(bufferbloat.Idle), r.baseline(bufferbloat.After)
	return before != nil && after != nil && moved(before.Primary(), after.Primary())
}

// nearResolution reports whether a delay is so small that the resolution of its stamps matters to a ratio: less than ten times that.
func (r *Result) nearResolution(d time.Duration) bool {
	p := r.primary()
	return p != nil && d < 10*p.Resolution
}

// induce computes the induced latency of each load phase.
func (r *Result) induce(src rand.Source) {
	idle := r.baseline(bufferbloat.Idle)
	for i := range r.Phases {
		p := &r.Phases[i]
		if p.Kind != bufferbloat.Load {
			continue
		}
		d := Induced{Phase: p.Name, BaselineMoved: r.baselineMoved()}
		if l := p.Primary(); l != nil {
			d.Series, d.Loaded = l.Series, l.Summary
		}
		switch {
		case !p.Reached:
			d.Why = "the phase was not reached"
		case !p.UnderLoad:
			d.Why = p.whyNoLoad()
		case !d.Loaded.OK():
			d.Why = "no probe was answered under load"
		case idle == nil:
			d.Why = "there is no idle baseline"
		default:
			d.compute(idle.Primary(), p.Primary(), r.primary().Resolution, src)
			d.NearResolution = r.nearResolution(d.Idle.Median)
		}
		r.Induced = append(r.Induced, d)
	}
}

func (d *Induced) compute(idle, loaded *Latency, resolution time.Duration, src rand.Source) {
	if idle.Stated != nil || loaded.Stated != nil {
		d.computeStated(idle, loaded)
		return
	}
	d.OK = true
	d.Idle = idle.Summary
	d.Median = stat.Difference(loaded.MedianRange, idle.MedianRange, src)
	d.P90 = stat.Difference(loaded.P90Range, idle.P90Range, src)
	d.NoInterval = noInterval(d.Median.N)
	d.Factor = stat.PlainRatio(loaded.MedianRange, idle.MedianRange, resolution, src)
}

// leastForInterval is the number of samples below which there is no interval: one or two say nothing of what others would be.
const leastForInterval = 3

// noInterval says why n samples give no interval, "" where they do.
func noInterval(n int) string {
	if n >= leastForInterval {
		return ""
	}
	return fmt.Sprintf("%s, and an interval takes %d", plural(n, "ping"), leastForInterval)
}

// stopText says why a run ended early, "" where it did not.
func stopText(stopped string, truncated bool) string {
	switch {
	case stopped != "":
		return stopped
	case truncated:
		return "the recording was cut off"
	}
	return ""
}

// stoppedText is stopText with what was reached.
func (r *Result) stoppedText() string {
	why := stopText(r.Stopped, r.Truncated)
	if why == "" {
		return ""
	}
	after := ""
	if r.Length > 0 {
		after = fmt.Sprintf(" after %s of %s", seconds(r.Length), seconds(r.Plan.Length()))
	}
	return why + after
}
