package report

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// appsRun is a run of 10 s idle and 10 s of load with a call, pages and two routers before the server. The clocks of the two hosts are 5 s
// apart. Under the load, the way up is 80 ms longer from the second router on.
func appsRun() *bufferbloat.Recording {
	const clocks = 5 * second
	rec := &bufferbloat.Recording{Version: "1.0.0", Started: time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC), Ended: 20 * second,
		Plan: bufferbloat.Plan{Name: "apps", Server: bufferbloat.Server{Host: "lab"}, Phases: []bufferbloat.PhasePlan{{Name: "idle", Kind: bufferbloat.Idle, Length: 10 * second},
			{Name: "load", Kind: bufferbloat.Load, Length: 10 * second, Flows: []bufferbloat.FlowPlan{{Name: "upload", Direction: load.Upload}}}}},
		Path: bufferbloat.Path{Host: "lab", Address: "192.0.2.2", Family: "IPv4", Stack: "kernel"},
		Phases: []bufferbloat.Phase{{Name: "idle", Kind: bufferbloat.Idle, End: 10 * second, To: 10 * second},
			{Name: "load", Kind: bufferbloat.Load, Start: 10 * second, End: 20 * second, From: 10 * second, To: 20 * second}},
		Flows: []bufferbloat.Flow{{Name: "upload", Phase: "load", Direction: load.Upload, Points: []bufferbloat.Point{{At: 10 * second}, {At: 20 * second, Bytes: 5e6}},
			Result: bufferbloat.FlowResult{Bytes: 5e6, CountedBy: load.CountedByServer, Flowed: true, First: 10 * second, Last: 20 * second, Stopped: 20 * second}}},
	}
	series := func(s bufferbloat.ProbeSeries, interval time.Duration, at func(n int, x *probe.Sample)) {
		s.Interval, s.DSCP, s.Target = interval, "EF", "lab"
		for n := range int(20 * second / interval) {
			x := probe.Sample{Seq: uint64(n), Due: time.Duration(n) * interval, Sent: time.Duration(n) * interval, Outcome: probe.Received}
			at(n, &x)
			s.Samples = append(s.Samples, x)
		}
		rec.Probes = append(rec.Probes, s)
	}
	loaded := func(x *probe.Sample) time.Duration {
		if x.Sent >= 10*second {
			return 80 * msec
		}
		return 0
	}
	series(bufferbloat.ProbeSeries{Name: "call", Kind: "irtt", Address: "192.0.2.2", Primary: true, Voice: true, Size: 172,
		Tally: probe.Tally{Marks: []probe.Mark{{DS: 0xb8, Count: 1900}, {DS: 3, Count: 4}}}}, 10*msec, func(n int, x *probe.Sample) {
		up, down := 22*msec+loaded(x), 18*msec
		switch k := n - 1000; {
		case k < 0:
		case k%100 == 10:
			x.Outcome = probe.LostUp
		case k%200 == 20:
			x.Outcome = probe.LostDown
		case k%500 == 30:
			x.Outcome = probe.Lost
		case k%100 == 50:
			up += 31 * msec
		case k%100 == 60:
			down += 30 * msec
		}
		if x.Outcome.HasRTT() {
			x.RTT, x.Up, x.Down, x.HasOneWay = up+down, up+clocks, down-clocks, true
		}
	})
	series(bufferbloat.ProbeSeries{Name: "page", Kind: "page", Address: "192.0.2.2"}, second, func(n int, x *probe.Sample) {
		x.RTT = 200 * msec
		switch {
		case n == 12:
			x.Outcome, x.RTT = probe.Unsent, 0
		case n == 13:
			x.Outcome, x.RTT = probe.Lost, 0
		case n >= 10:
			x.RTT = time.Duration(900+20*n) * msec
		}
	})
	for hop, extra := range []time.Duration{0, 1} {
		series(bufferbloat.ProbeSeries{Name: "path " + string(rune('1'+hop)), Kind: "path", Hop: hop + 1, Address: "203.0.113." + string(rune('1'+hop)), NoLoss: "routers limit it"},
			second, func(n int, x *probe.Sample) {
				x.RTT = time.Duration(1+hop)*msec + extra*loaded(x)
				if n%3 == 1 {
					x.Outcome, x.RTT = probe.Lost, 0
				}
			})
	}
	return rec
}

