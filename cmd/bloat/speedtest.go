package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bufferbloat"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/report"
	"bufferbloat/report/grade"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/kernel"
)

// speedtestFlags are the flags of bloat speedtest as parsed.
type speedtestFlags struct {
	host, ping           string
	length, idle         seconds
	streams              int
	sequential, together bool
	four, six            bool
	passphrase           string
	dscp                 dscp.CodePoint
	source, device       string
	interval             seconds
	probe                string
	port, irttPort, data uint16

	format  string
	json    bool
	output  string
	against string
	page    string
	dryRun  bool
	grades  bool

	lab       labFlags
	directory directoryFlags
}

func (a *app) speedtestCommand() *cobra.Command {
	f := &speedtestFlags{length: seconds(30 * time.Second), idle: seconds(5 * time.Second), interval: seconds(100 * time.Millisecond)}
	cmd := &cobra.Command{
		Use:   "speedtest -H HOST | --lab",
		Short: "Download, upload, and the latency meanwhile, as speedtest.sh prints them",
		Long: `Measures the idle latency, then fills the link with TCP flows, first from and then to a netperf server, while probes
sample the latency; and prints the table of speedtest.sh. Exit status: 0 measured, 1 could not measure, 2 usage,
4 measured but void or partial (the reason is in the result), 128+n ended by signal n with the partial result.`,
		Example: `  bloat speedtest -H netperf.example.net
  bloat speedtest -H 192.0.2.1 -c -t 60 --json
  bloat speedtest --lab fq_codel`,
		Args: func(_ *cobra.Command, args []string) error {
			if f.lab.on() && len(args) == 1 && f.lab.queue == defaultQueue {
				f.lab.queue = args[0] // "--lab fq_codel", which the flag parser takes for --lab and an argument
				return nil
			}
			return noArguments(nil, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return a.speedtest(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.host, "host", "H", "", "netperf server to load; \"best\" is the nearest one of the directory that may be used (bloat servers)")
	flags.StringVarP(&f.ping, "ping", "p", "", "host to ping meanwhile (default: the server)")
	flags.VarP(&f.length, "time", "t", "length of the load in each direction")
	flags.IntVarP(&f.streams, "number", "n", 5, "TCP streams in each direction")
	flags.VarP(&f.idle, "idle", "i", "length of the idle baseline before the load; 0 for none")
	flags.BoolVarP(&f.sequential, "sequential", "s", false, "download, then upload (default)")
	flags.BoolVarP(&f.together, "concurrent", "c", false, "download and upload at once")
	flags.BoolVarP(&f.four, "ipv4", "4", false, "use IPv4")
	flags.BoolVarP(&f.six, "ipv6", "6", false, "use IPv6")
	flags.StringVarP(&f.passphrase, "passphrase", "Z", "", "passphrase of the server")
	flags.Var(&f.dscp, "dscp", "mark of flows and probes: a name (EF, CS1) or 0 to 63")
	flags.StringVar(&f.device, "interface", "", "network device to send through")
	flags.StringVar(&f.source, "source", "", "local address to send from")
	flags.Var(&f.interval, "interval", "time between probes")
	flags.StringVar(&f.probe, "probe", "auto", "auto, icmp, irtt or tcp")
	flags.Uint16Var(&f.port, "port", 12865, "control port of the netperf server")
	flags.Uint16Var(&f.data, "data-port", 0, "the server's port for data; 0 lets it choose")
	flags.Uint16Var(&f.irttPort, "irtt-port", 2112, "port of the irtt server")
	flags.StringVar(&f.format, "format", "speedtest", formatNames)
	flags.BoolVar(&f.json, "json", false, "the same as --format json")
	flags.BoolVar(&f.grades, "grades", false, "show also what others' grading schemes say of the result")
	flags.StringVarP(&f.output, "output", "o", "", "keep the recording in this file")
	flags.StringVar(&f.against, "against", "", "compare with an earlier run: a recording, a JSON result or any file that bloat show reads")
	flags.StringVar(&f.page, "html", "", "write a page to this file: tables, pictures, charts, and the recording in it")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the plan and send nothing")
	f.directory.registerRun(flags)
	f.lab.register(flags)
	return cmd
}

// plan turns the flags into a plan, or says which can't be.
func (f *speedtestFlags) plan() (bufferbloat.Plan, error) {
	var none bufferbloat.Plan
	switch {
	case f.four && f.six:
		return none, errors.New("-4 and -6 exclude each other")
	case f.sequential && f.together:
		return none, errors.New("-s and -c exclude each other")
	case f.lab.on() && f.host != "":
		return none, errors.New("--lab has its own server; leave out -H")
	case !f.lab.on() && f.host == "":
		return none, errors.New("name a server with -H HOST, or use --lab to measure an emulated link on this machine")
	case f.streams < 1 || f.streams > bufferbloat.MaxFlows:
		return none, fmt.Errorf("-n %d: want 1 to %d streams", f.streams, bufferbloat.MaxFlows)
	}
	if err := f.lab.check(); err != nil {
		return none, err
	}
	server := bufferbloat.Server{Host: f.host, NetperfPort: f.port, IRTTPort: f.irttPort, DataPort: f.data, Interface: f.device}
	if f.lab.on() {
		server.Host = lab.Name
	}
	if f.four {
		server.Family = 4
	}
	if f.six {
		server.Family = 6
	}
	if f.source != "" {
		source, err := netip.ParseAddr(f.source)
		if err != nil {
			return none, fmt.Errorf("--source %q: want an address of this host", f.source)
		}
		server.Source = source
	}
	plan := bufferbloat.Speedtest(bufferbloat.SpeedtestOptions{Server: server, PingHost: f.ping, Idle: time.Duration(f.idle),
		Length: time.Duration(f.length), Streams: f.streams, Concurrent: f.together, Interval: time.Duration(f.interval), DSCP: f.dscp,
		Probe: bufferbloat.ProbeKind(f.probe)})
	return plan, plan.Check()
}

// writer returns what writes a result in the format asked for.
func (f *speedtestFlags) writer() (func(*opened, io.Writer) error, error) {
	if f.json {
		f.format = "json"
	}
	if f.grades && !people(f.format) && f.format != "json" {
		return nil, errors.New("--grades goes with the formats speedtest, table, markdown and json")
	}
	return resultWriter(f.format)
}

// speedtest runs one speedtest and prints it.
func (a *app) speedtest(ctx context.Context, f *speedtestFlags) error {
	if f.host == bestServer {
		if err := a.takeBest(ctx, f); err != nil {
			return err
		}
	}
	plan, err := f.plan()
	if err != nil {
		return &usageError{err}
	}
	write, err := f.writer()
	if err != nil {
		return &usageError{err}
	}
	if f.dryRun {
		return a.printPlan(plan, f.format == "json")
	}
	var before *report.Result
	if f.against != "" {
		if before, err = openResult(f.against); err != nil {
			return &usageError{fmt.Errorf("--against: %w", err)}
		}
	}
	if over, err := a.leaveToLab(ctx, f); over {
		return err
	}
	o := bufferbloat.RunOptions{Version: a.version, Started: a.now(), Passphrase: f.passphrase, Progress: a.progress}
	if f.output != "" {
		file, err := openOutput(f.output)
		if err != nil {
			return &usageError{fmt.Errorf("-o: %w", err)}
		}
		defer file.Close()
		o.File = file
	}
	kept, err := f.keepForPage(&o)
	if err != nil {
		return &usageError{err}
	}
	if !f.lab.on() {
		if err := a.usePublicServers(ctx, &f.directory, &plan, ""); err != nil {
			return err
		}
	}
	run := f.lab.run
	if a.part == clientPart {
		run = func(ctx context.Context, plan bufferbloat.Plan, o bufferbloat.RunOptions) (*bufferbloat.Recording, error) {
			return a.speedtestInKernelLab(ctx, &f.lab, plan, o)
		}
	}
	rec, err := run(ctx, plan, o)
	if rec == nil {
		return err
	}
	if err != nil {
		rec.Findings = append(rec.Findings, bufferbloat.Finding{Code: "recording_not_whole", Severity: bufferbloat.Weakens,
			Text: fmt.Sprintf("the recording that was to be kept is not whole: %v; this result is", err)})
	}
	result := report.New(rec)
	if s := a.interruptedBy; rec.Stopped != "" && (s != nil || errors.As(context.Cause(ctx), &s)) {
		result.Signal = int(s.signal)
	}
	a.status = result.Status()
	if f.grades {
		result.Grades = grade.All(result)
	}
	if err := f.writePage(rec, result, kept); err != nil {
		a.complain(err)
	}
	if before != nil {
		result.Improved = report.Improvement(before, result)
	}
	if err := write(&opened{result, rec}, a.stdout); err != nil || before == nil {
		return err
	}
	return a.compared(result.Improved, f.format)
}

// takeBest puts the nearest server that may be used in the place of -H best.
func (a *app) takeBest(ctx context.Context, f *speedtestFlags) error {
	plan, err := f.plan()
	switch {
	case err != nil:
		return &usageError{err}
	case f.dryRun:
		return &usageError{errors.New("-H best asks the servers how far they are, and --dry-run sends nothing: name the server")}
	}
	load := time.Duration(f.length)
	if !f.together {
		load *= 2
	}
	best, err := a.chooseBest(ctx, &f.directory, bestOptions{protocol: "netperf", family: host.Family(plan.Server.Family), passphrase: f.passphrase != "", load: load,
		socket: host.Options{Source: plan.Server.Source, Interface: plan.Server.Interface}})
	if err != nil {
		return err
	}
	f.host, f.port = *best.Entry.Host, best.Port
	if port, ok := best.Entry.PortOf("irtt"); ok {
		f.irttPort = port
	}
	return nil
}

// compared prints the comparison with an earlier run: below a result for people, and beside a document that has no room for it.
func (a *app) compared(m *report.Improved, format string) error {
	switch {
	case format == "json":
		return nil // it is in the document
	case !people(format):
		return m.WriteText(a.stderr)
	}
	fmt.Fprintln(a.stdout)
	return m.WriteText(a.stdout)
}

// leaveToLab carries out what is to be done by another part of a kernel lab than its client's, and reports whether that was all.
func (a *app) leaveToLab(ctx context.Context, f *speedtestFlags) (over bool, err error) {
	switch {
	case !f.lab.on() || f.lab.carrier == processCarrier || a.part == clientPart:
		return false, nil
	case a.part == serverPart:
		return true, a.serveLab(ctx, f.port, f.irttPort)
	case a.part == linkPart:
		return true, f.lab.forwardLab(ctx)
	}
	if _, err := f.lab.links(); err != nil {
		return true, &usageError{err}
	}
	err = a.enterLab(ctx, func(*kernel.Inside) {}, false)
	if missing := (*kernel.MissingError)(nil); f.lab.carrier == autoCarrier && errors.As(err, &missing) {
		f.lab.why = fmt.Sprintf(" (kernel TCP: %v)", missing)
		return false, nil
	}
	return true, err
}

// printPlan prints what would be sent.
func (a *app) printPlan(plan bufferbloat.Plan, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(a.stdout)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"schema": "bloat/plan/1", "version": a.version, "plan": plan})
	}
	_, err := fmt.Fprint(a.stdout, plan.String())
	return err
}

// dots shows on the terminal how far the run is: a line a phase, a dot a second.
func (a *app) dots(p bufferbloat.Progress) {
	switch {
	case p.Finished:
		fmt.Fprintln(a.stderr)
	case p.Elapsed == 0:
		fmt.Fprintf(a.stderr, "%s, %v ", strings.ToUpper(p.Phase[:1])+p.Phase[1:], p.Length)
	default:
		fmt.Fprint(a.stderr, ".")
	}
}
