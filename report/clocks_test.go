package report

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// clockSeries is a minute of probes over a path of 10 ms each way, with a queue of up to 200 ms in the middle. The other clock is ahead by offset, gains
// ppm, and is set by step after 30 s.
func clockSeries(offset time.Duration, ppm float64, step time.Duration) *bufferbloat.ProbeSeries {
	random := rand.New(rand.NewPCG(3, 4))
	s := &bufferbloat.ProbeSeries{Name: "irtt", Kind: "irtt", Interval: 50 * time.Millisecond}
	for i := range 1200 {
		at := time.Duration(i) * s.Interval
		up := 10*time.Millisecond + time.Duration(random.Int64N(200_000))
		down := 10*time.Millisecond + time.Duration(random.Int64N(200_000))
		if i >= 300 && i < 900 {
			up += time.Duration(random.Int64N(int64(200 * time.Millisecond)))
		}
		ahead := offset + time.Duration(ppm*1e-6*float64(at-30*time.Second))
		if at > 30*time.Second {
			ahead += step
		}
		s.Samples = append(s.Samples, probe.Sample{Seq: uint64(i), Due: at, Sent: at, Outcome: probe.Received, RTT: up + down, Up: up + ahead, Down: down - ahead,
			HasOneWay: true, Stamp: host.KernelStamp})
	}
	return s
}

func TestClocksAreComparedOverTheWholeRun(t *testing.T) {
	for _, c := range []struct {
		name    string
		offset  time.Duration
		ppm     float64
		step    time.Duration
		agree   bool
		stepped bool
	}{
		{"one clock", 0, 0, 0, true, false},
		{"250 ms behind", -250 * time.Millisecond, 0, 0, false, false},
		{"an hour ahead", time.Hour, 0, 0, false, false},
		{"a century ahead", 100 * 365 * 24 * time.Hour, 0, 0, false, false},
		{"one that gains 23 millionths", 0, 23, 0, true, false},
		{"one that loses 200", 3 * time.Millisecond, -200, 0, true, false},
		{"one that is set back 40 ms", 0, 0, -40 * time.Millisecond, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := newClocks(clockSeries(c.offset, c.ppm, c.step))
			if got == nil || got.Agree != c.agree || got.Stepped != c.stepped || got.Within < 10*time.Millisecond || got.Within > 11*time.Millisecond {
				t.Fatalf("got %+v, want agreement %v, step %v, within 10 ms", got, c.agree, c.stepped)
			}
			if c.stepped {
				if got.Drift != nil {
					t.Errorf("drift %v over a step", *got.Drift)
				}
				return
			}
			if off := (got.Offset - c.offset).Abs(); off > 200*time.Microsecond {
				t.Errorf("offset %v, want %v", got.Offset, c.offset)
			}
			if off := math.Abs(*got.Drift - c.ppm); off > *got.DriftWithin+1 || *got.DriftWithin > 20 {
				t.Errorf("drift %v within %v, want %v", *got.Drift, *got.DriftWithin, c.ppm)
			}
		})
	}
}

// One packet was as fast as can be; all others waited for the server to wake, so that they came late one way. The bound holds all the same.
func TestTheBoundOfAnOffsetHoldsForTheSamplesThatGiveIt(t *testing.T) {
	s := clockSeries(0, 0, 0)
	for i := range s.Samples {
		x := &s.Samples[i]
		x.Up, x.Down = 5*time.Microsecond, 5*time.Microsecond
		if i > 0 {
			x.Up += 30 * time.Microsecond
		}
		x.RTT, x.Stamp = x.Up+x.Down, host.KernelStamp
	}
	got := newClocks(s)
	if got == nil || !got.Agree || got.Offset < 10*time.Microsecond || got.Within > 30*time.Microsecond {
		t.Errorf("got %+v, want clocks that agree, their offset about 15 us and its bound above that", got)
	}
}

