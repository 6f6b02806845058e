package bufferbloat_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
	"bufferbloat/report"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/link"
)

// The lines are those below and above 4 Mbit/s; one of them has many round trips of slow start, and one a queue that its streams do not fill.
func TestASlowLineHasFewerStreamsAndSaysSo(t *testing.T) {
	slow(t)
	for name, tt := range map[string]struct {
		link     lab.Config
		change   func(o *bufferbloat.SpeedtestOptions)
		down, up int // streams that run
	}{
		"both directions are slow":                        {lab.Config{Down: 2 * bitrate.Mbit, Up: bitrate.Mbit, RTT: 40 * time.Millisecond}, nil, 2, 2},
		"a fair queue keeps the delay, and tells nothing": {lab.Config{Down: 2 * bitrate.Mbit, Up: bitrate.Mbit, RTT: 40 * time.Millisecond, Queue: "fq_codel"}, nil, 5, 5},
		"one direction is slow":                           {lab.Config{Down: 8 * bitrate.Mbit, Up: 2 * bitrate.Mbit, RTT: 40 * time.Millisecond}, nil, 5, 2},
		"both at once":                                    {lab.Config{Down: 800 * bitrate.Kbit, Up: 8 * bitrate.Mbit, RTT: 40 * time.Millisecond}, func(o *bufferbloat.SpeedtestOptions) { o.Concurrent = true }, 5, 5},
		"no direction is":                                 {lab.Config{Down: 10 * bitrate.Mbit, Up: 6 * bitrate.Mbit, RTT: 20 * time.Millisecond}, nil, 5, 5},
		"slow start alone is slow":                        {lab.Config{Down: 20 * bitrate.Mbit, Up: 6 * bitrate.Mbit, RTT: 600 * time.Millisecond}, nil, 5, 5},
		"a number that is given is used on whatever line": {lab.Config{Down: 2 * bitrate.Mbit, Up: bitrate.Mbit, RTT: 40 * time.Millisecond}, func(o *bufferbloat.SpeedtestOptions) { o.Spare = false }, 5, 5},
		"streams that do not fill the line say nothing":   {lab.Config{Down: 20 * bitrate.Mbit, Up: 6 * bitrate.Mbit, RTT: 60 * time.Millisecond, EffectsDown: link.Effects{Loss: link.Loss{Good: 0.03}}}, nil, 5, 5},
		"losses and jitter hold streams back on a line that is hardly slow": {lab.Config{Down: 3900 * bitrate.Kbit, Up: 3900 * bitrate.Kbit, RTT: 60 * time.Millisecond,
			EffectsDown: lossAndJitter(20 * time.Millisecond), EffectsUp: lossAndJitter(20 * time.Millisecond)}, nil, 5, 5},
		"losses alone do, in short bursts": {lab.Config{Down: 3900 * bitrate.Kbit, Up: 3900 * bitrate.Kbit, RTT: 60 * time.Millisecond,
			EffectsDown: lossAndJitter(0), EffectsUp: lossAndJitter(0)}, nil, 5, 5},
		"jitter of the path's own is no queue": {lab.Config{Down: 20 * bitrate.Mbit, Up: 6 * bitrate.Mbit, RTT: 150 * time.Millisecond, EffectsDown: link.Effects{Loss: link.Loss{Good: 0.05}},
			EffectsUp: link.Effects{Jitter: link.Jitter{Spread: 10 * time.Millisecond, MayReorder: true}}}, nil, 5, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec, err := rig{link: tt.link}.run(t, t.Context(), plan(func(o *bufferbloat.SpeedtestOptions) {
				o.Idle, o.Length, o.Streams, o.Spare = 2*time.Second, 12*time.Second, 5, true
				if tt.change != nil {
					tt.change(o)
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			ran := map[load.Direction]int{}
			for _, f := range rec.Flows {
				ran[f.Direction]++
				p := rec.Phases[slices.IndexFunc(rec.Phases, func(p bufferbloat.Phase) bool { return p.Name == f.Phase })]
				if f.Error != "" || !f.Result.Flowed {
					t.Errorf("%s: %q, flowed %v", f.Name, f.Error, f.Result.Flowed)
				}
				if late := f.Result.Stopped - p.Start - 12*time.Second; late < 0 || late > 200*time.Millisecond {
					t.Errorf("%s was told to stop %v after its phase's 12 s", f.Name, late)
				}
			}
			if ran[load.Download] != tt.down || ran[load.Upload] != tt.up {
				t.Errorf("%d down and %d up, want %d and %d", ran[load.Download], ran[load.Upload], tt.down, tt.up)
			}
			said := 0
			for _, f := range rec.Findings {
				if f.Code == "low_rate" {
					said++
					if f.Severity != bufferbloat.Note || !strings.Contains(f.Text, "2 of 5 streams") {
						t.Errorf("it says %+v", f)
					}
				}
			}
			if tt.link.EffectsUp.Jitter.Spread > 0 {
				saysThatStreamsWaited(t, rec)
			}
			if want := 2 - tt.down/5 - tt.up/5; said != want {
				t.Errorf("%d findings of a slow line, want %d: %+v", said, want, rec.Findings)
			}
		})
	}
}

func lossAndJitter(spread time.Duration) link.Effects {
	return link.Effects{Loss: link.Loss{Good: 0.03}, Jitter: link.Jitter{Spread: spread, MayReorder: spread > 0}}
}

// saysThatStreamsWaited checks what is said of downloads that losses held back until the others began.
func saysThatStreamsWaited(t *testing.T, rec *bufferbloat.Recording) {
	t.Helper()
	held := false
	for _, f := range report.New(rec).Findings {
		if f.Phase == "download" {
			held = held || f.Code == "streams_held" && f.Severity == bufferbloat.Note && strings.Contains(f.Text, "3 of 5 streams began late")
			if f.Code == "tail" {
				t.Errorf("it says %+v", f)
			}
		}
	}
	if !held {
		t.Error("nothing says that streams waited for those that losses held back")
	}
}

func TestAnInterruptDoesNotHideThatALineIsSlow(t *testing.T) {
	slow(t)
	ctx, stop := context.WithCancelCause(t.Context())
	r := rig{link: lab.Config{Down: 2 * bitrate.Mbit, Up: bitrate.Mbit, RTT: 40 * time.Millisecond}, progress: func(p bufferbloat.Progress, _ func()) {
		if p.Phase == "download" && p.Elapsed >= 8*time.Second {
			stop(errors.New("interrupted"))
		}
	}}
	rec, err := r.run(t, ctx, plan(func(o *bufferbloat.SpeedtestOptions) { o.Length, o.Spare = 12*time.Second, true }))
	if err != nil || rec.Stopped != "interrupted" {
		t.Fatalf("stopped by %q, %v", rec.Stopped, err)
	}
	if _, ok := finding(rec, "low_rate"); !ok {
		t.Errorf("findings %+v, want one that says that 2 of 5 streams ran", rec.Findings)
	}
}

func TestRoundTripsOfSecondsLeaveASpeedtestWhole(t *testing.T) {
	slow(t)
	for _, rtt := range []time.Duration{2500 * time.Millisecond, 6 * time.Second} {
		t.Run(rtt.String(), func(t *testing.T) {
			r := rig{link: lab.Config{Down: 2 * bitrate.Mbit, Up: 2 * bitrate.Mbit, RTT: rtt}}
			rec, err := r.run(t, t.Context(), plan(func(o *bufferbloat.SpeedtestOptions) {
				o.Idle, o.Length, o.Spare = 3*time.Second, 60*time.Second, true
			}))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range rec.Probes {
				answered, lost := 0, 0
				for p := range s.All() {
					switch {
					case p.Outcome == probe.Received && p.RTT >= rtt:
						answered++
					case p.Outcome.IsLost():
						lost++
					default:
						t.Fatalf("%s: %+v, want all received, after %v and more", s.Name, p, rtt)
					}
				}
				if answered < 100 || lost*20 > answered {
					t.Errorf("%s: %d lost and %d answered: more than a full queue drops", s.Name, lost, answered)
				}
			}
			for _, f := range rec.Flows {
				// Of an upload a part may be on its way for minutes: what a full queue drops is sent again a segment a round trip.
				if f.Error != "" || !f.Result.Flowed || f.Direction == load.Download && f.Result.Warning != "" {
					t.Errorf("%s: %q, flowed %v, %s", f.Name, f.Error, f.Result.Flowed, f.Result.Warning)
				}
			}
			if len(rec.Flows) != 4 {
				t.Errorf("%d streams, want 2 in each direction of a slow line", len(rec.Flows))
			}
		})
	}
}
