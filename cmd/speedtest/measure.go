package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"bufferbloat"
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

// measure carries out a plan and prints the result. note is what is to stand in it beside what the run finds, "" for nothing.
func (a *app) measure(ctx context.Context, m *measure, plan bufferbloat.Plan, note string) error {
	write, err := m.writer()
	if err != nil {
		return &usageError{err}
	}
	if m.source != "" && !plan.Server.Source.IsValid() {
		return &usageError{fmt.Errorf("--source %q: want an address of this host", m.source)}
	}
	if m.dryRun {
		return a.printPlan(plan, m.format == "json")
	}
	o := bufferbloat.RunOptions{Version: version, Started: a.now(), Passphrase: m.passphrase, Packed: true}
	if m.output != "" {
		file, err := openOutput(m.output)
		if err != nil {
			return &usageError{fmt.Errorf("-o: %w", err)}
		}
		defer file.Close()
		o.File = file
	}
	if note != "" {
		o.Doubts = func() []bufferbloat.Finding {
			return []bufferbloat.Finding{{Code: "low_rate", Severity: bufferbloat.Note, Text: note}}
		}
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
		rec.Findings = append(rec.Findings, bufferbloat.Finding{Code: "recording_not_whole", Severity: bufferbloat.Weakens,
			Text: fmt.Sprintf("the recording that was to be kept is not whole: %v; this result is", err)})
	}
	result := report.New(rec)
	if s := (*signalError)(nil); rec.Stopped != "" && errors.As(context.Cause(ctx), &s) {
		result.Signal = int(s.signal)
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
	if s := (*signalError)(nil); errors.As(context.Cause(ctx), &s) {
		status = s.status()
	}
	return errors.Join(err, report.WriteError(a.stdout, version, "speedtest", err, status))
}

// printPlan prints what would be sent.
func (a *app) printPlan(plan bufferbloat.Plan, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.stdout).Encode(map[string]any{"schema": "bloat/plan/1", "version": version, "plan": plan})
	}
	_, err := io.WriteString(a.stdout, strings.TrimRight(plan.String(), "\n")+"\n")
	return err
}

// outputFile is the file of -o. What it held stays until the first byte of the new recording comes, so that a server that can't be reached costs
// nobody an earlier recording.
type outputFile struct {
	file  *os.File
	begun bool
}

func openOutput(name string) (*outputFile, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	return &outputFile{file: file}, nil
}

// Write implements io.Writer.
func (f *outputFile) Write(b []byte) (int, error) {
	if !f.begun {
		f.begun = true
		if info, err := f.file.Stat(); err != nil || info.Mode().IsRegular() { // a pipe or a device can't be cut, nor need it be
			if err := f.file.Truncate(0); err != nil {
				return 0, err
			}
		}
	}
	return f.file.Write(b)
}

// Close implements io.Closer.
func (f *outputFile) Close() error { return f.file.Close() }
