package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
	"bufferbloat/report/stat"
)

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func finding(r *Result, code string) (bufferbloat.Finding, bool) {
	i := slices.IndexFunc(r.Findings, func(f bufferbloat.Finding) bool { return f.Code == code })
	if i < 0 {
		return bufferbloat.Finding{}, false
	}
	return r.Findings[i], true
}

// idleOf is a recording of an idle line with the given round-trip times, one each 100 ms; a negative one is lost.
func idleOf(rtts ...time.Duration) *bufferbloat.Recording {
	m := newMaker(options(false))
	m.rec.Plan.Phases = m.rec.Plan.Phases[:1]
	m.phase("idle", time.Duration(max(1, len(rtts)))*100*msec, 40*msec, 0)
	s := &m.rec.Probes[0]
	s.Samples = s.Samples[:len(rtts)]
	for i, rtt := range rtts {
		s.Samples[i].RTT = rtt
		if rtt < 0 {
			s.Samples[i].RTT, s.Samples[i].Outcome = 0, probe.Lost
		}
	}
	return m.rec
}

func TestStatus(t *testing.T) {
	late := fifoRun()
	for i := range late.Probes[0].Samples {
		late.Probes[0].Samples[i].Sent += 150 * msec
	}
	stoppedIdle := interruptedRun()
	stoppedIdle.Phases, stoppedIdle.Flows = stoppedIdle.Phases[:1], nil
	stoppedAtOnce := interruptedRun()
	stoppedAtOnce.Phases, stoppedAtOnce.Flows, stoppedAtOnce.Probes[0].Samples = nil, nil, nil
	for _, tt := range []struct {
		name string
		rec  *bufferbloat.Recording
		want int
	}{
		{"a good run", fifoRun(), 0},
		{"idle only", idleRun(), 0},
		{"an idle line without a reply", idleOf(-1, -1, -1), 1},
		{"no stream in either direction", failedRun(), 1},
		{"no replies, but goodput", silentRun(), 4},
		{"two of five streams and no upload", twoOfFiveRun(), 4},
		{"interrupted under load", interruptedRun(), 4},
		{"interrupted in the idle phase", stoppedIdle, 4},
		{"interrupted before anything", stoppedAtOnce, 1},
		{"probes sent too late", late, 4},
		{"an empty recording", &bufferbloat.Recording{}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := New(tt.rec)
			if got := r.Status(); got != tt.want {
				t.Errorf("status %d, want %d; findings %v", got, tt.want, r.Findings)
			}
			if cause := r.Cause(); (cause != "") != (tt.want == 1) {
				t.Errorf("cause %q with status %d", cause, tt.want)
			}
			for _, severe := range r.Findings {
				if severe.Severity == bufferbloat.Voids && r.Status() == 0 {
					t.Errorf("status 0 beside %v", severe)
				}
			}
			r.Signal = 2
			if got := r.Status(); got != 130 {
				t.Errorf("status %d after signal 2, want 130", got)
			}
		})
	}
}

// Reports 12: one sample gives percentiles of zero, or an error.
func TestOneSampleFillsAllColumnsAndIsMarked(t *testing.T) {
	r := New(idleOf(12500 * time.Microsecond))
	out := written(t, r.WriteSpeedtest)
	for _, want := range []string{"(in msec, 1 ping, 0.00% packet loss)", "      Min:  12.500\n", "    10pct:  12.500 (too few pings)\n",
		"   Median:  12.500 (too few pings)\n", "      Avg:  12.500\n", "    90pct:  12.500 (too few pings)\n", "      Max:  12.500\n", "too few for percentiles"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing from\n%s", want, out)
		}
	}
	rec := fifoRun()
	rec.Probes[0].Samples = append(rec.Probes[0].Samples[:1], rec.Probes[0].Samples[50:]...) // one idle sample
	r = New(rec)
	if f := r.Induced[0].Factor; f.State != stat.TooFew {
		t.Errorf("a ratio to one idle sample: %v, want it withheld", f)
	}
	if p := Improvement(r, New(fqCodelRun())).Phases[0]; p.Subtracted.State != stat.TooFew {
		t.Errorf("an improvement over one idle sample: %v, want it withheld", p.Subtracted)
	}
}

