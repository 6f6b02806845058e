package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
)

// Tuner is a Network that can change a TCP connection once it stands. It is for what only then is known, as by a server that learns from
// its client on another connection how to send. Where a Network is no Tuner, connections stay as they were opened.
type Tuner interface {
	// Tune changes a connection that this Network opened or accepted. What it cannot change is an error, and what stands before it in
	// Tuning was changed.
	Tune(c net.Conn, t Tuning) error
}

// Tuning is what can be changed of a TCP connection. A zero field changes nothing.
type Tuning struct {
	DSCP                      dscp.CodePoint // mark of what is sent; the ECN bits stay the stack's own
	CongestionControl         string
	SendBuffer, ReceiveBuffer int // bytes
	// PacingRate bounds how fast the stack sends, with even gaps (Linux: SO_MAX_PACING_RATE). It holds for all that the connection sends,
	// headers and retransmissions included.
	PacingRate bitrate.Bitrate
}

var _ Tuner = (*Kernel)(nil)

// Tune implements Tuner.
func (k *Kernel) Tune(c net.Conn, t Tuning) error {
	s, ok := c.(syscall.Conn)
	if !ok {
		return fmt.Errorf("tune a %T, which is no socket: %w", c, errors.ErrUnsupported)
	}
	remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return fmt.Errorf("tune a connection: %w", err)
	}
	kind := socketKind{family: FamilyOf(remote.Addr()), proto: protoTCP}
	o := Options{DSCP: t.DSCP, CongestionControl: t.CongestionControl, SendBuffer: t.SendBuffer, ReceiveBuffer: t.ReceiveBuffer}
	if err := checkOptions(remote.Addr(), kind, o); err != nil {
		return fmt.Errorf("tune a connection: %w", err)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return fmt.Errorf("tune a connection: %w", err)
	}
	var serr error
	if err := raw.Control(func(fd uintptr) {
		if serr = setOptions(fd, kind, o); serr == nil && t.PacingRate > 0 {
			serr = setPacingRate(fd, t.PacingRate)
		}
	}); err != nil {
		return fmt.Errorf("tune a connection: %w", err)
	}
	return serr
}
