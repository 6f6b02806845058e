package planfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/load"
)

// someServers are n servers at the hosts of their numbers, from 1.
func someServers(n int, host func(i int) string) (list []bufferbloat.Server) {
	for i := range n {
		list = append(list, bufferbloat.Server{Host: host(i + 1)})
	}
	return list
}

func printed(t *testing.T, p *bufferbloat.Plan, help string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, p, help); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestEveryPlanOfTheCatalogueAsAFileIsTheSamePlan writes each plan for hosts that are not known yet, one that takes any number of them for three as well, and
// builds it from the file for some.
func TestEveryPlanOfTheCatalogueAsAFileIsTheSamePlan(t *testing.T) {
	valid := schemaOf(t)
	for _, d := range bufferbloat.Catalogue() {
		checkAsFile(t, &d, max(d.Servers, 1), valid)
		if d.MostServers > 3 && d.Servers < 3 {
			checkAsFile(t, &d, 3, valid)
		}
	}
}

func checkAsFile(t *testing.T, d *bufferbloat.Definition, servers int, valid func([]byte) error) {
	t.Helper()
	named := func(i int) string { return fmt.Sprintf("s%d.example.net", i) }
	open, err := d.Plan(someServers(servers, Host), nil)
	if err != nil {
		t.Fatalf("%s: %v", d.Name, err)
	}
	want, err := d.Plan(someServers(servers, named), nil)
	if err != nil {
		t.Fatalf("%s: %v", d.Name, err)
	}
	text := printed(t, &open, d.Help)
	again, err := Read(d.Name+".yaml", text)
	if err != nil {
		t.Errorf("%v in\n%s", err, text)
		return
	}
	got, err := again.Plan(someServers(servers, named), nil)
	if err != nil || again.Help != d.Help || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v; got\n%v\nwant\n%v\nof\n%s", d.Name, err, got.String(), want.String(), text)
	}
	if err := valid(text); err != nil {
		t.Errorf("%s as a file is not what its schema says: %v\n%s", d.Name, err, text)
	}
}

