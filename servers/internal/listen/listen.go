// Package listen opens the sockets of a server and takes its connections, whatever errors come meanwhile.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
)

// Opened is what a server has open at one address.
type Opened struct {
	At    netip.AddrPort
	Loops []func(context.Context) error // they end with their context, or with an error, and then all end
	Close func() error
}

// Serve opens each of the addresses, calls ready with the ports in use unless that is nil, and runs all loops until ctx is done; then it
// returns nil once they have ended. An address that cannot be had is an error at once. The name is the server's in errors.
func Serve(ctx context.Context, name string, at []netip.AddrPort, ready func([]netip.AddrPort), open func(context.Context, netip.AddrPort) (Opened, error)) error {
	if len(at) == 0 {
		return fmt.Errorf("%s: no address to listen at", name)
	}
	var bound []netip.AddrPort
	var loops []func(context.Context) error
	for _, a := range at {
		o, err := open(ctx, a)
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s: %w; another server is running there: stop it, or choose another port", name, err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer o.Close()
		bound, loops = append(bound, o.At), append(loops, o.Loops...)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, loop := range loops {
		g.Go(func() error {
			if err := loop(ctx); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	if ready != nil {
		ready(bound)
	}
	return g.Wait()
}

// Acceptor is what a server does with connections. Start must be set.
type Acceptor struct {
	Clock  host.Clock
	Start  func(net.Conn)        // takes a connection; it does not wait for it
	Before func(context.Context) // called before each connection is taken; nil does nothing
	// MakeRoom frees descriptors where none is left, and reports whether the next connection may be taken at once. nil has none to free.
	MakeRoom func() bool
	// Trouble is told of errors, at once and then of those of a minute together. nil is not.
	Trouble func(line string)
}

const (
	retry       = 20 * time.Millisecond
	troubleTime = time.Minute
)

// Accept takes connections until ctx is done, when it closes l and returns nil. Where taking one fails others will come: it was reset while it
// waited, or there are no descriptors for a while.
func (a Acceptor) Accept(ctx context.Context, l net.Listener) error {
	release := pump.OnDone(ctx, func() { _ = l.Close() })
	defer release()
	var told time.Time
	for failures := 0; ; {
		if a.Before != nil {
			a.Before(ctx)
		}
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err == nil:
			a.Start(conn)
			continue
		}
		if OutOfDescriptors(err) && a.MakeRoom != nil && a.MakeRoom() {
			continue
		}
		failures++
		if now := a.Clock.Now(); a.Trouble != nil && (told.IsZero() || now.Sub(told) >= troubleTime) {
			a.Trouble(fmt.Sprintf("accepting connections: %v (%d times so far)", err, failures))
			told = now
		}
		if a.Clock.SleepUntil(ctx, a.Clock.Now().Add(retry)) != nil {
			return nil
		}
	}
}

// OutOfDescriptors tells the want of descriptors from other errors.
func OutOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
