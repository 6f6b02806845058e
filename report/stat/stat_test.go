package stat

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/montanaflynn/stats"
)

const msec = time.Millisecond

func msecs(v ...float64) []time.Duration {
	var x []time.Duration
	for _, f := range v {
		x = append(x, time.Duration(math.Round(f*1e6)))
	}
	return x
}

func TestQuantile(t *testing.T) {
	tests := []struct {
		name string
		x    []time.Duration
		q    float64
		want time.Duration
		err  error
	}{
		{"P50 of 1 to 10 is their median", msecs(steps(1, 10)...), 0.5, 5500 * time.Microsecond, nil},
		{"P1 of five values", msecs(1, 2, 3, 4, 5), 0.01, 1040 * time.Microsecond, nil},
		{"0 is the minimum", msecs(3, 1, 2), 0, msec, nil},
		{"1 is the maximum", msecs(3, 1, 2), 1, 3 * msec, nil},
		{"next to 0", msecs(3, 1, 2), math.SmallestNonzeroFloat64, msec, nil},
		{"next to 1", msecs(3, 1, 2), math.Nextafter(1, 0), 3 * msec, nil},
		{"one value, any quantile", msecs(12.5), 0.9, 12500 * time.Microsecond, nil},
		{"the span of all durations", []time.Duration{math.MinInt64, math.MaxInt64}, 1, math.MaxInt64, nil},
		{"a large offset keeps its nanoseconds", []time.Duration{1<<62 + 1, 1<<62 + 3}, 0.5, 1<<62 + 2, nil},
		{"no samples", nil, 0.5, 0, ErrNoSamples},
		{"above 1", msecs(1), 1.01, 0, ErrQuantile},
		{"below 0", msecs(1), -0.01, 0, ErrQuantile},
		{"NaN", msecs(1), math.NaN(), 0, ErrQuantile},
		{"NaN of nothing", nil, math.NaN(), 0, ErrQuantile},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Quantile(tt.x, tt.q)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("Quantile(%v, %v) = %v, %v, want %v, %v", tt.x, tt.q, got, err, tt.want, tt.err)
			}
		})
	}
}

func TestSummarize(t *testing.T) {
	us := func(v float64) time.Duration { return time.Duration(math.Round(v * 1e3)) }
	offset := 1000 * time.Hour
	tests := []struct {
		name string
		x    []time.Duration
		lost int
		want Summary
	}{
		{"nothing at all is absence", nil, 0, Summary{}},
		{"all lost is absence too", nil, 5, Summary{Lost: 5, MedianWithLoss: Bound{Unbounded: true}, P90WithLoss: Bound{Unbounded: true}}},
		{"one value is all six", msecs(12.5), 0, all(1, us(12500))},
		{"two values", msecs(18.75, 17.25), 0, Summary{N: 2, Min: us(17250), P10: us(17400), Median: us(18000), Mean: us(18000),
			P90: us(18600), P99: us(18735), Max: us(18750), MedianWithLoss: Bound{Value: us(17250)}, P90WithLoss: Bound{Value: us(18750)}}},
		{"ties", slices.Repeat(msecs(5), 300), 0, func() Summary { s := all(300, us(5000)); s.HasP99 = true; return s }()},
		{"10 to 109 ms, not in order", reversed(msecs(steps(10, 109)...)), 0, Summary{N: 100, Min: us(10000), P10: us(19900), Median: us(59500),
			Mean: us(59500), P90: us(99100), P99: us(108010), Max: us(109000), MedianWithLoss: Bound{Value: us(59000)}, P90WithLoss: Bound{Value: us(99000)}}},
		{"a large offset", []time.Duration{offset + 4, offset + 7, offset + 13, offset + 16}, 0, Summary{N: 4, Min: offset + 4, P10: offset + 5,
			Median: offset + 10, Mean: offset + 10, P90: offset + 15, P99: offset + 16, Max: offset + 16,
			MedianWithLoss: Bound{Value: offset + 7}, P90WithLoss: Bound{Value: offset + 16}}},
		{"losses count as infinitely late", msecs(1, 2, 3, 4, 5, 6), 4, Summary{N: 6, Lost: 4, Min: us(1000), P10: us(1500), Median: us(3500),
			Mean: us(3500), P90: us(5500), P99: us(5950), Max: us(6000), MedianWithLoss: Bound{Value: us(5000)}, P90WithLoss: Bound{Unbounded: true}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Summarize(tt.x, tt.lost); got != tt.want {
				t.Errorf("Summarize(%v, %d) =\n%+v, want\n%+v", tt.x, tt.lost, got, tt.want)
			}
		})
	}
}

