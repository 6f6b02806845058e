package stat

import (
	"math"
	"slices"
	"time"
)

// RTPJitter is the smoothed delay variation of RFC 3550, 6.4.1 and A.8: J += (|D| - J) / 16, with D the difference of the transit times of
// successive packets. The first packet only sets the reference, so that an offset between two clocks changes nothing. The zero value
// is ready; it is not safe for concurrent use.
type RTPJitter struct {
	started bool
	last    time.Duration
	jitter  float64 // ns
}

// Add takes the transit time of the next packet received, by whatever clocks, and returns the variation so far. It allocates nothing.
func (j *RTPJitter) Add(transit time.Duration) time.Duration {
	if j.started {
		j.jitter += (float64((transit - j.last).Abs()) - j.jitter) / 16
	}
	j.started, j.last = true, transit
	return j.Value()
}

// Value returns the variation so far, 0 before a second packet.
func (j *RTPJitter) Value() time.Duration { return time.Duration(math.Round(j.jitter)) }

// Delay is one probe's delay; with OK false it was lost, or not sent, and has none.
type Delay struct {
	Value time.Duration
	OK    bool
}

// IPDV returns the delay variation of each pair of probes that are adjacent in x, in the order of sending (RFC 3393): delay(i) - delay(i-1), signed.
// A pair with a lost member is skipped, so the result may be shorter than len(x)-1.
func IPDV(x []Delay) []time.Duration {
	var out []time.Duration
	for i := 1; i < len(x); i++ {
		if x[i].OK && x[i-1].OK {
			out = append(out, x[i].Value-x[i-1].Value)
		}
	}
	return out
}

// PDV returns how far each delay lies above the smallest (RFC 5481, 4.2); nil for none. x is not modified.
func PDV(x []time.Duration) []time.Duration {
	if len(x) == 0 {
		return nil
	}
	least, out := slices.Min(x), make([]time.Duration, len(x))
	for i, d := range x {
		out[i] = d - least
	}
	return out
}

// Timed is one probe with the time at which it was sent.
type Timed struct {
	At time.Duration
	Delay
}

// Recovery returns how long after loadEnd the delay is back and stays: until the sending of the first probe from which on every probe was answered
// within ceiling. x is in the order of sending; what was sent before loadEnd is ignored. It is false where that was not seen: no probe
// was sent after the load, or the probes from then on do not span hold, so that "stays" is no more than a hope. The result is as
// fine as the probes' spacing.
func Recovery(x []Timed, loadEnd, ceiling, hold time.Duration) (time.Duration, bool) {
	var since time.Duration
	back := false
	var last time.Duration
	for _, p := range x {
		if p.At < loadEnd {
			continue
		}
		last = p.At
		if !p.OK || p.Value > ceiling {
			back = false
			continue
		}
		if !back {
			since, back = p.At, true
		}
	}
	if !back || last-since < hold {
		return 0, false
	}
	return since - loadEnd, true
}
