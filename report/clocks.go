package report

import (
	"math"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
)

// Clocks says how the wall clocks of the two hosts compare, by a series with one-way delays over the whole run. Those delays themselves are kept as the
// clocks give them, signed, and nothing is judged by them; what Direction says needs clocks that keep their difference alone.
type Clocks struct {
	Series string `json:"series"`
	// Offset is the other host's clock less this one's in the middle of the run, if the idle path is as long one way as the other. It is off by what it is
	// not, and by what its samples are, which is at most Within: half of the least round-trip time, and the error of most samples.
	Offset time.Duration `json:"offset_ns"`
	Within time.Duration `json:"offset_within_ns"`
	// Drift is how much faster the other host's clock runs, in parts of a million, within DriftWithin of it; null where the run is too short to tell, or a
	// clock was stepped.
	Drift       *float64 `json:"drift_ppm"`
	DriftWithin *float64 `json:"drift_within_ppm"`
	// Stepped says that a clock was set meanwhile, by more than a round trip can explain: delays before and after it do not compare.
	Stepped bool `json:"stepped,omitempty"`
	// Agree says that the clocks may be one: Offset is no more than Within. Otherwise the one-way delays cannot both be true.
	Agree bool `json:"agree"`
}

const (
	clockWindows   = 32 // of equal length, each of which gives its sample with the least round-trip time
	leastWindows   = 4  // for a drift
	leastSpan      = 2 * time.Second
	maxSlew        = 500e-6
	clockStep      = time.Millisecond // no less is told from the path, whatever its round trip
	clockAsymmetry = time.Millisecond // of a sample: half of what its round trip took beyond the least one
)

// clockSample is what one packet says of the clocks.
type clockSample struct {
	at, offset, within time.Duration
}

// newClocks returns nil for a series without one-way delays.
func newClocks(s *bufferbloat.ProbeSeries) *Clocks {
	grain := time.Duration(0)
	if s.Kind == string(bufferbloat.ICMPTimestamp) {
		grain = time.Millisecond // the peer's times are whole ones, cut off
	}
	picks, least := clockSamples(s, grain)
	if len(picks) == 0 {
		return nil
	}
	c := &Clocks{Series: s.Name}
	for i := 1; i < len(picks); i++ {
		a, b := picks[i-1], picks[i]
		// The whole round trip of each may have gone one way: how a path with jitter splits its least one is not known.
		slack := least + a.within + b.within + time.Duration(maxSlew*float64(b.at-a.at)) + clockStep
		c.Stepped = c.Stepped || (b.offset-a.offset).Abs() > slack
	}
	middle := (picks[0].at + picks[len(picks)-1].at) / 2
	slope, within, ok := drift(picks)
	if ok = ok && !c.Stepped; ok {
		ppm, ppmWithin := slope*1e6, within*1e6
		c.Drift, c.DriftWithin = &ppm, &ppmWithin
	} else {
		slope, within = 0, 0
	}
	offsets, errors := make([]time.Duration, len(picks)), make([]time.Duration, len(picks))
	for i, p := range picks {
		fromMiddle := p.at - middle
		offsets[i] = p.offset - time.Duration(slope*float64(fromMiddle))
		errors[i] = p.within + time.Duration(within*float64(fromMiddle.Abs()))
	}
	slices.Sort(offsets)
	slices.Sort(errors)
	// Where more than half of the samples are no further off than that, neither is their median.
	c.Offset, c.Within = offsets[len(offsets)/2], least/2+errors[len(errors)/2]
	c.Agree = c.Offset.Abs() <= c.Within && !c.Stepped
	return c
}

