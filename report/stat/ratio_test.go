package stat

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func exactly(ms float64) Estimate {
	d := time.Duration(ms * 1e6)
	return Between(d, d, d)
}

func TestSeedRatios(t *testing.T) {
	a, b, c := exactly(121), exactly(0.67), exactly(0.32)
	if got := FormatRatio(PlainRatio(a, b, 0, rand.NewPCG(1, 1)).Value); got != "180.6x" {
		t.Errorf("121 / 0.67 = %s, want 180.6x", got)
	}
	r := SubtractedRatio(a, b, c, 0, rand.NewPCG(1, 1))
	if got := FormatRatio(r.Value); r.State != Resolved || got != "344.8x" {
		t.Errorf("(121 - 0.32) / (0.67 - 0.32) = %s, %s, want 344.8x, resolved", got, r.State)
	}
	uncertain := Between(320*time.Microsecond, 220*time.Microsecond, 480*time.Microsecond)
	r = SubtractedRatio(a, b, uncertain, 0, rand.NewPCG(1, 1))
	// (121 - 0.22) / (0.67 - 0.22) = 268.4, (121 - 0.48) / (0.67 - 0.48) = 634.3
	want := "at least 268.4x (the delay added after, 0.350 ms, is uncertain (0.190 to 0.450) by that of the idle delay (0.220 to 0.480 ms): " +
		"268.4x to 634.3x are all possible)"
	if got := r.String(); got != want {
		t.Errorf("with the baseline between 0.22 and 0.48 ms:\n%s\nwant\n%s", got, want)
	}
}

func TestSubtractedRatioGuards(t *testing.T) {
	const res = 20 * time.Microsecond
	between := func(v, low, high float64) Estimate {
		return Between(time.Duration(v*1e6), time.Duration(low*1e6), time.Duration(high*1e6))
	}
	few := exactly(40)
	few.N = 9
	tests := []struct {
		name    string
		a, b, c Estimate
		want    State
		says    string
	}{
		{"well apart", exactly(258.5), exactly(45), exactly(40), Resolved, "43.7x (95% interval 43.7x to 43.7x)"},
		{"b within the resolution of c", exactly(121), exactly(0.33), exactly(0.32), AtLeast, "at least 6034x"},
		{"b equal to c", exactly(121), exactly(0.32), exactly(0.32), AtLeast, "at least 6034x"},
		{"b below c, by less than the uncertainty", exactly(121), between(0.31, 0.2, 0.5), exactly(0.32), AtLeast, "at least"},
		{"b below c", exactly(121), exactly(0.2), exactly(0.32), Drifted, "the delay added after is negative"},
		{"a below c", exactly(30), exactly(45), exactly(40), Drifted, "the delay added before is negative"},
		{"a not above c", between(40.1, 39, 41), exactly(45), exactly(40), NotResolvable, "is not told apart from none"},
		{"the interval spans a factor of more than two around 1", exactly(60), between(60, 50, 100), exactly(40), NotResolvable, "not resolvable"},
		{"worse after, clearly", exactly(50), exactly(250), exactly(40), Resolved, "0.048x (95% interval 0.048x to 0.048x)"},
		{"nine samples", exactly(121), exactly(0.67), few, TooFew, "withheld (9 samples are too few"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := SubtractedRatio(tt.a, tt.b, tt.c, res, rand.NewPCG(1, 1))
			if r.State != tt.want || !strings.Contains(r.String(), tt.says) {
				t.Errorf("got %s: %v, want %s with %q", r.State, r, tt.want, tt.says)
			}
		})
	}
}

func TestPlainRatioOfTinyDelaysStaysFinite(t *testing.T) {
	r := PlainRatio(exactly(10), exactly(0.05), 20*time.Microsecond, rand.NewPCG(1, 1))
	if r.State != Resolved || FormatRatio(r.Value) != "200.0x" {
		t.Errorf("10 / 0.05 ms = %v, want 200.0x", r)
	}
	r = PlainRatio(exactly(10), exactly(0), 20*time.Microsecond, rand.NewPCG(1, 1))
	if r.State != AtLeast || FormatRatio(r.Low) != "500.0x" {
		t.Errorf("10 / 0 ms with 0.02 ms resolution = %v, want at least 500.0x", r)
	}
	r = PlainRatio(exactly(0), exactly(0), 0, rand.NewPCG(1, 1))
	if r.State != NotResolvable {
		t.Errorf("0 / 0 = %v, want not resolvable", r)
	}
}

func TestRatiosOfSampledDelays(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	estimate := func(mid time.Duration, n int) Estimate {
		x := ar1(n, 0.7, r)
		for i := range x {
			x[i] += mid - 100*msec
		}
		e, err := EstimateQuantile(x, 0.5, r)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	a, b, idle, after := estimate(250*msec, 300), estimate(50*msec, 300), estimate(40*msec, 50), estimate(40*msec, 50)
	got := SubtractedRatio(a, b, Mix(idle.Value, idle, after), 0, r)
	if got.State != Resolved || got.Low > 21 || got.High < 21 {
		t.Errorf("(250 - 40) / (50 - 40) = %v, want an interval around 21x", got)
	}
	drifted := SubtractedRatio(a, b, Mix(idle.Value, idle, estimate(47*msec, 50)), 0, r)
	if drifted.State != AtLeast {
		t.Errorf("with a baseline that rose from 40 to 47 ms: %v, want a lower bound", drifted)
	}
	if d := Difference(a, idle, r); d.Low > 210*msec || d.High < 210*msec || d.Low >= d.High {
		t.Errorf("difference %v (%v to %v), want about 210ms", d.Value, d.Low, d.High)
	}
}

func TestARatioBlamesWhatIsUncertain(t *testing.T) {
	ms := func(v float64) time.Duration { return time.Duration(v * 1e6) }
	src := rand.NewPCG(1, 2)
	idle := Between(ms(40), ms(40), ms(40))
	vague := SubtractedRatio(Between(ms(240), ms(140), ms(340)), Between(ms(41), ms(40.9), ms(41.1)), idle, 0, src)
	if vague.State != AtLeast || !strings.HasPrefix(vague.Why, "the delay added before, 200.000 ms, is uncertain (100.000 to 300.000)") {
		t.Errorf("a vague delay before: %+v", vague)
	}
	vague = SubtractedRatio(Between(ms(240), ms(239), ms(241)), Between(ms(42), ms(41.1), ms(43)), idle, 0, src)
	if vague.State != AtLeast || !strings.HasPrefix(vague.Why, "the delay added after, 2.000 ms") {
		t.Errorf("a vague delay after: %+v", vague)
	}
}
