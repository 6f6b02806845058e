package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

var _ UnsentLimiter = dialedConn{}

// SetUnsentLimit implements UnsentLimiter by TCP_NOTSENT_LOWAT (tcp(7), Linux 3.12). The kernel looks at the limit where it begins a new
// buffer, so up to one buffer of 64 KiB comes on top; it wakes a writer once half of the limit is free.
func (c dialedConn) SetUnsentLimit(bytes int) error {
	if bytes <= 0 || bytes > 1<<30 {
		return fmt.Errorf("limit of %d unsent bytes: want 1 to %d", bytes, 1<<30)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("limit unsent bytes: %w", err)
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
	}); err != nil {
		return fmt.Errorf("limit unsent bytes: %w", err)
	}
	if serr != nil {
		return fmt.Errorf("limit unsent bytes: %w", serr)
	}
	return nil
}
