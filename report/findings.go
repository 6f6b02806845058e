package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/report/stat"
)

// busyCore is the share from which a CPU counts as the limit: 5% are left for what sampling smooths over.
const busyCore = 0.95

// derive adds the findings that the figures call for. One that the recording has already, by code and phase, is not repeated. rec is
// nil where the figures are not of a recording.
func (r *Result) derive(rec *bufferbloat.Recording) {
	recorded := slices.Clone(r.Findings)
	add := func(code string, severity bufferbloat.Severity, phase, format string, args ...any) {
		if slices.ContainsFunc(recorded, func(f bufferbloat.Finding) bool { return f.Code == code && f.Phase == phase }) {
			return
		}
		r.Findings = append(r.Findings, bufferbloat.Finding{Code: code, Severity: severity, Phase: phase, Text: fmt.Sprintf(format, args...)})
	}
	if why := r.stoppedText(); why != "" {
		add("stopped", bufferbloat.Weakens, "", "%s; the figures are those of the part that was measured", why)
	}
	r.deriveSeries(add)
	r.deriveBaseline(add)
	r.deriveFew(add)
	r.deriveSilent(add)
	r.deriveCourse(rec, add)
	for i := range r.Phases {
		p := &r.Phases[i]
		if !p.Reached {
			continue
		}
		p.deriveLoad(add)
		r.deriveCPU(rec, p, add)
		for j := range p.Latency {
			r.deriveLatency(p, &p.Latency[j], j == 0, add)
		}
	}
}

// adder adds one finding.
type adder func(code string, severity bufferbloat.Severity, phase, format string, args ...any)

func (r *Result) deriveSeries(add adder) {
	r.deriveClocks(add)
	if len(r.Series) == 0 && r.Source == nil && len(r.Plan.Probes) > 0 {
		add("no_probes", bufferbloat.Voids, "", "no probe ran, so there is no latency")
	}
	for i := range r.Series {
		s := &r.Series[i]
		if s.Void {
			severity := bufferbloat.Weakens
			if i == 0 {
				severity = bufferbloat.Voids
			}
			if own := s.Tally.SenderLate; own > 0 {
				add("probes_late", severity, "", "%d %s probes were due more than the interval of %s ms before this program came to send them, and were not sent: "+
					"this host was too busy, and the series does not stand", own, s.Name, plainMS(s.Interval))
			} else {
				add("probes_late", severity, "", "%s probes left up to %s ms late (1%% of them more than %s ms, with one due each %s ms): "+
					"this host was too busy, and the series does not stand", s.Name, ms(s.LatenessMax), ms(s.LatenessP99), plainMS(s.Interval))
			}
		}
		if s.Error != "" {
			add("probe_ended", bufferbloat.Weakens, "", "%s probes: %s", s.Name, s.Error)
		}
		if s.Reason != "" {
			add("probe_fallback", bufferbloat.Note, "", "%s probes: used because %s", s.Name, s.Reason)
		}
		if s.Tally.Duplicates > 0 {
			add("probe_duplicates", bufferbloat.Note, "", "%s probes: %d further replies to probes that had one; they are not counted", s.Name, s.Tally.Duplicates)
		}
	}
}

func (r *Result) deriveBaseline(add adder) {
	before, after := r.baseline(bufferbloat.Idle), r.baseline(bufferbloat.After)
	if before == nil {
		return
	}
	if m := before.Primary().Median; r.nearResolution(m) {
		add("near_resolution", bufferbloat.Note, before.Name, "the idle median, %s ms, is near what these time stamps tell apart (%s ms): "+
			"ratios to it are rough", ms(m), ms(r.primary().Resolution))
	}
	if r.baselineMoved() {
		add("baseline_moved", bufferbloat.Weakens, "", "the idle median was %s ms before the load and %s ms after it: what the load added is uncertain by that",
			ms(before.Primary().Median), ms(after.Primary().Median))
	}
	for _, d := range r.Induced {
		if d.OK && d.Median.High < 0 {
			add("induced_negative", bufferbloat.Weakens, d.Phase, "the median under load, %s ms, is below the idle one, %s ms: the baseline does not hold",
				ms(d.Loaded.Median), ms(d.Idle.Median))
		}
	}
}

