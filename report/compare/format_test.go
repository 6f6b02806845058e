package compare

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"bufferbloat"
	"bufferbloat/report"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; write it with -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; got\n%s\nwant\n%s", name, got, want)
	}
}

func condition(t *testing.T, text string) Condition {
	t.Helper()
	c, err := ParseCondition(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// comparisons are cases that between them have every verdict, state and kind of absence.
func comparisons(t *testing.T) map[string]*Comparison {
	r := newRand(20)
	out := map[string]*Comparison{}
	good := goodLine()
	out["equal"] = compared(t, good.runs("old", 10, 0.02, r), good.runs("new", 10, 0.02, r), Options{})

	worse := good
	worse.up = 300 * msec
	now := worse.runs("new", 8, 0.03, r)
	now[2].Findings = []bufferbloat.Finding{{Code: "probes_late", Severity: bufferbloat.Voids, Text: "icmp probes left up to 900 ms late"}}
	now[3].Findings = []bufferbloat.Finding{{Code: "streams_missing", Severity: bufferbloat.Weakens, Phase: "download", Text: "download: only 2 of 5 streams carried data"}}
	now[4].File = "new\x1b[31m|5.json"
	now[4].Path.Family = "IPv6"
	out["regression"] = compared(t, good.runs("old", 7, 0.03, r), now, Options{FailIf: []Condition{condition(t, "loaded_rtt.p90 > 100ms"), condition(t, "goodput < 1Mbit")}})

	lossy := good.scaled(1.15)
	lossy.loss = 0.3
	out["one_each"] = compared(t, good.runs("old", 1, 0, r), lossy.runs("new", 1, 0, r), Options{})

	broken := good.runs("new", 2, 0, r)
	for _, b := range broken {
		b.Phases[2].UnderLoad = false
		b.Phases[2].Goodput[0].OK, b.Phases[2].Goodput[0].Why = false, "none of the 5 streams carried data: connection refused"
	}
	out["invalid"] = compared(t, good.runs("old", 2, 0, r), broken, Options{Metrics: []string{"upload.goodput", "loaded_rtt.p50"}, FailIf: []Condition{condition(t, "upload.loaded_rtt.p90 > 1s")}})

	out["thresholds"] = compared(t, nil, good.runs("new", 1, 0, r), Options{FailIf: []Condition{condition(t, "loaded_rtt.p90 > 1s"), condition(t, "loss > 1%"), condition(t, "goodput < 10Mbit")}})
	return out
}

func TestGoldenFiles(t *testing.T) {
	for name, c := range comparisons(t) {
		for suffix, write := range map[string]func(io.Writer) error{"txt": c.WriteText, "md": c.WriteMarkdown, "junit.xml": c.WriteJUnit, "benchstat.txt": c.WriteBenchstat,
			"json": func(w io.Writer) error { return c.WriteJSON(w, "1.0.0") }} {
			t.Run(name+"."+suffix, func(t *testing.T) {
				var b bytes.Buffer
				if err := write(&b); err != nil {
					t.Fatal(err)
				}
				golden(t, name+"."+suffix, b.Bytes())
				if bytes.ContainsRune(b.Bytes(), '\x1b') && suffix != "json" {
					t.Error("an escape sequence comes through")
				}
				for line := range strings.Lines(b.String()) {
					if s := strings.TrimSuffix(line, "\n"); strings.TrimRight(s, " ") != s {
						t.Errorf("space at the end of %q", s)
					}
				}
				switch suffix {
				case "json":
					validate(t, b.Bytes())
				case "junit.xml":
					checkJUnit(t, b.Bytes(), c)
				case "benchstat.txt":
					checkBenchmarks(t, b.String())
				}
			})
		}
	}
}

func TestTheErrorDocumentIsOfTheSchema(t *testing.T) {
	var b bytes.Buffer
	if err := WriteError(&b, "1.0.0", errors.New("old.json: no such file"), 1); err != nil {
		t.Fatal(err)
	}
	golden(t, "error.json", b.Bytes())
	validate(t, b.Bytes())
}

// validate holds a document to the published schema, and the schema to the document: no field may be missing from it.
func validate(t *testing.T, doc []byte) {
	t.Helper()
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	for _, strict := range []bool{false, true} {
		var schema any
		if err := json.Unmarshal(JSONSchema(), &schema); err != nil {
			t.Fatal(err)
		}
		if strict {
			closeObjects(schema)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("compare.schema.json", schema); err != nil {
			t.Fatal(err)
		}
		s, err := c.Compile("compare.schema.json")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(instance); err != nil {
			t.Fatalf("strict %v: %v", strict, err)
		}
	}
}

// closeObjects forbids all fields that a schema does not describe.
func closeObjects(schema any) {
	switch s := schema.(type) {
	case map[string]any:
		if _, ok := s["properties"].(map[string]any); ok && s["type"] == "object" {
			s["additionalProperties"] = false
		}
		for _, v := range s {
			closeObjects(v)
		}
	case []any:
		for _, v := range s {
			closeObjects(v)
		}
	}
}

func checkJUnit(t *testing.T, b []byte, c *Comparison) {
	t.Helper()
	var got junitSuites
	if err := xml.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	counts := map[Verdict]int{}
	for _, f := range c.Figures {
		if f.Judged {
			counts[f.Verdict]++
		}
	}
	for _, j := range c.Conditions {
		counts[map[State]Verdict{Kept: Equivalent, Missed: Regression, CannotJudge: Invalid}[j.State]]++
	}
	all := 0
	for _, n := range counts {
		all += n
	}
	s := got.Suite
	if s.Tests != all || s.Tests != len(s.Cases) || s.Failures != counts[Regression] || s.Errors != counts[Invalid] || s.Skipped != counts[Inconclusive] {
		t.Errorf("%d tests, %d failures, %d errors, %d skipped, want %v", s.Tests, s.Failures, s.Errors, s.Skipped, counts)
	}
}

// benchmarkLine is a line as golang.org/x/perf reads it: the name, the iterations, and pairs of a value and a unit.
var benchmarkLine = regexp.MustCompile(`^Benchmark[A-Z]\S* 1( \S+ [a-z]\S*)+$`)

func checkBenchmarks(t *testing.T, text string) {
	t.Helper()
	lines := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "", strings.HasPrefix(line, "# "), strings.HasPrefix(line, "Unit "), regexp.MustCompile(`^[a-z]+: \S+$`).MatchString(line):
			continue
		case !benchmarkLine.MatchString(line):
			t.Errorf("no line of a benchmark: %q", line)
		}
		lines++
		fields := strings.Fields(line)
		seen := map[string]bool{}
		for i := 2; i < len(fields); i += 2 {
			if _, err := strconv.ParseFloat(fields[i], 64); err != nil {
				t.Errorf("%q: %v", line, err)
			}
			if seen[fields[i+1]] {
				t.Errorf("%q has the unit %s twice", line, fields[i+1])
			}
			seen[fields[i+1]] = true
		}
	}
	if lines == 0 {
		t.Error("no line")
	}
}

func TestEveryFormatTakesWhateverAResultHolds(t *testing.T) {
	x := &report.Result{Phases: []report.Phase{{Name: "up\n<b>`|", Kind: bufferbloat.Load}, {Kind: bufferbloat.Idle}, {Kind: "new", Name: "x"}}}
	for _, old := range [][]*report.Result{nil, {x}} {
		c := compared(t, old, []*report.Result{x, {}}, Options{FailIf: []Condition{condition(t, "loss > 1%")}})
		for _, write := range []func(io.Writer) error{c.WriteText, c.WriteMarkdown, c.WriteJUnit, c.WriteBenchstat} {
			if err := write(io.Discard); err != nil {
				t.Error(err)
			}
		}
		var b bytes.Buffer
		if err := c.WriteJSON(&b, ""); err != nil {
			t.Fatal(err)
		}
		validate(t, b.Bytes())
		if c.Status() != 4 {
			t.Errorf("status %d, want 4", c.Status())
		}
	}
}
