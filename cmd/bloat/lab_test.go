package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/cmd/internal/program"
)

var update = flag.Bool("update", false, "write the golden files and the README's output anew")

// outcome is what one command line did.
type outcome struct {
	stdout, stderr string
	status         int
}

// bloat runs one command line in this process.
func bloat(ctx context.Context, progress func(bufferbloat.Progress), words ...string) outcome {
	var stdout, stderr bytes.Buffer
	day := time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	a := &app{stdout: &stdout, stderr: &stderr, version: "v0.0-test", now: func() time.Time { return day }, progress: progress}
	status := a.run(ctx, append([]string{"bloat"}, words...))
	return outcome{stdout.String(), stderr.String(), status}
}

// slow skips a test that emulates much traffic where -short asks for little, as under the race detector, which makes it some thirty times
// slower.
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("much emulated traffic; without -short it runs")
	}
}

// TestTheREADMEShowsWhatTheDemoPrints runs the commands of "make demo". Virtual time gives the same output each time; it is the README's
// and must stay so.
func TestTheREADMEShowsWhatTheDemoPrints(t *testing.T) {
	slow(t)
	if runtime.GOARCH != "amd64" {
		t.Skipf("the README's output was made on amd64; on %s floating-point rounding may differ", runtime.GOARCH)
	}
	file := filepath.Join(t.TempDir(), "fifo.bloat.json.gz")
	var text strings.Builder
	for _, c := range [][]string{
		{"speedtest", "--lab", "fifo", "--virtual", "-o", file},
		{"speedtest", "--lab", "fq_codel", "--virtual", "--against", file},
	} {
		got := bloat(t.Context(), nil, c...)
		if got.status != 0 || got.stderr != "" {
			t.Fatalf("bloat %v: status %d, %s", c, got.status, got.stderr)
		}
		shown := strings.ReplaceAll(strings.Join(c, " "), file, "bin/demo.bloat.json.gz")
		fmt.Fprintf(&text, "$ bloat %s\n%s\n", shown, got.stdout)
	}
	compareREADME(t, "demo", text.String())
}

// compareREADME compares text with what stands between the README's marks for name, indented as a block.
func compareREADME(t *testing.T, name, text string) {
	t.Helper()
	const path = "../../README.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	open, close := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	before, rest, ok := strings.Cut(string(page), open)
	old, after, ok2 := strings.Cut(rest, close)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks for %q", path, name)
	}
	text = strings.ReplaceAll(text, "bloat v0.0-test", "bloat devel")
	want := "```\n" + strings.TrimRight(text, "\n") + "\n```\n"
	if old == want {
		return
	}
	if !*update {
		t.Errorf("%s: %s is\n%s\nand not\n%s", path, name, old, want)
		return
	}
	if err := os.WriteFile(path, []byte(before+open+want+close+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestAnInterruptAtAnyMomentGivesAPartialResult stops the run in each phase, at its beginning and in its middle.
func TestAnInterruptAtAnyMomentGivesAPartialResult(t *testing.T) {
	for _, phase := range []string{"idle", "download", "drain after download", "upload", "drain after upload", "after"} {
		for _, middle := range []bool{false, true} {
			if testing.Short() && middle != (phase == "upload") {
				continue // the rest runs without -short
			}
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithCancelCause(t.Context())
			got := bloat(ctx, func(p bufferbloat.Progress) {
				if p.Phase == phase && (p.Elapsed > 0) == middle {
					cancel(&program.SignalError{Signal: syscall.SIGINT})
				}
			}, "speedtest", "--lab", "--virtual", "-t", "4", "-i", "3", "--json")
			var doc struct {
				Schema, Stopped string
				Status          int
				Phases          []struct {
					Name    string
					Reached bool
				}
			}
			if err := json.Unmarshal([]byte(got.stdout), &doc); err != nil {
				t.Fatalf("%s, middle %v: %v in %q", phase, middle, err, got.stdout)
			}
			if got.status != 130 || doc.Stopped != "interrupted" || doc.Status != 130 {
				t.Errorf("%s, middle %v: exit status %d, document says %q and status %d; want 130, interrupted, 130: %s",
					phase, middle, got.status, doc.Stopped, doc.Status, got.stderr)
			}
			for _, p := range doc.Phases {
				if p.Name == phase && !p.Reached {
					t.Errorf("%s, middle %v: the phase that was interrupted is not marked as reached", phase, middle)
				}
			}
			waitFor(t, fmt.Sprintf("goroutines to go back to %d", before), func() bool { return runtime.NumGoroutine() <= before })
		}
	}
}

// waitFor waits for a condition that another goroutine is about to make true.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(5 * time.Second); !ok(); <-again.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestAnInterruptBeforeTheRunIsSaidToBeThat has no result to show.
func TestAnInterruptBeforeTheRunIsSaidToBeThat(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&program.SignalError{Signal: syscall.SIGTERM})
	got := bloat(ctx, nil, "speedtest", "--lab", "--virtual", "--json")
	if got.status != 143 || !strings.Contains(got.stderr, "terminated before anything was measured") || !json.Valid([]byte(got.stdout)) {
		t.Errorf("got status %d, %q and %q; want 143, a line and a document", got.status, got.stderr, got.stdout)
	}
}

// TestEveryFormat prints the same run in each format.
func TestEveryFormat(t *testing.T) {
	slow(t)
	for format, want := range map[string]string{
		"speedtest": "\n Download:  19.", "table": "download", "markdown": "| ", "csv": ",", "json": `"schema": "bloat/result/1"`,
		"ndjson": `{"type":"probe",`, "openmetrics": "\n# EOF\n",
	} {
		got := bloat(t.Context(), nil, "speedtest", "--lab", "--virtual", "-t", "10", "-i", "3", "--format", format)
		if got.status != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: status %d, and no %q in\n%s%s", format, got.status, want, got.stdout, got.stderr)
		}
	}
}

// TestVirtualTimeIsTheSameEachTime compares whole recordings, byte by byte.
func TestVirtualTimeIsTheSameEachTime(t *testing.T) {
	slow(t)
	dir := t.TempDir()
	var first []byte
	for i := range 3 {
		file := filepath.Join(dir, fmt.Sprint(i))
		got := bloat(t.Context(), nil, "speedtest", "--lab", "fq_codel", "--virtual", "-c", "-t", "5", "-i", "1", "-o", file)
		if got.status != 0 {
			t.Fatalf("status %d: %s%s", got.status, got.stdout, got.stderr)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = b
		} else if !bytes.Equal(b, first) {
			t.Errorf("run %d made another recording than the first, of %d and %d bytes", i+1, len(b), len(first))
		}
	}
}