func (p *Phase) deriveLoad(add adder) {
	failed := 0
	for i := range p.Goodput {
		g := &p.Goodput[i]
		switch {
		case !g.OK:
			failed++
			add("load_failed", bufferbloat.Voids, p.Name, "%v: %s", g.Direction, g.Why)
		case g.Flowed < g.Planned:
			text := fmt.Sprintf("%v: only %d of %d streams carried data", g.Direction, g.Flowed, g.Planned)
			if errs := flowErrors(g.Flows); errs != "" {
				text += ": " + errs
			}
			add("streams_missing", bufferbloat.Weakens, p.Name, "%s", text)
		case g.Bytes > 0 && g.Last-g.First < shortTransfer:
			add("short_transfer", bufferbloat.Weakens, p.Name, "%v: data flowed for %s only", g.Direction, seconds(g.Last-g.First))
		}
		g.deriveSlew(p, add)
		g.deriveWaited(p, add)
		for _, f := range g.Flows {
			if f.HasServerCPU && f.ServerCPU >= busyCore {
				add("cpu_server", bufferbloat.Weakens, p.Name, "%v: the server's CPUs were %s busy: the server may be the limit, not the link",
					g.Direction, percent(f.ServerCPU))
				break
			}
		}
	}
	if p.Kind == bufferbloat.Load && !p.UnderLoad && failed < max(1, len(p.Goodput)) {
		add("load_absent", bufferbloat.Voids, p.Name, "%s, so there is no latency under load", p.whyNoLoad())
	}
}

// lateStart is the slew from which a stream has lost its first packets, or they queued for as long: TCP sends the first of all again after a second.
const lateStart = time.Second

// deriveSlew names the streams whose first data came long after they were to begin.
func (g *Goodput) deriveSlew(p *Phase, add adder) {
	if g.Detail == nil {
		return
	}
	n, worst := 0, (*Flow)(nil)
	for i := range g.Flows {
		if f := &g.Flows[i]; f.Detail.Slew != nil && *f.Detail.Slew >= lateStart {
			if n++; worst == nil || *f.Detail.Slew > *worst.Detail.Slew {
				worst = f
			}
		}
	}
	if n > 0 {
		add("streams_late", bufferbloat.Note, p.Name, "%v: the first data of %d of %d streams came %s or more after they were to begin, the last of %s after %s: "+
			"their first packets were lost, or stood in a queue", g.Direction, n, len(g.Flows), seconds(lateStart), worst.Name, seconds(*worst.Detail.Slew))
	}
}

// deriveWaited says that streams waited until late for what the others carried, and what the rate is of then.
func (g *Goodput) deriveWaited(p *Phase, add adder) {
	w := &g.waited
	if w.flows == 0 || !g.OK {
		return
	}
	severity, of := bufferbloat.Note, "the time since all ran"
	if g.skipped == 0 {
		severity, of = bufferbloat.Weakens, "all the time, and may be too low: give the number of streams, or run longer"
	}
	add("streams_held", severity, p.Name, "%v: %d of %d streams began late, the last %s after the load, since the others carried less than %s Mbit/s together until "+
		"then: losses, slow start or a failure held these back, and not a full line; the rate is that of %s",
		g.Direction, w.flows, len(g.Flows), seconds(w.until), mbps(w.above), of)
}

// deriveCPU says where the CPUs of the host, or its quota of their time, may have been the limit. The RRUL specification wants such a run to count for
// nothing.
func (r *Result) deriveCPU(rec *bufferbloat.Recording, p *Phase, add adder) {
	if p.Kind != bufferbloat.Load {
		return
	}
	severity := bufferbloat.Weakens
	if strings.HasPrefix(r.Plan.Workload, "rrul") {
		severity = bufferbloat.Voids
	}
	if limit, share := quotaUse(rec, p.From, p.To); share >= stoppedShare {
		add("cpu_client", severity, p.Name, "a quota of %s CPUs stopped this program in %s of its periods: the quota may be the limit, not the link; "+
			"raise it, or measure from elsewhere", strconv.FormatFloat(limit, 'g', 3, 64), percent(share))
		return
	}
	if p.CPU.OK && p.CPU.Busiest().Mean >= busyCore {
		host, who := "this host", "this program"
		if p.CPU.OnlyCores {
			host, who = "the measuring host", "netperf"
		}
		add("cpu_client", severity, p.Name, "a CPU of %s was %s busy (%s took %s of all)%s: the host may be the limit, not the link",
			host, percent(p.CPU.Busiest().Mean), who, percent(p.CPU.Own), busyWith(rec, p.From, p.To))
	}
}

