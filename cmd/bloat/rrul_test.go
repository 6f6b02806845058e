package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report"
)

// rrulQueues are the runs of docs/rrul.md: their files and command lines.
var rrulQueues = []struct {
	name, file string
	args       []string
}{
	{"FIFO", "fifo.bloat.json.gz", []string{"rrul", "--lab=fifo", "--virtual", "-o"}},
	{"fq_codel", "fq_codel.bloat.json.gz", []string{"rrul", "--lab=fq_codel", "--virtual", "-o"}},
	{"cake", "cake.bloat.json.gz", []string{"rrul", "--lab=fifo", "--qdisc-down", "cake bandwidth 19mbit", "--qdisc-up", "cake bandwidth 3800kbit", "--virtual", "-o"}},
}

// TestTheTableOfRRULThroughThreeQueues makes the runs of docs/rrul.md anew, with its table and its picture, and holds them against theory. With -update it
// writes both.
func TestTheTableOfRRULThroughThreeQueues(t *testing.T) {
	slow(t)
	if runtime.GOARCH != "amd64" {
		t.Skipf("the runs were made on amd64; on %s floating-point rounding may differ", runtime.GOARCH)
	}
	dir := t.TempDir()
	const page = "../../docs/rrul.md"
	doc, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var results []*report.Result
	plot := []string{"plot"}
	for _, q := range rrulQueues {
		file := filepath.Join(dir, q.file)
		if got := bloat(t.Context(), nil, append(q.args[:len(q.args):len(q.args)], file, "--progress", "none")...); got.status != 0 {
			t.Fatalf("%s: status %d: %s", q.name, got.status, got.stderr)
		}
		r, err := openResult(file)
		if err != nil {
			t.Fatal(err)
		}
		results, plot = append(results, r), append(plot, file)
		line := "bloat " + strings.Join(q.args, " ")
		for _, a := range q.args {
			if strings.Contains(a, " ") {
				line = strings.Replace(line, a, `"`+a+`"`, 1)
			}
		}
		if !bytes.Contains(doc, []byte(line+" "+q.file+"\n")) {
			t.Errorf("%s lacks %q", page, line)
		}
	}
	checkTheory(t, results)
	picture := filepath.Join(dir, "x.svg")
	t.Setenv("LC_ALL", "C.UTF-8")
	if got := bloat(t.Context(), nil, append(plot, "-o", picture)...); got.status != 0 {
		t.Fatalf("plot: %s", got.stderr)
	}
	drawn, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../../docs/pictures/rrul-queues.svg", drawn)
	const begin, end = "<!-- table: written by the test -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(string(doc), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", page)
	}
	golden(t, page, []byte(before+begin+rrulTable(results)+end+after))
}

// rrulTable is the table of the page.
func rrulTable(results []*report.Result) string {
	var b strings.Builder
	row := func(name string, cell func(r *report.Result) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, r := range results {
			fmt.Fprintf(&b, " %s |", cell(r))
		}
		b.WriteByte('\n')
	}
	b.WriteString("| under load |")
	for _, q := range rrulQueues {
		fmt.Fprintf(&b, " %s |", q.name)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(rrulQueues)) + "\n")
	for _, d := range []load.Direction{load.Download, load.Upload} {
		row(fmt.Sprintf("%v, Mbit/s", d), func(r *report.Result) string { return fmt.Sprintf("%.2f", goodputOf(r, d).Rate.Mbps()) })
		row("share of BE, BK, CS5, EF in it", func(r *report.Result) string {
			var shares []string
			for _, label := range []string{"BE", "BK", "CS5", "EF"} {
				shares = append(shares, fmt.Sprintf("%.1f%%", 100*shareOf(r, d, label)))
			}
			return strings.Join(shares, ", ")
		})
	}
	for _, series := range []string{"ICMP", "UDP BE", "UDP BK", "UDP EF"} {
		row(series+": median, 90pct in ms", func(r *report.Result) string {
			l := latencyOf(r, series)
			return fmt.Sprintf("%.1f, %.1f", float64(l.Median)/1e6, float64(l.P90)/1e6)
		})
	}
	row("ICMP: what the load added to the median, ms", func(r *report.Result) string { return fmt.Sprintf("%.1f", float64(r.Induced[0].Median.Value)/1e6) })
	return b.String()
}

func loadOf(r *report.Result) *report.Phase {
	for i := range r.Phases {
		if r.Phases[i].Kind == bufferbloat.Load {
			return &r.Phases[i]
		}
	}
	return nil
}

func goodputOf(r *report.Result, d load.Direction) *report.Goodput {
	p := loadOf(r)
	for i := range p.Goodput {
		if p.Goodput[i].Direction == d {
			return &p.Goodput[i]
		}
	}
	return nil
}

// shareOf is what a stream has of the bytes of its direction.
func shareOf(r *report.Result, d load.Direction, label string) float64 {
	g := goodputOf(r, d)
	for _, f := range g.Flows {
		if f.Name == fmt.Sprintf("%v %s", d, label) {
			return float64(f.Bytes) / float64(g.Bytes)
		}
	}
	return 0
}

func latencyOf(r *report.Result, series string) *report.Latency {
	p := loadOf(r)
	for i := range p.Latency {
		if p.Latency[i].Series == series {
			return &p.Latency[i]
		}
	}
	return nil
}

// checkTheory holds the three runs against what is known of their queues.
func checkTheory(t *testing.T, results []*report.Result) {
	t.Helper()
	fifo, codel, cake := results[0], results[1], results[2]
	near := func(what string, got, want, within float64) {
		t.Helper()
		if got < want-within || got > want+within {
			t.Errorf("%s: %.4g, want %.4g within %.3g", what, got, want, within)
		}
	}
	// The uplink carries frames of the uploads, and an acknowledgement for every second segment of the downloads.
	for name, r := range map[string]*report.Result{"FIFO": fifo, "fq_codel": codel} {
		used := float64(goodputOf(r, load.Upload).Rate)*1514/1448 + float64(goodputOf(r, load.Download).Rate)/(2*1448)*66
		near(name+": what the uplink carries, Mbit/s", used/1e6, 3.92, 0.06)
	}
	// Base, the full buffer, and at most as much again down.
	near("FIFO: highest RTT, ms", float64(latencyOf(fifo, "ICMP").Max)/1e6, 40+350, 100)
	if added := codel.Induced[0].Median.Value.Seconds() * 1e3; added < 0 || added > 5 {
		t.Errorf("fq_codel adds %.1f ms to the median", added)
	}
	for _, label := range []string{"BE", "BK", "CS5", "EF"} {
		near("fq_codel: share of "+label, shareOf(codel, load.Download, label), 0.25, 0.005)
	}
	for label, share := range map[string]float64{"BK": 1.0 / 16, "EF": 1.0 / 4, "BE": 11.0 / 32, "CS5": 11.0 / 32} {
		near("cake: share of "+label, shareOf(cake, load.Download, label), share, 0.01)
	}
}
