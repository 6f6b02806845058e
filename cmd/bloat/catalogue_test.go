package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report"
)

// labArgs are what a plan needs to run through the lab for a short time, where that is more than a length. Bursts are three, one after the other.
var labArgs = map[string][]string{
	"rrul2013":               {"--set", "boost=1s"},
	"bursts":                 {"--length", "6", "--set", "burst_length=1s", "--set", "burst_rate=2mbit", "--set", "burst_ports=3"},
	"bursts_11e":             {"--length", "6", "--set", "burst_length=1s", "--set", "burst_rate=2mbit"},
	"cisco_5tcpup_2udpflood": {"--up", "20mbit"},
	"udp_flood":              {"--set", "udp_bandwidth=2mbit"},
	"udp_flood_var_up":       {"--set", "udp_bandwidths=2mbit"}, "udp_flood_var_up_stagger": {"--set", "udp_bandwidths=2mbit"},
	// A link for fewer flows would drop the first window of many, which then wait for longer than the test.
	"tcp_upload_1000": {"--up", "200mbit", "--down", "200mbit", "--buffer", "1s", "--step", "500ms"},
	"rrul_100_up":     {"--up", "50mbit", "--buffer", "500ms"}, "rrul_50_up": {"--up", "50mbit", "--buffer", "250ms"},
	// The lab's TCP knows CUBIC and nothing else.
	"rrul_torrent": {"--set", "torrent_cc=cubic"},
}

// duels are plans whose algorithms the lab's TCP does not have, with their number.
var duels = map[string]int{"cubic_bbr": 2, "cubic_cdg": 2, "cubic_dctcp": 2, "cubic_reno": 2, "cubic_ledbat": 2, "cubic_westwood": 2,
	"reno_cubic_westwood_cdg": 4, "reno_cubic_westwood_ledbat": 4, "reno_cubic_westwood_lp": 4, "cubic_ledbat_1": 2, "ledbat_cubic_1": 2,
	"tcp_2up_square": 4, "tcp_2up_square_westwood": 4, "tcp_4up_squarewave": 4}

// notInTheLab are series that a plan may leave out there, and why.
var notInTheLab = map[string]string{"path": "the lab has no router on the way"}

// TestEveryPlanOfTheCatalogueRunsThroughTheLab runs each plan for two seconds of load and asks for every series that it names, and for what must hold in every
// recording and result.
func TestEveryPlanOfTheCatalogueRunsThroughTheLab(t *testing.T) {
	if testing.Short() {
		t.Skip("much emulated traffic; without -short it runs")
	}
	for _, d := range bufferbloat.Catalogue() {
		t.Run(d.Name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "run.bloat.json.gz")
			args := []string{"bloat", "run", d.Name, "--lab", "--virtual", "--length", "2", "--lead", "1", "--buffer", "60ms", "-o", file}
			args = append(args, labArgs[d.Name]...)
			if n := duels[d.Name]; n > 0 {
				args = append(args, "--set", "algorithms=cubic"+strings.Repeat(",cubic", n-1))
			}
			var stdout, stderr bytes.Buffer
			a := &app{stdout: &stdout, stderr: &stderr, version: "test", now: func() time.Time { return time.Unix(1e9, 0) }}
			if status := a.run(t.Context(), args); status != 0 {
				t.Errorf("status %d, want 0\n%s%s", status, stdout.String(), stderr.String())
			}
			rec := readFile(t, file)
			checkSeries(t, rec)
			checkRecording(t, rec)
			checkResult(t, rec)
		})
	}
}