// deriveLatency says what the counts of a series in a phase mean for its figures. What concerns a second series voids nothing, and is not said where
// its own line shows it.
func (r *Result) deriveLatency(p *Phase, l *Latency, primary bool, add adder) {
	if p.Kind == bufferbloat.Load && !p.UnderLoad {
		return // there is no latency under load to be judged
	}
	if l.Stated != nil {
		if primary && l.N == 0 {
			add("no_replies", bufferbloat.Voids, p.Name, "no %s probe was answered: there is no latency to show", l.Series)
		}
		return // the source does not say more
	}
	if !primary {
		if l.Count.Invalid > 0 {
			add("probes_invalid_"+l.Series, bufferbloat.Weakens, p.Name, "%d %s probes came back with a time that cannot be true; they are left out", l.Count.Invalid, l.Series)
		}
		return
	}
	c := l.Count
	switch {
	case c.Due == 0 && !r.sendsIn(p, l):
		return // as planned
	case c.Due == 0:
		severity := bufferbloat.Voids
		if p.Kind == bufferbloat.After {
			severity = bufferbloat.Weakens
		}
		add("no_samples", severity, p.Name, "no %s probe was due while it lasted", l.Series)
		return
	case c.Sent > 0 && l.N == 0:
		sent := ""
		if c.Unsent > 0 {
			sent = " that were sent"
		}
		add("no_replies", bufferbloat.Voids, p.Name, "none of %d %s probes%s was answered: there is no latency to show", c.Sent, l.Series, sent)
	}
	if c.Unsent > 0 {
		r.deriveUnsent(p, l, add)
	}
	if c.Invalid > 0 {
		add("probes_invalid", bufferbloat.Weakens, p.Name, "%d %s probes came back with a time that cannot be true; they are left out", c.Invalid, l.Series)
	}
}

// manyUnsent is the share of a phase's probes from which those that were not sent leave too much of its time unseen. One or two are no more than
// that, unless they are half of all.
const (
	manyUnsent = 0.1
	fewUnsent  = 3
)

// deriveUnsent says how many probes of the primary series were not sent, and why.
func (r *Result) deriveUnsent(p *Phase, l *Latency, add adder) {
	c := l.Count
	share := float64(c.Unsent) / float64(c.Due)
	many := share >= 0.5 || share >= manyUnsent && c.Unsent >= fewUnsent
	severity, means := bufferbloat.Weakens, "they count neither as sent nor as lost"
	switch {
	case c.Sent == 0:
		means = "there is no latency to show"
	case many:
		means += ", and the latency is that of a part of the time"
	}
	if p.Kind != bufferbloat.After && many {
		severity = bufferbloat.Voids
	}
	add("probes_unsent", severity, p.Name, "%d of %d %s probes were not sent (%s); %s", c.Unsent, c.Due, l.Series, r.whyUnsent(l.Series), means)
}

// whyUnsent says why probes of a series were not sent: this program came too late, or the system refused them.
func (r *Result) whyUnsent(series string) string {
	s := r.series(series)
	if s == nil {
		return "why is not known"
	}
	const late = "this program woke more than an interval after they were due"
	why := "the system refused them: " + s.Tally.FirstError
	switch s.Tally.FirstError {
	case "":
		why = "the system gave no reason"
	case s.Tally.FirstRefusal:
		why = "the system refused them, and its reason was not kept"
	}
	switch own := s.Tally.SenderLate; {
	case own == 0:
		return why
	case own >= uint64(max(s.Count.Unsent, 0)):
		return late
	default:
		return fmt.Sprintf("of %d in the whole run, %d because %s; the others: %s", s.Count.Unsent, own, late, why)
	}
}

// deriveFew says in one line for which phases the primary series has too few answers for percentiles, or else for bounds of its 90pct. What comes
// after the load is left out: it only confirms the baseline, and does so or not.
func (r *Result) deriveFew(add adder) {
	var tooFew, unbounded fewPhases
	for i := range r.Phases {
		p := &r.Phases[i]
		l := p.Primary()
		if l == nil || !l.Has(Median) || p.Kind == bufferbloat.After || p.Kind == bufferbloat.Load && !p.UnderLoad {
			continue
		}
		switch {
		case l.Few():
			tooFew.see(p.Name, l)
		case l.N < stat.MinSamples(0.9) && l.Stated == nil:
			unbounded.see(p.Name, l)
		}
	}
	switch {
	case len(tooFew.names) > 0:
		add("few_samples", bufferbloat.Weakens, tooFew.phase(), "%s: too few for percentiles, and no ratio is built on them", tooFew)
	case len(unbounded.names) > 0:
		add("few_samples", bufferbloat.Note, unbounded.phase(), "%s: too few to bound the 90pct, which takes %d", unbounded, stat.MinSamples(0.9))
	}
}

// fewPhases are phases with few samples of one series.
type fewPhases struct {
	names, counts []string
	series        string
}

