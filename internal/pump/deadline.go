package pump

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

// OnDone calls f, which is to wake a blocked call by a deadline, once ctx is done. The caller must call release; after it f is
// not running and will not. Whoever moves a deadline while f may run must look at ctx afterwards, since he may have undone f.
func OnDone(ctx context.Context, f func()) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(done); f() })
	return func() {
		if !stop() {
			<-done
		}
	}
}

// IsDeadline tells a deadline of our own from the stack's verdict that the peer is gone, which calls itself a timeout too.
func IsDeadline(err error) bool {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT)
}
