package bufferbloat

import (
	"strings"
	"testing"
	"time"

	"bufferbloat/load"
	"bufferbloat/probe"
	"bufferbloat/watch"
)

// steady is a run of 5 s of idle and 10 s of download with 20 Mbit/s of payload, and a device that carried so many bytes a second beside.
func steady(idle, loaded float64) *Recording {
	const payload = 2.5e6
	r := &Recording{
		Plan:   Plan{Phases: []PhasePlan{{Name: "download", Flows: []FlowPlan{{Name: "download 1", Direction: load.Download}}}}},
		Phases: []Phase{{Name: "idle", Kind: Idle, To: 5 * time.Second}, {Name: "download", Kind: Load, From: 6 * time.Second, To: 15 * time.Second}},
		Others: []Quantity{{Name: "eth0::rx_bytes"}, {Name: "eth0::tx_bytes"}},
		Flows:  []Flow{{Name: "download 1", Phase: "download", Direction: load.Download, Result: FlowResult{Flowed: true, Bytes: 11 * payload}}},
		Probes: []ProbeSeries{{Name: "icmp"}},
	}
	rx, tx := 1e9, 1e8
	for n := range 81 {
		at := time.Duration(n) * 200 * time.Millisecond
		r.Others[0].At, r.Others[0].Values = append(r.Others[0].At, at), append(r.Others[0].Values, rx)
		r.Others[1].At, r.Others[1].Values = append(r.Others[1].At, at), append(r.Others[1].Values, tx)
		rx, tx = rx+200+idle/5, tx+200 // probes
		if at >= 5*time.Second {
			r.Flows[0].Points = append(r.Flows[0].Points, Point{at, uint64(payload * (at - 5*time.Second).Seconds())})
			rx, tx = rx+(payload*1.0456+loaded-idle)/5, tx+payload*0.03/5
		}
		r.Probes[0].Samples = append(r.Probes[0].Samples, probe.Sample{Sent: at, Outcome: probe.Received})
	}
	return r
}

func TestTrafficThatIsNotTheRunsIsFound(t *testing.T) {
	const mbit = 125_000
	for _, c := range []struct {
		claim string
		r     *Recording
		want  []string
	}{
		{"a run alone, with its headers, acknowledgements and probes", steady(0, 0), nil},
		{"a little beside", steady(0.2*mbit, 0.5*mbit), nil},
		{"a film beside, all the time", steady(5*mbit, 5*mbit), []string{"idle: of the 5.", "download: of the 25.9 Mbit/s that eth0 received, at least 3"}},
		{"something that was there while it was idle", steady(5*mbit, 0), []string{"idle: of the 5.01 Mbit/s that eth0 received, at least 4.97"}},
		{"a counter that began anew", func() *Recording {
			r := steady(5*mbit, 5*mbit)
			r.Others[0].Values[10], r.Others[0].Values[50] = 0, 0
			return r
		}(), nil},
		{"datagrams, of whose headers nothing is known", func() *Recording {
			r := steady(0, 5*mbit)
			r.Plan.Phases[0].Flows[0].Protocol = IPerf3UDP
			return r
		}(), nil},
		{"a flow that nobody counted", func() *Recording { r := steady(0, 5*mbit); r.Flows[0].Points = nil; return r }(), nil},
	} {
		got := c.r.judgeCompeting("eth0")
		if len(got) != len(c.want) {
			t.Errorf("%s: got %+v, want %q", c.claim, got, c.want)
			continue
		}
		for i, f := range got {
			if f.Code != "competing_traffic" || f.Severity != Weakens || !strings.Contains(f.Text, c.want[i]) {
				t.Errorf("%s: got %+v, want %q", c.claim, f, c.want[i])
			}
		}
	}
	if got := steady(5*mbit, 5*mbit).judgeCompeting("eth1"); got != nil {
		t.Errorf("a device that was not watched: %+v", got)
	}
}

