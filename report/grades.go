package report

import (
	"fmt"
	"strconv"
	"strings"
)

// Grade is what one published scheme says of a result. It is another's opinion, printed beside the figures and never a verdict of this program.
type Grade struct {
	Scheme    string // "DSLReports bufferbloat"
	Version   string // which of its versions: "shipped JSON"
	Source    string // where its rules were published
	Statistic string // what it is computed from
	Cuts      string // its thresholds: "A+ < 5, A < 30, ... ms"
	Value     string // "A", "5 of 20 points"; "" where it is not computable
	Why       string // why not, "" where it is
	Inputs    []GradeInput
}

// GradeInput is one of the figures that a grade is made of.
type GradeInput struct {
	Name  string
	Unit  string // "ms", "Mbit/s", "%"
	Value float64
	OK    bool // there is such a figure
}

type gradeDoc struct {
	Scheme    string          `json:"scheme"`
	Version   string          `json:"version"`
	Source    string          `json:"source"`
	Statistic string          `json:"statistic"`
	Cuts      string          `json:"thresholds"`
	Grade     *string         `json:"grade"`
	Reason    *string         `json:"reason"`
	Inputs    []gradeInputDoc `json:"inputs"`
}

type gradeInputDoc struct {
	Name  string   `json:"name"`
	Unit  string   `json:"unit"`
	Value *float64 `json:"value"`
}

func (g *Grade) document() gradeDoc {
	d := gradeDoc{Scheme: g.Scheme, Version: g.Version, Source: g.Source, Statistic: g.Statistic, Cuts: g.Cuts, Grade: text(g.Value), Reason: text(g.Why),
		Inputs: []gradeInputDoc{}}
	for _, in := range g.Inputs {
		d.Inputs = append(d.Inputs, gradeInputDoc{in.Name, in.Unit, value(in.Value, in.OK && finite(in.Value))})
	}
	return d
}

// line is a grade on one line: "A (download 28.0 ms, upload 28.0 ms)".
func (g *Grade) line() string {
	grade := g.Value
	if grade == "" {
		grade = none
	}
	var in []string
	for _, i := range g.Inputs {
		v := none
		if i.OK {
			v = strconv.FormatFloat(i.Value, 'f', 1, 64)
			if i.Unit == "%" {
				v = strconv.FormatFloat(i.Value, 'f', 2, 64)
			}
		}
		in = append(in, fmt.Sprintf("%s %s %s", i.Name, v, i.Unit))
	}
	text := grade
	if g.Why != "" {
		text += " (not computable: " + g.Why + ")"
	}
	if len(in) > 0 {
		text += "; " + strings.Join(in, ", ")
	}
	return text
}

// text is a grade with its scheme, inputs and thresholds on one line.
func (g *Grade) text() string {
	return printable(fmt.Sprintf("%s, %s: %s (%s; %s) [%s]", g.Scheme, g.Version, g.line(), g.Statistic, g.Cuts, g.Source))
}

// grades prints each grade with its scheme, inputs and thresholds.
func (t *speedtest) grades() {
	if len(t.r.Grades) == 0 {
		return
	}
	t.blank()
	t.line("Grades", "(others' schemes; they differ, and none is a verdict of this program)")
	for i := range t.r.Grades {
		g := &t.r.Grades[i]
		fmt.Fprintf(&t.b, "   %s, %s: %s\n", printable(g.Scheme), printable(g.Version), printable(g.line()))
		fmt.Fprintf(&t.b, "      %s; %s [%s]\n", printable(g.Statistic), printable(g.Cuts), printable(g.Source))
	}
}
