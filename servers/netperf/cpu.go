package netperf

import (
	"slices"
	"time"
)

// cpuUse is the reading of the CPU times at the beginning of a test.
type cpuUse struct{ busy, total []time.Duration }

// statMethod is netperf's number for CPU times that the kernel counts.
const statMethod = 8

// measureCPU begins a measurement, or returns nil where there is none to be had.
func (v *service) measureCPU() *cpuUse {
	if v.o.CPU == nil {
		return nil
	}
	busy, total, err := v.o.CPU()
	if err != nil || len(busy) == 0 || len(busy) != len(total) {
		return nil
	}
	return &cpuUse{busy: slices.Clone(busy), total: slices.Clone(total)}
}

// fill ends the measurement and puts it into the results.
func (c *cpuUse) fill(t *test) {
	if c == nil {
		return
	}
	busy, total, err := t.o.CPU()
	if err != nil || len(busy) != len(c.busy) || len(total) != len(c.total) {
		return
	}
	var allBusy, allTotal time.Duration
	for i := range busy {
		b, d := busy[i]-c.busy[i], total[i]-c.total[i]
		if d <= 0 {
			continue
		}
		allBusy, allTotal = allBusy+b, allTotal+d
		if share := percent(b, d); share > t.results.BusiestPercent {
			t.results.BusiestCPU, t.results.BusiestPercent = int32(i), share
		}
	}
	if allTotal > 0 {
		t.results.CPUPercent, t.results.CPUMethod, t.results.CPUs = percent(allBusy, allTotal), statMethod, uint32(len(busy))
	}
}

func percent(part, of time.Duration) float32 {
	return float32(min(100, max(0, 100*float64(part)/float64(of))))
}
