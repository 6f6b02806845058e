package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bufferbloat/load"
)

func TestAResultReadBackPrintsTheSameDocument(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ReadResult(bytes.NewReader(want))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got bytes.Buffer
		if err := r.WriteJSON(&got); err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(want, []byte(",\n  \"improvement\"")); i >= 0 { // it is of two runs, and is not read
			want = append(want[:i:i], "\n}\n"...)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s comes back as\n%s", name, firstDifference(got.String(), string(want)))
		}
		if !IsResult(want) || !IsResult(got.Bytes()[:64]) {
			t.Errorf("%s is not taken for a result", name)
		}
		var text bytes.Buffer
		if err := errors.Join(r.WriteSpeedtest(&text), r.WriteTable(&text), r.WriteMarkdown(&text), r.WriteCSV(&text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			return strings.Join(g[max(0, i-2):min(len(g), i+3)], "\n") + "\nwant\n" + strings.Join(w[max(0, i-2):min(len(w), i+3)], "\n")
		}
	}
	return "(a part of it)"
}

func TestARateWithItsIntervalComesBack(t *testing.T) {
	r := New(fifoRun())
	g := &r.Phases[1].Goodput[0]
	g.Range = RateRange{OK: true, Low: g.Rate - 1000, High: g.Rate + 2000, NEff: 17.5, Weak: true}
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	validate(t, b.Bytes())
	back, err := ReadResult(&b)
	if err != nil || back.Phases[1].Goodput[0].Range != g.Range || back.Phases[1].Goodput[0].Direction != load.Download {
		t.Errorf("%+v, %v, want %+v", back.Phases[1].Goodput[0].Range, err, g.Range)
	}
}

func TestAnImprovementOverAReadResultIsNoMoreCertain(t *testing.T) {
	after := New(fqCodelRun())
	var b bytes.Buffer
	if err := New(fifoRun()).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	read, err := ReadResult(&b)
	if err != nil {
		t.Fatal(err)
	}
	full, narrow := Improvement(New(fifoRun()), after), Improvement(read, after)
	for i := range full.Phases {
		f, n := full.Phases[i].Plain, narrow.Phases[i].Plain
		if n.State != f.State || n.Value != f.Value || n.Low > f.Low*1.005 || n.High < f.High*0.995 {
			t.Errorf("%s: from the document %+v, from the recording %+v", full.Phases[i].Phase, n, f)
		}
	}
}

func TestReadResultRefusesWhatIsNotTrue(t *testing.T) {
	good, err := os.ReadFile("testdata/fifo.json")
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(old, now string) string {
		if !bytes.Contains(good, []byte(old)) {
			t.Fatalf("the document has no %s", old)
		}
		return strings.Replace(string(good), old, now, 1)
	}
	for _, tt := range []struct{ name, doc, want string }{
		{"nothing", "", "unexpected EOF"},
		{"no JSON", "hello", "invalid character"},
		{"cut off", string(good[:len(good)/2]), "unexpected EOF"},
		{"another document", `{"schema": "bloat/result/2"}`, ErrNotResult.Error()},
		{"no object", `[1, 2]`, ErrNotResult.Error()},
		{"a key twice", replaced(`"status": 0`, `"status": 0, "status": 4`), `"status" is there twice`},
		{"a key twice, in other letters", replaced(`"status": 0`, `"status": 0, "Status": 4`), `"Status" is there twice`},
		{"two documents", string(good) + string(good), "something follows"},
		{"too deep", strings.Repeat("[", 1000) + strings.Repeat("]", 1000), "nested more than"},
		{"a status of another kind", replaced(`"status": 0`, `"status": "0"`), "status"},
		{"a status that is none", replaced(`"status": 0`, `"status": 1000`), "no exit status"},
		{"counts that do not add up", replaced(`"received": `, `"received": 1`), "do not add up"},
		{"a negative rate", replaced(`"goodput_bps": 1`, `"goodput_bps": -1`), "negative rate"},
		{"a loss above 1", replaced(`"loss": 0`, `"loss": 10`), "a loss of 10"},
		{"quantiles out of order", replaced(`"rtt_min_ns": 40`, `"rtt_min_ns": 4000`), "out of order"},
		{"a time of no run", replaced(`"start_ns": 0`, `"start_ns": -5`), "outside 0"},
		{"a start that is no time", replaced(`"started": "2026`, `"started": "yesterday 2026`), "started"},
		{"a direction that is none", replaced(`"direction": "download"`, `"direction": "sideways"`), "sideways"},
		{"a number too large", replaced(`"rtt_max_ns": 40`, `"rtt_max_ns": 1e400, "x": 40`), "cannot unmarshal"},
	} {
		_, err := ReadResult(strings.NewReader(tt.doc))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if d := (*DocumentError)(nil); !errors.As(err, &d) {
			t.Errorf("%s: %T, want a *DocumentError", tt.name, err)
		}
	}
	if _, err := ReadResult(strings.NewReader(replaced(`"status": 0`, `"status": 0, "a_field_of_tomorrow": {"a": [1]}`))); err != nil {
		t.Errorf("a field that is not known yet: %v", err)
	}
	for _, head := range []string{"", "{", `{"schema": "bloat/compare/1"`, `{"status": 0, "schema": "bloat/result/1"}`, "ping"} {
		if IsResult([]byte(head)) {
			t.Errorf("%q is taken for a result", head)
		}
	}
}

