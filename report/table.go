package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report/stat"
)

// columns are the heads of the table; from the third on they are numbers.
func columns() []string {
	return []string{"Phase", "Probe", "Down Mbps", "Up Mbps", "Streams", "N", "Loss %", "Min", "10pct", "Median", "Avg", "90pct", "99pct", "Max", "Induced"}
}

// rows returns a row for each series of each phase, with the rates of the phase in its first; delays in ms.
func (r *Result) rows() [][]string {
	var out [][]string
	for i := range r.Phases {
		p := &r.Phases[i]
		if p.Kind == bufferbloat.Drain {
			continue
		}
		name := printable(p.Name)
		if p.Kind == bufferbloat.Load && !p.UnderLoad {
			if name += " (no load)"; p.flowed() {
				name = printable(p.Name) + " (load never stood)"
				if p.whyNoLoad() != streamsApart {
					name = printable(p.Name) + " (load stalled)"
				}
			}
		}
		row := []string{name, none, p.rate(load.Download), p.rate(load.Upload), p.streams()}
		if len(p.Latency) == 0 {
			out = append(out, append(row, slices.Repeat([]string{none}, len(columns())-len(row))...))
			continue
		}
		for j := range p.Latency {
			l := &p.Latency[j]
			if j > 0 {
				row = []string{name, "", none, none, none}
			}
			row[1] = printable(l.Series)
			induced := r.inducedMedian(p.Name, l.Series)
			if induced == none {
				induced = r.added(p, l)
			}
			out = append(out, append(slices.Clone(row), l.cells(induced)...))
		}
	}
	return out
}

// rate is the goodput in one direction, "-" where there is none.
func (p *Phase) rate(d load.Direction) string {
	for i := range p.Goodput {
		if g := &p.Goodput[i]; g.Direction == d && g.OK {
			if g.CutShort() {
				return mbps(g.Rate) + " (cut short)"
			}
			return mbps(g.Rate)
		}
	}
	return none
}

// streams is "5", or "2 of 5" where some are missing; with both directions, both.
func (p *Phase) streams() string {
	var out []string
	for _, g := range p.Goodput {
		if g.Planned == 0 {
			continue
		}
		if g.Flowed == g.Planned {
			out = append(out, strconv.Itoa(g.Planned))
		} else {
			out = append(out, fmt.Sprintf("%d of %d", g.Flowed, g.Planned))
		}
	}
	if len(out) == 0 {
		return none
	}
	return strings.Join(out, " + ")
}

func (r *Result) inducedMedian(phase, series string) string {
	for i := range r.Induced {
		if d := &r.Induced[i]; d.OK && d.Phase == phase && d.Series == series {
			return signed(d.Median.Value)
		}
	}
	return none
}

// cells are the columns from N on.
func (l *Latency) cells(induced string) []string {
	out := []string{strconv.Itoa(l.N), lossPercent(l)}
	for _, f := range l.figures() {
		if f.ok {
			out = append(out, ms(f.value))
		} else {
			out = append(out, none)
		}
	}
	return append(out, induced)
}

// figure is one of the columns from Min to Max.
type figure struct {
	value time.Duration
	ok    bool
}

// figures are the columns from Min to Max, the 99th percentile among them.
func (l *Latency) figures() []figure {
	return []figure{{l.Min, l.Has(Min)}, {l.P10, l.Has(P10)}, {l.Median, l.Has(Median)}, {l.Mean, l.Has(Mean)}, {l.P90, l.Has(P90)},
		{l.P99, l.HasP99}, {l.Max, l.Has(Max)}}
}

// summaryLine says in one line what the table is of.
func (r *Result) summaryLine() string {
	if r.Source != nil {
		return r.started() + " " + r.intro() + "; delays in ms, quantiles " + r.rule()
	}
	line := r.started() + " " + printable(r.Plan.Name) + " against " + printable(r.Path.Host)
	if s := r.primary(); s != nil {
		line += fmt.Sprintf(", probing %s (%s, every %s ms)", printable(s.Target), probeKind(s.Kind), plainMS(s.Interval))
	}
	line += "; delays in ms, quantiles " + stat.Rule
	if by := r.program(""); by != "" {
		line += "; " + by
	}
	return line
}

