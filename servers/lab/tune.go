package lab

import (
	"errors"
	"fmt"
	"net"

	"bufferbloat/internal/host"
)

var _ host.Tuner = (*Host)(nil)

// Tune implements host.Tuner. The stack has one congestion control, and does not pace.
func (h *Host) Tune(conn net.Conn, t host.Tuning) error {
	c, ok := conn.(*Conn)
	switch {
	case !ok || c.host != h:
		return fmt.Errorf("tune a %T: %w; it is no connection of this host", conn, errors.ErrUnsupported)
	case over(c.closed):
		return c.opError("set", net.ErrClosed)
	case t.CongestionControl != "" && t.CongestionControl != "cubic":
		return fmt.Errorf("congestion control %q: %w in the lab, which has cubic only", t.CongestionControl, errors.ErrUnsupported)
	case t.PacingRate != 0:
		return fmt.Errorf("pace at %v: %w in the lab", t.PacingRate, errors.ErrUnsupported)
	}
	ops := c.ep.SocketOptions()
	if t.SendBuffer > 0 {
		ops.SetSendBufferSize(int64(t.SendBuffer), true)
	}
	if t.ReceiveBuffer > 0 {
		ops.SetReceiveBufferSize(int64(t.ReceiveBuffer), true)
	}
	if t.DSCP == 0 {
		return nil
	}
	if terr := setDSCP(c.ep, c.remote.Addr(), host.Options{DSCP: t.DSCP}); terr != nil {
		return fmt.Errorf("set DSCP %v: %w", t.DSCP, errno(terr))
	}
	return nil
}
