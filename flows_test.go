package bufferbloat_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
	"bufferbloat/report"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/netperf"
)

// The addresses of the lab's server.
const (
	server4 = "192.0.2.2"
	server6 = "2001:db8::2"
)

// light is a link that costs little to emulate.
var light = lab.Config{Down: 3_000_000, Up: 1_000_000, RTT: 20 * time.Millisecond, Buffer: 100 * time.Millisecond}

// one is a plan of an idle second, a load of these flows, and an ICMP probe.
func one(length time.Duration, flows ...bufferbloat.FlowPlan) bufferbloat.Plan {
	return bufferbloat.Plan{Name: "test", Server: bufferbloat.Server{Host: lab.Name, NetperfPort: 12865, IRTTPort: 2112},
		Phases: []bufferbloat.PhasePlan{{Name: "idle", Kind: bufferbloat.Idle, Length: time.Second},
			{Name: "load", Kind: bufferbloat.Load, Length: length, Flows: flows}},
		Probes: []bufferbloat.ProbePlan{{Name: "ping", Kind: bufferbloat.ICMP, Interval: 100 * time.Millisecond, Primary: true}}}
}

func flow(t *testing.T, rec *bufferbloat.Recording, name string) *bufferbloat.Flow {
	t.Helper()
	i := slices.IndexFunc(rec.Flows, func(f bufferbloat.Flow) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("there is no flow %q among %d", name, len(rec.Flows))
	}
	return &rec.Flows[i]
}

func TestFlowsBeginAndEndWhenThePlanSays(t *testing.T) {
	up, down := load.Upload, load.Download
	rec, err := rig{link: light}.run(t, t.Context(), one(8*time.Second,
		bufferbloat.FlowPlan{Name: "all", Direction: up},
		bufferbloat.FlowPlan{Name: "late", Direction: down, Start: 3 * time.Second},
		bufferbloat.FlowPlan{Name: "short", Direction: up, Start: 2 * time.Second, Length: 2 * time.Second},
		bufferbloat.FlowPlan{Name: "last", Direction: down, Start: 6500 * time.Millisecond, Length: 1500 * time.Millisecond},
	))
	if err != nil {
		t.Fatal(err)
	}
	began := rec.Phases[1].Start
	if began != time.Second {
		t.Errorf("the load began at %v, want when the idle second was over", began)
	}
	const s = time.Second
	for name, span := range map[string][2]time.Duration{"all": {0, 8 * s}, "late": {3 * s, 8 * s}, "short": {2 * s, 4 * s}, "last": {6500 * time.Millisecond, 8 * s}} {
		f := flow(t, rec, name)
		from, to := span[0], span[1]
		r := f.Result
		if f.Error != "" || r.Due != began+from || r.Stopped != began+to || r.First < r.Due || r.First > r.Due+700*time.Millisecond {
			t.Errorf("%s: due %v, first data %v, stopped %v, error %q; want from %v to %v", name, r.Due, r.First, r.Stopped, f.Error, began+from, began+to)
		}
		for _, p := range f.Points {
			if p.At < r.Due {
				t.Errorf("%s has bytes at %v, before its time", name, p.At)
			}
		}
	}
}

func TestAFlowOfBytesEndsAfterThemAndOneWithARateKeepsIt(t *testing.T) {
	rec, err := rig{link: lab.Config{Down: 50_000_000, Up: 50_000_000, RTT: 20 * time.Millisecond}}.run(t, t.Context(),
		one(6*time.Second,
			bufferbloat.FlowPlan{Name: "small", Direction: load.Download, Bytes: 100_000},
			bufferbloat.FlowPlan{Name: "more", Direction: load.Upload, Bytes: 1_000_000, Size: 1000},
			bufferbloat.FlowPlan{Name: "paced", Direction: load.Upload, Rate: 2_000_000},
		))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{"small": 100_000, "more": 1_000_000} {
		f := flow(t, rec, name)
		if f.Error != "" || f.Result.Warning != "" || f.Result.Bytes != want || f.Result.Stopped > 3*time.Second {
			t.Errorf("%s: %+v, error %q; want %d bytes, soon", name, f.Result, f.Error, want)
		}
	}
	f := flow(t, rec, "paced")
	if rate := bitrate.Of(f.Result.Bytes, f.Result.Stopped-f.Result.First); f.Error != "" || rate < 1_950_000 || rate > 2_050_000 {
		t.Errorf("the paced flow had %v, want 2 Mbit/s; %q", rate, f.Error)
	}
	for i := 10; i < len(f.Points); i++ {
		if d := f.Points[i].Bytes - f.Points[i-5].Bytes; d < 100_000 || d > 150_000 {
			t.Errorf("the paced flow had %d bytes in the half second until %v, want 125000", d, f.Points[i].At)
		}
	}
}

