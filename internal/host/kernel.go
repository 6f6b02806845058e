package host

import (
	"context"
	"net"
	"sync"
	"time"
)

// Kernel is the Host of the operating system: its sockets and its clock. The zero value is ready; a Kernel must not be
// copied, and Echo must not change once it is in use.
type Kernel struct {
	// Echo says which sockets DialEcho may use. The zero value tries an unprivileged one first, then a raw one.
	Echo EchoSocket

	resolver net.Resolver
	timers   sync.Pool // of *time.Timer, stopped
}

// EchoSocket is a kind of socket for ICMP echo.
type EchoSocket uint8

// The kinds.
const (
	AnyEchoSocket  EchoSocket = iota
	PingEchoSocket            // unprivileged: needs net.ipv4.ping_group_range on Linux
	RawEchoSocket             // privileged: needs CAP_NET_RAW on Linux, an administrator elsewhere
)

var _ Host = (*Kernel)(nil)

// NewKernel returns the operating system's stack and clock. It opens nothing.
func NewKernel() *Kernel { return new(Kernel) }

// Name implements Network.
func (k *Kernel) Name() string { return "kernel" }

// Now implements Clock.
func (k *Kernel) Now() time.Time { return time.Now() }

// AfterFunc implements Clock.
func (k *Kernel) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// SleepUntil implements Clock. The runtime waits in whole milliseconds, so it returns up to about 1.1 ms late even on a
// quiet machine: whoever sends on a schedule stamps beside the send, and reports how late that was.
func (k *Kernel) SleepUntil(ctx context.Context, t time.Time) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d := time.Until(t)
	if d <= 0 {
		return nil
	}
	timer, ok := k.timers.Get().(*time.Timer)
	if ok {
		timer.Reset(d)
	} else {
		timer = time.NewTimer(d)
	}
	// A stopped timer's channel holds no stale value (Go 1.23), so it can be used again at once.
	defer func() { timer.Stop(); k.timers.Put(timer) }()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
