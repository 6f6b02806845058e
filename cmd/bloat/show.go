package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"bufferbloat/report"
	"bufferbloat/report/flent"
	"bufferbloat/report/grade"
)

// showFlags are the flags of bloat show as parsed.
type showFlags struct {
	format string
	json   bool
	output string
	grades bool
}

func (a *app) showCommand() *cobra.Command {
	f := &showFlags{}
	cmd := &cobra.Command{
		Use:   "show FILE...",
		Short: "Show recordings, flent's data files and what other programs printed",
		Long: `Prints the result that a file holds, as the command that measured it would have. A file may be a recording or a JSON result
of this program, a data file of flent (versions 1 to 4), or the output of another program; its content tells, not its name, and
"-" is stdin. The folder of a batch is shown as a table of its runs; DIR@AXIS=VALUE,... are those with these values. What the source does not tell is a dash with the reason. The exit status is that of the result: 0 measured,
1 nothing was measured or the file can't be read, 2 usage, 4 void or partial; of several files, the highest.`,
		Example: `  bloat show before.bloat.json.gz
  bloat show --format table rrul-2026-11-30.flent.gz
  bloat show before.bloat.json.gz --format flent -o before.flent.gz`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("name a file to show, or - for stdin")}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.show(f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.format, "format", "speedtest", formatNames+", or flent: a data file that flent reads")
	flags.BoolVar(&f.json, "json", false, "the same as --format json")
	flags.BoolVar(&f.grades, "grades", false, "show also what others' grading schemes say of it")
	flags.StringVarP(&f.output, "output", "o", "", "write to this file in place of stdout")
	return cmd
}

// show prints each file, and goes on after one that can't be read. The file of -o is touched when there is something to write, and not before.
func (a *app) show(f *showFlags, paths []string) error {
	if f.json {
		f.format = "json"
	}
	if f.grades && !people(f.format) && f.format != "json" {
		return &usageError{errors.New("--grades goes with the formats speedtest, table, markdown and json")}
	}
	write, err := f.writer()
	if err != nil {
		return &usageError{err}
	}
	if len(paths) == 1 {
		if dir, values, ix, err := openBatch(paths[0]); err != nil {
			return err
		} else if ix != nil {
			return a.showBatch(f, dir, values, ix)
		}
	}
	if len(paths) > 1 && (!people(f.format)) {
		return &usageError{fmt.Errorf("--format %s takes one file, because what it prints is one document", f.format)}
	}
	if f.output == "" {
		return a.showTo(a.stdout, f, paths, write)
	}
	var b bytes.Buffer
	if err := a.showTo(&b, f, paths, write); err != nil || b.Len() == 0 {
		return err // and the file of -o is as it was
	}
	return saveFile(f.output, b.Bytes())
}

// showTo prints each file to out; of several under its name.
func (a *app) showTo(out io.Writer, f *showFlags, paths []string, write func(*opened, io.Writer) error) error {
	shown := 0
	for _, path := range paths {
		o, err := f.open(path, os.Stdin)
		switch {
		case err != nil && len(paths) == 1:
			return err
		case err != nil:
			a.complain(err)
			a.status = max(a.status, statusFailed)
			continue
		}
		if len(paths) > 1 {
			if shown++; shown > 1 {
				fmt.Fprintln(out)
			}
			fmt.Fprintf(out, "%s\n", report.Printable(path))
		}
		if f.grades {
			o.result.Grades = grade.All(o.result)
		}
		if err := write(&o, out); err != nil {
			return named(path, err)
		}
		a.status = max(a.status, o.result.Status())
	}
	return nil
}

// open reads a file for what is to be printed of it.
func (f *showFlags) open(path string, stdin io.Reader) (opened, error) {
	if f.format == "flent" || f.format == "ndjson" {
		return open(path, stdin)
	}
	return openFigures(path, stdin)
}

// writer returns what writes a file's content in the format asked for.
func (f *showFlags) writer() (func(*opened, io.Writer) error, error) {
	if f.format == "flent" {
		return func(o *opened, w io.Writer) error {
			if o.recording == nil {
				return errors.New("it has no samples, and a data file of flent is made of them")
			}
			if slices.ContainsFunc(o.result.Phases, func(p report.Phase) bool { return p.Untimed }) {
				return errors.New("it does not say when its probes were sent, and a data file of flent is of samples in time")
			}
			return flent.Write(w, o.recording)
		}, nil
	}
	write, err := resultWriter(f.format)
	if err != nil {
		return nil, fmt.Errorf("--format %q: want %s or flent", f.format, formatNames)
	}
	return write, nil
}
