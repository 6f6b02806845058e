package report

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report/stat"
)

// Improved is how much smaller the latency under load is in one run than in another, by two ratios that are both in use and never
// interchangeable. It is of two single runs: the intervals do not cover how runs differ.
type Improved struct {
	Before, After string // what the runs were, for people
	Baseline      stat.Estimate
	HasBaseline   bool
	Phases        []ImprovedPhase
	// Marks are the findings of either run that weaken or void these ratios, with "before" or "after" as the run.
	Marks []string
}

// ImprovedPhase compares one load phase. A and B are the medians under load of the primary series before and after; C is the idle
// median, of both runs together.
type ImprovedPhase struct {
	Phase   string
	OK      bool
	Why     string // why there is no comparison, "" with OK
	Probe   string // the kind of probe, the same in both
	A, B, C stat.Estimate
	Plain   stat.Ratio // A / B
	// Subtracted is (A - C) / (B - C): what the load added before over what it added after.
	Subtracted stat.Ratio
	Goodput    []ImprovedGoodput
}

// ImprovedGoodput is the goodput of both runs in one direction, where both have it.
type ImprovedGoodput struct {
	Direction     load.Direction
	Before, After bitrate.Bitrate
}

// Improvement compares after with before, two runs of the same plan on the same path with another queue. Phases are compared by name.
func Improvement(before, after *Result) *Improved {
	src := rand.NewPCG(seed, 1)
	m := &Improved{Before: before.label(), After: after.label(), Marks: append(before.marks("before"), after.marks("after")...)}
	idle, drift := sharedBaseline(before, after)
	if idle != nil {
		m.Baseline, m.HasBaseline = *idle, true
	}
	for i := range before.Phases {
		a := &before.Phases[i]
		if a.Kind != bufferbloat.Load {
			continue
		}
		j := slices.IndexFunc(after.Phases, func(p Phase) bool { return p.Name == a.Name && p.Kind == a.Kind })
		if j < 0 {
			m.Phases = append(m.Phases, ImprovedPhase{Phase: a.Name, Why: "the run after has no such phase"})
			continue
		}
		p := ImprovedPhase{Phase: a.Name}
		b := &after.Phases[j]
		if p.Why = incomparable(before, after, a, b, idle); p.Why == "" {
			p.compare(a, b, *idle, drift, max(before.primary().Resolution, after.primary().Resolution), src)
		}
		m.Phases = append(m.Phases, p)
	}
	return m
}

// incomparable says why two phases have no ratio, "" where they have.
func incomparable(before, after *Result, a, b *Phase, idle *stat.Estimate) string {
	for _, run := range []struct {
		name string
		r    *Result
		p    *Phase
	}{{"before", before, a}, {"after", after, b}} {
		l := run.p.Primary()
		switch {
		case !run.p.UnderLoad:
			return run.p.whyNoLoad() + " in the run " + run.name
		case l == nil || !l.OK():
			return "no probe was answered under load in the run " + run.name
		case l.Stated != nil:
			return "the run " + run.name + " is a table without samples"
		case run.r.primary().Void:
			return "the probes of the run " + run.name + " were sent too late"
		}
	}
	switch {
	case a.Primary().Kind != b.Primary().Kind:
		return fmt.Sprintf("the probes differ: %s before, %s after", probeKind(a.Primary().Kind), probeKind(b.Primary().Kind))
	case idle == nil:
		return "there is no idle baseline in both runs"
	}
	return ""
}

func (p *ImprovedPhase) compare(a, b *Phase, idle stat.Estimate, drift string, resolution time.Duration, src rand.Source) {
	p.OK = true
	p.Probe = a.Primary().Kind
	p.A, p.B, p.C = a.Primary().MedianRange, b.Primary().MedianRange, idle
	p.Plain = stat.PlainRatio(p.A, p.B, resolution, src)
	if drift != "" {
		p.Subtracted = stat.Ratio{State: stat.Drifted, Why: drift}
	} else {
		p.Subtracted = stat.SubtractedRatio(p.A, p.B, p.C, resolution, src)
	}
	for _, g := range a.Goodput {
		i := slices.IndexFunc(b.Goodput, func(o Goodput) bool { return o.Direction == g.Direction })
		if i >= 0 && g.OK && b.Goodput[i].OK {
			p.Goodput = append(p.Goodput, ImprovedGoodput{g.Direction, g.Rate, b.Goodput[i].Rate})
		}
	}
}

