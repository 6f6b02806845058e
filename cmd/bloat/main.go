// Command bloat measures bufferbloat: it fills a link with TCP flows while probes sample the delay, and says what the queue did.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bufferbloat"
	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/thrift"
	"bufferbloat/report"
	"bufferbloat/report/compare"
)

// version is set by the linker; see the Makefile.
var version string

// The exit statuses of commands that fail; those of a measurement come from its result, and a signal n ends with 128 + n.
const (
	statusFailed = 1 // could not measure
	statusUsage  = 2
)

func main() {
	thrift.Begin(os.Getenv("GOGC"))
	a := &app{stdout: os.Stdout, stderr: os.Stderr, version: versionText(), now: time.Now}
	if fd := int(os.Stderr.Fd()); term.IsTerminal(fd) {
		a.screen = openScreen(os.Stderr, fd)
	}
	a.part = takePart()
	ctx, stop := program.Interruptible(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	a.uninterrupt = stop
	status := a.run(ctx, os.Args)
	stop()
	os.Exit(status)
}

// app is the program as its tests see it: no process, no global state.
type app struct {
	stdout, stderr io.Writer
	version        string
	now            func() time.Time           // wall clock, which names runs
	screen         *screen                    // the terminal that stderr is, nil where it is none
	progress       func(bufferbloat.Progress) // told beside the screen; nil where nobody wants to know
	part           string                     // of a lab, that this process is
	automation     string                     // what makes runs more than one that somebody started by hand: "a batch"
	uninterrupt    func()                     // stops main's own handling of signals, and ends its context

	argv          []string             // the command line
	status        int                  // of a command that ran without an error
	interruptedBy *program.SignalError // where main no longer handles signals
}

// run carries out one command line, the program's name first, and returns the exit status.
func (a *app) run(ctx context.Context, args []string) int {
	a.argv = args
	words := args[1:]
	switch name := filepath.Base(args[0]); name {
	case "speedtest", "speedtest.sh":
		words = append([]string{"speedtest"}, words...)
	case "rrul":
		words = append([]string{"rrul"}, words...)
	case "netperf":
		words = append([]string{"netperf"}, words...)
	}
	root := a.command()
	root.SetArgs(words)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return a.status
	}
	if errors.Is(err, errReported) {
		return statusFailed
	}
	status := statusFailed
	if u := (*usageError)(nil); errors.As(err, &u) {
		status = statusUsage
	} else if s := (*program.SignalError)(nil); errors.As(context.Cause(ctx), &s) {
		status, err = s.Status(), fmt.Errorf("%w before anything was measured", s)
	}
	a.complain(err)
	if wantsJSON(words) {
		if err := a.writeError(words, err, status); err != nil {
			a.complain(err)
		}
	}
	return status
}

// complain prints an error to stderr, each of several joined ones on a line of its own. What comes from outside, names of files above all, can't
// steer a terminal or begin a line.
func (a *app) complain(err error) {
	for _, one := range apart(err) {
		fmt.Fprintf(a.stderr, "bloat: %s\n", report.Printable(one.Error()))
	}
}

// apart returns the errors that errors.Join put together.
func apart(err error) []error {
	if u, ok := err.(*usageError); ok {
		return apart(u.err)
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || err.Error() != errors.Join(joined.Unwrap()...).Error() {
		return []error{err}
	}
	var out []error
	for _, one := range joined.Unwrap() {
		out = append(out, apart(one)...)
	}
	return out
}

// writeError prints the document of a command that failed, in the schema of that command.
func (a *app) writeError(words []string, err error, status int) error {
	name := strings.Join(words[:min(1, len(words))], " ")
	if name == "compare" {
		return compare.WriteError(a.stdout, a.version, err, status)
	}
	return report.WriteError(a.stdout, a.version, name, err, status)
}

// wantsJSON reports whether a command line asks for JSON. It looks at the words, because a command line that can't be parsed has to be answered
// with a document too.
func wantsJSON(words []string) bool {
	i := slices.Index(words, "--format")
	return slices.Contains(words, "--json") || slices.Contains(words, "--format=json") || i >= 0 && i+1 < len(words) && words[i+1] == "json"
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "bloat",
		Short:         "Measure what a link's queue does under load",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{fmt.Errorf("unknown command %q; see bloat --help", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(a.speedtestCommand(), a.serveCommand(), a.labCommand(), a.showCommand(), a.plotCommand(), a.compareCommand(), a.serversCommand(), a.runCommand(), a.rrulCommand(), a.listCommand(), a.netperfCommand(), a.manCommand(), &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArguments,
		Run: func(*cobra.Command, []string) { fmt.Fprintf(a.stdout, "bloat %s\n", a.version) },
	})
	offerValues(root)
	return root
}

// usageError is a command line that asks for what can't be.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

// versionText is the version that the linker set, or what the Go tool knows of the source.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if revision == "" {
		return "devel"
	}
	return "devel-" + revision + dirty
}
