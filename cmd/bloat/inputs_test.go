package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const pings = `PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.
64 bytes from 192.0.2.1: icmp_seq=1 ttl=64 time=10.1 ms
64 bytes from 192.0.2.1: icmp_seq=2 ttl=64 time=10.3 ms

--- 192.0.2.1 ping statistics ---
2 packets transmitted, 2 received, 0% packet loss, time 1001ms
rtt min/avg/max/mdev = 10.100/10.200/10.300/0.100 ms
`

// runApp runs one command line in this process.
func runApp(t *testing.T, words ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs, version: "v0.0-test", now: time.Now}
	status = a.run(t.Context(), append([]string{"bloat"}, words...))
	return status, out.String(), errs.String()
}

func makePings(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(pings), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestShowPlotAndCompareRefuseWhatIsNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	good := makePings(t, filepath.Join(dir, "good.txt"))
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		t.Skipf("no FIFO here: %v", err)
	}
	for _, words := range [][]string{
		{"show", fifo}, {"show", dir}, {"show", "/dev/null"}, {"show", "--format", "ndjson", fifo}, {"show", fifo, good},
		{"plot", fifo}, {"plot", dir}, {"compare", fifo, good}, {"compare", good, fifo}, {"compare", "/dev/null", good},
	} {
		status, _, stderr := runApp(t, words...)
		if status != statusFailed || !strings.Contains(stderr, "is not a regular file") {
			t.Errorf("bloat %q: status %d, stderr %q; want status %d and that it is not a regular file", words, status, stderr, statusFailed)
		}
	}
}

func TestAFolderOfRunsIsReadPastAFIFOWhichIsNamed(t *testing.T) {
	dir := t.TempDir()
	makePings(t, filepath.Join(dir, "good.txt"))
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o666); err != nil {
		t.Skipf("no FIFO here: %v", err)
	}
	var errs bytes.Buffer
	runs, err := (&app{stderr: &errs}).openRuns(dir)
	if err != nil || len(runs) != 1 {
		t.Fatalf("openRuns: %d runs, %v; want 1", len(runs), err)
	}
	if got, want := errs.String(), "bloat: "+fifo+": is not a regular file; skipped\n"; got != want {
		t.Errorf("stderr %q, want %q", got, want)
	}
}

func TestOpenTakesTheProcessOwnDescriptors(t *testing.T) {
	for path, want := range map[string]bool{
		"/dev/stdin": true, "/dev/fd/63": true, "/proc/self/fd/0": true, "/dev/null": false, "/dev/fd": false, "/dev/fd/../tty": false, "fd/3": false,
	} {
		if got := isDescriptor(path); got != want {
			t.Errorf("isDescriptor(%q) = %t, want %t", path, got, want)
		}
	}
}

func TestShowPlotAndCompareEscapeFileNames(t *testing.T) {
	dir := t.TempDir()
	odd := makePings(t, filepath.Join(dir, "a\x1b[31m\nbloat: b.txt"))
	missing := filepath.Join(dir, "no\x1b]0;x\afile")
	garbage := filepath.Join(dir, "bad\x1b[2J")
	if err := os.WriteFile(garbage, []byte("garbage\x1b[0m\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{
		{"show", odd, odd}, {"show", missing}, {"show", odd, missing}, {"show", garbage}, {"show", odd, "--format", "ndjson"},
		{"plot", odd}, {"plot", missing}, {"plot", garbage}, {"plot", odd, "-o", missing}, {"show", odd, "-o", filepath.Join(missing, "x")},
		{"compare", odd, odd}, {"compare", odd, missing}, {"compare", garbage, odd}, {"compare", odd, odd, "--format", "markdown"},
		{"compare", odd, odd, "--format", "json"}, {"compare", odd, odd, "--format", "junit"}, {"compare", odd, odd, "--format", "benchstat"},
		{"speedtest", "--lab", "fifo", "--virtual", "--against", missing}, {"\x1b[0m"}, {"show", "--\x1b"},
	} {
		_, stdout, stderr := runApp(t, words...)
		if both := stdout + stderr; strings.ContainsAny(both, "\x1b\a") {
			t.Errorf("bloat %q prints a control character: %q", words, both)
		}
		if strings.Contains(stderr, "\nbloat: b.txt") || strings.Contains(stdout, "\nbloat: b.txt") {
			t.Errorf("bloat %q: a name begins a line: %q", words, stdout+stderr)
		}
	}
	if _, stdout, _ := runApp(t, "show", odd, odd); !strings.Contains(stdout, `a\x1b[31m\nbloat: b.txt`) {
		t.Errorf("show does not name the file in its heading: %q", stdout)
	}
}
