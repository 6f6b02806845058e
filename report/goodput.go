package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report/stat"
)

// shortTransfer is the span of data below which a goodput is flagged: TCP has hardly left its slow start.
const shortTransfer = time.Second

// highestRate, in bit/s, is what no link carries.
const highestRate = 1e15

// goodputs returns what the flows of a phase delivered, a figure for each direction that was planned or flowed.
func goodputs(ph *Phase, rec *bufferbloat.Recording) []Goodput {
	var out []Goodput
	for _, d := range []load.Direction{load.Download, load.Upload} {
		g := Goodput{Direction: d, Planned: planned(&rec.Plan, ph.Name, d, notRun(rec, ph.Name))}
		for i := range rec.Flows {
			if f := &rec.Flows[i]; f.Phase == ph.Name && f.Direction == d {
				g.Flows = append(g.Flows, newFlow(f, rec))
			}
		}
		g.Planned = max(g.Planned, len(g.Flows))
		if g.Planned == 0 {
			continue
		}
		g.sum()
		g.skip(ph, rec)
		g.Range = rateRange(&g, ph, rec)
		if !ph.Reached && !g.OK {
			g.Why = "not reached"
			if stop := stopText(rec.Stopped, rec.Truncated); stop != "" {
				g.Why = stop + " before it began"
			}
		}
		out = append(out, g)
	}
	return out
}

// planned is the number of flows of a direction that a phase was to have, without those that leftOut, where it is not nil, knows to be left out.
func planned(p *bufferbloat.Plan, phase string, d load.Direction, leftOut func(string) bool) (n int) {
	for _, ph := range p.Phases {
		if ph.Name != phase {
			continue
		}
		for _, f := range ph.Flows {
			if f.Direction == d && !((f.Optional || f.Above > 0) && leftOut != nil && leftOut(f.Name)) {
				n++
			}
		}
	}
	return n
}

// notRun reports whether a phase that was reached had no flow of a name: an optional one was left out, as a finding says.
func notRun(rec *bufferbloat.Recording, phase string) func(name string) bool {
	reached := slices.ContainsFunc(rec.Phases, func(p bufferbloat.Phase) bool { return p.Name == phase })
	return func(name string) bool {
		return reached && !slices.ContainsFunc(rec.Flows, func(f bufferbloat.Flow) bool { return f.Name == name })
	}
}

// newFlow returns a flow with its rate. In a recording that was cut off, a flow without a result has its counter's readings instead:
// they are what was read or acknowledged. When its data began is not known then, so that what came before the first reading is left out, with
// its time.
func newFlow(f *bufferbloat.Flow, rec *bufferbloat.Recording) Flow {
	out := Flow{Name: f.Name, FlowResult: f.Result, Error: f.Error}
	if rec.Truncated && !out.Flowed && len(f.Readings()) > 1 {
		first, last, _ := f.Ends()
		out.Flowed, out.Bytes, out.First, out.Last = true, last.Bytes-min(first.Bytes, last.Bytes), first.At, last.At
		out.CountedBy = load.CountedByReads
		if f.Direction == load.Upload {
			out.CountedBy = load.CountedByAcks
		}
	}
	out.end = out.Last
	if rec.Source == nil { // another program tells when its last interval ended, which says more than when its next would have
		out.end = max(out.Last, out.Stopped)
	}
	if out.counted() {
		out.Rate, out.OK = rate(out.Bytes, out.First, out.end)
		out.Whole = f.Result.Flowed && f.Error == ""
	}
	return out
}

// counted reports whether the flow's bytes are those of a receiver.
func (f *Flow) counted() bool {
	return f.Flowed && f.Bytes > 0 && f.CountedBy >= load.CountedByServer && f.CountedBy < load.NotCounted
}

// rate is false where the time is too short for a rate, or the rate too high to be one.
func rate(bytes uint64, first, last time.Duration) (bitrate.Bitrate, bool) {
	d := last - first
	if d <= 0 || bytes == math.MaxUint64 || float64(bytes)*8/d.Seconds() > highestRate {
		return 0, false
	}
	return bitrate.Of(bytes, d), true
}

// sum adds up the flows.
func (g *Goodput) sum() {
	shares := make([]float64, 0, g.Planned)
	uncounted := 0
	for i := range g.Flows {
		f := &g.Flows[i]
		if f.Flowed && !f.counted() {
			uncounted++
		}
		if !f.counted() {
			continue
		}
		if g.Flowed == 0 {
			g.First, g.Last = f.First, f.end
		}
		g.Flowed++
		if f.Whole {
			g.Whole++
		}
		g.First, g.Last = min(g.First, f.First), max(g.Last, f.end)
		g.CountedBy = max(g.CountedBy, f.CountedBy)
		if g.Bytes += f.Bytes; g.Bytes < f.Bytes {
			g.Bytes = math.MaxUint64 // more than any link carries; rate refuses it
		}
		shares = append(shares, float64(f.Bytes))
	}
	if g.Planned > 1 {
		shares = append(shares, make([]float64, g.Planned-len(shares))...)
		g.Fairness, g.HasFairness = stat.Jain(shares)
	}
	switch {
	case g.Flowed > 0:
		if g.Rate, g.OK = rate(g.Bytes, g.First, g.Last); !g.OK {
			g.Why = fmt.Sprintf("%d bytes in %v give no rate", g.Bytes, g.Last-g.First)
		}
	case uncounted > 0:
		g.Why = "nobody counted what arrived"
	default:
		g.Why = fmt.Sprintf("none of the %d streams carried data", g.Planned)
		if errs := flowErrors(g.Flows); errs != "" {
			g.Why += ": " + errs
		}
	}
}

// flowErrors joins the different errors of flows, the first three of them.
func flowErrors(flows []Flow) string {
	var errs []string
	for _, f := range flows {
		if f.Error != "" && !slices.Contains(errs, f.Error) {
			errs = append(errs, f.Error)
		}
	}
	const few = 3
	if n := len(errs) - few; n > 0 {
		errs = append(errs[:few], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(errs, "; ")
}
