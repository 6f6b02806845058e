package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/load"
)

// WriteSpeedtest prints the result in the form of the speedtest.sh family: a label of nine columns and a colon on each line, and the decimal
// points of all rates and delays below each other. What has no figure is "-" with its reason.
func (r *Result) WriteSpeedtest(w io.Writer) error {
	return r.writeSpeedtest(w, false)
}

// WriteSpeedtestCPU is WriteSpeedtest with the CPU use of each phase, core by core, as speedtest-netperf.sh prints it: the share that was busy, its standard
// deviation, the clock rate where the host tells it, and this program's own share of all CPUs.
func (r *Result) WriteSpeedtestCPU(w io.Writer) error {
	return r.writeSpeedtest(w, true)
}

func (r *Result) writeSpeedtest(w io.Writer, cpus bool) error {
	t := &speedtest{r: r, digits: r.digits()}
	if r.Source != nil {
		t.sourceHeader()
	} else {
		t.header()
	}
	t.blank()
	for i := range r.Phases {
		p := &r.Phases[i]
		switch {
		case p.Kind == Unknown:
			t.line("Line", "load not told")
			t.latency(p)
			t.blank()
		case p.Kind == bufferbloat.Idle && p.Reached:
			if !r.idleOnly() {
				t.line("Idle", "no load")
			}
			t.latency(p)
			if cpus {
				t.cpuBlock(p)
			}
			t.blank()
		case p.Kind == bufferbloat.Load:
			t.load(p)
			if cpus {
				t.cpuBlock(p)
				t.blank()
			}
		}
	}
	t.blank()
	t.induced()
	t.after()
	if !cpus {
		t.cpu()
	}
	t.others()
	for _, f := range r.Findings {
		onTop := f.Code == "stopped" || f.Code == "probe_fallback" && len(r.Series) > 0 && r.Series[0].Reason != ""
		if !onTop {
			fmt.Fprintf(&t.b, "   ! %s\n", findingText(f))
		}
	}
	t.grades()
	t.plain()
	_, err := w.Write(append(bytes.TrimRight(t.b.Bytes(), "\n"), '\n'))
	return err
}

// findingText is a finding on one line, with the phase that it concerns and what it does to the result.
func findingText(f bufferbloat.Finding) string {
	text := f.Text
	if f.Phase != "" && !strings.HasPrefix(text, f.Phase) {
		text = f.Phase + ": " + text
	}
	switch f.Severity {
	case bufferbloat.Voids:
		text = "void: " + text
	case bufferbloat.Note:
		text = "note: " + text
	}
	return printable(text)
}

// speedtest is the text under way.
type speedtest struct {
	r      *Result
	b      bytes.Buffer
	digits int // before the decimal point, in the column of figures
}

// digits returns how many digits the largest figure of the column has, at least 3.
func (r *Result) digits() int {
	n := 3
	see := func(s string) {
		whole, _, _ := strings.Cut(s, ".")
		n = max(n, len(whole))
	}
	for i := range r.Phases {
		p := &r.Phases[i]
		for _, g := range p.Goodput {
			see(mbps(g.Rate))
		}
		if l := p.Primary(); l != nil {
			see(ms(l.Max))
		}
	}
	return n
}

// line prints a label that ends in column 9, also where signs of it are two columns wide or none.
func (t *speedtest) line(label, text string) {
	fmt.Fprintf(&t.b, "%s%s: %s\n", strings.Repeat(" ", max(0, 9-width(label))), label, text)
}

// blank ends a block; blocks are one empty line apart.
func (t *speedtest) blank() {
	if !bytes.HasSuffix(t.b.Bytes(), []byte("\n\n")) {
		t.b.WriteByte('\n')
	}
}

// figure aligns s by its decimal point; without one it ends where two decimals would.
func (t *speedtest) figure(s string, decimals int) string {
	whole, _, ok := strings.Cut(s, ".")
	if !ok {
		return fmt.Sprintf("%*s", t.digits+1+decimals, s)
	}
	return strings.Repeat(" ", max(0, t.digits-len(whole))) + s
}

// idleOnly reports whether no load was planned.
func (r *Result) idleOnly() bool {
	for i := range r.Phases {
		if r.Phases[i].Kind == bufferbloat.Load {
			return false
		}
	}
	return true
}

// sourceHeader says where the result comes from and what that does not tell.
func (t *speedtest) sourceHeader() {
	fmt.Fprintf(&t.b, "%s %s\n", t.r.started(), t.r.intro())
	if untold := t.r.untold(); untold != "" {
		fmt.Fprintf(&t.b, "(%s)\n", untold)
	}
	if why := t.r.stoppedText(); why != "" {
		fmt.Fprintf(&t.b, "Stopped! %s: what follows is what was measured until then\n", printable(why))
	}
}

