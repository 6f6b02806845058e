//go:build !386 && !s390x

package host

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls below are those of package unix without its conversions, which allocate for every packet. What their
// pointers point to must be on the heap.

func recvmsg(fd uintptr, m *unix.Msghdr, flags int) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(m)), uintptr(flags))
	return int(n), errno
}

func sendmsg(fd uintptr, m *unix.Msghdr, flags int) (int, syscall.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(m)), uintptr(flags))
	return int(n), errno
}

// getsockopt writes at most *size bytes to value and sets *size to the number written.
func getsockopt(fd uintptr, level, option int, value unsafe.Pointer, size *uint32) syscall.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), uintptr(option), uintptr(value), uintptr(unsafe.Pointer(size)), 0)
	return errno
}
