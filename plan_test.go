package bufferbloat

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/dscp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

func speedtestOptions() SpeedtestOptions {
	return SpeedtestOptions{Server: Server{Host: "netperf.example.net", NetperfPort: 12865, IRTTPort: 2112}, Idle: 5 * time.Second,
		Length: 30 * time.Second, Streams: 2, Interval: 100 * time.Millisecond, Probe: Auto}
}

func TestAPlanPrintsItself(t *testing.T) {
	p := Speedtest(speedtestOptions())
	golden(t, "plan-speedtest.txt", p.String())
	o := speedtestOptions()
	o.Concurrent, o.PingHost, o.DSCP, o.Idle = true, "ping.example.net", dscp.EF, 0
	p = Speedtest(o)
	golden(t, "plan-concurrent.txt", p.String())
}

func TestAPlanIsCheckedBeforeAnythingIsSent(t *testing.T) {
	good := Speedtest(speedtestOptions())
	if err := good.Check(); err != nil {
		t.Fatalf("the default plan: %v", err)
	}
	for _, c := range []struct {
		name, want string
		change     func(*SpeedtestOptions)
	}{
		{"no server", "no server", func(o *SpeedtestOptions) { o.Server.Host = "" }},
		{"no time", "download for 0s", func(o *SpeedtestOptions) { o.Length = 0 }},
		{"no streams", "0 streams", func(o *SpeedtestOptions) { o.Streams = 0 }},
		{"too many streams", "100000 streams", func(o *SpeedtestOptions) { o.Streams = 100000 }},
		{"too long", "download for 25h", func(o *SpeedtestOptions) { o.Length = 25 * time.Hour }},
		{"probes too fast", "every 1ms", func(o *SpeedtestOptions) { o.Interval = time.Millisecond }},
		{"an unknown probe", `"carrier pigeon"`, func(o *SpeedtestOptions) { o.Probe = "carrier pigeon" }},
		{"a port that is none", "port 0", func(o *SpeedtestOptions) { o.Server.IRTTPort = 0 }},
		{"a family that is none", "family 5", func(o *SpeedtestOptions) { o.Server.Family = 5 }},
	} {
		o := speedtestOptions()
		c.change(&o)
		p := Speedtest(o)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.want)
		}
	}
}

// TestAPlanOfOnesOwnIsCheckedToo changes what no option of a speedtest reaches.
func TestAPlanOfOnesOwnIsCheckedToo(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*Plan)
	}{
		{"a kind of phase that is none", `idle of kind "warmup"`, func(p *Plan) { p.Phases[0].Kind = "warmup" }},
		{"a flow that goes nowhere", `flow "download 1": want the direction`, func(p *Plan) { p.Phases[1].Flows[0].Direction = 0 }},
		{"a flow with a mark that is none", `flow "download 2" with DSCP 184`, func(p *Plan) { p.Phases[1].Flows[1].DSCP = 184 }},
		{"a probe with a mark that is none", `probe "ping" with DSCP 64`, func(p *Plan) { p.Probes[0].DSCP = 64 }},
	} {
		p := Speedtest(speedtestOptions())
		c.change(&p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.want)
		}
	}
}

func TestAPlanIsStoredWhole(t *testing.T) {
	want := Speedtest(speedtestOptions())
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Plan
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestANameThatCouldConfuseATerminalIsQuoted(t *testing.T) {
	for s, want := range map[string]string{"plain.example": "plain.example", "a\x1b[2Jb": `"a\x1b[2Jb"`, "Zürich": `"Z\u00fcrich"`, "a\nb": `"a\nb"`} {
		if got := quoteOdd(s); got != want {
			t.Errorf("%q prints as %s, want %s", s, got, want)
		}
	}
}
