package compare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/report"
	"bufferbloat/report/stat"
)

// Unit is what a metric is counted in.
type Unit string

// The units. Within this package a figure is a float64 in the unit of its metric.
const (
	Delay Unit = "ns"
	Rate  Unit = "bps"
	Share Unit = "share" // 0..1
)

// Metric is a figure that every run of a plan has. Its name is stable.
type Metric struct {
	Name           string // "upload.loaded_rtt.p90"
	Unit           Unit
	HigherIsBetter bool
	// Headline metrics are judged where nobody asks for others.
	Headline bool

	brief bool // in the tables for people where it is not judged
}

// kinds are the metrics without the phase before their names; docs/compare.md has the same list.
var kinds = []Metric{
	{"goodput", Rate, true, true, true},
	{"fairness", Share, true, false, false},
	{"loaded_rtt.min", Delay, false, false, false},
	{"loaded_rtt.p10", Delay, false, false, false},
	{"loaded_rtt.p50", Delay, false, true, true},
	{"loaded_rtt.mean", Delay, false, false, false},
	{"loaded_rtt.p90", Delay, false, true, true},
	{"loaded_rtt.p99", Delay, false, false, true},
	{"loaded_rtt.max", Delay, false, false, false},
	{"induced.p50", Delay, false, false, true},
	{"induced.p90", Delay, false, false, false},
	{"loss", Share, false, true, true},
	{"page_time.p50", Delay, false, false, true},
	{"page_score", Share, true, false, false},
	{"idle_rtt.min", Delay, false, false, false},
	{"idle_rtt.p10", Delay, false, false, false},
	{"idle_rtt.p50", Delay, false, false, true},
	{"idle_rtt.mean", Delay, false, false, false},
	{"idle_rtt.p90", Delay, false, false, false},
	{"idle_rtt.p99", Delay, false, false, false},
	{"idle_rtt.max", Delay, false, false, false},
}

// kindOf returns what a metric's name measures, whatever the phase before it; false where nothing does.
func kindOf(name string) (Metric, bool) {
	for _, k := range kinds {
		if within(name, k.Name) {
			return k, true
		}
	}
	return Metric{}, false
}

// within reports whether name is asked for by asked: the whole name, or the end of it without its first parts.
func within(name, asked string) bool { return name == asked || strings.HasSuffix(name, "."+asked) }

// kindNames lists the metrics for people.
func kindNames() string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Name)
	}
	return strings.Join(out, ", ")
}

// figure is a metric of one run.
type figure struct {
	Metric
	phase string // as the run names it
	why   string // why there is no value, "" where there is one
	never bool   // no such run could have it, as why says: what it was read from does not tell
	value float64
	// low and high are the interval within the run, where there is one.
	low, high float64
	interval  bool
	idle      bool   // of a phase without load, which is shown and not judged
	bursty    bool   // what it counts comes in bursts: an interval within the run is true for equality alone
	probe     string // kind of the probe that measured it, "" for rates
}

// collector gathers the figures of one run.
type collector struct {
	figures []figure
	taken   map[string]bool
}

// add names a figure by phase and kind. Two phases whose names come to the same are told apart by number.
func (c *collector) add(prefix, kind string, f figure) {
	k, _ := kindOf(kind)
	f.Metric = k
	f.Name = kind
	f.Headline = k.Headline && !f.idle
	if prefix != "" {
		f.Name = prefix + "." + kind
	}
	for i := 2; c.taken[f.Name]; i++ {
		f.Name = fmt.Sprintf("%s_%d.%s", prefix, i, kind)
	}
	c.taken[f.Name] = true
	c.figures = append(c.figures, f)
}

// figuresOf returns the figures of a run, absent ones with their reason, always in the same order.
func figuresOf(r *report.Result) []figure {
	c := &collector{taken: map[string]bool{}}
	for i := range r.Phases {
		p := &r.Phases[i]
		switch p.Kind {
		case bufferbloat.Load:
			c.load(r, p)
		case bufferbloat.Idle:
			c.latency(r, p, "", "idle_rtt", "")
			c.loss(r, p)
		}
	}
	return c.figures
}

func (c *collector) load(r *report.Result, p *report.Phase) {
	name := plainName(p.Name)
	for i := range p.Goodput {
		g := &p.Goodput[i]
		prefix := name
		if len(p.Goodput) > 1 {
			prefix += "." + g.Direction.String()
		}
		f := figure{phase: p.Name, value: float64(g.Rate)}
		if !g.OK {
			f.why = cmp.Or(g.Why, "no result")
		}
		if g.OK && g.Range.OK {
			f.low, f.high, f.interval = float64(g.Range.Low), float64(g.Range.High), true
		}
		c.add(prefix, "goodput", f)
		if g.Planned > 1 {
			f := figure{phase: p.Name, value: g.Fairness}
			if !g.HasFairness || !g.OK {
				f.why = cmp.Or(g.Why, "the streams were not counted one by one")
			}
			c.add(prefix, "fairness", f)
		}
	}
	why := ""
	switch {
	case !p.Reached:
		why = "the phase was not reached"
	case !p.UnderLoad:
		why = "there was no load"
	}
	c.latency(r, p, name, "loaded_rtt", why)
	c.induced(r, p, name)
	c.loss(r, p)
	c.pages(r, p, name)
}

