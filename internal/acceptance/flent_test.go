package acceptance

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
	"bufferbloat/load"
	"bufferbloat/report/flent"
)

// flentRun is one test of the installed flent, run with this program as its netperf.
type flentRun struct {
	name         string
	args         []string
	down, up     int
	probes       int
	marks        map[string]int // of series, as flent found them in the output
	withoutIrtt  bool
	transactions int // series of UDP probes that are transactions of netperf

	dir  string
	out  bytes.Buffer
	done chan error
	stop func() error // waits for the end
}

// TestStockFlentRunsOnThisProgram has the installed flent run its tests through the emulated link, its netperf being this program under that
// name, against the lab server. What it wrote is read back.
func TestStockFlentRunsOnThisProgram(t *testing.T) {
	t.Parallel()
	var runs []*flentRun
	for _, r := range []flentRun{
		{name: "rrul", down: 4, up: 4, probes: 4, marks: map[string]int{"TCP download EF": 0xb8, "TCP upload EF": 0xb8, "TCP download BK": 0x20,
			"TCP upload BK": 0x20, "TCP download CS5": 0xa0, "TCP upload CS5": 0xa0, "TCP download BE": 0, "TCP upload BE": 0}},
		{name: "rrul_be", down: 4, up: 4, probes: 4, withoutIrtt: true, transactions: 3},
		{name: "tcp_download", down: 1, probes: 1},
		{name: "tcp_upload", up: 1, probes: 1},
		{name: "tcp_nup", args: []string{"--test-parameter", "upload_streams=3"}, up: 3, probes: 1},
		{name: "tcp_ndown", args: []string{"--test-parameter", "download_streams=3"}, down: 3, probes: 1},
		{name: "tcp_bidirectional", down: 1, up: 1, probes: 1},
	} {
		r.start(t)
		runs = append(runs, &r)
	}
	for _, r := range runs {
		t.Run(r.name, func(t *testing.T) {
			path := r.wait(t)
			r.checkMarks(t, path)
			r.checkFigures(t, path)
		})
	}
}