func TestARateThatTheServerCannotBeAskedForIsAnErrorBeforeTheRun(t *testing.T) {
	_, err := rig{}.run(t, t.Context(), one(time.Second, bufferbloat.FlowPlan{Name: "paced", Direction: load.Download, Rate: 1e6}))
	if err == nil || !strings.Contains(err.Error(), `flow "paced": a rate that the server is to keep to`) {
		t.Errorf("got %v", err)
	}
}

func TestAnUnknownCongestionControlIsAnErrorBeforeTheRun(t *testing.T) {
	_, err := rig{}.run(t, t.Context(), one(time.Second,
		bufferbloat.FlowPlan{Name: "known", Direction: load.Upload, CongestionControl: "cubic"},
		bufferbloat.FlowPlan{Name: "unknown", Direction: load.Upload, CongestionControl: "no_such_one"}))
	if err == nil || !strings.Contains(err.Error(), `flow "unknown" can't run`) || !strings.Contains(err.Error(), "cubic") || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v, want an error that names what there is", err)
	}
}

func TestACongestionControlThatTheServerDidNotUseIsNamed(t *testing.T) {
	rec, err := rig{link: light}.run(t, t.Context(), one(2*time.Second,
		bufferbloat.FlowPlan{Name: "asked", Direction: load.Download, CongestionControl: "reno"},
		bufferbloat.FlowPlan{Name: "had", Direction: load.Download, CongestionControl: "cubic"}))
	if err != nil {
		t.Fatal(err)
	}
	f, ok := finding(rec, "congestion_control")
	if !ok || f.Severity != bufferbloat.Weakens || !strings.Contains(f.Text, "asked ran with cubic, not reno") || strings.Contains(f.Text, "had") {
		t.Errorf("findings %+v, want one that says what was used in place of reno", rec.Findings)
	}
}

func TestTCPInfoOfUploadsIsRecorded(t *testing.T) {
	rec, err := rig{link: lab.Config{Up: 4_000_000, BufferUp: 100_000, RTT: 40 * time.Millisecond}}.run(t, t.Context(), one(4*time.Second,
		bufferbloat.FlowPlan{Name: "up", Direction: load.Upload}, bufferbloat.FlowPlan{Name: "down", Direction: load.Download}))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bufferbloat.Quantity{}
	for _, q := range rec.Others {
		seen[q.Name] = q
		if what, _, _ := strings.Cut(q.Name, "::"); q.Flow != what {
			t.Errorf("%s is said to be about %q", q.Name, q.Flow)
		}
		if len(q.At) != len(q.Values) || len(q.At) > 45 {
			t.Errorf("%s has %d times and %d values in 4 s", q.Name, len(q.At), len(q.Values))
		}
	}
	rtt, window := seen["up::tcp_rtt"], seen["up::tcp_cwnd"]
	if len(rtt.Values) < 30 || len(window.Values) < 30 || rtt.Unit != "ms" || window.Unit != "segments" {
		t.Fatalf("got %d values of the smoothed RTT and %d of the window", len(rtt.Values), len(window.Values))
	}
	if high := slices.Max(rtt.Values); slices.Min(rtt.Values) < 40 || high < 100 || high > 300 {
		t.Errorf("smoothed RTTs from %v to %v ms; want at least the path's 40, and most of the queue's 200 on top", slices.Min(rtt.Values), high)
	}
	for name := range seen {
		if strings.HasPrefix(name, "down::") && !strings.HasSuffix(name, "rcv_rtt") {
			t.Errorf("%s is no figure of a receiver", name)
		}
	}
}