func (f *fewPhases) see(phase string, l *Latency) {
	f.names, f.counts, f.series = append(f.names, phase), append(f.counts, strconv.Itoa(l.N)), l.Series
}

// phase is the only one, "" where there are several.
func (f fewPhases) phase() string {
	if len(f.names) == 1 {
		return f.names[0]
	}
	return ""
}

// String is "8 answered icmp probes in idle, 7 in upload".
func (f fewPhases) String() string {
	var out []string
	for i, name := range f.names {
		n := f.counts[i]
		if i == 0 {
			n += " answered " + f.series + " probes"
			if f.counts[i] == "1" {
				n = strings.TrimSuffix(n, "s")
			}
		}
		if len(f.names) > 1 {
			n += " in " + name
		}
		out = append(out, n)
	}
	return strings.Join(out, ", ")
}

// deriveSilent says, in one line, where a second series got no reply at all.
func (r *Result) deriveSilent(add adder) {
	for i := 1; i < len(r.Series); i++ {
		s := &r.Series[i]
		var phases []string
		for j := range r.Phases {
			for _, l := range r.Phases[j].Latency {
				if l.Series == s.Name && l.Count.Due > 0 && l.N == 0 {
					phases = append(phases, r.Phases[j].Name)
				}
			}
		}
		if len(phases) > 0 {
			add("no_replies_"+s.Name, bufferbloat.Weakens, "", "no %s probe was answered in %s", s.Name, strings.Join(phases, ", "))
		}
	}
}

// Status is the exit status that the result calls for: 0 measured, 1 could not measure, 4 measured but void or partial; 128 plus Signal where
// that ended the program.
func (r *Result) Status() int {
	if r.Signal != 0 {
		return 128 + r.Signal
	}
	if r.read != nil {
		return r.read.status
	}
	return r.verdict()
}

// partialCodes are the findings that make a result partial, although they void nothing of it.
var partialCodes = []string{"server_unreachable", "server_slow", "probe_left_out"}

func (r *Result) verdict() int {
	var asked, got, latencies int
	partial := r.Stopped != "" || r.Truncated
	for i := range r.Phases {
		p := &r.Phases[i]
		for _, g := range p.Goodput {
			asked++
			if g.OK {
				got++
			}
			partial = partial || !g.OK || g.Whole < g.Planned
		}
		if p.Kind == bufferbloat.Drain || p.Kind == bufferbloat.After {
			continue
		}
		switch l := p.Primary(); {
		case l != nil && l.OK():
			latencies++
		case l == nil && r.Source != nil && got > 0: // its program measures no latency
		case l == nil && r.Source == nil && len(r.Plan.Probes) == 0: // its plan does not
		case l != nil && l.Count.Due == 0 && !r.sendsIn(p, l):
		default:
			partial = true
		}
	}
	for _, f := range r.Findings {
		partial = partial || f.Severity == bufferbloat.Voids || f.Severity == bufferbloat.Weakens && slices.Contains(partialCodes, f.Code)
	}
	stopped := r.Stopped != "" || r.Truncated
	switch {
	case got == 0 && latencies == 0, asked > 0 && got == 0 && !stopped:
		return 1
	case partial:
		return 4
	}
	return 0
}

// Cause says why nothing was measured, and is "" where something was.
func (r *Result) Cause() string {
	if r.read != nil {
		return r.read.cause
	}
	if r.verdict() != 1 {
		return ""
	}
	for i := range r.Phases {
		for _, g := range r.Phases[i].Goodput {
			if !g.OK {
				return fmt.Sprintf("%v: %s", g.Direction, g.Why)
			}
		}
	}
	for _, f := range r.Findings {
		if f.Severity == bufferbloat.Voids {
			return f.Text
		}
	}
	return "nothing was measured"
}

// sendsIn reports whether a series was to send probes while a phase lasted, as far as the plan tells.
func (r *Result) sendsIn(p *Phase, l *Latency) bool {
	i := slices.IndexFunc(r.Plan.Probes, func(pr bufferbloat.ProbePlan) bool { return pr.Name == l.Series })
	if i < 0 { // a series that is the only one of its kind goes by that
		i = slices.IndexFunc(r.Plan.Probes, func(pr bufferbloat.ProbePlan) bool { return string(pr.Kind) == l.Kind })
	}
	if i < 0 {
		return true
	}
	pr := &r.Plan.Probes[i]
	var begin time.Duration
	for _, ph := range r.Plan.Phases {
		if ph.Name == p.Name {
			return pr.Start < begin+ph.Length && (pr.Length == 0 || pr.Start+pr.Length > begin)
		}
		begin += ph.Length
	}
	return true
}