func TestACallIsRatedInEachDirection(t *testing.T) {
	r := New(appsRun())
	idle, call := r.Phases[0].Voice[0], r.Phases[1].Voice[0]
	if idle.Up.Lost+idle.Up.Late+idle.Down.Lost != 0 || *idle.Up.OneWay != 20*msec || *idle.Down.OneWay != 20*msec || *idle.Up.IPDVMax != 0 || *idle.Up.MOS < 4.37 {
		t.Errorf("idle: %+v", idle)
	}
	near := func(what string, got *float64, want float64) {
		t.Helper()
		if got == nil || math.Abs(*got-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	up, down := call.Up, call.Down
	if up.Sent != 1000 || up.Lost != 10 || up.LostEither != 2 || up.Late != 10 {
		t.Errorf("up: %+v", up)
	}
	near("loss up", up.Loss, 0.012)
	near("effective loss up", up.EffectiveLoss, 0.022)
	// What reached the server: all but the ten that were lost before it.
	if down.Sent != 990 || down.Lost != 5 || down.LostEither != 2 || down.Late != 0 {
		t.Errorf("down: %+v; an IPDV of just 30 ms is not late", down)
	}
	near("loss down", down.Loss, 7.0/990)
	if *up.OneWay != 100*msec || *down.OneWay != 20*msec || *up.IPDVMax != 31*msec || *down.IPDVMax != 30*msec {
		t.Errorf("delays: up %v, down %v, IPDV at most %v and %v", *up.OneWay, *down.OneWay, *up.IPDVMax, *down.IPDVMax)
	}
	// Each lost packet breaks two pairs.
	if up.Pairs != 999-2*17 {
		t.Errorf("%d pairs", up.Pairs)
	}
	if !(*up.MOS < *down.MOS && *down.MOS < *idle.Down.MOS) {
		t.Errorf("MOS: up %v, down %v, idle %v", *up.MOS, *down.MOS, *idle.Down.MOS)
	}
}

func TestACallWithoutOneWayDelaysHasItsLossAlone(t *testing.T) {
	rec := appsRun()
	for i := range rec.Probes[0].Samples {
		rec.Probes[0].Samples[i].HasOneWay = false
	}
	if up := New(rec).Phases[1].Voice[0].Up; up.Reason != noOneWay || up.Loss == nil || up.EffectiveLoss != nil || up.MOS != nil || up.OneWay != nil {
		t.Errorf("got %+v", up)
	}
	rec.Probes[0].Samples = nil
	if up := New(rec).Phases[1].Voice[0].Up; up.Reason != "no packet was sent" || up.Loss != nil {
		t.Errorf("got %+v", up)
	}
}

func TestThePageScoreIsUnloadedOverLoaded(t *testing.T) {
	r := New(appsRun())
	s := r.PageScores[0]
	if len(r.PageScores) != 1 || s.Score == nil || s.Idle.N != 10 || s.Loaded.N != 8 || s.Loaded.Failed != 1 || s.Loaded.Unsent != 1 {
		t.Fatalf("got %+v", r.PageScores)
	}
	if got, want := *s.Score, 100*200/float64(s.Loaded.Median.Milliseconds()); math.Abs(got-want) > 1e-9 || s.Loaded.Low == nil || *s.Idle.StdDev != 0 {
		t.Errorf("score %v, want %v; %+v", got, want, s.Loaded)
	}
	for name, c := range map[string]struct {
		change func(rec *bufferbloat.Recording)
		want   string
	}{
		"none before":      {func(rec *bufferbloat.Recording) { rec.Probes[1].Samples = rec.Probes[1].Samples[10:] }, "no page was loaded before the load"},
		"none under load":  {func(rec *bufferbloat.Recording) { rec.Probes[1].Samples = rec.Probes[1].Samples[:10] }, "no page was there in time under the load"},
		"no load":          {func(rec *bufferbloat.Recording) { rec.Flows = nil }, "there was no load"},
		"load not reached": {func(rec *bufferbloat.Recording) { rec.Phases = rec.Phases[:1] }, "the phase was not reached"},
	} {
		rec := appsRun()
		c.change(rec)
		if s := New(rec).PageScores[0]; s.Score != nil || s.Reason != c.want || !strings.Contains(s.text(), c.want) {
			t.Errorf("%s: %+v, want %q", name, s, c.want)
		}
	}
}

func TestThePageScoreIsToldOverTime(t *testing.T) {
	const idle = 200 * msec
	series := bufferbloat.ProbeSeries{Name: "page", Kind: pageKind}
	page := func(at, took time.Duration) {
		sample := probe.Sample{Seq: uint64(len(series.Samples)), Due: at, Sent: at, RTT: took, Outcome: probe.Received}
		if took == 0 {
			sample.Outcome = probe.Lost
		}
		series.Samples = append(series.Samples, sample)
	}
	// A page each second: twice as long in the first ten seconds, none in the next ten, four times as long in the five that are left.
	for i := range 25 {
		page(5*time.Second+time.Duration(i)*time.Second, []time.Duration{2 * idle, 0, 4 * idle}[i/10])
	}
	before := &PageTime{N: 5, Median: idle}
	got := before.overTime(&series, 5*time.Second, 30*time.Second)
	if len(got) != 3 || *got[0].Score != 50 || got[1].Score != nil || *got[2].Score != 25 || got[2].From != 25*time.Second || got[2].To != 30*time.Second {
		t.Errorf("got %+v", got)
	}
	if one := before.overTime(&series, 5*time.Second, 15*time.Second); one != nil {
		t.Errorf("a load of one part: %+v", one)
	}
	if all := before.overTime(&series, 0, time.Hour); len(all) != 12 || all[0].To != 5*time.Minute {
		t.Errorf("an hour: %+v", all)
	}
	score := PageScore{Phase: "load", Series: "page", Score: got[0].Score, Idle: before, Loaded: &PageTime{N: 15, Median: 2 * idle}, OverTime: got}
	if text, want := score.text(), "; each 10s from 5s on: 50 - 25"; !strings.HasSuffix(text, want) {
		t.Errorf("%q does not end with %q", text, want)
	}
}

func TestTheQueueIsWhereTheDelayGrows(t *testing.T) {
	r := New(appsRun())
	if len(r.Hops) != 3 || r.Hops[0].Queue || !r.Hops[1].Queue || r.Hops[2].Queue || r.Hops[2].Hop != 0 {
		t.Fatalf("got %+v", r.Hops)
	}
	if *r.Hops[0].Induced != 0 || *r.Hops[1].Step != 80*msec || *r.Hops[2].Step != 0 {
		t.Errorf("steps: %+v", r.Hops)
	}
	if got, want := r.queueTexts(), "Queue of load: between 203.0.113.1 and 203.0.113.2, which alone adds 80.000 of 80.000 ms"; len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// What a router does not answer is no loss.
	for _, l := range r.Phases[1].Latency[2:] {
		if l.Kind != "path" || l.Lost != 0 || l.N != 7 && l.N != 6 {
			t.Errorf("%+v", l)
		}
	}
	// A router that is slow to answer under load is not where the queue is, and neither is one behind which nothing is slow.
	for name, c := range map[string]struct {
		induced []time.Duration
		want    int
	}{
		"at the first hop":     {[]time.Duration{80, 81, 79}, 0},
		"a slow router":        {[]time.Duration{0, 60, 2}, -1},
		"a slow router before": {[]time.Duration{70, 5, 100}, 2},
		"little":               {[]time.Duration{1, 2, 9}, -1},
		"everywhere":           {[]time.Duration{30, 60, 90}, -1},
		"before the server":    {[]time.Duration{0, 1, 90}, 2},
	} {
		way := make([]Hop, len(c.induced))
		for i, d := range c.induced {
			d *= msec
			way[i].Induced = &d
		}
		findQueue(way)
		got := -1
		for i := range way {
			if way[i].Queue {
				got = i
			}
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestTheDirectionOfTheQueueIsTold(t *testing.T) {
	rec := appsRun()
	d := New(rec).Directions
	if len(d) != 1 || d[0].Series != "call" || *d[0].Up != 80*msec || *d[0].Down != 0 || d[0].Drift != nil || d[0].Doubt || d[0].N != 983 {
		t.Errorf("got %+v", d)
	}
	// A baseline after the load, by a clock that has moved by 9 ms since.
	rec.Plan.Phases = append(rec.Plan.Phases, bufferbloat.PhasePlan{Name: "after", Kind: bufferbloat.After, Length: second})
	rec.Phases = append(rec.Phases, bufferbloat.Phase{Name: "after", Kind: bufferbloat.After, Start: 20 * second, End: 21 * second, From: 20 * second, To: 21 * second})
	s := &rec.Probes[0]
	for n := range 100 {
		at := 20*second + time.Duration(n)*10*msec
		s.Samples = append(s.Samples, probe.Sample{Seq: uint64(2000 + n), Due: at, Sent: at, Outcome: probe.Received, RTT: 40 * msec, Up: 5*second + 31*msec, Down: 9*msec - 5*second, HasOneWay: true})
	}
	if d := New(rec).Directions[0]; d.Drift == nil || *d.Drift != 9*msec || !d.Doubt {
		t.Errorf("with a clock that drifts: %+v", d)
	}
	for i := range s.Samples {
		s.Samples[i].HasOneWay = s.Samples[i].Sent < 10*second
	}
	if d := New(rec).Directions[0]; d.Up != nil || d.Reason != "no packet under the load tells" {
		t.Errorf("without delays under load: %+v", d)
	}
}

func TestWhatApplicationsSayIsPrintedAndReadBack(t *testing.T) {
	r := New(appsRun())
	var table, text, doc, again bytes.Buffer
	for _, err := range []error{r.WriteTable(&table), r.WriteMarkdown(&text), r.WriteJSON(&doc)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "apps.table.txt", table.Bytes())
	for _, want := range []string{"| load, call |", "Page score of load, page:", "Queue of load: between 203.0.113.1 and 203.0.113.2"} {
		if !strings.Contains(table.String(), want) || !strings.Contains(text.String(), want) {
			t.Errorf("table or Markdown without %q", want)
		}
	}
	validate(t, doc.Bytes())
	for _, want := range []string{`"marks": [`, `"page_scores": [`, `"hops": [`, `"voice": [`, `"directions": [`} {
		if !strings.Contains(doc.String(), want) {
			t.Errorf("JSON without %s", want)
		}
	}
	back, err := ReadResult(bytes.NewReader(doc.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := back.WriteJSON(&again); err != nil || again.String() != doc.String() {
		t.Errorf("read back and written again it differs (%v)", err)
	}
	for name, c := range map[string]struct{ old, new string }{
		"a step of nothing":          {`"step_ns": 80000000`, `"step_ns": null`},
		"a direction alone":          {`"down_induced_median_ns": 0`, `"down_induced_median_ns": null`},
		"a score of no pages":        {`"loaded": {`, `"loaded": null, "x": {`},
		"a delay of a hundred years": {`"ipdv_max_ns": 31000000`, `"ipdv_max_ns": 3155760000000000000`},
	} {
		odd := strings.Replace(doc.String(), c.old, c.new, 1)
		if _, err := ReadResult(strings.NewReader(odd)); err == nil || odd == doc.String() {
			t.Errorf("%s is read without an error", name)
		}
	}
}
