package curve

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
)

const (
	msec   = time.Millisecond
	second = time.Second
)

// series is one probe each 100 ms with these outcomes; an answered probe takes as many ms as its number.
func series(outcomes ...probe.Outcome) *bufferbloat.ProbeSeries {
	s := &bufferbloat.ProbeSeries{Name: "icmp", Interval: 100 * msec}
	for i, o := range outcomes {
		p := probe.Sample{Seq: uint64(i), Due: time.Duration(i) * 100 * msec, Outcome: o}
		p.Sent = p.Due + msec
		if o.HasRTT() {
			p.RTT = time.Duration(i) * msec
		}
		s.Samples = append(s.Samples, p)
	}
	return s
}

func shape(d Delays) string {
	text := ""
	for i, stretch := range d.Stretches {
		if i > 0 {
			text += " | "
		}
		for j, p := range stretch {
			if j > 0 {
				text += " "
			}
			text += fmt.Sprint(p.RTT.Milliseconds())
		}
	}
	return text
}

func TestDelaysBreakWhereAProbeHasNoTime(t *testing.T) {
	t.Parallel()
	const r, l, u, x = probe.Received, probe.Lost, probe.Unsent, probe.Unfinished
	for name, tt := range map[string]struct {
		series *bufferbloat.ProbeSeries
		want   string
		lost   int
		other  int
	}{
		"nothing":                        {series(), "", 0, 0},
		"all answered":                   {series(r, r, r), "0 1 2", 0, 0},
		"a late reply has its time":      {series(r, probe.Late, r), "0 1 2", 0, 0},
		"a lost probe is a gap":          {series(r, l, r, r), "0 | 2 3", 1, 0},
		"lost on the way up or down too": {series(r, probe.LostUp, probe.LostDown, r), "0 | 3", 2, 0},
		"so is one that was not sent":    {series(r, u, r), "0 | 2", 0, 1},
		"and one without a verdict":      {series(r, r, x), "0 1", 0, 1},
		"all lost":                       {series(l, l), "", 2, 0},
	} {
		d := NewDelays(tt.series)
		if got := shape(d); got != tt.want || len(d.Lost) != tt.lost || len(d.Unsent)+len(d.Undecided) != tt.other {
			t.Errorf("%s: %q with %d lost, %d others, want %q, %d, %d", name, got, len(d.Lost), len(d.Unsent)+len(d.Undecided), tt.want, tt.lost, tt.other)
		}
	}
}

func TestAPauseBetweenProbesIsAGap(t *testing.T) {
	t.Parallel()
	s := series(probe.Received, probe.Received, probe.Received)
	s.Samples[2].Sent += 5 * second
	if got := shape(NewDelays(s)); got != "0 1 | 2" {
		t.Errorf("%q, want a gap of 5 s to be one", got)
	}
}

func TestAProbeIsShownWhenItWasSent(t *testing.T) {
	t.Parallel()
	d := NewDelays(series(probe.Received, probe.Received))
	if got := d.Stretches[0][1].At; got != 101*msec {
		t.Errorf("at %v, want its send stamp, 101 ms", got)
	}
}

func TestReduceKeepsExtremesAndVisibleGaps(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	s := &bufferbloat.ProbeSeries{Interval: msec}
	for i := range 100_000 {
		p := probe.Sample{Sent: time.Duration(i) * msec, Outcome: probe.Received, RTT: time.Duration(1+rnd.IntN(1000)) * time.Microsecond}
		if i >= 50_000 && i < 60_000 || rnd.IntN(4) == 0 {
			p.Outcome, p.RTT = probe.Lost, 0
		}
		s.Samples = append(s.Samples, p)
	}
	s.Samples[777].Outcome, s.Samples[777].RTT = probe.Received, second
	d := NewDelays(s)
	r := d.Reduce(0, 100*second, 500)
	points, low, lowBefore := 0, second, second
	for _, stretch := range r.Stretches {
		points += len(stretch)
		for i, p := range stretch {
			low = min(low, p.RTT)
			if i > 0 && stretch[i-1].At < 50*second && p.At >= 60*second {
				t.Error("a line crosses the outage")
			}
		}
	}
	for _, stretch := range d.Stretches {
		for _, p := range stretch {
			lowBefore = min(lowBefore, p.RTT)
		}
	}
	if r.Max() != second || low != lowBefore {
		t.Errorf("extremes %v and %v, want 1 s and %v", r.Max(), low, lowBefore)
	}
	if points > 2000 || len(r.Lost) > 500 || r.Missing != d.Missing || r.Answered != d.Answered {
		t.Errorf("%d points, %d marks, counts %d and %d, want at most 2000, 500, %d, %d", points, len(r.Lost), r.Missing, r.Answered, d.Missing, d.Answered)
	}
	few := NewDelays(series(probe.Received, probe.Lost, probe.Received, probe.Received))
	if got := shape(few.Reduce(0, second, 100)); got != "0 | 2 3" {
		t.Errorf("a short series became %q", got)
	}
}

