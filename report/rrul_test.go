package report

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/probe"
)

// rrulRun is appsRun with what else an RRUL workload asks for: its medians are 20 ms before the load and 80 ms under it.
func rrulRun(change ...func(*bufferbloat.Recording)) *bufferbloat.Recording {
	rec := appsRun()
	rec.Plan.Workload = bufferbloat.RRUL2013
	for _, kind := range []bufferbloat.ProbeKind{bufferbloat.TCPRR, bufferbloat.UDPRR, bufferbloat.DNS} {
		s := bufferbloat.ProbeSeries{Name: string(kind), Kind: string(kind), Interval: 100 * msec, DSCP: "CS0", Target: "lab", Address: "192.0.2.2"}
		for n := range 200 {
			x := probe.Sample{Seq: uint64(n), Due: time.Duration(n) * s.Interval, Sent: time.Duration(n) * s.Interval, Outcome: probe.Received, RTT: 20 * msec}
			if x.Sent >= 10*second {
				x.RTT = 80 * msec
			}
			s.Samples = append(s.Samples, x)
		}
		rec.Probes = append(rec.Probes, s)
	}
	for _, c := range change {
		c(rec)
	}
	return rec
}

func TestTheRRULScoreIsTheSumOfItsParts(t *testing.T) {
	scores := New(rrulRun()).RRUL
	if len(scores) != 1 || scores[0].Total == nil || len(scores[0].Parts) != 5 {
		t.Fatalf("got %+v", scores)
	}
	s := scores[0]
	sum := 0.0
	for i, want := range []struct {
		name string
		low  float64
		high float64
	}{
		{"pages", 3, 4},               // 200 ms to some 1200 ms
		{"responses", 5, 5},           // 20 to 80 ms
		{"look-ups", 5, 5},            // the same
		{"loss", 11, 11.5},            // 2.2% of 5%
		{"jitter", 0, partPoints / 4}, // a packet in fifty varies by 30 ms
	} {
		p := s.Parts[i]
		if p.Name != want.name || p.Points == nil || *p.Points < want.low-1e-9 || *p.Points > want.high+1e-9 {
			t.Errorf("part %d is %s with %v points, want %s with %v to %v", i, p.Name, *p.Points, want.name, want.low, want.high)
		}
		sum += *p.Points
	}
	if math.Abs(sum-*s.Total) > 1e-9 {
		t.Errorf("a total of %v of parts that sum up to %v", *s.Total, sum)
	}
}

func TestWithoutAPartThereIsNoTotal(t *testing.T) {
	s := New(rrulRun(func(rec *bufferbloat.Recording) { rec.Probes = rec.Probes[:len(rec.Probes)-1] })).RRUL[0]
	if s.Total != nil || s.Parts[2].Points != nil || s.Parts[2].Reason != "no such probe ran" || s.Parts[1].Points == nil {
		t.Errorf("got %+v", s)
	}
	if text := strings.Join(s.text(), "\n"); !strings.Contains(text, "RRUL score of load: - of 100") || !strings.Contains(text, "look-ups - (no such probe ran)") {
		t.Errorf("got %q", text)
	}
	if got := New(appsRun()).RRUL; got != nil {
		t.Errorf("another workload has the score %+v", got)
	}
}

// TestPenaltiesSayWhatALinkDidWrong takes streams of two classes that share a link in one way or another.
func TestPenaltiesSayWhatALinkDidWrong(t *testing.T) {
	group := func(name string, rate int64, streams int, fairness float64) Group {
		return Group{By: "dscp", Name: name, Flowed: streams, Planned: streams, Goodput: &rate, Fairness: &fairness}
	}
	late := 1100 * msec
	for name, c := range map[string]struct {
		detail Detail
		want   []string // codes
	}{
		"classes apart":            {Detail{Groups: []Group{group("CS1", 1e6, 2, 1), group("CS0", 9e6, 2, 1)}}, nil},
		"a background class alike": {Detail{Groups: []Group{group("CS1", 5e6, 2, 1), group("CS0", 5e6, 2, 1)}}, []string{"background"}},
		"fewer streams of it":      {Detail{Groups: []Group{group("CS1", 2e6, 1, 1), group("CS0", 8e6, 3, 1)}}, nil},
		"EF that takes all":        {Detail{Groups: []Group{group("EF", 9e6, 1, 1), group("CS0", 1e6, 1, 1)}}, []string{"expedited"}},
		"EF within its share":      {Detail{Groups: []Group{group("EF", 3e6, 1, 1), group("CS0", 7e6, 1, 1)}}, nil},
		"streams that differ":      {Detail{Groups: []Group{group("CS0", 9e6, 2, 0.8), group("CS1", 1e6, 2, 0.95)}}, []string{"unequal"}},
		"a SYN that was lost":      {Detail{SlewMax: &late}, []string{"slew"}},
		"sums of something else":   {Detail{Groups: []Group{{By: "group", Name: "EF", Flowed: 1, Goodput: value(int64(9e6), true)}}}, nil},
	} {
		p := Phase{Goodput: []Goodput{{OK: true, Rate: 10e6, Detail: &c.detail}}}
		var got []string
		for _, penalty := range p.streamPenalties() {
			got = append(got, penalty.Code)
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	slow, quick := 151*msec, 150*msec
	p := Phase{Voice: []Voice{{Series: "call", Up: VoiceWay{OneWay: &slow}, Down: VoiceWay{OneWay: &quick}}}}
	if got := p.callPenalties(); len(got) != 1 || got[0].Code != "delay" || got[0].Text != "call: 151.0 ms one way, up: calls want at most 150.0 ms" {
		t.Errorf("got %+v", got)
	}
}

func TestTheRRULScoreIsReadBack(t *testing.T) {
	var b, again bytes.Buffer
	if err := New(rrulRun()).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	r, err := ReadResult(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJSON(&again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), again.Bytes()) || !strings.Contains(b.String(), `"rrul": [`) {
		t.Error("a document that is read and written again differs, or has no score")
	}
}
