// Package grade computes published schemes of grades from a result, each with its exact thresholds, its input and its source.
//
// A scheme is data: thresholds and a name for what they are applied to. None of them is a verdict of this program. They differ on the same run, and are
// shown side by side with the figures that they are made of; where a scheme wants what was not measured, it has no grade and says why.
package grade

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report"
)

// A Scheme is one published way of grading.
type Scheme struct {
	Name      string
	Version   string
	Source    string
	Statistic string // what the thresholds are applied to, in words
	Rule      Rule
}

// A Rule grades figures.
type Rule interface {
	// grade fills in the grade's value, cuts and inputs, or the reason why there is none.
	grade(f *figures, g *report.Grade)
}

// Combine says how the increases of several directions become one.
type Combine string

// The ways of combining.
const (
	MeanOfDirections Combine = "mean of directions" // of download and upload, each by itself; there is none without both
	WorstDirection   Combine = "worst direction"
	EachDirection    Combine = "each direction" // a grade for each
)

// Statistic says which figure of the delay under load and idle is subtracted.
type Statistic string

// The statistics.
const (
	Means       Statistic = "mean - mean"
	MeanOverP25 Statistic = "mean - p25"
	Medians     Statistic = "median - median"
)

// Letters are limits in milliseconds, from A+ to D; what is beyond the last is F.
type Letters struct {
	Limits    [5]float64
	Inclusive bool // a value at a limit still has the better grade
	LastIn    bool // a value at the last limit still has a D
	Combine   Combine
	Statistic Statistic
}

// letterNames are the grades, best first.
func letterNames() []string { return []string{"A+", "A", "B", "C", "D", "F"} }

// letter returns the index of the grade of v.
func (l *Letters) letter(v float64) int {
	for i, limit := range l.Limits {
		if v < limit || (l.Inclusive || l.LastIn && i == len(l.Limits)-1) && v == limit {
			return i
		}
	}
	return len(l.Limits)
}

func (l *Letters) cuts() string {
	sign := "<"
	if l.Inclusive {
		sign = "<="
	}
	var out []string
	for i, limit := range l.Limits {
		if l.LastIn && i == len(l.Limits)-1 {
			sign = "<="
		}
		out = append(out, fmt.Sprintf("%s %s %s", letterNames()[i], sign, plain(limit)))
	}
	return strings.Join(out, ", ") + ", F beyond; ms"
}

func (l *Letters) grade(f *figures, g *report.Grade) {
	g.Cuts = l.cuts()
	increases, why := f.increases(l.Statistic)
	for _, x := range increases {
		g.Inputs = append(g.Inputs, report.GradeInput{Name: x.phase + " increase", Unit: "ms", Value: x.ms, OK: x.ok})
	}
	if g.Why = why; why != "" {
		return
	}
	switch l.Combine {
	case EachDirection:
		var out []string
		for _, x := range increases {
			out = append(out, x.phase+" "+letterNames()[l.letter(x.ms)])
		}
		g.Value = strings.Join(out, ", ")
	case WorstDirection:
		g.Value = letterNames()[l.letter(worst(increases))]
	default:
		mean, ok := meanOfDirections(increases)
		if !ok {
			g.Why = "it takes a download and an upload, each by itself"
			return
		}
		g.Value = letterNames()[l.letter(mean)]
	}
}

// worst is the highest of the increases, of which there is one at least.
func worst(increases []increase) float64 {
	w := increases[0].ms
	for _, x := range increases {
		w = max(w, x.ms)
	}
	return w
}

// meanOfDirections is the mean of the first download's and the first upload's increase.
func meanOfDirections(increases []increase) (float64, bool) {
	var sum float64
	seen := map[string]bool{}
	for _, x := range increases {
		if x.kind != "both" && !seen[x.kind] {
			seen[x.kind] = true
			sum += x.ms
		}
	}
	return sum / 2, len(seen) == 2
}

// Total is LibreQoS's overall grade: the worse of the idle grade and the mean grade of the increases, as numbers from 6 (A+) to 1 (F).
type Total struct {
	Idle  [5]float64 // limits of the 25th percentile of the idle delay, ms
	Bloat Letters
}

