package host

import (
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/bitrate"
)

// setPacingRate sets SO_MAX_PACING_RATE (socket(7)), bytes per second. TCP paces by itself where no fq qdisc does it (Linux 4.13). The
// option is of the width of a long, and older kernels take 32 bits only. A kernel of 32 bits would read the first half of eight bytes, which is
// zero where the high half comes first.
func setPacingRate(fd uintptr, r bitrate.Bitrate) error {
	perSecond := uint64(max(1, r/8))
	err := error(unix.EINVAL)
	if bits.UintSize == 64 {
		err = unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, perSecond)
	}
	if err == unix.EINVAL {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, int(min(perSecond, 1<<31-1)))
	}
	if err != nil {
		return fmt.Errorf("pace at %v: %w", r, err)
	}
	return nil
}
