package stat

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestSketchStaysWithinItsStatedError(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	var s Sketch
	for round := range 400 {
		s = Sketch{}
		n := 1 + r.IntN(400)
		base, span := r.Int64N(1<<r.IntN(50)+1), 1+r.Int64N(1<<r.IntN(45))
		x := make([]time.Duration, n)
		for i := range x {
			x[i] = time.Duration(base + r.Int64N(span))
			if round%3 == 0 { // a long tail, from nanoseconds to minutes
				x[i] = time.Duration(math.Exp(r.Float64() * 25))
			}
			if !s.Add(x[i]) {
				t.Fatalf("%v was refused", x[i])
			}
		}
		lost := r.IntN(30)
		s.AddLost(uint64(lost))
		for _, q := range append(LadderQuantiles(), r.Float64(), r.Float64()) {
			got, err := s.Quantile(q)
			want, _ := Quantile(x, q)
			if err != nil || math.Abs(float64(got-want)) > SketchError*float64(want)+1 {
				t.Fatalf("n %d, q %v: sketch %d, exact %d (%v): beyond %v", n, q, got, want, err, SketchError)
			}
		}
		got, want := s.Summary(), Summarize(x, lost)
		if got.N != want.N || got.Lost != want.Lost || got.Min != want.Min || got.Max != want.Max || got.HasP99 != want.HasP99 ||
			(got.Mean-want.Mean).Abs() > 1+want.Mean/1e12 ||
			got.MedianWithLoss.Unbounded != want.MedianWithLoss.Unbounded || got.P90WithLoss.Unbounded != want.P90WithLoss.Unbounded ||
			math.Abs(float64(got.P90WithLoss.Value-want.P90WithLoss.Value)) > SketchError*float64(want.P90WithLoss.Value)+1 {
			t.Fatalf("sketch %+v\nexact  %+v", got, want)
		}
		if got.Min > got.P10 || got.P10 > got.Median || got.Median > got.P90 || got.P90 > got.P99 || got.P99 > got.Max || got.Mean < got.Min || got.Mean > got.Max {
			t.Fatalf("out of order: %+v", got)
		}
	}
}

func TestSketchAtItsEnds(t *testing.T) {
	var s Sketch
	if _, err := s.Quantile(0.5); !errors.Is(err, ErrNoSamples) {
		t.Errorf("of nothing: %v", err)
	}
	if got := s.Summary(); got != (Summary{}) {
		t.Errorf("of nothing: %+v", got)
	}
	if s.Add(-1) || s.N() != 0 {
		t.Error("a negative delay was taken")
	}
	s.AddLost(2)
	if got := s.Summary(); !got.MedianWithLoss.Unbounded || got.OK() {
		t.Errorf("all lost: %+v", got)
	}
	for _, d := range []time.Duration{0, math.MaxInt64} {
		if !s.Add(d) {
			t.Errorf("%d was refused", d)
		}
	}
	if got := s.Summary(); got.Min != 0 || got.Max != math.MaxInt64 || got.Median > got.P90 {
		t.Errorf("the whole span: %+v", got)
	}
	if _, err := s.Quantile(math.NaN()); !errors.Is(err, ErrQuantile) {
		t.Errorf("NaN: %v", err)
	}
}

func TestSketchesOfPartsMergeIntoThatOfTheWhole(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	parts, whole := make([]Sketch, 3), Sketch{}
	for range 3000 {
		d := time.Duration(r.ExpFloat64() * 1e8)
		whole.Add(d)
		parts[r.IntN(3)].Add(d)
	}
	whole.AddLost(7)
	parts[1].AddLost(7)
	var merged Sketch
	for _, i := range []int{2, 0, 1} {
		merged.Merge(&parts[i])
	}
	if merged.counts != whole.counts {
		t.Error("the classes differ")
	}
	a, b := merged.Summary(), whole.Summary()
	if (a.Mean - b.Mean).Abs() > 1 {
		t.Errorf("means %v and %v", a.Mean, b.Mean)
	}
	a.Mean = b.Mean
	if a != b {
		t.Errorf("merged %+v\nwhole  %+v", a, b)
	}
	ma, mb := merged.Moments(), whole.Moments()
	sa, _ := ma.StdDev()
	sb, _ := mb.StdDev()
	if (sa - sb).Abs() > 2 {
		t.Errorf("standard deviations %v and %v", sa, sb)
	}
}

func TestSketchNeedsNoMemoryPerSample(t *testing.T) {
	var s Sketch
	d := time.Duration(1)
	if n := testing.AllocsPerRun(1000, func() { d = d*3/2 + 1; s.Add(d & math.MaxInt64) }); n != 0 {
		t.Errorf("%v allocations for each sample", n)
	}
}

// BenchmarkSketch10Million is the whole job: 10 million samples in, the summary out.
func BenchmarkSketch10Million(b *testing.B) {
	x := make([]time.Duration, 1<<16)
	r := rand.New(rand.NewPCG(25, 26))
	for i := range x {
		x[i] = time.Duration((40 + 200*r.ExpFloat64()) * 1e6)
	}
	b.ReportAllocs()
	for b.Loop() {
		var s Sketch
		for i := range 10_000_000 {
			s.Add(x[i&(len(x)-1)])
		}
		if s.Summary().N != 10_000_000 {
			b.Fatal("samples are missing")
		}
	}
}
