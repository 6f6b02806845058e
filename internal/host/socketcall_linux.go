//go:build 386 || s390x

package host

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These machines have the calls of syscall_linux.go by themselves only since Linux 4.3; before it, and since, they are
// numbered parts of one call.
const (
	callGetsockopt = 15
	callSendmsg    = 16
	callRecvmsg    = 17
)

func recvmsg(fd uintptr, m *unix.Msghdr, flags int) (int, syscall.Errno) {
	return socketcall(callRecvmsg, fd, m, flags)
}

func sendmsg(fd uintptr, m *unix.Msghdr, flags int) (int, syscall.Errno) {
	return socketcall(callSendmsg, fd, m, flags)
}

func socketcall(call uintptr, fd uintptr, m *unix.Msghdr, flags int) (int, syscall.Errno) {
	args := [3]uintptr{fd, uintptr(unsafe.Pointer(m)), uintptr(flags)}
	n, _, errno := unix.Syscall(unix.SYS_SOCKETCALL, call, uintptr(unsafe.Pointer(&args)), 0)
	runtime.KeepAlive(m)
	return int(n), errno
}

// getsockopt writes at most *size bytes to value and sets *size to the number written.
func getsockopt(fd uintptr, level, option int, value unsafe.Pointer, size *uint32) syscall.Errno {
	args := [5]uintptr{fd, uintptr(level), uintptr(option), uintptr(value), uintptr(unsafe.Pointer(size))}
	_, _, errno := unix.Syscall(unix.SYS_SOCKETCALL, callGetsockopt, uintptr(unsafe.Pointer(&args)), 0)
	runtime.KeepAlive(value)
	runtime.KeepAlive(size)
	return errno
}
