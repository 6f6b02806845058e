package bufferbloat

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// randomSamples are n samples of every kind, out of order by up to so many places.
func randomSamples(rnd *rand.Rand, n, disorder int) []probe.Sample {
	out := make([]probe.Sample, n)
	for i := range out {
		s := probe.Sample{Seq: uint64(i), Due: time.Duration(i) * 10 * time.Millisecond, Outcome: probe.Received + probe.Outcome(rnd.IntN(int(probe.Invalid))),
			Stamp: host.Stamp(rnd.IntN(int(host.LinkStamp) + 1))}
		s.Sent = s.Due + time.Duration(rnd.Int64N(1000))
		if s.Outcome.HasRTT() {
			s.RTT = time.Duration(rnd.Int64N(int64(time.Second)))
			if rnd.IntN(2) == 0 {
				s.Up, s.Down, s.HasOneWay = -time.Duration(rnd.Int64N(1000)), s.RTT, true
			}
		}
		out[i] = s
	}
	for i := range out {
		j := min(n-1, i+rnd.IntN(disorder+1))
		out[i], out[j] = out[j], out[i]
	}
	return out
}

func TestPackedSamplesAreTheSamplesInOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ n, disorder int }{{0, 0}, {1, 0}, {100, 5}, {30_000, 0}, {30_000, 3}, {30_000, 100}, {30_000, 29_999}} {
		samples := randomSamples(rnd, c.n, c.disorder)
		want := slices.SortedStableFunc(slices.Values(samples), bySeq)
		for name, shelf := range shelves() {
			p := packedSamples{shelf: shelf}
			for i := range samples {
				p.add(&samples[i])
			}
			p.finish()
			if got := slices.Collect(p.all); !slices.Equal(got, want) {
				t.Errorf("%s: %d samples, up to %d places out of order: they come back as %d others", name, c.n, c.disorder, len(got))
			}
			size := 0
			for _, r := range p.runs {
				size += r.size()
			}
			if c.n > 1000 && c.disorder == 0 && size > 10*c.n {
				t.Errorf("%d bytes for %d samples", size, c.n)
			}
		}
	}
}

