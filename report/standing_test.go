package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// courseOf is a run of one download of 10 s whose flows deliver at the rates, in bytes each 100 ms: counters are read from 100 ms on, and all flows
// are told to stop at its end.
func courseOf(flows ...func(tick int) uint64) *bufferbloat.Recording {
	o := options(false)
	o.Length, o.Streams = 10*second, len(flows)
	m := newMaker(o)
	m.rec.Plan.Phases = m.rec.Plan.Phases[:2]
	m.phase("idle", 5*second, 40*msec, 0)
	p := m.phase("download", 10*second, 40*msec, 0)
	for i, bytes := range flows {
		f := bufferbloat.Flow{Name: fmt.Sprintf("download %d", i+1), Phase: p.Name, Direction: load.Download, Started: p.Start}
		r := &f.Result
		*r = bufferbloat.FlowResult{CountedBy: load.CountedByReads, Flowed: true, First: p.Start + msec, Stopped: p.End}
		for n := 1; n <= 100; n++ {
			at := p.Start + time.Duration(n)*100*msec
			if b := bytes(n); b > 0 {
				r.Bytes += b
				r.Last = at
			}
			f.Points = append(f.Points, bufferbloat.Point{At: at, Bytes: r.Bytes})
		}
		m.rec.Flows = append(m.rec.Flows, f)
	}
	return m.rec
}

func steady(int) uint64 { return 125_000 } // 10 Mbit/s

func until(tick int, then uint64) func(int) uint64 {
	return func(n int) uint64 {
		if n > tick {
			return then
		}
		return 125_000
	}
}

func TestALinkThatDiedDoesNotShowItsFullRate(t *testing.T) {
	r := New(courseOf(until(20, 0), until(20, 0)))
	g := r.Phases[1].Goodput[0]
	if !g.OK || g.Rate < 3900*bitrate.Kbit || g.Rate > 4100*bitrate.Kbit {
		t.Errorf("20 Mbit/s for 2 of 10 s: %v, want 4 Mbit/s", g.Rate)
	}
	if f := g.Flows[0]; f.Rate > 2100*bitrate.Kbit {
		t.Errorf("one of its flows: %v, want 2 Mbit/s", f.Rate)
	}
	f, ok := finding(r, "stalled")
	if !ok || f.Severity != bufferbloat.Weakens || f.Text != "download: no stream carried data for 8 s, from second 7 of the run on" {
		t.Errorf("finding %v", f)
	}
	if out := written(t, r.WriteSpeedtest); !strings.Contains(out, " Download:   4.00 Mbps") {
		t.Errorf("no 4.00 Mbps in\n%s", out)
	}
}

