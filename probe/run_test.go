package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

const ms = time.Millisecond

// run is a Run of count probes on l from now, in a bubble.
func run(t *testing.T, l *link, o probe.Options, count uint64) (*series, probe.Tally) {
	t.Helper()
	s := &series{t: t}
	tally, err := probe.Run(t.Context(), t.Context(), bubble{}, l, o, time.Now(), count, s.record)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	return s, tally
}

func TestEveryProbeOfACleanPathHasItsExactRTT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tally := run(t, newLink(always(42*ms)), probe.Options{Interval: 10 * ms}, 100)
		for i, x := range s.bySeq() {
			at := time.Duration(i) * 10 * ms
			want := probe.Sample{Seq: uint64(i), Due: at, Sent: at, Outcome: probe.Received, RTT: 42 * ms, Stamp: host.LinkStamp}
			if x != want {
				t.Fatalf("sample %+v, want %+v", x, want)
			}
		}
		if got, want := fmt.Sprint(tally), fmt.Sprint(probe.Tally{}); got != want {
			t.Errorf("tally %v, want %v", got, want)
		}
		if got, want := time.Since(s.start()), 990*ms+42*ms; got != want {
			t.Errorf("Run took %v, want %v: it ends with the last reply", got, want)
		}
	})
}

// start is the bubble's first moment.
func (*series) start() time.Time { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

func TestSeventyThousandProbesPassSixteenBits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, tally := run(t, newLink(always(250*ms)), probe.Options{Interval: ms}, 70000)
		if got := s.count(probe.Received); got != 70000 {
			t.Errorf("received %d, want 70000", got)
		}
		for _, x := range s.bySeq() {
			if x.RTT != 250*ms || x.Lateness() != 0 {
				t.Fatalf("sample %+v, want RTT 250ms, sent when due", x)
			}
		}
		if tally.Duplicates+tally.Reordered+tally.Stray+tally.TooLate != 0 {
			t.Errorf("tally %+v, want zeros", tally)
		}
	})
}

// The queue of a slow link: a probe takes 20 ms to serialize and the next comes 10 ms later, so the queue grows until it is full.
func TestAQueueThatGrowsIsSampledToItsTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const service, limit = 20 * ms, 200 * ms
		var free time.Duration // when the link has sent all that it holds
		l := newLink(func(_ uint64, at time.Duration) []time.Duration {
			wait := max(free-at, 0)
			if wait > limit {
				return nil
			}
			free = at + wait + service
			return []time.Duration{wait + service + 30*ms}
		})
		s, _ := run(t, l, probe.Options{Interval: 10 * ms}, 60)
		for i, x := range s.bySeq()[:21] {
			if want := 50*ms + time.Duration(i)*10*ms; x.RTT != want {
				t.Errorf("probe %d: RTT %v, want %v", i, x.RTT, want)
			}
		}
		// From probe 21 on, every second one finds the queue full.
		if got, want := s.count(probe.Lost), 20; got != want {
			t.Errorf("lost %d, want %d", got, want)
		}
	})
}

// A path that stalls for 800 ms: a method that waits for the reply would see it once.
func TestAStallIsSeenByEveryProbeSentIntoIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const from, to = 1000 * ms, 1800 * ms
		l := newLink(func(_ uint64, at time.Duration) []time.Duration {
			if at >= from && at < to {
				return []time.Duration{to - at + 5*ms}
			}
			return []time.Duration{5 * ms}
		})
		s, _ := run(t, l, probe.Options{Interval: 10 * ms}, 300)
		stalled := 0
		for _, x := range s.bySeq() {
			want := 5 * ms
			if x.Sent >= from && x.Sent < to {
				stalled++
				want = to - x.Sent + 5*ms
			}
			if x.Outcome != probe.Received || x.RTT != want {
				t.Errorf("sent at %v: %v, RTT %v; want received, %v", x.Sent, x.Outcome, x.RTT, want)
			}
		}
		if stalled != 80 {
			t.Errorf("%d probes saw the stall, want 80", stalled)
		}
	})
}

func TestDuplicatesAreNotReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(func(seq uint64, _ time.Duration) []time.Duration {
			if seq < 3 {
				return []time.Duration{20 * ms, 150 * ms}
			}
			return []time.Duration{200 * ms}
		})
		s, tally := run(t, l, probe.Options{}, 4)
		s.wantOutcomes(probe.Received, probe.Received, probe.Received, probe.Received)
		if tally.Duplicates != 3 {
			t.Errorf("duplicates %d, want 3", tally.Duplicates)
		}
		if got := s.bySeq()[0].RTT; got != 20*ms {
			t.Errorf("RTT %v, want that of the first reply, 20ms", got)
		}
	})
}

func TestReorderingIsNotLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(func(seq uint64, _ time.Duration) []time.Duration {
			if seq == 2 {
				return []time.Duration{250 * ms}
			}
			return []time.Duration{10 * ms}
		})
		s, tally := run(t, l, probe.Options{}, 5)
		if s.count(probe.Received) != 5 || tally.Reordered != 1 {
			t.Errorf("received %d, reordered %d; want 5, 1", s.count(probe.Received), tally.Reordered)
		}
	})
}

func TestLossesAtTheEndCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(func(seq uint64, _ time.Duration) []time.Duration {
			if seq == 0 || seq == 1 {
				return []time.Duration{15 * ms}
			}
			return nil
		})
		s, _ := run(t, l, probe.Options{}, 5)
		s.wantOutcomes(probe.Received, probe.Received, probe.Lost, probe.Lost, probe.Lost)
		if got, want := time.Since(s.start()), 400*ms+2*time.Second; got != want {
			t.Errorf("Run took %v, want %v", got, want)
		}
	})
}

func TestCountIsProbesSent(t *testing.T) {
	for _, c := range []struct {
		name string
		path func(uint64, time.Duration) []time.Duration
		want int
		took time.Duration
	}{
		{"replies slower than the interval", always(50 * ms), 10, 59 * ms},
		{"a silent host ends after the deadline", silent, 0, 10*time.Second + 9*ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := run(t, newLink(c.path), probe.Options{Interval: ms}, 10)
				if len(s.bySeq()) != 10 || s.count(probe.Received) != c.want {
					t.Errorf("%d samples, %d received; want 10, %d", len(s.samples), s.count(probe.Received), c.want)
				}
				if got := time.Since(s.start()); got != c.took {
					t.Errorf("Run took %v, want %v", got, c.took)
				}
			})
		})
	}
}

// The window after the last send follows the RTTs that arrive in it: 6 s and more must come through after 6 s of probing.
func TestTheWindowGrowsWithTheRTT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(func(_ uint64, at time.Duration) []time.Duration { return []time.Duration{time.Second + at} })
		s, _ := run(t, l, probe.Options{Interval: 500 * ms}, 25)
		if got := s.count(probe.Received) + s.count(probe.Late); got != 25 || s.count(probe.Late) != 6 {
			t.Errorf("received or late %d, late %d; want 25, 6 (RTT above 10s)", got, s.count(probe.Late))
		}
		if got := s.bySeq()[24]; got.RTT != 13*time.Second || got.Outcome != probe.Late {
			t.Errorf("last sample %+v, want RTT 13s, late", got)
		}
	})
}

func TestAPathSlowerThanTheSeriesLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := run(t, newLink(always(3*time.Second)), probe.Options{}, 10)
		if got := s.count(probe.Received); got != 10 {
			t.Errorf("received %d, want 10", got)
		}
	})
}

func TestTheEndOfSending(t *testing.T) {
	for _, c := range []struct {
		name       string
		soft, hard time.Duration // when sending and ctx end
		path       func(uint64, time.Duration) []time.Duration
		want       map[probe.Outcome]int
		took       time.Duration
	}{
		{"stopped softly: late replies are still heard", 950 * ms, time.Hour, always(3 * time.Second),
			map[probe.Outcome]int{probe.Received: 10}, 3900 * ms},
		{"stopped hard at once: what is open is unfinished", time.Hour, 950 * ms, always(3 * time.Second),
			map[probe.Outcome]int{probe.Unfinished: 10}, 950 * ms},
		{"stopped hard while draining", 950 * ms, 3450 * ms, always(3 * time.Second),
			map[probe.Outcome]int{probe.Received: 5, probe.Unfinished: 5}, 3450 * ms},
		{"what had been listened for long enough is lost", time.Hour, 2950 * ms, func(seq uint64, _ time.Duration) []time.Duration {
			if seq%2 == 0 {
				return []time.Duration{10 * ms}
			}
			return nil
		}, map[probe.Outcome]int{probe.Received: 15, probe.Lost: 5, probe.Unfinished: 10}, 2950 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hard, cancelHard := context.WithTimeout(t.Context(), c.hard)
				defer cancelHard()
				soft, cancelSoft := context.WithTimeout(hard, c.soft)
				defer cancelSoft()
				s := &series{t: t}
				if _, err := probe.Run(hard, soft, bubble{}, newLink(c.path), probe.Options{}, time.Now(), 0, s.record); err != nil {
					t.Errorf("Run: %v, want no error: it was stopped as asked", err)
				}
				if got := time.Since(s.start()); got != c.took {
					t.Errorf("Run took %v, want %v", got, c.took)
				}
				total := 0
				for o, n := range c.want {
					total += n
					if got := s.count(o); got != n {
						t.Errorf("%v: %d, want %d", o, got, n)
					}
				}
				if got := len(s.bySeq()); got != total {
					t.Errorf("%d samples, want %d", got, total)
				}
				time.Sleep(time.Minute) // replies to a closed link harm nothing
			})
		})
	}
}

func TestAFullLocalQueueMakesProbesUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(always(10 * ms))
		l.sendError = func(seq uint64) error {
			switch {
			case seq >= 3 && seq < 6:
				return fmt.Errorf("send: %w", host.ErrNoBuffer)
			case seq == 7:
				return errors.New("network is unreachable")
			}
			return nil
		}
		s, tally := run(t, l, probe.Options{}, 10)
		if s.count(probe.Unsent) != 4 || s.count(probe.Received) != 6 || s.count(probe.Lost) != 0 {
			t.Errorf("unsent %d, received %d, lost %d; want 4, 6, 0", s.count(probe.Unsent), s.count(probe.Received), s.count(probe.Lost))
		}
		if want := "send: " + host.ErrNoBuffer.Error(); tally.FirstError != want {
			t.Errorf("first error %q, want %q", tally.FirstError, want)
		}
		if x := s.bySeq()[4]; x.Sent != x.Due || x.Due != 400*ms {
			t.Errorf("unsent sample %+v, want it at its due time", x)
		}
	})
}

// stuck is a clock whose sleeper wakes late once.
type stuck struct {
	bubble
	from, until time.Time
}

func (c stuck) SleepUntil(ctx context.Context, t time.Time) error {
	if !t.Before(c.from) && t.Before(c.until) {
		t = c.until
	}
	return c.bubble.SleepUntil(ctx, t)
}

func TestALateSenderIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &series{t: t}
		start := time.Now()
		clock := stuck{from: start.Add(200 * ms), until: start.Add(550 * ms)}
		tally, err := probe.Run(t.Context(), t.Context(), clock, newLink(always(10*ms)), probe.Options{}, start, 8, s.record)
		if err != nil {
			t.Fatal(err)
		}
		// Asleep from 200 to 550 ms: probes 2, 3 and 4 (due at 200, 300, 400 ms) are more than one interval late, 5 is sent 50 ms late.
		s.wantOutcomes(probe.Received, probe.Received, probe.Unsent, probe.Unsent, probe.Unsent, probe.Received, probe.Received, probe.Received)
		if got := s.bySeq()[5].Lateness(); got != 50*ms {
			t.Errorf("probe 5 is %v late, want 50ms", got)
		}
		if tally.SenderLate != 3 || tally.FirstError != "" {
			t.Errorf("sender late %d, first error %q; want 3 and none", tally.SenderLate, tally.FirstError)
		}
		if got := s.bySeq()[6].Lateness(); got != 0 {
			t.Errorf("probe 6 is %v late, want 0: a late wake-up shifts none after it", got)
		}
	})
}

// overtaking is a link on which the reply is there before Send returns.
type overtaking struct{ *link }

func (l overtaking) Send(seq uint64) (time.Time, error) {
	at := time.Now()
	l.arrive(seq)
	time.Sleep(ms)
	return at, nil
}

func TestAReplyThatOvertakesItsSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &series{t: t}
		tally, err := probe.Run(t.Context(), t.Context(), bubble{}, overtaking{newLink(silent)}, probe.Options{}, time.Now(), 5, s.record)
		if err != nil || tally.Stray != 0 {
			t.Fatalf("error %v, stray %d; want none", err, tally.Stray)
		}
		for _, x := range s.bySeq() {
			if x.Outcome != probe.Received || x.RTT != 0 {
				t.Errorf("sample %+v, want received after 0s", x)
			}
		}
	})
}

func TestErrorsOfReceiveAreCountedAndSlowedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(always(10 * ms))
		calls := 0
		l.receiveError = func() error {
			if calls++; time.Since(l.start) < 500*ms {
				return errors.New("socket is odd")
			}
			return nil
		}
		s, tally := run(t, l, probe.Options{}, 10)
		if got := s.count(probe.Received); got != 10 {
			t.Errorf("received %d, want 10", got)
		}
		if tally.ReceiveErrors < 16 || tally.ReceiveErrors > 40 || tally.FirstError != "socket is odd" {
			t.Errorf("%d receive errors, first %q; want 16 to 40 in 500ms", tally.ReceiveErrors, tally.FirstError)
		}
	})
}

