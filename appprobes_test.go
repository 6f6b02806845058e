package bufferbloat_test

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/report"
	"bufferbloat/servers/lab"
)

// applications is a plan with a probe of each kind that the lab can answer.
func applications() bufferbloat.Plan {
	p := bufferbloat.Speedtest(bufferbloat.SpeedtestOptions{Server: bufferbloat.Server{Host: lab.Name, NetperfPort: 12865, IRTTPort: 2112}, Idle: 2 * time.Second,
		Length: 3 * time.Second, Streams: 1, Concurrent: true, Interval: 100 * time.Millisecond, Probe: bufferbloat.ICMP})
	p.Probes[0].Name = "ping"
	for _, pr := range []bufferbloat.ProbePlan{
		{Name: "call", Kind: bufferbloat.IRTT, Interval: 20 * time.Millisecond, Size: 172, DSCP: dscp.EF},
		{Name: "connections", Kind: bufferbloat.Connect},
		{Name: "connections to the web", Kind: bufferbloat.Connect, URL: "http://lab/"},
		{Name: "handshakes", Kind: bufferbloat.TLS, Interval: 300 * time.Millisecond},
		{Name: "handshakes by URL", Kind: bufferbloat.TLS, Interval: 300 * time.Millisecond, URL: "https://lab:443/"},
		{Name: "look-ups", Kind: bufferbloat.DNS},
		{Name: "other look-ups", Kind: bufferbloat.DNS, Query: "www.example", Target: "192.0.2.2:53"},
		{Name: "fetches", Kind: bufferbloat.Fetch},
		{Name: "secure fetches", Kind: bufferbloat.Fetch, Interval: 300 * time.Millisecond, URL: "https://lab/bytes/5000"},
		{Name: "pages", Kind: bufferbloat.Page, Interval: time.Second},
		{Name: "own page", Kind: bufferbloat.Page, Interval: time.Second, URL: "http://lab/bytes/20000", Target: lab.Name},
		{Name: "tcp rr", Kind: bufferbloat.TCPRR},
		{Name: "udp rr", Kind: bufferbloat.UDPRR, Size: 200},
		{Name: "ect", Kind: bufferbloat.ICMP, ECN: host.ECT1},
	} {
		if pr.Interval == 0 {
			pr.Interval = 100 * time.Millisecond
		}
		p.Probes = append(p.Probes, pr)
	}
	return p
}

// rounds are how many round trips of 40 ms a probe takes on the idle link of the lab.
var rounds = map[string]int{"ping": 1, "call": 1, "connections": 1, "connections to the web": 1, "handshakes": 2, "handshakes by URL": 2, "look-ups": 1,
	"other look-ups": 1, "fetches": 2, "secure fetches": 3, "pages": 9, "own page": 4, "tcp rr": 1, "udp rr": 1, "ect": 1}

func TestEveryKindOfProbeHasItsIdleAndItsLoadedTimes(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole run in virtual time")
	}
	rec, err := rig{apps: true}.run(t, t.Context(), applications())
	if err != nil {
		t.Fatal(err)
	}
	checkDrain(t, rec)
	if len(rec.Probes) != len(rounds) {
		t.Errorf("%d series, want %d", len(rec.Probes), len(rounds))
	}
	for i := range rec.Probes {
		s := &rec.Probes[i]
		var idle, loaded []time.Duration
		due := 0
		for _, x := range s.Samples {
			due++
			if x.Outcome != probe.Received {
				continue
			}
			switch at := x.Sent; {
			case at >= rec.Phases[0].From && at < rec.Phases[0].To-500*time.Millisecond:
				idle = append(idle, x.RTT)
			case at >= rec.Phases[1].From && at < rec.Phases[1].To:
				loaded = append(loaded, x.RTT)
			}
		}
		least := time.Duration(rounds[s.Name]) * 40 * time.Millisecond
		if len(idle) == 0 || slices.Min(idle) < least || slices.Min(idle) > least+least/2 {
			t.Errorf("%s: idle %v, want %v and a little more", s.Name, idle, least)
		}
		if len(loaded) == 0 || slices.Max(loaded) < least+50*time.Millisecond {
			t.Errorf("%s: loaded %v, want longer than %v", s.Name, loaded, least)
		}
		if s.Error != "" || uint64(due) == 0 || s.Tally.Rejected > 0 {
			t.Errorf("%s: %d due, %q, %+v", s.Name, due, s.Error, s.Tally)
		}
		if s.Voice != (s.Name == "call") || (s.ECN == "ECT(1)") != (s.Name == "ect") {
			t.Errorf("%s: %+v", s.Name, s)
		}
		for _, m := range s.Tally.Marks {
			if s.Name == "call" && m.DS != dscp.EF.Byte() {
				t.Errorf("%s: marks %v, want EF alone", s.Name, s.Tally.Marks)
			}
		}
	}
	for _, f := range rec.Findings {
		if strings.HasPrefix(f.Code, "mark_") || strings.HasPrefix(f.Code, "probe_") {
			t.Errorf("finding %+v", f)
		}
	}
}

