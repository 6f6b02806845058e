package bufferbloat

import (
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
	close(w.release)
	flushing.Wait()
	rec, err := r.finish()
	if err != nil || len(rec.Probes[0].Samples) != 2 || len(rec.Flows[0].Points) != 1 || len(rec.CPU.Samples) != 1 {
		t.Errorf("got %+v, %v; want two samples, a point and a CPU sample", rec, err)
	}
}
