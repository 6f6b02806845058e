package compare

import (
	"fmt"
	"os"
	"testing"
)

// outcome counts what many comparisons of like sets come to.
type outcome struct{ regression, improvement, equivalent, inconclusive int }

// simulate compares sets of k runs, rounds times. between is how far runs differ from each other for no reason, as a share; the new line is the
// old one with its delays scaled.
func simulate(t *testing.T, k, rounds int, between, scale, loss float64) outcome {
	t.Helper()
	var out outcome
	r := newRand(uint64(k)*1000 + uint64(between*1000))
	l := goodLine()
	l.within, l.loss = 0.1, loss
	for range rounds {
		old, now := l.runs("old", k, between, r), l.scaled(scale).runs("new", k, between, r)
		switch compared(t, old, now, Options{}).Verdict() {
		case Regression:
			out.regression++
		case Improvement:
			out.improvement++
		case Equivalent:
			out.equivalent++
		default:
			out.inconclusive++
		}
	}
	return out
}

// TestSimulateCompare prints how often compare raises a false alarm, and how often it finds a true change.
func TestSimulateCompare(t *testing.T) {
	if os.Getenv("BLOAT_SIMULATE") == "" {
		t.Skip("set BLOAT_SIMULATE=1 to print the tables that docs/statistics.md has")
	}
	const rounds = 1000
	share := func(n int) string { return fmt.Sprintf("%.1f%%", float64(n)*100/rounds) }
	fmt.Printf("Equal lines: verdicts of %d comparisons a row, eight metrics judged in each.\n\n", rounds)
	fmt.Println("| runs on a side | runs differ by (sd) | regression (false alarm) | improvement (false) | equivalent | inconclusive |")
	fmt.Println("| ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, k := range []int{1, 2, 3, 4, 6, 10} {
		for _, between := range []float64{0, 0.02, 0.05, 0.1} {
			o := simulate(t, k, rounds, between, 1, 0.003)
			fmt.Printf("| %d | %.0f%% | %s | %s | %s | %s |\n", k, between*100, share(o.regression), share(o.improvement), share(o.equivalent), share(o.inconclusive))
		}
	}
	fmt.Printf("\nDelays under load that truly rose: how often compare says regression (%d comparisons a field; margin 10%%).\n\n", rounds)
	scales := []float64{1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2}
	fmt.Print("| runs on a side | runs differ by (sd) |")
	for _, s := range scales {
		fmt.Printf(" +%.0f%% |", (s-1)*100)
	}
	fmt.Print("\n| ---: | ---: |")
	for range scales {
		fmt.Print(" ---: |")
	}
	fmt.Println()
	for _, k := range []int{1, 3, 6, 10} {
		for _, between := range []float64{0.02, 0.05, 0.1} {
			fmt.Printf("| %d | %.0f%% |", k, between*100)
			for _, s := range scales {
				fmt.Printf(" %s |", share(simulate(t, k, rounds, between, s, 0.003).regression))
			}
			fmt.Println()
		}
	}
}

func TestEqualRunsRaiseNoAlarm(t *testing.T) {
	const rounds = 80
	for _, tt := range []struct {
		k       int
		between float64
	}{{1, 0}, {1, 0.1}, {3, 0.05}, {6, 0.05}, {6, 0.1}} {
		// 5% of 80 are 4, and 9 are two and a half standard errors more.
		if o := simulate(t, tt.k, rounds, tt.between, 1, 0.003); o.regression > 9 || o.improvement > 9 {
			t.Errorf("%d runs that differ by %v: %+v of %d comparisons of equal lines", tt.k, tt.between, o, rounds)
		}
	}
}

func TestATrueRegressionIsFound(t *testing.T) {
	const rounds = 30
	for _, tt := range []struct {
		k     int
		scale float64
		least int
	}{{1, 2, 29}, {3, 1.5, 27}, {6, 1.5, 29}, {10, 1.3, 27}} {
		if o := simulate(t, tt.k, rounds, 0.05, tt.scale, 0.003); o.regression < tt.least {
			t.Errorf("%d runs each, delays up by %.0f%%: %+v of %d, want at least %d regressions", tt.k, (tt.scale-1)*100, o, rounds, tt.least)
		}
	}
}

// BenchmarkCompare compares two sets of 20 runs.
func BenchmarkCompare(b *testing.B) {
	r := newRand(30)
	old, now := goodLine().runs("old", 20, 0.05, r), goodLine().runs("new", 20, 0.05, r)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Compare(old, now, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
