package bufferbloat_test

import (
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/probe"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/link"
)

// survivors is a plan without load that has 5 probes a second of each kind that answers in one round trip.
func survivors(length time.Duration) bufferbloat.Plan {
	p := bufferbloat.Plan{Name: "survivors", Server: bufferbloat.Server{Host: lab.Name, NetperfPort: 12865, IRTTPort: 2112},
		Phases: []bufferbloat.PhasePlan{{Name: "idle", Kind: bufferbloat.Idle, Length: length}}}
	for _, kind := range []bufferbloat.ProbeKind{bufferbloat.ICMP, bufferbloat.IRTT, bufferbloat.UDP, bufferbloat.TCP, bufferbloat.Connect, bufferbloat.DNS,
		bufferbloat.UDPRR, bufferbloat.TCPRR} {
		p.Probes = append(p.Probes, bufferbloat.ProbePlan{Name: string(kind), Kind: kind, Interval: 200 * time.Millisecond})
	}
	return p
}

// Every probe of every kind comes back with the round trip that the link has, from a microsecond to six seconds.
func TestEveryKindOfProbeMeasuresShortAndLongRoundTrips(t *testing.T) {
	slow(t)
	for _, rtt := range []time.Duration{time.Microsecond, 2500 * time.Millisecond, 6 * time.Second} {
		t.Run(rtt.String(), func(t *testing.T) {
			t.Parallel()
			r := rig{apps: true, link: lab.Config{Down: 10 * bitrate.Gbit, Up: 10 * bitrate.Gbit, RTT: rtt}}
			rec, err := r.run(t, t.Context(), survivors(8*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if len(rec.Probes) != 8 {
				t.Errorf("%d series, want 8", len(rec.Probes))
			}
			for i := range rec.Probes {
				s := &rec.Probes[i]
				if s.Error != "" || len(s.Samples) != 40 {
					t.Errorf("%s: %d samples, want 40; %q", s.Name, len(s.Samples), s.Error)
				}
				for n, x := range s.Samples {
					most := rtt + 50*time.Microsecond
					if s.Kind == "tcp_rr" && n >= 10 { // the connection's first window is full
						most += rtt
					}
					if !x.Outcome.HasRTT() || x.RTT < rtt || x.RTT > most {
						t.Errorf("%s: probe %d: %v, %v; want received after %v", s.Name, n, x.Outcome, x.RTT, rtt)
						break
					}
				}
			}
		})
	}
}

// The link carries nothing for 5 s: 25 probes of each kind are lost, and those behind them come back, but for requests over one TCP connection, which come back
// when it does, and are not sent where 64 are out.
func TestEveryKindOfProbeGoesOnBehindAnOutage(t *testing.T) {
	slow(t)
	const from, length, end = 3 * time.Second, 5 * time.Second, 16 * time.Second
	cut := link.Schedule{Steps: []link.Step{{At: from, For: length, Sets: link.SetsLoss, Loss: 1}}}
	rec, err := rig{apps: true, link: lab.Config{ScheduleDown: cut, ScheduleUp: cut}}.run(t, t.Context(), survivors(end))
	if err != nil {
		t.Fatal(err)
	}
	for i := range rec.Probes {
		s := &rec.Probes[i]
		lost, unsent, quick := map[uint64]probe.Outcome{}, 0, 0
		for _, x := range s.Samples {
			switch {
			case x.Outcome.IsLost():
				lost[x.Seq] = x.Outcome
			case x.Outcome == probe.Unsent:
				unsent++
			case x.Outcome.HasRTT() && x.RTT < 50*time.Millisecond:
				quick++
			case s.Kind != "tcp_rr" || !x.Outcome.HasRTT():
				t.Errorf("%s: probe %d: %v after %v", s.Name, x.Seq, x.Outcome, x.RTT)
			}
		}
		if s.Error != "" || len(s.Samples) != 80 {
			t.Errorf("%s: %d samples, want 80; %q", s.Name, len(s.Samples), s.Error)
		}
		if s.Kind == "tcp_rr" {
			if last := s.Samples[79]; len(lost) > 0 || quick < 13 || quick > 55 || last.RTT > 50*time.Millisecond {
				t.Errorf("tcp_rr: %d lost, %d unsent, %d quick ones, the last took %v", len(lost), unsent, quick, last.RTT)
			}
			continue
		}
		if len(lost) != 25 || unsent > 0 {
			t.Errorf("%s: %d lost and %d unsent, want 25 and 0: %v", s.Name, len(lost), unsent, lost)
		}
		for seq, outcome := range lost {
			if lost[seq-1] == 0 && lost[seq+24] == 0 || s.Kind == "irtt" && outcome != probe.LostUp {
				t.Errorf("%s: probe %d is %v, in the midst of those that came back", s.Name, seq, outcome)
			}
		}
	}
}