// A server that was halted answers no data, and its host answers pings at once: that is no latency under load.
func TestPingsOfALoadThatStoodStillAreNoLatencyUnderLoad(t *testing.T) {
	standing := func(from, to int) *bufferbloat.Recording {
		return courseOf(func(n int) uint64 {
			if n > from && n <= to {
				return 0
			}
			return 125_000
		})
	}
	behind := standing(20, 60) // a receiver that waits for a lost segment in a queue of 2 s
	for i := range behind.Probes[0].Samples {
		if s := &behind.Probes[0].Samples[i]; s.Sent >= behind.Phases[1].Start {
			s.RTT = 2 * second
		}
	}
	for _, tt := range []struct {
		name string
		rec  *bufferbloat.Recording
		void bool
	}{
		{"7 of 10 s", standing(20, 90), true},
		{"1.3 of 10 s", standing(20, 33), true},
		{"none", standing(20, 20), false},
		{"4 s with a queue of 2 s", behind, false},
	} {
		r := New(tt.rec)
		f, _ := finding(r, "load_absent")
		doc := written(t, r.WriteJSON)
		validate(t, []byte(doc))
		if void := f.Severity == bufferbloat.Voids; void != tt.void || r.Induced[0].OK == tt.void || (r.Status() == 4) != tt.void ||
			strings.Contains(doc, `"download_rtt_median_ns": null`) != tt.void || tt.void && r.Plain() != "" {
			t.Errorf("%s: status %d, induced %+v, finding %+v", tt.name, r.Status(), r.Induced[0], f)
		}
		back, err := ReadResult(strings.NewReader(doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, write := range []func(*Result) string{
			func(r *Result) string { return written(t, r.WriteJSON) },
			func(r *Result) string { return written(t, r.WriteSpeedtest) },
			func(r *Result) string { return written(t, r.WriteTable) },
		} {
			if got, want := write(back), write(r); got != want {
				t.Errorf("%s: it comes back as\n%s", tt.name, firstDifference(got, want))
			}
		}
	}
	if out := written(t, New(standing(20, 90)).WriteSpeedtest); !strings.Contains(out, "Latency:      - (no stream carried data for 7 s of the 9.5 s that the load was to stand, so no latency under load; meanwhile ") {
		t.Errorf("in\n%s", out)
	}
}

func TestAStallIsNamed(t *testing.T) {
	gap := func(from, to int) func(int) uint64 {
		return func(n int) uint64 {
			if n > from && n <= to {
				return 0
			}
			return 125_000
		}
	}
	for _, tt := range []struct {
		name string
		rec  *bufferbloat.Recording
		want string
	}{
		{"none", courseOf(steady, steady), ""},
		{"one flow of two stands", courseOf(gap(23, 64), steady), ""},
		{"both stand at different times", courseOf(gap(20, 40), gap(40, 60)), ""},
		{"both stand for less than a second", courseOf(gap(20, 29), gap(20, 29)), ""},
		{"both stand in part at once", courseOf(gap(10, 64), gap(23, 80)), "download: no stream carried data for 4.1 s, from second 7.3 of the run on"},
		{"twice", courseOf(gap(20, 31), gap(20, 31)), "download: no stream carried data for 1.1 s, from second 7 of the run on"},
	} {
		f, _ := finding(New(tt.rec), "stalled")
		if f.Text != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, f.Text, tt.want)
		}
	}
	far := courseOf(gap(20, 35))
	for i := range far.Probes[0].Samples {
		far.Probes[0].Samples[i].RTT = 600 * msec
	}
	if f, ok := finding(New(far), "stalled"); ok {
		t.Errorf("1.5 s is no stall with a round trip of 600 ms: %v", f)
	}
}

func TestALongTailIsSaidBesideTheRate(t *testing.T) {
	rec := courseOf(steady, steady)
	p := &rec.Phases[1]
	f := &rec.Flows[1]
	f.Result.Last = p.End + 10*second // it trickles on
	for n := range 100 {
		f.Result.Bytes += 100
		f.Points = append(f.Points, bufferbloat.Point{At: p.End + time.Duration(n+1)*100*msec, Bytes: f.Result.Bytes})
	}
	r := New(rec)
	got, ok := finding(r, "tail")
	if want := "download: 10.00 Mbit/s over all 20 s until the last byte; 20.00 while all streams ran"; !ok || got.Severity != bufferbloat.Weakens || got.Text != want {
		t.Errorf("finding %v, want %q", got, want)
	}
	rec.Findings = []bufferbloat.Finding{{Code: "streams_ragged", Severity: bufferbloat.Weakens, Phase: "download", Text: "x"}}
	if got, _ := finding(New(rec), "tail"); !strings.HasSuffix(got.Text, "while most streams ran") {
		t.Errorf("finding %v", got)
	}
	if f, ok := finding(New(courseOf(steady, steady)), "tail"); ok {
		t.Errorf("there is no tail: %v", f)
	}
}

