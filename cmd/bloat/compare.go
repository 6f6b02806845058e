package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bufferbloat/report"
	"bufferbloat/report/compare"
)

// compareFlags are the flags of bloat compare as parsed.
type compareFlags struct {
	format  string
	json    bool
	margins margins
	metrics []string
	failIf  conditions
}

func (a *app) compareCommand() *cobra.Command {
	f := &compareFlags{}
	cmd := &cobra.Command{
		Use:   "compare [OLD] NEW",
		Short: "Compare runs with earlier ones, or with thresholds",
		Long: `Says of each figure how NEW differs from OLD, how certain that is, and whether it matters. OLD and NEW are each a recording, a
JSON result, a data file of flent or what another program printed; or a folder of them, a set of runs. The run is the unit: from
six runs on a side, a difference counts that all runs together bear out; with fewer, one that is a multiple of the margin between every
two runs. Runs that are void do not count, and are named. With NEW alone, only the thresholds of --fail-if are judged.
Exit status: 0 nothing is worse, 1 a file can't be read, 2 usage, 3 a regression, or a threshold was missed, 4 void: there is nothing
to compare or to judge, 5 inconclusive; it says how many runs are missing.`,
		Example: `  bloat compare before/ after/
  bloat compare --metric upload.loaded_rtt.p90 --margin 5ms before/ after/
  bloat compare --fail-if 'loaded_rtt.p90 > 50ms' --fail-if 'download.goodput < 90Mbit' run.json`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 2, len(args) == 1 && len(f.failIf) > 0:
				return nil
			case len(args) == 1:
				return &usageError{errors.New("name the old and the new runs, or give thresholds with --fail-if")}
			}
			return &usageError{errors.New("name the old and the new runs: each a file, or a folder of files")}
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.compare(f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.format, "format", "text", "text, markdown, json, junit or benchstat")
	flags.BoolVar(&f.json, "json", false, "the same as --format json")
	flags.StringArrayVar(&f.metrics, "metric", nil, "judge this metric in place of the usual ones (repeatable): upload.loaded_rtt.p90, or loaded_rtt.p90 of all phases")
	flags.Var(&f.margins, "margin", "what does not matter: 5ms of delays, 10% of delays and rates, 1pt of losses, or several: 2ms,10%")
	flags.Var(&f.failIf, "fail-if", "threshold that the new runs must keep (repeatable): 'loaded_rtt.p90 > 50ms'")
	return cmd
}

// writer returns what writes a comparison in the format asked for.
func (f *compareFlags) writer(version string) (func(*compare.Comparison, io.Writer) error, error) {
	if f.json {
		f.format = "json"
	}
	switch f.format {
	case "text":
		return (*compare.Comparison).WriteText, nil
	case "markdown":
		return (*compare.Comparison).WriteMarkdown, nil
	case "junit":
		return (*compare.Comparison).WriteJUnit, nil
	case "benchstat":
		return (*compare.Comparison).WriteBenchstat, nil
	case "json":
		return func(c *compare.Comparison, w io.Writer) error { return c.WriteJSON(w, version) }, nil
	}
	return nil, fmt.Errorf("--format %q: want text, markdown, json, junit or benchstat", f.format)
}

// compare reads both sets, compares them and prints the outcome.
func (a *app) compare(f *compareFlags, args []string) error {
	write, err := f.writer(a.version)
	if err != nil {
		return &usageError{err}
	}
	var sets [2][]*report.Result
	for i, path := range args {
		if sets[2-len(args)+i], err = a.openRuns(path); err != nil {
			return err
		}
	}
	c, err := compare.Compare(sets[0], sets[1], compare.Options{Margins: compare.Margins(f.margins), Metrics: f.metrics, FailIf: f.failIf})
	if err != nil {
		return &usageError{err}
	}
	a.status = c.Status()
	return write(c, a.stdout)
}

// conditions is a flag that may be given several times, each time a threshold.
type conditions []compare.Condition

func (c *conditions) Set(text string) error {
	one, err := compare.ParseCondition(text)
	if err == nil {
		*c = append(*c, one)
	}
	return err
}

func (c *conditions) String() string {
	var out []string
	for _, one := range *c {
		out = append(out, one.String())
	}
	return strings.Join(out, ", ")
}

func (*conditions) Type() string { return "condition" }

// margins is a flag: what a delay, a rate or a loss may change by without mattering, several values divided by commas.
type margins compare.Margins

func (m *margins) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		number, ok := strings.CutSuffix(part, "%")
		points, isPoints := strings.CutSuffix(part, "pt")
		switch {
		case ok:
			v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if !(v > 0 && v <= 1000) || err != nil {
				return fmt.Errorf("%q: want a percentage above 0", part)
			}
			m.DelayShare, m.RateShare = v/100, v/100
		case isPoints:
			v, err := strconv.ParseFloat(strings.TrimSpace(points), 64)
			if !(v > 0 && v <= 100) || err != nil {
				return fmt.Errorf("%q: want percentage points above 0, at most 100", part)
			}
			m.Points = math.Round(v*1e9) / 1e11
		default:
			v, err := time.ParseDuration(part)
			if err != nil || v <= 0 || v > time.Hour {
				return fmt.Errorf("%q: want a time (5ms), a percentage (10%%) or percentage points of loss (1pt)", part)
			}
			m.DelayTime = v
		}
	}
	return nil
}

func (m *margins) String() string {
	if *m == (margins{}) {
		return "2ms,10% of delays, 5% of rates, 2pt"
	}
	return fmt.Sprintf("%v,%v%%,%vpt", m.DelayTime, m.DelayShare*100, m.Points*100)
}

func (*margins) Type() string { return "margin" }
