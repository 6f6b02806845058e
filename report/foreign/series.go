package foreign

import (
	"time"

	"bufferbloat"
	"bufferbloat/probe"
	"bufferbloat/report"
)

// phaseName names the only phase of a text of pings.
const phaseName = "line"

// pings are what a text of pings comes to: one or more series over one phase of unknown load.
type pings struct {
	started    time.Time // zero where not told
	timed      bool      // the samples' times are those of the run, and not mere numbers
	series     []bufferbloat.ProbeSeries
	resolution []time.Duration // of each series
	findings   []bufferbloat.Finding
	source     report.Source
}

// result computes the figures.
func (p *pings) result() (*report.Result, *bufferbloat.Recording) {
	var end time.Duration
	for i := range p.series {
		for j := range p.series[i].Samples {
			end = max(end, p.series[i].Samples[j].Sent)
		}
	}
	end++
	rec := &bufferbloat.Recording{Started: p.started, Probes: p.series, CPU: bufferbloat.CPUSeries{Why: "the source does not tell"}, Findings: p.findings,
		Phases: []bufferbloat.Phase{{Name: phaseName, Kind: report.Unknown, End: end, To: end}}}
	if p.timed {
		rec.Ended = end
	}
	r := report.New(rec)
	p.source.Untold = append(p.source.Untold, "whether the line carried any load", "how late the probes were sent")
	if !p.timed {
		p.source.Untold = append(p.source.Untold, "when the probes were sent")
	}
	r.Source = &p.source
	r.Phases[0].Untimed = !p.timed
	for i := range r.Series {
		r.Series[i].HasLateness = false
		r.Series[i].Void = false
		r.Series[i].Resolution = p.resolution[i] // the only primary one is the first, so the order is the same
	}
	return r, rec
}

// place gives the samples their times from the stamps that some of them have, at[i] with has[i]: a sample without one lies where the even schedule
// of those with one puts it. It is false where fewer than two have one. Stamps are offsets of any origin; the first sample becomes 0.
func place(samples []probe.Sample, at []time.Duration, has []bool) (interval time.Duration, ok bool) {
	first, last := -1, -1
	for i := range samples {
		if has[i] {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first == last {
		return 0, false
	}
	interval = (at[last] - at[first]) / time.Duration(last-first)
	if interval <= 0 || interval > maxRTT {
		return 0, false
	}
	origin := at[first] - time.Duration(first)*interval
	for i := range samples {
		t := time.Duration(i) * interval
		if has[i] {
			t = at[i] - origin
		}
		samples[i].Due, samples[i].Sent = max(0, t), max(0, t)
	}
	return interval, true
}
