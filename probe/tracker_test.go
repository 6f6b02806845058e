package probe_test

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// tracked is a Tracker with its samples, and a clock in offsets.
type tracked struct {
	*probe.Tracker
	*series
	start time.Time
}

func newTracked(t *testing.T, start time.Time) *tracked {
	s := &series{t: t}
	return &tracked{Tracker: probe.NewTracker(start, probe.DefaultDeadline, s.record), series: s, start: start}
}

func (k *tracked) at(d time.Duration) time.Time { return k.start.Add(d) }

// send sends n probes every 100 ms.
func (k *tracked) send(n int) {
	for range n {
		at := k.at(time.Duration(k.Next()) * 100 * ms)
		k.Sent(at, at)
	}
}

func (k *tracked) answer(seq uint64, at time.Duration) {
	k.Reply(probe.Reply{Seq: seq, At: k.at(at)}, k.at(at))
}

var anyTime = time.Unix(1_700_000_000, 0)

func TestTrackerDecides(t *testing.T) {
	boot := errors.New("no route")
	for _, c := range []struct {
		name  string
		do    func(k *tracked)
		want  []probe.Outcome
		tally probe.Tally
	}{
		{"replies 1, 2 and 5 of 5", func(k *tracked) {
			k.send(5)
			k.answer(0, 50*ms)
			k.answer(1, 150*ms)
			k.answer(4, 450*ms)
			k.Close(k.at(3 * time.Second))
		}, []probe.Outcome{probe.Received, probe.Received, probe.Lost, probe.Lost, probe.Received}, probe.Tally{}},

		{"four replies and three duplicates", func(k *tracked) {
			k.send(4)
			for _, seq := range []uint64{0, 0, 1, 2, 1, 3, 3} {
				k.answer(seq, 500*ms)
			}
			k.Close(k.at(time.Second))
		}, []probe.Outcome{probe.Received, probe.Received, probe.Received, probe.Received}, probe.Tally{Duplicates: 3}},

		{"a duplicate long after the sample left", func(k *tracked) {
			k.send(1)
			k.answer(0, 50*ms)
			k.Expire(k.at(29 * time.Second))
			k.answer(0, 29*time.Second)
			k.Close(k.at(29 * time.Second))
		}, []probe.Outcome{probe.Received}, probe.Tally{Duplicates: 1}},

		{"a duplicate that arrives after the end", func(k *tracked) {
			k.send(1)
			k.answer(0, 50*ms)
			k.Close(k.at(time.Second))
			k.answer(0, 2*time.Second)
		}, []probe.Outcome{probe.Received}, probe.Tally{TooLate: 1}},

		{"arrivals 1, 2, 4, 5, 3", func(k *tracked) {
			k.send(5)
			for _, seq := range []uint64{0, 1, 3, 4, 2} {
				k.answer(seq, 500*ms)
			}
		}, []probe.Outcome{probe.Received, probe.Received, probe.Received, probe.Received, probe.Received}, probe.Tally{Reordered: 1}},

		{"a duplicate of an early probe is not reordering", func(k *tracked) {
			k.send(2)
			k.answer(0, 100*ms)
			k.answer(1, 150*ms)
			k.answer(0, 160*ms)
		}, []probe.Outcome{probe.Received, probe.Received}, probe.Tally{Duplicates: 1}},

		{"the deadline itself is in time, what comes after it is late", func(k *tracked) {
			k.send(2)
			k.answer(0, 10*time.Second)
			k.answer(1, 10*time.Second+101*ms)
		}, []probe.Outcome{probe.Received, probe.Late}, probe.Tally{}},

		{"a probe is given up after 30 s, and its reply then changes nothing", func(k *tracked) {
			k.send(2)
			k.answer(1, 30*time.Second)
			k.answer(0, 30*time.Second)
			k.Expire(k.at(31 * time.Second))
			k.answer(0, 32*time.Second)
		}, []probe.Outcome{probe.Lost, probe.Late}, probe.Tally{TooLate: 2}},

		{"a reply from before its probe", func(k *tracked) {
			k.send(1)
			k.answer(0, -ms)
			k.answer(0, 5*ms)
		}, []probe.Outcome{probe.Invalid}, probe.Tally{Duplicates: 1}},

		{"a reply whose stamp lies ahead of the clock", func(k *tracked) {
			k.send(2)
			k.Reply(probe.Reply{Seq: 0, At: k.at(2 * time.Minute)}, k.at(200*ms))
			k.Reply(probe.Reply{Seq: 1, At: k.at(200*ms + 50*time.Microsecond)}, k.at(200*ms))
		}, []probe.Outcome{probe.Invalid, probe.Received}, probe.Tally{}},

		{"a reply whose time cannot be told", func(k *tracked) {
			k.send(2)
			k.Reply(probe.Reply{Seq: 1}, k.at(time.Second))
			k.Close(k.at(300 * ms))
		}, []probe.Outcome{probe.Unfinished, probe.Invalid}, probe.Tally{}},

		{"strays: never sent, unsent", func(k *tracked) {
			k.answer(0, ms)
			k.send(1)
			k.Unsent(k.at(100*ms), boot)
			k.answer(1, 200*ms)
			k.answer(math.MaxUint64, 200*ms)
			k.Reply(probe.Reply{Kind: probe.Stray}, k.at(0))
			k.Reply(probe.Reply{Kind: probe.Corrupt}, k.at(0))
			k.answer(0, 300*ms)
		}, []probe.Outcome{probe.Received, probe.Unsent}, probe.Tally{Stray: 4, Corrupt: 1, FirstError: "no route"}},

		{"verdicts give a loss its direction", func(k *tracked) {
			k.send(5)
			k.Reply(probe.Reply{Seq: 4, At: k.at(500 * ms), Verdicts: []probe.Verdict{
				{Seq: 0, Reached: true}, {Seq: 1}, {Seq: 2}, {Seq: 3}, {Seq: 3, Reached: true}, {Seq: 3}, {Seq: 77},
			}}, k.at(500*ms))
			k.answer(2, 600*ms)
			k.Close(k.at(9 * time.Second))
		}, []probe.Outcome{probe.LostDown, probe.LostUp, probe.Received, probe.LostDown, probe.Received}, probe.Tally{Reordered: 1}},

		{"the verdicts of a stray are not believed", func(k *tracked) {
			k.send(1)
			k.Reply(probe.Reply{Seq: 9, Verdicts: []probe.Verdict{{Seq: 0, Reached: true}}}, k.at(ms))
			k.Close(k.at(11 * time.Second))
		}, []probe.Outcome{probe.Lost}, probe.Tally{Stray: 1}},

		{"a refusal counts once, and not after the reply", func(k *tracked) {
			k.send(3)
			refusal := probe.Reply{Kind: probe.Rejected, Seq: 1, Err: boot}
			k.Reply(refusal, k.at(200*ms))
			k.Reply(refusal, k.at(200*ms))
			k.answer(1, 250*ms)
			k.answer(0, 250*ms)
			refusal.Seq = 0
			k.Reply(refusal, k.at(300*ms))
			refusal.Seq = 3
			k.Reply(refusal, k.at(300*ms))
			k.answer(2, 300*ms)
		}, []probe.Outcome{probe.Received, probe.Lost, probe.Received},
			probe.Tally{Rejected: 1, TooLate: 1, Stray: 1, FirstError: "no route", FirstRefusal: "no route"}},

		{"a refusal keeps its own reason after another error", func(k *tracked) {
			k.send(2)
			k.Reply(probe.Reply{Kind: probe.NotSent, Seq: 0, Err: errors.New("no buffer space")}, k.at(200*ms))
			k.Reply(probe.Reply{Kind: probe.Rejected, Seq: 1, Err: boot}, k.at(200*ms))
		}, []probe.Outcome{probe.Unsent, probe.Lost}, probe.Tally{Rejected: 1, FirstError: "no buffer space", FirstRefusal: "no route"}},

		{"a probe that could not be sent after all", func(k *tracked) {
			k.send(2)
			k.Reply(probe.Reply{Kind: probe.NotSent, Seq: 0, Err: boot}, k.at(200*ms))
			k.Reply(probe.Reply{Kind: probe.NotSent, Seq: 9, Err: boot}, k.at(200*ms))
			k.answer(0, 250*ms)
			k.answer(1, 300*ms)
		}, []probe.Outcome{probe.Unsent, probe.Received}, probe.Tally{Stray: 1, FirstError: "no route"}},

		{"at the end, who waited as long as the window is lost", func(k *tracked) {
			k.send(30)
			k.answer(3, 310*ms)
			k.Close(k.at(2100 * ms))
		}, append([]probe.Outcome{probe.Lost, probe.Lost, probe.Unfinished, probe.Received}, repeat(probe.Unfinished, 26)...)[:30],
			probe.Tally{}},
	} {
		// The epoch and the year 1 stand for clocks that count from their boot: zero is a time like any other.
		for _, start := range []time.Time{anyTime, time.Unix(0, 0), {}} {
			t.Run(fmt.Sprintf("%s, clock at %d", c.name, start.Unix()), func(t *testing.T) {
				k := newTracked(t, start)
				c.do(k)
				k.wantOutcomes(c.want...)
				if got, want := fmt.Sprintf("%+v", k.Tally()), fmt.Sprintf("%+v", c.tally); got != want {
					t.Errorf("tally %s,\nwant  %s", got, want)
				}
				if got, want := k.Open(), 0; got != want {
					t.Errorf("open %d, want %d", got, want)
				}
			})
		}
	}
}