// Reports 6 and 62: total loss has no figures, and a refused test is no result.
func TestAbsenceIsADashAndNeverZero(t *testing.T) {
	for _, name := range []string{"no_replies", "failed"} {
		r := New(recordings()[name])
		for _, out := range []string{written(t, r.WriteSpeedtest), written(t, r.WriteTable), written(t, r.WriteMarkdown)} {
			if regexp.MustCompile(`\b0\.000\b|\b0\.00 Mbps`).MatchString(out) {
				t.Errorf("%s prints a zero:\n%s", name, out)
			}
		}
	}
	out := written(t, New(silentRun()).WriteSpeedtest)
	if !strings.Contains(out, "(in msec, 50 pings, 100.00% packet loss)\n      Min:       -\n    10pct:       -\n") {
		t.Errorf("no dashes in\n%s", out)
	}
	out = written(t, New(failedRun()).WriteSpeedtest)
	if !strings.Contains(out, " Download:      - (no result: none of the 5 streams carried data: 192.0.2.2:12865: connection refused") {
		t.Errorf("no cause in\n%s", out)
	}
}

// Reports 62: latency taken without load is not labelled as under load.
func TestLatencyWithoutLoadHasNoRows(t *testing.T) {
	r := New(twoOfFiveRun())
	out := written(t, r.WriteSpeedtest)
	_, upload, _ := strings.Cut(out, "   Upload:")
	upload, _, _ = strings.Cut(upload, "Induced")
	if strings.Contains(upload, "Median:") || !strings.Contains(upload, "no load, so no latency under load; without it 10 pings had a median of 40.1") {
		t.Errorf("after the failed upload:\n%s", upload)
	}
	if d := r.Induced[1]; d.OK {
		t.Errorf("induced latency of a phase without load: %+v", d)
	}
}

// Reports 14: a probe still inside its time limit is neither lost nor received, and trailing losses count.
func TestLossIsOfTheDecided(t *testing.T) {
	rec := idleOf(msec, 2*msec, -1, -1, -1)
	if l := New(rec).Phases[0].Primary(); l.N != 2 || l.Lost != 3 {
		t.Errorf("1 and 2 of 5 answered: n %d, lost %d", l.N, l.Lost)
	}
	rec.Probes[0].Samples[4].Outcome = probe.Unfinished
	l := New(rec).Phases[0].Primary()
	if loss, _ := l.Loss(); loss != 0.5 || l.Count.Unfinished != 1 || l.Count.Sent != 5 {
		t.Errorf("one unfinished: loss %v, %+v", loss, l.Count)
	}
}

// Reports 50: duplicates give no negative loss.
func TestDuplicatesAreNotReplies(t *testing.T) {
	rec := idleOf(msec, msec, msec, msec)
	rec.Probes[0].Tally.Duplicates = 3
	r := New(rec)
	if l := r.Phases[0].Primary(); l.N != 4 || l.Lost != 0 || r.Series[0].Tally.Duplicates != 3 {
		t.Errorf("n %d, lost %d, duplicates %d, want 4, 0, 3", l.N, l.Lost, r.Series[0].Tally.Duplicates)
	}
}

