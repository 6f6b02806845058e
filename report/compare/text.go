package compare

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"bufferbloat/report"
	"bufferbloat/report/stat"
)

// none stands where there is no figure.
const none = "-"

// digits prints a number with three significant digits at least and without an exponent.
func digits(v float64) string {
	n := 3
	switch a := math.Abs(v); {
	case a >= 100:
		n = 1
	case a >= 10:
		n = 2
	}
	return strconv.FormatFloat(v, 'f', n, 64)
}

// number is a value in the unit that people read: ms, Mbit/s, percent.
func (u Unit) number(v float64) string {
	switch u {
	case Delay, Rate:
		return digits(v / 1e6)
	}
	return digits(v * 100)
}

// name is the unit that people read.
func (u Unit) name() string {
	switch u {
	case Delay:
		return "ms"
	case Rate:
		return "Mbit/s"
	}
	return "%"
}

// plus is number with its sign.
func (u Unit) plus(v float64) string {
	if s := u.number(v); strings.HasPrefix(s, "-") {
		return s
	} else {
		return "+" + s
	}
}

func (f *Figure) side(s *Side) string {
	if len(s.Values) == 0 {
		return none
	}
	return f.Unit.number(s.Value) + " " + f.Unit.name()
}

func (f *Figure) shift() string {
	switch {
	case len(f.Old.Values) == 0 || len(f.New.Values) == 0:
		return none
	case !f.Shift.HasInterval:
		return f.Unit.plus(f.Shift.Value) + " [no interval]"
	}
	return fmt.Sprintf("%s [%s to %s]", f.Unit.plus(f.Shift.Value), f.Unit.plus(f.Shift.Low), f.Unit.plus(f.Shift.High))
}

func (f *Figure) ratio() string {
	switch {
	case !f.HasRatio:
		return none
	case !f.Ratio.HasInterval:
		return stat.FormatRatio(f.Ratio.Value)
	}
	return fmt.Sprintf("%s [%s to %s]", stat.FormatRatio(f.Ratio.Value), stat.FormatRatio(f.Ratio.Low), stat.FormatRatio(f.Ratio.High))
}

// foot is the remark that a table needs below it: a verdict either way is in the table with what it rests on.
func (f *Figure) foot() string {
	if f.Verdict == Regression || f.Verdict == Improvement {
		return ""
	}
	return f.remark()
}

// remark says what the columns leave out, "" where that is nothing.
func (f *Figure) remark() string {
	var parts []string
	if f.Why != "" && f.Judged {
		parts = append(parts, f.Why)
	}
	if s := f.Missing.String(); s != "" {
		parts = append(parts, s)
	}
	return report.Printable(strings.Join(parts, "; "))
}

// String says how many runs are missing: "needs 4 more runs on each side", "" where none is.
func (m Missing) String() string {
	runs := func(n int) string {
		if n == 1 {
			return "1 more run"
		}
		return strconv.Itoa(n) + " more runs"
	}
	switch {
	case m.Many:
		return fmt.Sprintf("even %d more runs would hardly decide it", maxMissing)
	case m.Old == 0 && m.New == 0:
		return ""
	case m.Old == m.New:
		return "needs " + runs(m.Old) + " on each side"
	case m.Old == 0:
		return "needs " + runs(m.New) + " of the new side"
	case m.New == 0:
		return "needs " + runs(m.Old) + " of the old side"
	}
	return fmt.Sprintf("needs %s of the old side and %d of the new", runs(m.Old), m.New)
}

// String says what a threshold comes to.
func (j Judgement) String() string {
	text := fmt.Sprintf("%s: %s", j.Condition, j.State)
	if j.HasValue {
		text += fmt.Sprintf(" (%s is %s %s", j.Worst, j.Unit.number(j.Value), j.Unit.name())
		if j.Runs > 1 {
			text += fmt.Sprintf(", median of %d runs", j.Runs)
		}
		text += ")"
	}
	if j.Why != "" {
		text += "; " + report.Printable(j.Why)
	}
	return text
}

