package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"bufferbloat/report/html"
	"bufferbloat/report/plot"
	"bufferbloat/report/termplot"
)

// plotFlags are the flags of bloat plot as parsed.
type plotFlags struct {
	output   string
	kind     string
	width    int
	apart    bool
	sameAxes bool
	log      bool
	terminal bool
	ascii    bool
}

func (a *app) plotCommand() *cobra.Command {
	f := &plotFlags{}
	cmd := &cobra.Command{
		Use:   "plot RECORDING... [-o FILE.svg|.png|.html]",
		Short: "Draw recordings: as SVG, PNG, an HTML page, or in the terminal",
		Long: `Draws one recording, or several in one picture. The name of the file that -o names tells the format: .svg, .png, or .html for a page
that holds everything: tables, findings, all pictures, charts to zoom into, and the recordings themselves. Without -o the plots are
drawn in the terminal. A probe stands at the time at which it was sent; a lost one is a mark on the top edge; where nothing
is known there is a gap.

  rrul          download, upload and round-trip time over time (default of a file)
  cdf           distribution of the round-trip time: by phase, or of several recordings in each phase
  box           quartiles of the round-trip time by phase
  rate-latency  round-trip time against goodput, with an ellipse for each load
  shares        goodput of each flow
  heat          how many probes took how long, over time
  tcp           smoothed RTT and congestion window of the flows, where recorded
  qdisc         backlog of the queue discipline, where recorded`,
		Example: `  bloat plot fifo.bloat.json.gz
  bloat plot fifo.bloat.json.gz fq_codel.bloat.json.gz -o compared.svg
  bloat plot fifo.bloat.json.gz fq_codel.bloat.json.gz --plot rrul --apart --same-axes -o apart.png
  bloat plot fifo.bloat.json.gz -o fifo.html`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &usageError{errors.New("name a recording to draw; bloat speedtest -o FILE makes one")}
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.plot(f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.output, "output", "o", "", "file to write: .svg, .png or .html; without it the plots go to the terminal")
	flags.StringVar(&f.kind, "plot", "", "what to draw: "+plot.KindNames())
	flags.BoolVar(&f.sameAxes, "same-axes", false, "the same axes for all panels that stand apart")
	flags.BoolVar(&f.apart, "apart", false, "each recording in panels of its own")
	flags.BoolVar(&f.log, "log", false, "round-trip times on a logarithmic axis (cdf, box, heat)")
	flags.IntVar(&f.width, "width", 0, fmt.Sprintf("width in px (%d), or in columns of the terminal (what it has)", plot.DefaultWidth))
	flags.BoolVar(&f.terminal, "terminal", false, "draw in the terminal: rrul (over time), cdf, or both without --plot")
	flags.BoolVar(&f.ascii, "ascii", false, "terminal: ASCII alone, whatever the locale says")
	return cmd
}

// check says which flags do not go together.
func (f *plotFlags) check() error {
	switch ext := filepath.Ext(f.output); {
	case f.terminal && f.output != "":
		return errors.New("--terminal and -o exclude each other")
	case f.output == "" && f.kind != "" && f.kind != string(plot.RRUL) && f.kind != string(plot.CDF):
		return fmt.Errorf("--plot %s: the terminal has rrul and cdf; name a file with -o x.svg or -o x.png", f.kind)
	case f.output == "" && (f.apart || f.log):
		return errors.New("--apart and --log are for pictures; name a file with -o")
	case f.output == "":
		return nil
	case ext != ".svg" && ext != ".png" && ext != ".html":
		return fmt.Errorf("-o %s: want a name that ends with .svg, .png or .html", f.output)
	case ext == ".html" && f.kind != "":
		return errors.New("--plot chooses a picture; a page has them all")
	case f.width != 0 && (f.width < plot.MinWidth || f.width > plot.MaxWidth):
		return fmt.Errorf("--width %d: want %d to %d px", f.width, plot.MinWidth, plot.MaxWidth)
	}
	if f.kind != "" && !strings.Contains(" "+strings.ReplaceAll(plot.KindNames(), ",", "")+" ", " "+f.kind+" ") {
		return fmt.Errorf("--plot %q: want %s", f.kind, plot.KindNames())
	}
	return nil
}

func (a *app) plot(f *plotFlags, paths []string) error {
	if err := f.check(); err != nil {
		return &usageError{err}
	}
	if len(paths) > plot.MaxRuns {
		return &usageError{fmt.Errorf("%d recordings: %d at most can be told apart in one picture", len(paths), plot.MaxRuns)}
	}
	files := make([]opened, len(paths))
	for i, path := range paths {
		o, err := open(path, os.Stdin)
		if err != nil {
			return err
		}
		if o.recording == nil {
			return fmt.Errorf("%s: it has no samples, only the figures that another program made of them; there is nothing to draw", path)
		}
		files[i] = o
	}
	names := runNames(paths)
	o := plot.Options{Width: f.width, Apart: f.apart, SameAxes: f.sameAxes, Log: f.log}
	switch filepath.Ext(f.output) {
	case "":
		return a.plotText(f, names, files)
	case ".html":
		var runs []html.Run
		for i, path := range paths {
			b, err := fileForPage(path)
			if err != nil {
				return err
			}
			runs = append(runs, html.Run{Name: names[i], Recording: files[i].recording, Result: files[i].result, File: b, FileName: filepath.Base(path)})
		}
		return writeFile(f.output, func(w io.Writer) error { return html.Write(w, runs, o) })
	}
	var runs []plot.Run
	for i := range files {
		runs = append(runs, plot.Run{Name: names[i], Recording: files[i].recording})
	}
	kind := plot.RRUL
	if f.kind != "" {
		kind = plot.Kind(f.kind)
	}
	p, err := plot.New(kind, runs, o)
	if err != nil {
		return err
	}
	if filepath.Ext(f.output) == ".png" {
		return writeFile(f.output, p.WritePNG)
	}
	return writeFile(f.output, p.WriteSVG)
}

// plotText draws in the terminal.
func (a *app) plotText(f *plotFlags, names []string, files []opened) error {
	var runs []termplot.Run
	for i := range files {
		runs = append(runs, termplot.Run{Name: names[i], Recording: files[i].recording})
	}
	o := termplot.Options{Width: f.width, ASCII: f.ascii || !unicodeLocale(os.Getenv)}
	if out, ok := a.stdout.(*os.File); ok && f.width == 0 {
		if width, _, err := term.GetSize(int(out.Fd())); err == nil {
			o.Width = width
		}
	}
	if f.kind != string(plot.CDF) {
		if err := termplot.Time(a.stdout, runs, o); err != nil {
			return err
		}
	}
	if f.kind == "" {
		fmt.Fprintln(a.stdout)
	}
	if f.kind == string(plot.RRUL) {
		return nil
	}
	return termplot.CDF(a.stdout, runs, o)
}

// unicodeLocale reports whether the environment's locale has UTF-8. The first of the variables that is set decides, as everywhere.
func unicodeLocale(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToUpper(getenv(name)); v != "" {
			return strings.Contains(v, "UTF-8") || strings.Contains(v, "UTF8")
		}
	}
	return false
}

// runNames are the files' names without what they have in common, so that pictures can tell them apart: with directories where the names alone
// are the same.
func runNames(paths []string) []string {
	names := make([]string, len(paths))
	seen := map[string]int{}
	for i, path := range paths {
		base := filepath.Base(path)
		for _, ext := range []string{".bloat.json.gz", ".flent.gz", ".gz", ".json"} {
			if short, ok := strings.CutSuffix(base, ext); ok && short != "" {
				base = short
				break
			}
		}
		names[i] = base
		seen[base]++
	}
	for i, path := range paths {
		if seen[names[i]] > 1 {
			names[i] = path
		}
	}
	return names
}

// fileForPage returns a file as a page offers it, nil where it can't be had a second time, or is longer than a page takes.
func fileForPage(path string) ([]byte, error) {
	if path == "-" {
		return nil, nil
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, html.MaxFile+1))
}
