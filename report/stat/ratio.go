package stat

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"
)

// State says what a Ratio's numbers are worth.
type State string

// The states.
const (
	Resolved      State = "resolved"         // Value, Low and High are valid
	AtLeast       State = "at_least"         // only Low is: a larger ratio cannot be told from an unbounded one
	NotResolvable State = "not_resolvable"   // none is
	Drifted       State = "baseline_drifted" // none is: a delay under load lies below the idle delay by more than chance
	TooFew        State = "too_few_samples"  // none is
)

// A ratio whose interval spans more than this factor is not printed as a figure.
const maxSpread = 2

// Ratio is how many times smaller a delay has become.
type Ratio struct {
	State     State
	Value     float64
	Low, High float64 // interval at Level; High is +Inf in AtLeast where nothing bounds it
	Why       string  // one plain sentence where State is not Resolved
}

// PlainRatio returns a / b, the delay before over the delay after. Below resolution, the smallest difference that the clock and the stamps tell
// apart, b is not distinguished from 0.
func PlainRatio(a, b Estimate, resolution time.Duration, src rand.Source) Ratio {
	if few := tooFew(a, b); few != "" {
		return Ratio{State: TooFew, Why: few}
	}
	r := rand.New(src)
	d := make([]draw, pairs(a, b))
	for i := range d {
		d[i] = draw{a.draw(r), b.draw(r)}
	}
	g := guard{num: float64(a.Value), den: float64(b.Value), resolution: float64(resolution),
		numName: "the delay before", denName: "the delay after", cause: "the clock and the stamps"}
	return g.ratio(d)
}

// SubtractedRatio returns (a - c) / (b - c): the delay that the load added before, over what it added after, with c the idle delay. It guards against
// its own explosion as b comes near c: what cannot be told from a division by nothing is a lower bound or no figure at all.
func SubtractedRatio(a, b, c Estimate, resolution time.Duration, src rand.Source) Ratio {
	if few := tooFew(a, b, c); few != "" {
		return Ratio{State: TooFew, Why: few}
	}
	r := rand.New(src)
	d := make([]draw, pairs(a, b, c))
	for i := range d {
		idle := c.draw(r) // one baseline for both: they share its error
		d[i] = draw{a.draw(r) - idle, b.draw(r) - idle}
	}
	g := guard{num: float64(a.Value - c.Value), den: float64(b.Value - c.Value), resolution: float64(resolution),
		numName: "the delay added before", denName: "the delay added after",
		cause: fmt.Sprintf("the idle delay (%s to %s ms)", ms(c.Low), ms(c.High))}
	return g.ratio(d)
}

func tooFew(of ...Estimate) string {
	for _, e := range of {
		if e.N < FewSamples {
			return fmt.Sprintf("%d samples are too few for a ratio; it takes %d", e.N, FewSamples)
		}
	}
	return ""
}

// draw is the numerator and the denominator of one resample, in ns.
type draw struct{ num, den float64 }

type guard struct {
	num, den, resolution float64 // ns
	numName, denName     string
	cause                string // what the uncertainty is blamed on
}

func (g guard) ratio(d []draw) Ratio {
	num, den := make([]float64, len(d)), make([]float64, len(d))
	low, high := make([]float64, len(d)), make([]float64, len(d))
	for i, v := range d {
		num[i], den[i] = v.num, v.den
		low[i] = v.num / max(v.den, g.resolution, 1) // 1 ns: the finest that a Duration holds
		high[i] = math.Inf(1)
		if v.den > g.resolution && v.den > 0 {
			high[i] = v.num / v.den
		}
	}
	numLow, numHigh := bounds(num)
	denLow, denHigh := bounds(den)
	switch {
	case denHigh < 0 && -g.den > g.resolution:
		return g.drifted(g.denName, denLow, denHigh)
	case numHigh < 0 && -g.num > g.resolution:
		return g.drifted(g.numName, numLow, numHigh)
	case numLow <= g.resolution:
		return Ratio{State: NotResolvable, Why: fmt.Sprintf("%s, %s ms (%s to %s), is not told apart from none",
			g.numName, nsms(g.num), nsms(numLow), nsms(numHigh))}
	}
	r := Ratio{State: Resolved, Value: g.num / g.den}
	r.Low, _ = bounds(low)
	_, r.High = bounds(high)
	return g.judge(r, numLow, numHigh, denLow, denHigh)
}

func (g guard) drifted(name string, low, high float64) Ratio {
	return Ratio{State: Drifted, Why: fmt.Sprintf("%s is negative (%s to %s ms): the baseline drifted", name, nsms(low), nsms(high))}
}

// judge turns a ratio into a lower bound or into none where its denominator is not resolved.
func (g guard) judge(r Ratio, numLow, numHigh, denLow, denHigh float64) Ratio {
	half := (denHigh - denLow) / 2
	unresolved := g.den <= max(g.resolution, half) || math.IsInf(r.High, 1)
	if !unresolved && r.High <= maxSpread*r.Low {
		r.Low, r.High = min(r.Low, r.Value), max(r.High, r.Value)
		return r
	}
	reach := FormatRatio(r.Low) + " to " + FormatRatio(r.High)
	if math.IsInf(r.High, 1) {
		reach = FormatRatio(r.Low) + " and everything above"
	}
	why := fmt.Sprintf("%s, %s ms (%s to %s), is as small as the uncertainty of %s: %s are all possible",
		g.denName, nsms(g.den), nsms(denLow), nsms(denHigh), g.cause, reach)
	switch {
	case !unresolved && denLow > 0 && numHigh/numLow > denHigh/denLow: // numLow is above the resolution
		why = fmt.Sprintf("%s, %s ms, is uncertain (%s to %s): %s are all possible", g.numName, nsms(g.num), nsms(numLow), nsms(numHigh), reach)
	case !unresolved:
		why = fmt.Sprintf("%s, %s ms, is uncertain (%s to %s) by that of %s: %s are all possible",
			g.denName, nsms(g.den), nsms(denLow), nsms(denHigh), g.cause, reach)
	}
	if r.Low < 1 {
		return Ratio{State: NotResolvable, Why: why}
	}
	return Ratio{State: AtLeast, Low: r.Low, High: r.High, Why: why}
}

// String returns the ratio as a person would say it: "344.8x (95% interval 302x to 402x)", "at least 268.4x", "not resolvable", each but the
// first with its reason.
func (r Ratio) String() string {
	switch r.State {
	case Resolved:
		return fmt.Sprintf("%s (95%% interval %s to %s)", FormatRatio(r.Value), FormatRatio(r.Low), FormatRatio(r.High))
	case AtLeast:
		return "at least " + FormatRatio(r.Low) + " (" + r.Why + ")"
	case Drifted:
		return "invalid (" + r.Why + ")"
	case NotResolvable:
		return "not resolvable (" + r.Why + ")"
	}
	return "withheld (" + r.Why + ")"
}

// FormatRatio prints a ratio with a fitting number of digits: 0.048x, 5.93x, 344.8x, 12345x.
func FormatRatio(v float64) string {
	digits := 1
	switch {
	case math.IsInf(v, 1):
		return "unbounded"
	case v < 0.1:
		digits = 3
	case v < 10:
		digits = 2
	case v >= 1000:
		digits = 0
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + "x"
}

func ms(d time.Duration) string { return nsms(float64(d)) }

func nsms(ns float64) string { return strconv.FormatFloat(ns/1e6, 'f', 3, 64) }
