package compare

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"bufferbloat/internal/bitrate"
)

// Condition is a threshold: "loaded_rtt.p90 > 50ms" fails where the figure is above 50 ms. A metric without a phase before it stands for all
// phases, the worst of which decides.
type Condition struct {
	Metric string
	Unit   Unit
	Op     string  // ">", ">=", "<" or "<="
	Value  float64 // in Unit
}

// ConditionError says where the text of a condition is wrong.
type ConditionError struct {
	Text   string
	Offset int // in bytes
	Reason string
}

func (e *ConditionError) Error() string {
	return fmt.Sprintf("condition %q, column %d: %s", e.Text, e.Offset+1, e.Reason)
}

// maxCondition bounds the text of a condition.
const maxCondition = 256

// ParseCondition reads a metric, an operator and a value with its unit: "upload.loaded_rtt.p90 > 50ms", "goodput < 20Mbit", "loss >= 1%". The error is
// a *ConditionError.
func ParseCondition(text string) (Condition, error) {
	bad := func(at int, format string, args ...any) (Condition, error) {
		return Condition{}, &ConditionError{text, at, fmt.Sprintf(format, args...)}
	}
	if len(text) > maxCondition {
		return Condition{}, &ConditionError{text[:32] + "...", maxCondition, fmt.Sprintf("longer than %d bytes", maxCondition)}
	}
	op := strings.IndexAny(text, "<>")
	if op < 0 {
		return bad(len(text), "want an operator, one of > >= < <=, as in loaded_rtt.p90 > 50ms")
	}
	c := Condition{Metric: strings.TrimSpace(text[:op]), Op: text[op : op+1]}
	start := strings.Index(text[:op], c.Metric)
	kind, ok := kindOf(c.Metric)
	if !ok {
		return bad(start, "no metric %q; want one of %s, or one of them with a phase before it, as in upload.goodput", c.Metric, kindNames())
	}
	if i := strings.IndexFunc(c.Metric, func(r rune) bool { return r != '.' && string(r) != plainName(string(r)) }); i >= 0 {
		return bad(start+i, "a name has small letters, digits, '_', '-' and '.' in it")
	}
	rest := op + 1
	if strings.HasPrefix(text[rest:], "=") {
		c.Op += "="
		rest++
	}
	value := strings.TrimSpace(text[rest:])
	at := rest + strings.Index(text[rest:], value)
	v, err := parseValue(value, kind.Unit)
	if err != "" {
		return bad(at, "%s", err)
	}
	c.Unit, c.Value = kind.Unit, v
	return c, nil
}

// parseValue reads a value of a unit, or says what is wrong.
func parseValue(s string, u Unit) (float64, string) {
	switch u {
	case Rate:
		r, err := bitrate.Parse(s)
		if err != nil {
			return 0, fmt.Sprintf("want a rate with its unit, as in 20Mbit, not %q", s)
		}
		return float64(r), ""
	case Share:
		number, percent := strings.CutSuffix(s, "%")
		v, ok := number64(number)
		if percent {
			v /= 100
		}
		if !ok || v < 0 || v > 1 {
			return 0, fmt.Sprintf("want a share, as in 1%% or 0.01, not %q", s)
		}
		return v, ""
	}
	for _, unit := range []struct {
		name string
		ns   float64
	}{{"ns", 1}, {"us", 1e3}, {"µs", 1e3}, {"ms", 1e6}, {"s", 1e9}} {
		number, ok := strings.CutSuffix(s, unit.name)
		if !ok {
			continue
		}
		if v, ok := number64(number); ok && math.Abs(v*unit.ns) <= 1e15 {
			return math.Round(v * unit.ns), ""
		}
	}
	return 0, fmt.Sprintf("want a time with its unit, as in 50ms, not %q", s)
}

// number64 reads a decimal number as a person writes it.
func number64(s string) (float64, bool) {
	s = strings.TrimSpace(s)
	if s == "" || strings.Trim(s, "+-.0123456789") != "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil
}

// String returns the condition in the form that ParseCondition reads.
func (c Condition) String() string {
	var value string
	switch c.Unit {
	case Rate:
		value = bitrate.Bitrate(c.Value).String()
	case Share:
		value = strconv.FormatFloat(c.Value, 'f', -1, 64)
	default:
		value = strconv.FormatFloat(c.Value/1e6, 'f', -1, 64) + "ms"
	}
	return c.Metric + " " + c.Op + " " + value
}

// holds reports whether the condition is true of a value.
func (c Condition) holds(v float64) bool {
	switch c.Op {
	case ">":
		return v > c.Value
	case ">=":
		return v >= c.Value
	case "<":
		return v < c.Value
	}
	return v <= c.Value
}

// State is what a threshold comes to.
type State string

// The states.
const (
	Kept        State = "kept"
	Missed      State = "missed"
	CannotJudge State = "cannot be judged" // a figure is absent; that never passes
)

// Judgement is a condition put to the new runs.
type Judgement struct {
	Condition
	State State
	// Metric of the condition may stand for several: Worst is the one that decides, Value the median of its Runs. Valid with HasValue.
	Worst    string
	Value    float64
	Runs     int
	HasValue bool
	Why      string // why it cannot be judged, and what runs do not count
}

// judge puts the condition to the runs that count.
func (c Condition) judge(runs []Run) Judgement {
	j := Judgement{Condition: c, State: Kept}
	var names []string
	for _, r := range runs {
		for _, f := range r.figures {
			if within(f.Name, c.Metric) && !slices.Contains(names, f.Name) {
				names = append(names, f.Name)
			}
		}
	}
	var why []string
	for _, name := range names {
		var side Side
		if figures(runs, name, &side); len(side.Values) == 0 {
			j.State = CannotJudge
			why = append(why, name+": "+strings.Join(side.Absent, "; "))
			continue
		}
		worse := side.Value > j.Value
		if strings.HasPrefix(c.Op, "<") {
			worse = side.Value < j.Value
		}
		if !j.HasValue || worse {
			j.Worst, j.Value, j.Runs, j.HasValue = name, side.Value, len(side.Values), true
		}
	}
	j.Why = strings.Join(why, "; ")
	switch {
	case j.HasValue && c.holds(j.Value):
		j.State = Missed
	case len(names) == 0:
		j.State, j.Why = CannotJudge, "no run has such a figure"
	}
	return j
}