func TestAPackedRecordingIsTheRecording(t *testing.T) {
	for _, whole := range []bool{true, false} {
		_, file := record(t, whole)
		want, err := ReadRecording(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadPacked(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		for i := range want.Probes {
			if a, b := slices.Collect(got.Probes[i].All()), slices.Collect(want.Probes[i].All()); !slices.Equal(a, b) {
				t.Errorf("samples %v, want %v", a, b)
			}
			if got.Probes[i].Len() != len(want.Probes[i].Samples) {
				t.Errorf("%d samples, want %d", got.Probes[i].Len(), len(want.Probes[i].Samples))
			}
			got.Probes[i].packed, want.Probes[i].Samples = nil, nil
		}
		for i := range got.Flows {
			f := &got.Flows[i]
			f.Points, f.packed = f.Readings(), nil
		}
		for i := range got.Others {
			q := &got.Others[i]
			q.At, q.Values = q.Columns()
			q.packed = nil
		}
		if got.packing = false; !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

func TestAWrittenRecordingIsReadBack(t *testing.T) {
	want, _ := record(t, true)
	want.Source = &Source{Program: "flent 2.1.1", Untold: []string{"a thing"}}
	want.Others = []Quantity{{Name: "backlog", Unit: "bytes", At: []time.Duration{1, 2}, Values: []float64{0.5, -3}}}
	want.Probes[0].Unscheduled, want.Probes[0].NoLoss = true, "nobody counted"
	if err := want.Check(); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if err := WriteRecording(&file, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadRecording(&file)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestCheckFindsWhatNoRunCanBe(t *testing.T) {
	for name, spoil := range map[string]func(*Recording){
		"a time before the start":    func(r *Recording) { r.Probes[0].Samples[0].Sent = -1 },
		"an RTT of a lost probe":     func(r *Recording) { r.Probes[0].Samples[0].Outcome = probe.Lost; r.Probes[0].Samples[0].RTT = 1 },
		"a counter that runs back":   func(r *Recording) { r.Flows[0].Points[1].Bytes = 0 },
		"two series of one name":     func(r *Recording) { r.Probes = append(r.Probes, r.Probes[0]) },
		"two flows of one name":      func(r *Recording) { r.Flows = append(r.Flows, r.Flows[0]) },
		"a phase that ends too soon": func(r *Recording) { r.Phases[0].End = r.Phases[0].Start - 1 },
		"values without times":       func(r *Recording) { r.Others = []Quantity{{Name: "x", Values: []float64{1}}} },
	} {
		rec, _ := record(t, true)
		if err := rec.Check(); err != nil {
			t.Fatalf("before: %v", err)
		}
		if spoil(rec); rec.Check() == nil {
			t.Errorf("%s passes", name)
		}
	}
}

func columns(series string, samples []probe.Sample) *sampleColumns {
	var c sampleColumns
	c.fill(series, samples)
	return &c
}

// FuzzFastLine holds the fast reader of lines to encoding/json: what it takes, it takes as that does.
func FuzzFastLine(f *testing.F) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for _, e := range []entry{
		{Samples: columns("icmp", randomSamples(rnd, 3, 0))},
		{Samples: columns("irtt", []probe.Sample{{Seq: 1, Outcome: probe.Received, RTT: 5, Up: -1, Down: 6, HasOneWay: true}, {Seq: 2, Outcome: probe.LostUp}})},
		{Points: &pointColumns{Flow: "download 1", At: []time.Duration{1, 2}, Bytes: []uint64{3, 4}}},
	} {
		b, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var fast lineReader
		got, ok := fast.read(b)
		if !ok {
			return
		}
		var want entry
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("%s: taken, and no JSON: %v", b, err)
		}
		a, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		w, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, w) {
			t.Errorf("got %s, want %s", a, w)
		}
	})
}

func TestTheFastReaderTakesWhatIsWritten(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var fast lineReader
	for _, n := range []int{1, 10, 500} {
		for _, e := range []entry{{Samples: columns("icmp", randomSamples(rnd, n, 3))}, {Points: &pointColumns{Flow: "f", At: make([]time.Duration, n), Bytes: make([]uint64, n)}}} {
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := fast.read(b); !ok {
				t.Errorf("left to encoding/json: %.200s", b)
			}
		}
	}
}

func BenchmarkReadPacked(b *testing.B) {
	rec := &Recording{Probes: []ProbeSeries{{Name: "icmp", Samples: randomSamples(rand.New(rand.NewPCG(7, 8)), 200_000, 10)}}}
	var file bytes.Buffer
	if err := WriteRecording(&file, rec); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadPacked(bytes.NewReader(file.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzPackedSamples holds packed samples to plain ones in the order of their sequence numbers, whatever the order in which they come. Each takes six bytes.
func FuzzPackedSamples(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0})
	f.Add([]byte("a sequence that goes up and down, and has some numbers more than once"))
	f.Add(bytes.Repeat([]byte{9, 1, 2, 3, 4, 5, 8, 5, 4, 3, 2, 1, 7, 0, 1, 0, 255, 130, 6, 9, 9, 9, 9, 255}, 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p packedSamples
		var want []probe.Sample
		for ; len(b) >= 6; b = b[6:] {
			s := probe.Sample{Seq: uint64(b[0]), Due: time.Duration(b[1]) << (b[2] % 48), Outcome: probe.Outcome(b[3]%8 + 1), Stamp: host.Stamp(b[3] >> 3 % 4)}
			s.Sent = time.Duration(b[2]) << (b[1] % 48)
			if s.Outcome.HasRTT() {
				s.RTT = time.Duration(b[4]) << (b[5] % 48)
			}
			if b[5] >= 128 {
				s.HasOneWay, s.Up, s.Down = true, -time.Duration(b[4])<<(b[2]%48), time.Duration(b[4])
			}
			p.add(&s)
			want = append(want, s)
		}
		p.finish()
		slices.SortStableFunc(want, bySeq)
		if got := slices.Collect(p.all); !slices.Equal(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
	})
}
