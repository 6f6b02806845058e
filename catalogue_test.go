package bufferbloat

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// someServers are as many servers as a definition wants.
func someServers(d Definition) (list []Server) {
	for i := range max(d.Servers, 1) {
		list = append(list, Server{Host: fmt.Sprintf("s%d.example.net", i+1), NetperfPort: 12865, IRTTPort: 2112, IPerf3Port: 5201})
	}
	return list
}

// TestEveryPlanOfTheCataloguePrintsItself keeps what each plan sends, by default, as a text for people.
func TestEveryPlanOfTheCataloguePrintsItself(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range Catalogue() {
		if seen[d.Name] || d.Help == "" || strings.Contains(d.Help, "\n") {
			t.Errorf("%s: twice, or without one line of help: %q", d.Name, d.Help)
		}
		seen[d.Name] = true
		p, err := d.Plan(someServers(d), nil)
		if err != nil {
			t.Errorf("%s: %v", d.Name, err)
			continue
		}
		if p.Name != d.Name {
			t.Errorf("%s makes a plan %q", d.Name, p.Name)
		}
		golden(t, "catalogue/"+d.Name+".txt", p.String())
	}
	files, err := filepath.Glob("testdata/catalogue/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".txt"); !seen[name] {
			t.Errorf("%s: the catalogue has no such plan", f)
			if *update {
				os.Remove(f)
			}
		}
	}
}

func TestEveryParameterIsDeclaredAndHasAGoodDefault(t *testing.T) {
	for _, d := range Catalogue() {
		for _, p := range d.Parameters {
			if p.Help == "" || strings.Contains(p.Help, "\n") {
				t.Errorf("%s: parameter %s: help %q", d.Name, p.Name, p.Help)
			}
			if _, err := p.parse(p.Default); err != nil {
				t.Errorf("%s: default of %v", d.Name, err)
			}
		}
		for _, name := range []string{"length", "lead", "step"} {
			if _, ok := d.Parameter(name); !ok {
				t.Errorf("%s has no parameter %s", d.Name, name)
			}
		}
		if got, ok := Find(d.Name); !ok || got.Help != d.Help {
			t.Errorf("%s is not found", d.Name)
		}
	}
}

// TestEveryPlanHasOneSeriesForTheTables asks for a primary probe in each plan that has any.
func TestEveryPlanHasOneSeriesForTheTables(t *testing.T) {
	for _, d := range Catalogue() {
		p, err := d.Plan(someServers(d), nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, pr := range p.Probes {
			if pr.Primary {
				n++
			}
		}
		if n != min(len(p.Probes), 1) {
			t.Errorf("%s has %d primary probes of %d", d.Name, n, len(p.Probes))
		}
	}
}

func TestParametersReachThePlan(t *testing.T) {
	for _, c := range []struct {
		name string
		set  string // "key=value key=value"
		want string // in the plan's text
	}{
		{"rrul", "length=10", "5s to      15s    flow  upload BE"},
		{"rrul", "lead=2s", "drain"},
		{"rrul", "step=100ms", "udp to s1.example.net every 100ms, EF"},
		{"rrul", "cc=bbr", "download TCP, netperf, EF, bbr"},
		{"rrul", "protocol=iperf3", "upload   TCP, iperf3, CS1"},
		{"rrul", "protocol=http", "upload   TCP, http, CS1"},
		{"rrul", "voip=yes", "VoIP          irtt to s1.example.net every 20ms, CS0, 172 bytes"},
		{"rrul", "ping_hosts=a.example,b.example ping_markings=EF", "ICMP a.example (extra)  icmp to a.example every 200ms, EF"},
		{"tcp_nup", "upload_streams=2 stream_delays=0,2s markings=CS1,EF cc_algos=reno", "7s to     1m5s    flow  upload::2  upload   TCP, netperf, EF\n"},
		{"tcp_nup", "upload_streams=2 cc_algos=reno cc=bbr", "upload::2  upload   TCP, netperf, CS0, bbr"},
		{"tcp_ndown", "download_streams=3 send_sizes=100", "download::1  download TCP, netperf, CS0, 100 bytes each"},
		{"tcp_1up", "marking=0x2e", "upload  upload   TCP, netperf, EF"},
		{"rrul_var", "bidir_streams=2 labels=gold markings=EF,CS1", "UDP 1 (CS1)"},
		{"rrul_var", "bidir_streams=2 labels=gold markings=EF,CS1", "upload::gold"},
		{"rrul_be_nflows", "upload_streams=1 download_streams=13", "to download BE::13  the same, 13 flows in all"},
		{"cubic_bbr", "algorithms=cubic,brutal", "upload brutal CS1    upload   TCP, netperf, CS1, brutal, group brutal"},
		{"cubic_bbr", "algorithms=,", "upload default BE (2)"},
		{"tcp_2up_square", "algorithms=reno", "0s to     1m0s    flow  TCP reno "},
		{"udp_flood", "udp_bandwidth=5mbit udp_pktsize=200", "UDP, iperf3, CS0, 5Mbit, 200 bytes each"},
		{"speedtest", "streams=1 concurrent=yes mark=EF probe=irtt", "both"},
		{"bursts", "burst_ports=4", "Burst 5::4  upload   UDP, iperf3, CS0, 25Mbit, 500 bytes each"},
		{"rrul2013", "families=4", "upload BK IPv4 (2)"},
		{"http", "url=http://a.example/x", "every 1s, CS0, http://a.example/x"},
	} {
		d, ok := Find(c.name)
		if !ok {
			t.Fatal(c.name)
		}
		set := map[string]string{}
		for _, kv := range strings.Fields(c.set) {
			k, v, _ := strings.Cut(kv, "=")
			set[k] = v
		}
		p, err := d.Plan(someServers(d), set)
		if err != nil || !strings.Contains(p.String(), c.want) {
			t.Errorf("%s %s: got error %v and\n%s\nwant %q in it", c.name, c.set, err, p.String(), c.want)
		}
	}
}

func TestWhatAParameterCannotBeIsSaid(t *testing.T) {
	for _, c := range []struct{ name, key, value, want string }{
		{"rrul", "lenght", "10s", `rrul has no parameter "lenght": want length, lead, step`},
		{"rrul", "length", "ten", `parameter length: "ten": want a time`},
		{"rrul", "length", "-1s", `parameter length: "-1s": want a time`},
		{"rrul", "length", "1e300", `parameter length`},
		{"rrul", "length", "0", `load for 0s`},
		{"rrul", "step", "1ms", `every 1ms`},
		{"rrul", "protocol", "sctp", `parameter protocol: "sctp": want one of netperf, iperf3, http`},
		{"rrul", "voip", "perhaps", `want yes or no`},
		{"tcp_nup", "upload_streams", "100000", `load with 1001 streams: want 1 to 1000`},
		{"tcp_nup", "upload_streams", "-1", `parameter upload_streams`},
		{"tcp_nup", "upload_streams", "0", `tcp_nup without a flow`},
		{"tcp_nup", "markings", "EF,nice", `parameter markings: DSCP "nice"`},
		{"tcp_nup", "stream_delays", "0,61s", `begins at 1m1s, and its phase is over at 1m0s`},
		{"cubic_bbr", "algorithms", "a,b,c", `parameter algorithms: want at most 2`},
		{"cubic_bbr", "algorithms", "a b", `congestion control "a b"`},
		{"udp_flood", "udp_bandwidth", "fast", `parameter udp_bandwidth: bitrate "fast"`},
		{"udp_flood", "udp_bandwidth", "0bit", `datagrams want a rate`},
		{"bursts", "burst_ports", "2000", `load with 1001 streams: want 1 to 1000`},
		{"bursts", "burst_length", "1h", `no burst of 1h0m0s fits into 1m0s after a lead of 5s`},
		{"iterated_bidirectional", "iterations", "0", `0 times: want 1 to 100`},
		{"rrul2013", "boost", "60s", `load without its first 1m0s`},
	} {
		d, ok := Find(c.name)
		if !ok {
			t.Fatal(c.name)
		}
		_, err := d.Plan(someServers(d), map[string]string{c.key: c.value})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s=%s: got error %v, want one with %q", c.name, c.key, c.value, err, c.want)
		}
	}
}

