package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"bufferbloat"
	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/host"
	"bufferbloat/internal/thrift"
	"bufferbloat/protocols"
	"bufferbloat/report"
	"bufferbloat/report/grade"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/kernel"
)

// measureFlags are the flags of all commands that carry out a plan.
type measureFlags struct {
	four, six                        bool
	passphrase, ca                   string
	insecure                         bool
	source, device                   string
	port, irttPort, iperf3Port, data uint16
	iperf3                           iperf3Login

	format  string
	json    bool
	output  string
	against string
	page    string
	dryRun  bool
	grades  bool

	progress string
	events   string

	lab       labFlags
	directory directoryFlags
}

// registerServer registers the flags that say how to get to the server.
func (f *measureFlags) registerServer(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.four, "ipv4", "4", false, "use IPv4")
	flags.BoolVarP(&f.six, "ipv6", "6", false, "use IPv6")
	flags.StringVarP(&f.passphrase, "passphrase", "Z", "", "passphrase of the server")
	flags.StringVar(&f.ca, "ca", "", "file of certificates in PEM that flows and probes over TLS believe, in place of the system's")
	flags.BoolVar(&f.insecure, "insecure", false, "let HTTP flows load a web server whose certificate is not believed")
	flags.StringVar(&f.device, "interface", "", "network device to send through")
	flags.StringVar(&f.source, "source", "", "local address to send from")
	flags.Uint16Var(&f.port, "port", 12865, "control port of the netperf server")
	flags.Uint16Var(&f.data, "data-port", 0, "the server's port for data; 0 lets it choose")
	flags.Uint16Var(&f.irttPort, "irtt-port", 2112, "port of the irtt server")
}

// registerOutput registers the flags that say what becomes of the result, and those of the lab.
func (f *measureFlags) registerOutput(flags *pflag.FlagSet, format string) {
	flags.StringVar(&f.format, "format", format, formatNames)
	flags.BoolVar(&f.json, "json", false, "the same as --format json")
	flags.BoolVar(&f.grades, "grades", false, "show also what others' grading schemes say of the result")
	flags.StringVarP(&f.output, "output", "o", "", "keep the recording in this file")
	flags.StringVar(&f.against, "against", "", "compare with an earlier run: a recording, a JSON result or any file that bloat show reads")
	flags.StringVar(&f.page, "html", "", "write a page to this file: tables, pictures, charts, and the recording in it")
	flags.StringVar(&f.progress, "progress", autoProgress, "how to show the run while it goes on: live, plain (lines), none, or auto: what stderr is good for")
	flags.StringVar(&f.events, "events", "", "write what happens to this file, a JSON object a line, while it happens; - is stdout, in the place of the result (docs/formats.md)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the plan and send nothing")
	f.directory.registerRun(flags)
	f.lab.register(flags)
}

// servers returns the servers at hosts, and as flags say how to get there. The first known of them need no host. In a lab, which has one host to load,
// there are n of that one.
func (f *measureFlags) servers(hosts []string, n, known int) ([]bufferbloat.Server, error) {
	switch {
	case f.four && f.six:
		return nil, errors.New("-4 and -6 exclude each other")
	case f.lab.on() && len(hosts) > 0:
		return nil, errors.New("--lab has its own server; leave out -H")
	case !f.lab.on() && len(hosts) == 0 && known == 0:
		return nil, errors.New("name a server with -H HOST, or use --lab to measure an emulated link on this machine")
	}
	if err := f.lab.check(); err != nil {
		return nil, err
	}
	common := bufferbloat.Server{NetperfPort: f.port, IRTTPort: f.irttPort, IPerf3Port: f.iperf3Port, DataPort: f.data, Interface: f.device}
	if f.four {
		common.Family = 4
	}
	if f.six {
		common.Family = 6
	}
	if f.source != "" {
		source, err := netip.ParseAddr(f.source)
		if err != nil {
			return nil, fmt.Errorf("--source %q: want an address of this host", f.source)
		}
		common.Source = source
	}
	hosts = slices.Clone(hosts)
	for len(hosts) < n && f.lab.on() {
		hosts = append(hosts, lab.Name)
	}
	for len(hosts) < known {
		hosts = append(hosts, "") // the plan's own
	}
	var list []bufferbloat.Server
	for _, host := range hosts {
		s := common
		s.Host = host
		list = append(list, s)
	}
	return list, nil
}

// writer returns what writes a result in the format asked for.
func (f *measureFlags) writer() (func(*opened, io.Writer) error, error) {
	if f.json {
		f.format = "json"
	}
	if f.grades && !people(f.format) && f.format != "json" {
		return nil, errors.New("--grades goes with the formats speedtest, table, markdown and json")
	}
	return resultWriter(f.format)
}

