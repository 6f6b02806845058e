package stat

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"
)

// A process makes series of delays that depend on each other as those of a queue do.
type process struct {
	name string
	make func(n int, r *rand.Rand) []time.Duration
}

// sawtooth is the queue of a TCP flow behind a FIFO: it rises evenly and drops to about a half when a packet is lost, which happens at a level
// that differs each time. One sample each 100 ms; period is the mean length of a tooth in samples.
func sawtooth(n, period int, r *rand.Rand) []time.Duration {
	x := make([]time.Duration, 0, n)
	level, peak := 0.5+0.5*r.Float64(), 1.0
	for range 200 + n { // the first 200 only lead into the steady state
		level += 0.5 / float64(period)
		if level >= peak {
			level /= 2
			peak = 0.8 + 0.4*r.Float64()
		}
		x = append(x, 40*msec+time.Duration(level*200e6+r.ExpFloat64()*2e6))
	}
	return x[200:]
}

func processes() []process {
	auto := func(rho float64) process {
		return process{fmt.Sprintf("AR(1), rho %v", rho), func(n int, r *rand.Rand) []time.Duration { return ar1(n, rho, r) }}
	}
	saw := func(period int) process {
		return process{fmt.Sprintf("sawtooth, %d samples a tooth", period), func(n int, r *rand.Rand) []time.Duration { return sawtooth(n, period, r) }}
	}
	return []process{auto(0), auto(0.5), auto(0.8), auto(0.9), auto(0.95), saw(5), saw(20), saw(50)}
}

// truth returns quantiles of what a process makes in a long run of n samples.
func truth(p process, n int, qs ...float64) []time.Duration {
	x := p.make(n, rand.New(rand.NewPCG(51, 52)))
	slices.Sort(x)
	var out []time.Duration
	for _, q := range qs {
		out = append(out, x[int(q*float64(len(x)-1))])
	}
	return out
}

type estimator func([]time.Duration, rand.Source, ...float64) ([]Estimate, error)

// coverage is how often the interval of a quantile held the truth.
type coverage struct {
	held float64 // share
	nEff float64 // mean
	weak float64 // share of the intervals that said so themselves
}

func measure(t *testing.T, p process, estimate estimator, n, rounds int, want []time.Duration, qs ...float64) []coverage {
	t.Helper()
	out := make([]coverage, len(qs))
	r := rand.New(rand.NewPCG(53, 54))
	for range rounds {
		e, err := estimate(p.make(n, r), r, qs...)
		if err != nil {
			t.Fatal(err)
		}
		for i := range e {
			c := &out[i]
			if e[i].Low <= want[i] && want[i] <= e[i].High {
				c.held += 1 / float64(rounds)
			}
			c.nEff += e[i].NEff / float64(rounds)
			if e[i].Weak() {
				c.weak += 1 / float64(rounds)
			}
		}
	}
	return out
}

// TestSimulateCoverage prints how often the intervals within a run hold the truth.
func TestSimulateCoverage(t *testing.T) {
	if os.Getenv("BLOAT_SIMULATE") == "" {
		t.Skip("set BLOAT_SIMULATE=1 to print the table that docs/statistics.md has")
	}
	const rounds, fewer = 2000, 300
	fmt.Printf("Intervals at 95%% within a run, %d runs a row (%d for the bootstrap); in brackets: most intervals of the row say themselves that they are weak.\n\n", rounds, fewer)
	fmt.Println("| samples of a run | n | n_eff, median | holds the median | n_eff, 90pct | holds the 90pct | block bootstrap, both |")
	fmt.Println("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, p := range processes() {
		want := truth(p, 1_000_000, 0.5, 0.9)
		for _, n := range []int{100, 300, 1000, 3000} {
			own := measure(t, p, EstimateQuantiles, n, rounds, want, 0.5, 0.9)
			boot := measure(t, p, BlockBootstrap, n, fewer, want, 0.5, 0.9)
			cell := func(c coverage) string {
				if c.weak > 0.5 {
					return fmt.Sprintf("%.0f | (%.1f%%)", c.nEff, c.held*100)
				}
				return fmt.Sprintf("%.0f | %.1f%%", c.nEff, c.held*100)
			}
			fmt.Printf("| %s | %d | %s | %s | %.0f%%, %.0f%% |\n", p.name, n, cell(own[0]), cell(own[1]), boot[0].held*100, boot[1].held*100)
		}
	}
}

func TestIntervalsHoldTheTruthOfDependentSamples(t *testing.T) {
	const rounds = 250
	for i, p := range processes() {
		if i%2 == 1 { // rho 0, 0.8 and 0.95, and a sawtooth
			continue
		}
		want := truth(p, 300_000, 0.5, 0.9)
		for i, c := range measure(t, p, EstimateQuantiles, 600, rounds, want, 0.5, 0.9) {
			// Three standard errors of so many rounds about 93 to 98%.
			if c.weak < 0.1 && (c.held < 0.93-0.048 || c.held > 0.999) {
				t.Errorf("%s, quantile %v: the 95%% interval holds the truth in %.1f%% of the runs, n_eff %.0f", p.name, []float64{0.5, 0.9}[i], c.held*100, c.nEff)
			}
		}
	}
}

func TestMeanIntervalHoldsTheTruth(t *testing.T) {
	r := rand.New(rand.NewPCG(57, 58))
	const rounds = 800
	for _, tt := range []struct {
		n   int
		rho float64
	}{{40, 0}, {120, 0.8}, {20000, 0.9}} {
		held, of := 0, rounds
		if tt.n > 1000 {
			of = 150
		}
		for range of {
			x := make([]float64, tt.n)
			for i, d := range ar1(tt.n, tt.rho, r) {
				x[i] = float64(d)
			}
			low, high, _, err := MeanInterval(x)
			if err != nil {
				t.Fatal(err)
			}
			if low <= 100e6 && 100e6 <= high {
				held++
			}
		}
		if got := float64(held) / float64(of); got < 0.9 || got > 0.99 {
			t.Errorf("n %d, rho %v: the interval holds the mean in %.1f%% of the runs", tt.n, tt.rho, got*100)
		}
	}
	if _, _, _, err := MeanInterval(make([]float64, 7)); !errors.Is(err, ErrTooFew) {
		t.Errorf("of seven: %v", err)
	}
	if low, high, n, err := MeanInterval([]float64{3, 3, 3, 3, 3, 3, 3, 3}); low != 3 || high != 3 || n != 8 || err != nil {
		t.Errorf("of equal values: %v to %v, %v, %v", low, high, n, err)
	}
}
