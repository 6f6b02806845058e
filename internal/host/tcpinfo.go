package host

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// TCPInfo implements Network for connections of package net; others give an error that wraps errors.ErrUnsupported.
func (k *Kernel) TCPInfo(c net.Conn) (TCPInfo, error) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return TCPInfo{}, fmt.Errorf("TCP state of a %T, which is no socket: %w", c, errors.ErrUnsupported)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return TCPInfo{}, fmt.Errorf("TCP state: %w", err)
	}
	var info TCPInfo
	var ierr error
	_, dialed := c.(dialedConn)
	if err := raw.Control(func(fd uintptr) { info, ierr = tcpInfo(fd, dialed) }); err != nil {
		return TCPInfo{}, fmt.Errorf("TCP state: %w", err)
	}
	if ierr != nil {
		return TCPInfo{}, fmt.Errorf("TCP state: %w", ierr)
	}
	return info, nil
}