// sharedBaseline returns the idle delay of both runs: the mean of their medians before the load, with an interval that covers all
// baselines of both, those after the load included. drift says that they differ by more than chance. It is nil where a run has no baseline.
func sharedBaseline(before, after *Result) (idle *stat.Estimate, drift string) {
	a, b := before.baseline(bufferbloat.Idle), after.baseline(bufferbloat.Idle)
	if a == nil || b == nil || a.Primary().Stated != nil || b.Primary().Stated != nil {
		return nil, ""
	}
	all := []*Latency{a.Primary(), b.Primary()}
	for _, r := range []*Result{before, after} {
		if p := r.baseline(bufferbloat.After); p != nil {
			all = append(all, p.Primary())
		}
	}
	var estimates []stat.Estimate
	for _, l := range all {
		estimates = append(estimates, l.MedianRange)
		if drift == "" && moved(all[0], l) {
			drift = fmt.Sprintf("the idle median was %s ms once and %s ms at another time: the baseline drifted", ms(all[0].Median), ms(l.Median))
		}
	}
	c := stat.Mix(a.Primary().Median+(b.Primary().Median-a.Primary().Median)/2, estimates...)
	c.N = min(a.Primary().N, b.Primary().N) // the weaker baseline decides whether there are enough samples
	return &c, drift
}

// label names a run for people: its link where it is emulated, else its time.
func (r *Result) label() string {
	if l := r.Path.Lab; l != nil {
		return fmt.Sprintf("%s, %v down, %v up", l.Queue, l.Down, l.Up)
	}
	if r.Started.IsZero() {
		return r.Path.Host
	}
	return r.Path.Host + " at " + r.Started.Format("2006-01-02 15:04:05")
}

func (r *Result) marks(run string) (out []string) {
	for _, f := range r.Findings {
		if f.Severity != bufferbloat.Note {
			out = append(out, run+": "+findingText(f))
		}
	}
	return out
}

// WriteText prints the comparison with the figures that the ratios are made of.
func (m *Improved) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Improvement from %s (before) to %s (after)\n", printable(m.Before), printable(m.After))
	b.WriteString("(a: median RTT under load before, b: the same after, c: idle median of both runs)\n\n")
	if len(m.Phases) == 0 {
		b.WriteString("   - (no load to compare)\n")
	}
	for i := range m.Phases {
		m.Phases[i].write(&b)
	}
	b.WriteString("\n(95% intervals: " + stat.Method + "; one run each, so they do not cover how runs differ)\n")
	for _, s := range m.Marks {
		fmt.Fprintf(&b, "   ! %s\n", s)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (p *ImprovedPhase) write(b *strings.Builder) {
	name := printable(p.Phase)
	if !p.OK {
		fmt.Fprintf(b, "%9s: %s (%s)\n", name, none, printable(p.Why))
		return
	}
	estimate := func(letter string, e stat.Estimate) string {
		if noInterval(e.N) != "" {
			return fmt.Sprintf("%s %s [no interval, n %d]", letter, ms(e.Value), e.N)
		}
		return fmt.Sprintf("%s %s [%s to %s, n %d]", letter, ms(e.Value), ms(e.Low), ms(e.High), e.N)
	}
	fmt.Fprintf(b, "%9s: %s, %s, %s msec, %s\n", name, estimate("a", p.A), estimate("b", p.B), estimate("c", p.C), probeKind(p.Probe))
	fmt.Fprintf(b, "%9s  plain ratio       a / b             %v\n", "", p.Plain)
	fmt.Fprintf(b, "%9s  baseline removed  (a - c) / (b - c) %v\n", "", p.Subtracted)
	for _, g := range p.Goodput {
		fmt.Fprintf(b, "%9s  goodput           %-8v          %s Mbps before, %s Mbps after\n", "", g.Direction, mbps(g.Before), mbps(g.After))
	}
}
