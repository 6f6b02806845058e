package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bufferbloat/internal/bitrate"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/kernel"
	"bufferbloat/servers/lab/link"
)

// labCommandFlags are the flags of bloat lab as parsed.
type labCommandFlags struct {
	link              labFlags
	congestionControl string
	serverCommand     string
	netperf, irtt     uint16
	quiet             bool
	command           []string
	path              string // of the command
}

// statusNotFound is what the shells exit with where there is no such command.
const statusNotFound = 127

func (a *app) labCommand() *cobra.Command {
	f := &labCommandFlags{}
	cmd := &cobra.Command{
		Use:   "lab [flags] [-- COMMAND ARGS ...]",
		Short: "An emulated link, alone or around another command",
		Long: `Runs COMMAND at one end of an emulated link, which is its only way out. At the other end, 192.0.2.2 and 2001:db8::2 or "lab" by name,
the lab server answers: netperf on TCP port 12865, irtt on UDP port 2112, iperf3 on port 5201 (not with --server, which may be
iperf3 itself), and ping. Both ends use the kernel's own TCP. Without a COMMAND
it says how to enter, and stays until it is interrupted. It takes root or unprivileged user namespaces, on Linux.

The exit status is that of COMMAND, 128+n where signal n ended it, 127 where there is no such command; 1 where the lab can't be had. Everything
that COMMAND started ends with it.`,
		Example: `  bloat lab --down 20mbit --up 4mbit --rtt 40ms --qdisc fq_codel -- ping -c 5 lab
  bloat lab --buffer 256k -- bloat speedtest -H lab
  bloat lab --server 'iperf3 -s' -- iperf3 -c lab -R`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.command = args
			return a.lab(cmd.Context(), f)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false) // so that COMMAND keeps its own flags
	flags.StringVar(&f.link.queue, "qdisc", defaultQueue, "queue of each direction: fifo, fq_codel, \"pie target 20ms\", \"htb rate 18mbit leaf cake\", ...")
	f.link.describe(flags)
	flags.StringVar(&f.congestionControl, "tcp", "", "default congestion control of both ends (default: this machine's)")
	flags.StringVar(&f.serverCommand, "server", "", "shell command to run at the server's end beside the lab server")
	flags.Uint16Var(&f.netperf, "port", 12865, "the lab server's netperf port")
	flags.Uint16Var(&f.irtt, "irtt-port", 2112, "the lab server's irtt port")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print neither the lab's description nor its counters")
	return cmd
}

// iperf3 is the lab server's iperf3 port, 0 for none: the command at its end may want the port.
func (f *labCommandFlags) iperf3() uint16 {
	if f.serverCommand != "" {
		return 0
	}
	return wire.Port
}

// lab is whichever part of the lab this process is.
func (a *app) lab(ctx context.Context, f *labCommandFlags) error {
	switch a.part {
	case clientPart:
		return a.labAtClient(ctx, f)
	case serverPart:
		return a.serveLab(ctx, f.netperf, f.irtt, f.iperf3())
	case linkPart:
		return f.link.forwardLab(ctx)
	}
	if _, err := f.link.links(); err != nil {
		return &usageError{err}
	}
	if f.netperf == 0 || f.irtt == 0 {
		return &usageError{errors.New("--port and --irtt-port want 1 to 65535")}
	}
	if err := f.look(); err != nil {
		a.complain(err)
		a.status = statusNotFound
		return nil
	}
	return a.enterLab(ctx, func(in *kernel.Inside) {
		if len(f.command) == 0 {
			fmt.Fprintf(a.stderr, "lab: enter with: %s COMMAND\n", enterCommand(in))
		}
	}, len(f.command) > 0)
}

// look finds the command's file.
func (f *labCommandFlags) look() (err error) {
	if len(f.command) > 0 {
		f.path, err = exec.LookPath(f.command[0])
	}
	return err
}

// enterCommand is the command line of nsenter(1) that leads to the client's end.
func enterCommand(in *kernel.Inside) string {
	users := ""
	if in.Facts.Privilege != "root" {
		users = " -U --preserve-credentials"
	}
	return fmt.Sprintf("nsenter -t %d%s -m -n -p", in.PID, users)
}

// labAtClient is the client's part: it builds the lab, runs the command and tells what the lab saw.
func (a *app) labAtClient(ctx context.Context, f *labCommandFlags) error {
	if err := f.look(); err != nil {
		return err
	}
	r := &labRun{signals: make(chan syscall.Signal, 8)}
	in, err := a.buildLab(context.WithoutCancel(ctx), f.congestionControl, f.link.realTime, r.signal)
	if err != nil {
		return errReported
	}
	defer in.close()
	d, err := f.link.links()
	if err != nil {
		return err
	}
	if !f.quiet {
		a.describeLab(in.Facts(), d, f)
	}
	if f.serverCommand != "" {
		shell := kernel.Program{Path: "/bin/sh", Args: []string{"sh", "-c", f.serverCommand}, Env: os.Environ()}
		if _, err := in.StartServer(shell, os.Stdin, os.Stderr, os.Stderr); err != nil {
			return fmt.Errorf("--server: %w", err)
		}
	}
	d.Carrier = carrierText(in.Facts())
	defer answerInside(*labLink(d), in.Stats)()
	live := a.watchLab(in.Lab, f)
	a.status, err = r.run(in.Lab, f)
	live()
	if err == nil && !f.quiet {
		var s kernel.Stats
		if s, err = in.Stats(); err == nil {
			writeLabStats(a.stderr, s)
		}
	}
	return err
}

