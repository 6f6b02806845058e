package bufferbloat

import (
	"fmt"
	"testing"
	"time"
)

func TestWindow(t *testing.T) {
	s := time.Second
	flow := func(first, stopped time.Duration) Flow {
		return Flow{Phase: "download", Result: FlowResult{Flowed: true, First: first, Stopped: stopped}}
	}
	failed := func(first, stopped time.Duration) Flow {
		f := flow(first, stopped)
		f.Error = "gone"
		return f
	}
	idle := Flow{Phase: "download", Error: "refused"}
	for _, c := range []struct {
		name     string
		flows    []Flow
		from, to time.Duration
		ragged   bool
	}{
		{"from the last to begin to the first to stop", []Flow{flow(1*s, 9*s), flow(2*s, 8*s), flow(1*s, 10*s)}, 2 * s, 8 * s, false},
		{"a flow that failed has no say", []Flow{flow(1*s, 9*s), failed(2*s, 3*s), idle}, 1 * s, 9 * s, false},
		{"all failed", []Flow{failed(1*s, 4*s), failed(2*s, 3*s)}, 2 * s, 3 * s, false},
		{"one begins after another has stopped", []Flow{flow(1*s, 3*s), flow(1*s, 9*s), flow(1*s, 9*s), flow(5*s, 9*s)}, 1 * s, 9 * s, true},
		{"half of them never ran beside the others", []Flow{flow(1*s, 2*s), flow(3*s, 4*s)}, 0, 0, false},
		{"none carried data", []Flow{idle}, 0, 0, false},
		{"another phase's flows", []Flow{{Phase: "upload", Result: FlowResult{Flowed: true, First: s, Stopped: 2 * s}}}, 0, 0, false},
	} {
		r := Recording{Flows: c.flows}
		from, to, ragged := r.window(Phase{Name: "download", Kind: Load, End: 20 * s})
		if from != c.from || to != c.to || ragged != c.ragged {
			t.Errorf("%s: got %v to %v, ragged %v; want %v to %v, %v", c.name, from, to, ragged, c.from, c.to, c.ragged)
		}
	}
}

func TestTheWindowOfStaggeredFlows(t *testing.T) {
	const s = time.Second
	// planned is from and for how long a flow is planned; it carries data from a second after its begin until its end.
	type planned struct{ start, length time.Duration }
	for _, c := range []struct {
		name         string
		length, skip time.Duration
		flows        []planned
		from, to     time.Duration
		none         time.Duration
		apart        bool
	}{
		{"all together", 60 * s, 0, []planned{{0, 0}, {0, 0}}, 11 * s, 70 * s, 0, false},
		{"all together, with a boost to skip", 60 * s, 15 * s, []planned{{0, 0}, {0, 0}}, 25 * s, 70 * s, 0, false},
		{"more to skip than there is", 60 * s, 60 * s, []planned{{0, 0}}, 70 * s, 70 * s, 0, false},
		{"rrul46compete: a few seconds apart", 64 * s, 0, []planned{{0, 60 * s}, {1 * s, 60 * s}, {2 * s, 60 * s}, {4 * s, 60 * s}}, 15 * s, 70 * s, 0, false},
		{"a square wave, of which the middle is the lesser part", 85 * s, 0, []planned{{0, 60 * s}, {5 * s, 60 * s}, {15 * s, 60 * s}, {25 * s, 60 * s}},
			11 * s, 95 * s, 0, true},
		{"short flows beside one", 60 * s, 0, []planned{{0, 60 * s}, {5 * s, 5 * s}, {15 * s, 5 * s}, {25 * s, 5 * s}}, 11 * s, 70 * s, 0, true},
		{"bursts", 30 * s, 0, []planned{{0, 5 * s}, {10 * s, 5 * s}, {20 * s, 10 * s}}, 11 * s, 40 * s, 12 * s, true},
	} {
		ph := PhasePlan{Name: "load", Kind: Load, Length: c.length, Skip: c.skip}
		var r Recording
		for i, f := range c.flows {
			fp := FlowPlan{Name: fmt.Sprint(i), Start: f.start, Length: f.length}
			ph.Flows = append(ph.Flows, fp)
			r.Flows = append(r.Flows, Flow{Name: fp.Name, Phase: "load",
				Result: FlowResult{Flowed: true, First: 10*s + f.start + s, Stopped: 10*s + f.start + fp.lasts(c.length)}})
		}
		r.Plan.Phases = []PhasePlan{{Name: "idle", Kind: Idle, Length: 10 * s}, ph}
		p := Phase{Name: "load", Kind: Load, Start: 10 * s, End: 10*s + c.length}
		from, to, ragged := r.window(p)
		if from != c.from || to != c.to || ragged {
			t.Errorf("%s: got %v to %v, ragged %v; want %v to %v", c.name, from, to, ragged, c.from, c.to)
		}
		if none, apart := r.apart(p); none != c.none || apart != c.apart {
			t.Errorf("%s: none for %v, apart %v; want %v, %v", c.name, none, apart, c.none, c.apart)
		}
	}
}

func TestFlowsOfBytesEndTheWindowOnlyWhereThereAreNoOthers(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name string
		long bool
		to   time.Duration
	}{{"beside a long one", true, 60 * s}, {"alone", false, 5 * s}} {
		ph := PhasePlan{Name: "load", Kind: Load, Length: 60 * s, Flows: []FlowPlan{{Name: "a", Bytes: 1000}, {Name: "b", Bytes: 9000}}}
		r := Recording{Flows: []Flow{{Name: "a", Phase: "load", Result: FlowResult{Flowed: true, First: s, Stopped: 2 * s}},
			{Name: "b", Phase: "load", Result: FlowResult{Flowed: true, First: s, Stopped: 5 * s}}}}
		if c.long {
			ph.Flows = append(ph.Flows, FlowPlan{Name: "c"})
			r.Flows = append(r.Flows, Flow{Name: "c", Phase: "load", Result: FlowResult{Flowed: true, First: s, Stopped: 60 * s}})
		}
		r.Plan.Phases = []PhasePlan{ph}
		if from, to, _ := r.window(Phase{Name: "load", Kind: Load, End: 61 * s}); from != s || to != c.to {
			t.Errorf("%s: got %v to %v, want 1s to %v", c.name, from, to, c.to)
		}
	}
}
