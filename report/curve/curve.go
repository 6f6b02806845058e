// Package curve turns a Recording into the lines and distributions that pictures draw: bounded in number however long the run was.
package curve

import (
	"cmp"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// RTT is one answered probe.
type RTT struct {
	At  time.Duration // when it was sent
	RTT time.Duration
}

// Delays are the round-trip times of a series over time.
type Delays struct {
	// Stretches are answered probes in the order of their sending. Between two of them a probe has no time, or was not sent.
	Stretches [][]RTT
	Lost      []time.Duration // when probes left that were lost
	Unsent    []time.Duration // when probes were due that could not be sent
	Undecided []time.Duration // when probes left that have no time for another reason: unfinished, or with an impossible time
	// How many of each there are; Reduce does not change them.
	Answered, Missing, NotSent, NoVerdict int
}

// gapFactor is how many intervals may lie between two probes before the line between them is broken.
const gapFactor = 3

// NewDelays returns the delays of a series. Times that no run can have count as undecided.
func NewDelays(s *bufferbloat.ProbeSeries) Delays {
	var d Delays
	samples := s.Samples
	if samples == nil {
		samples = slices.Collect(s.All())
	}
	bySending := func(a, b probe.Sample) int { return cmp.Compare(sentAt(&a), sentAt(&b)) }
	if !slices.IsSortedFunc(samples, bySending) {
		samples = slices.SortedStableFunc(slices.Values(samples), bySending)
	}
	var open []RTT
	end := func() {
		if len(open) > 0 {
			d.Stretches = append(d.Stretches, open)
		}
		open = nil
	}
	for i := range samples {
		sample := &samples[i]
		at := sentAt(sample)
		switch {
		case at < 0:
			continue
		case sample.Outcome.HasRTT() && sample.RTT >= 0:
			if n := len(open); n > 0 && s.Interval > 0 && (at-open[n-1].At)/gapFactor > s.Interval {
				end()
			}
			open = append(open, RTT{at, sample.RTT})
			d.Answered++
			continue
		case sample.Outcome.IsLost():
			d.Lost = append(d.Lost, at)
			d.Missing++
		case sample.Outcome == probe.Unsent:
			d.Unsent = append(d.Unsent, at)
			d.NotSent++
		default:
			d.Undecided = append(d.Undecided, at)
			d.NoVerdict++
		}
		end()
	}
	end()
	return d
}

// sentAt is when a sample left, or was due where it did not leave.
func sentAt(s *probe.Sample) time.Duration {
	if s.Outcome == probe.Unsent {
		return s.Due
	}
	return s.Sent
}

// Max returns the highest RTT, 0 where there is none.
func (d Delays) Max() (high time.Duration) {
	for _, stretch := range d.Stretches {
		for _, p := range stretch {
			high = max(high, p.RTT)
		}
	}
	return high
}

// column is the one of n columns over from..to that t lies in, or -1.
func column(t, from, to time.Duration, n int) int {
	if t < from || t > to || to <= from || n < 1 {
		return -1
	}
	return min(n-1, int(float64(t-from)/float64(to-from)*float64(n)))
}

// Reduce returns what a picture of n columns over from..to can show of d: of each column the first, the lowest, the highest and the last
// RTT, and one mark of each kind. No extreme gets lost. A gap inside a column that holds more than four answers is not kept.
func (d Delays) Reduce(from, to time.Duration, n int) Delays {
	r := Delays{Answered: d.Answered, Missing: d.Missing, NotSent: d.NotSent, NoVerdict: d.NoVerdict}
	r.Lost, r.Unsent, r.Undecided = thin(d.Lost, from, to, n), thin(d.Unsent, from, to, n), thin(d.Undecided, from, to, n)
	var open []RTT
	var cell []RTT      // of one column
	var breaks []int    // where in the cell a stretch begins
	var cellColumn = -1 // of the cell
	flush := func() {
		kept, cuts := envelope(cell, breaks)
		for i, p := range kept {
			if slices.Contains(cuts, i) && len(open) > 0 {
				r.Stretches = append(r.Stretches, open)
				open = nil
			}
			open = append(open, p)
		}
		cell, breaks = cell[:0], breaks[:0]
	}
	for _, stretch := range d.Stretches {
		begins := true
		for _, p := range stretch {
			c := column(p.At, from, to, n)
			if c < 0 {
				continue
			}
			if c != cellColumn {
				flush()
				cellColumn = c
			}
			if begins {
				breaks = append(breaks, len(cell))
				begins = false
			}
			cell = append(cell, p)
		}
	}
	flush()
	if len(open) > 0 {
		r.Stretches = append(r.Stretches, open)
	}
	return r
}

// envelope returns up to four points that stand for cell, and the indexes among them that begin a stretch.
func envelope(cell []RTT, breaks []int) (kept []RTT, cuts []int) {
	if len(cell) <= 4 {
		return slices.Clone(cell), slices.Clone(breaks)
	}
	low, high := 0, 0
	for i, p := range cell {
		if p.RTT < cell[low].RTT {
			low = i
		}
		if p.RTT > cell[high].RTT {
			high = i
		}
	}
	index := []int{0, low, high, len(cell) - 1}
	slices.Sort(index)
	for _, i := range slices.Compact(index) {
		kept = append(kept, cell[i])
	}
	if len(breaks) > 0 && breaks[0] == 0 {
		cuts = []int{0}
	}
	return kept, cuts
}

// thin keeps one time for each column.
func thin(times []time.Duration, from, to time.Duration, n int) (out []time.Duration) {
	last := -1
	for _, t := range times {
		if c := column(t, from, to, n); c >= 0 && c != last {
			out = append(out, t)
			last = c
		}
	}
	return out
}

// Window is a phase with the time that its statistics look at.
type Window struct {
	Name       string
	Kind       bufferbloat.PhaseKind
	Start, End time.Duration
	From, To   time.Duration
	UnderLoad  bool // the load stood from From to To; false in a load phase whose load never stood: From and To are then Start and End
}

// Windows returns the phases that have a length, in the order of the recording.
func Windows(rec *bufferbloat.Recording) (out []Window) {
	for _, p := range rec.Phases {
		if p.End <= p.Start {
			continue
		}
		w := Window{Name: p.Name, Kind: p.Kind, Start: p.Start, End: p.End, From: p.From, To: p.To, UnderLoad: p.Kind == bufferbloat.Load && p.To > p.From}
		if p.To <= p.From {
			w.From, w.To = p.Start, p.End
		}
		out = append(out, w)
	}
	return out
}

// Primary returns the series that a picture of one series shows: the one marked so, or the first, or nil where there is none.
func Primary(rec *bufferbloat.Recording) *bufferbloat.ProbeSeries {
	for i := range rec.Probes {
		if rec.Probes[i].Primary {
			return &rec.Probes[i]
		}
	}
	if len(rec.Probes) == 0 {
		return nil
	}
	return &rec.Probes[0]
}

// Within returns the RTTs of the probes that were sent at or after from and before to, sorted, and how many were lost.
func Within(s *bufferbloat.ProbeSeries, from, to time.Duration) (rtts []time.Duration, lost int) {
	for sample := range s.All() {
		if at := sentAt(&sample); at < from || at >= to {
			continue
		}
		switch {
		case sample.Outcome.HasRTT() && sample.RTT >= 0:
			rtts = append(rtts, sample.RTT)
		case sample.Outcome.IsLost():
			lost++
		}
	}
	slices.Sort(rtts)
	return rtts, lost
}

// Step is a point of a distribution: the share, 0..1, of probes that took RTT or less.
type Step struct {
	RTT   time.Duration
	Share float64
}

// CDF returns the distribution of sorted RTTs among len(rtts) + lost probes, in most points at the most: with lost probes it ends below 1. The
// first and the last RTT are always among them. It returns nil for no RTTs.
func CDF(rtts []time.Duration, lost, most int) []Step {
	n := len(rtts)
	if n == 0 {
		return nil
	}
	most = max(2, min(most, n))
	var steps []Step
	for i := range most {
		k := n - 1
		if i < most-1 {
			k = int(float64(i) * float64(n-1) / float64(most-1))
		}
		s := Step{rtts[k], float64(k+1) / float64(n+lost)}
		if m := len(steps); m > 0 && steps[m-1].RTT == s.RTT {
			steps[m-1] = s
			continue
		}
		steps = append(steps, s)
	}
	return steps
}

// Flows returns the flows of a direction, of one phase or, with "", of all.
func Flows(rec *bufferbloat.Recording, d load.Direction, phase string) (out []*bufferbloat.Flow) {
	for i := range rec.Flows {
		if f := &rec.Flows[i]; f.Direction == d && (phase == "" || f.Phase == phase) {
			out = append(out, f)
		}
	}
	return out
}

// Rate is what was delivered in one stretch of time.
type Rate struct {
	From, To time.Duration
	Rate     bitrate.Bitrate
}

// MinBin is the shortest time over which a rate is computed: the counters are read each 100 ms, and a shorter time shows the beat of
// reading and writing.
const MinBin = 200 * time.Millisecond

// Rates returns the sum of the flows' rates over time in bins of about this length, at least MinBin; each stretch is a time without a pause. Times
// when none of the flows carried data are in no stretch. The bytes are those of the flows' counters, at most about 4000 bins of them.
func Rates(flows []*bufferbloat.Flow, bin time.Duration) [][]Rate {
	type span struct{ from, to time.Duration }
	var counters []*counter
	var spans []span
	for _, f := range flows {
		if c := newCounter(f); c != nil {
			counters = append(counters, c)
			spans = append(spans, span{c.points[0].At, c.points[len(c.points)-1].At})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var merged []span
	var total time.Duration
	for _, s := range spans {
		if n := len(merged); n > 0 && s.from <= merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	for _, s := range merged {
		total += s.to - s.from
	}
	bin = max(bin, MinBin, total/4000)
	var out [][]Rate
	for _, s := range merged {
		bins := max(1, int((s.to-s.from+bin/2)/bin))
		var stretch []Rate
		before := sum(counters, s.from)
		for i := range bins {
			from := s.from + time.Duration(float64(s.to-s.from)*float64(i)/float64(bins))
			to := s.from + time.Duration(float64(s.to-s.from)*float64(i+1)/float64(bins))
			after := sum(counters, to)
			if to > from {
				stretch = append(stretch, Rate{from, to, bitrate.Bitrate((after - before) * 8 / (to - from).Seconds())})
			}
			before = after
		}
		out = append(out, stretch)
	}
	return out
}

// counter reads a flow's counter at any time, forwards only.
type counter struct {
	points []bufferbloat.Point
	next   int // points[next-1].At <= the time read last
}

// newCounter returns nil for a flow whose counter has fewer than two readings at different times. A reading that runs backwards is left out.
func newCounter(f *bufferbloat.Flow) *counter {
	c := &counter{}
	add := func(p bufferbloat.Point) {
		if n := len(c.points); p.At < 0 || n > 0 && (p.At <= c.points[n-1].At || p.Bytes < c.points[n-1].Bytes) {
			return
		}
		c.points = append(c.points, p)
	}
	r := f.Result
	if first, _, ok := f.Ends(); ok && r.Flowed && r.First < first.At {
		add(bufferbloat.Point{At: r.First})
	}
	for _, p := range f.Readings() {
		// After its last data a counter stands still: that is no part of the flow's time.
		if f.Result.Flowed && f.Result.Last > f.Result.First && p.At > f.Result.Last {
			break
		}
		add(p)
	}
	if len(c.points) < 2 {
		return nil
	}
	return c
}

// at returns the bytes at t, between two readings in proportion to time.
func (c *counter) at(t time.Duration) float64 {
	for c.next < len(c.points) && c.points[c.next].At <= t {
		c.next++
	}
	switch c.next {
	case 0:
		return float64(c.points[0].Bytes)
	case len(c.points):
		return float64(c.points[c.next-1].Bytes)
	}
	a, b := c.points[c.next-1], c.points[c.next]
	return float64(a.Bytes) + float64(b.Bytes-a.Bytes)*float64(t-a.At)/float64(b.At-a.At)
}

func sum(counters []*counter, t time.Duration) (bytes float64) {
	for _, c := range counters {
		bytes += c.at(t)
	}
	return bytes
}

// Span returns the time that a picture of the whole run covers: from 0 to the end of its last phase, sample or reading.
func Span(rec *bufferbloat.Recording) time.Duration {
	end := rec.Ended
	for _, p := range rec.Phases {
		end = max(end, p.End)
	}
	for i := range rec.Probes {
		for sample := range rec.Probes[i].All() {
			end = max(end, sentAt(&sample))
		}
	}
	for i := range rec.Flows {
		if _, last, ok := rec.Flows[i].Ends(); ok {
			end = max(end, last.At)
		}
	}
	return end
}
