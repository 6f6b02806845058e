package report

import (
	"strings"

	"bufferbloat"
)

// Page is what a result says, in pieces for somebody else to lay out. All texts are printable; none is escaped for any markup.
type Page struct {
	Summary  string       // what was measured, against whom, when
	Plain    string       // a sentence for everyone, "" where there is none
	Top      []string     // what a reader must know before the figures
	Head     []string     // of the table; from the third column on it has numbers
	Rows     [][]string   // as in WriteTable
	Others   [][]string   // a second table, its head first, of what else a source measured; nil for none
	Further  [][][]string // tables of directions, calls and routers, each with its head first
	Lines    []string     // where queues are, and how pages fare
	Induced  [][2]string
	Findings []PageFinding
}

// PageFinding is a finding as a line.
type PageFinding struct {
	Severity bufferbloat.Severity
	Text     string
}

// Page returns the pieces of the result.
func (r *Result) Page() Page {
	p := Page{Summary: r.summaryLine(), Plain: r.Plain(), Head: columns(), Rows: r.rows()}
	var top strings.Builder
	r.writeTop(&top, "")
	for line := range strings.Lines(top.String()) {
		p.Top = append(p.Top, strings.TrimRight(line, "\n"))
	}
	for i := range r.Induced {
		p.Induced = append(p.Induced, r.Induced[i].line())
	}
	if len(r.shownOthers()) > 0 {
		p.Others = append([][]string{otherColumns()}, r.otherRows()...)
	}
	p.Further, p.Lines = r.appTables(), r.appLines()
	for _, f := range r.Findings {
		p.Findings = append(p.Findings, PageFinding{bufferbloat.Severity(printable(string(f.Severity))), findingText(f)})
	}
	return p
}

// line is the phase, and what its load added with intervals or why that is not known.
func (d *Induced) line() [2]string {
	if !d.OK {
		return [2]string{printable(d.Phase), "- (" + printable(d.Why) + ")"}
	}
	part := func(name string, value, low, high string) string {
		if d.NoInterval != "" {
			return name + " " + value + " ms"
		}
		return name + " " + value + " ms [" + low + " to " + high + "]"
	}
	text := part("median", signed(d.Median.Value), signed(d.Median.Low), signed(d.Median.High)) + ", " +
		part("90pct", signed(d.P90.Value), signed(d.P90.Low), signed(d.P90.High))
	if d.NoInterval != "" {
		text += " (no interval: " + printable(d.NoInterval) + ")"
	}
	return [2]string{printable(d.Phase), text}
}