// measure carries out a plan and prints the result. With announced, the plan's text goes to stderr before anything is sent.
func (a *app) measure(ctx context.Context, f *measureFlags, plan bufferbloat.Plan, announced bool) error {
	write, err := f.writer()
	if err != nil {
		return &usageError{err}
	}
	if f.dryRun {
		return program.PrintPlan(a.stdout, a.version, plan, f.format == "json")
	}
	var before *report.Result
	if f.against != "" {
		if before, err = openResult(f.against); err != nil {
			return &usageError{fmt.Errorf("--against: %w", err)}
		}
	}
	if over, err := a.leaveToLab(ctx, f, plan.Server); over {
		return err
	}
	o := bufferbloat.RunOptions{Version: a.version, Started: a.now(), Passphrase: f.passphrase, Packed: true}
	scratch := &thrift.Scratch{}
	defer scratch.Close()
	o.Scratch = scratch
	speak, err := f.speaks()
	if err != nil {
		return &usageError{err}
	}
	o.Kinds = protocols.All(speak)
	if f.output != "" {
		file, err := program.OpenOutput(f.output)
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
	announced = announced && f.progress != noProgress
	if announced {
		fmt.Fprint(a.stderr, plan.String())
		o.Reached = func(paths []bufferbloat.Path) {
			var said []string
			for i := range paths {
				if text := paths[i].Text(); !slices.Contains(said, text) {
					said = append(said, text)
					fmt.Fprintf(a.stderr, "  %s\n", report.Printable(text))
				}
			}
		}
	}
	followed, err := a.follow(ctx, f, &plan, &o, announced)
	if err != nil {
		return err
	}
	rec, err := a.runner(f, speak)(ctx, plan, o)
	followed.stop()
	if rec == nil {
		return followed.failed(ctx, err)
	}
	if err != nil {
		rec.Findings = append(rec.Findings, program.NotWhole(err))
	}
	result := a.judge(ctx, f, rec)
	if err := f.writePage(rec, result, kept); err != nil {
		a.complain(err)
	}
	if before != nil {
		result.Improved = report.Improvement(before, result)
	}
	if err := followed.over(result); err != nil {
		a.complain(err)
	}
	if f.events == "-" {
		return nil
	}
	if err := write(&opened{result, rec}, a.stdout); err != nil || before == nil {
		return err
	}
	return a.compared(result.Improved, f.format)
}

// speaks is how servers are spoken to.
func (f *measureFlags) speaks() (o protocols.Options, err error) {
	o.AnyCertificate = f.insecure
	if o.Login, err = f.iperf3.login(f.passphrase); err == nil {
		o.Roots, err = readRoots(f.ca)
	}
	return o, err
}

// spoken is what the server of a plan has to speak.
func spoken(plan bufferbloat.Plan) string {
	for _, ph := range plan.Phases {
		for _, f := range ph.Flows {
			if f.Protocol == bufferbloat.IPerf3 || f.Protocol == bufferbloat.IPerf3UDP {
				return string(bufferbloat.IPerf3)
			}
			if f.Protocol == bufferbloat.HTTP || f.Protocol == bufferbloat.HTTP2 {
				return string(bufferbloat.HTTP)
			}
		}
	}
	return string(bufferbloat.Netperf)
}

// planOf makes a plan of hosts. Where they are "best", that is replaced by the nearest public server that may be used.
func (a *app) planOf(ctx context.Context, f *measureFlags, hosts []string, make func() (bufferbloat.Plan, error)) (bufferbloat.Plan, error) {
	plan, err := make()
	switch {
	case err != nil:
		return plan, &usageError{err}
	case !slices.Contains(hosts, bestServer):
		return plan, nil
	case len(hosts) > 1:
		return plan, &usageError{errors.New("-H best is one server; name the others")}
	case f.dryRun:
		return plan, &usageError{errors.New("-H best asks the servers how far they are, and --dry-run sends nothing: name the server")}
	}
	var load time.Duration
	for _, ph := range plan.Phases {
		if ph.Kind == bufferbloat.Load {
			load += ph.Length
		}
	}
	best, err := a.chooseBest(ctx, &f.directory, bestOptions{protocol: spoken(plan), family: host.Family(plan.Server.Family), passphrase: f.passphrase != "", load: load,
		socket: host.Options{Source: plan.Server.Source, Interface: plan.Server.Interface}})
	if err != nil {
		return plan, err
	}
	hosts[0], f.port = *best.Entry.Host, best.Port
	if port, ok := best.Entry.PortOf("irtt"); ok {
		f.irttPort = port
	}
	if plan, err = make(); err != nil {
		return plan, &usageError{err}
	}
	return plan, nil
}

// runner returns what carries out a plan: on the kernel's network, or on an emulated link.
func (a *app) runner(f *measureFlags, speak protocols.Options) func(context.Context, bufferbloat.Plan, bufferbloat.RunOptions) (*bufferbloat.Recording, error) {
	if a.part != clientPart {
		return func(ctx context.Context, plan bufferbloat.Plan, o bufferbloat.RunOptions) (*bufferbloat.Recording, error) {
			if !f.lab.on() {
				defer joinLab(&o)()
			}
			return f.lab.run(ctx, plan, o, speak)
		}
	}
	return func(ctx context.Context, plan bufferbloat.Plan, o bufferbloat.RunOptions) (*bufferbloat.Recording, error) {
		return a.runInKernelLab(ctx, &f.lab, plan, o)
	}
}

// judge makes the result of a recording, and the exit status.
func (a *app) judge(ctx context.Context, f *measureFlags, rec *bufferbloat.Recording) *report.Result {
	result := report.New(rec)
	if s := a.interruptedBy; rec.Stopped != "" && (s != nil || errors.As(context.Cause(ctx), &s)) {
		result.Signal = int(s.Signal)
	}
	a.status = result.Status()
	if f.grades {
		result.Grades = grade.All(result)
	}
	return result
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
func (a *app) leaveToLab(ctx context.Context, f *measureFlags, server bufferbloat.Server) (over bool, err error) {
	switch {
	case !f.lab.on() || f.lab.carrier == processCarrier || a.part == clientPart:
		return false, nil
	case a.part == serverPart:
		return true, a.serveLab(ctx, server.NetperfPort, server.IRTTPort, iperf3Port(server))
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
