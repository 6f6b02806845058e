package compare

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"io"
	"math"
	"time"

	"bufferbloat/report/stat"
)

// Schema names the JSON document. Within it, fields are added and never changed.
const Schema = "bloat/compare/1"

//go:embed compare.schema.json
var schemaJSON string

// JSONSchema returns the JSON Schema (draft 2020-12) of the document that WriteJSON and WriteError print.
func JSONSchema() []byte { return []byte(schemaJSON) }

type document struct {
	Schema     string         `json:"schema"`
	Version    string         `json:"version"`
	Status     int            `json:"status"`
	Error      *string        `json:"error"`
	Verdict    *Verdict       `json:"verdict"`
	Rules      rulesDoc       `json:"rules"`
	Old        []runDoc       `json:"old"`
	New        []runDoc       `json:"new"`
	Figures    []figureDoc    `json:"figures"`
	Conditions []conditionDoc `json:"conditions"`
	Notes      []string       `json:"notes"`
}

type rulesDoc struct {
	Level       float64       `json:"interval_level"`
	Alpha       float64       `json:"alpha"`
	Shift       string        `json:"shift"`
	Correction  string        `json:"correction"`
	SmallSets   int           `json:"small_sets_margins"`
	SingleRuns  int           `json:"single_run_margins"`
	DelayMargin time.Duration `json:"delay_margin_ns"`
	DelayShare  float64       `json:"delay_margin_share"`
	RateShare   float64       `json:"rate_margin_share"`
	Points      float64       `json:"share_margin_points"`
}

type runDoc struct {
	Name   string     `json:"name"`
	Void   *string    `json:"void"` // why the run does not count
	Phases []phaseDoc `json:"void_phases"`
}

type phaseDoc struct {
	Phase  string `json:"phase"`
	Reason string `json:"reason"`
}

// figureDoc is a figure; the fields that hold values have the unit in their names.
type figureDoc struct{ f *Figure }

type conditionDoc struct{ j *Judgement }

// object writes fields in their order.
type object struct {
	b   bytes.Buffer
	err error
}

func (o *object) field(name string, value any) {
	var v bytes.Buffer
	e := json.NewEncoder(&v)
	e.SetEscapeHTML(false) // conditions have < and > in them
	if err := e.Encode(value); err != nil {
		o.err = err
		return
	}
	if o.b.Len() > 0 {
		o.b.WriteByte(',')
	}
	k, _ := json.Marshal(name) // a string always has a form
	o.b.Write(k)
	o.b.WriteByte(':')
	o.b.Write(bytes.TrimSpace(v.Bytes()))
}

func (o *object) bytes() ([]byte, error) { return []byte("{" + o.b.String() + "}"), o.err }

// amount is a value in its unit, null where it is not valid: whole nanoseconds and bits per second, shares as they are.
func (u Unit) amount(v float64, ok bool) any {
	if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	if u == Share {
		return v
	}
	return int64(math.Round(v))
}

func (u Unit) amounts(x []float64) []any {
	out := make([]any, len(x))
	for i, v := range x {
		out[i] = u.amount(v, true)
	}
	return out
}

// MarshalJSON writes the figure with its unit in the names.
func (d figureDoc) MarshalJSON() ([]byte, error) {
	f, u := d.f, d.f.Unit
	var o object
	better := "lower"
	if f.HigherIsBetter {
		better = "higher"
	}
	o.field("metric", f.Name)
	o.field("unit", u)
	o.field("better", better)
	o.field("judged", f.Judged)
	o.field("verdict", f.Verdict)
	o.field("reason", text(f.Why))
	both := len(f.Old.Values) > 0 && len(f.New.Values) > 0
	unit := "_" + string(u)
	o.field("old"+unit, u.amount(f.Old.Value, len(f.Old.Values) > 0))
	o.field("new"+unit, u.amount(f.New.Value, len(f.New.Values) > 0))
	o.field("shift"+unit, u.amount(f.Shift.Value, both))
	o.field("shift_low"+unit, u.amount(f.Shift.Low, f.Shift.HasInterval))
	o.field("shift_high"+unit, u.amount(f.Shift.High, f.Shift.HasInterval))
	o.field("margin"+unit, u.amount(f.Margin, both))
	o.field("ratio", Share.amount(f.Ratio.Value, f.HasRatio))
	o.field("ratio_low", Share.amount(f.Ratio.Low, f.HasRatio && f.Ratio.HasInterval))
	o.field("ratio_high", Share.amount(f.Ratio.High, f.HasRatio && f.Ratio.HasInterval))
	o.field("interval_basis", text(string(f.Basis)))
	o.field("p_corrected", Share.amount(f.P, f.HasP && f.Judged))
	o.field("old_runs"+unit, u.amounts(f.Old.Values))
	o.field("new_runs"+unit, u.amounts(f.New.Values))
	o.field("old_absent", list(f.Old.Absent))
	o.field("new_absent", list(f.New.Absent))
	o.field("more_old_runs", missing(f.Missing, f.Missing.Old))
	o.field("more_new_runs", missing(f.Missing, f.Missing.New))
	return o.bytes()
}