// WriteTable prints the result as one table, a row for each series of each phase, with the findings below. Its lines are of ASCII signs, whose
// width is the same in every locale.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintln(&b, r.summaryLine())
	r.writeTop(&b, "")
	grid(&b, columns(), r.rows())
	table, line := func(head []string, rows [][]string) { grid(&b, head, rows) }, func(s string) { fmt.Fprintln(&b, s) }
	r.writeStreams(table, line)
	r.writeApps(table, line)
	if len(r.shownOthers()) > 0 {
		grid(&b, otherColumns(), r.otherRows())
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "! %s\n", findingText(f))
	}
	for i := range r.Grades {
		fmt.Fprintf(&b, "%s\n", r.Grades[i].text())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeTop prints what a reader must know before the table.
func (r *Result) writeTop(b *strings.Builder, end string) {
	if r.Source != nil {
		if untold := r.untold(); untold != "" {
			fmt.Fprintf(b, "%s%s\n", untold, end)
		}
		r.writeReasons(b, end)
	}
	if why := r.stoppedText(); why != "" {
		fmt.Fprintf(b, "Stopped! %s: the table has what was measured until then%s\n", printable(why), end)
	}
	if r.Path.Lab != nil {
		fmt.Fprintf(b, "%s%s\n", labText(r.Path.Lab), end)
		for _, line := range labCounted(r.Path.Lab.Counted) {
			fmt.Fprintf(b, "%s%s\n", printable(line), end)
		}
	}
	for i := range r.Paths {
		fmt.Fprintf(b, "%s%s\n", printable(r.Paths[i].Text()), end)
	}
	for i := range r.Phases {
		for _, g := range r.Phases[i].Goodput {
			if g.OK {
				continue
			}
			what := g.Direction.String()
			if what != r.Phases[i].Name {
				what = printable(r.Phases[i].Name) + ", " + what
			}
			fmt.Fprintf(b, "No result for %s: %s%s\n", what, printable(g.Why), end)
		}
	}
}

// writeReasons says why cells of the table are dashes that another program's figures would fill.
func (r *Result) writeReasons(b *strings.Builder, end string) {
	var said []string
	say := func(why string) {
		if why != "" && !slices.Contains(said, why) {
			said = append(said, why)
			fmt.Fprintf(b, "%s: %s%s\n", none, printable(why), end)
		}
	}
	for i := range r.Phases {
		for j := range r.Phases[i].Latency {
			if s := r.Phases[i].Latency[j].Stated; s != nil {
				say(s.WhyLoss)
				say(s.Why)
			}
		}
	}
}

// WriteMarkdown prints the result as a Markdown table with the findings as a list below it.
func (r *Result) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", markdown(r.summaryLine()))
	var top strings.Builder
	r.writeTop(&top, "\n")
	b.WriteString(markdown(top.String()))
	row := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(&b, "| %s ", markdown(c))
		}
		b.WriteString("|\n")
	}
	table := func(head []string, rows [][]string) {
		row(head)
		b.WriteString("| --- | --- |" + strings.Repeat(" ---: |", len(head)-2) + "\n")
		for _, cells := range rows {
			row(cells)
		}
	}
	table(columns(), r.rows())
	further := func(head []string, rows [][]string) {
		b.WriteByte('\n')
		table(head, rows)
	}
	line := func(s string) { fmt.Fprintf(&b, "\n%s\n", markdown(s)) }
	r.writeStreams(further, line)
	r.writeApps(further, line)
	if len(r.shownOthers()) > 0 {
		b.WriteByte('\n')
		table(otherColumns(), r.otherRows())
	}
	if len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "- %s\n", markdown(findingText(f)))
	}
	if len(r.Grades) > 0 {
		b.WriteString("\nGrades by others' schemes, none of which is a verdict of this program:\n\n")
	}
	for i := range r.Grades {
		fmt.Fprintf(&b, "- %s\n", markdown(r.Grades[i].text()))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// markdown escapes what Markdown would take for its own; nothing that is printed here means to be markup.
func markdown(s string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`, "&", "&amp;").Replace(s)
}

// WriteCSV prints a row for each series of each phase, for other programs: delays in ms with all their digits, rates in bit/s, loss as a share.
// A cell without a figure is empty. The findings of the run and of the phase stand in each row by their codes.
func (r *Result) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"version", "started", "host", "address", "status", "stopped", "phase", "kind", "under_load", "series", "probe",
		"download_bps", "upload_bps", "download_streams", "upload_streams", "streams_planned_down", "streams_planned_up",
		"due", "sent", "answered", "lost", "unfinished", "unsent", "loss", "rtt_min_ms", "rtt_p10_ms", "rtt_median_ms", "rtt_mean_ms",
		"rtt_p90_ms", "rtt_p99_ms", "rtt_max_ms", "induced_median_ms", "induced_p90_ms", "findings", "source",
		"download_streams_whole", "upload_streams_whole"}) // errors are kept until Flush
	for i := range r.Phases {
		p := &r.Phases[i]
		if p.Kind == bufferbloat.Drain {
			continue
		}
		if len(p.Latency) == 0 {
			_ = c.Write(r.record(p, nil))
		}
		for j := range p.Latency {
			_ = c.Write(r.record(p, &p.Latency[j]))
		}
	}
	c.Flush()
	return c.Error()
}

// record is one row of the CSV; l is nil where no series ran.
func (r *Result) record(p *Phase, l *Latency) []string {
	started := ""
	if !r.Started.IsZero() {
		started = r.Started.Format(time.RFC3339Nano)
	}
	host, source := r.Path.Host, ""
	if r.Source != nil {
		host, source = r.Source.Host, r.Source.Program
	}
	last := append([]string{r.codes(p.Name), printable(source)}, p.wholeCells()...)
	out := []string{printable(r.Version), started, printable(host), printable(r.Path.Address), strconv.Itoa(r.Status()),
		printable(stopText(r.Stopped, r.Truncated)), printable(p.Name), printable(string(p.Kind)), strconv.FormatBool(p.UnderLoad)}
	if l == nil {
		return append(append(append(out, "", ""), p.rateCells()...), append(slices.Repeat([]string{""}, 16), last...)...)
	}
	out = append(append(out, printable(l.Series), printable(l.Kind)), p.rateCells()...)
	c := l.Count
	for _, n := range []int{c.Due, c.Sent, c.Answered(), c.AllLost(), c.Unfinished, c.Unsent} {
		if l.Stated != nil {
			out = append(out, "")
			continue
		}
		out = append(out, strconv.Itoa(n))
	}
	if l.Stated != nil {
		out[len(out)-4] = strconv.Itoa(l.N)
	}
	loss := ""
	if v, ok := l.Loss(); ok {
		loss = strconv.FormatFloat(v, 'f', -1, 64)
	}
	out = append(out, loss)
	for _, f := range l.figures() {
		out = append(out, cell(f.value, f.ok))
	}
	induced := []string{"", ""}
	for i := range r.Induced {
		if d := &r.Induced[i]; d.Phase == p.Name && d.Series == l.Series {
			induced = []string{cell(d.Median.Value, d.OK), cell(d.P90.Value, d.OK)}
		}
	}
	return append(append(out, induced...), last...)
}

// wholeCells say how many of the streams of each direction ran to their end.
func (p *Phase) wholeCells() []string {
	out := []string{"", ""}
	for _, g := range p.Goodput {
		if i := int(g.Direction - load.Download); i <= 1 && g.Planned > 0 {
			out[i] = strconv.Itoa(g.Whole)
		}
	}
	return out
}

func cell(d time.Duration, ok bool) string {
	if !ok {
		return ""
	}
	return plainMS(d)
}

// rateCells are the six columns of rates and streams.
func (p *Phase) rateCells() []string {
	out := slices.Repeat([]string{""}, 6)
	for _, g := range p.Goodput {
		i := int(g.Direction - load.Download)
		if i > 1 {
			continue
		}
		if g.OK {
			out[i] = strconv.FormatInt(int64(g.Rate), 10)
		}
		if g.Planned > 0 {
			out[2+i], out[4+i] = strconv.Itoa(g.Flowed), strconv.Itoa(g.Planned)
		}
	}
	return out
}

// codes are the findings that concern a phase or the whole run.
func (r *Result) codes(phase string) string {
	var out []string
	for _, f := range r.Findings {
		if (f.Phase == "" || f.Phase == phase) && !slices.Contains(out, f.Code) {
			out = append(out, printable(f.Code))
		}
	}
	return strings.Join(out, ";")
}
