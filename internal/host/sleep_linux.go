package host

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// preciseSleep is how long before its end SleepPrecisely leaves the runtime's timers, which wait in whole milliseconds.
const preciseSleep = 2 * time.Millisecond

var _ PreciseClock = (*Kernel)(nil)

// SleepPrecisely implements PreciseClock. A thread of the kernel waits the last 2 ms, which ends within some 60 us where the machine is quiet; ctx does
// not shorten those.
func (k *Kernel) SleepPrecisely(ctx context.Context, t time.Time) error {
	if err := k.SleepUntil(ctx, t.Add(-preciseSleep)); err != nil {
		return err
	}
	for d := time.Until(t); d > 0; d = time.Until(t) {
		if d > preciseSleep { // the clock stood still, or somebody set a debugger on us
			return k.SleepUntil(ctx, t)
		}
		left := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&left, nil) // an interrupted one is begun anew
	}
	return context.Cause(ctx)
}
