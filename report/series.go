package report

import (
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/report/stat"
)

// Stamps says who took the stamps of a series.
type Stamps struct {
	KernelSends    uint64 `json:"kernel_sends"` // as probes came to their device's queue; the others by the program, or by the emulated link's clock
	KernelReplies  uint64 `json:"kernel_replies"`
	ProgramReplies uint64 `json:"program_replies"`
	LinkReplies    uint64 `json:"link_replies"`
}

func newStamps(p *bufferbloat.ProbeSeries) *Stamps {
	s := Stamps{KernelSends: p.Tally.StackSends}
	for sample := range p.All() {
		switch {
		case !outcome(&sample).HasRTT():
		case sample.Stamp == host.KernelStamp:
			s.KernelReplies++
		case sample.Stamp == host.LinkStamp:
			s.LinkReplies++
		default:
			s.ProgramReplies++
		}
	}
	if p.Unscheduled || s == (Stamps{}) {
		return nil
	}
	return &s
}

// resolution is what a round-trip time with this stamp on its reply can tell apart. With the kernel's stamp and the program's for the send, measured
// medians were 7 to 32 us above what a capture of the wire gave; with the program's own, 60 to 190 us on a host that was not busy. Where the kernel
// stamps the send too they are 1 to 2 us off, 1 in 100 by up to 20.
func resolution(s host.Stamp) time.Duration {
	switch s {
	case host.KernelStamp:
		return 20 * time.Microsecond
	case host.LinkStamp:
		return time.Nanosecond
	}
	return 200 * time.Microsecond
}

func newSeries(p *bufferbloat.ProbeSeries, room *room) Series {
	s := Series{Name: p.Name, Kind: p.Kind, Target: p.Target, Address: p.Address, Interval: p.Interval, DSCP: p.DSCP, Primary: p.Primary,
		Reason: p.Reason, Error: p.Error, Tally: p.Tally, ECN: p.ECN, Size: p.Size, Hop: p.Hop, Voice: p.Voice, Marks: newMarks(&p.Tally), MarkWays: p.MarkWays(), Stamps: newStamps(p)}
	s.Uncounted = p.NoLoss != ""
	for sample := range p.All() {
		o := outcome(&sample)
		s.Count.add(o)
		if o.HasRTT() {
			s.Resolution = max(s.Resolution, resolution(sample.Stamp))
		}
	}
	p99, most, n := lateness(p, room)
	if n > 0 && !p.Unscheduled {
		s.LatenessP99, s.LatenessMax, s.HasLateness = p99, most, true
		s.Void = s.Interval > 0 && s.LatenessP99 > s.Interval
	}
	// Those that were more than an interval late were not sent, and are in no quantile.
	due := uint64(n) + p.Tally.SenderLate
	s.Void = s.Void || p.Tally.SenderLate >= fewUnsent && p.Tally.SenderLate*100 > due
	return s
}

// lateness returns what 99% of the probes that were sent were late at most, what the latest was, and how many there were.
func lateness(p *bufferbloat.ProbeSeries, room *room) (p99, most time.Duration, n int) {
	all := func(yield func(time.Duration) bool) {
		for sample := range p.All() {
			if outcome(&sample) != probe.Unsent && !yield(max(0, sample.Lateness())) {
				return
			}
		}
	}
	if p.Len() > long {
		return stat.QuantileInPasses(all, 0.99)
	}
	late := slices.AppendSeq(room.take(p.Len()), all)
	d := stat.Sort(late, late).Summarize(0)
	return d.P99, d.Max, len(late)
}

// series returns the series of that name.
func (r *Result) series(name string) *Series {
	for i := range r.Series {
		if r.Series[i].Name == name {
			return &r.Series[i]
		}
	}
	return nil
}

// primary returns the series that the tables show, or nil where there is none.
func (r *Result) primary() *Series {
	if len(r.Series) == 0 {
		return nil
	}
	return &r.Series[0]
}
