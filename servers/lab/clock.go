package lab

import (
	"container/heap"
	"context"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"

	"bufferbloat/internal/host"
)

// virtualEpoch is what a virtual clock shows at first.
var virtualEpoch = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// elapsed returns the time since l.base.
func (l *Lab) elapsed() time.Duration {
	if l.config.Virtual {
		return time.Duration(l.virtual.Load())
	}
	return time.Since(l.base)
}

// timer is a call that is due at a time.
type timer struct {
	l        *Lab
	f        func()
	at       time.Duration
	sequence uint64 // of two timers that are due together, the one set first comes first
	index    int    // in l.timers, negative where it is not in there
}

// after returns a timer that calls f in d from now, in a goroutine of its own.
func (l *Lab) after(d time.Duration, f func()) *timer {
	t := &timer{l: l, f: f, index: -1}
	t.Reset(d)
	return t
}

// Stop implements host.Timer and tcpip.Timer.
func (t *timer) Stop() bool {
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	if t.index < 0 {
		return false
	}
	heap.Remove(&t.l.timers, t.index)
	return true
}

// Reset implements tcpip.Timer.
func (t *timer) Reset(d time.Duration) {
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	t.l.schedule(t, d)
}

// schedule makes t due in d from now. The caller holds l.mu.
func (l *Lab) schedule(t *timer, d time.Duration) {
	if l.closed {
		return
	}
	t.at = l.elapsed()
	if d = max(d, 0); t.at < never-d {
		t.at += d
	} else {
		t.at = never
	}
	l.sequence++
	t.sequence = l.sequence
	if t.index >= 0 {
		heap.Fix(&l.timers, t.index)
	} else {
		heap.Push(&l.timers, t)
	}
	l.arm()
}

// takeDue removes the timer that is due first, nil where none is due at now. The caller holds l.mu.
func (l *Lab) takeDue(now time.Duration) *timer {
	if len(l.timers) == 0 || l.timers[0].at > now {
		return nil
	}
	return heap.Pop(&l.timers).(*timer)
}

// timers is a heap, the earliest first.
type timers []*timer

func (h timers) Len() int { return len(h) }

func (h timers) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].sequence < h[j].sequence
}

func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *timers) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *timers) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}

// stackClock is the clock that the stacks run on.
type stackClock struct{ l *Lab }

// Now is used by the stacks only to stamp datagrams as they arrive. The driver hands them over in its own goroutine, so the time of the
// delivery at hand is the packet's own, however late the driver is.
func (c stackClock) Now() time.Time {
	if at := c.l.delivering.Load(); at >= 0 {
		return c.l.base.Add(time.Duration(at))
	}
	return c.l.base.Add(c.l.elapsed())
}

// NowMonotonic begins at one second, because the stacks take 0 for no time at all. It never returns the same time twice: of two segments
// with the same time of transmission, gVisor's RACK takes the later one for overdue as soon as the earlier one is acknowledged (the
// comparison of rack.go's detectLoss is the wrong way round for them), and sends it again. In virtual time a whole burst would have one time.
func (c stackClock) NowMonotonic() tcpip.MonotonicTime {
	for {
		last := c.l.monotonic.Load()
		now := max(int64(c.l.elapsed()), last+1)
		if c.l.monotonic.CompareAndSwap(last, now) {
			return tcpip.MonotonicTime{}.Add(time.Second + time.Duration(now))
		}
	}
}

func (c stackClock) AfterFunc(d time.Duration, f func()) tcpip.Timer { return c.l.after(d, f) }

// Now implements host.Clock.
func (h *Host) Now() time.Time { return h.lab.base.Add(h.lab.elapsed()) }

// AfterFunc implements host.Clock. The call is not made once the lab is over.
func (h *Host) AfterFunc(d time.Duration, f func()) host.Timer { return h.lab.after(d, f) }

// SleepUntil implements host.Clock. When the lab ends first, it returns an error that wraps net.ErrClosed.
func (h *Host) SleepUntil(ctx context.Context, t time.Time) error {
	if err := h.lab.begun(ctx); err != nil {
		return err
	}
	d := t.Sub(h.Now())
	if d <= 0 {
		return nil
	}
	woken := make(chan struct{})
	wake := h.lab.after(d, func() { close(woken) })
	defer wake.Stop()
	select {
	case <-woken:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.lab.done:
		return h.lab.errOver()
	}
}
