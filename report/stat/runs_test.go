package stat

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The wanted chances were counted by another program, over every choice of which values are a's.
func TestMannWhitneyIsExactForFewRuns(t *testing.T) {
	tests := []struct {
		name                string
		a, b                []float64
		u, less, greater, p float64
	}{
		{"three and three cannot reach 5%", []float64{1, 2, 3}, []float64{4, 5, 6}, 0, 1. / 20, 1, 2. / 20},
		{"four and four can", []float64{1, 2, 3, 4}, []float64{5, 6, 7, 8}, 0, 1. / 70, 1, 2. / 70},
		{"five and five", steps(1, 5), steps(6, 10), 0, 1. / 252, 1, 2. / 252},
		{"six and six", steps(1, 6), steps(7, 12), 0, 1. / 924, 1, 2. / 924},
		{"a large offset", []float64{1e12 + 1, 1e12 + 2, 1e12 + 3}, []float64{1e12 + 4, 1e12 + 5, 1e12 + 6}, 0, 1. / 20, 1, 2. / 20},
		{"ties", []float64{1, 2, 2, 5}, []float64{2, 3, 4, 4, 6}, 5, 1. / 9, 115. / 126, 31. / 126},
		{"all tied", []float64{3, 3, 3}, []float64{3, 3, 3}, 4.5, 1, 1, 1},
		{"ties that make the chances uneven", []float64{1, 1, 2}, []float64{2, 2, 3, 3, 3}, 1, 3. / 56, 1, 1. / 14},
		{"mixed", []float64{1.1, 2.5, 0.3, 4}, []float64{1.2, 2.2, 3.3}, 5, 3. / 7, 24. / 35, 6. / 7},
		{"one run", []float64{7}, []float64{1, 2, 3}, 3, 1, 1. / 4, 1. / 2},
	}
	for _, tt := range tests {
		got, err := MannWhitney(tt.a, tt.b)
		if err != nil || !got.Exact || got.U != tt.u || math.Abs(got.Less-tt.less) > 1e-12 || math.Abs(got.Greater-tt.greater) > 1e-12 || math.Abs(got.TwoSided-tt.p) > 1e-12 {
			t.Errorf("%s: %+v, %v, want U %v, less %v, greater %v, two-sided %v", tt.name, got, err, tt.u, tt.less, tt.greater, tt.p)
		}
	}
	for k, want := range map[int]float64{1: 1, 2: 1. / 3, 3: 0.1, 4: 2. / 70, 5: 2. / 252, 6: 2. / 924} {
		if got := SmallestP(k, k); math.Abs(got-want) > 1e-12 {
			t.Errorf("SmallestP(%d, %d) = %v, want %v", k, k, got, want)
		}
	}
	if got, want := SmallestP(1, 40), 2./41; math.Abs(got-want) > 1e-12 {
		t.Errorf("SmallestP(1, 40) = %v, want %v", got, want)
	}
}

func TestMannWhitneyIsNormalForMany(t *testing.T) {
	var a, b []float64
	for i := range 40 {
		a = append(a, float64(i*7%41))
	}
	for i := range 35 {
		b = append(b, float64(i*5%37+3))
	}
	got, err := MannWhitney(a, b)
	if err != nil || got.Exact || got.U != 675 || math.Abs(got.Less-0.3973354223944149) > 1e-9 ||
		math.Abs(got.Greater-0.6067554806431074) > 1e-9 || math.Abs(got.TwoSided-0.7946708447888298) > 1e-9 {
		t.Errorf("%+v, %v", got, err)
	}
	exact, _ := MannWhitney(a[:30], b[:30])
	more, _ := MannWhitney(a[:31], b[:30])
	if !exact.Exact || more.Exact {
		t.Errorf("at the limit: %+v, then %+v", exact, more)
	}
	same := slices.Repeat([]float64{2}, 40)
	if got, err := MannWhitney(same, same); err != nil || got.TwoSided != 1 {
		t.Errorf("80 equal values: %+v, %v", got, err)
	}
}

func TestRunStatisticsRefuseWhatIsNoFigure(t *testing.T) {
	one := []float64{1}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		if _, err := MannWhitney(one, []float64{bad}); !errors.Is(err, ErrNotFinite) {
			t.Errorf("MannWhitney with %v: %v", bad, err)
		}
		if _, err := HodgesLehmann([]float64{bad}, one); !errors.Is(err, ErrNotFinite) {
			t.Errorf("HodgesLehmann with %v: %v", bad, err)
		}
		if _, ok, err := RatioShift([]float64{bad}, one); ok || !errors.Is(err, ErrNotFinite) {
			t.Errorf("RatioShift with %v: %v", bad, err)
		}
	}
	if _, err := MannWhitney(nil, one); !errors.Is(err, ErrNoSamples) {
		t.Errorf("MannWhitney of nothing: %v", err)
	}
	if _, err := HodgesLehmann(one, nil); !errors.Is(err, ErrNoSamples) {
		t.Errorf("HodgesLehmann of nothing: %v", err)
	}
	if _, ok, err := RatioShift([]float64{0, 1}, one); ok || err != nil {
		t.Errorf("the ratio to nothing: %v, %v", ok, err)
	}
}

