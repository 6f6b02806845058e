package lab

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"

	"bufferbloat/internal/host"
)

// errno returns what the kernel would say for a stack's error, nil for nil.
func errno(err tcpip.Error) error {
	switch err.(type) {
	case nil:
		return nil
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionAborted, *tcpip.ErrAborted:
		return syscall.ECONNABORTED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrNetworkUnreachable:
		return syscall.ENETUNREACH
	case *tcpip.ErrPortInUse:
		return syscall.EADDRINUSE
	case *tcpip.ErrNoPortAvailable:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrBadLocalAddress:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrClosedForSend:
		return syscall.EPIPE
	case *tcpip.ErrNotConnected:
		return syscall.ENOTCONN
	case *tcpip.ErrMessageTooLong:
		return syscall.EMSGSIZE
	case *tcpip.ErrNoBufferSpace, *tcpip.ErrWouldBlock:
		return host.ErrNoBuffer
	case *tcpip.ErrInvalidEndpointState, *tcpip.ErrInvalidOptionValue, *tcpip.ErrDestinationRequired:
		return fmt.Errorf("%w (%v)", syscall.EINVAL, err)
	case *tcpip.ErrNotSupported, *tcpip.ErrUnknownProtocol, *tcpip.ErrUnknownProtocolOption:
		return fmt.Errorf("%w (%v)", errors.ErrUnsupported, err)
	}
	return errors.New(err.String())
}

// opError is net's form of an error.
func opError(op, network string, local, remote net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Source: local, Addr: remote, Err: err}
}
