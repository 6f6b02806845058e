package stat

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/montanaflynn/stats"
)

// The wanted values were computed with exact fractions, not with this program.
func TestLibraryAgreesWithExactValues(t *testing.T) {
	tests := []struct {
		name                       string
		x                          []float64
		p1, p10, p50, p90, p99, sd float64
		mean                       float64
	}{
		{"1 to 10", steps(1, 10), 1.09, 1.9, 5.5, 9.1, 9.91, 2.8722813232690143, 5.5},
		{"10 to 109", steps(10, 109), 10.99, 19.9, 59.5, 99.1, 108.01, 28.86607004772212, 59.5},
		{"one value", []float64{12.5}, 12.5, 12.5, 12.5, 12.5, 12.5, 0, 12.5},
		{"two values", []float64{18.75, 17.25}, 17.265, 17.4, 18, 18.6, 18.735, 0.75, 18},
		{"ties", []float64{5, 9, 5, 5, 5}, 5, 5, 5, 7.4, 8.84, 1.6, 5.8},
		{"a large offset", []float64{1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16},
			1000000004.09, 1000000004.9, 1000000010, 1000000015.1, 1000000015.91, 4.743416490252569, 1000000010},
		{"uneven gaps", []float64{15719, 18012, 22916, 26091, 41447, 55721},
			15833.65, 16865.5, 24503.5, 48584, 55007.3, 14175.828131796117, 29984.333333333332},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for p, want := range map[float64]float64{1: tt.p1, 10: tt.p10, 50: tt.p50, 90: tt.p90, 99: tt.p99} {
				got, err := stats.Percentile(tt.x, p)
				near(t, got, err, want)
			}
			got, err := stats.Mean(tt.x)
			near(t, got, err, tt.mean)
			got, err = stats.StandardDeviationPopulation(tt.x)
			near(t, got, err, tt.sd)
			got, err = stats.Median(tt.x)
			near(t, got, err, tt.p50)
		})
	}
	for _, bad := range []float64{-1, 101, math.NaN()} {
		if got, err := stats.Percentile(steps(1, 10), bad); !errors.Is(err, stats.ErrBounds) {
			t.Errorf("Percentile(1..10, %v) = %v, %v, want ErrBounds", bad, got, err)
		}
	}
	got, err := stats.AutoCorrelation([]float64{1, 2, 3, 4, 5, 4, 3, 2, 1}, 1)
	near(t, got, err, 0.5396825396825397)
}

func TestLibraryDiffersWhereTheDocSaysSo(t *testing.T) {
	first := func(v float64, err error) float64 {
		if err != nil {
			return math.NaN()
		}
		return v
	}
	quartiles, _ := stats.Quartile(steps(1, 5))
	squares := steps(1, 100)
	for i, v := range squares {
		squares[i] = v * v
	}
	tenth := make([]float64, 10)
	for i := range tenth {
		tenth[i] = 0.1
	}
	tests := []struct {
		name             string
		got, says, right float64 // says NaN: the library returns an error
	}{
		{"Percentile(1..3, 0) is an error", first(stats.Percentile(steps(1, 3), 0)), math.NaN(), 1},
		{"Quartile(1..5).Q1", quartiles.Q1, 1.5, 2},
		{"Quartile(1..5).Q3", quartiles.Q3, 4.5, 4},
		{"InterQuartileRange(1..5)", first(stats.InterQuartileRange(steps(1, 5))), 3, 2},
		{"PercentileNearestRank(1..250, 64.4)", first(stats.PercentileNearestRank(steps(1, 250), 64.4)), 162, 161},
		{"PercentileWeighted(1..4, 50)", first(stats.PercentileWeighted(steps(1, 4), []float64{1, 1, 1, 1}, 50)), 2, 2.5},
		{"Mean(0.1 ten times)", first(stats.Mean(tenth)), 0.09999999999999999, 0.1},
		{"Mean(1e16, 1, 1, 1, 1)", first(stats.Mean([]float64{1e16, 1, 1, 1, 1})), 2e15, 2000000000000000.75},
		{"TrimmedMean(squares of 1..100, 0.29)", first(stats.TrimmedMean(squares, 0.29)), 2711.5, 2697.1666666666665},
		{"StandardDeviation(1, 3) is the population's", first(stats.StandardDeviation([]float64{1, 3})), 1, math.Sqrt2},
	}
	for _, tt := range tests {
		if tt.got != tt.says && !(math.IsNaN(tt.got) && math.IsNaN(tt.says)) {
			t.Errorf("%s: the library now gives %v, the package doc says %v (right: %v); correct the doc", tt.name, tt.got, tt.says, tt.right)
		}
		if tt.got == tt.right {
			t.Errorf("%s: the library is right now (%v); correct the doc", tt.name, tt.got)
		}
	}
	if _, err := stats.Quartile([]float64{12.5}); err == nil {
		t.Error("Quartile of a single value is no error any more; correct the doc")
	}
	d, err := stats.Describe(steps(1, 3), false, &[]float64{0, 50})
	if err != nil || len(d.DescriptionPercentiles) != 1 {
		t.Errorf("Describe(1..3, 0 and 50) = %v, %v; the doc says that it drops 0 silently", d, err)
	}
	if strings.Contains(Rule, "7") == false {
		t.Errorf("Rule = %q does not name type 7", Rule)
	}
}

func steps(from, to int) []float64 {
	var x []float64
	for v := from; v <= to; v++ {
		x = append(x, float64(v))
	}
	return x
}

func near(t *testing.T, got float64, err error, want float64) {
	t.Helper()
	if err != nil || math.Abs(got-want) > 1e-12*math.Abs(want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}
