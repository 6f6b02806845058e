package iperf3

import (
	"errors"
	"fmt"
	"net/netip"
)

// Errors that a caller may test for. All others are the stack's or the cause of the context.
var (
	// ErrUnreachable: the control connection could not be opened; the stack's reason is wrapped beside it.
	ErrUnreachable = errors.New("cannot be reached")
	// ErrBusy: the server runs another test, and does one at a time; or it closed the connection at once, which is how a refusal looks
	// that comes too fast to be read.
	ErrBusy = errors.New("the server is busy with another test")
	// ErrRefused: the server closed the connection where it should have taken the parameters. Versions before 3.20 say no more than that.
	ErrRefused = errors.New("the server refuses the test and does not say why")
	// ErrSilent: the server accepted the connection and did not answer in time.
	ErrSilent = errors.New("no answer")
	// ErrNotIPerf3: what answers is something else.
	ErrNotIPerf3 = errors.New("this is no iperf3 server")
	// ErrServerGone: the server went away in the middle of a test. What was counted until then is in the Result.
	ErrServerGone = errors.New("the server went away in the middle of the test")
	// ErrCutShort: a data connection ended long before its time. What was counted is in the Result.
	ErrCutShort = errors.New("the data connection ended")
	// ErrNoData: the streams stood, and nothing arrived through them.
	ErrNoData = errors.New("no data arrived")
)

// DataError says that the control connection works and a data stream does not.
type DataError struct {
	At     netip.AddrPort
	Stream int    // counted from 1
	What   string // "data connection", "UDP stream"
	Err    error
}

func (e *DataError) Error() string {
	return fmt.Sprintf("%s %d to %v port %d cannot be opened, though the control connection works: %v",
		e.What, e.Stream, e.At.Addr(), e.At.Port(), e.Err)
}

func (e *DataError) Unwrap() error { return e.Err }