func repeat(o probe.Outcome, n int) []probe.Outcome {
	out := make([]probe.Outcome, n)
	for i := range out {
		out[i] = o
	}
	return out
}

func TestProcessingIsSubtractedWhereItCanBeTrue(t *testing.T) {
	for _, c := range []struct {
		name       string
		processing time.Duration
		want       time.Duration
		corrupt    uint64
	}{
		{"none told", 0, 30 * ms, 0},
		{"told", 4 * ms, 26 * ms, 0},
		{"all of it", 30 * ms, 0, 0},
		{"longer than the whole trip", 31 * ms, 30 * ms, 1},
		{"negative", -1, 30 * ms, 1},
		{"absurd", math.MinInt64, 30 * ms, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTracked(t, anyTime)
			k.send(1)
			k.Reply(probe.Reply{At: k.at(30 * ms), Processing: c.processing, Stamp: host.KernelStamp, Up: -5, Down: 7, HasOneWay: true}, k.at(30*ms))
			want := probe.Sample{Outcome: probe.Received, RTT: c.want, Stamp: host.KernelStamp, Up: -5, Down: 7, HasOneWay: true}
			if got := k.samples[0]; got != want {
				t.Errorf("sample %+v, want %+v", got, want)
			}
			if got := k.Tally().Corrupt; got != c.corrupt {
				t.Errorf("corrupt %d, want %d", got, c.corrupt)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	for _, c := range []struct {
		rtt  time.Duration
		want time.Duration
	}{
		{ms, 2 * time.Second},
		{600 * ms, 2 * time.Second},
		{700 * ms, 2100 * ms},
		{6 * time.Second, 18 * time.Second},
		{11 * time.Second, 30 * time.Second},
	} {
		k := newTracked(t, anyTime)
		k.send(1)
		if got := k.Window(); got != probe.DefaultDeadline {
			t.Errorf("window before any reply %v, want the deadline", got)
		}
		k.answer(0, c.rtt)
		if got := k.Window(); got != c.want {
			t.Errorf("window after an RTT of %v: %v, want %v", c.rtt, got, c.want)
		}
	}
}

func TestEachRefuserIsNamedOnceAndEightAtMost(t *testing.T) {
	k := newTracked(t, anyTime)
	k.send(40)
	for i := range uint64(40) {
		by := netip.AddrFrom4([4]byte{192, 0, 2, byte(i % 10)})
		k.Reply(probe.Reply{Kind: probe.Rejected, Seq: i, By: by}, k.at(5*time.Second))
	}
	tally := k.Tally()
	if tally.Rejected != 40 || len(tally.RejectedBy) != 8 {
		t.Errorf("rejected %d by %v; want 40 by 8", tally.Rejected, tally.RejectedBy)
	}
	tally.RejectedBy[0] = netip.Addr{}
	if k.Tally().RejectedBy[0] == tally.RejectedBy[0] {
		t.Error("the tally's list is the tracker's own, want a copy")
	}
}

// cycle is the steady state at a probe each ms: half of the probes answered after 50 ms, half never.
func cycle(k *probe.Tracker, start time.Time, n uint64) {
	at := start.Add(time.Duration(n) * ms)
	k.Sent(at, at)
	if n > 100 && n%2 == 0 {
		k.Reply(probe.Reply{Seq: n - 50, At: at, Verdicts: nil}, at)
	}
}

func TestTheTrackerAllocatesNothingInSteadyState(t *testing.T) {
	k := probe.NewTracker(anyTime, probe.DefaultDeadline, func(probe.Sample) {})
	n := uint64(0)
	for ; n < 40_000; n++ {
		cycle(k, anyTime, n)
	}
	if got := testing.AllocsPerRun(10_000, func() { cycle(k, anyTime, n); n++ }); got != 0 {
		t.Errorf("%v allocations per probe, want 0", got)
	}
}

func BenchmarkTracker(b *testing.B) {
	k := probe.NewTracker(anyTime, probe.DefaultDeadline, func(probe.Sample) {})
	n := uint64(0)
	for ; n < 40_000; n++ {
		cycle(k, anyTime, n)
	}
	b.ReportAllocs()
	for b.Loop() {
		cycle(k, anyTime, n)
		n++
	}
}

func TestDueCountsFromTheStart(t *testing.T) {
	s := probe.Schedule{Start: anyTime, Interval: 10 * ms}
	for n, want := range map[uint64]time.Duration{0: 0, 1: 10 * ms, 70_000: 700 * time.Second, 1 << 32: 42949672960 * ms} {
		if got := s.Due(n).Sub(anyTime); got != want {
			t.Errorf("probe %d is due %v after the start, want %v", n, got, want)
		}
	}
}
