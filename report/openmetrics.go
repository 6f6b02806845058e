package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat"
)

// metric is one OpenMetrics family of gauges under way.
type metric struct {
	name, unit, help string
	samples          []string
	seen             map[string]bool // by name and labels
}

// WriteOpenMetrics prints the result in the OpenMetrics text format 1.0, for a collector of metrics: gauges alone, with their units in the names. What has
// no figure has no sample: an absent series is not a zero.
func (r *Result) WriteOpenMetrics(w io.Writer) error {
	e := newExposition()
	e.add("bloat_status", nil, float64(r.Status()))
	if !r.Started.IsZero() {
		e.add("bloat_started_timestamp_seconds", nil, float64(r.Started.UnixNano())/1e9)
	}
	for i := range r.Phases {
		e.phase(&r.Phases[i])
	}
	for i := range r.Induced {
		if d := &r.Induced[i]; d.OK {
			for _, q := range []struct {
				q     string
				value time.Duration
			}{{"0.5", d.Median.Value}, {"0.9", d.P90.Value}} {
				e.add("bloat_induced_latency_seconds", []string{"phase", d.Phase, "series", d.Series, "quantile", q.q}, q.value.Seconds())
			}
		}
	}
	counts := map[[2]string]int{}
	var keys [][2]string
	for _, f := range r.Findings {
		k := [2]string{f.Code, string(f.Severity)}
		if counts[k]++; counts[k] == 1 {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		e.add("bloat_findings", []string{"code", k[0], "severity", k[1]}, float64(counts[k]))
	}
	info := []string{"host", r.Path.Host, "plan", r.Plan.Name, "version", r.Version}
	if r.Source != nil {
		info = []string{"host", r.Source.Host, "source", r.Source.Program}
	}
	e.add("bloat_run", info, 1)
	_, err := io.WriteString(w, e.String())
	return err
}

// exposition is an OpenMetrics text under way; its families are in the order of this list, and those without samples are left out.
type exposition struct{ families []metric }

func newExposition() *exposition {
	return &exposition{[]metric{
		{name: "bloat_run", help: "What was run; always 1."},
		{name: "bloat_status", help: "Exit status: 0 measured, 1 could not measure, 4 measured but void or partial, 128+n ended by signal n."},
		{name: "bloat_started_timestamp_seconds", unit: "seconds", help: "Start of the run by the wall clock."},
		{name: "bloat_goodput_bits_per_second", unit: "bits_per_second", help: "Payload that the receivers counted, over the time that data flowed."},
		{name: "bloat_streams", help: "Streams by what became of them: planned, those that carried data, those that ran to their end."},
		{name: "bloat_rtt_seconds", unit: "seconds", help: "Quantiles of the round-trip time; 0 is the minimum, 1 the maximum."},
		{name: "bloat_rtt_mean_seconds", unit: "seconds", help: "Mean of the round-trip time."},
		{name: "bloat_probes", help: "Probes by what became of them."},
		{name: "bloat_loss_ratio", unit: "ratio", help: "Lost share of the probes whose fate is decided."},
		{name: "bloat_induced_latency_seconds", unit: "seconds", help: "Loaded minus idle, the same quantile of both."},
		{name: "bloat_cpu_busy_ratio", unit: "ratio", help: "Busy share of all CPUs of the measuring host together."},
		{name: "bloat_findings", help: "Findings that a reader must know, by code."},
	}}
}

// add adds a sample; labels are names and values in turn, those with an empty value left out.
func (e *exposition) add(family string, labels []string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	i := slices.IndexFunc(e.families, func(m metric) bool { return m.name == family })
	var pairs []string
	for j := 0; j+1 < len(labels); j += 2 {
		if labels[j+1] != "" {
			pairs = append(pairs, labels[j]+`="`+labelValue(labels[j+1])+`"`)
		}
	}
	text := family
	if len(pairs) > 0 {
		text += "{" + strings.Join(pairs, ",") + "}"
	}
	m := &e.families[i]
	if m.seen == nil {
		m.seen = map[string]bool{}
	}
	if m.seen[text] {
		return // the format forbids it; only a recording with two phases of one name gets here
	}
	m.seen[text] = true
	m.samples = append(m.samples, text+" "+strconv.FormatFloat(v, 'g', -1, 64))
}

// labelValue escapes a value as the format asks, and before that what could steer a terminal.
func labelValue(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(printable(s))
}

func (e *exposition) phase(p *Phase) {
	if p.Kind == bufferbloat.Drain || !p.Reached {
		return
	}
	for _, g := range p.Goodput {
		dir := []string{"phase", p.Name, "direction", g.Direction.String()}
		if g.OK {
			labels := dir
			if g.CutShort() {
				labels = append(slices.Clone(dir), "cut_short", "true")
			}
			e.add("bloat_goodput_bits_per_second", labels, float64(g.Rate))
		}
		if g.Planned > 0 {
			for _, s := range []struct {
				state string
				n     int
			}{{"planned", g.Planned}, {"flowed", g.Flowed}, {"whole", g.Whole}} {
				e.add("bloat_streams", append(slices.Clone(dir), "state", s.state), float64(s.n))
			}
		}
	}
	for i := range p.Latency {
		e.latency(p, &p.Latency[i])
	}
	if p.CPU.OK {
		e.add("bloat_cpu_busy_ratio", []string{"phase", p.Name}, p.CPU.Busy.Mean)
	}
}

func (e *exposition) latency(p *Phase, l *Latency) {
	labels := []string{"phase", p.Name, "series", l.Series, "probe", l.Kind}
	if p.Kind == bufferbloat.Load {
		labels = append(labels, "under_load", strconv.FormatBool(p.UnderLoad))
	}
	for i, f := range l.figures() {
		q := []string{"0", "0.1", "0.5", "", "0.9", "0.99", "1"}[i]
		switch {
		case !f.ok:
		case q == "":
			e.add("bloat_rtt_mean_seconds", labels, f.value.Seconds())
		default:
			e.add("bloat_rtt_seconds", append(slices.Clone(labels), "quantile", q), f.value.Seconds())
		}
	}
	if loss, ok := l.Loss(); ok {
		e.add("bloat_loss_ratio", labels, loss)
	}
	state := func(name string, n int) {
		e.add("bloat_probes", append(slices.Clone(labels), "state", name), float64(n))
	}
	if l.Stated != nil {
		state("answered", l.N)
		return
	}
	c := l.Count
	state("answered", c.Answered())
	state("lost", c.AllLost())
	state("unsent", c.Unsent)
	state("unfinished", c.Unfinished)
	state("invalid", c.Invalid)
}

func (e *exposition) String() string {
	var b strings.Builder
	for _, m := range e.families {
		if len(m.samples) == 0 {
			continue
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name)
		if m.unit != "" {
			fmt.Fprintf(&b, "# UNIT %s %s\n", m.name, m.unit)
		}
		for _, s := range m.samples {
			b.WriteString(s + "\n")
		}
	}
	b.WriteString("# EOF\n")
	return b.String()
}
