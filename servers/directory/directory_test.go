package directory

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func builtInList(t *testing.T) *Directory {
	t.Helper()
	d, err := BuiltIn()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("servers.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("servers.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheListIsOfItsSchema(t *testing.T) {
	t.Parallel()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(builtIn))
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled(t).Validate(doc); err != nil {
		t.Error(err)
	}
	written, err := json.Marshal(builtInList(t))
	if err != nil {
		t.Fatal(err)
	}
	again, err := jsonschema.UnmarshalJSON(bytes.NewReader(written))
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled(t).Validate(again); err != nil {
		t.Errorf("as written again: %v", err)
	}
	if !reflect.DeepEqual(doc, again) {
		t.Error("the list changes when it is read and written: an entry has a key that the schema or the struct lacks")
	}
}

func TestRulesOfServersThatForbidAutomationStandInTheList(t *testing.T) {
	t.Parallel()
	d := builtInList(t)
	for _, name := range []string{"netperf.bufferbloat.net", "NETPERF.bufferbloat.net.", "netperf-east.bufferbloat.net", "netperf-west.bufferbloat.net",
		"netperf-eu.bufferbloat.net", "flent-fremont.bufferbloat.net", "flent-tokyo.bufferbloat.net", "de.starlink.taht.net", "mumbai.starlink.taht.net"} {
		e, ok := d.Find(name)
		if !ok {
			t.Errorf("%s is not in the list", name)
			continue
		}
		if err := e.Permit(Use{}); err != nil {
			t.Errorf("%s: one run by hand: %v", name, err)
		}
		var refused *RefusedError
		if err := e.Permit(Use{Automation: "--repeat"}); !errors.As(err, &refused) || !strings.Contains(err.Error(), e.Policy) {
			t.Errorf("%s: repeated: %v, want a refusal with the policy", name, err)
		}
	}
	if e, ok := d.Find("192.0.2.1"); ok {
		t.Errorf("192.0.2.1 is %+v, want nothing", e)
	}
}

func TestPermit(t *testing.T) {
	t.Parallel()
	yes, no, limit := true, false, 13
	for name, tt := range map[string]struct {
		entry Entry
		use   Use
		want  string // in the error; "" for none
	}{
		"automation that is allowed":           {Entry{AllowsAutomation: &yes}, Use{Automation: "a batch"}, ""},
		"automation that is forbidden":         {Entry{AllowsAutomation: &no}, Use{Automation: "a batch"}, "allows no automation, and a batch is"},
		"automation of which nothing is known": {Entry{}, Use{Automation: "a sweep"}, "is not known"},
		"a run by hand":                        {Entry{AllowsAutomation: &no}, Use{Load: time.Hour}, ""},
		"a load as long as it may be":          {Entry{MaxSeconds: &limit}, Use{Load: 13 * time.Second}, ""},
		"a load that is too long":              {Entry{MaxSeconds: &limit}, Use{Load: 14 * time.Second}, "13 s of load"},
	} {
		got := ""
		if err := tt.entry.Permit(tt.use); err != nil {
			got = err.Error()
		}
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestOfSeveralEntriesOfAHostTheStrictestCounts(t *testing.T) {
	t.Parallel()
	yes, no, name := true, false, "a.example"
	d := Directory{Servers: []Entry{{ID: "1", Host: &name, AllowsAutomation: &yes}, {ID: "2", Host: &name, AllowsAutomation: &no}}}
	if e, ok := d.Find("a.example"); !ok || e.ID != "2" {
		t.Errorf("got %+v, want the entry that forbids", e)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	entry := func(change string) string {
		return `{"schema":"bloat/servers/1","servers":[{"id":"a","protocol":"netperf","host":"a.example","policy":"p","source":"s"` + change + `}]}`
	}
	if _, err := Parse([]byte(entry(""))); err != nil {
		t.Fatalf("the plain entry: %v", err)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"a rule that is mistyped":   {entry(`,"allow_automation":false`), "unknown field"},
		"another schema":            {`{"schema":"x","servers":[]}`, "schema"},
		"something behind":          {entry("") + "{}", "after its end"},
		"an entry without a policy": {`{"schema":"bloat/servers/1","servers":[{"id":"a","protocol":"netperf","host":"a","source":"s"}]}`, "policy"},
		"an entry without a host":   {`{"schema":"bloat/servers/1","servers":[{"id":"a","protocol":"netperf","policy":"p","source":"s"}]}`, "host"},
		"a family 5":                {entry(`,"families":[5]`), "families"},
		"port 0":                    {entry(`,"port":0`), "port 0"},
		"no JSON":                   {"[Batch]", "byte"},
		"a day that is none":        {entry(`,"checked":"2026-13-01"`), "checked"},
		"too much":                  {strings.Repeat(" ", maxFile+1), "bytes"},
	} {
		if _, err := Parse([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(builtIn)
	f.Add([]byte(`{"schema":"bloat/servers/1","servers":[{"id":"a","protocol":"netperf","host":"a.example","policy":"p","source":"s","families":[4]}]}`))
	f.Add([]byte(`{"schema":"bloat/servers/1","servers":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(again)
		if err != nil || !reflect.DeepEqual(got, d) {
			t.Errorf("%s parses to %+v, which is written as %s and then parses to %+v, %v", b, d, again, got, err)
		}
	})
}

func TestTheListInTheDocsIsOne(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/servers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "```json\n")
	text, _, closed := strings.Cut(text, "```")
	if !ok || !closed {
		t.Fatal("docs/servers.md has no example")
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled(t).Validate(doc); err != nil {
		t.Error(err)
	}
	if _, err := Parse([]byte(text)); err != nil {
		t.Error(err)
	}
}
