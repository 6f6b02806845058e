package main

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bufferbloat/cmd/internal/program"
	"bufferbloat/load/netperf"
)

// The share of Student's distribution between the quantiles of the table is the confidence that they stand for.
func TestTheTableOfStudentsTIsThatOfItsDensity(t *testing.T) {
	for level, row := range studentsT {
		want, err := strconv.ParseFloat(level, 64)
		if err != nil {
			t.Fatal(err)
		}
		for i, q := range row {
			nu := float64(i + 1)
			a, _ := math.Lgamma((nu + 1) / 2)
			b, _ := math.Lgamma(nu / 2)
			c := math.Exp(a-b) / math.Sqrt(nu*math.Pi)
			// With x = sqrt(nu) tan(u) the density becomes one without a tail.
			end, sum := math.Atan(q/math.Sqrt(nu)), 0.0
			const steps = 2000
			for k := range steps {
				u := end * (float64(k) + 0.5) / steps
				sum += c * math.Pow(math.Cos(u), nu-1) * math.Sqrt(nu) * end / steps
			}
			if got := 200 * sum; math.Abs(got-want) > 0.01 {
				t.Errorf("%s %%, %v degrees of freedom: %v holds %.3f %%", level, nu, q, got)
			}
		}
	}
}

func TestTheIntervalOfAMean(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		level  int
		want   float64
	}{
		{"one value says nothing of its spread", []float64{5}, 99, math.Inf(1)},
		{"equal values are known exactly", []float64{5, 5, 5}, 99, 0},
		{"three values", []float64{9, 10, 11}, 95, 2 * 4.303 / math.Sqrt(3) / 10},
		{"a large offset", []float64{1e12 + 1, 1e12 + 2, 1e12 + 3}, 95, 2 * 4.303 / math.Sqrt(3) / (1e12 + 2)},
		{"a mean of 0 has no share", []float64{-1, 0, 1}, 95, math.Inf(1)},
	} {
		if got := intervalWidth(tt.values, tt.level); got != tt.want && math.Abs(got-tt.want) > 1e-6*tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestTheFigureOfSeveralTestsIsTheirMean(t *testing.T) {
	m := meanFigures([]netperfFigures{{throughput: 1, elapsed: time.Second, warning: "late", sent: 7}, {throughput: 4, elapsed: 2 * time.Second, warning: "late"},
		{throughput: 1, elapsed: 3 * time.Second, warning: "slow", sent: 9}})
	if m.throughput != 2 || m.elapsed != 2*time.Second || m.tests != 3 || m.warning != "late; slow" || m.sent != 9 {
		t.Errorf("got %+v", m)
	}
}

func TestATestThatIsInterruptedBeforeItBeginsIsAnError(t *testing.T) {
	interrupted := &program.SignalError{Signal: syscall.SIGINT}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(interrupted)
	for _, most := range []int{1, 10} {
		n := &netperfRun{netperfFlags: &netperfFlags{fewest: 1, most: most}}
		if m, err := n.tests(ctx); !errors.Is(err, interrupted) {
			t.Errorf("up to %d tests: got %+v, %v, want the interrupt", most, m, err)
		}
	}
}

func TestFiguresThatStandBesideAnError(t *testing.T) {
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(&program.SignalError{Signal: syscall.SIGINT})
	cut := errors.Join(netperf.ErrCutShort)
	for _, tt := range []struct {
		name                 string
		ctx                  context.Context
		err                  error
		moved, endless, want bool
		warning              string
	}{
		{"an interrupted test", interrupted, context.Canceled, true, false, true, "interrupted"},
		{"the end of one without an end", interrupted, context.Canceled, true, true, true, ""},
		{"nothing was moved before the interrupt", interrupted, context.Canceled, false, true, false, ""},
		{"a test that the server cut short", t.Context(), cut, true, false, false, ""},
		{"one without an end that the server ended", t.Context(), cut, true, true, true, "the server ended it"},
		{"any other error", t.Context(), errors.New("x"), true, true, false, ""},
	} {
		n, m := &netperfRun{netperfFlags: &netperfFlags{endless: tt.endless}}, netperfFigures{}
		if got := n.stands(tt.ctx, tt.err, tt.moved, &m); got != tt.want || !strings.HasPrefix(m.warning, tt.warning) || (tt.warning == "") != (m.warning == "") {
			t.Errorf("%s: got %v with the warning %q, want %v with %q", tt.name, got, m.warning, tt.want, tt.warning)
		}
	}
}