func TestTheRateIsOfTheTimeInWhichStreamsThatWaitedRan(t *testing.T) {
	for _, tt := range []struct {
		tick     int // at which the last three begin
		rate     bitrate.Bitrate
		severity bufferbloat.Severity
		text     string
	}{
		{3, 9760 * bitrate.Kbit, "", ""}, // so early that it makes no difference
		{50, 10 * bitrate.Mbit, bufferbloat.Note, "3 of 5 streams began late, the last 5 s after the load"},
		{95, 4300 * bitrate.Kbit, bufferbloat.Weakens, "too low"}, // so late that nothing is left
	} {
		waits := func(n int) uint64 {
			if n <= tt.tick {
				return 0
			}
			return 25_000 // 2 Mbit/s
		}
		slow := func(int) uint64 { return 25_000 }
		rec := courseOf(slow, slow, waits, waits, waits)
		p := &rec.Phases[1]
		p.From = p.Start + time.Duration(tt.tick)*100*msec + 10*msec
		for i := 2; i < 5; i++ {
			f := &rec.Flows[i]
			f.Started, f.Result.Due, f.Result.First, f.Points = p.From-10*msec, p.From-10*msec, p.From, f.Points[tt.tick:]
			rec.Plan.Phases[1].Flows[i].Above = bufferbloat.SlowRate
		}
		r := New(rec)
		g := &r.Phases[1].Goodput[0]
		if g.Rate < tt.rate*99/100 || g.Rate > tt.rate*101/100 {
			t.Errorf("streams that begin after %d00 ms: %v, want %v", tt.tick, g.Rate, tt.rate)
		}
		if tt.severity == bufferbloat.Note && (g.Fairness < 0.99 || g.Last-g.First > 5*second) {
			t.Errorf("a fairness of %v from %v to %v, want that of equal streams in the time of all", g.Fairness, g.First, g.Last)
		}
		f, ok := finding(r, "streams_held")
		if ok != (tt.text != "") || f.Severity != tt.severity || !strings.Contains(f.Text, tt.text) {
			t.Errorf("streams that begin after %d00 ms: finding %+v, want %q", tt.tick, f, tt.text)
		}
		if f, ok := finding(r, "tail"); ok {
			t.Errorf("there is no tail: %+v", f)
		}
	}
}

// The bytes of a counter's first reading flowed before it.
func TestATruncatedRecordingCountsBytesAndTimeOfOneInterval(t *testing.T) {
	rec := courseOf(steady, steady)
	rec.Truncated, rec.Ended = true, 0
	for i := range rec.Flows {
		f := &rec.Flows[i]
		f.Result, f.Error = bufferbloat.FlowResult{}, "the recording ends before the flow did"
		f.Points = f.Points[4:20]
	}
	g := New(rec).Phases[1].Goodput[0]
	if !g.OK || g.Rate != 20*bitrate.Mbit || g.Bytes != 15*250_000 {
		t.Errorf("%v of %d bytes, want 20 Mbit/s of 15 readings", g.Rate, g.Bytes)
	}
}

// oneOfEight is an idle run of which one probe was not sent.
func oneOfEight() *bufferbloat.Recording {
	rec := idleOf(msec, msec, msec, msec, msec, msec, msec, msec)
	rec.Probes[0].Samples[3] = probe.Sample{Seq: 3, Due: rec.Probes[0].Samples[3].Due, Outcome: probe.Unsent}
	return rec
}

func TestUnsentProbesNameTheirCause(t *testing.T) {
	unsent := func(every int, tally probe.Tally) *bufferbloat.Recording {
		rec := queueRun("fifo", 258*msec, 290*msec, 20*msec)
		(&maker{rec: rec}).outcome(0, 0, len(rec.Probes[0].Samples), every, probe.Unsent)
		rec.Probes[0].Tally = tally
		return rec
	}
	const lateAsAWhole = -4 // status 4, for the series and not for the phase
	for _, tt := range []struct {
		name   string
		rec    *bufferbloat.Recording
		want   string
		status int
	}{
		{"the system", unsent(25, probe.Tally{FirstError: "sendto: no buffer space available"}),
			"2 of 50 icmp probes were not sent (the system refused them: sendto: no buffer space available); they count neither as sent nor as lost", 0},
		{"the system after a router", unsent(25, probe.Tally{FirstError: "no route", FirstRefusal: "no route"}),
			"2 of 50 icmp probes were not sent (the system refused them, and its reason was not kept); they count neither as sent nor as lost", 0},
		{"this program", unsent(25, probe.Tally{SenderLate: 28}),
			"2 of 50 icmp probes were not sent (this program woke more than an interval after they were due); they count neither as sent nor as lost", lateAsAWhole},
		{"both", unsent(25, probe.Tally{SenderLate: 5, FirstError: "x"}),
			"2 of 50 icmp probes were not sent (of 28 in the whole run, 5 because this program woke more than an interval after they were due; " +
				"the others: the system refused them: x); they count neither as sent nor as lost", 0},
		{"a tenth of them", unsent(10, probe.Tally{}),
			"5 of 50 icmp probes were not sent (the system gave no reason); they count neither as sent nor as lost, and the latency is that of a part of the time", 4},
		{"one of eight", oneOfEight(), "1 of 8 icmp probes were not sent (the system gave no reason); they count neither as sent nor as lost", 0},
		{"all of them", unsent(1, probe.Tally{}), "50 of 50 icmp probes were not sent (the system gave no reason); there is no latency to show", 4},
	} {
		r := New(tt.rec)
		f, _ := finding(r, "probes_unsent")
		if f.Text != tt.want || r.Status() != max(tt.status, -tt.status) || (f.Severity == bufferbloat.Voids) != (tt.status == 4) {
			t.Errorf("%s: status %d, %v\n%s\nwant %d\n%s", tt.name, r.Status(), f.Severity, f.Text, tt.status, tt.want)
		}
		if tt.status == 4 && r.Plain() != "" {
			t.Errorf("%s: plain sentence %q", tt.name, r.Plain())
		}
	}
	rec := idleOf(-1, -1, -1)
	rec.Probes[0].Samples[0].Outcome = probe.Unsent
	if f, ok := finding(New(rec), "no_replies"); !ok || !strings.HasPrefix(f.Text, "none of 2 icmp probes that were sent was answered") {
		t.Errorf("one of three was not sent: %v", f)
	}
}

