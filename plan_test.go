package bufferbloat

import (
	"encoding/json"
	"flag"
	"math"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/load"
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
	f := &p.Phases[0].Flows[1]
	f.Source, f.Interface = netip.MustParseAddr("192.0.2.7"), "wan1"
	p.Probes[1].Source, p.Probes[1].Interface = netip.MustParseAddr("192.0.2.8"), "wan2"
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
		{"closed loops alone", "add one with a schedule", func(o *SpeedtestOptions) { o.Probe = ClosedUDPRR }},
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
func TestOnlyEchoesMayComeEachMillisecond(t *testing.T) {
	for kind, want := range map[ProbeKind]time.Duration{ICMP: time.Millisecond, IRTT: time.Millisecond, Auto: 10 * time.Millisecond, TCP: 10 * time.Millisecond} {
		o := speedtestOptions()
		o.Probe, o.Interval = kind, want
		p := Speedtest(o)
		if err := p.Check(); err != nil {
			t.Errorf("%v every %v: %v", kind, want, err)
		}
		o.Interval = want - 1
		if p = Speedtest(o); p.Check() == nil {
			t.Errorf("%v every %v is accepted", kind, o.Interval)
		}
	}
}

func TestAPlanOfOnesOwnIsCheckedToo(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*Plan)
	}{
		{"a kind of phase that is none", `idle of kind "warmup"`, func(p *Plan) { p.Phases[0].Kind = "warmup" }},
		{"a flow that goes nowhere", `flow "download 1": want the direction`, func(p *Plan) { p.Phases[1].Flows[0].Direction = 0 }},
		{"a flow with a mark that is none", `flow "download 2" with DSCP 184`, func(p *Plan) { p.Phases[1].Flows[1].DSCP = 184 }},
		{"a probe with a mark that is none", `probe "ping" with DSCP 64`, func(p *Plan) { p.Probes[0].DSCP = 64 }},
		{"too many phases", `260 phases: want at most 256`, func(p *Plan) { p.Phases = append(p.Phases, make([]PhasePlan, 254)...) }},
		{"a further server without a name", `server "": want a name`, func(p *Plan) { p.Others[0].Name = "" }},
		{"two servers of one name", `server "far": want a name, and each name once`, func(p *Plan) { p.Others = append(p.Others, p.Others[0]) }},
		{"a further server without a host", `server "far": want a host`, func(p *Plan) { p.Others[0].Host = "" }},
		{"a further server without a port", `server "far": port 0`, func(p *Plan) { p.Others[0].IRTTPort = 0 }},
		{"a flow to a server that is not there", `flow "download 1" to server "near"`, func(p *Plan) { p.Phases[1].Flows[0].Server = "near" }},
		{"a probe of a server that is not there", `probe "ping" to server "near"`, func(p *Plan) { p.Probes[0].Server = "near" }},
		{"a probe with two targets", `goes to "a" and to server "far"`, func(p *Plan) { p.Probes[0].Server, p.Probes[0].Target = "far", "a" }},
		{"a flow of a family that is none", `flow "download 1": address family 5`, func(p *Plan) { p.Phases[1].Flows[0].Family = 5 }},
		{"a flow that begins too late", `begins at 30s, and its phase is over at 30s`, func(p *Plan) { p.Phases[1].Flows[0].Start = 30 * time.Second }},
		{"a flow that ends too late", `runs from 1s for 30s, and its phase is over at 30s`, func(p *Plan) {
			p.Phases[1].Flows[0].Start, p.Phases[1].Flows[0].Length = time.Second, 30*time.Second
		}},
		{"a flow before its phase", `no negative time`, func(p *Plan) { p.Phases[1].Flows[0].Start = -1 }},
		{"a probe that ends after the plan", `and the plan is over at 1m10s`, func(p *Plan) { p.Probes[0].Length = time.Hour }},
		{"an end beyond all time", `and the plan is over at`, func(p *Plan) { p.Probes[0].Start, p.Probes[0].Length = 1, math.MaxInt64 }},
		{"a protocol that is none", `of protocol "gopher"`, func(p *Plan) { p.Phases[1].Flows[0].Protocol = "gopher" }},
		{"iperf3 without a port", `no port for iperf3`, func(p *Plan) { p.Phases[1].Flows[0].Protocol = IPerf3 }},
		{"datagrams without a rate", `datagrams want a rate`, func(p *Plan) { p.Phases[1].Flows[0].Protocol = IPerf3UDP }},
		{"datagrams with congestion control", `datagrams have no congestion control`, func(p *Plan) {
			p.Phases[1].Flows[0] = FlowPlan{Name: "x", Direction: load.Upload, Protocol: IPerf3UDP, Rate: 1, CongestionControl: "reno"}
		}},
		{"a negative rate", `want a rate of 0 or more`, func(p *Plan) { p.Phases[1].Flows[0].Rate = -1 }},
		{"a congestion control that is no name", `congestion control "cubic; reboot"`, func(p *Plan) { p.Phases[1].Flows[0].CongestionControl = "cubic; reboot" }},
		{"a write too large", `of 1048577 bytes`, func(p *Plan) { p.Phases[1].Flows[0].Size = MaxWrite + 1 }},
		{"a URL of a flow that fetches nothing", `is no HTTP flow`, func(p *Plan) { p.Phases[1].Flows[0].URL = "http://a/" }},
		{"a URL that is none", `with URL "file:///etc/passwd"`, func(p *Plan) {
			p.Phases[1].Flows[0].Protocol, p.Phases[1].Flows[0].URL = HTTP, "file:///etc/passwd"
		}},
		{"a size of what has none", `a probe of kind tcp has no size`, func(p *Plan) { p.Probes[0].Kind, p.Probes[0].Size = TCP, 100 }},
		{"a query of what asks nothing", `looks up nothing`, func(p *Plan) { p.Probes[0].Query = "example.net" }},
		{"a flow from no address of anybody", `flow "download 1" from 0.0.0.0`, func(p *Plan) { p.Phases[1].Flows[0].Source = netip.IPv4Unspecified() }},
		{"a flow from an address of the other family", `flow "download 1" from 2001:db8::1: want an IPv4 address`, func(p *Plan) {
			p.Phases[1].Flows[0].Family, p.Phases[1].Flows[0].Source = 4, netip.MustParseAddr("2001:db8::1")
		}},
		{"a probe from an address of the other family than its server's", `probe "ping" from 192.0.2.1: want an IPv6 address`, func(p *Plan) {
			p.Others[0].Family, p.Probes[0].Server, p.Probes[0].Source = 6, "far", netip.MustParseAddr("192.0.2.1")
		}},
		{"a flow through what is no device", `flow "download 2" through "eth0; reboot"`, func(p *Plan) { p.Phases[1].Flows[1].Interface = "eth0; reboot" }},
		{"a device with a name that is too long", `through "abcdefghijklmnop"`, func(p *Plan) { p.Server.Interface = "abcdefghijklmnop" }},
		{"a page of what fetches nothing", `fetches nothing`, func(p *Plan) { p.Probes[0].URL = "http://a/" }},
	} {
		p := Speedtest(speedtestOptions())
		p.Others = []Server{{Name: "far", Host: "far.example.net", NetperfPort: 12865, IRTTPort: 2112}}
		c.change(&p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", c.name, err, c.want)
		}
	}
}

// TestWhatIsNotCarriedOutIsAnError keeps a flow that would run otherwise than planned from looking like a measurement.
func TestWhatIsNotCarriedOutIsAnError(t *testing.T) {
	p := Speedtest(speedtestOptions())
	if err := p.beyond(&Kinds{}); err != nil {
		t.Errorf("a speedtest: %v", err)
	}
	p.Speak(HTTP)
	if err := p.beyond(&Kinds{}); err == nil || !strings.Contains(err.Error(), `flow "download 1": protocol http`) {
		t.Errorf("got %v, want an error about the protocol", err)
	}
	if err := p.beyond(&Kinds{Flows: map[Protocol]FlowKind{HTTP: anyFlows{}}}); err != nil {
		t.Errorf("a speedtest over a protocol that is given: %v", err)
	}
	p.Speak(Netperf)
	p.Probes[0].Kind = "carrier pigeon"
	if err := p.beyond(&Kinds{}); err == nil || !strings.Contains(err.Error(), `probe "ping": kind carrier pigeon`) {
		t.Errorf("got %v, want an error about the probe", err)
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

// anyFlows is a kind of flow that is never run.
type anyFlows struct{}

func (anyFlows) Loaders([]AskedFlow) []AskedLoader { return nil }