// Reports 15: one rule. Reports 19: the summary shows the samples themselves.
func TestFiguresAreThoseOfTheSamples(t *testing.T) {
	rtts := slices.Concat(slices.Repeat([]time.Duration{70 * msec}, 200), slices.Repeat([]time.Duration{250 * msec}, 5))
	l := New(idleOf(rtts...)).Phases[0].Primary()
	got := []string{ms(l.Min), ms(l.P10), ms(l.Median), ms(l.Mean), ms(l.P90), ms(l.Max)}
	if want := []string{"70.000", "70.000", "70.000", "74.390", "70.000", "250.000"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	var ten []time.Duration
	for i := range 10 {
		ten = append(ten, time.Duration(i+1)*msec)
	}
	if m := New(idleOf(ten...)).Phases[0].Primary().Median; m != 5500*time.Microsecond {
		t.Errorf("median of 1 to 10 ms: %v, want 5.5ms", m)
	}
}

// Reports 20: an RTT below one unit is taken as missing.
func TestTinyDelaysAreDelays(t *testing.T) {
	rec := queueRun("fifo", 10*msec, 10*msec, 0)
	for i := range rec.Probes[0].Samples[:50] {
		rec.Probes[0].Samples[i].RTT = 50 * time.Microsecond
	}
	r := New(rec)
	if out := written(t, r.WriteSpeedtest); !strings.Contains(out, "   Median:   0.050\n") {
		t.Errorf("0.05 ms is not shown:\n%s", out)
	}
	d := r.Induced[0]
	if !d.OK || d.Factor.State != stat.Resolved || !d.NearResolution || d.Factor.Value < 195 || d.Factor.Value > 210 {
		t.Errorf("loaded over idle: %v, near resolution %v, want about 200x and the mark", d.Factor, d.NearResolution)
	}
	if f, ok := finding(r, "near_resolution"); !ok || !strings.Contains(f.Text, "0.050 ms") {
		t.Errorf("finding %v", f)
	}
	zero := New(idleOf(make([]time.Duration, 20)...))
	if out := written(t, zero.WriteSpeedtest); !strings.Contains(out, "   Median:   0.000\n") || zero.Status() != 0 {
		t.Errorf("twenty replies that took no time are replies:\n%s", out)
	}
}

// Reports 21: very large numbers.
func TestLargeNumbersWidenTheColumn(t *testing.T) {
	m := newMaker(options(false))
	m.phase("idle", 5*second, 40*msec, 0)
	m.phase("download", 10*second, 1234*msec, 0)
	m.flows(load.Download, 4, 0)
	for i := range m.rec.Flows {
		f := &m.rec.Flows[i].Result
		f.Bytes, f.First, f.Last = 12.5e9, m.rec.Phases[1].Start, m.rec.Phases[1].End
	}
	m.phase("upload", 1000*second, 41*msec, 0)
	m.flows(load.Upload, 1, 0)
	f := &m.rec.Flows[len(m.rec.Flows)-1].Result
	f.Bytes, f.First, f.Last = 1.2e12, m.rec.Phases[2].Start, m.rec.Phases[2].End
	r := New(m.rec)
	out := written(t, r.WriteSpeedtest)
	for _, want := range []string{
		" Download: 40000.00 Mbps (4 of 5 streams)\n", "      Min:  1234.0", "   Upload:  9600.00 Mbps (1 of 5 streams)\n", "    10pct:    40.0",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing from\n%s", want, out)
		}
	}
	if g := r.Phases[1].Goodput[0]; g.Rate != 40*bitrate.Gbit || g.Bytes != 50e9 {
		t.Errorf("%v, %d bytes", g.Rate, g.Bytes)
	}
	var points []int
	for line := range strings.Lines(out) {
		if regexp.MustCompile(`^ *(Min|10pct|Median|Avg|90pct|Max|Download|Upload): +[0-9]`).MatchString(line) {
			points = append(points, strings.Index(line, "."))
		}
	}
	if len(slices.Compact(points)) != 1 {
		t.Errorf("decimal points in columns %v:\n%s", points, out)
	}
}

// Reports 41: negative throughput on fast lines; too short a transfer is flagged.
func TestGoodputIsBytesOverTheTimeThatDataFlowed(t *testing.T) {
	m := newMaker(options(false))
	m.phase("idle", 5*second, 60*msec, 0)
	p := m.phase("download", second, 60*msec, 0)
	m.flows(load.Download, 1, 0)
	f := &m.rec.Flows[0].Result
	f.Bytes, f.First, f.Last = 5e6, p.Start+60*msec, p.Start+100*msec
	f.Stopped = f.Last // the server ended it
	r := New(m.rec)
	if g := r.Phases[1].Goodput[0]; !g.OK || g.Rate != bitrate.Gbit {
		t.Errorf("5 MB in 40 ms: %v %v %s, want 1Gbit", g.OK, g.Rate, g.Why)
	}
	if f, ok := finding(r, "streams_missing"); !ok {
		t.Errorf("1 of 5: %v", f)
	}
	m.rec.Plan.Phases[1].Flows = m.rec.Plan.Phases[1].Flows[:1]
	if f, ok := finding(New(m.rec), "short_transfer"); !ok || !strings.Contains(f.Text, "40 ms") {
		t.Errorf("finding %v, want one that names 40 ms", f)
	}
	for _, last := range []time.Duration{f.First, f.First - second, f.First + 1} {
		f.Last, f.Stopped = last, last
		if g := New(m.rec).Phases[1].Goodput[0]; g.OK || g.Why == "" || g.Rate != 0 {
			t.Errorf("a span of %v: %v %v, want no figure", last-f.First, g.OK, g.Rate)
		}
	}
	f.Last, f.CountedBy = p.Start+second, load.NotCounted
	if g := New(m.rec).Phases[1].Goodput[0]; g.OK || !strings.Contains(g.Why, "nobody counted") {
		t.Errorf("bytes that nobody counted: %v %v %q", g.OK, g.Rate, g.Why)
	}
}

