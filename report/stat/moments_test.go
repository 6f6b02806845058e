package stat

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The wanted values were computed with exact fractions.
func TestMoments(t *testing.T) {
	big := time.Duration(1_000_000_000_000_000)
	tests := []struct {
		name           string
		x              []time.Duration
		mean, sd       time.Duration
		skew           float64
		hasSD, hasSkew bool
	}{
		{"one value has a mean alone", []time.Duration{5}, 5, 0, 0, false, false},
		{"two values", []time.Duration{1000, 2000}, 1500, 707, 0, true, true},
		{"even gaps", []time.Duration{4000, 7000, 13000, 16000}, 10000, 5477, 0, true, true},
		{"ties and a tail", []time.Duration{1000, 1000, 1000, 1000, 10000}, 2800, 4025, 1.5, true, true},
		{"all equal", []time.Duration{7, 7, 7}, 7, 0, 0, true, false},
		{"a large offset keeps its digits", []time.Duration{big + 4, big + 7, big + 13, big + 46}, big + 18, 19, 1.030380124031903, true, true},
		{"powers", []time.Duration{1000, 3000, 9000, 27000, 81000}, 24200, 33365, 1.1871117181325117, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for cut := range len(tt.x) + 1 { // in one go, and as two parts merged
				var m, rest Moments
				for i, d := range tt.x {
					if i < cut {
						m.Add(d)
					} else {
						rest.Add(d)
					}
				}
				m.Merge(rest)
				mean, ok := m.Mean()
				sd, hasSD := m.StdDev()
				skew, hasSkew := m.Skew()
				if !ok || mean != tt.mean || sd != tt.sd || hasSD != tt.hasSD || hasSkew != tt.hasSkew || math.Abs(skew-tt.skew) > 1e-9 || m.N() != uint64(len(tt.x)) {
					t.Errorf("cut at %d: mean %d, sd %d %v, skew %v %v, want %d, %d %v, %v %v", cut, mean, sd, hasSD, skew, hasSkew,
						tt.mean, tt.sd, tt.hasSD, tt.skew, tt.hasSkew)
				}
			}
		})
	}
	var none Moments
	if _, ok := none.Mean(); ok {
		t.Error("nothing has a mean")
	}
	if n := testing.AllocsPerRun(100, func() { none.Add(3) }); n != 0 {
		t.Errorf("%v allocations for each sample", n)
	}
}

func TestCDF(t *testing.T) {
	x := msecs(3, 1, 2, 2)
	c := NewCDF(x, 1)
	for d, want := range map[time.Duration]float64{0: 0, msec: 0.2, 1999 * time.Microsecond: 0.2, 2 * msec: 0.6, 3 * msec: 0.8, time.Hour: 0.8} {
		if got, ok := c.At(d); !ok || got != want {
			t.Errorf("At(%v) = %v, %v, want %v", d, got, ok, want)
		}
	}
	if got, want := c.Steps(0), []Step{{msec, 0.2}, {2 * msec, 0.6}, {3 * msec, 0.8}}; !slices.Equal(got, want) {
		t.Errorf("Steps %v, want %v", got, want)
	}
	if got, want := c.Steps(2), []Step{{msec, 0.2}, {3 * msec, 0.8}}; !slices.Equal(got, want) {
		t.Errorf("two steps %v, want %v", got, want)
	}
	if got := c.Steps(1); len(got) != 1 || got[0].Delay != 3*msec {
		t.Errorf("one step %v", got)
	}
	if _, ok := NewCDF(nil, 0).At(0); ok || NewCDF(nil, 3).Steps(5) != nil {
		t.Error("a distribution of nothing")
	}
	if x[0] != 3*msec {
		t.Error("the samples were sorted in place")
	}
}

func TestHistogram(t *testing.T) {
	h, err := NewHistogram(msecs(0.5, 1, 1.5, 2, 2.5, 3, 9), 4, msecs(1, 2, 3))
	if err != nil || !slices.Equal(h.Counts, []int{2, 2}) || h.Below != 1 || h.Above != 2 || h.Lost != 4 {
		t.Errorf("%+v, %v, want 2 and 2, 1 below, 2 above, 4 lost", h, err)
	}
	for _, edges := range [][]time.Duration{nil, msecs(1), msecs(1, 1), msecs(2, 1)} {
		if _, err := NewHistogram(nil, 0, edges); !errors.Is(err, ErrEdges) {
			t.Errorf("edges %v: %v", edges, err)
		}
	}
	r := rand.New(rand.NewPCG(33, 34))
	x := ar1(500, 0.5, r)
	h, _ = NewHistogram(x, 0, msecs(97, 99, 100, 100.5, 104))
	sum := h.Below + h.Above
	for _, n := range h.Counts {
		sum += n
	}
	if sum != len(x) {
		t.Errorf("%d of %d counted", sum, len(x))
	}
}
