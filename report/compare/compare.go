// Package compare says how two sets of runs differ, how certain that is, and whether a figure misses a threshold.
//
// The unit of replication is the run: probes within a run share a queue, a server and a minute, and say nothing of the next run. A difference
// counts where it is certain and large enough to matter, both; docs/compare.md has the rules for readers.
package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"bufferbloat/report"
	"bufferbloat/report/stat"
)

// Alpha is the risk of a false verdict among all metrics that are judged together.
const Alpha = 1 - stat.Level

// How many margins a difference must exceed where there are too few runs for an interval between runs: what runs differ by without a cause is not
// known then, so that more is asked for. docs/statistics.md has what that costs and spares.
const (
	SmallSets  = 2
	SingleRuns = 4 // where a side has one run
)

// Verdict is what a comparison comes to.
type Verdict string

// The verdicts.
const (
	Regression   Verdict = "regression"   // worse by more than the margin, with certainty
	Improvement  Verdict = "improvement"  // better by more than the margin, with certainty
	Equivalent   Verdict = "equivalent"   // different by less than the margin, with certainty
	Inconclusive Verdict = "inconclusive" // none of them can be said
	Invalid      Verdict = "invalid"      // there is nothing to compare
	NotJudged    Verdict = "not judged"   // shown for information
)

// Margins are the differences that do not matter. The zero value is the default.
type Margins struct {
	// A delay may differ by the larger of DelayTime and DelayShare of the old one; both 0 mean 2 ms and 0.1.
	DelayTime  time.Duration
	DelayShare float64
	RateShare  float64 // of the old rate; 0 means 0.05
	Points     float64 // difference of two shares, losses for one; 0 means 0.02
}

func (m Margins) withDefaults() Margins {
	if m.DelayTime == 0 && m.DelayShare == 0 {
		m.DelayTime, m.DelayShare = 2*time.Millisecond, 0.1
	}
	if m.RateShare == 0 {
		m.RateShare = 0.05
	}
	if m.Points == 0 {
		m.Points = 0.02
	}
	return m
}

// of returns the margin of a metric whose old value is about old.
func (m Margins) of(u Unit, old float64) float64 {
	switch u {
	case Delay:
		return max(float64(m.DelayTime), m.DelayShare*math.Abs(old))
	case Rate:
		return m.RateShare * math.Abs(old)
	}
	return m.Points
}

// Options say how to compare. The zero value compares the headline metrics by the default margins.
type Options struct {
	Margins Margins
	// Metrics are judged in place of the headline metrics: whole names, or the ends of names that all phases share ("loaded_rtt.p90").
	Metrics []string
	FailIf  []Condition // thresholds that the new runs must keep
}

// Run is one run of a set.
type Run struct {
	Name string
	Void string // why the run does not count, "" where it does
	// PhaseVoid says for phases why their figures do not count.
	PhaseVoid map[string]string

	result  *report.Result
	figures []figure
	twins   []string // names of the runs that started at another time and are identical in every figure
	twin    bool     // one of the twins of an earlier run
}

// Side is one figure of one set of runs.
type Side struct {
	Value  float64   // median of the runs; valid with Values
	Values []float64 // of each run that counts
	Absent []string  // why further runs have none, a sentence each with the run's name
}

// Interval is an estimate with its interval at stat.Level.
type Interval struct {
	Value       float64
	Low, High   float64 // valid with HasInterval
	HasInterval bool
}

// Basis says what an interval covers.
type Basis string

// The bases.
const (
	BetweenRuns Basis = "between runs" // Hodges-Lehmann over the runs
	WithinRuns  Basis = "within runs"  // the widest of all pairs of runs, from what varies within each; how runs differ is not in it
)

// Missing is how many further runs a verdict takes, as far as can be told.
type Missing struct {
	Old, New int
	Many     bool // more than maxMissing: the runs differ too much from each other
}

const maxMissing = 200

// Figure is one metric of both sets.
type Figure struct {
	Metric
	Judged   bool
	Old, New Side
	Shift    Interval // new - old
	Ratio    Interval // new / old; valid with HasRatio
	HasRatio bool
	Margin   float64 // what the shift may be without mattering
	Basis    Basis   // "" without an interval
	P        float64 // chance of such runs where the true shift is just the margin, corrected for the number of judged metrics; valid with HasP
	HasP     bool
	Verdict  Verdict
	Why      string // a plain sentence on the verdict, "" where the numbers say it all
	Missing  Missing

	p     float64 // not yet corrected
	never bool    // of the headline, and no run of either side could have it: it is not asked
}

