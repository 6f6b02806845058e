package bufferbloat

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bufferbloat/load"
	"bufferbloat/probe"
)

// stuckWriter is a file on a disk that takes long: once it is slow, Write waits until release is closed, and says on stuck that it does.
type stuckWriter struct {
	slow           atomic.Bool
	stuck, release chan struct{}
	once           sync.Once
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	if w.slow.Load() {
		w.once.Do(func() { close(w.stuck) })
		<-w.release
	}
	return len(b), nil
}

// TestASlowDiskHoldsUpNoProbe fails by the test's own time limit where it does.
func TestASlowDiskHoldsUpNoProbe(t *testing.T) {
	w := &stuckWriter{stuck: make(chan struct{}), release: make(chan struct{})}
	r := newRecorder(time.Time{}, w)
	r.put(&entry{Series: &ProbeSeries{Name: "icmp"}})
	r.put(&entry{Flow: &Flow{Name: "download 1", Direction: load.Download}})
	r.sample("icmp", probe.Sample{Seq: 0, Outcome: probe.Lost})
	w.slow.Store(true)
	var flushing sync.WaitGroup
	flushing.Go(r.flush)
	<-w.stuck
	r.sample("icmp", probe.Sample{Seq: 1, Outcome: probe.Lost})
	r.point("download 1", Point{time.Second, 1})
	r.cpuSample(CPUSample{At: time.Second, Busy: []float64{1}})
	r.quantity("a new one", "", time.Second, 1)
	close(w.release)
	flushing.Wait()
	rec, err := r.finish()
	if err != nil || len(rec.Probes[0].Samples) != 2 || len(rec.Flows[0].Points) != 1 || len(rec.CPU.Samples) != 1 || len(rec.Others) != 1 {
		t.Errorf("got %+v, %v; want two samples, a point, a CPU sample and a quantity", rec, err)
	}
}

func TestQuantitiesAreBounded(t *testing.T) {
	r := newRecorder(time.Time{}, nil)
	for i := range maxQuantities + 1 {
		r.quantity(fmt.Sprint(i), "", 0, 1)
	}
	r.values = maxValues - 1
	r.quantity("0", "", time.Second, 2)
	r.quantity("0", "", 2*time.Second, 3)
	f, refused := r.refusedValues()
	rec, err := r.finish()
	if err != nil || len(rec.Others) != maxQuantities || len(rec.Others[0].Values) != 2 {
		t.Errorf("got %d quantities, the first with %v, %v; want %d, and two values", len(rec.Others), rec.Others[0].Values, err, maxQuantities)
	}
	if !refused || !strings.Contains(f.Text, ": 2 are left out") {
		t.Errorf("got the finding %+v, want two values left out", f)
	}
}

func TestKeepingAQuantityAllocatesNothing(t *testing.T) {
	r := newRecorder(time.Time{}, nil)
	r.quantity("queue::backlog_bytes", "bytes", 0, 1)
	r.kept.values[0].At, r.kept.values[0].Values = make([]time.Duration, 0, 2000), make([]float64, 0, 2000)
	if n := testing.AllocsPerRun(1000, func() { r.quantity("queue::backlog_bytes", "bytes", time.Second, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestADrainWaitsForPagesWhereNothingElseTells(t *testing.T) {
	ms := time.Millisecond
	for _, tt := range []struct {
		kinds []ProbeKind // with RTTs of 100 ms, 200 ms, ...
		want  time.Duration
	}{
		{[]ProbeKind{Page}, 100 * ms},
		{[]ProbeKind{DNS, TLS, Fetch}, 300 * ms},
		{[]ProbeKind{TCPRR, Page}, 100 * ms},
		{[]ProbeKind{ICMP, TCP, Page}, 100 * ms},
		{nil, 0},
	} {
		r := newRecorder(time.Now(), nil)
		for i, kind := range tt.kinds {
			r.put(&entry{Series: &ProbeSeries{Name: string(kind), Kind: string(kind)}})
			r.sample(string(kind), probe.Sample{Sent: time.Second, Outcome: probe.Received, RTT: time.Duration(i+1) * 100 * ms})
			r.sample(string(kind), probe.Sample{Seq: 1, Sent: 0, Outcome: probe.Received, RTT: time.Hour})
		}
		r.flush()
		if got := r.highestRTT(time.Second); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.kinds, got, tt.want)
		}
	}
}
