package compare

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"bufferbloat/report"
)

// WriteBenchstat prints the figures of all runs that count in the format of Go benchmarks, a line for each run and each phase, with the set as
// configuration: "benchstat -col set FILE" compares them. Delays are in seconds and shares are ratios, as benchstat has its units.
func (c *Comparison) WriteBenchstat(w io.Writer) error {
	var b strings.Builder
	b.WriteString("Unit goodput-bit/s better=higher\nUnit fairness-ratio better=higher\n")
	for _, set := range []struct {
		name string
		runs []Run
	}{{"old", c.Old}, {"new", c.New}} {
		if len(set.runs) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\nset: %s\n", set.name)
		for i := range set.runs {
			r := &set.runs[i]
			if r.Void != "" {
				fmt.Fprintf(&b, "# %s does not count: %s\n", report.Printable(r.Name), report.Printable(r.Void))
				continue
			}
			fmt.Fprintf(&b, "# %s\n", report.Printable(r.Name))
			for _, line := range r.benchmarks() {
				b.WriteString(line + "\n")
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// benchmarks returns a line for each part of a plan that has figures, named after the first parts of its metrics' names.
func (r *Run) benchmarks() []string {
	var names []string
	values := map[string]string{}
	for _, f := range r.figures {
		if f.why != "" || r.PhaseVoid[f.phase] != "" {
			continue
		}
		kind, _ := kindOf(f.Name)
		name := strings.TrimSuffix(strings.TrimSuffix(f.Name, kind.Name), ".")
		if name == "" {
			name = "idle"
		}
		if values[name] == "" {
			names = append(names, name)
		}
		unit, value := strings.ReplaceAll(kind.Name, ".", "-"), f.value
		switch f.Unit {
		case Delay:
			unit, value = unit+"-sec", value/1e9
		case Rate:
			unit += "-bit/s"
		case Share:
			unit += "-ratio"
		}
		values[name] += " " + strconv.FormatFloat(value, 'g', -1, 64) + " " + unit
	}
	var out []string
	for _, name := range names {
		out = append(out, "BenchmarkBloat/phase="+name+" 1"+values[name])
	}
	return out
}
