// Package remote says of which server an error is, and what the user can do where that can't be reached.
package remote

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// Server is a server as messages name it.
type Server struct {
	Protocol string         // "netperf"
	Program  string         // what runs there: "netserver"
	Name     string         // as the user named it; "" where it was given as an address
	Addr     netip.AddrPort // its port
}

func (s Server) String() string {
	at := fmt.Sprintf("%v port %d", s.Addr.Addr(), s.Addr.Port())
	if s.Name == "" || s.Name == s.Addr.Addr().String() {
		return s.Protocol + " server " + at
	}
	return fmt.Sprintf("%s server %s (%s)", s.Protocol, s.Name, at)
}

// Explain puts the server before err, unless it is not the server's fault that ctx is done: then it returns the cause of that.
func (s Server) Explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%v: %w", s, err)
}

// Unreachable says why a connection could not be opened within a time. It wraps sentinel and err.
func (s Server) Unreachable(sentinel, err error, within time.Duration) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w; is %s running there, and on this port?", sentinel, err, s.Program)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: no answer to the connection request within %v; the host is down, or a firewall drops this port: %w", sentinel, within, err)
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}
