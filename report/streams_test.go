package report

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/load"
)

// mixed is a run of a plan of several classes and groups, whose flows have counters that are read each 100 ms.
func mixed(change ...func(*bufferbloat.Recording)) *bufferbloat.Recording {
	m := newMaker(options(true), bufferbloat.ProbeSeries{Name: "UDP EF", Kind: "irtt", Primary: true}, bufferbloat.ProbeSeries{Name: "ICMP", Kind: "icmp"})
	plan := &m.rec.Plan
	plan.Name, plan.Workload = "mixed", "test/1"
	plan.Others = []bufferbloat.Server{{Name: "far", Host: "far.example.net", NetperfPort: 12865, IRTTPort: 2112}}
	plan.Probes = []bufferbloat.ProbePlan{{Name: "UDP EF", Kind: bufferbloat.IRTT, Interval: 100 * msec, DSCP: 46, Primary: true},
		{Name: "ICMP", Kind: bufferbloat.ICMP, Interval: 100 * msec}}
	flow := func(name string, d load.Direction, mark dscp.CodePoint, group string) bufferbloat.FlowPlan {
		return bufferbloat.FlowPlan{Name: name, Direction: d, DSCP: mark, Group: group}
	}
	flows := []bufferbloat.FlowPlan{flow("down BE", load.Download, 0, "web"), flow("down BK 1", load.Download, 8, "torrent"),
		flow("down BK 2", load.Download, 8, "torrent"), flow("up EF", load.Upload, 46, ""), flow("up BE", load.Upload, 0, "")}
	flows[2].Server, flows[3].CongestionControl, flows[4].Start = "far", "reno", 10*second
	for i := range plan.Phases {
		if plan.Phases[i].Kind == bufferbloat.Load {
			plan.Phases[i].Name, plan.Phases[i].Flows = "load", flows
		}
	}
	m.rec.Paths = []bufferbloat.Path{{Name: "far", Host: "far.example.net", Address: "2001:db8::7", Family: "IPv6", Stack: "kernel", Setup: 60 * msec}}
	m.phase("idle", 5*second, 20*msec, 0)
	load := m.phase("load", 30*second, 90*msec, 30*msec)
	load.From = load.Start + 10*second + 300*msec
	for i, rate := range []bitrate.Bitrate{10 * bitrate.Mbit, 4 * bitrate.Mbit, 2 * bitrate.Mbit, 3 * bitrate.Mbit, bitrate.Mbit} {
		m.steady(&flows[i], load, rate, time.Duration(100+50*i)*msec)
	}
	rtt := bufferbloat.Quantity{Name: "up EF::tcp_rtt", Unit: "ms", Flow: "up EF", At: []time.Duration{6 * second, 7 * second, 8 * second}, Values: []float64{90, 110, 95}}
	marks := bufferbloat.Quantity{Name: "up EF::tcp_delivered_ce", Unit: "segments", Flow: "up EF", At: rtt.At, Values: []float64{0, 3, 7}}
	backlog := bufferbloat.Quantity{Name: "eth0::backlog_bytes", Unit: "bytes", At: rtt.At, Values: []float64{0, 3028, 1514}}
	m.rec.Others = []bufferbloat.Quantity{rtt, marks, backlog}
	m.phase("after", 3*second, 20*msec, 0)
	for _, c := range change {
		c(m.rec)
	}
	return m.rec
}

// steady adds a flow that carries data at a rate from slew after its start on.
func (m *maker) steady(p *bufferbloat.FlowPlan, ph *bufferbloat.Phase, rate bitrate.Bitrate, slew time.Duration) {
	f := bufferbloat.Flow{Name: p.Name, Phase: ph.Name, Direction: p.Direction, Group: p.Group, Started: ph.Start, Address: "192.0.2.2"}
	if p.Server == "far" {
		f.Address = "2001:db8::7"
	}
	due := ph.Start + p.Start
	first := due + slew
	bytes := func(at time.Duration) uint64 { return uint64(math.Round(float64(rate) / 8 * (at - first).Seconds())) }
	for at := ph.Start; at <= ph.End; at += 100 * msec {
		if at > first {
			f.Points = append(f.Points, bufferbloat.Point{At: at, Bytes: bytes(at)})
		}
	}
	f.Result = bufferbloat.FlowResult{Due: due, Bytes: bytes(ph.End), CountedBy: load.CountedByReads, Connected: due + 40*msec, First: first, Last: ph.End,
		Stopped: ph.End, Flowed: true, CongestionControl: "cubic", Retransmits: 5, HasRetransmits: true}
	m.rec.Flows = append(m.rec.Flows, f)
}

func TestGoldenStreams(t *testing.T) {
	r := New(mixed())
	for suffix, write := range map[string]func(io.Writer) error{"table.txt": r.WriteTable, "md": r.WriteMarkdown, "json": r.WriteJSON} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		golden(t, "streams."+suffix, b.Bytes())
		if suffix == "json" {
			validate(t, b.Bytes())
		}
	}
}

