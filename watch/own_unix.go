//go:build unix

package watch

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

func readOwn() (user, system time.Duration, err error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, 0, fmt.Errorf("read the process's CPU time: %w", err)
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano()), nil
}
