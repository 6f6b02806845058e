package main

import (
	"io"
	"sync"
	"time"
)

// An outlet writes what a run tells of itself from a goroutine of its own, so that a terminal that was stopped, or a reader that is slow, holds up no
// measurement. What finds its queue full is refused.
type outlet struct {
	queue chan []byte
	done  chan struct{}

	mu  sync.Mutex
	err error // the first of writing
}

// openOutlet returns an outlet that keeps up to so many writes waiting.
func openOutlet(w io.Writer, waiting int) *outlet {
	o := &outlet{queue: make(chan []byte, waiting), done: make(chan struct{})}
	go func() {
		defer close(o.done)
		for b := range o.queue {
			if o.failed() != nil {
				continue
			}
			if _, err := w.Write(b); err != nil {
				o.mu.Lock()
				o.err = err
				o.mu.Unlock()
			}
		}
	}()
	return o
}

func (o *outlet) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// offer has b written soon, and returns false where too much waits already. It keeps b.
func (o *outlet) offer(b []byte) bool {
	select {
	case o.queue <- b:
		return true
	default:
		return false
	}
}

// close has last written after all that waits, and waits for that, but no longer than patience: a reader that never reads is left with what it has. It
// returns the first error of writing.
func (o *outlet) close(last []byte, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	if len(last) > 0 {
		select {
		case o.queue <- last:
		case <-timer.C:
			close(o.queue)
			return o.failed()
		}
	}
	close(o.queue)
	select {
	case <-o.done:
	case <-timer.C:
	}
	return o.failed()
}