// started is the wall clock's reading at the start of the run.
func (r *Result) started() string {
	if r.Started.IsZero() {
		return "(no date)"
	}
	return r.Started.Format("2006-01-02 15:04:05")
}

// header says when, against whom, and what was done.
func (t *speedtest) header() {
	r := t.r
	started := r.started()
	probing := "without any probe"
	if s := r.primary(); s != nil {
		verb := "probing"
		if s.Kind == "icmp" {
			verb = "pinging"
		}
		probing = fmt.Sprintf("while %s %s (%s, every %s ms)", verb, printable(s.Target), probeKind(s.Kind), plainMS(s.Interval))
	}
	if r.idleOnly() {
		fmt.Fprintf(&t.b, "%s Testing idle line %s\n", started, probing)
	} else {
		fmt.Fprintf(&t.b, "%s Testing against %s (%s) with %s %s\n", started, printable(r.Path.Host), printable(r.Path.Family), r.streams(), probing)
	}
	fmt.Fprintf(&t.b, "(%s%s)\n", r.program(": "), r.schedule())
	if s := r.primary(); s != nil && s.Reason != "" {
		fmt.Fprintf(&t.b, "(%s in place of ICMP: %s)\n", probeKind(s.Kind), printable(s.Reason))
	}
	if r.Path.Lab != nil {
		fmt.Fprintf(&t.b, "(%s)\n", labText(r.Path.Lab))
	}
	if why := r.stoppedText(); why != "" {
		fmt.Fprintf(&t.b, "Stopped! %s: what follows is what was measured until then\n", printable(why))
	}
}

// program names the program that measured and its version, with after behind it; "" where the recording does not say.
func (r *Result) program(after string) string {
	if r.Version == "" {
		return ""
	}
	return "bloat " + printable(r.Version) + after
}

func labText(l *bufferbloat.LabLink) string {
	return printable(fmt.Sprintf("emulated link, %s: %v down, %v up, %s ms RTT, %s with %d and %d bytes, %d bytes of overhead per packet",
		l.Carrier, l.Down, l.Up, plainMS(l.RTT), l.Queue, l.BufferDown, l.BufferUp, l.Overhead))
}

// streams says how many flows a direction has.
func (r *Result) streams() string {
	var down, up int
	for i := range r.Phases {
		for _, g := range r.Phases[i].Goodput {
			switch g.Direction {
			case load.Download:
				down = max(down, g.Planned)
			case load.Upload:
				up = max(up, g.Planned)
			}
		}
	}
	switch {
	case down == up:
		return simultaneous(down)
	case up == 0:
		return simultaneous(down) + " down"
	case down == 0:
		return simultaneous(up) + " up"
	}
	return fmt.Sprintf("%d down and %d up simultaneous streams", down, up)
}

func simultaneous(n int) string {
	if n == 1 {
		return "1 stream"
	}
	return fmt.Sprintf("%d simultaneous streams", n)
}

// schedule says how long the planned phases are: "5 seconds idle, then 30 seconds in each direction".
func (r *Result) schedule() string {
	type part struct {
		length time.Duration
		what   string
	}
	var parts []part
	for _, p := range r.Plan.Phases {
		switch p.Kind {
		case bufferbloat.Idle:
			parts = append(parts, part{p.Length, "idle"})
		case bufferbloat.After:
			parts = append(parts, part{p.Length, "idle again"})
		case bufferbloat.Load:
			what := p.Name
			if down, up := planned(&r.Plan, p.Name, load.Download, nil), planned(&r.Plan, p.Name, load.Upload, nil); down > 0 && up > 0 {
				what = "in both directions at once"
			}
			n := len(parts)
			if n > 0 && what == "upload" && parts[n-1] == (part{p.Length, "download"}) {
				parts[n-1].what = "in each direction"
				continue
			}
			parts = append(parts, part{p.Length, what})
		}
	}
	if len(parts) == 0 {
		return "no plan"
	}
	var texts []string
	for _, p := range parts {
		unit := " seconds "
		if p.length == time.Second {
			unit = " second "
		}
		texts = append(texts, strings.TrimSuffix(seconds(p.length), " s")+unit+printable(p.what))
	}
	return strings.Join(texts, ", then ")
}

