package foreign

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report"
	"bufferbloat/report/stat"
)

// The lines of the speedtest.sh family and of our own text.
var (
	stDate    = `(?:(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\(no date\)) )?`
	stAgainst = newPattern(`^` + stDate + `Testing against (\S+)(?: \((\w*)\))?(?: with (\d+) (?:simultaneous )?(?:sessions?|streams?)(?: down| up)?| with [^(]*?)? (?:while (?:pinging|probing) (\S+)|without any probe)(?: \((.*)\))?$`)
	stRunner  = newPattern(`^` + stDate + `Testing (\S+) \((\w+)\) with (\d+) streams down and up while pinging (\S+?)\. Takes about \d+ seconds\.?$`)
	stIdle    = newPattern(`^` + stDate + `Testing idle line (?:while (?:pinging|probing) (\S+)|without any probe)(?: \((.*)\))?$`)
	stBegin   = newPattern(`^` + stDate + `Begin test with .* sessions\.$`)
	stMeasure = newPattern(`^Measure (idle latency by|speed to (\S+) \(\w+\) while) pinging (\S+?)(?: \(\w+\))?\.$`)
	stModes   = newPattern(`^Download and upload sessions are (?:sequential|concurrent), each with (\d+) simultaneous streams\.$`)
	stEvery   = newPattern(`^(ICMP|irtt, UDP|TCP handshakes|.*), every (\d+(?:\.\d+)?) ms$`)
	stDots    = newPattern(`^\.*\s*(Stopped!?)?$`)
	stStopped = newPattern(`^Stopped! (.*)$`)
	stRate    = newPattern(`^(Download|Upload)\s*: *(-|\d+(?:[.,]\d+)?)(?: ?Mbps)?(?: \((.*)\))?$`)
	stLatency = newPattern(`^Latency\s*: *[(\[]in msec, (\d+) pings?, (-|\d+(?:[.,]\d+)?%) packet loss[)\]]$`)
	stNoLoad  = newPattern(`^Latency\s*: *- \((.*)\)$`)
	stRow     = newPattern(`^(Min|10pct|Median|Avg|90pct|Max)\s*: *(-|\d+(?:[.,]\d+)?)(?: \((.*)\))?$`)
	stSecond  = newPattern(`^(\S+): median (-|\d+\.\d+), 90pct (-|\d+\.\d+) \((\d+) (?:probes?|pings? without load), (-|\d+(?:\.\d+)?%) lost(?:: .*)?\)$`)
	stCPU     = newPattern(`^cpu\d+: +(\d+\.\d) \+/- +(\d+\.\d)(?: +@ +\d+ MHz)?$`)
	stNetperf = newPattern(`^(?:netperf|speedtest): +(\d+\.\d)$`)
	stStreams = newPattern(`^(\d+) of (\d+) streams(, cut short: .*| ran to their end)?$`)
	// Lines of ours that are left out, because what they say follows from the others or is computed anew.
	stOurs = newPattern(`^(?:As lost|Also|Induced|CPU): |^[^:]+: median [+-]\d|^[^:]+: - \(.*\)$`)
	stKnow = newPattern(`^(?:CPU Load|Overhead)\s*: `)
)

func isSpeedtest(s string) bool {
	s = strings.TrimSpace(s)
	return stLatency.MatchString(s) || stRate.MatchString(s) || stAgainst.MatchString(s) || stRunner.MatchString(s) || stIdle.MatchString(s) || stBegin.MatchString(s)
}

// The family's members.
const (
	ours   = "bloat speedtest"
	script = "speedtest.sh"
	better = "betterspeedtest.sh"
	runner = "netperfrunner.sh"
	idler  = "betterspeedtest.sh --idle or idlelatency.sh"
	wrt    = "speedtest-netperf.sh"
)

// speedText is a text of the family as far as it was read.
type speedText struct {
	program  string
	host     string
	ping     string
	kind     string
	interval time.Duration
	started  time.Time
	streams  int
	stopped  string
	idle     bool // the next latency block is of an idle line

	phases   []*speedPhase
	block    *speedBlock // rows go here
	rest     bool        // what follows is not of the table: grades, a comparison
	warned   bool        // what follows explains a warning
	findings []bufferbloat.Finding
}

type speedPhase struct {
	report.Phase
	done bool // it has its latency
}

// speedBlock is one block of latency.
type speedBlock struct {
	line
	phase  *speedPhase
	pings  int
	loss   float64 // percent
	noLoss bool    // "-"
	rows   map[string]time.Duration
	step   time.Duration
}