// start begins to drive flent in a lab of its own. Each run takes 13 s, most of them waiting, so they run all at once.
func (r *flentRun) start(t *testing.T) {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"flent", "irtt"} {
		if _, err := exec.LookPath(program); err != nil {
			facility.Missing(t, program, err.Error())
		}
	}
	dir := t.TempDir()
	r.dir = dir
	if err := os.Symlink(binary, filepath.Join(dir, "netperf")); err != nil {
		t.Fatal(err)
	}
	if r.withoutIrtt {
		if err := os.WriteFile(filepath.Join(dir, "irtt"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	args := append([]string{"lab", "-q", "--down", "8mbit", "--up", "2mbit", "--rtt", "20ms", "--qdisc", "fq_codel", "--",
		"flent", r.name, "-4", "-H", "192.0.2.2", "--length", "3", "-D", dir, "--test-parameter", "tcp_cong_control=reno"}, r.args...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir, "MPLCONFIGDIR="+dir, "LC_ALL=C.UTF-8", "MPLBACKEND=Agg")
	cmd.Stdout, cmd.Stderr = &r.out, &r.out
	cmd.WaitDelay = time.Second
	r.done = make(chan error, 1)
	go func() { r.done <- cmd.Run() }()
	r.stop = sync.OnceValue(func() error { defer cancel(); return <-r.done })
	t.Cleanup(func() { cancel(); _ = r.stop() })
	r.args = cmd.Args
}

// wait returns the data file of a run.
func (r *flentRun) wait(t *testing.T) string {
	t.Helper()
	err := r.stop()
	out := r.out.Bytes()
	missingLab(t, string(out))
	for _, trouble := range []string{"WARNING", "ERROR", "Traceback"} {
		if bytes.Contains(out, []byte(trouble)) && err == nil {
			err = fmt.Errorf("it says %s", trouble)
		}
	}
	files, globErr := filepath.Glob(filepath.Join(r.dir, r.name+"-*.flent.gz"))
	if err != nil || globErr != nil || len(files) != 1 {
		t.Fatalf("%v: %v, %q\n%s", r.args, err, files, out)
	}
	return files[0]
}

// missingLab ends the test where bloat lab said that the machine lacks something.
func missingLab(t *testing.T, said string) {
	t.Helper()
	for _, lacking := range []string{"netns", "userns", "veth", "packet-socket"} {
		if _, reason, ok := strings.Cut(said, "no "+lacking+" here: "); ok {
			facility.Missing(t, lacking, reason)
		}
	}
}

// checkMarks compares the marks of both directions and the names that flent took from the output of this program.
func (r *flentRun) checkMarks(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var data struct {
		Metadata struct {
			Series map[string]struct {
				Command    string   `json:"COMMAND"`
				Upstream   *int     `json:"UPSTREAM_TOS"`
				Downstream *int     `json:"DOWNSTREAM_TOS"`
				Congestion string   `json:"CONG_CONTROL"`
				MSS        *int     `json:"TCP_MSS"`
				Mean       *float64 `json:"MEAN_VALUE"`
				RTT        *int     `json:"TCPI_RTT"`
			} `json:"SERIES_META"`
		} `json:"metadata"`
	}
	if err := json.NewDecoder(text).Decode(&data); err != nil {
		t.Fatal(err)
	}
	flows, transactions := 0, 0
	for name, s := range data.Metadata.Series {
		if strings.Contains(s.Command, "-t UDP_RR") {
			// flent divides by the rate, which is no delay; it does show that the transactions crossed the link.
			if transactions++; s.Mean == nil || *s.Mean < 20 || *s.Mean > 200 {
				t.Errorf("%s: flent found a mean of %v ms on a link of 20 ms", name, s.Mean)
			}
		}
		if !strings.Contains(s.Command, "-t TCP_") {
			continue
		}
		flows++
		// Where a test has streams of its own number flent asks for no algorithm.
		if named := strings.Contains(s.Command, "-K reno"); named && s.Congestion != "reno" || s.Congestion == "" || s.MSS == nil || *s.MSS < 500 || s.Mean == nil || *s.Mean <= 0 || s.RTT == nil || *s.RTT < 10_000 {
			t.Errorf("%s: flent found %+v", name, s)
		}
		if want, asked := r.marks[name]; asked && (s.Upstream == nil || s.Downstream == nil || *s.Upstream != want || *s.Downstream != want) {
			t.Errorf("%s: flent found the marks %v and %v, want %#x", name, deref(s.Upstream), deref(s.Downstream), want)
		}
	}
	if flows != r.down+r.up || transactions != r.transactions {
		t.Errorf("%d flows and %d series of transactions in the file, want %d and %d", flows, transactions, r.down+r.up, r.transactions)
	}
}

func deref(p *int) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%#x", *p)
}

// checkFigures compares what the file holds with the link.
func (r *flentRun) checkFigures(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rec, err := flent.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	sums, counts := map[load.Direction]float64{}, map[load.Direction]int{}
	for i := range rec.Flows {
		f := &rec.Flows[i]
		counts[f.Direction]++
		if n := len(f.Points); n < 10 || f.Result.Bytes == 0 || f.Result.Last <= f.Result.First {
			t.Errorf("%s: %d points, result %+v", f.Name, n, f.Result)
			continue
		}
		sums[f.Direction] += float64(f.Result.Bytes) * 8 / (f.Result.Last - f.Result.First).Seconds()
	}
	if counts[load.Download] != r.down || counts[load.Upload] != r.up {
		t.Errorf("%d flows down and %d up, want %d and %d", counts[load.Download], counts[load.Upload], r.down, r.up)
	}
	for direction, rate := range map[load.Direction]bitrate.Bitrate{load.Download: 8 * bitrate.Mbit, load.Upload: 2 * bitrate.Mbit} {
		// Three seconds hold the beginning of the flows, and the other direction's acknowledgements take their part.
		most := float64(testnet.Payload(rate))
		if got := sums[direction]; counts[direction] > 0 && (got < 0.5*most || got > 1.05*most) {
			t.Errorf("%v: %.2f Mbit/s in all, of %.2f that the link carries", direction, got/1e6, most/1e6)
		}
	}
	r.checkProbes(t, rec)
}

// checkProbes looks for the delay of the link in each series of round-trip times.
func (r *flentRun) checkProbes(t *testing.T, rec *bufferbloat.Recording) {
	t.Helper()
	if n := len(rec.Probes); n != r.probes {
		t.Errorf("%d probes in the file, want %d", n, r.probes)
	}
	for _, p := range rec.Probes {
		if n := len(p.Samples); n < 20 {
			t.Errorf("%s: %d samples", p.Name, n)
		}
	}
}
