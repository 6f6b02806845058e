package stat

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/montanaflynn/stats"
)

// A series that is too long for the library gives what the library gives.
func TestLongSeriesFollowTheSameRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{libraryMost + 1, 4000, 12345} {
		x := make([]time.Duration, n)
		for i := range x {
			x[i] = time.Hour + time.Duration(rnd.Int64N(int64(time.Second)))
		}
		sorted := slices.Sorted(slices.Values(x))
		long, library := sortedSpan(sorted), spanOf(sorted)
		for _, q := range append(LadderQuantiles(), rnd.Float64(), rnd.Float64(), rnd.Float64()) {
			if got, want := long.quantile(q), library.quantile(q); (got - want).Abs() > 1 { // the library rounds q*100 first
				t.Errorf("n %d, q %v: %v, and by the library %v", n, q, got, want)
			}
		}
		if mean, _ := stats.Mean(library.d); long.mean() != mean {
			t.Errorf("n %d: mean %v, and by the library %v", n, long.mean(), mean)
		}
	}
}

func TestASortedSliceServesAgain(t *testing.T) {
	scratch := make([]time.Duration, 0, 3)
	a := Sort([]time.Duration{3, 1, 2}, scratch)
	if s := a.Summarize(0); s.Min != 1 || s.Max != 3 || s.Median != 2 {
		t.Errorf("first series %+v", s)
	}
	b := Sort([]time.Duration{9, 8}, a.Sorted())
	if s := b.Summarize(0); s.N != 2 || s.Min != 8 || s.Max != 9 {
		t.Errorf("second series %+v", s)
	}
}

func TestDescribedValuesAreThoseOfTheRule(t *testing.T) {
	for _, c := range []struct {
		x    []float64
		want Values
	}{
		{nil, Values{}},
		{[]float64{7}, Values{N: 1, Min: 7, Median: 7, Mean: 7, P99: 7, Max: 7}},
		{[]float64{4, -2}, Values{N: 2, Min: -2, Median: 1, Mean: 1, P99: 3.94, Max: 4}},
		{[]float64{1e300, 1e300, 1e300}, Values{N: 3, Min: 1e300, Median: 1e300, Mean: 1e300, P99: 1e300, Max: 1e300}},
	} {
		if got := DescribeSorted(slices.Sorted(slices.Values(c.x))); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.x, got, c.want)
		}
	}
}