func readSpeedtest(lines []line) (*report.Result, *bufferbloat.Recording, error) {
	t := &speedText{program: script, kind: "icmp"}
	for _, l := range lines {
		if err := t.line(l); err != nil {
			return nil, nil, err
		}
	}
	if err := t.finish(); err != nil {
		return nil, nil, err
	}
	r, err := t.result()
	return r, nil, err
}

// line takes one line.
func (t *speedText) line(l line) error {
	s := strings.TrimSpace(l.text)
	switch {
	case t.rest || s == "":
		return nil
	case stDots.MatchString(s):
		if strings.Contains(s, "Stopped") {
			t.stopped = "stopped by a signal"
		}
		return nil
	case strings.HasPrefix(s, "(") && strings.HasSuffix(s, ")") && !strings.HasPrefix(s, "(no date)"):
		return nil // how long, which link, what was not told
	case stRate.MatchString(s):
		return t.rate(l, s)
	case stRow.MatchString(s):
		return t.row(l, s)
	case stLatency.MatchString(s):
		return t.latency(l, s)
	case stCPU.MatchString(s), stNetperf.MatchString(s), stKnow.MatchString(s):
		return t.cpu(l, s)
	case strings.HasPrefix(s, "WARNING"):
		t.warned = true
		t.findings = append(t.findings, finding("script_warning", bufferbloat.Weakens, "the script warns: %s", clip(s)))
		return nil
	case t.warned && len(l.text)-len(strings.TrimLeft(l.text, " ")) >= 9:
		return nil // the warning's advice
	}
	if known, err := t.header(l, s); known || err != nil {
		return err
	}
	if t.program == ours && t.ourLine(s) {
		return nil
	}
	return l.bad("not a line of a speedtest's result; leave only its own lines in the file")
}

// header takes the lines that say what was done.
func (t *speedText) header(l line, s string) (known bool, err error) {
	begin := func(program, date, host, ping string) error {
		if t.host != "" || t.ping != "" || len(t.phases) > 0 {
			return l.bad("a second result begins here; give each its own file")
		}
		t.program, t.host, t.ping = program, clip(host), clip(ping)
		if at, err := time.Parse("2006-01-02 15:04:05", date); err == nil {
			t.started = at
		}
		return nil
	}
	if m := stAgainst.FindStringSubmatch(s); m != nil {
		program := script
		if strings.HasPrefix(m[3], "ipv") {
			program = better
		}
		t.streams, _ = count(m[4])
		err := begin(program, m[1], m[2], m[5])
		t.probes(m[6])
		return true, err
	}
	if m := stRunner.FindStringSubmatch(s); m != nil {
		t.streams, _ = count(m[4])
		return true, begin(runner, m[1], m[2], m[5])
	}
	if m := stIdle.FindStringSubmatch(s); m != nil {
		t.idle = true
		err := begin(idler, m[1], m[2], m[2])
		t.probes(m[3])
		return true, err
	}
	if m := stBegin.FindStringSubmatch(s); m != nil {
		return true, begin(wrt, m[1], "", "")
	}
	if m := stMeasure.FindStringSubmatch(s); m != nil {
		t.program, t.ping = wrt, clip(m[3])
		if t.idle = m[2] == ""; !t.idle {
			t.host = clip(m[2])
		}
		return true, nil
	}
	if m := stModes.FindStringSubmatch(s); m != nil {
		t.streams, _ = count(m[1])
		return true, nil
	}
	return false, nil
}

// probes takes what our header says of the probes: "ICMP, every 100 ms".
func (t *speedText) probes(s string) {
	m := stEvery.FindStringSubmatch(s)
	if m == nil {
		return
	}
	t.program = ours
	t.interval, _, _ = msec(m[2])
	switch m[1] {
	case "irtt, UDP":
		t.kind = "irtt"
	case "TCP handshakes":
		t.kind = "tcp"
	}
}