func TestWhatCannotBeProbedIsToldBeforeTheLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("whole runs in virtual time")
	}
	for name, c := range map[string]struct {
		probe bufferbloat.ProbePlan
		want  string
	}{
		"a name that is not there":   {bufferbloat.ProbePlan{Kind: bufferbloat.DNS, Query: "a.nx"}, "the resolver says that there is no such name"},
		"a resolver that is none":    {bufferbloat.ProbePlan{Kind: bufferbloat.DNS, Target: "192.0.2.77"}, "look up lab at 192.0.2.77:53: no answer in"},
		"nothing to look up":         {bufferbloat.ProbePlan{Kind: bufferbloat.DNS, Server: "far"}, "say what to look up"},
		"an object that is not here": {bufferbloat.ProbePlan{Kind: bufferbloat.Fetch, URL: "http://lab/none"}, "HTTP status 404"},
		"a name of nobody":           {bufferbloat.ProbePlan{Kind: bufferbloat.Fetch, URL: "http://nobody/"}, "nobody"},
		"no TLS":                     {bufferbloat.ProbePlan{Kind: bufferbloat.TLS, URL: "https://lab:80/"}, "TLS handshake"},
		"no routers":                 {bufferbloat.ProbePlan{Kind: bufferbloat.Route}, "no router on the way to 192.0.2.2 answers"},
		"no timestamps":              {bufferbloat.ProbePlan{Kind: bufferbloat.ICMPTimestamp}, "ICMP timestamps: unsupported operation"},
	} {
		p := applications()
		c.probe.Name, c.probe.Interval = "odd", time.Second
		p.Others = []bufferbloat.Server{{Name: "far", Host: "192.0.2.2", NetperfPort: 12865, IRTTPort: 2112}}
		p.Probes = append(p.Probes[:1], c.probe)
		if _, err := (rig{apps: true}).run(t, t.Context(), p); err == nil || !strings.Contains(err.Error(), "probe odd") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		p.Probes[1].Optional = true
		ctx, cancel := context.WithCancelCause(t.Context())
		r := rig{apps: true, progress: func(bufferbloat.Progress, func()) { cancel(context.Canceled) }}
		rec, err := r.run(t, ctx, p)
		if err != nil {
			t.Errorf("%s, optional: %v", name, err)
			continue
		}
		if len(rec.Probes) != 1 || !slices.ContainsFunc(rec.Findings, func(f bufferbloat.Finding) bool {
			return f.Code == "probe_left_out" && strings.Contains(f.Text, c.want)
		}) {
			t.Errorf("%s, optional: %d series, findings %+v", name, len(rec.Probes), rec.Findings)
		}
	}
}

func TestMarksThatWereChangedAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole run in virtual time")
	}
	p := applications()
	p.Probes = append(p.Probes[:2], p.Probes[len(p.Probes)-1])
	rec, err := rig{host: func(h host.Host) host.Host { return bleaching{h} }}.run(t, t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(rec.Findings, func(f bufferbloat.Finding) bool {
		return f.Code == "mark_bleached" && f.Severity == bufferbloat.Weakens && strings.Contains(f.Text, "call probes: sent as EF, and")
	}) {
		t.Errorf("findings %+v, want one about the mark", rec.Findings)
	}
	if !slices.ContainsFunc(rec.Findings, func(f bufferbloat.Finding) bool {
		return f.Code == "ecn_cleared" && f.Severity == bufferbloat.Note && strings.Contains(f.Text, "ect probes: sent as ECT(1), and")
	}) {
		t.Errorf("findings %+v, want one about the ECN bits", rec.Findings)
	}
}

