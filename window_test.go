package bufferbloat

import (
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
