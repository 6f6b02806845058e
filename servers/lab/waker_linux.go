package lab

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// timerfd wakes within 50 to 100 microseconds, where Go's own timers need a millisecond: the runtime's poller waits in whole
// milliseconds, but comes back at once for a descriptor. It holds no thread while it waits.
type timerfd struct {
	f  *os.File
	fd int
}

func newWaker() (waker, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return newSleeper(), nil
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	if f == nil {
		return nil, fmt.Errorf("lab: timerfd %d is no file", fd)
	}
	return &timerfd{f, fd}, nil
}

func (w *timerfd) arm(d time.Duration) {
	spec := unix.ItimerSpec{}
	if d != never {
		spec.Value = unix.NsecToTimespec(int64(max(d, 1)))
	}
	// It can fail for a bad descriptor or a bad time only, and has neither.
	_ = unix.TimerfdSettime(w.fd, 0, &spec, nil)
}

func (w *timerfd) wait() {
	var expirations [8]byte
	_, _ = w.f.Read(expirations[:]) // early is allowed, so an error means no harm
}

func (w *timerfd) close() { w.f.Close() }
