package plot

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// recording reads one of the recordings that report's tests share: runs of 3 streams and 10 s through an emulated link of 20/4 Mbit/s and 40 ms.
func recording(t testing.TB, name string) *bufferbloat.Recording {
	t.Helper()
	f, err := os.Open("../testdata/" + name + ".bloat.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rec, err := bufferbloat.ReadRecording(f)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// lossy is the fifo run after losses: an outage of 1.5 s during the download, one probe in six lost during the upload, some that were not sent.
func lossy(t testing.TB) *bufferbloat.Recording {
	rec := recording(t, "fifo")
	for i := range rec.Probes {
		s := rec.Probes[i].Samples
		for j := range s {
			at := s[j].Sent.Seconds()
			switch {
			case at > 7 && at < 8.5:
				s[j].Outcome, s[j].RTT = probe.Lost, 0
			case at > 14 && j%6 == 0:
				s[j].Outcome, s[j].RTT = probe.LostUp, 0
			case at > 10 && at < 10.6:
				s[j].Outcome, s[j].RTT = probe.Unsent, 0
			}
		}
	}
	rec.Flows[1].Error = "192.0.2.1: connection reset by peer"
	rec.Flows[2].Error, rec.Flows[2].Result, rec.Flows[2].Points = "192.0.2.1: connection refused", bufferbloat.FlowResult{}, nil
	return rec
}

// hostile has names that are markup, steer a terminal, or are longer than any picture.
func hostile(t testing.TB) *bufferbloat.Recording {
	rec := recording(t, "fq_codel")
	const evil = "</text><script>alert(1)</script>\"'&\x1b[2J\u202e\x00\xff]]>"
	rec.Plan.Name, rec.Path.Host, rec.Path.Server, rec.Path.Lab = evil, evil+string(slices.Repeat([]rune{'W'}, 5000)), evil, nil
	for i := range rec.Phases {
		rec.Phases[i].Name = evil + rec.Phases[i].Name
	}
	for i := range rec.Probes {
		rec.Probes[i].Name, rec.Probes[i].Target = evil+rec.Probes[i].Name, evil
	}
	for i := range rec.Flows {
		rec.Flows[i].Name, rec.Flows[i].Phase = evil+rec.Flows[i].Name, evil+rec.Flows[i].Phase
	}
	return rec
}

// one is a run with a single answered probe.
func one() *bufferbloat.Recording {
	return &bufferbloat.Recording{
		Phases: []bufferbloat.Phase{{Name: "idle", Kind: bufferbloat.Idle, End: time.Second, To: time.Second}},
		Probes: []bufferbloat.ProbeSeries{{Name: "icmp", Interval: time.Second, Samples: []probe.Sample{{Sent: time.Millisecond, Outcome: probe.Received, RTT: 20 * time.Millisecond}}}},
	}
}

// long is a run of n probes, some of which are lost, with one that took a hundred times longer than all others.
func long(n int) *bufferbloat.Recording {
	rec := one()
	rec.Phases[0].End, rec.Phases[0].To = time.Duration(n)*time.Millisecond, time.Duration(n)*time.Millisecond
	rec.Ended = rec.Phases[0].End
	s := &rec.Probes[0]
	s.Interval, s.Samples = time.Millisecond, make([]probe.Sample, n)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range s.Samples {
		at := time.Duration(i) * time.Millisecond
		s.Samples[i] = probe.Sample{Seq: uint64(i), Due: at, Sent: at, Outcome: probe.Received, RTT: time.Duration(1e6 + rnd.IntN(1e6))}
		if rnd.IntN(3) == 0 {
			s.Samples[i].Outcome, s.Samples[i].RTT = probe.Lost, 0
		}
	}
	s.Samples[n/2].Outcome, s.Samples[n/2].RTT = probe.Received, 200*time.Millisecond
	return rec
}

// random is any recording that the types allow, sense or not.
func random(t testing.TB, r *rand.Rand) *bufferbloat.Recording {
	rec := []func() *bufferbloat.Recording{func() *bufferbloat.Recording { return lossy(t) }, func() *bufferbloat.Recording { return hostile(t) },
		one, func() *bufferbloat.Recording { return &bufferbloat.Recording{} }, func() *bufferbloat.Recording { return long(50) }}[r.IntN(5)]()
	offset := func() time.Duration {
		switch r.IntN(8) {
		case 0:
			return time.Duration(r.Int64())
		case 1:
			return -time.Duration(r.Int64())
		case 2:
			return 0
		case 3:
			return math.MaxInt64
		}
		return time.Duration(r.Int64N(int64(40 * time.Second)))
	}
	for range r.IntN(10) {
		switch r.IntN(8) {
		case 7:
			q := bufferbloat.Quantity{Name: "x" + []string{"::tcp_rtt", "::tcp_cwnd", "::backlog_bytes", ""}[r.IntN(4)]}
			for range r.IntN(20) {
				q.At = append(q.At, offset())
				q.Values = append(q.Values, []float64{0, -1, 1e300, r.Float64(), math.NaN(), math.Inf(1)}[r.IntN(6)])
			}
			rec.Others = append(rec.Others, q)
		case 0:
			for i := range rec.Phases {
				p := &rec.Phases[i]
				p.Start, p.End, p.From, p.To = offset(), offset(), offset(), offset()
			}
		case 1:
			for i := range rec.Phases {
				rec.Phases[i].Kind = bufferbloat.PhaseKind([]string{"idle", "load", "drain", "after", ""}[r.IntN(5)])
			}
		case 2:
			rec.Probes = append(rec.Probes, bufferbloat.ProbeSeries{Interval: offset(), Primary: r.IntN(2) == 0})
		case 3:
			rec.Flows = append(rec.Flows, bufferbloat.Flow{Direction: load.Direction(r.IntN(4)), Points: make([]bufferbloat.Point, r.IntN(4))})
			for i := range rec.Flows {
				f := &rec.Flows[i]
				f.Result.Bytes, f.Result.First, f.Result.Last, f.Result.Flowed = r.Uint64(), offset(), offset(), r.IntN(3) > 0
				for j := range f.Points {
					if r.IntN(3) == 0 {
						f.Points[j] = bufferbloat.Point{At: offset(), Bytes: r.Uint64()}
					}
				}
			}
		case 4:
			rec.Ended, rec.Truncated = offset(), r.IntN(2) == 0
		case 5:
			rec.Path.Lab = &bufferbloat.LabLink{RTT: offset(), Queue: "fifo", Down: 1, Up: -1, BufferDown: math.MaxInt}
		case 6:
			for i := range rec.Probes {
				for j := range rec.Probes[i].Samples {
					if r.IntN(3) == 0 {
						rec.Probes[i].Samples[j] = probe.Sample{Due: offset(), Sent: offset(), Outcome: probe.Outcome(r.IntN(11)), RTT: offset(), Stamp: host.Stamp(r.IntN(3))}
					}
				}
			}
		}
	}
	return rec
}