// libreCuts are the numbers from which on a letter is given.
func libreCuts() [5]float64 { return [5]float64{5.5, 4.5, 3.5, 2.5, 1.5} }

func (t *Total) grade(f *figures, g *report.Grade) {
	idle := Letters{Limits: t.Idle}
	g.Cuts = "idle " + idle.cuts() + "; increase " + t.Bloat.cuts() + "; A+ = 6 to F = 1, the lower of idle and mean increase, cut at 5.5, 4.5, 3.5, 2.5, 1.5"
	base, ok := f.quantile(f.idle, 0.25)
	g.Inputs = append(g.Inputs, report.GradeInput{Name: "idle p25", Unit: "ms", Value: base, OK: ok})
	increases, why := f.increases(t.Bloat.Statistic)
	seen := map[string]bool{}
	var sum float64
	for _, x := range increases {
		g.Inputs = append(g.Inputs, report.GradeInput{Name: x.phase + " increase", Unit: "ms", Value: x.ms, OK: x.ok})
		seen[x.kind] = true
		sum += float64(6 - t.Bloat.letter(x.ms))
	}
	switch {
	case why != "":
		g.Why = why
	case !ok:
		g.Why = "the 25th percentile of the idle delay is not known"
	case !seen["download"] || !seen["upload"] || !seen["both"]:
		g.Why = "it takes a download, an upload and both at once"
	default:
		score := min(float64(6-idle.letter(base)), sum/float64(len(increases)))
		i := 0
		for cuts := libreCuts(); i < len(cuts) && score < cuts[i]; {
			i++
		}
		g.Value = letterNames()[i]
	}
}

// Points are Cloudflare's AIM points for one use, of the sums of several figures' points.
type Points struct {
	Use    string // "gaming", "rtc", "streaming"
	Jitter bool   // idle jitter counts
	Rate   bool   // download rate counts
	Cuts   [4]float64
}

// step gives points to values below a limit.
type step struct {
	below  float64
	points int
}

// The tables of AIM. The last step has no limit.
func delaySteps() []step {
	return []step{{10, 20}, {20, 10}, {50, 5}, {100, 0}, {500, -10}, {math.Inf(1), -20}}
}
func jitterSteps() []step {
	return []step{{10, 10}, {20, 5}, {100, 0}, {500, -10}, {math.Inf(1), -20}}
}
func lossSteps() []step {
	return []step{{1, 10}, {5, 5}, {25, 0}, {50, -10}, {math.Inf(1), -20}}
}
func rateSteps() []step { return []step{{1, 0}, {10, 5}, {50, 10}, {100, 20}, {math.Inf(1), 30}} }

func pointsOf(steps []step, v float64) int {
	for _, s := range steps {
		if v < s.below {
			return s.points
		}
	}
	return steps[len(steps)-1].points
}

// aimNames are AIM's words for the sums, from below the first cut on.
func aimNames() []string { return []string{"bad", "poor", "average", "good", "great"} }

func (p *Points) grade(f *figures, g *report.Grade) {
	g.Cuts = fmt.Sprintf("bad below %s, poor below %s, average below %s, good below %s points, great from there on", plain(p.Cuts[0]), plain(p.Cuts[1]),
		plain(p.Cuts[2]), plain(p.Cuts[3]))
	var missing []string
	sum := 0
	add := func(name, unit string, v float64, ok bool, steps []step, why string) {
		if !ok {
			missing = append(missing, why)
			g.Inputs = append(g.Inputs, report.GradeInput{Name: name, Unit: unit})
			return
		}
		n := pointsOf(steps, v)
		sum += n
		g.Inputs = append(g.Inputs, report.GradeInput{Name: fmt.Sprintf("%s (%d points)", name, n), Unit: unit, Value: v, OK: true})
	}
	idle, ok := f.median(f.idle)
	add("idle latency", "ms", idle, ok, delaySteps(), "there is no idle delay")
	increases, why := f.increases(Medians)
	rise := 0.0
	if why == "" {
		rise = max(0, worst(increases))
	}
	add("increase", "ms", rise, why == "", delaySteps(), why)
	loss, ok := f.loss()
	add("loss", "%", loss*100, ok, lossSteps(), "the loss is not known")
	if p.Jitter {
		// AIM's is the mean difference of neighbouring idle round trips; a result keeps no sample.
		add("idle jitter", "ms", 0, false, jitterSteps(), "it takes the mean difference of neighbouring idle round trips, which a result does not keep")
	}
	if p.Rate {
		rate, ok := f.rate(load.Download)
		add("download", "Mbit/s", rate, ok, rateSteps(), "there is no download rate")
	}
	if len(missing) > 0 {
		g.Why = strings.Join(slices.Compact(missing), "; ")
		return
	}
	i := 0
	for i < len(p.Cuts) && float64(sum) >= p.Cuts[i] {
		i++
	}
	g.Value = fmt.Sprintf("%s, %d points", aimNames()[i], sum)
}