// The server's stamps are 250 ms behind. The delays are kept as they are, a note says so, and what the load added is told all the same.
func TestDelaysByClocksThatDifferAreKeptAndMarked(t *testing.T) {
	s := clockSeries(-250*time.Millisecond, 0, 0)
	const sec = time.Second
	rec := &bufferbloat.Recording{Probes: []bufferbloat.ProbeSeries{*s}, Phases: []bufferbloat.Phase{
		{Name: "idle", Kind: bufferbloat.Idle, End: 15 * sec, To: 15 * sec},
		{Name: "upload", Kind: bufferbloat.Load, Start: 15 * sec, End: 45 * sec, From: 15 * sec, To: 45 * sec},
		{Name: "after", Kind: bufferbloat.After, Start: 45 * sec, End: 60 * sec, From: 45 * sec, To: 60 * sec},
	}}
	r := &Result{Clocks: clocks(rec)}
	codes := map[string]string{}
	r.deriveClocks(func(code string, severity bufferbloat.Severity, phase, format string, args ...any) {
		codes[code] = format
		if severity != bufferbloat.Note {
			t.Errorf("%s is %v: no figure depends on it", code, severity)
		}
	})
	if len(codes) != 1 || codes["clocks_differ"] == "" {
		t.Errorf("findings %v, want clocks_differ alone", codes)
	}
	if x := rec.Probes[0].Samples[0]; x.Up >= 0 || x.Down <= 250*time.Millisecond {
		t.Errorf("one-way delays %v and %v, want them as the clocks gave them", x.Up, x.Down)
	}
	idle, loaded := &Phase{From: 0, To: 15 * sec}, &Phase{From: 15 * sec, To: 45 * sec}
	a, b := newOneWay(&rec.Probes[0], idle), newOneWay(&rec.Probes[0], loaded)
	if up, down := b.up-a.up, b.down-a.down; up < 80*time.Millisecond || up > 120*time.Millisecond || down.Abs() > time.Millisecond {
		t.Errorf("the load added %v up and %v down, want 100 ms and nothing", up, down)
	}
}

func TestNoOneWayDelaysNoClocks(t *testing.T) {
	s := clockSeries(0, 0, 0)
	for i := range s.Samples {
		s.Samples[i].HasOneWay = false
	}
	if c := newClocks(s); c != nil {
		t.Errorf("%+v of no one-way delay", c)
	}
	s.Samples[5].HasOneWay = true
	if c := newClocks(s); c == nil || c.Drift != nil || !c.Agree {
		t.Errorf("%+v of one, want an offset without a drift", c)
	}
}

// Each packet of a path with jitter takes what it will each way, so that the splits of two equal round trips differ by up to one of them.
func TestJitterIsNoStepAndNoDriftOfAClock(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := clockSeries(0, 0, 0)
		for i := range s.Samples {
			x := &s.Samples[i]
			x.Up = 5*time.Millisecond + time.Duration(random.Int64N(int64(20*time.Millisecond)))
			x.Down = 5*time.Millisecond + time.Duration(random.Int64N(int64(20*time.Millisecond)))
			x.RTT = x.Up + x.Down
		}
		c := newClocks(s)
		if c == nil || c.Stepped || !c.Agree || c.Drift != nil && math.Abs(*c.Drift) > max(maxDriftSilent, *c.DriftWithin) {
			t.Errorf("seed %d: got %+v with a drift of %v within %v, want clocks that agree, of no drift that is told", seed, c, *c.Drift, *c.DriftWithin)
		}
	}
}

// A step that the path may have made is not told as one; nor is it a drift.
func TestAStepWithinTheRoundTripIsNoDrift(t *testing.T) {
	c := newClocks(clockSeries(0, 0, 5*time.Millisecond))
	if c.Stepped || c.Drift == nil || math.Abs(*c.Drift) > *c.DriftWithin {
		t.Errorf("got %+v, want neither a step nor a drift of more than its bound", c)
	}
}