// Reports 65: JSON mode ends with status 0 although the test failed.
func TestFailureIsAValidDocumentWithErrorAndStatus(t *testing.T) {
	var byError, byResult bytes.Buffer
	if err := WriteError(&byError, "1.0.0", "speedtest", errors.New("no route\x1b[31m to \xff host"), 1); err != nil {
		t.Fatal(err)
	}
	if err := New(failedRun()).WriteJSON(&byResult); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"WriteError": byError.Bytes(), "a run without streams": byResult.Bytes()} {
		validate(t, b)
		var d document
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		if d.Schema != Schema || d.Status != 1 || d.Error == nil || d.Summary.Download != nil || d.Summary.Upload != nil || d.Summary.DownloadInduced != nil {
			t.Errorf("%s: schema %q, status %d, error %v, summary %+v", name, d.Schema, d.Status, d.Error, d.Summary)
		}
	}
}

// Reports 68: tables with wide signs and control characters.
func TestNamesShiftNothingAndSteerNothing(t *testing.T) {
	names := []string{"測試", "e\u0301t\u0301e", "a\tb", "a\nb\r", "\x1b[31mred", "\u202egnp.exe", "\xff\xfe", "|_*`<b>", ""}
	for _, name := range names {
		rec := fifoRun()
		rec.Path.Host, rec.Probes[0].Target, rec.Probes[1].Name = name, name, name
		rec.Phases[1].Name, rec.Plan.Phases[1].Name = name, name
		for i := range rec.Flows[:5] {
			rec.Flows[i].Phase = name
		}
		rec.Findings = append(rec.Findings, bufferbloat.Finding{Code: name, Severity: bufferbloat.Weakens, Phase: name, Text: "text of " + name})
		r := New(rec)
		for _, write := range []func(io.Writer) error{r.WriteSpeedtest, r.WriteTable, r.WriteMarkdown, r.WriteCSV, Improvement(r, r).WriteText} {
			out := written(t, write)
			for _, c := range out {
				if c < ' ' && c != '\n' || c == 0x7f || c == '\u202e' || c == '\ufffd' {
					t.Fatalf("%q leaves %q in\n%s", name, c, out)
				}
			}
		}
		for _, write := range []func(io.Writer) error{r.WriteTable, r.WriteSpeedtest} {
			lines := strings.Split(written(t, write), "\n")
			width := -1
			for _, line := range lines {
				if !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "+") {
					continue
				}
				if w := columnsOf(line); width >= 0 && w != width {
					t.Errorf("%q: a line of %d columns, others %d:\n%s", name, w, width, strings.Join(lines, "\n"))
				} else {
					width = w
				}
			}
		}
		validate(t, []byte(written(t, r.WriteJSON)))
	}
}

// columnsOf counts terminal columns of the signs used above.
func columnsOf(s string) (n int) {
	for _, r := range s {
		switch {
		case r == 0x301:
		case r >= 0x4e00 && r < 0xa000:
			n += 2
		default:
			n++
		}
	}
	return n
}

func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{"plain é 測": "plain é 測", "a\tb": `a\tb`, "\x1b[31m": `\x1b[31m`, "\xff": `\xff`, "\u202e": `\u202e`,
		"a\u00a0b": `a\u00a0b`, "\u2028": `\u2028`, "\x00": `\x00`, "\U000e0001": `\U000e0001`, "": ""} {
		if got := printable(s); got != want {
			t.Errorf("printable(%q) = %q, want %q", s, got, want)
		}
	}
}

