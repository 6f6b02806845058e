package bufferbloat_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/servers/lab"
)

// pings is a plan of probes alone.
func pings(probes ...bufferbloat.ProbePlan) bufferbloat.Plan {
	for i := range probes {
		probes[i].Interval = 100 * time.Millisecond
	}
	return bufferbloat.Plan{Name: "pings", Server: bufferbloat.Server{Host: lab.Name, NetperfPort: 12865, IRTTPort: 2112, IPerf3Port: 5201},
		Phases: []bufferbloat.PhasePlan{{Name: "idle", Kind: bufferbloat.Idle, Length: time.Second}}, Probes: probes}
}

func TestUDPIsProbedOnNetperfsTermsWhereNoIRTTServerAnswers(t *testing.T) {
	for _, noIRTT := range []bool{false, true} {
		rec, err := rig{noIRTT: noIRTT}.run(t, t.Context(), pings(
			bufferbloat.ProbePlan{Name: "ICMP", Kind: bufferbloat.ICMP, Primary: true},
			bufferbloat.ProbePlan{Name: "UDP EF", Kind: bufferbloat.UDP, DSCP: 46},
			bufferbloat.ProbePlan{Name: "UDP BE", Kind: bufferbloat.UDP}))
		if err != nil {
			t.Fatal(err)
		}
		want, reason := "irtt", ""
		if noIRTT {
			want, reason = "udp_rr", "no irtt server runs there"
		}
		for _, s := range rec.Probes[1:] {
			if s.Kind != want || (s.Reason == "") != (reason == "") || !strings.Contains(s.Reason, reason) {
				t.Errorf("%s is of kind %s because %q, want %s because %q", s.Name, s.Kind, s.Reason, want, reason)
			}
			answered := 0
			for _, p := range s.Samples {
				if p.Outcome.HasRTT() {
					answered++
				}
			}
			if answered < 9 {
				t.Errorf("%s: %d of %d probes answered", s.Name, answered, len(s.Samples))
			}
		}
		if rec.Probes[1].Name != "UDP EF" || rec.Probes[1].DSCP != "EF" {
			t.Errorf("got the series %+v", rec.Probes[1])
		}
		if f, ok := finding(rec, "probe_fallback"); ok != noIRTT {
			t.Errorf("finding %+v", f)
		}
	}
}

func TestRepliesOnNetperfsTermsAndLookUpsKeepTheirMarks(t *testing.T) {
	plan := func() bufferbloat.Plan {
		return pings(bufferbloat.ProbePlan{Name: "rr", Kind: bufferbloat.UDPRR, DSCP: dscp.EF}, bufferbloat.ProbePlan{Name: "look-ups", Kind: bufferbloat.DNS})
	}
	for _, c := range []struct {
		claim string
		path  changing
		want  dscp.CodePoint
		found bool
	}{
		{"kept", changing{}, dscp.EF, false},
		{"bleached on the way down", changing{down: as(dscp.CS0)}, dscp.CS0, true},
	} {
		rec, err := rig{apps: true, host: func(h host.Host) host.Host { c.path.Host = h; return c.path }}.run(t, t.Context(), plan())
		if err != nil {
			t.Fatalf("%s: %v", c.claim, err)
		}
		ways := rec.Probes[0].MarkWays()
		if m := rec.Probes[0].Tally.Marks; len(m) != 1 || m[0].DS != c.want.Byte() || m[0].Count < 9 || len(ways) != 1 || ways[0].Way != bufferbloat.WayDown {
			t.Errorf("%s: marks %+v, ways %+v, want %v alone, on the way down", c.claim, m, ways, c.want)
		}
		if f, ok := finding(rec, "mark_bleached"); ok != c.found {
			t.Errorf("%s: finding %+v, want %v", c.claim, f, c.found)
		}
		if m := rec.Probes[1].Tally.Marks; len(m) != 1 || m[0].Count < 9 || len(rec.Probes[1].MarkWays()) > 0 {
			t.Errorf("%s: marks of look-ups %+v, want one byte, which says nothing of a way", c.claim, m)
		}
	}
}

func TestAProbeThatCannotRunStopsNoOther(t *testing.T) {
	r := rig{noIRTT: true}
	call := bufferbloat.ProbePlan{Name: "VoIP", Kind: bufferbloat.IRTT, Size: 172, Primary: true}
	rec, err := r.run(t, t.Context(), pings(call, bufferbloat.ProbePlan{Name: "ICMP", Kind: bufferbloat.ICMP}))
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := finding(rec, "probe_left_out"); !ok || f.Severity != bufferbloat.Weakens || !strings.Contains(f.Text, "no VoIP probe: irtt server") {
		t.Errorf("findings %+v do not say that the call is missing", rec.Findings)
	}
	if len(rec.Probes) != 1 || !slices.ContainsFunc(rec.Probes, func(s bufferbloat.ProbeSeries) bool { return s.Name == "ICMP" && len(s.Samples) > 5 }) {
		t.Errorf("got %d series, want ICMP's", len(rec.Probes))
	}
	if rec, err := r.run(t, t.Context(), pings(call)); rec != nil || err == nil || !strings.Contains(err.Error(), "probe VoIP: irtt server") {
		t.Errorf("without any probe: got %v and %v, want an error", rec != nil, err)
	}
}