// schemaOf returns what checks a file's text against the published schema.
func schemaOf(t *testing.T) func([]byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("plan.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("plan.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(text []byte) error {
		var v any
		if err := yaml.Unmarshal(text, &v); err != nil {
			return err
		}
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		v, err = jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
}

const example = `schema: bloat/planfile/1
name: staircase
help: One flow more every few seconds
workload: staircase/1
parameters:
  - {name: streams, type: count, default: 3, help: flows}
  - {name: each, type: duration, default: 5s, help: time between the starts}
  - {name: marks, type: marks, default: "CS1,EF"}
  - {name: way, type: word, default: upload, choices: [upload, download]}
server: {host: a.example, netperf_port: 12866}
servers:
  - {name: far, host: b.example, family: 6, source: "2001:db8::1"}
phases:
  - {name: lead, kind: idle, length: 2}
  - name: load
    kind: load
    length: 1m
    skip: 1s
    flows:
      - name: ${way} $${n} ${n} of ${streams} to ${host}
        direction: ${way}
        count: ${streams}
        dscp: ${marks[n]}
        server: far
        start: ${each}
        rate: 5mbit
        bytes: 10M
        congestion_control: cubic
        source: 2001:db8::7
        interface: wan1
  - {name: drain, kind: drain, length: 1s}
probes:
  - {name: ping, kind: icmp, interval: 100ms, primary: yes, ecn: ECT(1)}
  - {name: "call", kind: irtt, interval: 20ms, size: 172, dscp: 46, start: 2s, length: 10s, optional: true, source: 192.0.2.7, interface: wan2}
`

func TestAFileSaysEverything(t *testing.T) {
	d, err := Read("x.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	if err := schemaOf(t)([]byte(example)); err != nil {
		t.Errorf("the schema: %v", err)
	}
	p, err := d.Plan(nil, map[string]string{"each": "3s"})
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "staircase" || p.Workload != "staircase/1" || p.Server.Host != "a.example" || p.Server.NetperfPort != 12866 || p.Server.IRTTPort != 2112 ||
		p.Others[0].Family != 6 || p.Others[0].Source.String() != "2001:db8::1" || p.Phases[0].Length != 2*time.Second || p.Phases[1].Skip != time.Second {
		t.Errorf("got %+v", p)
	}
	flow := bufferbloat.FlowPlan{Name: "upload ${n} 2 of 3 to b.example", Direction: load.Upload, DSCP: dscp.EF, Server: "far", Start: 3 * time.Second,
		Rate: 5 * bitrate.Mbit, Bytes: 10e6, CongestionControl: "cubic", Source: netip.MustParseAddr("2001:db8::7"), Interface: "wan1"}
	if flows := p.Phases[1].Flows; len(flows) != 3 || flows[1] != flow || flows[2].DSCP != 0 {
		t.Errorf("got flows %+v, want the second one to be %+v", flows, flow)
	}
	probes := []bufferbloat.ProbePlan{
		{Name: "ping", Kind: bufferbloat.ICMP, Interval: 100 * time.Millisecond, Primary: true, ECN: host.ECT1},
		{Name: "call", Kind: bufferbloat.IRTT, Interval: 20 * time.Millisecond, Size: 172, DSCP: dscp.EF, Start: 2 * time.Second, Length: 10 * time.Second, Optional: true,
			Source: netip.MustParseAddr("192.0.2.7"), Interface: "wan2"},
	}
	if !slices.Equal(p.Probes, probes) {
		t.Errorf("got probes %+v, want %+v", p.Probes, probes)
	}
	if p, err = d.Plan([]bufferbloat.Server{{Host: "c.example", NetperfPort: 7}}, nil); err != nil || p.Server.Host != "c.example" || p.Server.NetperfPort != 7 ||
		p.Others[0].Host != "b.example" {
		t.Errorf("with a server of -H: %v, %+v", err, p.Server)
	}
	text := printed(t, &p, d.Help)
	again, err := Read("y.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Plan(nil, nil); err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("written and read again: %v, got %+v, want %+v, by\n%s", err, got, p, text)
	}
}

func TestErrorsOfAFileHaveTheirPlace(t *testing.T) {
	const head = "name: x\nphases:\n  - {name: load, kind: load, length: 10s, flows: [{name: a, direction: upload}]}\n"
	with := func(old, new string) string { return strings.Replace(example, old, new, 1) }
	for name, c := range map[string]struct{ text, want string }{
		"an unknown key":                        {with("skip: 1s", "skpi: 1s"), `x.yaml:18:5: unknown key "skpi": want one of flows, name, kind, length, skip`},
		"an unknown key of a flow":              {with("rate: 5mbit", "rates: 5mbit"), `x.yaml:26:9: unknown key "rates"`},
		"an unknown key at the top":             {with("help:", "hlep:"), `x.yaml:3:1: unknown key "hlep"`},
		"a key twice":                           {with("workload: staircase/1", "name: y"), `x.yaml:4:1: the key "name" stands twice`},
		"no name":                               {with("name: staircase\n", ""), `x.yaml:1:1: the plan has no name`},
		"another schema":                        {with("planfile/1", "planfile/2"), `x.yaml:1:9: schema "bloat/planfile/2": want bloat/planfile/1`},
		"a list for a text":                     {with("kind: idle", "kind: [idle]"), `x.yaml:14:24: want a text or a number`},
		"a text for a list":                     {head + "probes: none\n", `x.yaml:4:9: want a list`},
		"a time without a unit that it has":     {with("length: 1m", "length: 1 minute"), `x.yaml:17:13: "1 minute": want a time`},
		"a negative time":                       {with("skip: 1s", "skip: -1s"), `x.yaml:18:11: "-1s": want a time`},
		"a rate without a unit":                 {with("rate: 5mbit", "rate: 5"), `x.yaml:26:15: bitrate "5": want a number and a unit`},
		"a mark that is none":                   {with("dscp: 46", "dscp: 184"), `DSCP "184"`},
		"a mark from a parameter that is none":  {with("CS1,EF", "CS1,nice"), `x.yaml:8:41: default of parameter marks: DSCP "nice"`},
		"a direction that is none":              {with("direction: ${way}", "direction: sideways"), `x.yaml:21:20: "sideways": want download or upload`},
		"ECN that is none":                      {with("ECT(1)", "ECT"), `ECN "ECT": want`},
		"a port that is none":                   {with("12866", "0"), `x.yaml:10:41: port "0": want 1 to 65535`},
		"an address that is none":               {with(`"2001:db8::1"`, "eth0"), `x.yaml:12:53: ParseAddr`},
		"a parameter without a type":            {with("type: count", "help2: x"), `unknown key "help2"`},
		"a type that is none":                   {with("type: count", "type: int"), `x.yaml:6:5: parameter streams of type "int": want one of [duration count`},
		"a default that is none":                {with("default: 3", "default: few"), `x.yaml:6:43: default of parameter streams: "few"`},
		"a default that is no choice":           {with("default: upload", "default: up"), `default of parameter way: "up": want one of upload, download`},
		"a parameter twice":                     {with("name: each", "name: streams"), `x.yaml:7:5: parameter "streams" is declared twice`},
		"a parameter that is not declared":      {with("start: ${each}", "start: ${eahc}"), `x.yaml:25:16: ${eahc}: no parameter "eahc" is declared`},
		"a parameter that would hide the count": {with("name: each", "name: n"), `parameter "n": want a name`},
		"a brace that is open":                  {with("start: ${each}", "start: ${each"), `x.yaml:25:16: "${each": want a } after ${`},
		"a number outside a count":              {with("length: 1m", "length: ${n}"), `a phase has no number`},
		"a member outside a count":              {with("length: 1m", "length: ${marks[n]}"), `a phase has no number`},
		"a name for the plan's own server":      {with("server: {host: a", "server: {name: q, host: a"), `the plan's own server has no name`},
		"two documents":                         {head + "---\nname: y\n", `a second document`},
		"an alias without end":                  {"name: &a [*a]\n", `x.yaml:`},
		"nothing":                               {"", `x.yaml: it is empty`},
		"what is no YAML":                       {"name: [", `x.yaml:`},
		"too many phases":                       {"name: x\nphases: [" + strings.Repeat("{name: a, kind: idle, length: 1}, ", 300) + "]\n", `x.yaml:2:9: 300 phases: want at most 256`},
		"too many flows": {"name: x\nphases: [" + strings.Repeat("{name: a, kind: load, length: 1, flows: [{name: a, direction: upload, count: 1000}]}, ", 12) + "]\n",
			`more than 10000 flows in all`},
		"a count that is none": {with("count: ${streams}", "count: all"), `x.yaml:22:16: "all": want a whole number`},
	} {
		_, err := Read("x.yaml", []byte(c.text))
		typed := (*Error)(nil)
		if err == nil || !errors.As(err, &typed) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an *Error with %q", name, err, c.want)
		}
	}
}

// TestWhatOnlyAParameterMakesWrongIsToldWhenItIsGiven asks for the place of the value, too.
func TestWhatOnlyAParameterMakesWrongIsToldWhenItIsGiven(t *testing.T) {
	d, err := Read("x.yaml", []byte(strings.Replace(example, "name: way, type: word, default: upload, choices: [upload, download]", "name: way, type: word, default: upload", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ key, value, want string }{
		{"way", "sideways", `x.yaml:21:20: "sideways": want download or upload`},
		{"each", "61s", `begins at 1m1s, and its phase is over at 1m0s`},
		{"streams", "0", `load with 0 streams`},
		{"streams", "5000", `load with 1001 streams`},
		{"way", strings.Repeat("a", 999), `want download or upload`},
	} {
		if _, err := d.Plan(nil, map[string]string{c.key: c.value}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: got %v, want %q", c.key, c.value, err, c.want)
		}
	}
}

func TestAFileWithoutHostsAsksForThem(t *testing.T) {
	d, err := Read("x.yaml", []byte("name: x\nservers: [{name: far}]\nphases: [{name: idle, kind: idle, length: 1s}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Plan(nil, nil); err == nil || !strings.Contains(err.Error(), "no host for server 1") {
		t.Errorf("without servers: %v", err)
	}
	if _, err := d.Plan(someServers(1, func(int) string { return "a" }), nil); err == nil || !strings.Contains(err.Error(), "no host for server 2") {
		t.Errorf("with one server: %v", err)
	}
	p, err := d.Plan(someServers(2, func(i int) string { return fmt.Sprint("h", i) }), nil)
	if err != nil || p.Server.Host != "h1" || p.Others[0].Name != "far" || p.Others[0].Host != "h2" {
		t.Errorf("with two: %v, %+v %+v", err, p.Server, p.Others)
	}
}

// TestTheSchemaRefusesWhatReadRefuses keeps the two from drifting apart where a schema can tell.
func TestTheSchemaRefusesWhatReadRefuses(t *testing.T) {
	valid := schemaOf(t)
	for _, change := range [][2]string{{"skip: 1s", "skpi: 1s"}, {"name: staircase\n", ""}, {"planfile/1", "planfile/2"}, {"kind: idle", "kind: [idle]"},
		{"length: 1m", "length: 1 minute"}, {"12866", "0"}, {"type: count", "type: int"}, {"dscp: 46", "dscp: 184"}, {"ECT(1)", "ECT"},
		{"direction: ${way}", "direction: sideways"}, {"name: each", "name: n"}, {"server: {host: a", "server: {name: q, host: a"}} {
		text := strings.Replace(example, change[0], change[1], 1)
		if err := valid([]byte(text)); err == nil {
			t.Errorf("%q in place of %q: the schema takes it", change[1], change[0])
		}
	}
}

// TestTheSchemaKnowsAllKeys compares the keys of the schema with those that are read.
func TestTheSchemaKnowsAllKeys(t *testing.T) {
	var doc struct {
		Defs map[string]struct {
			Properties map[string]any
		} `json:"$defs"`
	}
	if err := json.Unmarshal(JSONSchema(), &doc); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{"server": keysOf(serverFields()), "phase": keysOf(phaseFields(), "flows"), "flow": keysOf(flowFields(), "count"),
		"probe": keysOf(probeFields(), "count")} {
		var got []string
		for key := range doc.Defs[name].Properties {
			got = append(got, key)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the schema has %v, a file %v", name, got, want)
		}
	}
}

func keysOf[T any](fields []field[T], more ...string) []string {
	for _, f := range fields {
		more = append(more, f.key)
	}
	return more
}

// FuzzRead's property: what is read either says what is wrong with it, or builds a plan that is the same after it was written and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("name: x\nparameters: [{name: a, type: words, default: \"1,2\"}]\nphases: [{name: ${a}, kind: idle, length: 1}]\nprobes: [{name: \"${n}${a[n]}\", kind: icmp, count: 3, interval: 1}]\n"))
	f.Add([]byte("name: \"$${host}\"\nphases: [{name: $${, kind: idle, length: 1}]\n"))
	for _, name := range []string{"rrul", "tcp_upload_1000", "bursts", "rtt_fair"} {
		d, _ := bufferbloat.Find(name)
		p, err := d.Plan(someServers(max(d.Servers, 1), Host), nil)
		if err != nil {
			f.Fatal(err)
		}
		var b bytes.Buffer
		if err := Write(&b, &p, d.Help); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Read("fuzz.yaml", b)
		if err != nil {
			if typed := (*Error)(nil); !errors.As(err, &typed) {
				t.Errorf("an error without a place: %v", err)
			}
			return
		}
		servers := someServers(max(len(d.Own), 1), func(i int) string { return fmt.Sprintf("h%d.example", i) })
		p, err := d.Plan(servers, nil)
		if err != nil {
			return
		}
		text := printed(t, &p, d.Help)
		again, err := Read("again.yaml", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		got, err := again.Plan(nil, nil)
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Errorf("%v: got\n%+v\nwant\n%+v\nby\n%s", err, got, p, text)
		}
	})
}

// TestTheExampleOfTheDocs keeps the example of docs/plans.md true.
func TestTheExampleOfTheDocs(t *testing.T) {
	doc, err := os.ReadFile("../docs/plans.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, part := range strings.Split(string(doc), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		d, err := Read("docs/plans.md", []byte(text))
		if err != nil {
			t.Errorf("%v in\n%s", err, text)
			continue
		}
		if err := schemaOf(t)([]byte(text)); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
		if _, err := d.Plan(someServers(len(d.Own), func(i int) string { return fmt.Sprint("h", i) }), nil); err != nil {
			t.Errorf("%v in\n%s", err, text)
		}
		n++
	}
	if n == 0 {
		t.Error("no example")
	}
}

func TestWhatContradictsItselfHasItsPlace(t *testing.T) {
	const text = `name: t
parameters:
  - {name: start, type: duration, default: 1s}
servers:
  - {name: far, host: far.example}
  - {name: far, host: other.example}
phases:
  - {name: load, kind: load, length: 3s, flows: [
      {name: up, direction: upload, start: "${start}"},
      {name: many, direction: upload, count: 9}]}
  - {name: load, kind: dran}
probes:
  - {name: ICMP, kind: icmp, interval: 200ms}
  - {name: echo, kind: icpm, interval: 200ms}
`
	d, err := Read("t.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Plan([]bufferbloat.Server{{Host: "server.example"}}, map[string]string{"start": "5s"})
	if err == nil {
		t.Fatal("it was taken")
	}
	var got []string
	for line := range strings.Lines(err.Error()) {
		place, _, _ := strings.Cut(line, ": ")
		got = append(got, place)
	}
	if want := []string{"t.yaml:6:5", "t.yaml:9:7", "t.yaml:10:7", "t.yaml:11:5", "t.yaml:11:5", "t.yaml:14:5"}; !slices.Equal(got, want) {
		t.Errorf("got the places %v, want %v, in\n%v", got, want, err)
	}
}