func TestOldParsersFindTheirLines(t *testing.T) {
	out := written(t, New(fifoRun()).WriteSpeedtest)
	for pattern, want := range map[string]int{
		`(?m)^ Download: +[0-9.]+ Mbps$`: 1, `(?m)^   Upload: +[0-9.]+ Mbps$`: 1,
		`(?m)^  Latency: \(in msec, [0-9]+ pings, [0-9.]+% packet loss\)$`: 3,
		`(?m)^ *(Min|10pct|Median|Avg|90pct|Max): +[0-9]+\.[0-9]{3}$`:      18,
		`(?mi)^ *(download|upload):.*Mbps`:                                 2,
	} {
		if got := len(regexp.MustCompile(pattern).FindAllString(out, -1)); got != want {
			t.Errorf("%s: %d lines, want %d in\n%s", pattern, got, want, out)
		}
	}
}

func TestPhasesAreNeverMixed(t *testing.T) {
	rec := fifoRun()
	r := New(rec)
	down := r.Phases[1]
	want := 0
	for _, s := range rec.Probes[0].Samples {
		if s.Sent >= rec.Phases[1].From && s.Sent < rec.Phases[1].To {
			want++
		}
	}
	if down.Primary().N != want || down.Primary().Min < 200*msec {
		t.Errorf("n %d, min %v, want %d, and nothing of the idle phase", down.Primary().N, down.Primary().Min, want)
	}
	rec.Probes[0].Samples[52].Sent = rec.Phases[1].From // due in the ramp, sent in the window
	rec.Probes[0].Samples[57].Sent = rec.Phases[1].To   // sent as the load was told to stop
	if got := New(rec).Phases[1].Primary().N; got != want {
		t.Errorf("n %d, want %d: the window takes what was sent at its start, and not at its end", got, want)
	}
}

func TestBaselineThatMoved(t *testing.T) {
	r := New(irttRun())
	if f, ok := finding(r, "baseline_moved"); !ok || f.Severity != bufferbloat.Weakens || !strings.Contains(f.Text, "40.173 ms before the load and 46.") {
		t.Errorf("finding %v", f)
	}
	if !r.Induced[0].BaselineMoved || !strings.Contains(written(t, r.WriteSpeedtest), "baseline moved") {
		t.Error("the induced latency does not say that the baseline moved")
	}
	if _, ok := finding(New(fifoRun()), "baseline_moved"); ok {
		t.Error("a baseline that held is said to have moved")
	}
}

func TestInducedLatencyStaysSigned(t *testing.T) {
	r := New(queueRun("fifo", 20*msec, 30*msec, 0))
	if d := r.Induced[0]; !d.OK || d.Median.Value > -19*msec || d.Median.Value < -21*msec {
		t.Errorf("20 ms loaded, 40 ms idle: %+v", d.Median)
	}
	if _, ok := finding(r, "induced_negative"); !ok {
		t.Error("no finding")
	}
	if out := written(t, r.WriteSpeedtest); !strings.Contains(out, "median -20.") {
		t.Errorf("no sign in\n%s", out)
	}
}

func TestLateProbesVoidTheSeries(t *testing.T) {
	rec := fifoRun()
	for i := range rec.Probes[0].Samples {
		if i%50 == 0 {
			rec.Probes[0].Samples[i].Sent += 150 * msec
		}
	}
	r := New(rec)
	if f, ok := finding(r, "probes_late"); !ok || f.Severity != bufferbloat.Voids || !r.Series[0].Void {
		t.Errorf("2%% of the probes left 150 ms late: %v", f)
	}
	if p := Improvement(r, New(fqCodelRun())).Phases[0]; p.OK {
		t.Errorf("a ratio of late probes: %v", p.Plain)
	}
	if _, ok := finding(New(fifoRun()), "probes_late"); ok {
		t.Error("punctual probes are said to be late")
	}
	// Those that would have been late are not sent.
	for late, void := range map[uint64]bool{2: false, 6: false, 20: true} { // of some 700
		rec := fifoRun()
		rec.Probes[0].Tally.SenderLate = late
		r := New(rec)
		if f, ok := finding(r, "probes_late"); ok != void || r.Series[0].Void != void || void && !strings.HasPrefix(f.Text, "20 icmp probes were due") {
			t.Errorf("%d were late by more than an interval: void %v, %v", late, r.Series[0].Void, f)
		}
	}
}