// twoServers is a plan with flows to two servers, of which one does not exist.
func twoServers(second string, change ...func(*bufferbloat.Plan)) bufferbloat.Plan {
	p := one(3*time.Second,
		bufferbloat.FlowPlan{Name: "near 1", Direction: load.Download, Group: "near"},
		bufferbloat.FlowPlan{Name: "near 2", Direction: load.Upload, Group: "near"},
		bufferbloat.FlowPlan{Name: "far 1", Direction: load.Download, Server: "far", Group: "far"})
	p.Others = []bufferbloat.Server{{Name: "far", Host: second, NetperfPort: 12865, IRTTPort: 2112}}
	p.Probes = append(p.Probes, bufferbloat.ProbePlan{Name: "ping far", Kind: bufferbloat.ICMP, Interval: 100 * time.Millisecond, Server: "far"})
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestFlowsAndProbesGoToTheServerThatTheyName(t *testing.T) {
	rec, err := rig{link: light}.run(t, t.Context(), twoServers(server4))
	if err != nil {
		t.Fatal(err)
	}
	if len(rec.Paths) != 1 || rec.Paths[0].Name != "far" || rec.Paths[0].Address != server4 || rec.Paths[0].Setup <= 0 {
		t.Errorf("got the further paths %+v", rec.Paths)
	}
	if f := flow(t, rec, "far 1"); f.Address != server4 || f.Result.Bytes == 0 || f.Group != "far" {
		t.Errorf("got %+v", f)
	}
	if len(rec.Probes) != 2 || rec.Probes[1].Name != "ping far" || rec.Probes[1].Target != server4 || !rec.Probes[1].Samples[3].Outcome.HasRTT() {
		t.Errorf("got %d series, the second %+v", len(rec.Probes), rec.Probes[len(rec.Probes)-1].Name)
	}
}

func TestAServerThatIsNotThereStopsNoOther(t *testing.T) {
	rec, err := rig{link: light}.run(t, t.Context(), twoServers("192.0.2.77"))
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := finding(rec, "server_unreachable"); !ok || !strings.Contains(f.Text, "192.0.2.77") {
		t.Errorf("findings %+v, want one that names the server", rec.Findings)
	}
	if f := flow(t, rec, "far 1"); f.Error == "" || f.Result.Flowed {
		t.Errorf("got %+v, want an error", f)
	}
	if f := flow(t, rec, "near 1"); f.Error != "" || f.Result.Bytes == 0 {
		t.Errorf("the other server's flow: %+v", f)
	}
	if len(rec.Paths) != 1 || rec.Paths[0].Error == "" || rec.Paths[0].Address != "" {
		t.Errorf("paths %+v", rec.Paths)
	}
	if f, ok := finding(rec, "streams_missing"); !ok || !strings.Contains(f.Text, "192.0.2.77") {
		t.Errorf("findings %+v, want one that says what is missing, and why", rec.Findings)
	}
	if got := report.New(rec).Status(); got != 4 {
		t.Errorf("status %d, want 4", got)
	}
}

func TestWithoutAnyServerThereIsNoRun(t *testing.T) {
	_, err := rig{}.run(t, t.Context(), twoServers("192.0.2.78", func(p *bufferbloat.Plan) { p.Server.Host = "192.0.2.77" }))
	if err == nil || !strings.Contains(err.Error(), "192.0.2.77") || !strings.Contains(err.Error(), "192.0.2.78") {
		t.Errorf("got %v, want an error that names both", err)
	}
}

func TestEachFamilyOfAServerHasItsOneAddress(t *testing.T) {
	p := one(2*time.Second,
		bufferbloat.FlowPlan{Name: "v4", Direction: load.Download, Family: 4},
		bufferbloat.FlowPlan{Name: "v6", Direction: load.Download, Family: 6, Optional: true},
		bufferbloat.FlowPlan{Name: "any", Direction: load.Upload})
	p.Probes = append(p.Probes,
		bufferbloat.ProbePlan{Name: "ping 4", Kind: bufferbloat.ICMP, Interval: 200 * time.Millisecond, Family: 4},
		bufferbloat.ProbePlan{Name: "ping 6", Kind: bufferbloat.ICMP, Interval: 200 * time.Millisecond, Family: 6, Optional: true})
	for _, c := range []struct {
		name string
		v6   bool
	}{{"both", true}, {"a server without IPv6", false}} {
		r := rig{link: light, v6: c.v6}
		rec, err := r.run(t, t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if got := flow(t, rec, "v4"); got.Address != server4 || got.Error != "" {
			t.Errorf("%s: the flow over IPv4: %+v", c.name, got)
		}
		has := slices.ContainsFunc(rec.Flows, func(f bufferbloat.Flow) bool { return f.Name == "v6" && f.Address == server6 && f.Error == "" })
		_, left := finding(rec, "family_left_out")
		if has != c.v6 || left == c.v6 {
			t.Errorf("%s: a flow over IPv6: %t; findings %+v", c.name, has, rec.Findings)
		}
	}
}

func TestProbesHaveTheirOwnTime(t *testing.T) {
	p := one(3*time.Second, bufferbloat.FlowPlan{Name: "down", Direction: load.Download})
	p.Probes = append(p.Probes,
		bufferbloat.ProbePlan{Name: "middle", Kind: bufferbloat.ICMP, Interval: 100 * time.Millisecond, Start: 1500 * time.Millisecond, Length: time.Second},
		bufferbloat.ProbePlan{Name: "late", Kind: bufferbloat.IRTT, Interval: 100 * time.Millisecond, Start: 2 * time.Second, Length: 2 * time.Second, Size: 172})
	rec, err := rig{link: light}.run(t, t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rec.Probes[1:] {
		first, last := s.Samples[0], s.Samples[len(s.Samples)-1]
		from, n := 1500*time.Millisecond, 10
		if s.Name == "late" {
			from, n = 2*time.Second, 20
		}
		if first.Due != from || first.Sent != from || len(s.Samples) != n || last.Due != from+time.Duration(n-1)*100*time.Millisecond || !last.Outcome.HasRTT() {
			t.Errorf("%s: %d probes from %v to %v, the last %v; want %d from %v on", s.Name, len(s.Samples), first.Due, last.Due, last.Outcome, n, from)
		}
	}
}

func TestAServerThatDiesLeavesTheOtherServersFlows(t *testing.T) {
	p := twoServers(server4, func(p *bufferbloat.Plan) {
		p.Others[0].NetperfPort = 12866
		p.Phases[1].Length = 6 * time.Second
	})
	r := rig{link: light, second: true, progress: func(at bufferbloat.Progress, stopServer func()) {
		if at.Phase == "load" && at.Elapsed >= 2*time.Second {
			stopServer()
		}
	}}
	rec, err := r.run(t, t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if f := flow(t, rec, "near 1"); f.Error == "" || f.Result.Bytes == 0 {
		t.Errorf("the flow of the server that died: %+v, want what was counted, and an error", f)
	}
	if f := flow(t, rec, "far 1"); f.Error != "" || f.Result.Stopped-f.Result.Due != 6*time.Second {
		t.Errorf("the other server's flow: %+v", f)
	}
	if f, ok := finding(rec, "streams_missing"); !ok || !strings.Contains(f.Text, "1 of 2 streams") {
		t.Errorf("findings %+v", rec.Findings)
	}
	if got := report.New(rec).Status(); got != 4 {
		t.Errorf("status %d, want 4", got)
	}
}

func TestMarksAreThoseOfTheFlow(t *testing.T) {
	rec, err := rig{link: light}.run(t, t.Context(), one(2*time.Second,
		bufferbloat.FlowPlan{Name: "ef", Direction: load.Download, DSCP: dscp.CodePoint(46)},
		bufferbloat.FlowPlan{Name: "be", Direction: load.Download}))
	if err != nil {
		t.Fatal(err)
	}
	if got := flow(t, rec, "ef").Result.RemoteDSCP; got != dscp.CodePoint(46).String() {
		t.Errorf("the marked flow's server sends %q", got)
	}
}

func TestManyFlowsRun(t *testing.T) {
	slow(t)
	var flows []bufferbloat.FlowPlan
	for i := range 1000 {
		flows = append(flows, bufferbloat.FlowPlan{Name: fmt.Sprint("flow ", i+1), Direction: load.Direction(1 + i%2)})
	}
	rec, err := rig{link: lab.Config{Down: 200_000_000, Up: 200_000_000, RTT: 20 * time.Millisecond},
		netperf: netperf.Options{MaxTests: 2000, MaxTestsPerAddress: 2000}}.run(t, t.Context(), one(3*time.Second, flows...))
	if err != nil {
		t.Fatal(err)
	}
	carried := 0
	for _, f := range rec.Flows {
		if f.Result.Bytes > 0 {
			carried++
		}
	}
	if len(rec.Flows) != 1000 || carried < 950 {
		t.Errorf("%d of %d flows carried data: %+v", carried, len(rec.Flows), rec.Findings)
	}
}

func TestAServerThatIsFarAwayIsNamedInAnRRULRunAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		rtt  time.Duration
		far  bool
	}{{"rrul_be", 79 * time.Millisecond, false}, {"rrul_be", 90 * time.Millisecond, true}, {"test", 90 * time.Millisecond, false}} {
		p := one(time.Second, bufferbloat.FlowPlan{Name: "down", Direction: load.Download})
		p.Name = c.name
		rec, err := rig{link: lab.Config{Down: 3_000_000, RTT: c.rtt}}.run(t, t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		f, far := finding(rec, "server_far")
		if far != c.far || far && !strings.Contains(f.Text, "lab is 90") {
			t.Errorf("%s at %v: got %+v, want one: %t", c.name, c.rtt, f, c.far)
		}
	}
}

func TestFlowsOfOnePlanGoToSeveralHostsByOneClock(t *testing.T) {
	slow(t)
	serving, stop := context.WithCancel(t.Context())
	defer stop()
	var servers errgroup.Group
	p := one(2*time.Second,
		bufferbloat.FlowPlan{Name: "first", Direction: load.Upload, Rate: 2_000_000},
		bufferbloat.FlowPlan{Name: "second", Direction: load.Upload, Rate: 1_000_000, Server: "b", Start: 500 * time.Millisecond})
	p.Phases = p.Phases[1:]
	p.Probes = []bufferbloat.ProbePlan{{Name: "a", Kind: bufferbloat.TCP, Interval: 100 * time.Millisecond, Primary: true},
		{Name: "b", Kind: bufferbloat.TCP, Interval: 100 * time.Millisecond, Server: "b"}}
	for i, at := range []string{"127.0.0.1:0", "127.0.0.2:0"} {
		bound := make(chan netip.AddrPort, 1)
		servers.Go(func() error {
			s := netperf.Server{Options: netperf.Options{Ready: func(at []netip.AddrPort) { bound <- at[0] }}}
			err := s.Serve(serving, host.NewKernel(), netip.MustParseAddrPort(at))
			if err != nil {
				close(bound)
			}
			return err
		})
		a, ok := <-bound
		if !ok {
			facility.Missing(t, "loopback-net", servers.Wait().Error())
		}
		s := bufferbloat.Server{Host: a.Addr().String(), NetperfPort: a.Port(), IRTTPort: 2112}
		if i == 0 {
			p.Server = s
			continue
		}
		s.Name = "b"
		p.Others = []bufferbloat.Server{s}
	}
	rec, err := bufferbloat.Run(t.Context(), p, bufferbloat.RunOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkInvariants(t, rec)
	stop()
	if err := servers.Wait(); err != nil {
		t.Error(err)
	}
	first, second := flow(t, rec, "first"), flow(t, rec, "second")
	if first.Address != "127.0.0.1" || second.Address != "127.0.0.2" || first.Error != "" || second.Error != "" {
		t.Errorf("got %+v and %+v", first, second)
	}
	if d := second.Result.Due - first.Result.Due; d != 500*time.Millisecond {
		t.Errorf("the second begins %v after the first, want half a second by the one clock", d)
	}
	for _, s := range rec.Probes {
		if n := slices.IndexFunc(s.Samples, func(s probe.Sample) bool { return s.Outcome.HasRTT() }); n < 0 {
			t.Errorf("no probe of %s to %s was answered", s.Name, s.Address)
		}
	}
	if len(rec.Paths) != 1 || rec.Paths[0].Address != "127.0.0.2" {
		t.Errorf("the further paths are %+v", rec.Paths)
	}
}
