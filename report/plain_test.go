package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report/stat"
)

// plainRun is a run with idle, download and upload medians as told, all samples of a phase equal.
func plainRun(idle, down, up time.Duration) *Result {
	r := New(queueRun("fifo", 40*msec, 40*msec, 0))
	for i := range r.Phases {
		p := &r.Phases[i]
		d := idle
		switch p.Name {
		case "download":
			d = down
		case "upload":
			d = up
		}
		for j := range p.Latency {
			l := &p.Latency[j]
			x := make([]time.Duration, 100)
			for k := range x {
				x[k] = d
			}
			l.Summary = stat.Summarize(x, 0)
			l.MedianRange, l.P90Range = stat.Between(d, d, d), stat.Between(d, d, d)
		}
	}
	r.Findings = nil
	r.Complete()
	r.Findings = nil
	return r
}

func TestThePlainSentence(t *testing.T) {
	for _, tt := range []struct {
		name           string
		idle, down, up time.Duration
		want           string
	}{
		{"the letter's example", 12 * msec, 14 * msec, 480 * msec, "Under upload your delay rises from 12 to 480 ms: calls will break up. Download is fine."},
		{"nothing to notice", 40 * msec, 41 * msec, 45 * msec, "Your delay is 40 ms, and 45 ms at most under download or upload: a call will not notice."},
		{"the advice's edge, below", 10 * msec, 10 * msec, 60*msec - 1, "Your delay is 10 ms, and 60 ms at most under download or upload: a call will not notice."},
		{"the advice's edge, at it", 10 * msec, 10 * msec, 60 * msec,
			"Under upload your delay rises from 10 to 60 ms: noticeable, and still good enough for calls. Download is fine."},
		{"150 ms one way", 20 * msec, 20 * msec, 160 * msec,
			"Under upload your delay rises from 20 to 160 ms: noticeable, and still good enough for calls. Download is fine."},
		{"above 150 ms one way", 20 * msec, 20 * msec, 160*msec + 1,
			"Under upload your delay rises from 20 to 160 ms: in calls people will talk over each other. Download is fine."},
		{"400 ms one way", 20 * msec, 410 * msec, 20 * msec,
			"Under download your delay rises from 20 to 410 ms: in calls people will talk over each other. Upload is fine."},
		{"a satellite", 600 * msec, 610 * msec, 600 * msec,
			"Even without load your delay of 600 ms is long for a call. Under download or upload it stays at 610 ms at most."},
		{"an idle delay that is bad already is not fine", 900 * msec, 905 * msec, 1500 * msec,
			"Even without load your delay of 900 ms is long for a call. Under upload your delay rises from 900 to 1500 ms: calls will break up. Under download the load adds little to it."},
		{"equal verdicts are one sentence", 12 * msec, 480 * msec, 480 * msec,
			"Under download and under upload your delay rises from 12 to 480 ms: calls will break up."},
		{"equal verdicts of different delays", 12 * msec, 480 * msec, 700 * msec,
			"Under download your delay rises from 12 to 480 ms, and under upload it rises from 12 to 700 ms: calls will break up."},
		{"tiny delays", 50 * time.Microsecond, 60 * time.Microsecond, 50 * time.Microsecond,
			"Your delay is 0.05 ms, and 0.06 ms at most under download or upload: a call will not notice."},
	} {
		if got := plainRun(tt.idle, tt.down, tt.up).Plain(); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestThePlainSentenceMindsTheTail(t *testing.T) {
	r := plainRun(20*msec, 30*msec, 20*msec)
	for i := range r.Induced {
		if d := &r.Induced[i]; d.Phase == "download" {
			d.Loaded.P90, d.P90.Value = 500*msec, 480*msec
		}
	}
	want := "Under download your delay stays near 30 ms (one time in ten 500 ms or more): calls will break up. Upload is fine."
	if got := r.Plain(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A noisy idle phase is no excuse: the two runs differ in the tail of the idle delay alone.
func TestThePlainSentenceTakesTheAddedTailFromTheIdleMedian(t *testing.T) {
	sentence := func(idleP90, loadedP90 time.Duration) string {
		r := plainRun(42*msec, 120*msec, 42*msec)
		for i := range r.Induced {
			if d := &r.Induced[i]; d.Phase == "download" {
				d.Idle.P90, d.Loaded.P90, d.P90.Value = idleP90, loadedP90, loadedP90-idleP90
			}
		}
		return r.Plain()
	}
	want := "Under download your delay rises from 42 to 120 ms (one time in ten %s ms or more): in calls people will talk over each other. Upload is fine."
	for _, tt := range []struct {
		idle, loaded time.Duration
		tail         string
	}{{44100 * time.Microsecond, 176400 * time.Microsecond, "176"}, {81500 * time.Microsecond, 179100 * time.Microsecond, "179"}} {
		if got, want := sentence(tt.idle, tt.loaded), strings.Replace(want, "%s", tt.tail, 1); got != want {
			t.Errorf("idle p90 %v: got %q, want %q", tt.idle, got, want)
		}
	}
}

func TestNoPlainSentenceWithoutAWholeResult(t *testing.T) {
	for name, rec := range map[string]*bufferbloat.Recording{
		"no upload": twoOfFiveRun(), "no replies": silentRun(), "interrupted": interruptedRun(), "idle only": idleRun(), "failed": failedRun(),
	} {
		if got := New(rec).Plain(); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	r := plainRun(12*msec, 14*msec, 480*msec)
	r.Findings = []bufferbloat.Finding{{Code: "x", Severity: bufferbloat.Voids, Text: "x"}}
	if got := r.Plain(); got != "" {
		t.Errorf("a void result says %q", got)
	}
}

// A server that is killed in mid-test leaves a rate that is not that of the test.
func TestAGoodputThatWasCutShortSaysSoInEveryFormat(t *testing.T) {
	rec := fifoRun()
	for i := range rec.Flows {
		if rec.Flows[i].Direction == load.Download {
			rec.Flows[i].Error = "the server went away in the middle of the test: EOF"
		}
	}
	rec.Findings = []bufferbloat.Finding{{Code: "load_failed", Severity: bufferbloat.Voids, Phase: "download", Text: "download: none of the 5 streams ran to its end"}}
	r := New(rec)
	for name, tt := range map[string]struct{ got, want string }{
		"speedtest":   {written(t, r.WriteSpeedtest), " Mbps (cut short: no stream ran to its end)\n"},
		"table":       {written(t, r.WriteTable), " (cut short) |"},
		"markdown":    {written(t, r.WriteMarkdown), " (cut short) |"},
		"csv":         {written(t, r.WriteCSV), ",0,\n"}, // download_streams_whole
		"json":        {written(t, r.WriteJSON), `"cut_short": true`},
		"json null":   {written(t, r.WriteJSON), `"download_goodput_bps": null`},
		"openmetrics": {written(t, r.WriteOpenMetrics), `cut_short="true"`},
	} {
		if !strings.Contains(tt.got, tt.want) {
			t.Errorf("%s: no %q in\n%s", name, tt.want, tt.got)
		}
	}
	if r.Status() != 4 {
		t.Errorf("status %d, want 4", r.Status())
	}
	rec = fifoRun()
	rec.Flows[0].Error = "the server went away"
	if out := written(t, New(rec).WriteSpeedtest); !strings.Contains(out, "(4 of 5 streams ran to their end)") {
		t.Errorf("one of five streams broke off, and nothing says so in\n%s", out)
	}
}

func TestFewSamplesAreOneLine(t *testing.T) {
	rec := queueRun("fifo", 258*msec, 290*msec, 20*msec)
	for i := range rec.Probes {
		all := rec.Probes[i].Samples
		kept := all[:0]
		for j, s := range all {
			if j%20 == 0 {
				kept = append(kept, s)
			}
		}
		rec.Probes[i].Samples = kept
	}
	r := New(rec)
	var got []string
	for _, f := range r.Findings {
		if strings.HasPrefix(f.Code, "few_samples") {
			got = append(got, f.Text)
		}
	}
	want := "3 answered icmp probes in idle: too few for percentiles, and no ratio is built on them"
	if len(got) != 1 || !strings.HasPrefix(got[0], "3 answered icmp probes") {
		t.Errorf("got %q, want one line like %q", got, want)
	}
}

// With a table in place of samples there are figures, and nothing that only samples could say.
func TestStatedFigures(t *testing.T) {
	l := func(median time.Duration) []Latency {
		return []Latency{{Series: "ping", Kind: "icmp", Primary: true, Summary: stat.Summary{N: 61, Min: median, P10: median, Median: median, Mean: median, P90: median, Max: median},
			Stated: &Stated{Has: AllFigures, WhyLoss: "it does not see losses"}}}
	}
	r := &Result{Source: &Source{Program: "x"}, Series: []Series{{Name: "ping", Kind: "icmp", Uncounted: true}}, Phases: []Phase{
		{Name: "idle", Kind: bufferbloat.Idle, Reached: true, Untimed: true, Latency: l(12 * msec)},
		{Name: "upload", Kind: bufferbloat.Load, Reached: true, Untimed: true, UnderLoad: true, Latency: l(480 * msec),
			Goodput: []Goodput{{Direction: load.Upload, OK: true, Rate: bitrate.Mbit}}},
	}}
	r.Complete()
	out := written(t, r.WriteSpeedtest)
	for _, want := range []string{"(in msec, 61 pings, - packet loss)", "     Loss:       - (it does not see losses)", "median +468.0, 90pct +468.0 (median 12.0 idle, 480.0 loaded)",
		"Under upload your delay rises from 12 to 480 ms: calls will break up."} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	validate(t, []byte(written(t, r.WriteJSON)))
	if r.Status() != 0 {
		t.Errorf("status %d, want 0", r.Status())
	}
	if p := Improvement(r, r).Phases[0]; p.OK {
		t.Error("an improvement was computed from tables without samples")
	}
}

// Reports 72: where the tool is the limit, nothing is said of the link.
func TestWhereTheCPUIsTheLimitThereIsNoVerdict(t *testing.T) {
	rec := fifoRun()
	if text := New(rec).Plain(); !strings.Contains(text, "delay") || strings.Contains(text, "CPU") {
		t.Fatalf("with enough CPU: %q", text)
	}
	for i := range rec.CPU.Samples {
		rec.CPU.Samples[i].Busy = []float64{0.99, 0.1}
	}
	if text := New(rec).Plain(); !strings.HasPrefix(text, "Limited by CPU: ") || strings.Contains(text, "delay") {
		t.Errorf("with a busy CPU: %q", text)
	}
}

// The block of speedtest-netperf.sh.
func TestTheCPUBlockHasALineForEachCore(t *testing.T) {
	rec := fifoRun()
	p := &New(rec).Phases[1]
	var at []time.Duration
	var values []float64
	for _, s := range rec.CPU.Samples {
		at, values = append(at, s.At), append(values, 1.8e9)
	}
	rec.Others = append(rec.Others, bufferbloat.Quantity{Name: "cpu0::frequency", Unit: "Hz", At: at, Values: values})
	out := written(t, New(rec).WriteSpeedtestCPU)
	want := fmt.Sprintf(" CPU Load: [in %% busy (avg +/- std dev) @ avg frequency, %d samples]\n     cpu0: %5.1f +/- %4.1f  @ 1800 MHz\n", p.CPU.Samples,
		100*p.CPU.Cores[0].Mean, 100*p.CPU.Cores[0].StdDev)
	if !strings.Contains(out, want) || !strings.Contains(out, " Overhead: [in % used of total CPU available]\nspeedtest: ") {
		t.Errorf("no %q in\n%s", want, out)
	}
}
