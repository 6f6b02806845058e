package host

import (
	"errors"
	"fmt"

	"golang.org/x/sys/windows"
)

const (
	echoPermissionHint = "run the program as an administrator"
	noBufferErrno      = windows.WSAENOBUFS
	truncatedFlag      = 0x100 // MSG_TRUNC
	canMark            = false
)

// setOptions applies o to a socket that is neither bound nor connected. Windows takes a DS byte and then ignores it, unless
// a policy of the machine says otherwise, so a mark is refused.
func setOptions(fd uintptr, _ socketKind, o Options) error {
	switch {
	case o.Interface != "":
		return fmt.Errorf("bind to device %q: %w on Windows; choose the path by the source address", o.Interface, errors.ErrUnsupported)
	case o.CongestionControl != "":
		return fmt.Errorf("set congestion control %q: %w on Windows", o.CongestionControl, errors.ErrUnsupported)
	case o.DSCP != 0:
		return fmt.Errorf("set DSCP %v: %w on Windows", o.DSCP, errors.ErrUnsupported)
	case o.ECN != NotECT:
		return fmt.Errorf("set ECN %v: %w on Windows", o.ECN, errors.ErrUnsupported)
	case o.TTL != 0:
		return fmt.Errorf("set TTL %d: %w on Windows", o.TTL, errors.ErrUnsupported)
	case o.ReusePort:
		return fmt.Errorf("share the port: %w on Windows", errors.ErrUnsupported)
	}
	s := windows.Handle(fd)
	if o.SendBuffer > 0 {
		if err := windows.SetsockoptInt(s, windows.SOL_SOCKET, windows.SO_SNDBUF, o.SendBuffer); err != nil {
			return fmt.Errorf("set send buffer of %d bytes: %w", o.SendBuffer, err)
		}
	}
	if o.ReceiveBuffer > 0 {
		if err := windows.SetsockoptInt(s, windows.SOL_SOCKET, windows.SO_RCVBUF, o.ReceiveBuffer); err != nil {
			return fmt.Errorf("set receive buffer of %d bytes: %w", o.ReceiveBuffer, err)
		}
	}
	return nil
}
