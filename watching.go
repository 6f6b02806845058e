package bufferbloat

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// Watch is something that a run reads on a schedule beside its flows and probes: a queue's counters, an interface's, an emulated link's.
// What it reads becomes Quantities of the Recording, on the run's time base.
type Watch struct {
	Name string // what is watched, for findings: "queue of eth0"
	// Every is the time between readings; 0 is 100 ms. A long run reads less often, so that no quantity has more than 20000 values.
	Every  time.Duration
	Series []WatchSeries // what Read fills in, in its order
	// Read reads all of them now, into values, which has a place for each and holds NaN everywhere. What is not known now stays NaN. It is called
	// from one goroutine at a time, should take less than Every, and must not wait for anything that may never come. After an error, the
	// values count as not known; a Watch with 10 errors in a row ends, and a finding says so.
	Read func(values []float64) error
	// Doubts is asked once, when flows and probes have ended and no Read is under way, what was seen that bears on the result; nil for nothing.
	Doubts func() []Finding
}

// WatchSeries names one quantity.
type WatchSeries struct {
	Name string // unique in the run: "eth0::backlog_bytes"
	Unit string // "bytes"; "" for none
}

const (
	watchStep    = 100 * time.Millisecond
	mostReadings = 20_000 // of one Watch
	watchErrors  = 10     // in a row, after which a Watch ends
)

// every is the time between the readings of a run of that length.
func (w *Watch) every(length time.Duration) time.Duration {
	d := w.Every
	if d <= 0 {
		d = watchStep
	}
	return d * max(1, (length+mostReadings*d-1)/(mostReadings*d))
}

// watch reads all that the run watches until ctx is done.
func (r *run) watch(ctx context.Context) {
	var group sync.WaitGroup
	for i := range r.o.Watch {
		w := &r.o.Watch[i]
		group.Go(func() {
			if err := r.watchOne(ctx, w); err != nil {
				r.find(Finding{Code: "watch_ended", Severity: Note, Text: fmt.Sprintf("%s: it is not watched any more: %v", w.Name, err)})
			}
		})
	}
	group.Wait()
}

// watchOne returns an error where it gave up.
func (r *run) watchOne(ctx context.Context, w *Watch) error {
	values := make([]float64, len(w.Series))
	every := w.every(r.plan.Length())
	failed := 0
	for n := time.Duration(0); r.h.SleepUntil(ctx, r.start.Add(n*every)) == nil; n++ {
		for i := range values {
			values[i] = math.NaN()
		}
		at := r.now()
		if err := w.Read(values); err != nil {
			if failed++; failed == watchErrors {
				return err
			}
		} else {
			failed = 0
			for i, s := range w.Series {
				r.rec.quantity(s.Name, s.Unit, at, values[i])
			}
		}
		n = max(n, r.now()/every) // readings that were missed are not made up for
	}
	return nil
}

// doubts are the findings of all that knows something against the run.
func (r *run) doubts() (found []Finding) {
	if r.o.Doubts != nil {
		found = r.o.Doubts()
	}
	for i := range r.o.Watch {
		if ask := r.o.Watch[i].Doubts; ask != nil {
			found = append(found, ask()...)
		}
	}
	if f, refused := r.rec.refusedValues(); refused {
		found = append(found, f)
	}
	return found
}