// Comparison is what two sets of runs come to.
type Comparison struct {
	Old, New   []Run // Old is empty where only thresholds were asked for
	Margins    Margins
	Figures    []Figure
	Conditions []Judgement
	Notes      []string // what a reader must know beside the figures
}

// Compare compares new runs with old ones. old may be empty where o has conditions. The error says which metric of o no program knows; it is
// the user's.
func Compare(old, new []*report.Result, o Options) (*Comparison, error) {
	for _, name := range o.Metrics {
		if _, ok := kindOf(name); !ok {
			return nil, fmt.Errorf("metric %q: want one of %s, or one of them with a phase before it, as in upload.goodput", name, kindNames())
		}
	}
	c := &Comparison{Old: runsOf(old), New: runsOf(new), Margins: o.Margins.withDefaults()}
	if len(old) > 0 {
		c.sameProbe()
		c.compare(o)
		c.note()
	}
	for _, condition := range o.FailIf {
		c.Conditions = append(c.Conditions, condition.judge(c.New))
	}
	return c, nil
}

// compare fills in the figures.
func (c *Comparison) compare(o Options) {
	judged := 0
	for _, m := range c.metrics() {
		f := Figure{Metric: m, Judged: m.Headline && len(o.Metrics) == 0 || slices.ContainsFunc(o.Metrics, func(asked string) bool { return within(m.Name, asked) })}
		f.never = f.Judged && len(o.Metrics) == 0 && untold(c.Old, m.Name) != "" && untold(c.New, m.Name) != ""
		if f.asked() {
			judged++
		}
		c.Figures = append(c.Figures, f)
	}
	for _, asked := range o.Metrics { // what was asked for and no run has is not passed over
		if !slices.ContainsFunc(c.Figures, func(f Figure) bool { return within(f.Name, asked) }) {
			m, _ := kindOf(asked)
			m.Name = asked
			c.Figures = append(c.Figures, Figure{Metric: m, Judged: true})
			judged++
		}
	}
	pairs := make([]*pair, len(c.Figures))
	for i := range c.Figures {
		f := &c.Figures[i]
		pairs[i] = &pair{old: figures(c.Old, f.Name, &f.Old), new: figures(c.New, f.Name, &f.New)}
		f.estimate(pairs[i], c.Margins, max(judged, 1))
	}
	c.correct()
	for i := range c.Figures {
		f := &c.Figures[i]
		if f.decide(pairs[i], max(judged, 1)); f.never {
			f.Why = "no run on either side could tell: " + untold(c.New, f.Name)
		}
	}
}

// untold says why none of the runs that count could have a figure of that name, whatever the line does; "" where one could, or where none counts.
func untold(runs []Run, name string) (why string) {
	for i := range runs {
		for _, f := range runs[i].figures {
			if runs[i].Void != "" || f.Name != name {
				continue
			}
			if !f.never {
				return ""
			}
			why = cmp.Or(why, f.why)
		}
	}
	return why
}

// asked reports whether a verdict on the figure was asked for, and may be had.
func (f *Figure) asked() bool { return f.Judged && !f.never }

// metrics returns the metrics of all runs, in the order of the first that has them.
func (c *Comparison) metrics() []Metric {
	var out []Metric
	seen := map[string]bool{}
	for _, r := range slices.Concat(c.New, c.Old) {
		for _, f := range r.figures {
			if !seen[f.Name] {
				seen[f.Name] = true
				out = append(out, f.Metric)
			}
		}
	}
	return out
}

// figures returns the figures of one name of the runs that count, and puts them, and what is absent, into side.
func figures(runs []Run, name string, side *Side) []figure {
	var out []figure
	absent := func(r *Run, why string) { side.Absent = append(side.Absent, r.Name+": "+why) }
	for i := range runs {
		r := &runs[i]
		j := slices.IndexFunc(r.figures, func(f figure) bool { return f.Name == name })
		switch {
		case r.Void != "":
			absent(r, "void: "+r.Void)
		case j < 0:
			absent(r, "not part of this run")
		case r.PhaseVoid[r.figures[j].phase] != "":
			absent(r, "void: "+r.PhaseVoid[r.figures[j].phase])
		case r.figures[j].why != "":
			absent(r, r.figures[j].why)
		default:
			out = append(out, r.figures[j])
			side.Values = append(side.Values, r.figures[j].value)
		}
	}
	side.Value = stat.Median(side.Values)
	return out
}