// used returns how many runs of a set count.
func used(runs []Run) (n int) {
	for i := range runs {
		if runs[i].Void == "" {
			n++
		}
	}
	return n
}

// headline is the comparison in one line.
func (c *Comparison) headline() string {
	v := c.Verdict()
	var which []string
	for _, f := range c.Figures {
		if f.Judged && f.Verdict == v {
			which = append(which, f.Name)
		}
	}
	for _, j := range c.Conditions {
		if v == Regression && j.State == Missed || v == Invalid && j.State == CannotJudge {
			which = append(which, j.Condition.String())
		}
	}
	text := string(v)
	switch {
	case len(c.Old) == 0:
		text = map[Verdict]string{Equivalent: "thresholds kept", Regression: "thresholds missed", Invalid: "cannot be judged"}[v]
		if v == Equivalent {
			return text
		}
	case v == Invalid && len(which) == 0:
		text += ": there is nothing to compare"
	}
	if len(which) > 0 && v != Equivalent {
		text += ": " + strings.Join(which, ", ")
	}
	return text
}

// sets says how many runs there are.
func (c *Comparison) sets() string {
	set := func(runs []Run) string {
		text := fmt.Sprintf("%d runs", used(runs))
		if used(runs) == 1 {
			text = "1 run"
		}
		if n := used(runs); n < len(runs) {
			text += fmt.Sprintf(" (%d of %d excluded)", len(runs)-n, len(runs))
		}
		return text
	}
	if len(c.Old) == 0 {
		return set(c.New)
	}
	return "old: " + set(c.Old) + ", new: " + set(c.New)
}

// excluded lists what does not count, a line each.
func (c *Comparison) excluded() []string {
	var out []string
	for _, side := range []struct {
		name string
		runs []Run
	}{{"old", c.Old}, {"new", c.New}} {
		for i := range side.runs {
			r := &side.runs[i]
			if n := len(r.twins); n > 0 {
				out = append(out, report.Printable(fmt.Sprintf("%s: these %d runs are identical in every figure: they count as one: %s, %s", side.name, n+1, r.Name,
					strings.Join(r.twins, ", "))))
			}
			if r.twin {
				continue
			}
			if r.Void != "" {
				out = append(out, report.Printable(fmt.Sprintf("%s, %s does not count: %s", side.name, r.Name, r.Void)))
				continue
			}
			for j := range r.result.Phases {
				p := r.result.Phases[j].Name
				if why := r.PhaseVoid[p]; why != "" {
					out = append(out, report.Printable(fmt.Sprintf("%s, %s, phase %s does not count: %s", side.name, r.Name, p, why)))
				}
			}
		}
	}
	return out
}

// rules says by which rules the table was made.
func (c *Comparison) rules() string {
	m := c.Margins
	percent := func(share float64) string { return strconv.FormatFloat(math.Round(share*1e6)/1e4, 'f', -1, 64) }
	delay := fmt.Sprintf("the larger of %v and %s%% of delays", m.DelayTime, percent(m.DelayShare))
	switch {
	case m.DelayShare == 0:
		delay = fmt.Sprintf("%v of delays", m.DelayTime)
	case m.DelayTime == 0:
		delay = percent(m.DelayShare) + "% of delays"
	}
	text := fmt.Sprintf("margins: %s, %s%% of rates, %s points of loss; shift: Hodges-Lehmann with its 95%% interval; verdicts at 5%% for all judged metrics together (Holm)",
		delay, percent(m.RateShare), percent(m.Points))
	if slices.ContainsFunc(c.Figures, func(f Figure) bool { return f.Judged && f.Basis == WithinRuns }) {
		text += fmt.Sprintf("; with so few runs the intervals are of what varies within runs, how runs differ is not covered, and a change must exceed %d margins between every two runs (%d where a side has one run)", SmallSets, SingleRuns)
	}
	return text
}

