package report

import (
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// randomRecording is any recording that the types allow, sense or not: phases that overlap or end before they begin, unknown kinds, flows of phases
// that are not there, impossible times and counts.
func randomRecording(r *rand.Rand) *bufferbloat.Recording {
	rec := []func() *bufferbloat.Recording{fifoRun, idleRun, silentRun, twoOfFiveRun, interruptedRun, bothRun, irttRun, failedRun,
		func() *bufferbloat.Recording { return &bufferbloat.Recording{} }}[r.IntN(9)]()
	offset := func() time.Duration {
		switch r.IntN(12) {
		case 0:
			return time.Duration(r.Int64())
		case 1:
			return -time.Duration(r.Int64())
		case 2:
			return 0
		}
		return time.Duration(r.Int64N(int64(80 * second)))
	}
	for range r.IntN(8) {
		switch r.IntN(7) {
		case 0:
			for i := range rec.Phases {
				p := &rec.Phases[i]
				p.Start, p.End, p.From, p.To = offset(), offset(), offset(), offset()
			}
		case 1:
			for i := range rec.Phases {
				rec.Phases[i].Kind = bufferbloat.PhaseKind([]string{"idle", "load", "drain", "after"}[r.IntN(4)])
			}
		case 2:
			rec.Probes = append(rec.Probes, bufferbloat.ProbeSeries{Name: "more", Kind: "odd", Interval: offset(), Primary: r.IntN(2) == 0})
		case 3:
			for i := range rec.Flows {
				f := &rec.Flows[i].Result
				f.Bytes, f.First, f.Last, f.Flowed = r.Uint64(), offset(), offset(), r.IntN(3) > 0
				f.CountedBy = load.Counter(r.IntN(6))
				f.ServerCPU, f.HasServerCPU = math.NaN(), r.IntN(2) == 0
			}
		case 4:
			rec.CPU.Available = r.IntN(2) == 0
			for i := range rec.CPU.Samples {
				rec.CPU.Samples[i].At = offset()
				rec.CPU.Samples[i].Busy = [][]float64{nil, {math.NaN()}, {0.5}, {0.1, 0.2}}[r.IntN(4)]
			}
		case 5:
			rec.Phases, rec.Plan.Phases = rec.Phases[:r.IntN(len(rec.Phases)+1)], rec.Plan.Phases[:r.IntN(len(rec.Plan.Phases)+1)]
		case 6:
			rec.Truncated, rec.Ended = r.IntN(2) == 0, offset()
			rec.Started = time.Time{}
		}
	}
	for i := range rec.Probes {
		s := &rec.Probes[i]
		s.Samples = s.Samples[:r.IntN(min(len(s.Samples)+1, 400))]
		for j := range s.Samples {
			if r.IntN(4) > 0 {
				continue
			}
			s.Samples[j] = probe.Sample{Seq: r.Uint64(), Due: offset(), Sent: offset(), Outcome: probe.Outcome(r.IntN(11)), RTT: offset(), Stamp: host.Stamp(r.IntN(3))}
		}
	}
	return rec
}

func TestRandomRecordings(t *testing.T) {
	for s := range uint64(60) {
		holds(t, randomRecording(rand.New(rand.NewPCG(s, 0))), s%10 == 0)
	}
}

func FuzzNew(f *testing.F) {
	for s := range uint64(4) {
		f.Add(s, s*7)
	}
	f.Fuzz(func(t *testing.T, a, b uint64) { holds(t, randomRecording(rand.New(rand.NewPCG(a, b))), true) })
}

// holds checks what must be true of the result of any recording.
func holds(t *testing.T, rec *bufferbloat.Recording, document bool) {
	t.Helper()
	r := New(rec)
	for i := range r.Series {
		sumsUp(t, &r.Series[i].Count)
	}
	total := 0
	for i := range rec.Probes {
		total += len(rec.Probes[i].Samples)
	}
	for i := range r.Series {
		total -= r.Series[i].Count.Due
	}
	if total != 0 {
		t.Errorf("%d samples are in no count", total)
	}
	for i := range r.Phases {
		p := &r.Phases[i]
		for j := range p.Latency {
			l := &p.Latency[j]
			sumsUp(t, &l.Count)
			if l.N != l.Count.Answered() || l.Lost != l.Count.AllLost() {
				t.Errorf("n %d and lost %d of %+v", l.N, l.Lost, l.Count)
			}
			if !slices.IsSorted([]time.Duration{l.Min, l.P10, l.Median, l.P90, l.P99, l.Max}) || l.Mean < l.Min || l.Mean > l.Max {
				t.Errorf("out of order: %+v", l.Summary)
			}
			if l.OK() && (l.MedianRange.Low > l.Median || l.MedianRange.High < l.Median) {
				t.Errorf("median %v outside its interval %v to %v", l.Median, l.MedianRange.Low, l.MedianRange.High)
			}
		}
		for _, g := range p.Goodput {
			if g.Rate < 0 || g.OK == (g.Why != "") || g.Flowed > g.Planned {
				t.Errorf("goodput %v, OK %v, %q, %d of %d", g.Rate, g.OK, g.Why, g.Flowed, g.Planned)
			}
		}
	}
	if s := r.Status(); s != 0 && s != 1 && s != 4 {
		t.Errorf("status %d", s)
	}
	for _, write := range []func(io.Writer) error{r.WriteSpeedtest, r.WriteTable, r.WriteMarkdown, r.WriteCSV, Improvement(r, r).WriteText} {
		if err := write(io.Discard); err != nil {
			t.Error(err)
		}
	}
	if document {
		validate(t, []byte(written(t, r.WriteJSON)))
	}
}

func sumsUp(t *testing.T, c *Count) {
	t.Helper()
	if c.Sent != c.Received+c.Late+c.Lost+c.LostUp+c.LostDown+c.Unfinished+c.Invalid || c.Due != c.Sent+c.Unsent {
		t.Errorf("counts do not add up: %+v", *c)
	}
}