// load prints the rates of a load phase, and the latency under it.
func (t *speedtest) load(p *Phase) {
	for i := range p.Goodput {
		t.goodput(&p.Goodput[i])
	}
	if len(p.Goodput) == 0 {
		t.line("Load", t.figure(none, 2)+" (no streams were planned)")
	}
	if p.UnderLoad {
		t.latency(p)
		return
	}
	why, when := "no load, so no latency under load", "without it"
	if p.flowed() {
		why, when = p.whyNoLoad()+", so no latency under load", "meanwhile"
	}
	if l := p.Primary(); l != nil && l.Has(Median) {
		why += fmt.Sprintf("; %s %s had a median of %s", when, plural(l.N, "ping"), ms(l.Median))
	}
	t.line("Latency", t.figure(none, 2)+" ("+why+")")
}

func (t *speedtest) goodput(g *Goodput) {
	label := "Download"
	if g.Direction == load.Upload {
		label = "Upload"
	}
	if !g.OK {
		t.line(label, t.figure(none, 2)+" (no result: "+printable(g.Why)+")")
		return
	}
	text := t.figure(mbps(g.Rate), 2) + " Mbps"
	if mark := g.mark(); mark != "" {
		text += " (" + mark + ")"
	}
	t.line(label, text)
}

// mark says what keeps a rate from being that of the whole test, "" where nothing does.
func (g *Goodput) mark() string {
	var marks []string
	if g.Flowed < g.Planned {
		marks = append(marks, fmt.Sprintf("%d of %d streams", g.Flowed, g.Planned))
	}
	switch {
	case g.CutShort():
		marks = append(marks, "cut short: no stream ran to its end")
	case g.Whole < g.Flowed:
		marks = append(marks, fmt.Sprintf("%d of them ran to their end", g.Whole))
		if len(marks) == 1 {
			marks[0] = fmt.Sprintf("%d of %d streams ran to their end", g.Whole, g.Planned)
		}
	}
	return strings.Join(marks, ", ")
}

// latency prints the block of the primary series, a line for each further series, and what else became of the probes.
func (t *speedtest) latency(p *Phase) {
	l := p.Primary()
	if l == nil {
		t.line("Latency", t.figure(none, 2)+" (no probe ran)")
		return
	}
	loss := lossPercent(l)
	if loss != none {
		loss += "%"
	}
	t.line("Latency", fmt.Sprintf("(in msec, %s, %s packet loss)", plural(l.N+l.Lost, "ping"), loss))
	for _, row := range []struct {
		label   string
		value   time.Duration
		figure  Figures
		percent bool
	}{{"Min", l.Min, Min, false}, {"10pct", l.P10, P10, true}, {"Median", l.Median, Median, true}, {"Avg", l.Mean, Mean, false},
		{"90pct", l.P90, P90, true}, {"Max", l.Max, Max, false}} {
		text := t.figure(none, 3)
		switch {
		case l.Has(row.figure):
			text = t.figure(ms(row.value), 3)
		case l.OK():
			text += " (" + printable(l.Stated.Why) + ")"
		}
		if row.percent && l.Few() && l.Has(row.figure) {
			text += " (too few pings)"
		}
		t.line(row.label, text)
	}
	t.losses(l)
	for i := range p.Latency[1:] {
		t.second(&p.Latency[1+i])
	}
}

// losses prints what the six rows leave out.
func (t *speedtest) losses(l *Latency) {
	if why := l.whyNoLoss(); why != "" {
		t.line("Loss", t.figure(none, 3)+" ("+printable(why)+")")
	}
	if l.Stated != nil {
		return
	}
	if l.Lost > 0 && l.OK() {
		bound := func(b time.Duration, unbounded bool) string {
			if unbounded {
				return "above " + ms(l.Max)
			}
			return ms(b)
		}
		t.line("As lost", fmt.Sprintf("median %s, 90pct %s (a lost ping counted as endless)",
			bound(l.MedianWithLoss.Value, l.MedianWithLoss.Unbounded), bound(l.P90WithLoss.Value, l.P90WithLoss.Unbounded)))
	}
	var also []string
	see := func(n int, what string) {
		if n > 0 {
			also = append(also, fmt.Sprintf("%d %s", n, what))
		}
	}
	c := l.Count
	see(c.LostUp, "lost on the way up")
	see(c.LostDown, "lost on the way down")
	see(c.Unfinished, "unfinished (no answer yet when listening ended)")
	see(c.Late, "answered after the deadline")
	see(c.Unsent, "not sent")
	see(c.Invalid, "with an impossible time")
	if len(also) > 0 {
		t.line("Also", strings.Join(also, ", "))
	}
}

