package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"bufferbloat/internal/yamlnode"
)

var update = flag.Bool("update", false, "write the golden files")

const example = `# Two queues at two rates.
batch:
  name: qdiscs
  title: FIFO against fq_codel
  plan: rrul
  hosts: 192.0.2.1
  set: {length: 10, marks: [EF, CS1]}
  env: {DEVICE: eth1}
  repetitions: 3
  order: abba
  pause: 5s
  before:
    - tc qdisc replace dev $DEVICE root $BLOAT_QDISC
    - {run: ethtool -K $DEVICE tso off, essential: false, timeout: 5}
  after: tc qdisc del dev $DEVICE root
  matrix:
    qdisc:
      - bfifo
      - name: fq_codel
        before: tc -s qdisc show
        env: {DEVICE: eth2}
        set: {marks: BE}
    rate: {set: rate, values: [1mbit, 20mbit]}
    kind:
      - {name: big, flags: ["--seed={repetition}"]}
      - {name: "far away/..", plan: tcp_upload, hosts: [a.example, b.example]}
  skip:
    - {kind: big, rate: 20mbit}
`

func read(t *testing.T, text string) *Batch {
	t.Helper()
	b, err := Read("b.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func runsOf(t *testing.T, b *Batch) []Run {
	t.Helper()
	runs, err := b.Runs()
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

func TestABatchUnfoldsToItsRuns(t *testing.T) {
	t.Parallel()
	b := read(t, example)
	var got strings.Builder
	for _, r := range runsOf(t, b) {
		fmt.Fprintf(&got, "%d repetition %d: %s\n  %s\n  %s\n", r.Number, r.Repetition, r.Label(), r.File, strings.Join(r.Args(), " "))
		for _, h := range r.Before {
			fmt.Fprintf(&got, "  before: %s (essential %v, %v)\n", h.Command, h.Essential, h.Timeout)
		}
		for _, h := range r.After {
			fmt.Fprintf(&got, "  after: %s (essential %v, %v)\n", h.Command, h.Essential, h.Timeout)
		}
		fmt.Fprintf(&got, "  %s\n", strings.Join(b.env(&r, 18, "/dir/"+r.File), " "))
	}
	const golden = "testdata/runs.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the runs are\n%s\nwant\n%s", got.String(), want)
	}
}

func order(t *testing.T, how string) string {
	t.Helper()
	b := read(t, "batch: {name: o, plan: p, repetitions: 4, "+how+", matrix: {x: [A, B, C]}}")
	var out strings.Builder
	for i, r := range runsOf(t, b) {
		if i > 0 && i%3 == 0 {
			out.WriteByte(' ')
		}
		out.WriteString(r.Values[0].Value)
	}
	return out.String()
}

func TestOrders(t *testing.T) {
	t.Parallel()
	if got := order(t, "order: listed"); got != "ABC ABC ABC ABC" {
		t.Errorf("listed: %s", got)
	}
	if got := order(t, "order: abba"); got != "ABC CBA ABC CBA" {
		t.Errorf("abba: %s", got)
	}
	seven, again, eight := order(t, "seed: 7"), order(t, "order: random, seed: 7"), order(t, "seed: 8")
	if seven != again || seven == eight {
		t.Errorf("seed 7 gives %s and %s, seed 8 %s: want the same order of the same seed alone", seven, again, eight)
	}
	for _, block := range strings.Fields(seven + " " + eight) {
		letters := strings.Split(block, "")
		if slices.Sort(letters); strings.Join(letters, "") != "ABC" {
			t.Errorf("the repetition %s does not hold every combination once", block)
		}
	}
}

func TestReadErrorsNameThePlace(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"an unknown key":           {"batch:\n  name: a\n  plan: p\n  repetition: 3\n", `b.yaml:4:3: unknown key "repetition"`},
		"a key beside":             {"batch: {name: a, plan: p}\nplan: x\n", `b.yaml:2:1: unknown key "plan": want one of batch`},
		"no name":                  {"batch:\n  plan: p\n", "b.yaml:2:3: no name"},
		"a name with a slash":      {"batch: {name: ../a, plan: p}\n", "b.yaml:1:15: \"../a\": want a name of letters"},
		"no plan":                  {"batch: {name: a}\n", "no plan is named"},
		"no plan for some":         {"batch: {name: a, matrix: {x: [{name: b, plan: p}, c]}}\n", "no plan is named"},
		"nothing":                  {"batch:\n", "want a batch"},
		"no repetition":            {"batch: {name: a, plan: p, repetitions: 0}\n", "b.yaml:1:40: want a whole number from 1 to 10000"},
		"too many runs":            {"batch: {name: a, plan: p, repetitions: 6000, matrix: {x: [a, b]}}\n", "12000 runs"},
		"another order":            {"batch: {name: a, plan: p, order: any}\n", `b.yaml:1:34: order "any"`},
		"an axis without values":   {"batch: {name: a, plan: p, matrix: {x: []}}\n", "axis x has no values"},
		"an axis with a bad name":  {"batch: {name: a, plan: p, matrix: {X: [a]}}\n", `axis "X"`},
		"an axis with a taken one": {"batch: {name: a, plan: p, matrix: {host: [a]}}\n", `axis "host"`},
		"a value twice":            {"batch: {name: a, plan: p, matrix: {x: [1, 1]}}\n", `the value "1" stands twice`},
		"a value of two lines":     {"batch: {name: a, plan: p, matrix: {x: [\"a\\nb\"]}}\n", "control characters"},
		"a value without a name":   {"batch: {name: a, plan: p, matrix: {x: [{plan: q}]}}\n", "no name: want a name for the value"},
		"a key of a value":         {"batch: {name: a, plan: p, matrix: {x: [{name: b, repetitions: 3}]}}\n", `unknown key "repetitions"`},
		"skip of no axis":          {"batch: {name: a, plan: p, matrix: {x: [a]}, skip: [{y: a}]}\n", `skip: no axis "y"`},
		"skip of no value":         {"batch: {name: a, plan: p, matrix: {x: [a]}, skip: [{x: b}]}\n", `has no value "b"`},
		"all is skipped":           {"batch: {name: a, plan: p, matrix: {x: [a]}, skip: [{x: a}]}\n", "are 0 runs"},
		"an empty command":         {"batch: {name: a, plan: p, before: \" \"}\n", "want a command"},
		"a timeout of a year":      {"batch: {name: a, plan: p, before: {run: x, timeout: 8760h}}\n", "want a time"},
		"our variables":            {"batch: {name: a, plan: p, env: {BLOAT_RUN: 1}}\n", "BLOAT_"},
	} {
		_, err := Read("b.yaml", []byte(tt.text))
		var e *yamlnode.Error
		if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &e) || e.Line == 0 {
			t.Errorf("%s: %v, want an error at its place with %q", name, err, tt.want)
		}
	}
}

