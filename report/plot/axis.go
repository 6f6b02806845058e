package plot

import (
	"math"
	"strconv"
	"time"

	"bufferbloat/internal/bitrate"
)

// axis maps values to places in px. Where log is set, low is above 0.
type axis struct {
	low, high float64 // values
	a, b      float64 // their places
	log       bool
	blank     bool // without ticks: it has places and no values
}

// newAxis returns an axis whose ends are fit to be drawn: finite, and apart.
func newAxis(low, high float64, log bool) axis {
	finite := func(v float64) float64 {
		if math.IsNaN(v) {
			return 0
		}
		return max(-1e15, min(v, 1e15))
	}
	low, high = finite(low), finite(high)
	if high <= low {
		high = low + max(1, math.Abs(low)/10)
	}
	if log {
		high = max(high, 1e-9)
		low = max(low, high/1e9)
		if high/low < 1.5 {
			low, high = low/1.25, high*1.25
		}
	}
	return axis{low: low, high: high, log: log}
}

// from0 returns an axis from 0 to a little above high.
func from0(high float64) axis { return newAxis(0, high*1.06, false) }

// place returns where v stands; values beyond the ends are put at the ends' far side, never out of all bounds.
func (x axis) place(v float64) float64 {
	if math.IsNaN(v) {
		return x.a
	}
	f := (v - x.low) / (x.high - x.low)
	if x.log {
		f = math.Log(max(v, x.low/1e3)/x.low) / math.Log(x.high/x.low)
	}
	return x.a + max(-2, min(f, 3))*(x.b-x.a)
}

// clipped is place, held inside the axis.
func (x axis) clipped(v float64) float64 {
	p := x.place(v)
	return max(min(x.a, x.b), min(p, max(x.a, x.b)))
}

// tick is a mark of an axis; one without a label is a minor one.
type tick struct {
	at    float64
	label string
}

// ticks returns about n marks at round values; a logarithmic axis over less than a decade has them at even distances of value.
func (x axis) ticks(n int) []tick {
	if x.blank {
		return nil
	}
	if x.log && x.high/x.low > 6 {
		return x.logTicks()
	}
	step := niceStep((x.high - x.low) / float64(max(n, 1)))
	var out []tick
	digits := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	first := math.Ceil(x.low/step - 1e-9)
	for i := range 4*n + 8 {
		v := (first + float64(i)) * step
		if v > x.high+step*1e-6 {
			break
		}
		out = append(out, tick{v, label(v, digits)})
	}
	return out
}

// niceStep returns the smallest of 1, 2, 5 times a power of ten that is at least v.
func niceStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*p*1.0000001 {
			return m * p
		}
	}
	return 10 * p
}

func (x axis) logTicks() (out []tick) {
	wide := x.high/x.low > 2e3
	for e := math.Floor(math.Log10(x.low)); e <= math.Ceil(math.Log10(x.high)); e++ {
		for m := 1; m < 10; m++ {
			v := float64(m) * math.Pow(10, e)
			if v < x.low*0.999999 || v > x.high*1.000001 {
				continue
			}
			t := tick{at: v}
			if m == 1 || !wide && (m == 2 || m == 5) {
				t.label = label(v, max(0, -int(e)))
			}
			out = append(out, t)
		}
	}
	return out
}

func label(v float64, digits int) string {
	if math.Abs(v) >= 1e7 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	if s := strconv.FormatFloat(v, 'f', min(digits, 6), 64); s != "-0" {
		return s
	}
	return "0"
}

// ms is a time as the number of milliseconds that axes show.
func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// rateUnit returns the unit in which rates up to high are readable in a picture whose highest rate is highest: kbit/s only where there is nothing
// above it, so that panels below each other are read alike.
func rateUnit(high, highest bitrate.Bitrate) (bitrate.Bitrate, string) {
	switch {
	case high >= 5*bitrate.Gbit:
		return bitrate.Gbit, "Gbit/s"
	case highest >= bitrate.Mbit:
		return bitrate.Mbit, "Mbit/s"
	}
	return bitrate.Kbit, "kbit/s"
}
