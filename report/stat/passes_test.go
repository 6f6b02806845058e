package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantilesInPassesAreThoseOfTheRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, value := range map[string]func(i int) int64{
		"equal":     func(int) int64 { return 5000 },
		"none late": func(int) int64 { return 0 },
		"two":       func(i int) int64 { return int64(i % 2) },
		"lateness":  func(int) int64 { return rnd.Int64N(100_000) },
		"tail":      func(int) int64 { return int64(1e4 / (1e-9 + rnd.Float64())) },
		"signed":    func(int) int64 { return rnd.Int64N(2000) - 1000 },
		"far":       func(int) int64 { return int64(rnd.Uint64()) },
		"ends":      func(i int) int64 { return [...]int64{math.MinInt64, math.MaxInt64, 0}[i%3] },
	} {
		for _, n := range []int{1, 2, 3, 10, 99, 101, 1001, 5000} {
			x := make([]time.Duration, n)
			for i := range x {
				x[i] = time.Duration(value(i))
			}
			sorted := slices.Sorted(slices.Values(x))
			for _, q := range []float64{0, 0.1, 0.5, 0.9, 0.99, 1, rnd.Float64()} {
				want := span{base: sorted[0], top: sorted[n-1], sorted: sorted}.quantile(q)
				got, top, count := QuantileInPasses(slices.Values(x), q)
				if got != want || top != sorted[n-1] || count != n {
					t.Errorf("%s, %v of %d: got %d, largest %d of %d, want %d, largest %d", name, q, n, got, top, count, want, sorted[n-1])
				}
			}
		}
	}
	if _, _, n := QuantileInPasses(slices.Values([]time.Duration(nil)), 0.5); n != 0 {
		t.Errorf("%d values of none", n)
	}
}
