package probe

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestWakingsAreNoLessThanTrueAndAtMostAnEighthMore(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, scale := range []time.Duration{1, 10, time.Microsecond, time.Millisecond, time.Hour} {
		for _, n := range []int{1, 2, 3, 100, 1001} {
			var w wakings
			var all []time.Duration
			for range n {
				d := time.Duration(random.Int64N(int64(scale) * 3))
				w.add(d)
				all = append(all, d)
			}
			slices.Sort(all)
			got := w.summary()
			if got.N != uint64(n) || got.Max != all[n-1] {
				t.Errorf("scale %v: %+v of %d, highest %v", scale, got, n, all[n-1])
			}
			for q, got := range map[float64]time.Duration{0.5: got.P50, 0.99: got.P99} {
				if want := all[int(q*float64(n-1))]; got < want || got > want+want/8 {
					t.Errorf("scale %v, %d of them, %v: got %v, want %v and at most an eighth more", scale, n, q, got, want)
				}
			}
		}
	}
}

func TestNoStampsNoWakings(t *testing.T) {
	var w wakings
	if got := w.summary(); got != (Waking{}) {
		t.Errorf("got %+v of nothing", got)
	}
	w.add(-time.Nanosecond)
	if got := w.summary(); got != (Waking{N: 1}) {
		t.Errorf("got %+v, want a time before the stamp to be none", got)
	}
}