func all(n int, v time.Duration) Summary {
	return Summary{N: n, Min: v, P10: v, Median: v, Mean: v, P90: v, P99: v, Max: v, MedianWithLoss: Bound{Value: v}, P90WithLoss: Bound{Value: v}}
}

func reversed(x []time.Duration) []time.Duration { slices.Reverse(x); return x }

func TestSummaryIsOrderedOnEveryInput(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		x := make([]time.Duration, 1+r.IntN(50))
		base, span := time.Duration(r.Int64N(1<<62)), 1+r.Int64N(1<<r.IntN(60))
		for i := range x {
			x[i] = base + time.Duration(r.Int64N(span))
		}
		before := slices.Clone(x)
		s := Summarize(x, r.IntN(20))
		if !slices.Equal(x, before) {
			t.Fatal("Summarize modified its argument")
		}
		if !slices.IsSorted([]time.Duration{s.Min, s.P10, s.Median, s.P90, s.P99, s.Max}) || s.Mean < s.Min || s.Mean > s.Max {
			t.Fatalf("Summarize(%v) is out of order: %+v", x, s)
		}
		if m, _ := Quantile(x, 0.5); m != s.Median {
			t.Fatalf("median %v, Quantile 0.5 %v", s.Median, m)
		}
	}
}

func TestQuantileWithLossTakesTheExactRank(t *testing.T) {
	x := msecs(steps(1, 250)...)
	if got, err := QuantileWithLoss(x, 0, 0.644); err != nil || got.Value != 161*msec {
		t.Errorf("QuantileWithLoss(1..250 ms, 0.644) = %v, %v, want 161ms (0.644 x 250 is exactly 161)", got, err)
	}
	if _, err := QuantileWithLoss(nil, 0, 0.5); !errors.Is(err, ErrNoSamples) {
		t.Errorf("QuantileWithLoss of nothing: %v, want ErrNoSamples", err)
	}
	if got, _ := QuantileWithLoss(msecs(1, 2), 2, 0.5); got != (Bound{Value: 2 * msec}) {
		t.Errorf("2 of 4 lost, median %+v, want 2ms", got)
	}
	if got, _ := QuantileWithLoss(msecs(1, 2), 3, 0.5); !got.Unbounded {
		t.Errorf("3 of 5 lost, median %+v, want unbounded", got)
	}
}

func TestMinSamples(t *testing.T) {
	for q, want := range map[float64]int{0.5: 5, 0.9: 29, 0.1: 29, 0.95: 59, 0.98: 149, 0.99: 299, 0.999: 2995, 0: 1, 1: 1} {
		if got := MinSamples(q); got != want {
			t.Errorf("MinSamples(%v) = %d, want %d", q, got, want)
		}
	}
}

func TestLadderMarksWhatHasTooFewSamples(t *testing.T) {
	if got := Ladder(nil); got != nil {
		t.Errorf("Ladder(nil) = %v", got)
	}
	x := msecs(steps(1, 100)...)
	for _, r := range Ladder(x) {
		want, _ := Quantile(x, r.Q)
		if r.OK != (len(x) >= MinSamples(r.Q)) || r.OK && r.Value != want {
			t.Errorf("q = %v: %+v, want %v", r.Q, r, want)
		}
	}
}

