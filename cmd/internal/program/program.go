// Package program is what bloat and the program for routers do alike: they end by a signal, keep a recording, print a plan and listen as servers.
package program

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"bufferbloat"
)

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal syscall.Signal }

func (e *SignalError) Error() string {
	if e.Signal == syscall.SIGINT {
		return "interrupted"
	}
	return "terminated"
}

// Status is the exit status of a program that the signal ended.
func (e *SignalError) Status() int { return 128 + int(e.Signal) }

// Interruptible returns a context that the first of signals ends, with a *SignalError as its cause. A second one ends the process at once. The context's
// resources are those of the returned function, which must be called.
func Interruptible(parent context.Context, signals ...os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	came := make(chan os.Signal, 2)
	signal.Notify(came, signals...)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case s := <-came:
				n, _ := s.(syscall.Signal)
				if ctx.Err() != nil {
					os.Exit(128 + int(n))
				}
				cancel(&SignalError{n})
			}
		}
	}()
	return ctx, sync.OnceFunc(func() {
		signal.Stop(came)
		close(done)
		cancel(nil)
	})
}

// NotWhole is what a recording says of its file that could not be written.
func NotWhole(err error) bufferbloat.Finding {
	return bufferbloat.Finding{Code: "recording_not_whole", Severity: bufferbloat.Weakens,
		Text: fmt.Sprintf("the recording that was to be kept is not whole: %v; this result is", err)}
}

// PrintPlan prints what would be sent.
func PrintPlan(w io.Writer, version string, plan bufferbloat.Plan, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"schema": "bloat/plan/1", "version": version, "plan": plan})
	}
	_, err := io.WriteString(w, plan.String())
	return err
}