// labRun is the command under way.
type labRun struct {
	signals chan syscall.Signal
}

// signal takes a signal from outside.
func (r *labRun) signal(s syscall.Signal) {
	select {
	case r.signals <- s:
	default: // eight are on their way
	}
}

// run runs the command until it ends, or nothing until a signal comes, and returns the exit status.
func (r *labRun) run(l *kernel.Lab, f *labCommandFlags) (int, error) {
	var command *kernel.Process
	var ended <-chan struct{}
	if len(f.command) > 0 {
		var err error
		command, err = l.StartClient(kernel.Program{Path: f.path, Args: f.command, Env: os.Environ()}, os.Stdin, os.Stdout, os.Stderr)
		if err != nil {
			return 0, fmt.Errorf("run %s: %w", f.command[0], err)
		}
		ended = command.Ended()
	}
	for {
		select {
		case <-ended:
			return command.Status(), nil
		case <-l.Failed():
			return 0, errors.New("the link's process is gone, and the lab with it")
		case s := <-r.signals:
			if command == nil {
				return 128 + int(s), nil
			}
			command.Signal(s)
		}
	}
}

// describeLab prints what the lab is, and its own delay.
func (a *app) describeLab(facts kernel.Facts, d lab.Description, f *labCommandFlags) {
	fmt.Fprintf(a.stderr, "lab: %v down, %v up, %v RTT, %s with %d and %d bytes, %d bytes of overhead per packet\n",
		d.Down, d.Up, d.RTT, d.Queue, d.BufferDown, d.BufferUp, d.Overhead)
	fmt.Fprintf(a.stderr, "lab: kernel TCP in namespaces, as %s; real-time scheduling: %s\n", facts.Privilege, realTimeText(f.link.realTime, facts.RealTime))
	if c := facts.Cost; c.Known() {
		fmt.Fprintf(a.stderr, "lab: the carrier's own RTT, beyond what was asked: median %v, min %v, 90pct %v (%d pings)\n", c.Median.Round(time.Microsecond),
			c.Min.Round(time.Microsecond), c.P90.Round(time.Microsecond), c.Probes)
	}
	names := ""
	if facts.Names {
		names = ` ("` + lab.Name + `" or "server")`
	}
	fmt.Fprintf(a.stderr, "lab: client %v and %v, server %v and %v%s: netperf on port %d, irtt on port %d\n", kernel.ClientIPv4, kernel.ClientIPv6,
		kernel.ServerIPv4, kernel.ServerIPv6, names, f.netperf, f.irtt)
	for _, note := range facts.Notes {
		fmt.Fprintf(a.stderr, "lab: done without: %s\n", note)
	}
}

func realTimeText(asked, had bool) string {
	switch {
	case had:
		return "yes"
	case asked:
		return "not permitted"
	}
	return "not asked for (--real-time)"
}

// watchLab shows the counters each second, where somebody looks and nobody else writes there, until the returned function is called.
func (a *app) watchLab(l *kernel.Lab, f *labCommandFlags) (stop func()) {
	alone := len(f.command) == 0 || !term.IsTerminal(int(os.Stdout.Fd()))
	if f.quiet || !alone || !term.IsTerminal(int(os.Stderr.Fd())) {
		return func() {}
	}
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var last kernel.Stats
		lastAt := time.Now()
		for {
			select {
			case <-done:
				fmt.Fprint(a.stderr, "\r\x1b[K")
				return
			case <-tick.C:
			}
			s, err := l.Stats()
			if err != nil {
				return // whoever runs the command finds out as well, and tells
			}
			now := time.Now()
			fmt.Fprintf(a.stderr, "\r\x1b[Kdown %s | up %s", liveText(last.Down, s.Down, now.Sub(lastAt)), liveText(last.Up, s.Up, now.Sub(lastAt)))
			last, lastAt = s, now
		}
	})
	return func() { close(done); watching.Wait() }
}

// liveText is one direction's line of live counters.
func liveText(before, now link.Stats, d time.Duration) string {
	return fmt.Sprintf("%6.2f Mbit/s, %d in queue, %d dropped, %d marked", bitrate.Of(now.Out.Bytes-before.Out.Bytes, d).Mbps(), now.Queued.Packets,
		now.Dropped().Packets, now.Marked)
}

// writeLabStats prints the lab's counters.
func writeLabStats(w io.Writer, s kernel.Stats) {
	for _, d := range []struct {
		name string
		s    link.Stats
	}{{"down", s.Down}, {"up", s.Up}} {
		var reasons []string
		for r, n := range d.s.Drops {
			if n.Packets > 0 {
				reasons = append(reasons, fmt.Sprintf("%s %d", link.Reason(r), n.Packets))
			}
		}
		why := ""
		if len(reasons) > 0 {
			why = " (" + strings.Join(reasons, ", ") + ")"
		}
		fmt.Fprintf(w, "lab: %s: %d packets and %d bytes in, %d and %d out, %d dropped%s, %d marked, at most %d packets and %d bytes queued\n", d.name,
			d.s.In.Packets, d.s.In.Bytes, d.s.Out.Packets, d.s.Out.Bytes, d.s.Dropped().Packets, why, d.s.Marked, d.s.MaxQueued.Packets, d.s.MaxQueued.Bytes)
	}
	fmt.Fprintf(w, "lab: delivered late by: %v\n", &s.Lateness)
	if s.Outside.Total() > 0 {
		fmt.Fprintf(w, "lab: ! %s\n", outsideText(s.Outside))
	}
}
