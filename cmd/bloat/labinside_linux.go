package main

import (
	"net"

	"golang.org/x/sys/unix"
)

// builtLab reports whether who answers is the first process of this process namespace, as the one that built a lab is: in a lab nobody else can
// be, and outside of one that process is the system's own.
func builtLab(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	first := false
	cerr := raw.Control(func(fd uintptr) {
		who, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		first = err == nil && who.Pid == 1
	})
	return cerr == nil && first
}
