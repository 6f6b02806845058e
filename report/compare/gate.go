package compare

import (
	"fmt"
	"slices"

	"bufferbloat"
	"bufferbloat/report"
)

// gates are the findings, beside those that void by their severity, with which a run or a phase does not count: the figures are then of
// something else than the link, or of a part of it.
var gates = []string{"stopped", "cpu_client", "cpu_server", "probes_late", "baseline_moved", "streams_missing", "competing_traffic"}

// runsOf returns the runs with their figures, and which of them do not count, by rule and not by eye.
func runsOf(results []*report.Result) []Run {
	runs := make([]Run, len(results))
	for i, r := range results {
		run := &runs[i]
		*run = Run{Name: r.File, PhaseVoid: map[string]string{}, result: r, figures: figuresOf(r)}
		if run.Name == "" {
			run.Name = fmt.Sprintf("run %d", i+1)
		}
		run.gate()
		if run.Void != "" {
			continue
		}
		for j := range runs[:i] {
			first := &runs[j]
			if first.Void != "" || !same(first, run) {
				continue
			}
			run.Void = "the same run as " + first.Name + ": it says nothing new"
			if r.Started.IsZero() || !r.Started.Equal(first.result.Started) {
				run.Void = "identical in every figure to " + first.Name + ": they count as one"
				first.twins = append(first.twins, run.Name)
				run.twin = true
			}
		}
	}
	return runs
}

// gate says whether the run, or a phase of it, counts.
func (run *Run) gate() {
	r := run.result
	if cause := r.Cause(); cause != "" {
		run.Void = "nothing was measured: " + cause
		return
	}
	for _, f := range r.Findings {
		if f.Severity != bufferbloat.Voids && !slices.Contains(gates, f.Code) {
			continue
		}
		switch {
		case f.Phase != "":
			if run.PhaseVoid[f.Phase] == "" {
				run.PhaseVoid[f.Phase] = f.Text
			}
		case run.Void == "":
			run.Void = f.Text
		}
	}
	switch {
	case run.Void != "":
	case r.Stopped != "":
		run.Void = r.Stopped
	case r.Truncated:
		run.Void = "the recording was cut off"
	}
}

// same reports whether two runs are one, read twice or drawn twice in virtual time: every figure is the same. The start says nothing of that: an
// emulated link draws the same run with another start and another seed, and a text has no start.
func same(a, b *Run) bool {
	if len(a.figures) != len(b.figures) {
		return false
	}
	counted := 0
	for i, f := range a.figures {
		g := b.figures[i]
		if f.Name != g.Name || f.why != g.why || f.value != g.value {
			return false
		}
		if f.why == "" {
			counted++
		}
	}
	return counted > 0
}

// sameProbe takes the delays and losses of runs out that were measured by another kind of probe than the first run that counts: a TCP handshake
// and an echo request do not take the same way through hosts and queues.
func (c *Comparison) sameProbe() {
	want := ""
	for _, side := range [][]Run{c.Old, c.New} {
		for i := range side {
			for j := range side[i].figures {
				f := &side[i].figures[j]
				if side[i].Void != "" || f.probe == "" || f.why != "" {
					continue
				}
				if want == "" {
					want = f.probe
				}
				if f.probe != want {
					f.why = fmt.Sprintf("probed by %s, not by %s as the first run", f.probe, want)
				}
			}
		}
	}
}