// missing is a number of runs, null where it cannot be told.
func missing(m Missing, n int) any {
	if m.Many {
		return nil
	}
	return n
}

// MarshalJSON writes the condition with its unit in the names.
func (d conditionDoc) MarshalJSON() ([]byte, error) {
	j, u := d.j, d.j.Unit
	var o object
	o.field("condition", j.Condition.String())
	o.field("metric", j.Condition.Metric)
	o.field("unit", u)
	o.field("operator", j.Op)
	o.field("threshold_"+string(u), u.amount(j.Condition.Value, true))
	o.field("state", j.State)
	o.field("reason", text(j.Why))
	o.field("worst", text(j.Worst))
	o.field("value_"+string(u), u.amount(j.Value, j.HasValue))
	o.field("runs", j.Runs)
	return o.bytes()
}

// text is s, or null where it is empty.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func list(s []string) []string { return append([]string{}, s...) }

func runDocs(runs []Run) []runDoc {
	out := []runDoc{}
	for i := range runs {
		r := &runs[i]
		d := runDoc{Name: r.Name, Void: text(r.Void), Phases: []phaseDoc{}}
		for j := range r.result.Phases {
			if p := r.result.Phases[j].Name; r.PhaseVoid[p] != "" {
				d.Phases = append(d.Phases, phaseDoc{p, r.PhaseVoid[p]})
			}
		}
		out = append(out, d)
	}
	return out
}

func rules(m Margins) rulesDoc {
	m = m.withDefaults()
	return rulesDoc{Level: stat.Level, Alpha: math.Round(Alpha*1e9) / 1e9, Shift: "Hodges-Lehmann over runs", Correction: "Holm over the judged metrics",
		SmallSets: SmallSets, SingleRuns: SingleRuns, DelayMargin: m.DelayTime, DelayShare: m.DelayShare, RateShare: m.RateShare, Points: m.Points}
}

// WriteJSON prints the comparison as one JSON document. version is of the program that compares.
func (c *Comparison) WriteJSON(w io.Writer, version string) error {
	verdict := c.Verdict()
	d := document{Schema: Schema, Version: version, Status: c.Status(), Verdict: &verdict, Rules: rules(c.Margins), Old: runDocs(c.Old), New: runDocs(c.New),
		Figures: []figureDoc{}, Conditions: []conditionDoc{}, Notes: list(c.Notes)}
	for i := range c.Figures {
		d.Figures = append(d.Figures, figureDoc{&c.Figures[i]})
	}
	for i := range c.Conditions {
		d.Conditions = append(d.Conditions, conditionDoc{&c.Conditions[i]})
	}
	return encode(w, &d)
}

// WriteError prints the document of a comparison that could not be made: the same form, with the error, the exit status, and nothing else.
// err must not be nil.
func WriteError(w io.Writer, version string, err error, status int) error {
	return encode(w, &document{Schema: Schema, Version: version, Status: status, Error: text(err.Error()), Rules: rules(Margins{}), Old: []runDoc{}, New: []runDoc{},
		Figures: []figureDoc{}, Conditions: []conditionDoc{}, Notes: []string{}})
}

func encode(w io.Writer, d *document) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(d)
}