func TestSharesSlewAndSumsOfStreams(t *testing.T) {
	p := New(mixed()).Phases[1]
	down, up := &p.Goodput[0], &p.Goodput[1]
	for i, want := range []float64{10. / 16, 4. / 16, 2. / 16} {
		f := down.Flows[i]
		if s := f.Detail.Share; s == nil || math.Abs(s.Mean-want) > 0.001 || math.Abs(s.P10-want) > 0.001 || math.Abs(s.P90-want) > 0.001 {
			t.Errorf("%s has the share %+v, want %v throughout", f.Name, s, want)
		}
		if slew := f.Detail.Slew; slew == nil || *slew != time.Duration(100+50*i)*msec {
			t.Errorf("%s has the slew %v", f.Name, slew)
		}
	}
	if d := down.Detail; *d.SlewMedian != 150*msec || *d.SlewMax != 200*msec || d.Grid.Interval != 100*msec || d.Grid.Bins < 190 {
		t.Errorf("slew %v, at most %v; grid %+v", *d.SlewMedian, *d.SlewMax, d.Grid)
	}
	// Jain's index of 10, 4 and 2 is 256 / (3 x 120).
	if got, want := down.Detail.Grid.FairnessMedian, 256./360; math.Abs(got-want) > 0.001 {
		t.Errorf("a fairness of %v in 100 ms, want %v", got, want)
	}
	var groups, classes int64
	names := map[string]int{}
	for _, g := range down.Detail.Groups {
		names[g.By+" "+g.Name] = g.Planned
		switch g.By {
		case "group":
			groups += *g.Goodput
		case "dscp":
			classes += *g.Goodput
		}
	}
	if want := (map[string]int{"group web": 1, "group torrent": 2, "dscp CS0": 1, "dscp CS1": 2, "family IPv4": 2, "family IPv6": 1}); !reflect.DeepEqual(names, want) {
		t.Errorf("got the parts %v, want %v", names, want)
	}
	if whole := int64(down.Rate); math.Abs(float64(groups-whole)) > 0.01*float64(whole) || math.Abs(float64(classes-whole)) > 0.01*float64(whole) {
		t.Errorf("groups have %d bit/s and classes %d of %d", groups, classes, whole)
	}
	if len(up.Detail.Groups) != 2 {
		t.Errorf("the uploads, which have no group, have the parts %+v", up.Detail.Groups)
	}
	if got, want := *down.Detail.Acks, int64(down.Rate)/40; got != want {
		t.Errorf("ACKs of %d bit/s, want a fortieth of %v", got, down.Rate)
	}
	if want := int64(down.Rate + up.Rate); p.Total.Goodput != want || p.Total.WithAcks != want+*down.Detail.Acks+*up.Detail.Acks {
		t.Errorf("got the total %+v, want %d and its ACKs", p.Total, want)
	}
	tcp := up.Flows[0].Detail.TCP
	if tcp == nil || *tcp.RTTMedian != 95*msec || *tcp.RTTMax != 110*msec || *tcp.Marks != 7 || tcp.WindowMedian != nil {
		t.Errorf("got the figures %+v of TCP_INFO", tcp)
	}
	if late := up.Flows[1].Detail; late.Share == nil || *late.Due != 15*second || *late.Slew != 300*msec {
		t.Errorf("the flow that begins later: %+v", late)
	}
}

func TestWhatALoadSkipsIsNotInItsRates(t *testing.T) {
	rec := mixed(func(rec *bufferbloat.Recording) {
		rec.Plan.Phases[1].Skip = 20 * second
		rec.Phases[1].From = rec.Phases[1].Start + 20*second
		for i := range rec.Flows { // a boost: twice as much in the first 10 s
			f := &rec.Flows[i]
			for j := range f.Points {
				more := min(f.Points[j].At, rec.Phases[1].Start+10*second) - f.Result.First
				f.Points[j].Bytes += uint64(max(0, more.Seconds()) * 125_000)
			}
			f.Result.Bytes = f.Points[len(f.Points)-1].Bytes
		}
	})
	g := New(rec).Phases[1].Goodput[0]
	if want := 16 * bitrate.Mbit; g.Rate < want-want/100 || g.Rate > want+want/100 || g.First != 25*second || g.Last != 35*second || g.Detail.Skipped != 20*second {
		t.Errorf("got %v from %v to %v, skipped %v; want %v of the last 10 s", g.Rate, g.First, g.Last, g.Detail.Skipped, want)
	}
	if got := bitrate.Of(g.Bytes, g.Last-g.First); got < g.Rate-1000 || got > g.Rate+1000 {
		t.Errorf("%d bytes in %v are %v, not %v", g.Bytes, g.Last-g.First, got, g.Rate)
	}
	if f := g.Flows[0]; f.Rate < 9_900_000 || f.Rate > 10_100_000 {
		t.Errorf("%s had %v after the boost, want 10 Mbit/s", f.Name, f.Rate)
	}
	sums := map[string]int64{}
	for _, part := range g.Detail.Groups {
		sums[part.By] += *part.Goodput
	}
	for by, sum := range sums {
		if math.Abs(float64(sum)-float64(g.Rate)) > 1000 {
			t.Errorf("the parts by %s have %d bit/s together, want the %v of all", by, sum, g.Rate)
		}
	}
	if len(sums) == 0 {
		t.Error("no parts")
	}
}