// ourLine takes the lines that only our own text has.
func (t *speedText) ourLine(s string) bool {
	if f, ok := strings.CutPrefix(s, "! "); ok {
		severity := bufferbloat.Weakens
		if text, ok := strings.CutPrefix(f, "void: "); ok {
			f, severity = text, bufferbloat.Voids
		} else if text, ok := strings.CutPrefix(f, "note: "); ok {
			f, severity = text, bufferbloat.Note
		}
		t.findings = append(t.findings, finding("stated", severity, "%s", clip(f)))
		return true
	}
	if m := stSecond.FindStringSubmatch(s); m != nil {
		return t.second(m)
	}
	if m := stStopped.FindStringSubmatch(s); m != nil {
		t.stopped = clip(strings.TrimSuffix(m[1], ": what follows is what was measured until then"))
		return true
	}
	switch {
	case s == "Idle: no load":
		t.idle = true
	case s == "Line: load not told":
	case stNoLoad.MatchString(s):
		if n := len(t.phases); n > 0 && t.phases[n-1].Kind == bufferbloat.Load {
			t.phases[n-1].UnderLoad, t.phases[n-1].done = false, true
		}
	case strings.HasPrefix(s, "Grades: "), strings.HasPrefix(s, "Improvement from "), strings.HasPrefix(s, "Under "), strings.HasPrefix(s, "Your delay is "),
		strings.HasPrefix(s, "Even without load "), strings.HasPrefix(s, "Limited by CPU: "):
		t.rest = true
	case !stOurs.MatchString(s) && !strings.HasPrefix(s, "Loss: "):
		return false
	}
	return true
}

// phase returns the phase that a rate or a latency block belongs to, a new one where the last has its latency.
func (t *speedText) phase(kind bufferbloat.PhaseKind) *speedPhase {
	if n := len(t.phases); n > 0 && !t.phases[n-1].done && t.phases[n-1].Kind == kind {
		return t.phases[n-1]
	}
	p := &speedPhase{Phase: report.Phase{Kind: kind, Reached: true, Untimed: true, CPU: report.CPU{Why: "the source does not tell"}}}
	t.phases = append(t.phases, p)
	return p
}

func (t *speedText) rate(l line, s string) error {
	m := stRate.FindStringSubmatch(s)
	if err := t.finish(); err != nil {
		return err
	}
	t.idle, t.warned = false, false
	d := load.Download
	if m[1] == "Upload" {
		d = load.Upload
	}
	p := t.phase(bufferbloat.Load)
	for _, q := range t.phases {
		for _, g := range q.Goodput {
			if g.Direction == d {
				return l.bad("a second rate of the %v; give each result its own file", d)
			}
		}
	}
	g := report.Goodput{Direction: d}
	v, ok := number(m[2])
	switch {
	case m[2] == "-":
		g.Why = "the source has none"
		if m[3] != "" {
			g.Why = clip(strings.TrimPrefix(m[3], "no result: "))
		}
	case !ok || v > 1e9:
		return l.bad("no rate")
	case v == 0 && t.program != ours:
		g.Why = "the script printed 0.00 Mbps, as it does where netperf failed"
	default:
		g.Rate, g.OK = bitrate.Bitrate(math.Round(v*1e6)), true
		p.UnderLoad = true
	}
	if t.program == ours {
		g.Planned, g.Flowed = t.streams, t.streams
		if n := stStreams.FindStringSubmatch(m[3]); n != nil {
			g.Flowed, _ = count(n[1])
			g.Planned, _ = count(n[2])
		}
		if g.Whole = g.Flowed; strings.Contains(m[3], "cut short") {
			g.Whole = 0
		} else if strings.Contains(m[3], "ran to their end") {
			g.Flowed = g.Planned
		}
		if !g.OK {
			g.Flowed, g.Whole = 0, 0
		}
	}
	p.Goodput = append(p.Goodput, g)
	p.Name = d.String()
	if len(p.Goodput) > 1 {
		p.Name = "both"
	}
	return nil
}

func (t *speedText) latency(l line, s string) error {
	m := stLatency.FindStringSubmatch(s)
	if err := t.finish(); err != nil {
		return err
	}
	kind, name := report.Unknown, phaseName
	switch n := len(t.phases); {
	case t.idle:
		kind, name = bufferbloat.Idle, "idle"
	case n > 0 && t.phases[n-1].Kind == bufferbloat.Load && !t.phases[n-1].done:
		kind, name = bufferbloat.Load, ""
	}
	p := t.phase(kind)
	if name != "" {
		p.Name = name
	}
	for _, q := range t.phases {
		if q != p && q.Name == p.Name {
			return l.bad("a second block of the same kind; give each result its own file")
		}
	}
	p.done = true
	b := &speedBlock{line: l, phase: p, rows: map[string]time.Duration{}}
	var ok bool
	if b.pings, ok = count(m[1]); !ok {
		return l.bad("no number of pings")
	}
	b.noLoss = m[2] == "-"
	if b.loss, ok = number(strings.TrimSuffix(m[2], "%")); !ok && !b.noLoss || b.loss > 100 {
		return l.bad("no loss")
	}
	t.block = b
	return nil
}