func TestServersAreCounted(t *testing.T) {
	server := Server{Host: "a.example", NetperfPort: 1, IRTTPort: 1}
	for _, c := range []struct {
		name string
		n    int
		want string
	}{
		{"rrul", 1, ""}, {"rrul", 2, "rrul with 2 servers: want 1 server"}, {"rrul", 0, "rrul with 0 servers: want 1 server"},
		{"rtt_fair", 4, ""}, {"rtt_fair", 1, "want 4 servers"}, {"rtt_fair_var", 7, ""}, {"rtt_fair_var", MaxServers + 1, "want 1 to 100 servers"},
	} {
		d, _ := Find(c.name)
		p, err := d.Plan(slices.Repeat([]Server{server}, c.n), nil)
		if c.want == "" {
			if err != nil || len(p.Others) != c.n-1 {
				t.Errorf("%s with %d servers: %v, %d others", c.name, c.n, err, len(p.Others))
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %d servers: got %v, want %q", c.name, c.n, err, c.want)
		}
	}
}

func TestAPlanIsTheSameEachTime(t *testing.T) {
	for _, d := range Catalogue() {
		a, err := d.Plan(someServers(d), nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := d.Plan(someServers(d), nil); err != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("%s: another plan the second time: %v", d.Name, err)
		}
	}
}

func TestParameterTypes(t *testing.T) {
	for _, c := range []struct {
		kind ParameterType
		text string
		want any // nil is an error
	}{
		{Duration, "1.5", 1500 * time.Millisecond}, {Duration, "1m", time.Minute}, {Duration, "", time.Duration(0)}, {Duration, "NaN", nil}, {Duration, "2h", nil},
		{Count, "12", 12}, {Count, "1.5", nil}, {YesNo, "yes", true}, {YesNo, "", false}, {Word, " a ", "a"},
		{Counts, "1, 2", []int{1, 2}}, {Counts, "1,,2", nil}, {Words, "", []string(nil)}, {"thing", "", nil},
		{Words, strings.Repeat(",", maxList), nil}, {Word, strings.Repeat("a", maxWord+1), nil},
	} {
		p := Parameter{Name: "x", Type: c.kind}
		got, err := p.parse(c.text)
		if (err != nil) != (c.want == nil) || c.want != nil && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %q: got %#v and error %v, want %#v", c.kind, c.text, got, err, c.want)
		}
	}
}

// TestTheDocsHaveEveryPlanAndRequirement looks for each plan's name, and for each requirement of the RRUL specification.
func TestTheDocsHaveEveryPlanAndRequirement(t *testing.T) {
	b, err := os.ReadFile("docs/catalogue.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, d := range Catalogue() {
		if !strings.Contains(text, "`"+d.Name+"`") {
			t.Errorf("docs/catalogue.md does not name %s", d.Name)
		}
	}
	for letter, n := range map[string]int{"R": 14, "V": 8, "F": 17, "S": 6} {
		for i := range n {
			id := fmt.Sprintf("%s%d", letter, i+1)
			if !strings.Contains(text, "| "+id+" ") && !strings.Contains(text, "| "+id+",") && !strings.Contains(text, ", "+id+" |") {
				t.Errorf("docs/catalogue.md has no row for %s", id)
			}
		}
	}
}