func TestHodgesLehmann(t *testing.T) {
	old, now := []float64{10.1, 10.4, 9.9, 10.6, 10.2, 10}, []float64{12, 11.7, 12.4, 12.1, 11.9, 12.6}
	tests := []struct {
		name             string
		a, b             []float64
		value, low, high float64
		interval         bool
	}{
		{"one run each has no interval", []float64{3}, []float64{5}, 2, 0, 0, false},
		{"two each", []float64{1, 2}, []float64{4, 6}, 3.5, 0, 0, false},
		{"three each has none either", []float64{1, 2, 3}, []float64{4, 5, 6}, 3, 0, 0, false},
		{"four each: all differences", []float64{1, 2, 3, 4}, []float64{5, 6, 7, 9}, 4, 1, 8, true},
		{"six each: the 6th from either end", old, now, 1.9, 1.5, 2.4, true},
		{"ties", []float64{1, 1, 1, 1}, []float64{1, 1, 1, 1}, 0, 0, 0, true},
	}
	for _, tt := range tests {
		for _, offset := range []float64{0, 1 << 30} {
			b := slices.Clone(tt.b)
			for i := range b {
				b[i] += offset
			}
			got, err := HodgesLehmann(tt.a, b)
			if err != nil || got.HasInterval != tt.interval || math.Abs(got.Value-offset-tt.value) > 1e-6 {
				t.Errorf("%s: %+v, %v, want %v", tt.name, got, err, tt.value)
			}
			if tt.interval && (math.Abs(got.Low-offset-tt.low) > 1e-6 || math.Abs(got.High-offset-tt.high) > 1e-6) {
				t.Errorf("%s: %v to %v, want %v to %v", tt.name, got.Low, got.High, tt.low, tt.high)
			}
		}
	}
	ratio, ok, err := RatioShift(old, now)
	if !ok || err != nil || math.Abs(ratio.Value-1.1883989955454723) > 1e-12 || math.Abs(ratio.Low-1.1442307692307692) > 1e-12 || math.Abs(ratio.High-1.2352941176470587) > 1e-12 {
		t.Errorf("ratio %+v, %v, %v", ratio, ok, err)
	}
}

// The wanted ranks were counted from the distribution of U by another program.
func TestRanksOfTheShiftsInterval(t *testing.T) {
	for _, tt := range []struct{ na, nb, want int }{{1, 1, 0}, {3, 3, 0}, {4, 4, 1}, {4, 5, 2}, {5, 5, 3}, {6, 6, 6}, {8, 7, 11}, {10, 10, 24}, {3, 5, 1}, {2, 8, 1}, {1, 40, 1},
		{20, 20, 128}, {30, 30, 318}} {
		if got := exactRank(tt.na, tt.nb); got != tt.want {
			t.Errorf("exactRank(%d, %d) = %d, want %d", tt.na, tt.nb, got, tt.want)
		}
		if got := exactRank(tt.nb, tt.na); got != tt.want {
			t.Errorf("exactRank(%d, %d) = %d, want %d", tt.nb, tt.na, got, tt.want)
		}
	}
}

func TestShiftIntervalCovers(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for _, k := range []int{4, 6, 10, 35} {
		const rounds = 2000
		held := 0
		for range rounds {
			a, b := make([]float64, k), make([]float64, k)
			for i := range k {
				a[i], b[i] = r.ExpFloat64(), 5+r.ExpFloat64()
			}
			s, err := HodgesLehmann(a, b)
			if err != nil || !s.HasInterval {
				t.Fatal(s, err)
			}
			if s.Low <= 5 && 5 <= s.High {
				held++
			}
		}
		if got := float64(held) / rounds; got < 0.935 || got > 0.99 {
			t.Errorf("%d runs each: the interval holds the truth in %v of all cases", k, got)
		}
	}
}

func TestHolm(t *testing.T) {
	for _, tt := range []struct{ p, want []float64 }{
		{nil, nil},
		{[]float64{0.03}, []float64{0.03}},
		{[]float64{0.01, 0.04, 0.03, 0.005}, []float64{0.03, 0.06, 0.06, 0.02}},
		{[]float64{0.9, 0.6}, []float64{1, 1}},
		{[]float64{0.02, 0.02}, []float64{0.04, 0.04}},
	} {
		got := Holm(tt.p)
		for i := range tt.want {
			if len(got) != len(tt.want) || math.Abs(got[i]-tt.want[i]) > 1e-12 {
				t.Errorf("Holm(%v) = %v, want %v", tt.p, got, tt.want)
				break
			}
		}
	}
}

// The wanted ends were found by bisection of the condition that defines them.
func TestShareInterval(t *testing.T) {
	for _, tt := range []struct {
		k, n      int
		low, high float64
	}{{0, 300, 0, 0.012642971224546037}, {3, 300, 0.003406618437715283, 0.028983493362339834}, {1, 2, 0.09453120573423071, 0.9054687942657693},
		{10, 10, 0.7224672001371107, 1}, {150, 300, 0.44377951613391686, 0.5562204838660831}, {0, 0, 0, 1}} {
		low, high := ShareInterval(tt.k, tt.n)
		if math.Abs(low-tt.low) > 1e-9 || math.Abs(high-tt.high) > 1e-9 {
			t.Errorf("%d of %d: %v to %v, want %v to %v", tt.k, tt.n, low, high, tt.low, tt.high)
		}
	}
}

func TestDifferenceIntervalOfSharesIsNewcombes(t *testing.T) {
	// Newcombe's own example (Statistics in Medicine 17, 1998): 56/70 - 48/80 is 0.2 with 0.0524 to 0.3339.
	aLow, aHigh := ShareInterval(48, 80)
	bLow, bHigh := ShareInterval(56, 70)
	low, high := DifferenceInterval(48./80, aLow, aHigh, 56./70, bLow, bHigh)
	if math.Abs(low-0.0524) > 5e-5 || math.Abs(high-0.3339) > 5e-5 {
		t.Errorf("%v to %v, want 0.0524 to 0.3339", low, high)
	}
}