func TestWhatWaitsInAQueueOnTheWayIsTheRunsOwn(t *testing.T) {
	const payload = 2.5e6 // bytes a second that arrive; in the window of 9 s a queue fills with 3 s of them, which arrive after it
	r := &Recording{
		Plan:   Plan{Phases: []PhasePlan{{Name: "upload", Flows: []FlowPlan{{Name: "upload 1", Direction: load.Upload}}}}},
		Phases: []Phase{{Name: "upload", Kind: Load, From: time.Second, To: 10 * time.Second}},
		Others: []Quantity{{Name: "eth0::rx_bytes"}, {Name: "eth0::tx_bytes"}},
		Flows:  []Flow{{Name: "upload 1", Phase: "upload", Direction: load.Upload, Result: FlowResult{Flowed: true, Bytes: 13 * payload}}},
	}
	for n := range 76 {
		at := time.Duration(n) * 200 * time.Millisecond
		s := at.Seconds()
		sent := min(s, 10)*payload + max(0, min(s, 10)-1)*payload/3
		r.Others[0].At, r.Others[0].Values = append(r.Others[0].At, at), append(r.Others[0].Values, s*payload*0.03)
		r.Others[1].At, r.Others[1].Values = append(r.Others[1].At, at), append(r.Others[1].Values, sent*1.0456)
		r.Flows[0].Points = append(r.Flows[0].Points, Point{at, uint64(payload * min(s, 13))})
	}
	if got := r.judgeCompeting("eth0"); got != nil {
		t.Errorf("got %+v, want nothing", got)
	}
	const mbit = 125_000
	for i := range r.Others[1].Values {
		r.Others[1].Values[i] += 10 * mbit * r.Others[1].At[i].Seconds()
	}
	if got := r.judgeCompeting("eth0"); len(got) != 1 || !strings.HasPrefix(got[0].Text, "upload: of the ") {
		t.Errorf("10 Mbit/s beside: got %+v, want that it is found", got)
	}
}

func TestProbesAreTakenForWhatTheyAre(t *testing.T) {
	for _, c := range []struct {
		kind    ProbeKind
		size    int
		carried float64 // bytes of the device for each probe, five a second for 5 s of idle
		want    int
	}{
		{ICMP, 0, 100, 0},
		{ICMP, 0, 10_000, 1},
		{IRTT, 8000, 8400, 0},
		{TCP, 0, 300, 0},
		{TLS, 0, 8000, 0},
		{TLS, 0, 40_000, 1},
		{Fetch, 0, 100_000, 0}, // whose length is not known here
		{Page, 0, 500_000, 0},
	} {
		r := &Recording{
			Phases: []Phase{{Name: "idle", Kind: Idle, To: 5 * time.Second}},
			Others: []Quantity{{Name: "eth0::rx_bytes"}, {Name: "eth0::tx_bytes"}},
			Probes: []ProbeSeries{{Kind: string(c.kind), Size: c.size}},
		}
		for n := range 31 {
			at := time.Duration(n) * 200 * time.Millisecond
			r.Others[0].At, r.Others[0].Values = append(r.Others[0].At, at), append(r.Others[0].Values, float64(n)*c.carried)
			r.Others[1].At, r.Others[1].Values = append(r.Others[1].At, at), append(r.Others[1].Values, float64(n)*100)
			r.Probes[0].Samples = append(r.Probes[0].Samples, probe.Sample{Sent: at})
		}
		if got := r.judgeCompeting("eth0"); len(got) != c.want {
			t.Errorf("%s of %d bytes, %v carried for each: got %+v, want %d findings", c.kind, c.size, c.carried, got, c.want)
		}
	}
}

func TestTheSharesOfACPUBetweenTwoReadings(t *testing.T) {
	const s = time.Second
	values := []float64{-1, -1, -1, -1, -1}
	coreValues(values, &watch.Core{Busy: s, Total: 4 * s}, &watch.Core{Busy: 2 * s, SoftIRQ: s / 2, Steal: s / 4, Total: 6 * s, Hertz: 3e9})
	for i, want := range []float64{0.5, 0.25, 0, 0.125, 3e9} {
		if values[i] != want {
			t.Errorf("value %d is %v, want %v", i, values[i], want)
		}
	}
	values = []float64{-1, -1, -1, -1, -1}
	coreValues(values, &watch.Core{Total: s}, &watch.Core{Total: s})
	if values[0] != -1 || values[4] != -1 {
		t.Errorf("no time, and no clock rate: got %v, want that nothing is known", values)
	}
	w, err := watchCores()
	if err != nil {
		t.Skip(err)
	}
	all := make([]float64, len(w.Series))
	if err := w.Read(all); err != nil || len(w.Series)%5 != 0 {
		t.Errorf("this host: %v, %d series", err, len(w.Series))
	}
}
