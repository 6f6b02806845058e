package lab

import "time"

// sleeper wakes by one of Go's timers, about a millisecond late on Linux.
type sleeper struct{ timer *time.Timer }

func newSleeper() *sleeper {
	t := time.NewTimer(never)
	return &sleeper{t}
}

func (w *sleeper) arm(d time.Duration) { w.timer.Reset(d) }
func (w *sleeper) wait()               { <-w.timer.C }
func (w *sleeper) close()              { w.timer.Stop() }
