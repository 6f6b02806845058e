package transact

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

const ms = time.Millisecond

// bubble is the clock of a synctest bubble: the time package itself.
type bubble struct{}

func (bubble) Now() time.Time { return time.Now() }

func (bubble) SleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (bubble) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(d, f) }

// series runs count transactions, 10 ms apart.
func series(t *testing.T, o Options, count uint64, do Func) ([]probe.Sample, probe.Tally) {
	t.Helper()
	samples := make([]probe.Sample, count)
	tally, err := probe.Run(t.Context(), t.Context(), bubble{}, New(bubble{}, o, do), probe.Options{Interval: 10 * ms}, time.Now(), count,
		func(s probe.Sample) { samples[s.Seq] = s })
	if err != nil {
		t.Fatal(err)
	}
	return samples, tally
}

func TestWhatBecomesOfTransactions(t *testing.T) {
	router := netip.MustParseAddr("192.0.2.1")
	var clock bubble
	for name, c := range map[string]struct {
		do   Func
		want probe.Outcome
		rtt  time.Duration
	}{
		"answered": {func(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
			begun(clock.Now())
			err := clock.SleepUntil(ctx, clock.Now().Add(30*ms))
			return probe.Reply{At: clock.Now()}, err == nil
		}, probe.Received, 30 * ms},
		"without an end": {func(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
			begun(clock.Now())
			<-ctx.Done()
			return Failed(ctx, context.Cause(ctx))
		}, probe.Lost, 0},
		"never begun": {func(context.Context, uint64, func(time.Time)) (probe.Reply, bool) {
			return probe.Reply{Err: syscall.EMFILE}, true
		}, probe.Unsent, 0},
		"never begun, and no reason": {func(context.Context, uint64, func(time.Time)) (probe.Reply, bool) {
			return probe.Reply{}, false
		}, probe.Unsent, 0},
		"answered wrongly": {func(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
			begun(clock.Now())
			return Failed(ctx, errors.New("HTTP status 500"))
		}, probe.Lost, 0},
		"rejected": {func(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
			begun(clock.Now())
			return FailedToConnect(ctx, &host.RejectedError{By: router, Err: syscall.EHOSTUNREACH})
		}, probe.Lost, 0},
		"no descriptor": {func(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
			begun(clock.Now())
			return FailedToConnect(ctx, syscall.EMFILE)
		}, probe.Unsent, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				samples, tally := series(t, Options{What: "tries", Limit: 4, Deadline: time.Second}, 1, c.do)
				if got := samples[0]; got.Outcome != c.want || got.RTT != c.rtt {
					t.Errorf("sample %+v, want %v after %v", got, c.want, c.rtt)
				}
				if name == "rejected" && (len(tally.RejectedBy) != 1 || tally.RejectedBy[0] != router) {
					t.Errorf("tally %+v, want it rejected by %v", tally, router)
				}
				if name == "answered wrongly" && (tally.Rejected != 1 || tally.FirstError != "HTTP status 500") {
					t.Errorf("tally %+v, want one rejection with its reason", tally)
				}
			})
		})
	}
}

func TestNoMoreThanTheLimitAreUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 5
		var clock bubble
		samples, tally := series(t, Options{What: "tries", Limit: limit, Deadline: time.Second}, 200,
			func(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
				begun(clock.Now())
				<-ctx.Done()
				return probe.Reply{}, false
			})
		got := map[probe.Outcome]int{}
		for _, s := range samples {
			got[s.Outcome]++
		}
		// 200 probes take 2 s, in which a second's deadline frees each place once.
		if got[probe.Lost] != 2*limit || got[probe.Unsent] != 200-2*limit {
			t.Errorf("outcomes %v, want %d lost, the others unsent", got, 2*limit)
		}
		if want := "5 tries wait for an answer: too many are under way; probe at a longer interval"; tally.FirstError != want {
			t.Errorf("first error %q, want %q", tally.FirstError, want)
		}
	})
}

func TestCheckSaysWhyThereCanBeNoSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("no such name")
		for name, c := range map[string]struct {
			reply probe.Reply
			ok    bool
			want  string
		}{
			"answered": {probe.Reply{}, true, ""},
			"failed":   {probe.Reply{Kind: probe.Rejected, Err: refused}, true, "no such name"},
			"silence":  {probe.Reply{}, false, "no answer in 1s"},
		} {
			tr := New(bubble{}, Options{What: "tries", Limit: 1, Deadline: time.Second}, func(ctx context.Context, _ uint64, begun func(time.Time)) (probe.Reply, bool) {
				begun(time.Now())
				if !c.ok {
					<-ctx.Done()
				}
				return c.reply, c.ok
			})
			got := ""
			if err := tr.Check(t.Context()); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%s: %q, want %q", name, got, c.want)
			}
			tr.Close()
		}
	})
}