// TestDatagramFlowsThatBeginAtDifferentTimesAllRun runs what udp_flood_var_up_stagger is with several servers, all of them the lab's.
func TestDatagramFlowsThatBeginAtDifferentTimesAllRun(t *testing.T) {
	dir := t.TempDir()
	plan, file := filepath.Join(dir, "stagger.yaml"), filepath.Join(dir, "run.bloat.json.gz")
	text := `schema: bloat/planfile/1
name: stagger
servers: [{name: "2"}, {name: "3"}]
phases:
  - {name: lead, kind: idle, length: 1s}
  - name: load
    kind: load
    length: 200s
    flows:
      - {name: first, direction: upload, protocol: iperf3-udp, rate: 100kbit}
      - {name: second, direction: upload, protocol: iperf3-udp, rate: 100kbit, server: "2", start: 3s}
      - {name: down, direction: download, protocol: iperf3-udp, rate: 100kbit, start: 40s, length: 5s}
      - {name: late, direction: upload, protocol: iperf3-udp, rate: 100kbit, server: "3", start: 190s}
      - {name: late tcp, direction: upload, protocol: iperf3, rate: 100kbit, start: 192s}
probes:
  - {name: ICMP, kind: icmp, interval: 1s, primary: true}
`
	if err := os.WriteFile(plan, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr, version: "test", now: func() time.Time { return time.Unix(1e9, 0) }}
	if status := a.run(t.Context(), []string{"bloat", "run", plan, "--lab", "--virtual", "-o", file}); status != 0 {
		t.Errorf("status %d, want 0\n%s%s", status, stdout.String(), stderr.String())
	}
	rec := readFile(t, file)
	checkSeries(t, rec)
	checkRecording(t, rec)
	for _, f := range rec.Flows {
		if got := bitrate.Of(f.Result.Bytes, f.Result.Last-f.Result.First).Mbps(); got < 0.095 || got > 0.11 {
			t.Errorf("%s had %.3f Mbit/s of 0.1", f.Name, got)
		}
	}
}

