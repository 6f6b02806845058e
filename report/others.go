package report

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bufferbloat"
	"bufferbloat/report/stat"
)

// Other is a quantity that was measured beside delays and rates, over its whole run.
type Other struct {
	Name      string
	Unit      string // "" where not told
	Flow      string // the stream that it is about, "" where it is about none
	Resampled bool   // interpolated to a grid
	stat.Values
}

func newOthers(rec *bufferbloat.Recording) (all []Other) {
	var values []float64 // of one after the other
	for i := range rec.Others {
		q := &rec.Others[i]
		values = values[:0]
		for _, v := range q.Each {
			values = append(values, v)
		}
		slices.Sort(values)
		all = append(all, Other{q.Name, q.Unit, q.Flow, q.Resampled, stat.DescribeSorted(values)})
	}
	return all
}

type otherDoc struct {
	Name      string   `json:"name"`
	Unit      *string  `json:"unit"`
	Flow      string   `json:"stream,omitempty"`
	Resampled bool     `json:"resampled"`
	N         int      `json:"n"`
	Min       *float64 `json:"min"`
	Median    *float64 `json:"median"`
	Mean      *float64 `json:"mean"`
	P99       *float64 `json:"p99"`
	Max       *float64 `json:"max"`
}

func (o *Other) document() otherDoc {
	ok := o.N > 0
	return otherDoc{o.Name, text(o.Unit), o.Flow, o.Resampled, o.N, value(o.Min, ok), value(o.Median, ok), value(o.Mean, ok), value(o.P99, o.HasP99), value(o.Max, ok)}
}

// shownOthers are the further series that tables list: those of single streams are summed up with these. Of what this program watched, what was
// 0 all the time (a tin that nothing went through) is left out.
func (r *Result) shownOthers() (out []Other) {
	for _, o := range r.Others {
		if r.Source == nil && o.N > 0 && o.Min == 0 && o.Max == 0 {
			continue
		}
		if o.Flow == "" {
			out = append(out, o)
		}
	}
	return out
}

// few is how many further series the speedtest text lists with their figures.
const few = 12

// others prints the further series of another program's run.
func (t *speedtest) others() {
	if t.r.Source == nil {
		return // its own are many, and the table format has them
	}
	shown := t.r.shownOthers()
	for i, o := range shown {
		if i == few {
			var names []string
			for _, o := range shown[few:] {
				names = append(names, printable(o.Name))
			}
			t.line("Further", fmt.Sprintf("%d more, with figures in the table format: %s", len(names), strings.Join(names, ", ")))
			return
		}
		t.line("Further", o.String())
	}
}

// String is the series on one line.
func (o *Other) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", printable(o.Name), plural(o.N, "value"))
	if o.Unit != "" {
		fmt.Fprintf(&b, " in %s", printable(o.Unit))
	}
	if o.Resampled {
		b.WriteString(" (interpolated)")
	}
	if o.N > 0 {
		fmt.Fprintf(&b, ", min %s, median %s, avg %s, max %s", general(o.Min), general(o.Median), general(o.Mean), general(o.Max))
	}
	return b.String()
}

// general is a number of no known unit in six significant digits.
func general(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// otherColumns and otherRows are the table of further series.
func otherColumns() []string {
	return []string{"Further series", "Unit", "N", "Min", "Median", "Avg", "99pct", "Max"}
}

func (r *Result) otherRows() [][]string {
	var out [][]string
	for _, o := range r.shownOthers() {
		name := printable(o.Name)
		if o.Resampled {
			name += " (interpolated)"
		}
		row := []string{name, none, strconv.Itoa(o.N), none, none, none, none, none}
		if o.Unit != "" {
			row[1] = printable(o.Unit)
		}
		if o.N > 0 {
			row[3], row[4], row[5], row[7] = general(o.Min), general(o.Median), general(o.Mean), general(o.Max)
		}
		if o.HasP99 {
			row[6] = general(o.P99)
		}
		out = append(out, row)
	}
	return out
}