func TestLossIsAShareOfTheDecided(t *testing.T) {
	if _, ok := Summarize(nil, 0).Loss(); ok {
		t.Error("no probes have a loss")
	}
	if got, ok := Summarize(msecs(1, 2), 3).Loss(); !ok || got != 0.6 {
		t.Errorf("loss %v, %v, want 0.6", got, ok)
	}
}

func TestMeanStdDev(t *testing.T) {
	mean, sd := MeanStdDev([]float64{1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16}, []float64{1, 1, 1, 1})
	if mean != 1e9+10 || math.Abs(sd-4.743416490252569) > 1e-9 {
		t.Errorf("got %v +/- %v, want 1000000010 +/- 4.7434", mean, sd)
	}
	if mean, _ = MeanStdDev([]float64{0, 1}, []float64{3, 1}); mean != 0.25 {
		t.Errorf("weighted mean %v, want 0.25", mean)
	}
	if mean, sd = MeanStdDev(nil, nil); mean != 0 || sd != 0 {
		t.Errorf("of nothing: %v, %v", mean, sd)
	}
}

func TestJain(t *testing.T) {
	for _, tt := range []struct {
		x    []float64
		want float64
		ok   bool
	}{{[]float64{3, 3, 3}, 1, true}, {[]float64{5, 0, 0, 0}, 0.25, true}, {[]float64{1, 2, 3}, 36.0 / 42, true}, {nil, 0, false}, {[]float64{0, 0}, 0, false}} {
		if got, ok := Jain(tt.x); ok != tt.ok || math.Abs(got-tt.want) > 1e-15 {
			t.Errorf("Jain(%v) = %v, %v, want %v, %v", tt.x, got, ok, tt.want, tt.ok)
		}
	}
}

// ar1 is a series of delays, each rho times as far from the middle as the one before it, plus noise.
func ar1(n int, rho float64, r *rand.Rand) []time.Duration {
	x := make([]time.Duration, n)
	v := r.NormFloat64() / math.Sqrt(1-rho*rho)
	for i := range x {
		x[i] = 100*msec + time.Duration(v*1e6)
		v = rho*v + r.NormFloat64()
	}
	return x
}

func TestEffectiveSize(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, rho := range []float64{0, 0.5, 0.9} {
		x := ar1(20000, rho, r)
		want := 20000 * (1 - rho) / (1 + rho)
		if got, _ := EffectiveSize(x); math.Abs(got/want-1) > 0.2 {
			t.Errorf("AR(1) with rho %v: n_eff %.0f, theory %.0f", rho, got, want)
		}
	}
	if got, tau := EffectiveSize(slices.Repeat(msecs(40), 50)); got != 50 || tau != 1 {
		t.Errorf("constant samples: n_eff %v, tau %v, want 50, 1", got, tau)
	}
	if got, _ := EffectiveSize(msecs(1)); got != 1 {
		t.Errorf("one sample: n_eff %v", got)
	}
	if got, _ := EffectiveSize(nil); got != 0 {
		t.Errorf("no sample: n_eff %v", got)
	}
}

func TestEffectiveSizeUsesTheLibrarysAutocorrelation(t *testing.T) {
	x := ar1(200, 0.7, rand.New(rand.NewPCG(5, 6)))
	f := make([]float64, len(x))
	for i, v := range x {
		f[i] = float64(v - 90*msec)
	}
	want := -1.0
	for k := 0; ; k += 2 {
		a, _ := stats.AutoCorrelation(f, k)
		b, _ := stats.AutoCorrelation(f, k+1)
		if a+b <= 0 {
			break
		}
		want += 2 * (a + b)
	}
	if _, got := EffectiveSize(x); math.Abs(got-want) > 1e-9*want {
		t.Errorf("tau %v, from the library's autocorrelation %v", got, want)
	}
}