func TestTheDocumentSaysHowManyWereLostInAll(t *testing.T) {
	rec := idleOf(msec, -1, -1, -1, msec)
	rec.Probes[0].Samples[1].Outcome, rec.Probes[0].Samples[2].Outcome = probe.LostUp, probe.LostDown
	out := written(t, New(rec).WriteJSON)
	if !strings.Contains(out, `"lost_total": 3`) || !strings.Contains(out, `"lost": 1`) {
		t.Errorf("no total of 3 in\n%s", out)
	}
	if _, err := ReadResult(strings.NewReader(strings.ReplaceAll(out, `"lost_total": 3`, `"lost_total": 2`))); err == nil {
		t.Error("a total that is not the sum was read")
	}
	if _, err := ReadResult(strings.NewReader(strings.ReplaceAll(out, `"lost_total": 3,`, ``))); err != nil {
		t.Errorf("a document of an earlier version: %v", err)
	}
}

func TestTwoSamplesGiveNoInterval(t *testing.T) {
	rec := fifoRun()
	s := &rec.Probes[0]
	s.Samples = append(s.Samples[:2], s.Samples[50:]...)
	r := New(rec)
	text := written(t, r.WriteSpeedtest)
	if !strings.Contains(text, "without intervals: 2 pings, and an interval takes 3") || strings.Contains(text, "[+") {
		t.Errorf("an interval of two idle pings in\n%s", text)
	}
	doc := written(t, r.WriteJSON)
	validate(t, []byte(doc))
	for _, want := range []string{`"interval_reason": "2 pings, and an interval takes 3"`, `"induced_median_interval": null`, `"state": "too_few_samples"`} {
		if !strings.Contains(doc, want) {
			t.Errorf("no %s in the document", want)
		}
	}
	back, err := ReadResult(strings.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	if again := written(t, back.WriteJSON); again != doc {
		t.Errorf("it comes back as\n%s", firstDifference(again, doc))
	}
	for _, m := range []*Improved{Improvement(r, New(fqCodelRun())), Improvement(back, New(fqCodelRun()))} {
		if m.Phases[0].Plain.State == "" {
			t.Errorf("%+v", m.Phases[0])
		}
	}
}

func TestStreamsThatNeverRanTogetherAreNotCalledNoLoad(t *testing.T) {
	rec := fifoRun()
	p := &rec.Phases[1]
	p.From, p.To = p.Start, p.Start
	r := New(rec)
	out := written(t, r.WriteSpeedtest)
	if !strings.Contains(out, "(the streams never all carried data at once, so no latency under load; meanwhile ") || strings.Contains(out, "no load, so") {
		t.Errorf("in\n%s", out)
	}
	if out := written(t, r.WriteTable); !strings.Contains(out, "download (load never stood)") {
		t.Errorf("in\n%s", out)
	}
	if d := r.Induced[0]; d.Why != "the streams never all carried data at once" {
		t.Errorf("%q", d.Why)
	}
}
