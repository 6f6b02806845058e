// Command speedtest is bloat for routers: the speedtest, RRUL and the server in one small static program without TLS, HTTP, pictures and the lab.
//
// It answers to the names of the scripts that it stands in for, with their flags and defaults: speedtest.sh, betterspeedtest.sh, netperfrunner.sh and
// speedtest-netperf.sh.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"

	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/thrift"
	"bufferbloat/report"
)

// version is set by the linker; see the Makefile.
var version = "devel"

// The exit statuses of commands that fail; those of a measurement come from its result, and a signal n ends with 128 + n.
const (
	statusFailed = 1 // could not measure
	statusUsage  = 2
)

func main() {
	thrift.Begin(os.Getenv("GOGC"))
	a := &app{stdout: os.Stdout, stderr: os.Stderr, now: time.Now, dots: term.IsTerminal(int(os.Stderr.Fd()))}
	ctx, stop := program.Interruptible(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	status := a.run(ctx, os.Args)
	stop()
	os.Exit(status)
}

// app is the program as its tests see it: no process, no global state.
type app struct {
	stdout, stderr io.Writer
	now            func() time.Time // wall clock, which names runs
	dots           bool             // print one to stderr each second of a run
	status         int              // of a command that ran without an error
}

// errHelp asks for the text of the flags.
var errHelp = errors.New("help")

// usageError is a command line that asks for what can't be.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// run carries out one command line, the program's name first, and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	name, words := filepath.Base(args[0]), args[1:]
	// The scripts have no commands. speedtest is the program's own name, too.
	if _, script := scripts[name]; (!script || name == "speedtest") && len(words) > 0 {
		switch words[0] {
		case "rrul", "serve", "version":
			name, words = words[0], words[1:]
		case "speedtest", "speedtest.sh", "betterspeedtest.sh", "netperfrunner.sh", "speedtest-netperf.sh":
			name, words = words[0], words[1:]
		}
	}
	err := a.command(ctx, name, words)
	switch u := (*usageError)(nil); {
	case err == nil:
		return a.status
	case errors.Is(err, errHelp):
		return 0
	case errors.As(err, &u):
		a.complain(fmt.Errorf("%w; see %s --help", err, name))
		return statusUsage
	}
	status := statusFailed
	if s := (*program.SignalError)(nil); errors.As(context.Cause(ctx), &s) {
		status, err = s.Status(), fmt.Errorf("%w before anything was measured", s)
	}
	a.complain(err)
	return status
}

// command carries out the command of a name.
func (a *app) command(ctx context.Context, name string, words []string) error {
	switch name {
	case "version":
		fmt.Fprintf(a.stdout, "speedtest %s\n", version)
		return nil
	case "serve":
		return a.serve(ctx, words)
	case "rrul":
		return a.rrul(ctx, words)
	}
	s, ok := scripts[name]
	if !ok {
		s = scripts["speedtest"] // whatever somebody called it
	}
	return a.speedtest(ctx, s, words)
}

// complain prints an error to stderr. What comes from outside can't steer a terminal.
func (a *app) complain(err error) {
	fmt.Fprintf(a.stderr, "speedtest: %s\n", report.Printable(err.Error()))
}
