package lab

import (
	"context"
	"time"
)

// waker is a sleep that can be cut short.
type waker interface {
	// arm makes wait return d from now, at once where d is not positive, and not at all at never. The latest call counts. It may be
	// called from any goroutine while the lab runs.
	arm(d time.Duration)
	// wait returns after the time that arm set; it may also return early.
	wait()
	close()
}

// runReal delivers packets and fires timers when their time has come.
func (l *Lab) runReal(ctx context.Context) error {
	w, err := newWaker()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.waker = w
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.waker, l.armed = nil, 0
		l.mu.Unlock()
		w.close()
	}()
	cancelled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cancelled)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.armed = 0 // the driver is as good as awake: nobody may put this off
		w.arm(0)
	})
	defer func() {
		if !stop() {
			<-cancelled
		}
	}()
	var batch []arrival
	for ctx.Err() == nil {
		l.mu.Lock()
		now := l.elapsed()
		l.armed = 0
		l.down.Advance(now, l.arrived)
		l.up.Advance(now, l.arrived)
		batch, l.arrivals = l.arrivals, batch[:0]
		for _, a := range batch {
			l.took(a)
		}
		fired := false
		for t := l.takeDue(now); t != nil; t = l.takeDue(now) {
			l.calls.Go(t.f)
			fired = true
		}
		rest := len(batch) == 0 && !fired && ctx.Err() == nil
		if rest {
			l.armed = l.next()
			w.arm(l.until(l.armed))
		}
		l.mu.Unlock()
		for i := range batch {
			l.deliver(batch[i])
			batch[i] = arrival{}
		}
		if rest {
			w.wait()
		}
	}
	return nil
}

// until returns the time from now to at.
func (l *Lab) until(at time.Duration) time.Duration {
	if at == never {
		return never
	}
	return at - l.elapsed()
}