// latency adds the quantiles of the primary series.
func (c *collector) latency(r *report.Result, p *report.Phase, prefix, family, why string) {
	l := p.Primary()
	never := false
	switch {
	case why != "":
	case !p.Reached:
		why = "the phase was not reached"
	case l == nil:
		why, never = noProbe(r)
	case !l.OK():
		why = "no probe was answered"
	}
	if l == nil {
		l = &report.Latency{}
	}
	ladder := map[string]report.Figures{"min": report.Min, "p10": report.P10, "p50": report.Median, "mean": report.Mean, "p90": report.P90, "max": report.Max}
	for _, s := range []struct {
		name  string
		value time.Duration
	}{{"min", l.Min}, {"p10", l.P10}, {"p50", l.Median}, {"mean", l.Mean}, {"p90", l.P90}, {"p99", l.P99}, {"max", l.Max}} {
		f := figure{phase: p.Name, why: why, never: never, value: float64(s.value), probe: l.Kind}
		percentile := s.name[0] == 'p'
		switch {
		case why != "":
		case s.name == "p99" && !l.HasP99:
			f.why = fmt.Sprintf("%d answered probes do not bound a 99th percentile; it takes %d", l.N, stat.MinSamples(0.99))
		case s.name != "p99" && !l.Has(ladder[s.name]):
			f.why, f.never = "the source does not give it", true
		case percentile && l.Few():
			f.why = fmt.Sprintf("%d answered probes are too few for a percentile", l.N)
		case s.name == "p50":
			f.within(&l.MedianRange, l, l.P10, l.P90)
		case s.name == "p90":
			f.within(&l.P90Range, l, l.Median, l.Max)
		}
		c.add(prefix, family+"."+s.name, f)
	}
}

// within takes the interval of an estimate over, and where that is weak, because the samples depend on each other too much, the span of
// samples from low to high in its place.
func (f *figure) within(e *stat.Estimate, l *report.Latency, low, high time.Duration) {
	if l.Stated != nil {
		return
	}
	f.low, f.high, f.interval = float64(e.Low), float64(e.High), true
	if e.Weak() {
		f.low, f.high = min(f.low, float64(low)), max(f.high, float64(high))
	}
}

func (c *collector) induced(r *report.Result, p *report.Phase, name string) {
	i := slices.IndexFunc(r.Induced, func(d report.Induced) bool { return d.Phase == p.Name })
	for _, s := range []string{"p50", "p90"} {
		f := figure{phase: p.Name, why: "there is no idle baseline"}
		if i >= 0 {
			d := &r.Induced[i]
			e := &d.Median
			if s == "p90" {
				e = &d.P90
			}
			f.why, f.value = d.Why, float64(e.Value)
			if !d.OK {
				f.why = cmp.Or(d.Why, f.why, "not known")
			} else if d.Idle.Few() || d.Loaded.Few() {
				f.why = "too few answered probes for a percentile"
			}
			f.low, f.high, f.interval = float64(e.Low), float64(e.High), d.OK && d.NoInterval == "" && !e.Weak()
			if l := p.Primary(); l != nil {
				f.probe = l.Kind
			}
		}
		c.add(name, "induced."+s, f)
	}
}

func (c *collector) loss(r *report.Result, p *report.Phase) {
	f := figure{phase: p.Name, bursty: true, idle: p.Kind != bufferbloat.Load}
	l := p.Primary()
	switch {
	case !p.Reached:
		f.why = "the phase was not reached"
	case p.Kind == bufferbloat.Load && !p.UnderLoad:
		f.why = "there was no load"
	case l == nil:
		f.why, f.never = noProbe(r)
	case l.N == 0 && l.Lost > 0:
		f.why = "no probe was answered, and a blocked probe is not told from a lost one"
	default:
		share, ok := l.Loss()
		if !ok {
			f.why = "how many probes were lost is not known"
			if untold := lossUntold(l); untold != "" {
				f.why, f.never = f.why+": "+untold, l.OK()
			}
			break
		}
		f.value, f.probe = share, l.Kind
		if l.Stated == nil {
			f.low, f.high = stat.ShareInterval(l.Lost, l.N+l.Lost)
			f.interval = true
		}
	}
	c.add(plainName(p.Name), "loss", f)
}

// pages adds what each series of pages says of a load phase; nothing where no pages were loaded.
func (c *collector) pages(r *report.Result, p *report.Phase, name string) {
	for i := range r.PageScores {
		s := &r.PageScores[i]
		if s.Phase != p.Name {
			continue
		}
		took, score := figure{phase: p.Name, probe: string(bufferbloat.Page)}, figure{phase: p.Name, probe: string(bufferbloat.Page)}
		few := func(t *report.PageTime) string {
			if t == nil {
				return cmp.Or(s.Reason, "no page was loaded")
			}
			if t.N < stat.FewSamples {
				return fmt.Sprintf("%d pages are too few for a percentile", t.N)
			}
			return ""
		}
		if took.why = few(s.Loaded); took.why == "" {
			took.value = float64(s.Loaded.Median)
		}
		if score.why = cmp.Or(few(s.Loaded), few(s.Idle)); score.why == "" && s.Score != nil {
			score.value = *s.Score / 100
		}
		c.add(name, "page_time.p50", took)
		c.add(name, "page_score", score)
	}
}

// noProbe says why a phase has no series of delays, and whether such a run could have none: what another program printed does not grow one.
func noProbe(r *report.Result) (why string, never bool) {
	if r.Source != nil {
		return "the source has no delays", true
	}
	return "no probe ran", false
}

// lossUntold is why the source of a series does not tell how many probes were lost, "" where it does.
func lossUntold(l *report.Latency) string {
	if l.Stated != nil {
		return l.Stated.WhyLoss
	}
	return l.NoLoss
}

// plainName is a phase's name as a part of a metric's name: lower case, what is not a letter, a digit or "-" as "_".
func plainName(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, s)
	return cmp.Or(s, "_")
}