func TestAPlanWithoutProbesIsMeasuredByItsRates(t *testing.T) {
	r := New(mixed(func(rec *bufferbloat.Recording) { rec.Probes, rec.Plan.Probes = nil, nil }))
	if got := r.Status(); got != 0 {
		t.Errorf("status %d, findings %+v", got, r.Findings)
	}
}

func TestAProbeThatIsNotDueInAPhaseDoesNotVoidIt(t *testing.T) {
	r := New(mixed(func(rec *bufferbloat.Recording) {
		rec.Plan.Probes[0].Start, rec.Plan.Probes[0].Length = 5*second, 30*second
		s := &rec.Probes[0]
		s.Samples = s.Samples[50 : len(s.Samples)-30]
		for i := range s.Samples {
			s.Samples[i].Seq = uint64(i)
		}
	}))
	if got := r.Status(); got != 0 {
		t.Errorf("status %d, findings %+v", got, r.Findings)
	}
}

func TestWhatIsWrongWithAServerMakesAResultPartial(t *testing.T) {
	for code, want := range map[string]int{"server_unreachable": 4, "server_slow": 4, "probe_left_out": 4, "server_far": 0} {
		r := New(mixed(func(rec *bufferbloat.Recording) {
			rec.Findings = append(rec.Findings, bufferbloat.Finding{Code: code, Severity: bufferbloat.Weakens, Text: "far.example.net"})
		}))
		if got := r.Status(); got != want {
			t.Errorf("%s: status %d, want %d", code, got, want)
		}
	}
}

func TestOptionalFlowsThatWereLeftOutAreNotMissing(t *testing.T) {
	r := New(mixed(func(rec *bufferbloat.Recording) {
		ph := &rec.Plan.Phases[1]
		ph.Flows = append(ph.Flows, bufferbloat.FlowPlan{Name: "down v6", Direction: load.Download, Family: 6, Optional: true})
	}))
	if g := r.Phases[1].Goodput[0]; g.Planned != 3 || r.Status() != 0 {
		t.Errorf("%d planned, status %d, findings %+v", g.Planned, r.Status(), r.Findings)
	}
}

func TestADocumentOfStreamsIsReadBack(t *testing.T) {
	var b, again bytes.Buffer
	if err := New(mixed()).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	r, err := ReadResult(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJSON(&again); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), again.Bytes()) {
		t.Error("a document that is read and written again differs")
	}
	var table, want bytes.Buffer
	_ = New(mixed()).WriteTable(&want)
	if _ = r.WriteTable(&table); table.String() != want.String() {
		t.Errorf("got\n%s\nwant\n%s", &table, &want)
	}
	var bad map[string]any
	_ = json.Unmarshal(b.Bytes(), &bad)
	text := strings.Replace(b.String(), `"slew_ns": 100000000`, `"slew_ns": -5`, 1)
	if _, err := ReadResult(strings.NewReader(text)); err == nil {
		t.Error("a negative slew is read without an error")
	}
}

func TestStreamsThatBeginLateAreNamed(t *testing.T) {
	r := New(mixed(func(rec *bufferbloat.Recording) { rec.Flows[1].Result.First += 3 * second }))
	got := findings(r, "streams_late")
	if len(got) != 1 || got[0].Severity != bufferbloat.Note || !strings.Contains(got[0].Text, "1 of 3 streams came 1 s or more") || !strings.Contains(got[0].Text, "down BK 1 after 3.2 s") {
		t.Errorf("got %+v, want one that names the stream", got)
	}
}

func TestABusyCPUVoidsAnRRULWorkload(t *testing.T) {
	for workload, want := range map[string]bufferbloat.Severity{"rrul2013/1": bufferbloat.Voids, "": bufferbloat.Weakens} {
		r := New(mixed(func(rec *bufferbloat.Recording) {
			rec.Plan.Workload = workload
			for i := range rec.CPU.Samples {
				rec.CPU.Samples[i].Busy[0] = 1
			}
		}))
		if got := findings(r, "cpu_client"); len(got) != 1 || got[0].Severity != want {
			t.Errorf("workload %q: got %+v, want one that %s", workload, got, want)
		}
	}
}

func findings(r *Result, code string) (out []bufferbloat.Finding) {
	for _, f := range r.Findings {
		if f.Code == code {
			out = append(out, f)
		}
	}
	return out
}