// Increase is AIM's points for the increase alone.
type Increase struct{}

func (Increase) grade(f *figures, g *report.Grade) {
	g.Cuts = "< 10 20, < 20 10, < 50 5, < 100 0, < 500 -10, else -20; ms, points"
	increases, why := f.increases(Medians)
	for _, x := range increases {
		g.Inputs = append(g.Inputs, report.GradeInput{Name: x.phase + " increase", Unit: "ms", Value: x.ms, OK: x.ok})
	}
	if g.Why = why; why == "" {
		g.Value = fmt.Sprintf("%d of 20 points", pointsOf(delaySteps(), max(0, worst(increases))))
	}
}

// Outcome is a quality of outcome: for each of several percentiles, where between perfect and useless it lies; the worst of them is the score.
type Outcome struct{ Needs []Need }

// Need is what an application needs of one quantile of the delay, in ms.
type Need struct{ Q, Perfect, Useless float64 }

func (o *Outcome) grade(f *figures, g *report.Grade) {
	var cuts []string
	for _, n := range o.Needs {
		cuts = append(cuts, fmt.Sprintf("p%s %s to %s", plain(n.Q*100), plain(n.Perfect), plain(n.Useless)))
	}
	g.Cuts = strings.Join(cuts, ", ") + " ms (perfect to useless); the lowest share, 0 to 100"
	score := 100.0
	for _, l := range f.loaded {
		for _, n := range o.Needs {
			v, ok := f.quantile(l.latency, n.Q)
			g.Inputs = append(g.Inputs, report.GradeInput{Name: fmt.Sprintf("%s p%s", l.phase, plain(n.Q*100)), Unit: "ms", Value: v, OK: ok})
			if !ok {
				g.Why = fmt.Sprintf("there are not enough samples for the %sth percentile of %s", plain(n.Q*100), l.phase)
				continue
			}
			score = min(score, max(0, 100*(n.Useless-v)/(n.Useless-n.Perfect)))
		}
	}
	if len(f.loaded) == 0 {
		g.Why = "there is no delay under load"
	}
	if g.Why == "" {
		g.Value = fmt.Sprintf("%.0f of 100", score)
	}
}

// figures are the inputs of all schemes.
type figures struct {
	void   string // why nothing is graded, "" where something is
	idle   *report.Latency
	loaded []loaded
	result *report.Result
}

type loaded struct {
	phase   string
	kind    string // "download", "upload", "both"
	latency *report.Latency
	ok      bool
	why     string
}

type increase struct {
	phase, kind string
	ms          float64
	ok          bool
}

// All computes every scheme of Schemes, in their order.
func All(r *report.Result) []report.Grade {
	var out []report.Grade
	for _, s := range Schemes() {
		out = append(out, s.Of(r))
	}
	return out
}

// Of computes the scheme's grade of a result.
func (s *Scheme) Of(r *report.Result) report.Grade {
	g := report.Grade{Scheme: s.Name, Version: s.Version, Source: s.Source, Statistic: s.Statistic}
	f := newFigures(r)
	s.Rule.grade(f, &g)
	if f.void != "" {
		g.Why = f.void
	}
	if g.Why != "" {
		g.Value = ""
	}
	return g
}

