package flent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/facility"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// definitions asks the installed flent what each of its tests would run, as JSON: for the hosts and parameters in argv[2].
const definitions = `
import json, os, re, sys
for folder in ("/usr/share/flent", "/usr/lib/python3/dist-packages"):
    if os.path.isdir(os.path.join(folder, "flent")):
        sys.path.insert(0, folder)
from flent import settings, testenv
out = {}
for name, hosts in json.loads(sys.argv[1]).items():
    env = dict(settings.new().items())
    env.update(HOSTS=hosts, HOST=hosts[0], LENGTH=60, STEP_SIZE=0.2, NAME=name,
               TEST_PARAMETERS={"upload_streams": "4", "download_streams": "4", "bidir_streams": "4"})
    path = os.path.join(testenv.TEST_PATH, name + ".conf")
    if not os.path.exists(path):
        continue
    sets = testenv.TestEnvironment(env).execute(path)["DATA_SETS"]
    out[name] = {k: {a: v[a] for a in ("runner", "test", "delay", "length", "marking", "ip_version", "cong_control") if v.get(a) not in (None, "")}
                 for k, v in sets.items() if v["runner"] not in ("average", "sum", "fairness", "smooth_average", "diff_min", "null")}
    for k, v in sets.items():
        in_command = re.search(r" -[lt] (\d+)", v.get("command", ""))
        if k in out[name] and "length" not in v and in_command:
            out[name][k]["length"] = int(in_command.group(1))
print(json.dumps(out))
`

// flentSeries is what flent says of a series.
type flentSeries struct {
	Runner, Test string
	Delay        float64
	Length       float64
	Marking      string
	IPVersion    int    `json:"ip_version"`
	Control      string `json:"cong_control"`
}

// line is a series as a line, for comparing.
func line(kind string, start, length time.Duration, mark dscp.CodePoint, control string, family int) string {
	return fmt.Sprintf("%s from %v for %v, %v, cc %q, family %d", kind, start, length, mark, control, family)
}

func (s flentSeries) line(t *testing.T) string {
	kind := map[string]string{"TCP_STREAM": "upload", "TCP_MAERTS": "download", "TCP_MEARTS": "download", "TCP_RR": "tcp_rr"}[s.Test]
	switch s.Runner {
	case "udp_rtt":
		kind = "udp"
	case "voip":
		kind = "irtt"
	case "ping":
		kind = "icmp"
	case "http_getter":
		kind = "page"
	case "iperf_csv", "silent_process":
		kind = "upload"
	}
	mark := dscp.CodePoint(0)
	if text, _, _ := strings.Cut(s.Marking, ","); text == "0x10" {
		mark = 4 // a whole TOS byte
	} else if text != "" {
		var err error
		if mark, err = dscp.Parse(text); err != nil {
			t.Error(err)
		}
	}
	at := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	return line(kind, at(s.Delay), at(s.Length), mark, s.Control, s.IPVersion)
}

// recordingOf is the recording that a plan leads to, without any data.
func recordingOf(p bufferbloat.Plan) *bufferbloat.Recording {
	rec := &bufferbloat.Recording{Plan: p, Path: bufferbloat.Path{Host: p.Server.Host}, Ended: p.Length()}
	for _, ph := range p.Phases {
		for _, f := range ph.Flows {
			rec.Flows = append(rec.Flows, bufferbloat.Flow{Name: f.Name, Phase: ph.Name, Direction: f.Direction})
		}
	}
	for _, pr := range p.Probes {
		rec.Probes = append(rec.Probes, bufferbloat.ProbeSeries{Name: pr.Name, Kind: string(pr.Kind), Primary: pr.Primary, Interval: pr.Interval})
	}
	return rec
}

// ours are the series of a plan by the names that a data file gives them.
func ours(p bufferbloat.Plan) map[string]string {
	rec := recordingOf(p)
	w := newWriter(nil, rec)
	out := map[string]string{}
	var at time.Duration
	n := 0
	for _, ph := range p.Phases {
		for _, f := range ph.Flows {
			length := f.Length
			if length == 0 {
				length = ph.Length - f.Start
			}
			out[w.flows[n]] = line(f.Direction.String(), at+f.Start, length, f.DSCP, f.CongestionControl, f.Family)
			n++
		}
		at += ph.Length
	}
	for i, pr := range p.Probes {
		out[w.probes[i]] = line(string(pr.Kind), pr.Start, at-pr.Start, pr.DSCP, "", pr.Family)
	}
	return out
}

// unlike are the tests of flent's of which ours differ, and why.
var unlike = map[string]string{
	"iterated_bidirectional": "flent's own does not run: it starts netperf without a server",
	"http-1up":               "flent's page loads end before the load does",
	"http-1down":             "flent's page loads end before the load does",
	"http-rrul":              "flent's page loads end before the load does",
	"rrul46":                 "flent leaves two of the classes to the resolver, where they are to be IPv6",
	"rrul46compete":          "flent's probes end 4 s before the last flow would be over by its own lead",
}

