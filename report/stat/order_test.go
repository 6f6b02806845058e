package stat

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// The wanted ranks and chances were computed with exact fractions by trying every interval, not with this program.
func TestQuantileRanks(t *testing.T) {
	tests := []struct {
		n         int
		q         float64
		low, high int
		coverage  float64
	}{
		{6, 0.5, 1, 6, 0.96875}, {7, 0.5, 1, 7, 0.984375}, {8, 0.5, 1, 7, 0.9609375}, {9, 0.5, 2, 8, 0.9609375}, {10, 0.5, 2, 9, 0.978515625},
		{11, 0.5, 2, 9, 0.96142578125}, {15, 0.5, 4, 12, 0.96484375}, {20, 0.5, 6, 15, 0.9586105346679688}, {60, 0.5, 22, 38, 0.9603829851015003},
		{29, 0.9, 21, 29, 0.9513485261893851}, {40, 0.9, 32, 40, 0.9697238116441209}, {60, 0.9, 50, 59, 0.9520137979552563},
		{100, 0.9, 85, 97, 0.9522729857677322}, {300, 0.9, 260, 281, 0.9574941072083327}, {300, 0.95, 278, 293, 0.9548491407306197},
		{299, 0.99, 289, 299, 0.9502063034560693}, {300, 0.99, 290, 300, 0.9506942622233819},
	}
	for _, tt := range tests {
		got, err := QuantileRanks(tt.n, tt.q)
		if err != nil || got.Low != tt.low || got.High != tt.high || math.Abs(got.Coverage-tt.coverage) > 1e-12 {
			t.Errorf("QuantileRanks(%d, %v) = %+v, %v, want %d, %d with %v", tt.n, tt.q, got, err, tt.low, tt.high, tt.coverage)
		}
	}
	for n, q := range map[int]float64{1: 0.5, 2: 0.5, 5: 0.5, 28: 0.9, 298: 0.99, 100: 0, 101: 1} {
		if got, err := QuantileRanks(n, q); !errors.Is(err, ErrTooFew) {
			t.Errorf("QuantileRanks(%d, %v) = %+v, %v, want ErrTooFew", n, q, got, err)
		}
	}
	for _, tt := range []struct {
		n    int
		q    float64
		want error
	}{{0, 0.5, ErrNoSamples}, {10, math.NaN(), ErrQuantile}, {10, 1.1, ErrQuantile}, {10, -0.1, ErrQuantile}} {
		if _, err := QuantileRanks(tt.n, tt.q); !errors.Is(err, tt.want) {
			t.Errorf("QuantileRanks(%d, %v): %v, want %v", tt.n, tt.q, err, tt.want)
		}
	}
	if got, err := QuantileRanks(10_000_000, 0.5); err != nil || got.Low+got.High < 9_999_999 || got.Low+got.High > 10_000_002 || got.High-got.Low != 6198 {
		t.Errorf("ten million: %+v, %v; the normal approximation spans 2 x 1.96 x 1581.1 = 6198 ranks", got, err)
	}
}

func TestQuantileIntervalCoversIndependentSamples(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for _, tt := range []struct {
		n int
		q float64
	}{{12, 0.5}, {60, 0.9}} {
		want, _ := QuantileRanks(tt.n, tt.q)
		truth := time.Duration(-math.Log(1-tt.q) * 1e6)
		const runs = 4000
		held := 0
		for range runs {
			x := make([]time.Duration, tt.n)
			for i := range x {
				x[i] = time.Duration(r.ExpFloat64() * 1e6)
			}
			low, high, err := QuantileInterval(x, 0, tt.q)
			if err != nil {
				t.Fatal(err)
			}
			if low.Value <= truth && truth < high.Value {
				held++
			}
		}
		if got := float64(held) / runs; math.Abs(got-want.Coverage) > 0.012 {
			t.Errorf("n %d, q %v: the interval holds the truth in %v of all runs, want %v", tt.n, tt.q, got, want.Coverage)
		}
	}
}

func TestQuantileIntervalCountsLossesAsEndless(t *testing.T) {
	low, high, err := QuantileInterval(msecs(5, 1, 4, 2, 3), 1, 0.5)
	if err != nil || low != (Bound{Value: msec}) || high != (Bound{Unbounded: true}) {
		t.Errorf("one of six lost: %+v, %+v, %v, want 1ms and unbounded", low, high, err)
	}
	if _, _, err := QuantileInterval(msecs(1), 0, 0.5); !errors.Is(err, ErrTooFew) {
		t.Errorf("of one: %v", err)
	}
	if low, high, err = QuantileInterval(nil, 8, 0.5); err != nil || !low.Unbounded || !high.Unbounded {
		t.Errorf("all lost: %+v, %+v, %v", low, high, err)
	}
	if low, high, err = QuantileInterval(msecs(7, 7, 7, 7, 7, 7), 0, 0.5); err != nil || low != high || low.Value != 7*msec {
		t.Errorf("ties: %+v, %+v, %v", low, high, err)
	}
}
