package netperf

import (
	"errors"
	"fmt"
	"net/netip"

	wire "bufferbloat/internal/wire/netperf"
)

// Errors that a caller may test for. All others are the stack's or the cause of the context.
var (
	// ErrUnreachable: the control connection could not be opened; the stack's reason is wrapped beside it.
	ErrUnreachable = errors.New("cannot be reached")
	// ErrPassphrase: the server says so, or it closed the connection where it should have given its first answer, which is how
	// stock servers say it.
	ErrPassphrase = errors.New("passphrase missing or wrong")
	// ErrClosed: the server closed the connection where an answer was due.
	ErrClosed = errors.New("closed the connection without an answer")
	// ErrSilent: the server accepted the connection and did not answer in time.
	ErrSilent = errors.New("no answer")
	// ErrTooOld: the server speaks the 256-byte protocol of netperf 2.5 and before.
	ErrTooOld = errors.New("the server is older than netperf 2.6")
	// ErrNotNetserver: what answers is something else.
	ErrNotNetserver = errors.New("this is no netperf server")
	// ErrServerGone: the server went away in the middle of a flow. What was counted until then is in the Result.
	ErrServerGone = errors.New("the server went away in the middle of the test")
	// ErrCutShort: the data connection ended so long before its time that the flow is not whole, and the server, which sent its
	// results, did not say why. What was counted is in the Result.
	ErrCutShort = errors.New("the data connection ended")
	// ErrNoData: the data connection stood, and nothing arrived through it.
	ErrNoData = errors.New("no data arrived")
)

// RefusedError is the server's own error number.
type RefusedError struct {
	Number wire.ErrorNumber
	Reason string // in the server's words, "" where it gives none
}

func (e *RefusedError) Error() string {
	if e.Reason != "" && e.Number != wire.BadPassphrase {
		return fmt.Sprintf("the server refuses the test: %q (%d)", e.Reason, e.Number)
	}
	switch e.Number {
	case wire.UnknownTest:
		return "the server does not support this test (998): it was built without omni tests, or does not know this one"
	case wire.Busy:
		return "the server is busy (16): it has reached its limit of tests; try fewer streams, or later"
	case wire.NotPermitted:
		return "the server does not permit this test (1): it is longer than the server allows, or against its rules otherwise"
	}
	return "the server refuses the test: " + e.Number.String()
}

// Is makes the server's error 403 an ErrPassphrase.
func (e *RefusedError) Is(target error) bool {
	return target == ErrPassphrase && e.Number == wire.BadPassphrase
}

// DataError says that the control connection works and the data connection does not.
type DataError struct {
	At  netip.AddrPort // where the server wanted the data connection
	Err error
}

func (e *DataError) Error() string {
	return fmt.Sprintf("the data connection to %v port %d cannot be opened, though the control connection works: %v; "+
		"open that port in the server's firewall, or set a fixed data port that is open",
		e.At.Addr(), e.At.Port(), e.Err)
}

func (e *DataError) Unwrap() error { return e.Err }