// clockSamples returns the best samples of the windows, in time, and the least round-trip time of all. Samples that a queue has delayed are left out, as it
// is not known which way.
func clockSamples(s *bufferbloat.ProbeSeries, grain time.Duration) (picks []clockSample, least time.Duration) {
	first, last := time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
	least = math.MaxInt64
	for x := range s.All() {
		if outcome(&x).HasRTT() && x.HasOneWay {
			first, last, least = min(first, x.Sent), max(last, x.Sent), min(least, x.RTT)
		}
	}
	if last < first {
		return nil, 0
	}
	width := (last-first)/clockWindows + 1
	var best [clockWindows]clockSample
	var have [clockWindows]bool
	for x := range s.All() {
		if !outcome(&x).HasRTT() || !x.HasOneWay {
			continue
		}
		extra := (x.RTT-least)/2 + stampError(x.Stamp)
		w := int((x.Sent - first) / width)
		if extra > clockAsymmetry || have[w] && best[w].within <= extra+grain {
			continue
		}
		// Without the halves' sum, which could overflow where the clocks are centuries apart.
		best[w], have[w] = clockSample{x.Sent, x.Up/2 - x.Down/2, extra + grain}, true
	}
	for w := range best {
		if have[w] {
			picks = append(picks, best[w])
		}
	}
	return picks, least
}

// stampError is what a stamp may be off, by far most of the time.
func stampError(s host.Stamp) time.Duration {
	switch s {
	case host.KernelStamp:
		return 2 * time.Microsecond
	case host.LinkStamp:
		return 0
	}
	return 100 * time.Microsecond
}

// drift returns how much faster the other clock runs, by the two samples that tell it best, and how far that may be off, as ratios; or false where the
// samples are too few, or span too little. A sample off the line by more than it says of itself tells that they all may be, by jitter or a small step.
func drift(p []clockSample) (slope, within float64, ok bool) {
	if len(p) < leastWindows || p[len(p)-1].at-p[0].at < leastSpan {
		return 0, 0, false
	}
	within = math.Inf(1)
	var from, to clockSample
	for i, a := range p {
		for _, b := range p[i+1:] {
			dt := float64(b.at - a.at)
			if w := float64(a.within+b.within) / dt; dt > 0 && w < within {
				slope, within, from, to = float64(b.offset-a.offset)/dt, w, a, b
			}
		}
	}
	if math.IsInf(within, 1) {
		return 0, 0, false
	}
	off := 0.0
	for _, x := range p {
		line := from.offset + time.Duration(slope*float64(x.at-from.at))
		off = max(off, float64((x.offset-line).Abs()-x.within))
	}
	return slope, within + 2*off/float64(to.at-from.at), true
}

// clocks returns what each series with one-way delays says.
func clocks(rec *bufferbloat.Recording) (all []Clocks) {
	for i := range rec.Probes {
		if c := newClocks(&rec.Probes[i]); c != nil {
			all = append(all, *c)
		}
	}
	return all
}

// deriveClocks says what keeps the one-way delays from being what they are called.
func (r *Result) deriveClocks(add adder) {
	for i := range r.Clocks {
		c := &r.Clocks[i]
		switch {
		case c.Stepped:
			add("clock_stepped", bufferbloat.Note, "", "%s probes: a clock of one of the hosts was set during the run: one-way delays from before and after it do not compare",
				printable(c.Series))
		case !c.Agree:
			add("clocks_differ", bufferbloat.Note, "", "%s probes: the other host's clock is %s ms from this one's (within %s ms): one-way delays are as these clocks give them, "+
				"signed, and nothing is judged by them but what a load adds", printable(c.Series), signed(c.Offset), ms(c.Within))
		}
		if c.Drift != nil && math.Abs(*c.Drift) > max(1, *c.DriftWithin) && math.Abs(*c.Drift) > maxDriftSilent {
			add("clocks_drift", bufferbloat.Note, "", "%s probes: the other host's clock runs %+.0f millionths faster (within %.0f)", printable(c.Series), *c.Drift, *c.DriftWithin)
		}
	}
}

// maxDriftSilent is a drift in millionths that is no news: 3 ms in a minute.
const maxDriftSilent = 50
