//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package host

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	echoPermissionHint = "run the program as root"
	noBufferErrno      = syscall.ENOBUFS
	truncatedFlag      = unix.MSG_TRUNC
	canMark            = true
)

// setOptions applies o to a socket that is neither bound nor connected.
func setOptions(fd uintptr, kind socketKind, o Options) error {
	s := int(fd)
	if o.Interface != "" {
		return fmt.Errorf("bind to device %q: %w on this system; choose the path by the source address", o.Interface, errors.ErrUnsupported)
	}
	if o.CongestionControl != "" {
		return fmt.Errorf("set congestion control %q: %w on this system", o.CongestionControl, errors.ErrUnsupported)
	}
	if o.DS() != 0 {
		level, option := unix.IPPROTO_IP, unix.IP_TOS
		if kind.family == IPv6 {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		}
		// The low two bits are ECN: the stack's own for TCP.
		if err := unix.SetsockoptInt(s, level, option, int(o.DS())); err != nil {
			return fmt.Errorf("set DSCP %v and ECN %v: %w", o.DSCP, o.ECN, err)
		}
	}
	if o.TTL != 0 {
		level, option := unix.IPPROTO_IP, unix.IP_TTL
		if kind.family == IPv6 {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
		}
		if err := unix.SetsockoptInt(s, level, option, int(o.TTL)); err != nil {
			return fmt.Errorf("set TTL %d: %w", o.TTL, err)
		}
	}
	if o.SendBuffer > 0 {
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_SNDBUF, o.SendBuffer); err != nil {
			return fmt.Errorf("set send buffer of %d bytes: %w", o.SendBuffer, err)
		}
	}
	if o.ReceiveBuffer > 0 {
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, o.ReceiveBuffer); err != nil {
			return fmt.Errorf("set receive buffer of %d bytes: %w", o.ReceiveBuffer, err)
		}
	}
	if o.ReusePort {
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("share the port: %w", err)
		}
	}
	return nil
}
