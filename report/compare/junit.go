package compare

import (
	"encoding/xml"
	"io"
	"strings"

	"bufferbloat/report"
)

type junitSuites struct {
	XMLName xml.Name   `xml:"testsuites"`
	Suite   junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
	Out      string      `xml:"system-out,omitempty"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Failure *junitMessage `xml:"failure"`
	Error   *junitMessage `xml:"error"`
	Skipped *junitMessage `xml:"skipped"`
	Out     string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
}

// WriteJUnit prints the judged metrics and the thresholds as JUnit test cases: a regression or a missed threshold is a failure, what is invalid an
// error, what is inconclusive skipped.
func (c *Comparison) WriteJUnit(w io.Writer) error {
	s := junitSuite{Name: "bloat compare", Out: report.Printable(strings.Join(append(c.excluded(), c.notes()...), "; "))}
	add := func(class, name, out, message string, v Verdict) {
		t := junitCase{Class: class, Name: name, Out: out}
		m := &junitMessage{message}
		s.Tests++
		switch v {
		case Regression:
			t.Failure = m
			s.Failures++
		case Invalid:
			t.Error = m
			s.Errors++
		case Inconclusive:
			t.Skipped = m
			s.Skipped++
		}
		s.Cases = append(s.Cases, t)
	}
	for i := range c.Figures {
		f := &c.Figures[i]
		if !f.Judged {
			continue
		}
		message := string(f.Verdict)
		if s := f.remark(); s != "" {
			message += ": " + s
		}
		add("bloat.compare", f.Name, "old "+f.side(&f.Old)+", new "+f.side(&f.New)+", shift "+f.shift()+", ratio "+f.ratio(), message, f.Verdict)
	}
	for _, j := range c.Conditions {
		add("bloat.threshold", j.Condition.String(), j.String(), j.String(), map[State]Verdict{Kept: Equivalent, Missed: Regression, CannotJudge: Invalid}[j.State])
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(junitSuites{Suite: s}); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}