func TestIs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{"batch: {}\n": true, "plan: {}\n": false, "batch\n": false, "": false, "batch: [\n": false,
		"# batch\nbatch: 1\nx: 2\n": true} {
		if got := Is([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestTheBatchInTheDocsIsOne(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/batch.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "```yaml\n")
	text, _, closed := strings.Cut(text, "```")
	if !ok || !closed {
		t.Fatal("docs/batch.md has no example")
	}
	if got := len(runsOf(t, read(t, text))); got != 15 {
		t.Errorf("it has %d runs, want 3 combinations 5 times", got)
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("index.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("index.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// checkIndex validates an index as it is written, and reads it again.
func checkIndex(t *testing.T, ix *Index) {
	t.Helper()
	b, err := json.Marshal(ix)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled(t).Validate(doc); err != nil {
		t.Error(err)
	}
	if _, err := ParseIndex(b); err != nil {
		t.Error(err)
	}
}

func TestSelectFindsTheRunsOfACombination(t *testing.T) {
	t.Parallel()
	ix, err := read(t, example).NewIndex("v1", []string{"--lab"}, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	for i := range ix.Runs {
		ix.Runs[i].State = Done
	}
	ix.Runs[0].State = Failed
	checkIndex(t, ix)
	for _, tt := range []struct {
		values string
		want   int
	}{{"", 17}, {"qdisc=bfifo", 8}, {"qdisc=fq_codel,rate=20mbit", 3}, {"kind=big,rate=20mbit", 0}} {
		if got, err := ix.Select(tt.values); err != nil || len(got) != tt.want {
			t.Errorf("%q: %d runs, %v, want %d", tt.values, len(got), err, tt.want)
		}
	}
	for values, want := range map[string]string{"queue=x": `no axis "queue": want AXIS=VALUE of qdisc, rate, kind`, "qdisc=x": "want one of bfifo, fq_codel", "bfifo": "no axis"} {
		if _, err := ix.Select(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", values, err, want)
		}
	}
}

func TestParseIndexRefusesFilesOutsideOfTheFolder(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../a.bloat.json.gz", "/etc/passwd", ".a.bloat.json.gz", "a/b.bloat.json.gz", "index.json", ""} {
		text := fmt.Sprintf(`{"schema":"bloat/batch/1","runs":[{"number":1,"file":%q,"state":"done"}]}`, name)
		if _, err := ParseIndex([]byte(text)); err == nil || !strings.Contains(err.Error(), "want the name of a recording") {
			t.Errorf("%q: %v, want it refused", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(example)
	f.Add("batch: {name: a, plan: p, matrix: {x: {set: y, values: [1, 2]}}, skip: [{x: 1}]}")
	f.Add("batch: {name: a, matrix: {x: [{name: b, plan: p}]}}")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := Read("b.yaml", []byte(text))
		if err != nil {
			return
		}
		if !Is([]byte(text)) {
			t.Errorf("%q is a batch and does not look like one", text)
		}
		runs, err := b.Runs()
		if err != nil {
			t.Fatalf("%q was read, and has no runs: %v", text, err)
		}
		files := map[string]bool{}
		for i, r := range runs {
			if r.Number != i+1 || r.Plan == "" || files[r.File] || !fileName.MatchString(r.File) || len(r.File) > 255 {
				t.Fatalf("%q: run %d is %+v: want a number, a plan and a file of its own", text, i+1, r)
			}
			files[r.File] = true
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"schema":"bloat/batch/1","axes":[{"name":"a","values":["b"]}],"runs":[{"number":1,"file":"1.bloat.json.gz","state":"done","values":[{"axis":"a","value":"b"}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		ix, err := ParseIndex(b)
		if err != nil {
			return
		}
		for _, r := range ix.Runs {
			if strings.ContainsAny(r.File, "/\\") || strings.HasPrefix(r.File, ".") {
				t.Errorf("%q: the file %q is not in the folder", b, r.File)
			}
		}
		if runs, err := ix.Select(""); err != nil || len(runs) > len(ix.Runs) {
			t.Errorf("%d runs, %v", len(runs), err)
		}
	})
}
