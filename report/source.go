package report

import (
	"math/rand/v2"
	"strings"

	"bufferbloat"
	"bufferbloat/report/stat"
)

// Unknown is the kind of a phase of which its source does not say whether the line carried any load.
const Unknown bufferbloat.PhaseKind = "unknown"

// Source says that a result was not measured here but read from what another program printed.
type Source struct {
	Program string   // "iputils ping", "speedtest-netperf.sh"
	Run     string   // what it calls the run, "" where nothing
	Host    string   // the load's server, or whom it pinged; "" where it is not told
	Rule    string   // of its quantiles, where it kept no samples; "" where the figures were computed here
	Untold  []string // what it does not tell, a sentence each
}

// Figures is a set of figures of a Latency.
type Figures uint8

// The figures that the tables have.
const (
	Min Figures = 1 << iota
	P10
	Median
	Mean
	P90
	Max

	AllFigures = Min | P10 | Median | Mean | P90 | Max
)

// Stated is what is known of a Latency whose samples another program had and did not keep: the figures that it printed, and no more. There are
// no counts beside N and Lost, no intervals, no 99th percentile and no quantiles with loss.
type Stated struct {
	Has     Figures
	Why     string // why the others are missing, "" where none is
	WhyLoss string // why the loss is not known, "" where it is
}

// Has reports whether all figures of f are known.
func (l *Latency) Has(f Figures) bool { return l.OK() && (l.Stated == nil || l.Stated.Has&f == f) }

// Loss returns the lost share of the decided probes, 0..1, or false where none was decided or the source does not tell.
func (l *Latency) Loss() (float64, bool) {
	if l.whyNoLoss() != "" {
		return 0, false
	}
	return l.Summary.Loss()
}

func (l *Latency) whyNoLoss() string {
	if l.Stated != nil {
		return l.Stated.WhyLoss
	}
	return l.NoLoss
}

// newSource returns where a recording was read, nil where this program measured.
func newSource(rec *bufferbloat.Recording) *Source {
	s := rec.Source
	if s == nil {
		return nil
	}
	run := rec.Plan.Name
	if s.Title != "" {
		run += ", " + s.Title
	}
	return &Source{Program: s.Program, Run: run, Host: rec.Path.Host, Untold: s.Untold}
}

// withLoss reports whether the quantiles that count losses are known.
func (l *Latency) withLoss() bool { return l.Stated == nil && l.NoLoss == "" && l.N+l.Lost > 0 }

// Complete fills in what follows from the phases and series of a result that was put together from another program's tables: the induced
// latency and the findings. Results of New are complete.
func (r *Result) Complete() {
	r.Induced = nil
	r.induce(rand.NewPCG(seed, 0))
	r.derive(nil)
}

// noSamples is why figures of another program's tables have no intervals.
const noSamples = "the source has no samples"

// computeStated is compute for tables without samples: differences without intervals, and no ratio.
func (d *Induced) computeStated(idle, loaded *Latency) {
	if !idle.Has(Median|P90) || !loaded.Has(Median|P90) {
		d.Why = "the source gives no percentiles"
		return
	}
	d.OK, d.NoInterval = true, noSamples
	d.Idle = idle.Summary
	d.Median = stat.Estimate{Value: loaded.Median - idle.Median}
	d.P90 = stat.Estimate{Value: loaded.P90 - idle.P90}
}

// intro says where a result was read and what it is of: "read from ping, pinging 192.0.2.1".
func (r *Result) intro() string {
	text := "Read from the output of " + printable(r.Source.Program)
	if r.Source.Run != "" {
		text += " (" + printable(r.Source.Run) + ")"
	}
	if r.Source.Host != "" {
		text += " against " + printable(r.Source.Host)
	}
	if s := r.primary(); s != nil && s.Target != "" && s.Target != r.Source.Host {
		text += ", probing " + printable(s.Target)
	}
	if s := r.primary(); s != nil && s.Interval > 0 {
		text += ", every " + plainMS(s.Interval) + " ms"
	}
	return text
}

// untold is what the source does not tell, in one line, "" where there is nothing.
func (r *Result) untold() string {
	if len(r.Source.Untold) == 0 {
		return ""
	}
	return "Not told: " + printable(strings.Join(r.Source.Untold, "; "))
}

// rule names the quantiles of the result.
func (r *Result) rule() string {
	if r.Source != nil && r.Source.Rule != "" {
		return printable(r.Source.Rule)
	}
	return stat.Rule
}