// What is read is printed again, in every format and without harm, as a document that is read as the same.
func FuzzReadResult(f *testing.F) {
	for _, name := range []string{"error", "idle"} { // small ones: the engine takes long to cut down large ones
		b, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		var small bytes.Buffer
		if err := json.Compact(&small, b); err != nil {
			f.Fatal(err)
		}
		f.Add(small.Bytes())
	}
	f.Add([]byte(`{"schema":"bloat/result/1","path":{},"plan":{"phases":[{"flows":[{"direction":"upload"}]}]},"phases":[{"name":"a","kind":"load","goodput":[{"direction":"upload",` +
		`"goodput_bps":5,"goodput_interval":{"low_bps":4,"high_bps":6},"flows":[{"name":"b","bytes":7}]}]}]}`))
	f.Add([]byte(`{"schema":"bloat/result/1","status":4,"phases":[{"name":"idle","kind":"idle","latency":[{"n":1,"stated":true,"rtt_median_ns":5}]}]}`))
	f.Add([]byte(`{"schema":"bloat/result/1","hops":[{"phase":"a","hop":1,"induced_median_ns":5,"step_ns":5,"queue":true}],"directions":[{"up_induced_median_ns":1,` +
		`"down_induced_median_ns":2,"clock_drift_ns":3,"doubt":true}],"page_scores":[{"score":5,"idle":{"n":1},"loaded":{"n":2,"unsent":1}}],"phases":[{"name":"a","kind":"load",` +
		`"voice":[{"series":"x","up":{"mos":4.1,"loss":0.1,"one_way_median_ns":7},"down":{"reason":"y"}}]}],"probes":[{"name":"x","ecn":"CE","hop":1,"marks":[{"ds":3,"count":1}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ReadResult(bytes.NewReader(b))
		if err != nil {
			return
		}
		var once, twice, text bytes.Buffer
		if err := r.WriteJSON(&once); err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		again, err := ReadResult(bytes.NewReader(once.Bytes()))
		if err != nil {
			t.Fatalf("what was written can't be read: %v\n%s", err, once.Bytes())
		}
		if err := again.WriteJSON(&twice); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(once.Bytes(), twice.Bytes()) {
			t.Fatalf("it changes: %s", firstDifference(twice.String(), once.String()))
		}
		if err := errors.Join(r.WriteSpeedtest(&text), r.WriteTable(&text), r.WriteCSV(&text), Improvement(r, r).WriteText(&text)); err != nil {
			t.Fatal(err)
		}
	})
}
