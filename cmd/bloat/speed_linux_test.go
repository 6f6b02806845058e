package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// The tests of this file measure and judge nothing: they print what they found, as docs/flent.md has it.

// built returns the program as it is installed, or skips: the measurements take some time and a quiet machine.
func built(t *testing.T) string {
	t.Helper()
	if os.Getenv("BLOAT_SPEED") == "" {
		t.Skip("set BLOAT_SPEED=1 to measure speed; make bench does")
	}
	path := filepath.Join(t.TempDir(), "bloat")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// timed runs a command and returns how long it took, its CPU time and the most memory that it held, in bytes.
func timed(t *testing.T, name string, args ...string) (wall, cpu time.Duration, memory int64) {
	t.Helper()
	cmd := exec.Command(name, args...)
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatalf("%s %q: %v", name, args, err)
			}
			return time.Since(began), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), memory
		case <-look.C:
			memory = max(memory, peak(cmd.Process.Pid))
		}
	}
}

// peak is the most memory that a process has held so far. What wait tells is of no use here: it begins with the memory of the process that forked.
func peak(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	var kib int64
	for line := range strings.Lines(string(status)) {
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}

func median[T int64 | float64 | time.Duration](x []T) T {
	slices.Sort(x)
	return x[len(x)/2]
}

// TestSpeedAgainstFlent shows the largest of flent's own test files with both programs, one after the other.
func TestSpeedAgainstFlent(t *testing.T) {
	bloat := built(t)
	dir := os.Getenv("BLOAT_FLENT_DATA")
	if dir == "" {
		dir = "../../../shared/data/flent"
	}
	file := filepath.Join(dir, "test-rrul_be-socket_stats.flent.gz")
	if _, err := os.Stat(file); err != nil {
		facility.Missing(t, "flent-data", err.Error())
	}
	flent, err := exec.LookPath("flent")
	if err != nil {
		facility.Missing(t, "flent", err.Error())
	}
	const pairs = 21
	var ours, theirs, cpuOurs, cpuTheirs []time.Duration
	var ratios []float64
	for range pairs {
		a, cpuA, _ := timed(t, bloat, "show", file)
		b, cpuB, _ := timed(t, flent, "-f", "summary", file)
		ours, theirs, ratios = append(ours, a), append(theirs, b), append(ratios, float64(b)/float64(a))
		cpuOurs, cpuTheirs = append(cpuOurs, cpuA), append(cpuTheirs, cpuB)
	}
	t.Logf("%s, %d pairs: bloat show %v (least %v, CPU %v), flent -f summary %v (least %v, CPU %v), ratio %.1f (%.1f to %.1f)", filepath.Base(file), pairs,
		round(median(ours)), round(slices.Min(ours)), round(median(cpuOurs)), round(median(theirs)), round(slices.Min(theirs)), round(median(cpuTheirs)),
		median(ratios), slices.Min(ratios), slices.Max(ratios))
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// TestSpeedOfALongRecording shows one of some 100 MB: two million samples, five and a half hours with one each 10 ms.
func TestSpeedOfALongRecording(t *testing.T) {
	bloat := built(t)
	path := filepath.Join(t.TempDir(), "long.bloat.json.gz")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := bufferbloat.WriteRecording(file, longRecording(2_000_000)); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := exec.Command("sh", "-c", `gzip -dc "$1" | wc -c`, "sh", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	const runs = 7
	var walls, cpus []time.Duration
	var memories []int64
	for range runs {
		wall, cpu, memory := timed(t, bloat, "show", path)
		walls, cpus, memories = append(walls, wall), append(cpus, cpu), append(memories, memory)
	}
	t.Logf("recording of %s bytes uncompressed, %d runs: %v (least %v, CPU %v), at most %d MB of memory", bytes.TrimSpace(text), runs,
		round(median(walls)), round(slices.Min(walls)), round(median(cpus)), slices.Max(memories)/1e6)
}

func longRecording(n int) *bufferbloat.Recording {
	const interval = 10 * time.Millisecond
	rnd := rand.New(rand.NewPCG(1, 2))
	ended := time.Duration(n) * interval
	rec := &bufferbloat.Recording{Version: "v0.0-test", Started: time.Unix(1.7e9, 0), Ended: ended, Plan: bufferbloat.Plan{Name: "speedtest"}}
	at := []time.Duration{0, ended / 10, ended - ended/10, ended}
	for i, name := range []string{"idle", "download", "after"} {
		kind := []bufferbloat.PhaseKind{bufferbloat.Idle, bufferbloat.Load, bufferbloat.After}[i]
		rec.Phases = append(rec.Phases, bufferbloat.Phase{Name: name, Kind: kind, Start: at[i], End: at[i+1], From: at[i], To: at[i+1]})
		rec.Plan.Phases = append(rec.Plan.Phases, bufferbloat.PhasePlan{Name: name, Kind: kind, Length: at[i+1] - at[i]})
	}
	s := bufferbloat.ProbeSeries{Name: "icmp", Kind: "icmp", Primary: true, Interval: interval}
	for i := range n {
		due := time.Duration(i) * interval
		s.Samples = append(s.Samples, probe.Sample{Seq: uint64(i), Due: due, Sent: due + time.Duration(rnd.IntN(100_000)), Outcome: probe.Received,
			RTT: 20*time.Millisecond + time.Duration(rnd.IntN(50_000_000)), Stamp: host.KernelStamp})
	}
	rec.Probes = append(rec.Probes, s)
	f := bufferbloat.Flow{Name: "download 1", Phase: "download", Direction: load.Download, Started: at[1]}
	for t := at[1]; t < at[2]; t += 100 * time.Millisecond {
		f.Points = append(f.Points, bufferbloat.Point{At: t, Bytes: uint64(t / 1000)})
	}
	last := f.Points[len(f.Points)-1]
	f.Result = bufferbloat.FlowResult{Bytes: last.Bytes, CountedBy: load.CountedByReads, First: at[1], Last: last.At, Stopped: at[2], Flowed: true}
	rec.Flows = append(rec.Flows, f)
	return rec
}

func TestALongRecordingIsThatOfItsPlan(t *testing.T) {
	if err := longRecording(3000).Check(); err != nil {
		t.Error(fmt.Errorf("the recording that speed is measured with: %w", err))
	}
}
