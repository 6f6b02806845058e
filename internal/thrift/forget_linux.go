package thrift

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetCode unmaps the pages of the program's own code and constants, which come back one by one as they are used. The kernel maps 16 around each that is
// used and never takes one back by itself while there is memory, so that all that starting took stays resident through a run, and all of the run
// through the reckoning after it. Nothing is lost: the pages are those of the file.
func forgetCode() {
	program, err := os.Executable()
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) != 6 || f[5] != program || f[1] != "r-xp" && f[1] != "r--p" {
			continue // of what is writable the file has another state
		}
		first, last, _ := strings.Cut(f[0], "-")
		from, err1 := strconv.ParseUint(first, 16, 64)
		to, err2 := strconv.ParseUint(last, 16, 64)
		if err1 == nil && err2 == nil && from < to {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_DONTNEED)
		}
	}
}