func TestBusyHostsWeaken(t *testing.T) {
	rec := fifoRun()
	for i := range rec.CPU.Samples {
		rec.CPU.Samples[i].Busy[1] = 0.99
	}
	for i := range rec.Flows {
		rec.Flows[i].Result.ServerCPU, rec.Flows[i].Result.HasServerCPU = 0.97, true
	}
	r := New(rec)
	for code, want := range map[string]string{"cpu_client": "99% busy", "cpu_server": "97% busy"} {
		if f, ok := finding(r, code); !ok || f.Severity != bufferbloat.Weakens || !strings.Contains(f.Text, want) {
			t.Errorf("%s: %v", code, f)
		}
	}
	if got := written(t, Improvement(r, New(fqCodelRun())).WriteText); !strings.Contains(got, "! before: download: a CPU of this host") {
		t.Errorf("the ratio has no mark:\n%s", got)
	}
}

func TestRecordedFindingsAreNotRepeated(t *testing.T) {
	rec := twoOfFiveRun()
	rec.Findings = append(rec.Findings, bufferbloat.Finding{Code: "streams_missing", Severity: bufferbloat.Weakens, Phase: "download", Text: "recorded"})
	r := New(rec)
	var texts []string
	for _, f := range r.Findings {
		if f.Code == "streams_missing" {
			texts = append(texts, f.Text)
		}
	}
	if !slices.Equal(texts, []string{"recorded"}) {
		t.Errorf("findings %q, want the recorded one alone", texts)
	}
}

func TestTruncatedRecordingUsesTheCounters(t *testing.T) {
	rec := interruptedRun()
	rec.Stopped, rec.Truncated = "", true
	for i := range rec.Flows {
		rec.Flows[i].Result, rec.Flows[i].Error = bufferbloat.FlowResult{}, "the recording ends before the flow did"
	}
	r := New(rec)
	g := r.Phases[1].Goodput[0]
	if !g.OK || g.Rate < 19*bitrate.Mbit || g.Rate > 20*bitrate.Mbit || g.CountedBy != load.CountedByReads || r.Status() != 4 {
		t.Errorf("%v %v by %v, status %d", g.OK, g.Rate, g.CountedBy, r.Status())
	}
	if out := written(t, r.WriteSpeedtest); !strings.Contains(out, "Stopped! the recording was cut off after 12.3 s of 70 s") {
		t.Errorf("no word of it in\n%s", out)
	}
}

func TestImprovement(t *testing.T) {
	m := Improvement(New(fifoRun()), New(fqCodelRun()))
	p := m.Phases[0]
	// (258.109 - 40.173) / (45.147 - 40.173) = 43.8; 258.109 / 45.147 = 5.72
	if !p.OK || stat.FormatRatio(p.Plain.Value) != "5.72x" || p.Subtracted.Value < 43 || p.Subtracted.Value > 45 {
		t.Errorf("%+v", p)
	}
	if p.Subtracted.Low >= p.Subtracted.Value || p.Subtracted.High <= p.Subtracted.Value {
		t.Errorf("interval %v to %v around %v", p.Subtracted.Low, p.Subtracted.High, p.Subtracted.Value)
	}
	again := Improvement(New(fifoRun()), New(fqCodelRun()))
	if !reflect.DeepEqual(m, again) {
		t.Error("the same recordings give another comparison")
	}
	moved := fqCodelRun()
	for i := range moved.Probes[0].Samples {
		moved.Probes[0].Samples[i].RTT += 20 * msec
	}
	if p := Improvement(New(fifoRun()), New(moved)).Phases[0]; p.Subtracted.State != stat.Drifted || p.Plain.State != stat.Resolved {
		t.Errorf("with 20 ms more in all of the second run: %v", p.Subtracted)
	}
	tcp := fqCodelRun()
	tcp.Probes[0].Kind = "tcp"
	noIdle := fqCodelRun()
	noIdle.Phases, noIdle.Plan.Phases = noIdle.Phases[1:], noIdle.Plan.Phases[1:]
	for name, rec := range map[string]*bufferbloat.Recording{
		"the probes differ: ICMP before, TCP handshakes after": tcp, "there is no idle baseline in both runs": noIdle,
		"there was no load in the run after": failedRun(), "no probe was answered under load in the run after": silentRun(), "the run after has no such phase": bothRun(),
	} {
		if p := Improvement(New(fifoRun()), New(rec)).Phases[0]; p.OK || p.Why != name {
			t.Errorf("got %v %q, want %q", p.OK, p.Why, name)
		}
		_ = written(t, Improvement(New(fifoRun()), New(rec)).WriteText)
	}
}

