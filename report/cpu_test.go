package report

import (
	"strings"
	"testing"
	"time"

	"bufferbloat"
)

// watched adds quantities of one value each second to a recording.
func watched(rec *bufferbloat.Recording, values map[string]float64) {
	for name, v := range values {
		q := bufferbloat.Quantity{Name: name}
		for at := time.Second; at <= rec.Ended; at += time.Second {
			q.At, q.Values = append(q.At, at), append(q.Values, v)
		}
		rec.Others = append(rec.Others, q)
	}
}

func TestTheReasonOfABusyHostIsNamed(t *testing.T) {
	for _, c := range []struct {
		name   string
		busy   float64
		values map[string]float64
		want   string // in the finding; "" where there is none
		not    string
	}{
		{"a busy program", 1, map[string]float64{"cpu0::busy": 1, "cpu0::softirq": 0.1, "cpu0::steal": 0}, "100% busy (this program took", "interrupts"},
		{"packets", 1, map[string]float64{"cpu0::busy": 0.2, "cpu1::busy": 1, "cpu0::softirq": 0, "cpu1::softirq": 0.7, "cpu1::irq": 0.1},
			"80% of it with interrupts and packets", "stolen"},
		{"a hypervisor with other guests", 1, map[string]float64{"cpu0::busy": 1, "cpu0::steal": 0.3}, "30% of it stolen by the hypervisor", "interrupts"},
		{"nothing but the CPUs was watched", 1, nil, "100% busy (this program took", "of it"},
		{"a quota on an idle host", 0.1, map[string]float64{"cpu_quota::limit": 0.2, "cpu_quota::throttled": 0.83},
			"a quota of 0.2 CPUs stopped this program in 83% of its periods", "busy"},
		{"a quota that was not used up", 0.1, map[string]float64{"cpu_quota::limit": 2, "cpu_quota::throttled": 0.01}, "", ""},
	} {
		r := New(mixed(func(rec *bufferbloat.Recording) {
			for i := range rec.CPU.Samples {
				rec.CPU.Samples[i].Busy = []float64{c.busy, 0}
			}
			watched(rec, c.values)
		}))
		got := findings(r, "cpu_client")
		if c.want == "" {
			if len(got) > 0 {
				t.Errorf("%s: got %+v, want none", c.name, got)
			}
			continue
		}
		if len(got) != 1 || !strings.Contains(got[0].Text, c.want) || c.not != "" && strings.Contains(got[0].Text, c.not) {
			t.Errorf("%s: got %+v, want one with %q", c.name, got, c.want)
		}
	}
}