// draws returns the q-quantiles of so many resamples.
func draws(x []time.Duration, q float64, block, times int, r *rand.Rand) (out []float64) {
	resample(x, []float64{q}, block, times, r, func(_ int, v []float64) { out = append(out, v[0]) })
	return out
}

func TestResampleIsTheQuantileOfItsResample(t *testing.T) {
	gen := rand.New(rand.NewPCG(7, 8))
	for range 200 {
		n, block := 1+gen.IntN(40), 0
		x := make([]time.Duration, n)
		for i := range x {
			x[i] = time.Duration(gen.IntN(20)) * msec
		}
		block = 1 + gen.IntN(n)
		q := []float64{0, 0.1, 0.5, 0.9, 1}[gen.IntN(5)]
		seed := gen.Uint64()
		got := draws(x, q, block, 1, rand.New(rand.NewPCG(seed, 0)))[0]
		r := rand.New(rand.NewPCG(seed, 0))
		var y []time.Duration
		for len(y) < n {
			start := r.IntN(n)
			for j := range min(block, n-len(y)) {
				y = append(y, x[(start+j)%n])
			}
		}
		if want, _ := Quantile(y, q); math.Abs(got-float64(want)) > 1 {
			t.Fatalf("resample %v of %v at %v gives %v, its quantile is %v", y, x, q, got, want)
		}
	}
}

func TestBlocksHoldMoreOftenThanSingleSamples(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	const runs = 30
	covered, naive := 0, 0
	for range runs {
		x := ar1(600, 0.8, r)
		e, err := BlockBootstrap(x, r, 0.5)
		if err != nil {
			t.Fatal(err)
		}
		if e[0].Low <= 100*msec && 100*msec <= e[0].High {
			covered++
		}
		low, high := bounds(draws(x, 0.5, 1, 300, r))
		if low <= 100e6 && 100e6 <= high {
			naive++
		}
	}
	if covered < runs*80/100 {
		t.Errorf("the 95%% interval holds the truth in %d of %d runs", covered, runs)
	}
	if naive > runs*70/100 {
		t.Errorf("with blocks of one it should fail on these samples, and held in %d of %d runs", naive, runs)
	}
	if _, err := BlockBootstrap(nil, r, 0.5); !errors.Is(err, ErrNoSamples) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestEstimateQuantileIsRepeatable(t *testing.T) {
	x := ar1(300, 0.5, rand.New(rand.NewPCG(11, 12)))
	a, _ := EstimateQuantile(x, 0.9, rand.NewPCG(1, 1))
	b, _ := EstimateQuantile(x, 0.9, rand.NewPCG(1, 1))
	if a.Low != b.Low || a.High != b.High || a.Low >= a.High || a.Value < a.Low || a.Value > a.High {
		t.Errorf("%v..%v around %v, then %v..%v", a.Low, a.High, a.Value, b.Low, b.High)
	}
	if want, _ := Quantile(x, 0.9); a.Value != want || a.N != 300 {
		t.Errorf("%+v, want the 90th percentile %v of 300", a, want)
	}
	if _, err := EstimateQuantile(nil, 0.5, rand.NewPCG(1, 1)); !errors.Is(err, ErrNoSamples) {
		t.Errorf("of nothing: %v", err)
	}
	if one, err := EstimateQuantile(msecs(12.5), 0.5, rand.NewPCG(1, 1)); err != nil || one.Low != one.High || !one.Weak() {
		t.Errorf("of one: %+v, %v", one, err)
	}
}

func BenchmarkSummarize(b *testing.B) {
	x := ar1(300, 0.8, rand.New(rand.NewPCG(1, 1)))
	b.ReportAllocs()
	for b.Loop() {
		Summarize(x, 3)
	}
}

func BenchmarkEstimateQuantile(b *testing.B) {
	x := ar1(3000, 0.8, rand.New(rand.NewPCG(1, 1)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EstimateQuantile(x, 0.5, rand.NewPCG(1, 1)); err != nil {
			b.Fatal(err)
		}
	}
}