func TestAnErrorThatNeverEndsDoesNotHoldTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(always(10 * ms))
		l.receiveError = func() error { return errors.New("socket is odd") }
		s, tally := run(t, l, probe.Options{Deadline: time.Second}, 5)
		if s.count(probe.Lost) != 5 || tally.ReceiveErrors == 0 {
			t.Errorf("lost %d, receive errors %d; want 5, some", s.count(probe.Lost), tally.ReceiveErrors)
		}
		if got := time.Since(s.start()); got > 2600*ms {
			t.Errorf("Run took %v, want 2.4s and a pause", got)
		}
	})
}

func TestWakeUpsAreNotErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(always(10 * ms))
		quiet := true
		l.receiveError = func() error {
			time.Sleep(ms)
			if quiet = !quiet; quiet {
				return os.ErrDeadlineExceeded
			}
			return nil
		}
		_, tally := run(t, l, probe.Options{}, 5)
		if tally.ReceiveErrors != 0 || tally.FirstError != "" {
			t.Errorf("receive errors %d, first %q; want none", tally.ReceiveErrors, tally.FirstError)
		}
	})
}

func TestATransportClosedByOthersEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLink(silent)
		time.AfterFunc(250*ms, func() { l.Close() })
		s := &series{t: t}
		_, err := probe.Run(t.Context(), t.Context(), bubble{}, l, probe.Options{}, time.Now(), 0, s.record)
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("error %v, want net.ErrClosed", err)
		}
		s.wantOutcomes(probe.Unfinished, probe.Unfinished, probe.Unfinished)
	})
}

func TestARefusalEndsItsProbeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := netip.MustParseAddr("192.0.2.1")
		l := newLink(always(10 * ms))
		l.answer = func(r probe.Reply) probe.Reply {
			r.Kind, r.By, r.Err = probe.Rejected, router, errors.New("no route to host")
			return r
		}
		s, tally := run(t, l, probe.Options{}, 3)
		s.wantOutcomes(probe.Lost, probe.Lost, probe.Lost)
		if tally.Rejected != 3 || len(tally.RejectedBy) != 1 || tally.RejectedBy[0] != router || tally.FirstError != "no route to host" {
			t.Errorf("tally %+v, want 3 rejected by %v", tally, router)
		}
		if got, want := time.Since(s.start()), 210*ms; got != want {
			t.Errorf("Run took %v, want %v", got, want)
		}
	})
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	for _, c := range []struct {
		o    probe.Options
		want string
	}{
		{probe.Options{Interval: -1}, "probe interval -1ns: want at least 100µs"},
		{probe.Options{Interval: 1}, "probe interval 1ns: want at least 100µs"},
		{probe.Options{Deadline: time.Minute}, "probe deadline 1m0s: want more than 0 and at most 30s"},
		{probe.Options{Deadline: -1}, "probe deadline -1ns: want more than 0 and at most 30s"},
	} {
		l := newLink(silent)
		_, err := probe.Run(t.Context(), t.Context(), bubble{}, l, c.o, time.Now(), 1, func(probe.Sample) {})
		if err == nil || err.Error() != c.want {
			t.Errorf("%+v: error %v, want %q", c.o, err, c.want)
		}
		select {
		case <-l.closed:
		default:
			t.Errorf("%+v: the transport is open, want it closed", c.o)
		}
	}
}

func TestASilentTargetCostsNoMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("600000 probes")
	}
	synctest.Test(t, func(t *testing.T) {
		goroutines := runtime.NumGoroutine()
		var counts [16]int
		var early, late uint64
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		_, err := probe.Run(t.Context(), t.Context(), bubble{}, newLink(silent), probe.Options{Interval: ms}, time.Now(), 600_000,
			func(x probe.Sample) {
				counts[x.Outcome]++
				switch x.Seq {
				case 60_000:
					early = heap()
				case 569_000:
					late = heap()
				}
			})
		if err != nil || counts[probe.Lost] != 600_000 {
			t.Errorf("error %v, lost %d; want 600000", err, counts[probe.Lost])
		}
		if late > early+1<<20 {
			t.Errorf("the heap grew from %d to %d bytes", early, late)
		}
		synctest.Wait()
		if got := runtime.NumGoroutine(); got > goroutines {
			t.Errorf("%d goroutines after Run, %d before", got, goroutines)
		}
	})
}

func TestOutcomesHaveNames(t *testing.T) {
	for o := probe.Received; o <= probe.Invalid; o++ {
		if s := o.String(); s == "" || strings.HasSuffix(s, "?") {
			t.Errorf("outcome %d is named %q", o, s)
		}
	}
}
