package stat

import (
	"errors"
	"slices"
	"sort"
	"time"
)

// CDF is the empirical distribution of delays, lost probes counted as later than any of them.
type CDF struct {
	sorted []time.Duration
	lost   int
}

// NewCDF returns the distribution of x and of lost losses. x is not modified and not kept.
func NewCDF(x []time.Duration, lost int) CDF {
	return CDF{slices.Sorted(slices.Values(x)), max(lost, 0)}
}

// At returns the share of all probes whose delay is at most d, or false where there are none. With losses it stays below 1.
func (c CDF) At(d time.Duration) (float64, bool) {
	n := len(c.sorted) + c.lost
	if n == 0 {
		return 0, false
	}
	below := sort.Search(len(c.sorted), func(i int) bool { return c.sorted[i] > d })
	return float64(below) / float64(n), true
}

// Step is a point of a distribution: so large a share is at most Delay.
type Step struct {
	Delay time.Duration
	Share float64
}

// Steps returns the points at which the distribution rises, each delay once. With limit above 0 there are at most limit of them, spread evenly
// over the ranks, the first and the last delay always among them (limit 1 leaves the last).
func (c CDF) Steps(limit int) []Step {
	var out []Step
	n := float64(len(c.sorted) + c.lost)
	for i, d := range c.sorted {
		if i+1 == len(c.sorted) || c.sorted[i+1] != d {
			out = append(out, Step{d, float64(i+1) / n})
		}
	}
	if limit <= 0 || len(out) <= limit {
		return out
	}
	if limit == 1 {
		return out[len(out)-1:]
	}
	thin := make([]Step, limit)
	for i := range thin {
		thin[i] = out[i*(len(out)-1)/(limit-1)]
	}
	return thin
}

// Histogram counts delays by class: class i holds Edges[i] <= d < Edges[i+1]. What lies outside is counted in Below and Above, and Lost by itself.
type Histogram struct {
	Edges              []time.Duration
	Counts             []int // one fewer than Edges
	Below, Above, Lost int
}

// ErrEdges says that a histogram was asked for with edges that do not rise, or with fewer than two.
var ErrEdges = errors.New("want two edges or more, each above the one before it")

// NewHistogram counts x into the classes between edges. Neither is modified; the edges are copied.
func NewHistogram(x []time.Duration, lost int, edges []time.Duration) (Histogram, error) {
	for i := 1; i < len(edges); i++ {
		if edges[i] <= edges[i-1] {
			return Histogram{}, ErrEdges
		}
	}
	if len(edges) < 2 {
		return Histogram{}, ErrEdges
	}
	h := Histogram{Edges: slices.Clone(edges), Counts: make([]int, len(edges)-1), Lost: lost}
	for _, d := range x {
		i := sort.Search(len(edges), func(i int) bool { return edges[i] > d }) // the first edge above d
		switch i {
		case 0:
			h.Below++
		case len(edges):
			h.Above++
		default:
			h.Counts[i-1]++
		}
	}
	return h, nil
}
