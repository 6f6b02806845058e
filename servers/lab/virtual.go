package lab

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// oneProcessor lets one virtual driver at a time have the process's only processor. GOMAXPROCS belongs to the process, and so must this.
var oneProcessor = make(chan struct{}, 1)

// runVirtual advances the clock from event to event. One packet is delivered, one timer fired or one waiting goroutine woken at a time,
// and then everything that follows from it runs until all wait: so little is runnable together that it runs in the same order each time.
func (l *Lab) runVirtual(ctx context.Context) {
	select {
	case oneProcessor <- struct{}{}:
		defer func() { <-oneProcessor }()
	case <-ctx.Done():
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	collector := newCollector()
	defer collector.restore()
	q := newQuiescence()
	for {
		q.await(ctx)
		if collector.collect() {
			q.await(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		do := l.step()
		l.armed = 0
		if do.nothing {
			l.armed = never
		}
		l.mu.Unlock()
		switch {
		case do.turn != nil:
			signal(do.turn)
		case do.deliver.t != nil:
			l.deliver(do.deliver)
		case do.fire != nil:
			l.calls.Go(do.fire.f)
		case do.nothing:
			select {
			case <-l.kick:
			case <-ctx.Done():
				return
			}
		}
	}
}

// collector collects garbage while every goroutine waits. A collection at a time of the runtime's choice makes goroutines that allocate wait for it,
// so that others overtake them, and two runs with one seed differ.
type collector struct {
	percent int // what was set before
	turns   int // since the heap was looked at
	limit   uint64
	heap    [1]metrics.Sample
}

const (
	collectorTurns = 256
	smallestHeap   = 8 << 20
)

func newCollector() *collector {
	c := &collector{percent: debug.SetGCPercent(-1), limit: smallestHeap}
	c.heap[0].Name = "/memory/classes/heap/objects:bytes"
	return c
}

func (c *collector) restore() { debug.SetGCPercent(c.percent) }

// collect does so where it is due, and reports whether it was. A process that is to collect nothing keeps everything.
func (c *collector) collect() bool {
	if c.turns++; c.turns < collectorTurns || c.percent < 0 {
		return false
	}
	c.turns = 0
	if c.size() < c.limit {
		return false
	}
	runtime.GC()
	live := c.size()
	c.limit = max(smallestHeap, live+live*uint64(c.percent)/100)
	return true
}

// size is that of what is on the heap, garbage included.
func (c *collector) size() uint64 {
	metrics.Read(c.heap[:])
	return c.heap[0].Value.Uint64()
}

// step is what the virtual driver does next: at most one of its fields is set, none where something happened inside the links alone.
type step struct {
	turn    chan struct{} // somebody may go on
	deliver arrival
	fire    *timer
	nothing bool // nothing is pending
}

// step advances the clock to the next event. The caller holds l.mu.
func (l *Lab) step() step {
	if len(l.turns) > 0 {
		turn := l.turns[0]
		l.turns = l.turns[:copy(l.turns, l.turns[1:])]
		return step{turn: turn}
	}
	next := l.next()
	if next == never {
		return step{nothing: true}
	}
	now := max(next, l.elapsed())
	l.virtual.Store(int64(now))
	if len(l.arrivals) == 0 {
		l.down.Advance(now, l.arrived)
		l.up.Advance(now, l.arrived)
	}
	if len(l.arrivals) > 0 {
		a := l.arrivals[0]
		l.arrivals = l.arrivals[:copy(l.arrivals, l.arrivals[1:])]
		l.took(a)
		return step{deliver: a}
	}
	return step{fire: l.takeDue(now)}
}

// quiescence tells when every goroutine of the process waits.
type quiescence struct {
	samples [2]metrics.Sample
	// outside is how many goroutines sit in system calls all the time, such as the one that waits for signals.
	outside uint64
}

const (
	runnable = iota
	notInGo

	outsidePatience = 50 * time.Millisecond
)

func newQuiescence() *quiescence {
	q := &quiescence{}
	q.samples[runnable].Name = "/sched/goroutines/runnable:goroutines"
	q.samples[notInGo].Name = "/sched/goroutines/not-in-go:goroutines"
	metrics.Read(q.samples[:])
	q.outside = q.samples[notInGo].Value.Uint64()
	return q
}

// await lets the others run until none is runnable, or ctx is done. With one processor the caller is then the only one that runs, so the
// count is exact.
func (q *quiescence) await(ctx context.Context) {
	var patience time.Duration
	for n := 1; ; n++ {
		runtime.Gosched()
		metrics.Read(q.samples[:])
		outside := q.samples[notInGo].Value.Uint64()
		switch {
		case q.samples[runnable].Value.Uint64() > 0:
			if n%1024 == 0 && ctx.Err() != nil {
				return
			}
		case outside <= q.outside:
			q.outside = outside
			return
		case patience >= outsidePatience:
			q.outside = outside // it is there to stay
			return
		default:
			// This waits in real time, for what happens in real time: the operating system's answer.
			const pause = 100 * time.Microsecond
			time.Sleep(pause)
			patience += pause
		}
	}
}
