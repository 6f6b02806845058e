package bufferbloat_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/load"
	"bufferbloat/servers/lab"
)

func TestASpeedtestByIPerf3(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated runs")
	}
	for _, together := range []bool{false, true} {
		p := plan(func(o *bufferbloat.SpeedtestOptions) { o.Concurrent = together })
		p.Server.IPerf3Port = 5201
		p.Server.NetperfPort = 9 // nobody is there, and nobody has to be
		p.Speak(bufferbloat.IPerf3)
		rec, err := rig{iperf3: true, link: lab.Config{Queue: "fq_codel"}}.run(t, t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if rec.Path.Server != "iperf3" || len(rec.Flows) != 10 {
			t.Errorf("server %q, %d flows", rec.Path.Server, len(rec.Flows))
		}
		for _, f := range rec.Flows {
			want := load.CountedByReads
			if f.Direction == load.Upload {
				want = load.CountedByServer
			}
			if f.Error != "" || f.Result.CountedBy != want || f.Result.Bytes < 100_000 || len(f.Points) < 30 {
				t.Errorf("%s: %q, %+v, %d points", f.Name, f.Error, f.Result, len(f.Points))
			}
		}
		for _, d := range []load.Direction{load.Download, load.Upload} {
			checkNoGap(t, rec, d)
		}
	}
}

func TestFlowsOfSeveralMarksAndDatagramsByIPerf3(t *testing.T) {
	if testing.Short() {
		t.Skip("an emulated run")
	}
	p := plan()
	p.Server.IPerf3Port = 5201
	p.Phases = []bufferbloat.PhasePlan{{Name: "load", Kind: bufferbloat.Load, Length: 4 * time.Second}}
	add := func(f bufferbloat.FlowPlan) { p.Phases[0].Flows = append(p.Phases[0].Flows, f) }
	for _, mark := range []dscp.CodePoint{0, dscp.CS1, dscp.EF} {
		for _, d := range []load.Direction{load.Download, load.Upload} {
			add(bufferbloat.FlowPlan{Name: d.String() + " " + mark.String(), Direction: d, DSCP: mark, Protocol: bufferbloat.IPerf3})
		}
	}
	add(bufferbloat.FlowPlan{Name: "extra", Direction: load.Download, Protocol: bufferbloat.IPerf3}) // two down and one up are two tests
	for _, d := range []load.Direction{load.Download, load.Upload} {
		add(bufferbloat.FlowPlan{Name: "UDP " + d.String(), Direction: d, Protocol: bufferbloat.IPerf3UDP, Rate: 200 * bitrate.Kbit, Start: time.Second, Length: 2 * time.Second})
	}
	rec, err := rig{iperf3: true, link: lab.Config{Queue: "fq_codel"}}.run(t, t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range rec.Flows {
		if f.Error != "" || f.Result.Bytes == 0 {
			t.Errorf("%s: %q, %+v", f.Name, f.Error, f.Result)
		}
		d := f.Result.Datagrams
		if strings.HasPrefix(f.Name, "UDP") != (d != nil) || d != nil && (d.Lost > 2 || d.Received < 38 || d.Sent < 41 || !d.HasDelay || f.Result.Bytes != d.Received*1200) {
			t.Errorf("%s: %+v", f.Name, d)
		}
		if d == nil {
			continue
		}
		if !slices.ContainsFunc(rec.Findings, func(n bufferbloat.Finding) bool { return n.Code == "udp_flow" && strings.HasPrefix(n.Text, f.Name+",") }) {
			t.Errorf("nothing says what %s is: %+v", f.Name, rec.Findings)
		}
		if !slices.ContainsFunc(rec.Others, func(q bufferbloat.Quantity) bool { return q.Name == f.Name+"::udp_lost" && len(q.Values) >= 2 }) {
			t.Errorf("no losses of %s over time", f.Name)
		}
	}
}

// checkNoGap checks that the flows of a direction together had something in each 100 ms of their time, after the first second, in which their
// slow start overshoots.
func checkNoGap(t *testing.T, rec *bufferbloat.Recording, d load.Direction) {
	t.Helper()
	const step = 100 * time.Millisecond
	var begin time.Duration // of the sampler's steps, which all flows share
	grown := map[int]uint64{}
	last := 0
	for _, f := range rec.Flows {
		for i := 1; i < len(f.Points) && f.Direction == d; i++ {
			if begin == 0 {
				begin = f.Points[i].At
			}
			if at := f.Points[i].At; at < f.Result.Stopped {
				n := int((at - begin).Round(step) / step)
				grown[n] += f.Points[i].Bytes - f.Points[i-1].Bytes
				last = max(last, n)
			}
		}
	}
	for n := 10; n < last; n++ {
		if grown[n] == 0 {
			t.Errorf("nothing came by all %vs in the 100 ms before %v", d, begin+time.Duration(n)*step)
		}
	}
	if last < 30 {
		t.Errorf("%d intervals of %vs", last, d)
	}
}
