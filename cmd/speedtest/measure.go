package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"bufferbloat"
	"bufferbloat/cmd/internal/program"
	"bufferbloat/report"
)

// measure is how a plan is carried out, and what becomes of the result.
type measure struct {
	passphrase, source, device string
	port, data, irtt           uint16
	format, output             string
	dryRun                     bool
	showCPU                    bool
}

// newMeasure returns the defaults, with the result in a format.
func newMeasure(format string) measure { return measure{port: 12865, irtt: 2112, format: format} }

// options are the flags that all plans have.
func (m *measure) options() []option {
	const most = 65535
	return []option{
		{0, "port", "PORT", false, "control port of the netperf server (12865)", number(&m.port, 1, most)},
		{0, "data-port", "PORT", false, "the server's port for data; 0 lets it choose", number(&m.data, 0, most)},
		{0, "irtt-port", "PORT", false, "port of the irtt server (2112)", number(&m.irtt, 1, most)},
		{0, "interface", "NAME", false, "network device to send through", text(&m.device)},
		{0, "source", "ADDRESS", false, "local address to send from", text(&m.source)},
		{0, "format", "NAME", false, "speedtest, table, csv or json", text(&m.format)},
		{0, "json", "", false, "the same as --format json", func(string) error { m.format = "json"; return nil }},
		{'o', "output", "FILE", false, "keep the recording in this file, for bloat show, plot and compare", text(&m.output)},
		{0, "dry-run", "", false, "print what would be sent, and send nothing", flag(&m.dryRun)},
	}
}

// server is the server of a plan.
func (m *measure) server(host string, family int) bufferbloat.Server {
	s := bufferbloat.Server{Host: host, Family: family, NetperfPort: m.port, DataPort: m.data, IRTTPort: m.irtt, Interface: m.device}
	if a, err := netip.ParseAddr(m.source); err == nil {
		s.Source = a
	}
	return s
}

// writer returns what writes a result in the format asked for.
func (m *measure) writer() (func(*report.Result, io.Writer) error, error) {
	switch m.format {
	case "speedtest":
		if m.showCPU {
			return (*report.Result).WriteSpeedtestCPU, nil
		}
		return (*report.Result).WriteSpeedtest, nil
	case "table":
		return (*report.Result).WriteTable, nil
	case "csv":
		return (*report.Result).WriteCSV, nil
	case "json":
		return (*report.Result).WriteJSON, nil
	}
	return nil, fmt.Errorf("--format %q: want speedtest, table, csv or json", m.format)
}

// measure carries out a plan and prints the result.
func (a *app) measure(ctx context.Context, m *measure, plan bufferbloat.Plan) error {
	write, err := m.writer()
	if err != nil {
		return &usageError{err}
	}
	if m.source != "" && !plan.Server.Source.IsValid() {
		return &usageError{fmt.Errorf("--source %q: want an address of this host", m.source)}
	}
	if m.dryRun {
		return program.PrintPlan(a.stdout, version, plan, m.format == "json")
	}
	o := bufferbloat.RunOptions{Version: version, Started: a.now(), Passphrase: m.passphrase, Packed: true}
	if m.output != "" {
		file, err := program.OpenOutput(m.output)
		if err != nil {
			return &usageError{fmt.Errorf("-o: %w", err)}
		}
		defer file.Close()
		o.File = file
	}
	dotted := false
	if a.dots {
		o.Progress = func(bufferbloat.Progress) { dotted = true; fmt.Fprint(a.stderr, ".") }
	}
	rec, err := bufferbloat.Run(ctx, plan, o)
	if dotted {
		fmt.Fprintln(a.stderr)
	}
	if rec == nil {
		return a.failed(ctx, m, err)
	}
	if err != nil {
		rec.Findings = append(rec.Findings, program.NotWhole(err))
	}
	result := report.New(rec)
	if s := (*program.SignalError)(nil); rec.Stopped != "" && errors.As(context.Cause(ctx), &s) {
		result.Signal = int(s.Signal)
	}
	a.status = result.Status()
	return write(result, a.stdout)
}

// failed says why nothing was measured, on stdout too where a document was asked for.
func (a *app) failed(ctx context.Context, m *measure, err error) error {
	if m.format != "json" {
		return err
	}
	status := statusFailed
	if s := (*program.SignalError)(nil); errors.As(context.Cause(ctx), &s) {
		status = s.Status()
	}
	return errors.Join(err, report.WriteError(a.stdout, version, "speedtest", err, status))
}