// second prints a further series on one line.
func (t *speedtest) second(l *Latency) {
	label := printable(l.Series)
	loss := lossPercent(l)
	if loss != none {
		loss += "%"
	}
	count := fmt.Sprintf("(%s, %s lost", plural(l.N+l.Lost, "probe"), loss)
	if l.Kind == "irtt" && l.Stated == nil {
		count += fmt.Sprintf(": %d up, %d down", l.Count.LostUp, l.Count.LostDown)
		if l.Count.Lost > 0 {
			count += fmt.Sprintf(", %d either way", l.Count.Lost)
		}
	}
	median, p90 := none, none
	if l.Has(Median | P90) {
		median, p90 = ms(l.Median), ms(l.P90)
	}
	few := ""
	if l.Few() {
		few = ", too few"
	}
	t.line(label, fmt.Sprintf("median %s, 90pct %s %s%s)", median, p90, count, few))
}

// induced prints what the load added.
func (t *speedtest) induced() {
	if len(t.r.Induced) == 0 {
		return
	}
	text := "(in msec, loaded minus idle, with 95% intervals)"
	if why := t.r.Induced[0].NoInterval; why != "" && !slices.ContainsFunc(t.r.Induced, func(d Induced) bool { return d.OK && d.NoInterval != why }) {
		text = "(in msec, loaded minus idle, without intervals: " + printable(why) + ")"
	}
	t.line("Induced", text)
	for i := range t.r.Induced {
		d := &t.r.Induced[i]
		if !d.OK {
			t.line(printable(d.Phase), fmt.Sprintf("%s (%s)", none, d.Why))
			continue
		}
		mark := ""
		if d.Idle.Few() || d.Loaded.Few() {
			mark = ", too few pings"
		}
		if d.Median.Weak() && d.NoInterval == "" {
			mark += ", interval from few independent pings"
		}
		if d.BaselineMoved {
			mark += ", baseline moved"
		}
		if d.NoInterval != "" {
			if !strings.Contains(text, "without intervals") {
				mark += ", no interval: " + printable(d.NoInterval)
			}
			t.line(printable(d.Phase), fmt.Sprintf("median %s, 90pct %s (median %s idle, %s loaded%s)", signed(d.Median.Value), signed(d.P90.Value),
				briefMS(d.Idle.Median), briefMS(d.Loaded.Median), mark))
			continue
		}
		t.line(printable(d.Phase), fmt.Sprintf("median %s [%s to %s], 90pct %s [%s to %s] (median %s idle, %s loaded%s)",
			signed(d.Median.Value), signed(d.Median.Low), signed(d.Median.High), signed(d.P90.Value), signed(d.P90.Low), signed(d.P90.High),
			briefMS(d.Idle.Median), briefMS(d.Loaded.Median), mark))
	}
}

// after prints the second baseline.
func (t *speedtest) after() {
	for i := range t.r.Phases {
		p := &t.r.Phases[i]
		l := p.Primary()
		if p.Kind != bufferbloat.After || l == nil {
			continue
		}
		loss := lossPercent(l)
		if loss != none {
			loss += "%"
		}
		if !l.Has(Median | P90) {
			t.line("After", fmt.Sprintf("%s (%s without load, %s lost)", none, plural(l.N+l.Lost, "ping"), loss))
			continue
		}
		t.line("After", fmt.Sprintf("median %s, 90pct %s (%s without load, %s lost)", ms(l.Median), ms(l.P90), plural(l.N+l.Lost, "ping"), loss))
	}
}

// cpu prints the CPU use of the phase that took most.
func (t *speedtest) cpu() {
	var busiest *Phase
	for i := range t.r.Phases {
		p := &t.r.Phases[i]
		if p.CPU.OK && (busiest == nil || p.CPU.Busy.Mean > busiest.CPU.Busy.Mean) {
			busiest = p
		}
	}
	if busiest == nil {
		why := t.r.noCPU
		if why == "" && t.r.Source != nil {
			why = "the source does not tell"
		}
		if why == "" {
			why = "no phase was long enough for a sample"
		}
		t.line("CPU", fmt.Sprintf("%s (%s)", none, printable(why)))
		return
	}
	c := busiest.CPU
	core := c.Busiest()
	if c.OnlyCores {
		t.line("CPU", fmt.Sprintf("the busiest of %s at %s +/- %s in %s; netperf took %s", plural(len(c.Cores), "CPU"), percent(core.Mean), percent(core.StdDev),
			printable(busiest.Name), percent(c.Own)))
		return
	}
	t.line("CPU", fmt.Sprintf("%s of %s busy in %s, the busiest at %s +/- %s; this program took %s", percent(c.Busy.Mean), plural(len(c.Cores), "CPU"),
		printable(busiest.Name), percent(core.Mean), percent(core.StdDev), percent(c.Own)))
}
