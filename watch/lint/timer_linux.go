package lint

import (
	"time"

	"golang.org/x/sys/unix"
)

// TimerResolution is that of the kernel's timers, 0 where it does not tell: one nanosecond with high-resolution timers, a tick without them.
func TimerResolution() time.Duration {
	var t unix.Timespec
	if unix.ClockGetres(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