// changing is a host on a path that changes the marks of what leaves, and then those of what comes in.
type changing struct {
	host.Host
	up, down func(dscp.CodePoint) dscp.CodePoint
	clearECN bool // on the way up
}

func as(p dscp.CodePoint) func(dscp.CodePoint) dscp.CodePoint {
	return func(dscp.CodePoint) dscp.CodePoint { return p }
}

func (c changing) DialUDP(ctx context.Context, to netip.AddrPort, o host.Options) (host.PacketConn, error) {
	if c.up != nil {
		o.DSCP = c.up(o.DSCP)
	}
	if c.clearECN {
		o.ECN = host.NotECT
	}
	conn, err := c.Host.DialUDP(ctx, to, o)
	return changed{conn, c.down}, err
}

type changed struct {
	host.PacketConn
	to func(dscp.CodePoint) dscp.CodePoint
}

func (c changed) Receive(b []byte) (host.Datagram, error) {
	d, err := c.PacketConn.Receive(b)
	if c.to != nil {
		d.DS = c.to(dscp.FromByte(d.DS)).Byte() | d.DS&3
	}
	return d, err
}

func TestMarksAreToldForEachWay(t *testing.T) {
	plan := func() bufferbloat.Plan {
		return pings(bufferbloat.ProbePlan{Name: "ping", Kind: bufferbloat.ICMP, Primary: true},
			bufferbloat.ProbePlan{Name: "call", Kind: bufferbloat.IRTT, Size: 172, DSCP: dscp.EF, ECN: host.ECT1})
	}
	for _, c := range []struct {
		claim    string
		path     changing
		up, down bufferbloat.MarkWay // Way, DSCP, ECN and N are not compared; the rest counts as a share of all
		codes    string
	}{
		{"kept", changing{}, bufferbloat.MarkWay{Preserved: 1}, bufferbloat.MarkWay{Preserved: 1}, ""},
		{"bleached on the way up", changing{up: as(dscp.CS0)}, bufferbloat.MarkWay{Bleached: 1}, bufferbloat.MarkWay{Preserved: 1}, "mark_bleached: the way up"},
		{"altered on the way up", changing{up: as(dscp.CS1)}, bufferbloat.MarkWay{Altered: 1}, bufferbloat.MarkWay{Preserved: 1}, "mark_altered: the way up"},
		{"ECN cleared on the way up", changing{clearECN: true}, bufferbloat.MarkWay{Preserved: 1, ECNCleared: 1}, bufferbloat.MarkWay{Preserved: 1}, "ecn_cleared: the way up"},
		{"bleached on the way down", changing{down: as(dscp.CS0)}, bufferbloat.MarkWay{Preserved: 1}, bufferbloat.MarkWay{Bleached: 1}, "mark_bleached: the way down"},
		{"altered on both", changing{up: as(dscp.CS1), down: as(34)}, bufferbloat.MarkWay{Altered: 1}, bufferbloat.MarkWay{Altered: 1},
			"mark_altered: the way up, mark_altered: the way down"},
	} {
		rec, err := rig{host: func(h host.Host) host.Host { c.path.Host = h; return c.path }}.run(t, t.Context(), plan())
		if err != nil {
			t.Fatalf("%s: %v", c.claim, err)
		}
		ways := rec.Probes[1].MarkWays()
		if len(ways) != 2 || ways[0].Way != bufferbloat.WayUp || ways[1].Way != bufferbloat.WayDown || ways[0].ECN != "ECT(1)" || ways[1].DSCP != "EF" {
			t.Errorf("%s: ways %+v, want up and down", c.claim, ways)
			continue
		}
		for i, want := range []bufferbloat.MarkWay{c.up, c.down} {
			w := ways[i]
			if w.N < 9 || w.Preserved != want.Preserved*w.N || w.Bleached != want.Bleached*w.N || w.Altered != want.Altered*w.N || w.ECNCleared != want.ECNCleared*w.N || w.CE != 0 {
				t.Errorf("%s: %+v, want %+v of %d", c.claim, w, want, w.N)
			}
		}
		var codes []string
		for _, f := range rec.Findings {
			if strings.Contains(f.Text, "call probes: sent as") {
				_, where, _ := strings.Cut(f.Text, " came as ")
				_, where, _ = strings.Cut(where, ": ")
				codes = append(codes, f.Code+": "+where[:strings.Index(where, " c")])
			}
		}
		if got := strings.Join(codes, ", "); got != c.codes {
			t.Errorf("%s: findings %q, want %q", c.claim, got, c.codes)
		}
		var table strings.Builder
		if err := report.New(rec).WriteTable(&table); err != nil || !strings.Contains(table.String(), "| call     | up   | EF, ECT(1) |") {
			t.Errorf("%s: %v, no row for the way up in\n%s", c.claim, err, table.String())
		}
	}
}