// rows returns the table with its head.
func (c *Comparison) rows() [][]string {
	out := [][]string{{"metric", "old", "new", "shift", "ratio", "verdict"}}
	for i := range c.Figures {
		f := &c.Figures[i]
		if !f.Judged && (!f.brief || len(f.Old.Values) == 0 && len(f.New.Values) == 0) {
			continue
		}
		verdict := string(f.Verdict)
		switch {
		case !f.Judged:
			verdict = none
		case f.Basis != WithinRuns || f.Verdict == Invalid || f.Verdict == NotJudged:
		case len(f.Old.Values) == 1 && len(f.New.Values) == 1:
			verdict += ", " + OneRunEach
		default:
			verdict += ", few runs"
		}
		out = append(out, []string{f.Name, f.side(&f.Old), f.side(&f.New), f.shift(), f.ratio(), verdict})
	}
	return out
}

// WriteText prints the comparison for a terminal. Its lines are of ASCII signs but for the names of files.
func (c *Comparison) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", c.headline(), c.sets())
	if len(c.Figures) > 0 {
		b.WriteByte('\n')
		rows := c.rows()
		width := make([]int, len(rows[0]))
		for _, row := range rows {
			for i, cell := range row {
				width[i] = max(width[i], len(cell))
			}
		}
		for _, row := range rows {
			var line strings.Builder
			for i, cell := range row {
				if i == 1 || i == 2 {
					fmt.Fprintf(&line, "%*s  ", width[i], cell)
				} else {
					fmt.Fprintf(&line, "%-*s  ", width[i], cell)
				}
			}
			b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		}
	}
	if len(c.Conditions) > 0 {
		b.WriteByte('\n')
	}
	for _, j := range c.Conditions {
		fmt.Fprintf(&b, "%s\n", j)
	}
	b.WriteByte('\n')
	for i := range c.Figures {
		if s := c.Figures[i].foot(); s != "" {
			fmt.Fprintf(&b, "   %s: %s\n", c.Figures[i].Name, s)
		}
	}
	for _, s := range append(c.excluded(), c.notes()...) {
		fmt.Fprintf(&b, "   ! %s\n", s)
	}
	if len(c.Figures) > 0 {
		fmt.Fprintf(&b, "(%s)\n", c.rules())
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

func (c *Comparison) notes() []string {
	var out []string
	for _, s := range c.Notes {
		out = append(out, "note: "+report.Printable(s))
	}
	return out
}

// markdown escapes what a table's cell or a line would take for its own.
func markdown(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "\\`", "[", `\[`).Replace(s)
}

// WriteMarkdown prints the comparison as a page for a CI server's summary of a job.
func (c *Comparison) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### Latency under load: %s\n\n%s\n", markdown(c.headline()), c.sets())
	if len(c.Figures) > 0 {
		for i, row := range c.rows() {
			if i == 0 {
				b.WriteString("\n| " + strings.Join(row, " | ") + " |\n| --- | ---: | ---: | --- | --- | --- |\n")
				continue
			}
			for k := range row {
				row[k] = markdown(row[k])
			}
			row[0] = "`" + strings.ReplaceAll(row[0], `\_`, "_") + "`"
			word, _, _ := strings.Cut(row[5], ",")
			if v := Verdict(word); v == Regression || v == Improvement || v == Invalid {
				row[5] = "**" + row[5] + "**"
			}
			b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		}
	}
	var lines []string
	for _, j := range c.Conditions {
		lines = append(lines, markdown(j.String()))
	}
	for i := range c.Figures {
		if s := c.Figures[i].foot(); s != "" {
			lines = append(lines, "`"+c.Figures[i].Name+"`: "+markdown(s))
		}
	}
	for _, s := range append(c.excluded(), c.notes()...) {
		lines = append(lines, markdown(s))
	}
	if len(lines) > 0 {
		b.WriteString("\n- " + strings.Join(lines, "\n- ") + "\n")
	}
	if len(c.Figures) > 0 {
		fmt.Fprintf(&b, "\n%s\n", markdown(c.rules()))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