func TestImprovementToTheBaselineIsABound(t *testing.T) {
	m := Improvement(New(fifoRun()), New(queueRun("ideal", 40*msec, 40*msec, 0)))
	p := m.Phases[0]
	if p.Subtracted.State != stat.AtLeast || p.Subtracted.Low < 100 {
		t.Errorf("b is no further from c than chance: %v, want at least some hundred", p.Subtracted)
	}
	if out := written(t, m.WriteText); !strings.Contains(out, "baseline removed  (a - c) / (b - c) at least ") {
		t.Errorf("no bound in\n%s", out)
	}
}

func TestCSVHasAColumnForEachCell(t *testing.T) {
	for name, rec := range recordings() {
		rows, err := csv.NewReader(strings.NewReader(written(t, New(rec).WriteCSV))).ReadAll() // it demands equal lengths
		if err != nil || len(rows) < 2 {
			t.Errorf("%s: %d rows, %v", name, len(rows), err)
		}
	}
	none := idleRun()
	none.Probes = nil
	if rows, err := csv.NewReader(strings.NewReader(written(t, New(none).WriteCSV))).ReadAll(); err != nil || len(rows) != 2 {
		t.Errorf("without a series: %d rows, %v", len(rows), err)
	}
}

func TestNewLeavesTheRecordingAlone(t *testing.T) {
	a, b := fifoRun(), fifoRun()
	r := New(a)
	for _, write := range []func(io.Writer) error{r.WriteSpeedtest, r.WriteTable, r.WriteMarkdown, r.WriteCSV, r.WriteJSON} {
		first := written(t, write)
		if again := written(t, write); first != again {
			t.Error("a second writing differs")
		}
	}
	if !reflect.DeepEqual(a, b) {
		t.Error("New or a writer changed the recording")
	}
}

func TestCPUUseIsOfWholeSamples(t *testing.T) {
	s := bufferbloat.CPUSeries{Available: true, Samples: []bufferbloat.CPUSample{
		{At: second, Busy: []float64{1, 1}, Own: 1}, {At: 2 * second, Busy: []float64{0.2, 0.4}, Own: 0.1},
		{At: 5 * second, Busy: []float64{0.6, 0.8}, Own: 0.5}, {At: 6 * second, Busy: []float64{1, 1}, Own: 1}}}
	c := cpuUse(&s, second, 5500*msec)
	// (0.3 x 1 s + 0.7 x 3 s) / 4 s
	if !c.OK || !near(c.Busy.Mean, 0.6) || !near(c.Own, 0.4) || !near(c.Busy.StdDev, 0.2) || !near(c.Busiest().Mean, 0.7) {
		t.Errorf("%+v", c)
	}
	if c := cpuUse(&s, 5500*msec, 7*second); c.OK || c.Why == "" {
		t.Errorf("without a whole sample: %+v", c)
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

func TestStampsDecideTheResolution(t *testing.T) {
	rec := idleOf(msec, msec)
	rec.Probes[0].Samples[1].Stamp = host.UserStamp
	if got := New(rec).Series[0].Resolution; got != resolution(host.UserStamp) {
		t.Errorf("resolution %v, want that of the worst stamp", got)
	}
}

func BenchmarkNew(b *testing.B) {
	rec := fifoRun()
	b.ReportAllocs()
	for b.Loop() {
		New(rec)
	}
}

func ExampleResult_WriteSpeedtest() {
	m := newMaker(options(false))
	m.rec.Plan.Phases = m.rec.Plan.Phases[:1]
	m.phase("idle", 5*second, 40*msec, 0)
	var b bytes.Buffer
	_ = New(m.rec).WriteSpeedtest(&b)
	fmt.Print(b.String())
	// Output:
	// 2026-11-30 15:00:00 Testing idle line while pinging lab (ICMP, every 100 ms)
	// (bloat 1.0.0: 5 seconds idle)
	//
	//   Latency: (in msec, 50 pings, 0.00% packet loss)
	//       Min:  40.002
	//     10pct:  40.021
	//    Median:  40.173
	//       Avg:  40.157
	//     90pct:  40.268
	//       Max:  40.288
	//
	//       CPU: 3.8% of 2 CPUs busy in idle, the busiest at 5.0% +/- 0%; this program took 1.7%
}
