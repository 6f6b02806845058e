package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

// The tolerances of the emulated link against the kernel's own shaper.
const (
	labGoodputTolerance = 0.01
	labRTTTolerance     = 0.05
)

// loaded are the figures of one direction.
type loaded struct {
	goodput     bitrate.Bitrate
	median, p90 time.Duration
}

func (d document) loaded(t *testing.T, name string) loaded {
	t.Helper()
	ph := d.phase(t, name)
	var f loaded
	f.goodput, f.median = ph.figures(t)
	for _, l := range ph.Latency {
		if l.Primary && l.P90 != nil {
			f.p90 = *l.P90
			return f
		}
	}
	t.Fatalf("phase %q: no 90th percentile: %+v", name, ph.Latency)
	return f
}

// The same speedtest through tbf over bfifo and through the emulated link with the same rate and depth. Each is run three times, in turn, and
// the medians are compared, because what TCP does with a full queue differs from run to run.
func TestAccuracyOfTheLabBesideTheKernelsShaper(t *testing.T) {
	if os.Getenv(accuracyVariable) == "" {
		t.Skipf("set %s=1 (make bench) for the comparison, which takes some minutes", accuracyVariable)
	}
	const rounds, length = 3, 20 * time.Second
	l := link{20 * bitrate.Mbit, 4 * bitrate.Mbit, 250 * time.Millisecond}
	var kernel, lab [2][]loaded
	for range rounds {
		d, algorithm := throughShaper(t, l, length)
		e := throughLab(t, l, length, algorithm)
		for i, name := range []string{"download", "upload"} {
			kernel[i], lab[i] = append(kernel[i], d.loaded(t, name)), append(lab[i], e.loaded(t, name))
		}
	}
	fmt.Println("| direction | goodput by tbf | by the lab | off | median RTT by tbf | by the lab | off | 90pct by tbf | by the lab | off |")
	fmt.Println("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for i, name := range []string{"download", "upload"} {
		goodput := func(f loaded) float64 { return f.goodput.Mbps() }
		middle := func(f loaded) float64 { return ms(f.median) }
		high := func(f loaded) float64 { return ms(f.p90) }
		row := "| " + name
		for _, c := range []struct {
			what      string
			of        func(loaded) float64
			tolerance float64
		}{{"goodput", goodput, labGoodputTolerance}, {"median RTT", middle, labRTTTolerance}, {"90th percentile of the RTT", high, labRTTTolerance}} {
			want, got := medianOf(kernel[i], c.of), medianOf(lab[i], c.of)
			off := got/want - 1
			row += fmt.Sprintf(" | %.3f | %.3f | %+.2f %%", want, got, off*100)
			if math.Abs(off) > c.tolerance {
				t.Errorf("%s: %s %.3f through the lab, %.3f through tbf: off by %+.2f %%, want at most %.0f %%", name, c.what, got, want, off*100, c.tolerance*100)
			}
		}
		fmt.Println(row + " |")
	}
}

func medianOf(runs []loaded, of func(loaded) float64) float64 {
	values := make([]float64, len(runs))
	for i, r := range runs {
		values[i] = of(r)
	}
	return median(values)
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// throughShaper runs a speedtest through the kernel's shaper, and returns the congestion control of both ends.
func throughShaper(t *testing.T, l link, length time.Duration) (document, string) {
	t.Helper()
	n := testnet.New(t)
	n.Down.Shape(t, testnet.Queue{Rate: l.down, Buffer: l.buffer})
	n.Up.Shape(t, testnet.Queue{Rate: l.up, Buffer: l.buffer})
	algorithm := n.Server.SetCongestionControl(t, "cubic", "reno")
	n.Client.SetCongestionControl(t, algorithm)
	serve(t, n)
	return speedtest(t, n, length, "-i", "2", "--probe", "icmp").result, algorithm
}

// throughLab runs the same speedtest in bloat lab.
func throughLab(t *testing.T, l link, length time.Duration, algorithm string) document {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*length+60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "lab", "--tcp", algorithm, "--down", l.down.String(), "--up", l.up.String(), "--rtt", "0s",
		"--buffer", l.buffer.String(), "--", binary, "speedtest", "-H", "192.0.2.2", "-t", seconds(length), "--json", "-i", "2", "--probe", "icmp")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	for _, lacking := range []string{"netns", "userns", "veth", "packet-socket"} {
		if _, reason, ok := strings.Cut(stderr.String(), "no "+lacking+" here: "); ok {
			facility.Missing(t, lacking, reason)
		}
	}
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == statusPartial) {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, stderr.String(), stdout.String())
	}
	t.Log(stderr.String())
	return parse(t, stdout.Bytes())
}

// statusPartial is what the program exits with where findings weaken the result.
const statusPartial = 4

// A stock program in the lab finds the delay that was asked for.
func TestPingInTheLabSeesItsDelay(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("ping"); err != nil {
		facility.Missing(t, "ping", err.Error())
	}
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "lab", "--rtt", "30ms", "--", "ping", "-n", "-D", "-i", "0.05", "-c", "20", "192.0.2.2")
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	for _, lacking := range []string{"netns", "userns", "veth", "packet-socket"} {
		if _, reason, ok := strings.Cut(string(out), "no "+lacking+" here: "); ok {
			facility.Missing(t, lacking, reason)
		}
	}
	replies := pingReply.FindAllStringSubmatch(string(out), -1)
	if err != nil || len(replies) < 18 {
		t.Fatalf("%d of 20 pings answered, %v:\n%s", len(replies), err, out)
	}
	var rtts []float64
	for _, r := range replies {
		v, err := strconv.ParseFloat(r[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		rtts = append(rtts, v)
	}
	// 98 bytes take 0.2 ms at 4 Mbit/s and 0.04 ms at 20 Mbit/s.
	if got := median(rtts); got < 30.2 || got > 33 {
		t.Errorf("ping's median is %.3f ms, want 30 ms and little more:\n%s", got, out)
	}
}