func newFigures(r *report.Result) *figures {
	f := &figures{result: r}
	if r.Void() {
		f.void = "the result is void"
	}
	for i := range r.Phases {
		p := &r.Phases[i]
		l := p.Primary()
		switch p.Kind {
		case bufferbloat.Idle:
			if f.idle == nil && l != nil && l.OK() {
				f.idle = l
			}
		case bufferbloat.Load:
			x := loaded{phase: p.Name, kind: kind(p), latency: l, ok: true}
			switch {
			case !p.UnderLoad:
				x.ok, x.why = false, "there was no load in "+p.Name
			case l == nil || !l.OK():
				x.ok, x.why = false, "there is no delay under "+p.Name
			case l.Few():
				x.ok, x.why = false, "there are too few samples in "+p.Name
			}
			f.loaded = append(f.loaded, x)
		}
	}
	if f.idle != nil && f.idle.Few() {
		f.idle = nil
	}
	return f
}

func kind(p *report.Phase) string {
	var down, up bool
	for _, g := range p.Goodput {
		down, up = down || g.Direction == load.Download, up || g.Direction == load.Upload
	}
	switch {
	case down && up:
		return "both"
	case up:
		return "upload"
	}
	return "download"
}

func inMS(d time.Duration) float64 { return float64(d) / 1e6 }

// increases are the increases of all load phases by one statistic, or why not all of them are known.
func (f *figures) increases(s Statistic) ([]increase, string) {
	if f.idle == nil {
		return nil, "there is no idle baseline with enough samples"
	}
	if len(f.loaded) == 0 {
		return nil, "there is no delay under load"
	}
	base, ok := inMS(f.idle.Median), f.idle.Has(report.Median)
	switch s {
	case Means:
		base, ok = inMS(f.idle.Mean), f.idle.Has(report.Mean)
	case MeanOverP25:
		base, ok = f.quantile(f.idle, 0.25)
	}
	if !ok {
		return nil, "the idle figure that it takes is not known"
	}
	var out []increase
	why := ""
	for _, l := range f.loaded {
		x := increase{phase: l.phase, kind: l.kind}
		switch {
		case !l.ok:
			why = l.why
		case s == Medians && l.latency.Has(report.Median):
			x.ms, x.ok = inMS(l.latency.Median)-base, true
		case s != Medians && l.latency.Has(report.Mean):
			x.ms, x.ok = inMS(l.latency.Mean)-base, true
		default:
			why = "the figure that it takes is not known in " + l.phase
		}
		out = append(out, x)
	}
	return out, why
}

// quantile is a quantile of the ladder, in ms.
func (f *figures) quantile(l *report.Latency, q float64) (float64, bool) {
	if l == nil {
		return 0, false
	}
	if q == 0.5 {
		return f.median(l)
	}
	for _, r := range l.Ladder {
		if r.Q == q {
			return inMS(r.Value), r.OK
		}
	}
	return 0, false
}

func (f *figures) median(l *report.Latency) (float64, bool) {
	if l == nil || !l.Has(report.Median) {
		return 0, false
	}
	return inMS(l.Median), true
}

// loss is the worst of the idle and load phases, 0..1.
func (f *figures) loss() (highest float64, ok bool) {
	all := []*report.Latency{f.idle}
	for _, l := range f.loaded {
		all = append(all, l.latency)
	}
	for _, l := range all {
		if l == nil {
			return 0, false
		}
		v, known := l.Loss()
		if !known {
			return 0, false
		}
		highest = max(highest, v)
	}
	return highest, true
}

// rate is the goodput of the first phase that has one in the direction, in Mbit/s.
func (f *figures) rate(d load.Direction) (float64, bool) {
	for i := range f.result.Phases {
		for _, g := range f.result.Phases[i].Goodput {
			if g.Direction == d && g.OK && !g.CutShort() {
				return g.Rate.Mbps(), true
			}
		}
	}
	return 0, false
}

// plain prints a threshold with the digits that it has.
func plain(v float64) string { return strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64) }
