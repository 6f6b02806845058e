package lab

import (
	"sync"
	"time"
)

// deadline is a time after which an operation gives up, on the lab's clock.
type deadline struct {
	lab *Lab

	mu      sync.Mutex
	timer   *timer
	set     uint64        // counts calls of at
	expired chan struct{} // closed when the time has come
	closed  bool
}

func newDeadline(l *Lab) *deadline { return &deadline{lab: l, expired: make(chan struct{})} }

// at sets the deadline; the zero time means none.
func (d *deadline) at(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.set++
	if d.closed {
		d.expired, d.closed = make(chan struct{}), false
	}
	if t.IsZero() {
		return
	}
	left := t.Sub(d.lab.base.Add(d.lab.elapsed()))
	if left <= 0 {
		d.expire()
		return
	}
	set := d.set
	d.timer = d.lab.after(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.set == set { // else it was moved while this call was on its way
			d.expire()
		}
	})
}

// expire is called with d.mu held.
func (d *deadline) expire() {
	if !d.closed {
		close(d.expired)
		d.closed = true
	}
}

// passed returns a channel that is closed when the deadline of now has passed.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expired
}

// over reports whether c is closed.
func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