func (t *speedText) row(l line, s string) error {
	m := stRow.FindStringSubmatch(s)
	b := t.block
	if b == nil {
		return l.bad("no latency block has begun")
	}
	if _, again := b.rows[m[1]]; again {
		return l.bad("%s comes twice", m[1])
	}
	if m[2] == "-" {
		b.rows[m[1]] = -1
		return nil
	}
	d, step, ok := msec(m[2])
	if !ok {
		return l.bad("no time")
	}
	b.rows[m[1]], b.step = d, max(b.step, step)
	return nil
}

// finish turns the block under way into figures.
func (t *speedText) finish() error {
	b := t.block
	if t.block = nil; b == nil {
		return nil
	}
	l := report.Latency{Series: "ping", Kind: t.kind, Primary: true, Stated: &report.Stated{}}
	t.counts(b, &l)
	figures := []struct {
		name string
		f    report.Figures
		to   *time.Duration
	}{{"Min", report.Min, &l.Min}, {"10pct", report.P10, &l.P10}, {"Median", report.Median, &l.Median}, {"90pct", report.P90, &l.P90},
		{"Max", report.Max, &l.Max}, {"Avg", report.Mean, &l.Mean}}
	highest := time.Duration(0)
	for _, f := range figures {
		highest = max(highest, b.rows[f.name])
	}
	if highest == 0 && t.program != ours { // all zero, all "-", or no rows
		l.Summary = stat.Summary{}
		l.Stated = &report.Stated{Why: "no ping was answered", WhyLoss: "no ping was answered, and the script counts none of them as lost"}
		b.phase.Latency = append(b.phase.Latency, l)
		return nil
	}
	for _, f := range figures {
		d, ok := b.rows[f.name]
		switch {
		case !ok || d < 0:
			l.Stated.Why = "not in the text"
		case d == 0 && b.rows["Min"] > 0:
			l.Stated.Why = "the script prints 0.000 where it has fewer than 10 pings"
		default:
			*f.to = d
			l.Stated.Has |= f.f
		}
	}
	var last time.Duration
	for _, f := range figures[:5] {
		if l.Stated.Has&f.f == 0 {
			continue
		}
		if *f.to < last {
			return b.bad("the rows of this block contradict each other: %s is below the row before it", f.name)
		}
		last = *f.to
	}
	if l.Stated.Has&(report.Min|report.Mean) == report.Min|report.Mean && l.Mean < l.Min || l.Stated.Has&(report.Max|report.Mean) == report.Max|report.Mean && l.Mean > l.Max {
		return b.bad("the rows of this block contradict each other: Avg is not between Min and Max")
	}
	if l.Stated.Has == 0 {
		l.N = 0
	} else if l.N == 0 {
		return b.bad("no ping was answered, and there are times")
	}
	b.phase.Latency = append(b.phase.Latency, l)
	return nil
}

// counts says how many pings were answered and lost, as far as the program tells the truth of it.
func (t *speedText) counts(b *speedBlock, l *report.Latency) {
	lostOf := func(all int) int { return int(math.Round(float64(all) * b.loss / 100)) }
	switch {
	case t.program == ours:
		l.Lost = lostOf(b.pings)
		l.N = b.pings - l.Lost
		if b.noLoss {
			l.N, l.Lost, l.Stated.WhyLoss = b.pings, 0, "the source does not tell"
		}
	case t.program == wrt:
		// Its pings are lines: those that are no reply count as lost, and on Linux no line stands for a lost ping.
		l.N = b.pings - lostOf(b.pings)
		l.Stated.WhyLoss = "the script counts odd lines of ping's output as lost, and ping on Linux has no line for a lost reply"
	case b.loss > 0 && b.loss < 100:
		l.N = b.pings
		l.Lost = int(math.Round(float64(b.pings) * b.loss / (100 - b.loss)))
	default:
		l.N = b.pings
		l.Stated.WhyLoss = fmt.Sprintf("the script says %s%%, and ping on Linux has no line for a lost reply that it could count", strconv.FormatFloat(b.loss, 'f', 2, 64))
	}
}