// readFile reads a recording.
func readFile(t *testing.T, name string) *bufferbloat.Recording {
	t.Helper()
	in, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	rec, err := bufferbloat.ReadRecording(in)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// checkSeries asks for each series that the plan names, with data in it, and for no other.
func checkSeries(t *testing.T, rec *bufferbloat.Recording) {
	t.Helper()
	var flows, probes []string
	for _, ph := range rec.Plan.Phases {
		for _, f := range ph.Flows {
			flows = append(flows, f.Name)
			i := slices.IndexFunc(rec.Flows, func(g bufferbloat.Flow) bool { return g.Name == f.Name && g.Phase == ph.Name })
			if i < 0 || !rec.Flows[i].Result.Flowed || rec.Flows[i].Error != "" || rec.Flows[i].Result.Bytes == 0 {
				t.Fatalf("flow %s carried nothing, or not to its end: %+v", f.Name, rec.Flows[max(i, 0)])
			}
		}
	}
	for _, pr := range rec.Plan.Probes {
		if notInTheLab[pr.Name] != "" {
			continue
		}
		probes = append(probes, pr.Name)
		i := slices.IndexFunc(rec.Probes, func(s bufferbloat.ProbeSeries) bool {
			return s.Name == pr.Name || pr.Kind == bufferbloat.Auto && s.Primary == pr.Primary
		})
		if i < 0 {
			t.Errorf("no series %s", pr.Name)
			continue
		}
		answered := 0
		for _, s := range rec.Probes[i].Samples {
			if s.Outcome.HasRTT() {
				answered++
			}
		}
		due := int((rec.Phases[len(rec.Phases)-1].End - pr.Start) / pr.Interval)
		if n := len(rec.Probes[i].Samples); n < due-1 || answered < n/2 {
			t.Errorf("series %s: %d samples, %d of them answered; %d were due", pr.Name, n, answered, due)
		}
	}
	if len(rec.Flows) != len(flows) || len(rec.Probes) != len(probes) {
		t.Errorf("%d flows and %d series of probes, the plan has %d and %d", len(rec.Flows), len(rec.Probes), len(flows), len(probes))
	}
}

// checkRecording checks what must hold in every recording.
func checkRecording(t *testing.T, rec *bufferbloat.Recording) {
	t.Helper()
	for _, s := range rec.Probes {
		for i, p := range s.Samples {
			if p.Seq != uint64(i) || p.Outcome.HasRTT() != (p.RTT > 0) || p.Sent+p.RTT > rec.Ended {
				t.Fatalf("%s: sample %d is %+v in a run of %v", s.Name, i, p, rec.Ended)
			}
		}
	}
	var carried [2]uint64
	for _, f := range rec.Flows {
		var last bufferbloat.Point
		for _, p := range f.Points {
			if p.At < last.At || p.Bytes < last.Bytes || p.At > rec.Ended {
				t.Errorf("%s: %+v after %+v in a run of %v", f.Name, p, last, rec.Ended)
			}
			last = p
		}
		r := &f.Result
		if last.Bytes > r.Bytes || r.Last > rec.Ended || r.First < f.Started || r.Last < r.First {
			t.Fatalf("%s: %d bytes by its points, %+v in a run of %v", f.Name, last.Bytes, r, rec.Ended)
		}
		carried[f.Direction-load.Download] += r.Bytes
	}
	for i, most := range []bitrate.Bitrate{rec.Path.Lab.Down, rec.Path.Lab.Up} {
		if got := bitrate.Of(carried[i], rec.Ended); got > most {
			t.Errorf("%v over the whole run, and the link has %v", got, most)
		}
	}
	end := rec.Phases[len(rec.Phases)-1].End
	for _, q := range rec.Others {
		if !slices.IsSorted(q.At) || len(q.At) > 0 && q.At[len(q.At)-1] > end {
			t.Errorf("%s: its times run backwards, or beyond the last phase", q.Name)
		}
	}
	for i, p := range rec.Phases {
		if p.From < p.Start || p.To < p.From || p.End < p.To || i > 0 && p.Start < rec.Phases[i-1].End || p.End > rec.Ended {
			t.Errorf("phase %+v does not fit the one before it, or its own window does not fit it", p)
		}
	}
}

// checkResult checks that the figures are sums of their parts.
func checkResult(t *testing.T, rec *bufferbloat.Recording) {
	t.Helper()
	r := report.New(rec)
	within := map[string]int{}
	for _, p := range r.Phases {
		for _, l := range p.Latency {
			checkCount(t, p.Name+": "+l.Series, l.Count)
			within[l.Series] += l.Count.Due
			if l.OK() && (l.Min > l.Median || l.Median > l.Max) {
				t.Errorf("%s: %s: %+v", p.Name, l.Series, l.Summary)
			}
		}
		for _, g := range p.Goodput {
			var sum uint64
			flowed := 0
			for _, f := range g.Flows {
				sum += f.Bytes
				if f.Flowed {
					flowed++
				}
			}
			// What a plan skips of a load's beginning is in the flows' counts alone.
			skips := g.Detail != nil && g.Detail.Skipped != 0
			if g.Bytes != sum && !(skips && g.Bytes < sum) || g.Flowed != flowed || g.Planned != len(g.Flows) {
				t.Errorf("%s: %v: %d bytes of %d flows, its flows have %d bytes, %d of them flowed", p.Name, g.Direction, g.Bytes, g.Flowed, sum, flowed)
			}
		}
	}
	for _, s := range r.Series {
		checkCount(t, s.Name, s.Count)
		if within[s.Name] > s.Count.Due {
			t.Errorf("%s: %d probes in all, and %d in the phases", s.Name, s.Count.Due, within[s.Name])
		}
	}
}

func checkCount(t *testing.T, what string, c report.Count) {
	t.Helper()
	fates := c.Received + c.Late + c.Lost + c.LostUp + c.LostDown + c.Unfinished + c.Invalid
	if c.Due != c.Sent+c.Unsent || c.Sent != fates {
		t.Errorf("%s: %+v: what was sent and what became of it differ", what, c)
	}
}