// bleaching is a host on a path that clears the DS bytes of what comes in.
type bleaching struct{ host.Host }

func (b bleaching) DialUDP(ctx context.Context, to netip.AddrPort, o host.Options) (host.PacketConn, error) {
	c, err := b.Host.DialUDP(ctx, to, o)
	return bleached{c}, err
}

func (b bleaching) DialEcho(ctx context.Context, to netip.Addr, o host.Options) (host.EchoConn, error) {
	c, err := b.Host.DialEcho(ctx, to, o)
	return bleachedEcho{c, bleached{c}}, err
}

type bleachedEcho struct {
	host.EchoConn
	clear bleached
}

func (b bleachedEcho) Receive(to []byte) (host.Datagram, error) { return b.clear.Receive(to) }

type bleached struct{ host.PacketConn }

func (b bleached) Receive(to []byte) (host.Datagram, error) {
	d, err := b.PacketConn.Receive(to)
	d.DS = 0
	return d, err
}

// checkDrain compares the length of the drain with the highest round trip of a packet in the load before it.
func checkDrain(t *testing.T, rec *bufferbloat.Recording) {
	t.Helper()
	var load, drain bufferbloat.Phase
	for _, p := range rec.Phases {
		switch p.Kind {
		case bufferbloat.Load:
			load = p
		case bufferbloat.Drain:
			drain = p
		}
	}
	highest := map[string]time.Duration{}
	for i := range rec.Probes {
		for s := range rec.Probes[i].All() {
			if s.Sent >= load.Start && s.Sent+s.RTT <= load.End {
				highest[rec.Probes[i].Kind] = max(highest[rec.Probes[i].Kind], s.RTT)
			}
		}
	}
	packet, page := max(highest["icmp"], highest["irtt"], highest["udp_rr"]), highest["page"]
	if got, want := drain.End-drain.Start, time.Second+packet; packet == 0 || page < 2*packet || got < want || got > want+packet {
		t.Errorf("the drain lasts %v, want a second and the %v of a packet, whatever a page takes (%v)", got, packet, page)
	}
}

// TestNothingIsReadBeyondTheLastPhase waits for replies that never come, and reads nothing meanwhile.
func TestNothingIsReadBeyondTheLastPhase(t *testing.T) {
	t.Parallel()
	plan := bufferbloat.Plan{Name: "silent", Server: bufferbloat.Server{Host: lab.Name, NetperfPort: 12865, IRTTPort: 2112},
		Phases: []bufferbloat.PhasePlan{{Name: "idle", Kind: bufferbloat.Idle, Length: time.Second}},
		Probes: []bufferbloat.ProbePlan{{Name: "silence", Kind: bufferbloat.ICMP, Target: "192.0.2.99", Interval: 100 * time.Millisecond}}}
	rec, err := rig{options: bufferbloat.RunOptions{Watch: []bufferbloat.Watch{{Series: []bufferbloat.WatchSeries{{Name: "watched"}},
		Read: func(values []float64) error { values[0] = 1; return nil }}}}}.run(t, t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	end := rec.Phases[0].End
	if rec.Ended < end+time.Second {
		t.Errorf("the run ended at %v, and nobody waited for replies", rec.Ended)
	}
	if at, _ := rec.Others[0].Columns(); len(at) < 10 || at[len(at)-1] > end {
		t.Errorf("there are values at %v, and the last phase ends at %v", at, end)
	}
	for _, c := range rec.CPU.Samples {
		if c.At > end {
			t.Errorf("there is a CPU time at %v, and the last phase ends at %v", c.At, end)
		}
	}
	for s := range rec.Probes[0].All() {
		if s.Sent > end {
			t.Errorf("a probe leaves at %v, and the last phase ends at %v", s.Sent, end)
		}
	}
}
