package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
)

// The marks from which the course of a rate is said beside it.
const (
	// tailShare is how far the rate while all streams ran may be from that of all the time.
	tailShare = 0.05
	// leastStall and stallRTTs are how long no stream may carry data: a second, or some round trips where these are longer.
	leastStall = time.Second
	stallRTTs  = 4
	// mostStalled is the share of a load's time in which no stream may carry data: beyond it, a tenth of the probes or more may have met no load, and
	// what they say moves the quantiles.
	mostStalled = 0.1
)

// deriveCourse says where a goodput hides how it came about: a tail after the streams ran together, or a time in which none of them carried data.
// It takes the counters of rec, which is nil where there are none.
func (r *Result) deriveCourse(rec *bufferbloat.Recording, add adder) {
	if rec == nil {
		return
	}
	for i := range r.Phases {
		p := &r.Phases[i]
		if !p.UnderLoad && p.noLoad == "" {
			continue
		}
		for j := range p.Goodput {
			g := &p.Goodput[j]
			flows := carrying(rec, p, g)
			staggered := r.staggered(p.Name)
			if rate, ok := standing(flows, p.From, p.To); ok && !staggered && g.OK && math.Abs(float64(rate-g.Rate)) > tailShare*float64(g.Rate) {
				add("tail", bufferbloat.Weakens, p.Name, "%v: %s Mbit/s over all %s until the last byte; %s while %s streams ran",
					g.Direction, mbps(g.Rate), seconds(g.Last-g.First), mbps(rate), r.howMany(p))
			}
			if rec.Source != nil {
				continue // its intervals may leave out time for other reasons
			}
			if all := stalls(flows, p.From, p.To, r.stallLimit(), staggered); len(all) > 0 {
				longest := slices.MaxFunc(all, func(a, b stretch) int { return cmp.Compare(a.length(), b.length()) })
				which := ""
				if len(all) > 1 {
					which = ", the longest of several such times"
				}
				add("stalled", bufferbloat.Weakens, p.Name, "%v: no stream carried data for %s, from second %s of the run on%s",
					g.Direction, seconds(longest.length()), strings.TrimSuffix(seconds(longest.from), " s"), which)
			}
		}
	}
}

// stallLimit is how long no stream may carry data.
func (r *Result) stallLimit() time.Duration {
	if idle := r.baseline(bufferbloat.Idle); idle != nil && idle.Primary().Has(Median) {
		return max(leastStall, stallRTTs*min(idle.Primary().Median, time.Hour))
	}
	return leastStall
}

// stoodStill says for how much of the window of a load no stream of either direction carried data, where that is too much for its latency to be that of
// the load, and "" where it is not. A stretch in which probes met a queue that is long beside it is none of these: the line was busy, and the receiver
// waited for a segment that had been lost.
func (r *Result) stoodStill(p *Phase, rec *bufferbloat.Recording, order []*bufferbloat.ProbeSeries) string {
	if rec.Source != nil {
		return ""
	}
	var flows []*bufferbloat.Flow
	for i := range p.Goodput {
		if g := &p.Goodput[i]; g.Flowed > 0 {
			of := carrying(rec, p, g)
			if len(of) == 0 {
				return "" // what was not read may have flowed
			}
			flows = append(flows, of...)
		}
	}
	var still time.Duration
	for _, s := range stalls(flows, p.From, p.To, r.stallLimit(), r.staggered(p.Name)) {
		if len(order) == 0 || s.length() > stallRTTs*medianIn(order[0], s) {
			still += s.length()
		}
	}
	if float64(still) <= mostStalled*float64(p.To-p.From) {
		return ""
	}
	return fmt.Sprintf("no stream carried data for %s of the %s that the load was to stand", seconds(still), seconds(p.To-p.From))
}

// medianIn is the median of the answers to the probes that left in a stretch, 0 where there are none.
func medianIn(s *bufferbloat.ProbeSeries, in stretch) time.Duration {
	var rtts []time.Duration
	for sample := range s.All() {
		if within(&sample, in.from, in.to) && outcome(&sample).HasRTT() {
			rtts = append(rtts, min(sample.RTT, time.Hour))
		}
	}
	if len(rtts) == 0 {
		return 0
	}
	slices.Sort(rtts)
	return rtts[len(rtts)/2]
}

