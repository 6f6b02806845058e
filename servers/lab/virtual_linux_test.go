package lab

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestVirtualTimeWaitsForSystemCalls(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		h := l.Client()
		h.SleepUntil(ctx, h.Now()) // until Run is in charge
		timer := h.AfterFunc(time.Minute, func() {})
		defer timer.Stop()
		ts := unix.NsecToTimespec(int64(15 * ms))
		if err := unix.Nanosleep(&ts, nil); err != nil {
			t.Skipf("nanosleep was interrupted: %v", err)
		}
		if got := h.Now(); !got.Equal(virtualEpoch) {
			t.Errorf("while a goroutine was in a system call, virtual time went on to %v", got)
		}
	})
}