// second takes a line of a further series, or of the idle line after the load.
func (t *speedText) second(m []string) bool {
	if err := t.finish(); err != nil || len(t.phases) == 0 {
		return false
	}
	all, _ := count(m[4])
	loss, known := number(strings.TrimSuffix(m[5], "%"))
	if loss > 100 {
		return false
	}
	l := report.Latency{Series: clip(m[1]), Kind: clip(m[1]), Stated: &report.Stated{Has: report.Median | report.P90, Why: "not in the text"}}
	l.Lost = int(math.Round(float64(all) * loss / 100))
	l.N = all - l.Lost
	if !known {
		l.Stated.WhyLoss = "the source does not tell"
	}
	var ok, ok2 bool
	l.Median, _, ok = msec(m[2])
	l.P90, _, ok2 = msec(m[3])
	if l.Median > l.P90 {
		return false
	}
	if !ok || !ok2 || l.N == 0 {
		l.N, l.Stated.Has = 0, 0
	}
	if m[1] != "After" {
		p := t.phases[len(t.phases)-1]
		for _, other := range p.Latency {
			if other.Series == l.Series {
				return false
			}
		}
		p.Latency = append(p.Latency, l)
		return true
	}
	l.Series, l.Kind, l.Primary = "ping", t.kind, true
	p := t.phase(bufferbloat.After)
	if p.done {
		return false
	}
	p.Name, p.done, p.Latency = "after", true, []report.Latency{l}
	return true
}

// cpu takes the block of CPU use.
func (t *speedText) cpu(l line, s string) error {
	if err := t.finish(); err != nil {
		return err
	}
	if len(t.phases) == 0 {
		return l.bad("CPU use of nothing")
	}
	c := &t.phases[len(t.phases)-1].CPU
	share := func(s string) float64 {
		v, _ := number(s)
		return v / 100
	}
	if m := stCPU.FindStringSubmatch(s); m != nil && len(c.Cores) < maxHosts {
		c.OK, c.OnlyCores, c.Why = true, true, ""
		c.Cores = append(c.Cores, report.Share{Mean: share(m[1]), StdDev: share(m[2])})
		var sum float64
		for _, core := range c.Cores {
			sum += core.Mean
		}
		c.Busy.Mean = sum / float64(len(c.Cores))
	}
	if m := stNetperf.FindStringSubmatch(s); m != nil {
		c.Own = share(m[1])
	}
	return nil
}

// untold is what the family does not tell.
func (t *speedText) untold() []string {
	var out []string
	if !t.started.IsZero() {
		out = append(out, "the time zone of its date")
	}
	if t.program == ours {
		return append(out, "single samples")
	}
	out = append(out, "single samples", "pings that were lost or still under way at the end")
	for _, p := range t.phases {
		if p.Kind == bufferbloat.Load {
			return append(out, "how many of its streams ran", "when the load stood: its pings begin before and end after it")
		}
	}
	return out
}

// rules of the quantiles.
const (
	betterRule = "floor rank; 10pct is the second smallest of ten or more, the median of an even number the lower middle (betterspeedtest.sh)"
	floorRule  = "floor rank; the median of an even number is the lower middle (speedtest-netperf.sh)"
	oldRule    = "as its script has it"
)

func (t *speedText) result() (*report.Result, error) {
	if len(t.phases) == 0 {
		return nil, fmt.Errorf("there is no rate and no latency in this speedtest result: %w", ErrUnknown)
	}
	r := &report.Result{Started: t.started, Stopped: t.stopped, Source: &report.Source{Program: t.program, Host: t.host, Untold: t.untold()}}
	switch t.program {
	case better, runner:
		r.Source.Rule = betterRule
	case wrt:
		r.Source.Rule = floorRule
	case script, idler:
		r.Source.Rule = oldRule
	}
	var names []string
	for _, p := range t.phases {
		if p.Kind == bufferbloat.Load && len(p.Latency) == 0 && p.UnderLoad && t.program != ours {
			t.findings = append(t.findings, bufferbloat.Finding{Code: "no_latency", Severity: bufferbloat.Weakens, Phase: p.Name, Text: "the text has no latency for this load"})
		}
		for _, l := range p.Latency {
			if !slices.Contains(names, l.Series) {
				names = append(names, l.Series)
				r.Series = append(r.Series, report.Series{Name: l.Series, Kind: l.Kind, Primary: l.Primary, Uncounted: true, Target: t.target(l.Primary),
					Interval: t.every(l.Primary)})
			}
		}
		r.Phases = append(r.Phases, p.Phase)
	}
	slices.SortStableFunc(r.Series, func(a, b report.Series) int {
		if a.Primary == b.Primary {
			return 0
		}
		if a.Primary {
			return -1
		}
		return 1
	})
	r.Findings = t.findings
	r.Complete()
	if t.program == ours { // its own findings are in the text
		r.Findings = slices.DeleteFunc(r.Findings, func(f bufferbloat.Finding) bool { return f.Code != "stated" && f.Code != "stopped" })
	}
	return r, nil
}

func (t *speedText) target(primary bool) string {
	if !primary {
		return ""
	}
	return t.ping
}

// every is the interval between probes: the scripts leave ping at its 1 s.
func (t *speedText) every(primary bool) time.Duration {
	if !primary {
		return 0
	}
	return t.interval
}