// staggered reports whether the streams of a phase are to begin or end at different times.
func (r *Result) staggered(phase string) bool {
	for _, ph := range r.Plan.Phases {
		for _, f := range ph.Flows {
			if ph.Name == phase && (f.Start > 0 || f.Bytes > 0 || f.Length > 0 && f.Length < ph.Length) {
				return true
			}
		}
	}
	return false
}

// howMany is how many streams ran together in the time that a phase looks at.
func (r *Result) howMany(p *Phase) string {
	for _, f := range r.Findings {
		if f.Code == "streams_ragged" && f.Phase == p.Name {
			return "most"
		}
	}
	return "all"
}

// carrying returns the flows of a goodput that carried data, or none where the counter of one of them was not read.
func carrying(rec *bufferbloat.Recording, p *Phase, g *Goodput) (out []*bufferbloat.Flow) {
	for i := range rec.Flows {
		f := &rec.Flows[i]
		_, _, read := f.Ends()
		switch {
		case f.Phase != p.Name || f.Direction != g.Direction || !f.Result.Flowed && !read:
		case !read:
			return nil
		default:
			out = append(out, f)
		}
	}
	return out
}

// standing returns the rate of flows from..to by their counters, or false where these were not read for long enough.
func standing(flows []*bufferbloat.Flow, from, to time.Duration) (bitrate.Bitrate, bool) {
	var end time.Duration
	for _, f := range flows {
		first, last, _ := f.Ends()
		from, end = max(from, first.At), max(end, last.At)
	}
	to = min(to, end)
	if len(flows) == 0 || to-from < shortTransfer {
		return 0, false
	}
	var bytes float64
	for _, f := range flows {
		points := f.Readings()
		bytes += bytesAt(points, to) - bytesAt(points, from)
	}
	rate := bytes * 8 / (to - from).Seconds()
	if rate < 0 || rate > highestRate {
		return 0, false
	}
	return bitrate.Bitrate(math.Round(rate)), true
}

// stretch is the time from one offset to another.
type stretch struct{ from, to time.Duration }

func (s stretch) length() time.Duration { return s.to - s.from }

// stalls returns the stretches of limit or more in which none of flows carried data. Where flows are staggered, those in which none was to do so are left
// out.
func stalls(flows []*bufferbloat.Flow, from, to, limit time.Duration, staggered bool) []stretch {
	if len(flows) == 0 {
		return nil
	}
	all := []stretch{{from, to}}
	for _, f := range flows {
		all = common(all, quiet(f, from, to, limit), limit)
	}
	return slices.DeleteFunc(all, func(s stretch) bool {
		return staggered && !slices.ContainsFunc(flows, func(f *bufferbloat.Flow) bool { return f.Result.First <= s.from && f.Result.Stopped >= s.to })
	})
}

// quiet returns the stretches of limit or more, from..to, in which the counter of a flow stood still. Between two readings that differ it is taken to
// have moved all the time.
func quiet(f *bufferbloat.Flow, from, to, limit time.Duration) (out []stretch) {
	since := from
	moved := func(began, ended time.Duration) {
		if began = min(began, to); began-since >= limit {
			out = append(out, stretch{since, began})
		}
		since = max(since, ended)
	}
	points := f.Readings()
	first, last := points[0], points[len(points)-1]
	began := first.At
	if f.Result.Flowed {
		began = min(began, f.Result.First)
	}
	moved(began, first.At)
	for i, p := range points[1:] {
		if before := points[i]; p.Bytes != before.Bytes {
			moved(before.At, p.At)
		}
	}
	if f.Result.Flowed && f.Result.Last > last.At {
		moved(last.At, f.Result.Last)
	}
	moved(to, to)
	return out
}

// common returns what two lists of stretches have in common, in pieces of limit or more.
func common(a, b []stretch, limit time.Duration) (out []stretch) {
	for len(a) > 0 && len(b) > 0 {
		if s := (stretch{max(a[0].from, b[0].from), min(a[0].to, b[0].to)}); s.to-s.from >= limit {
			out = append(out, s)
		}
		if a[0].to < b[0].to {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}