// TestTheCatalogueIsWhatFlentRuns compares flows, marks, times, families, congestion control and names of series with the definitions of the installed
// flent, for each plan that has one.
func TestTheCatalogueIsWhatFlentRuns(t *testing.T) {
	path, err := exec.LookPath("flent")
	if err != nil {
		facility.Missing(t, "flent", err.Error())
	}
	hosts := map[string][]string{}
	plans := map[string]bufferbloat.Plan{}
	for _, d := range bufferbloat.Catalogue() {
		var servers []bufferbloat.Server
		for i := range max(d.Servers, min(d.MostServers, 3), 1) {
			host := fmt.Sprintf("h%d", i+1)
			hosts[d.Name] = append(hosts[d.Name], host)
			servers = append(servers, bufferbloat.Server{Host: host})
		}
		p, err := d.Plan(servers, nil)
		if err != nil {
			t.Fatal(err)
		}
		plans[d.Name] = p
	}
	asked, err := json.Marshal(hosts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter(t, path), "-c", definitions, string(asked))
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "LC_ALL=C.UTF-8")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var theirs map[string]map[string]flentSeries
	if err := json.Unmarshal(text, &theirs); err != nil {
		t.Fatal(err)
	}
	if len(theirs) < 60 {
		t.Errorf("flent has %d tests of the names of ours, want 60 or more", len(theirs))
	}
	for name, series := range theirs {
		if !slices.Contains(tests, name) && unlike[name] == "" {
			t.Errorf("%s: a data file would not say that it is this test", name)
		}
		want := map[string]string{}
		for s, f := range series {
			want[s] = f.line(t)
		}
		got := ours(plans[name])
		if equal := maps.Equal(got, want); equal == (unlike[name] != "") {
			t.Errorf("%s (%s):\n%s", name, unlike[name], difference(got, want))
		}
	}
}

// TestStockFlentReadsTheUnusualNames has the installed flent summarise recordings of the plans whose series it names from parameters, hosts and times.
func TestStockFlentReadsTheUnusualNames(t *testing.T) {
	for name, set := range map[string]map[string]string{
		"rrul_var":                 {"bidir_streams": "2", "labels": "gold", "markings": "EF,CS1"},
		"rtt_fair_var_mixed":       {"data_directions": "u,d,ud", "labels": "a,b"},
		"udp_flood_var_up_stagger": nil,
		"bursts":                   nil,
		"voip-1up":                 nil,
		"http-rrul":                nil,
	} {
		d, ok := bufferbloat.Find(name)
		if !ok {
			t.Fatal(name)
		}
		var servers []bufferbloat.Server
		for i := range max(d.Servers, min(d.MostServers, 3), 1) {
			servers = append(servers, bufferbloat.Server{Host: fmt.Sprintf("h%d", i+1)})
		}
		p, err := d.Plan(servers, set)
		if err != nil {
			t.Fatal(err)
		}
		rec := recordingOf(p)
		fill(rec)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := map[string][]string{}
			text := stock(t, "-f", "summary", onDisk(t, rec))
			for _, m := range summaryLine.FindAllStringSubmatch(text, -1) {
				rows[m[1]] = m[2:]
			}
			names := newWriter(nil, rec)
			for _, series := range slices.Concat(names.probes, names.flows) {
				if rows[series] == nil {
					t.Errorf("no row %q in\n%s", series, text)
				}
			}
		})
	}
}

// fill gives each series of a recording some data, at the times of its plan.
func fill(rec *bufferbloat.Recording) {
	rec.Started = time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	var at time.Duration
	n := 0
	for _, ph := range rec.Plan.Phases {
		rec.Phases = append(rec.Phases, bufferbloat.Phase{Name: ph.Name, Kind: ph.Kind, Start: at, End: at + ph.Length, From: at, To: at + ph.Length})
		for _, planned := range ph.Flows {
			f := &rec.Flows[n]
			n++
			for x := at + planned.Start; x <= at+ph.Length; x += time.Second {
				f.Points = append(f.Points, bufferbloat.Point{At: x, Bytes: uint64(x / time.Microsecond)})
			}
			last := f.Points[len(f.Points)-1]
			f.Result = bufferbloat.FlowResult{Flowed: true, Bytes: last.Bytes, CountedBy: load.CountedByReads, First: f.Points[0].At, Last: last.At, Stopped: last.At}
		}
		at += ph.Length
	}
	for i := range rec.Probes {
		s := &rec.Probes[i]
		for k := range int(at / time.Second) {
			due := time.Duration(k) * time.Second
			s.Samples = append(s.Samples, probe.Sample{Seq: uint64(k), Due: due, Sent: due, RTT: 20 * time.Millisecond, Outcome: probe.Received})
		}
	}
}

// difference are the lines in which two sets of series differ.
func difference(got, want map[string]string) string {
	var out []string
	for name, text := range got {
		if want[name] != text {
			out = append(out, fmt.Sprintf("  %s: ours %s\n  %s: flent %s", name, text, name, want[name]))
		}
	}
	for name, text := range want {
		if got[name] == "" {
			out = append(out, fmt.Sprintf("  %s: not ours, flent %s", name, text))
		}
	}
	slices.Sort(out)
	return strings.Join(out[:min(len(out), 8)], "\n")
}