// correct corrects the chances for the number of metrics that are judged (Holm).
func (c *Comparison) correct() {
	var p []float64
	for _, f := range c.Figures {
		if f.Judged && f.HasP {
			p = append(p, f.p)
		}
	}
	// Metrics without a chance count in the number all the same: they were asked too.
	for _, f := range c.Figures {
		if f.asked() && !f.HasP {
			p = append(p, 1)
		}
	}
	corrected := stat.Holm(p)
	k := 0
	for i := range c.Figures {
		f := &c.Figures[i]
		if f.Judged && f.HasP {
			f.P = corrected[k]
			k++
		}
	}
}

// note says where the runs are not of one kind, and where those of the two sides are not two.
func (c *Comparison) note() {
	c.noteShared()
	differ := func(what string, of func(r *report.Result) string) {
		seen := map[string]bool{}
		var list []string
		for _, r := range slices.Concat(c.Old, c.New) {
			if r.Void == "" && r.result.Source == nil && !seen[of(r.result)] {
				seen[of(r.result)] = true
				list = append(list, of(r.result))
			}
		}
		if len(list) > 1 {
			c.Notes = append(c.Notes, "the runs differ in "+what+": "+strings.Join(list, "; "))
		}
	}
	differ("their server", func(r *report.Result) string { return r.Path.Host })
	differ("the address family", func(r *report.Result) string { return r.Path.Family })
	differ("their plan", planText)
	differ("the host that measured", func(r *report.Result) string { return strings.TrimSpace(r.Client.OS + " " + r.Client.Kernel) })
}

// noteShared says which runs are on both sides: that these are equal says nothing.
func (c *Comparison) noteShared() {
	shared, started := 0, true
	var list []string
	for i := range c.Old {
		for j := range c.New {
			a, b := &c.Old[i], &c.New[j]
			if a.Void == "" && b.Void == "" && same(a, b) {
				shared++
				started = started && a.result.Started.Equal(b.result.Started)
				list = append(list, a.Name+" and new "+b.Name)
			}
		}
	}
	old, now := used(c.Old), used(c.New)
	switch {
	case shared == 0:
	case shared == old && shared == now && shared == 1 && started:
		c.Notes = append(c.Notes, "both sides are the same run: that they are equal says nothing")
	case shared == old && shared == now && shared == 1:
		c.Notes = append(c.Notes, "both sides are identical in every figure, as one run is with itself: that they are equal says nothing")
	case shared == old && shared == now:
		c.Notes = append(c.Notes, fmt.Sprintf("both sides are the same %d runs: that they are equal says nothing", shared))
	default:
		c.Notes = append(c.Notes, "runs of both sides are identical in every figure: old "+strings.Join(list, "; old "))
	}
}

// planText is what of a plan bears on its figures.
func planText(r *report.Result) string {
	var parts []string
	for _, p := range r.Plan.Phases {
		text := fmt.Sprintf("%s %v", p.Name, p.Length)
		if len(p.Flows) > 0 {
			text += fmt.Sprintf(" with %d flows", len(p.Flows))
		}
		parts = append(parts, text)
	}
	for _, p := range r.Plan.Probes {
		parts = append(parts, fmt.Sprintf("%s each %v", p.Name, p.Interval))
	}
	return strings.Join(parts, ", ")
}

// Verdict is the worst that a judged metric or a threshold comes to: a regression or a missed threshold, then what is invalid or cannot be
// judged, then what is inconclusive; otherwise an improvement where there is one.
func (c *Comparison) Verdict() Verdict {
	worst := Equivalent
	rank := map[Verdict]int{Equivalent: 0, Improvement: 1, Inconclusive: 2, Invalid: 3, Regression: 4}
	see := func(v Verdict) {
		if rank[v] > rank[worst] {
			worst = v
		}
	}
	judged := 0
	for _, f := range c.Figures {
		if f.asked() {
			judged++
			see(f.Verdict)
		}
	}
	for _, j := range c.Conditions {
		switch j.State {
		case Missed:
			see(Regression)
		case CannotJudge:
			see(Invalid)
		}
	}
	if judged == 0 && len(c.Conditions) == 0 {
		return Invalid
	}
	return worst
}

// Status is the exit status that the comparison calls for: 0 nothing is worse, 3 regression or threshold missed, 4 invalid, 5 inconclusive.
func (c *Comparison) Status() int {
	switch c.Verdict() {
	case Regression:
		return 3
	case Invalid:
		return 4
	case Inconclusive:
		return 5
	}
	return 0
}