func flow(first, last time.Duration, points ...bufferbloat.Point) *bufferbloat.Flow {
	return &bufferbloat.Flow{Direction: load.Download, Points: points, Result: bufferbloat.FlowResult{Flowed: true, First: first, Last: last}}
}

func at(t time.Duration, bytes uint64) bufferbloat.Point {
	return bufferbloat.Point{At: t, Bytes: bytes}
}

func TestRatesAddUpToTheBytes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		flows []*bufferbloat.Flow
		bytes float64
		parts int
	}{
		"no flows":                           {nil, 0, 0},
		"a flow that failed":                 {[]*bufferbloat.Flow{{Error: "refused"}}, 0, 0},
		"one reading has no rate":            {[]*bufferbloat.Flow{flow(second, second, at(second, 5000))}, 0, 0},
		"one flow from its first data":       {[]*bufferbloat.Flow{flow(second, 3*second, at(second+100*msec, 1000), at(3*second, 21000))}, 21000, 1},
		"a flow's end is not part of it":     {[]*bufferbloat.Flow{flow(second, 3*second, at(2*second, 1000), at(3*second, 5000), at(9*second, 5000))}, 5000, 1},
		"two that overlap":                   {[]*bufferbloat.Flow{flow(0, 2*second, at(2*second, 1000)), flow(second, 4*second, at(4*second, 3000))}, 4000, 1},
		"two with a pause between":           {[]*bufferbloat.Flow{flow(0, second, at(second, 1000)), flow(5*second, 7*second, at(7*second, 3000))}, 4000, 2},
		"a counter that runs back is no use": {[]*bufferbloat.Flow{flow(0, 3*second, at(second, 1000), at(2*second, 10), at(3*second, 3000))}, 3000, 1},
	} {
		got, bytes := Rates(tt.flows, 0), 0.0
		for _, stretch := range got {
			for i, r := range stretch {
				bytes += float64(r.Rate) / 8 * (r.To - r.From).Seconds()
				if i > 0 && r.From != stretch[i-1].To {
					t.Errorf("%s: a bin begins at %v, the one before ends at %v", name, r.From, stretch[i-1].To)
				}
			}
		}
		if len(got) != tt.parts || bytes < tt.bytes-tt.bytes/1000 || bytes > tt.bytes+1 {
			t.Errorf("%s: %d stretches with %.0f bytes, want %d with %.0f", name, len(got), bytes, tt.parts, tt.bytes)
		}
	}
}

func TestRatesAreDividedByTheirOwnTime(t *testing.T) {
	t.Parallel()
	// 1 Mbit/s over 1.27 s, which is no multiple of a bin.
	got := Rates([]*bufferbloat.Flow{flow(0, 1270*msec, at(1270*msec, 158750))}, 500*msec)
	for _, r := range got[0] {
		if r.Rate < bitrate.Mbit-10 || r.Rate > bitrate.Mbit+10 {
			t.Errorf("%v to %v: %v, want 1Mbit", r.From, r.To, r.Rate)
		}
	}
}

func TestCDF(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rtts       []time.Duration
		lost, most int
		want       []Step
	}{
		"no answers":                       {nil, 5, 10, nil},
		"one":                              {[]time.Duration{msec}, 0, 10, []Step{{msec, 1}}},
		"a lost probe takes from the end":  {[]time.Duration{msec}, 1, 10, []Step{{msec, 0.5}}},
		"ties are one step":                {[]time.Duration{msec, msec, msec, second}, 0, 10, []Step{{msec, 0.75}, {second, 1}}},
		"first and last survive reduction": {[]time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0, 2, []Step{{1, 0.1}, {10, 1}}},
	} {
		if got := CDF(tt.rtts, tt.lost, tt.most); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestWithinTakesSendTimes(t *testing.T) {
	t.Parallel()
	s := series(probe.Received, probe.Lost, probe.Received, probe.Received)
	rtts, lost := Within(s, 101*msec, 301*msec)
	if len(rtts) != 1 || rtts[0] != 2*msec || lost != 1 {
		t.Errorf("%v and %d lost, want the probe sent at 201 ms and one lost", rtts, lost)
	}
}

func TestWindows(t *testing.T) {
	t.Parallel()
	rec := &bufferbloat.Recording{Phases: []bufferbloat.Phase{
		{Name: "idle", Kind: bufferbloat.Idle, End: 5 * second, To: 5 * second},
		{Name: "never", Kind: bufferbloat.Load, Start: 5 * second, End: 5 * second},
		{Name: "download", Kind: bufferbloat.Load, Start: 5 * second, End: 9 * second, From: 6 * second, To: 8 * second},
		{Name: "upload", Kind: bufferbloat.Load, Start: 9 * second, End: 10 * second, From: 9 * second, To: 9 * second},
	}}
	want := []Window{{"idle", bufferbloat.Idle, 0, 5 * second, 0, 5 * second, false}, {"download", bufferbloat.Load, 5 * second, 9 * second, 6 * second, 8 * second, true},
		{"upload", bufferbloat.Load, 9 * second, 10 * second, 9 * second, 10 * second, false}}
	if got := Windows(rec); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
