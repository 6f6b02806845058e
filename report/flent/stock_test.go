package flent

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/facility"
)

// stock runs the installed flent and returns what it printed.
func stock(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("flent")
	if err != nil {
		facility.Missing(t, "flent", err.Error())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	home := t.TempDir() // flent and matplotlib keep settings at home
	cmd.Env = append(os.Environ(), "HOME="+home, "MPLCONFIGDIR="+home, "LC_ALL=C.UTF-8", "MPLBACKEND=Agg")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || bytes.Contains(stderr.Bytes(), []byte("Traceback")) || bytes.Contains(stderr.Bytes(), []byte("ERROR")) {
		t.Fatalf("flent %q: %v\n%s", args, err, stderr.String())
	}
	return string(out) + stderr.String()
}

func onDisk(t *testing.T, rec *bufferbloat.Recording) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), rec.Plan.Name+".flent.gz")
	if err := os.WriteFile(path, written(t, rec), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// summaryLine is a row of flent's summary: name, mean, median, 99th percentile and count.
var summaryLine = regexp.MustCompile(`(?m)^ (\S.*?) +: +([\d.]+) +([\d.]+|N/A) +([\d.]+|N/A) +(?:ms|Mbits/s)? +(\d+)$`)

// TestStockFlentSummarisesOurFiles compares each row of the installed flent's summary with the samples, for each test of the catalogue.
func TestStockFlentSummarisesOurFiles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(9, 10))
	for _, s := range shapes() {
		rec := s.recording(rnd)
		t.Run(s.test, func(t *testing.T) {
			t.Parallel()
			path := onDisk(t, rec)
			rows := map[string][]string{}
			text := stock(t, "-f", "summary", path)
			for _, m := range summaryLine.FindAllStringSubmatch(text, -1) {
				rows[m[1]] = m[2:]
			}
			names := newWriter(nil, rec)
			for i, name := range names.probes {
				row := rows[name]
				if row == nil {
					t.Errorf("no row %q in\n%s", name, text)
					continue
				}
				sum, _ := whole(&rec.Probes[i])
				near(t, name+" mean", row[0], float64(sum.Mean)/1e6)
				near(t, name+" median", row[1], float64(sum.Median)/1e6)
				near(t, name+" 99th", row[2], float64(sum.P99)/1e6)
				if row[3] != strconv.Itoa(sum.N) {
					t.Errorf("%s: %s data points, want the %d replies", name, row[3], sum.N)
				}
			}
			for i, name := range names.flows {
				if row, r := rows[name], rec.Flows[i].Result; row == nil {
					t.Errorf("no row %q in\n%s", name, text)
				} else {
					near(t, name+" mean", row[0], float64(r.Bytes)*8/1e6/(r.Last-r.First).Seconds())
				}
			}
			for _, sum := range names.sums {
				if row := rows[sum.name]; row == nil || row[1] == "N/A" {
					t.Errorf("%s: row %q, want one with a median", sum.name, row)
				} else {
					near(t, sum.name+" mean", row[0], sum.value)
				}
			}
			if s.test != "rrul" && s.test != "ping" {
				return // the form of a table does not depend on the test, and starting flent takes long
			}
			csv := stock(t, "-f", "csv", path)
			if lines := strings.Count(csv, "\n"); lines < names.n {
				t.Errorf("%d lines of CSV, want %d and a head", lines, names.n)
			}
		})
	}
}

func near(t *testing.T, what, got string, want float64) {
	t.Helper()
	v, err := strconv.ParseFloat(got, 64)
	if err != nil || math.Abs(v-want) > 0.0051 {
		t.Errorf("%s: flent has %s, want %.3f", what, got, want)
	}
}

// interpreter returns the program that a script's first line names, which need not be the first of its name in the path.
func interpreter(t *testing.T, script string) string {
	t.Helper()
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	if len(words) == 0 {
		t.Fatalf("%s begins with %q", script, line)
	}
	return words[len(words)-1]
}

// TestStockFlentPlotsOurFiles draws the picture of the RRUL family, and what the other tests have by default.
func TestStockFlentPlotsOurFiles(t *testing.T) {
	flent, err := exec.LookPath("flent")
	if err != nil {
		facility.Missing(t, "flent", err.Error())
	}
	if out, err := exec.Command(interpreter(t, flent), "-c", "import matplotlib").CombinedOutput(); err != nil {
		facility.Missing(t, "matplotlib", string(out))
	}
	rnd := rand.New(rand.NewPCG(11, 12))
	plots := map[string]string{"rrul": "all_scaled", "rrul_be_nflows": "all_scaled", "tcp_nup": "totals"}
	for _, s := range shapes() {
		plot := plots[s.test]
		if plot == "" {
			continue
		}
		rec := s.recording(rnd)
		t.Run(s.test, func(t *testing.T) {
			t.Parallel()
			path := onDisk(t, rec)
			png := filepath.Join(t.TempDir(), "x.png")
			stock(t, "-p", plot, "-o", png, path)
			b, err := os.ReadFile(png)
			if err != nil || !bytes.HasPrefix(b, []byte("\x89PNG")) || len(b) < 20_000 {
				t.Errorf("the picture has %d bytes (%v): is it empty?", len(b), err)
			}
		})
	}
}

// TestASpeedtestIsSummarisedAndPlottedByStockFlent does the same for a plan that is none of flent's.
func TestASpeedtestIsSummarisedAndPlottedByStockFlent(t *testing.T) {
	s := shape{"speedtest", []string{"download 1", "download 2", "upload 1", "upload 2"}, []string{"icmp", "irtt"}}
	rec := s.recording(rand.New(rand.NewPCG(13, 14)))
	path := onDisk(t, rec)
	text := stock(t, "-f", "summary", path)
	for _, want := range []string{"Summary of rrul_be_nflows", "'speedtest'", "Ping (ms) ICMP", "TCP download BE::1", "TCP download BE::2", "TCP upload BE::2", "TCP upload sum"} {
		if !strings.Contains(text, want) {
			t.Errorf("the summary lacks %q:\n%s", want, text)
		}
	}
	for i := range rec.Flows {
		if row := fmt.Sprintf("BE::%d", i%2+1); !strings.Contains(text, row) {
			t.Errorf("no %s", row)
		}
	}
}

// A file that the installed flent has written anew is ours no longer in its form, and still in its content.
func TestWhatFlentWritesAnewIsStillRead(t *testing.T) {
	rec := shapes()[0].recording(rand.New(rand.NewPCG(15, 16)))
	path := onDisk(t, rec)
	script := `
import gzip, json, sys
d = json.load(gzip.open(sys.argv[1], "rt"))
json.dump(d, gzip.open(sys.argv[2], "wt"), indent=2, sort_keys=True)
`
	if _, err := exec.LookPath("python3"); err != nil {
		facility.Missing(t, "python3", err.Error())
	}
	anew := filepath.Join(t.TempDir(), "anew.flent.gz")
	if out, err := exec.Command("python3", "-c", script, path, anew).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(anew)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for i := range rec.Probes {
		for j, s := range rec.Probes[i].Samples {
			got := back.Probes[i].Samples[j]
			// Python keeps times as floating point, which has a quarter of a microsecond at best in this century.
			if d := (got.Sent - s.Sent).Abs(); got.RTT != s.RTT || got.Outcome != s.Outcome || got.Seq != s.Seq || d > time.Microsecond {
				t.Fatalf("sample %+v became %+v", s, got)
			}
		}
	}
}
