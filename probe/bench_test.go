package probe_test

import (
	"context"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// leaping is a clock on which every wait is over at once. beforeSleep is called in the sender's goroutine.
type leaping struct {
	offset      atomic.Int64
	beforeSleep func()
}

func (c *leaping) Now() time.Time { return anyTime.Add(time.Duration(c.offset.Load())) }

func (c *leaping) SleepUntil(ctx context.Context, t time.Time) error {
	c.beforeSleep()
	c.offset.Store(int64(t.Sub(anyTime)))
	return ctx.Err()
}

func (c *leaping) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(0, f) }

// mirror is a Transport that answers every probe at once.
type mirror struct {
	clock   host.Clock
	replies chan probe.Reply
	wake    chan struct{}
	closed  chan struct{}
}

func newMirror(clock host.Clock) *mirror {
	return &mirror{clock, make(chan probe.Reply, 256), make(chan struct{}, 8), make(chan struct{})}
}

func (m *mirror) Send(seq uint64) (time.Time, error) {
	at := m.clock.Now()
	m.replies <- probe.Reply{Seq: seq, At: at}
	return at, nil
}

func (m *mirror) Receive() (probe.Reply, error) {
	select {
	case r := <-m.replies:
		return r, nil
	case <-m.wake:
		return probe.Reply{}, os.ErrDeadlineExceeded
	case <-m.closed:
		return probe.Reply{}, net.ErrClosed
	}
}

func (m *mirror) Wake(time.Time) error { m.wake <- struct{}{}; return nil }
func (m *mirror) Close() error         { close(m.closed); return nil }

func TestTheSendAndReceivePathAllocatesNothing(t *testing.T) {
	clock := &leaping{beforeSleep: func() {}}
	var before, after runtime.MemStats
	const probes = 200_000
	_, err := probe.Run(t.Context(), t.Context(), clock, newMirror(clock), probe.Options{}, anyTime, probes, func(x probe.Sample) {
		if x.Seq == probes/2 {
			runtime.ReadMemStats(&before)
		}
	})
	runtime.ReadMemStats(&after)
	if got := after.Mallocs - before.Mallocs; err != nil || got > 200 {
		t.Errorf("error %v, %d allocations in %d probes; want at most 200, for what Run does once", err, got, probes/2)
	}
}

// The price of one probe in Run, without a socket: schedule, lock, tracker, and the hand-over between two goroutines.
func BenchmarkRun(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	clock := &leaping{beforeSleep: func() {
		if !b.Loop() {
			cancel()
		}
	}}
	b.ReportAllocs()
	if _, err := probe.Run(b.Context(), ctx, clock, newMirror(clock), probe.Options{}, anyTime, 0, func(probe.Sample) {}); err != nil {
		b.Fatal(err)
	}
}
