package bufferbloat_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/load/netperf"
	"bufferbloat/protocols"
	"bufferbloat/report"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/link"
)

// loopPlan has closed loops of both kinds beside an open one.
func loopPlan() bufferbloat.Plan {
	p := bufferbloat.Speedtest(bufferbloat.SpeedtestOptions{Server: bufferbloat.Server{Host: lab.Name, NetperfPort: 12865, IRTTPort: 2112}, Idle: 2 * time.Second,
		Length: 4 * time.Second, Streams: 1, Concurrent: true, Interval: 100 * time.Millisecond, Probe: bufferbloat.ICMP})
	p.Probes = append(p.Probes, bufferbloat.ProbePlan{Name: "tcp loop", Kind: bufferbloat.ClosedTCPRR, Interval: 10 * time.Millisecond},
		bufferbloat.ProbePlan{Name: "udp loop", Kind: bufferbloat.ClosedUDPRR, Interval: 10 * time.Millisecond, Size: 64})
	return p
}

var loops = bufferbloat.RunOptions{Kinds: protocols.All(protocols.Options{})}

func quantity(rec *bufferbloat.Recording, name string, ph *bufferbloat.Phase) (values []float64) {
	for _, q := range rec.Others {
		times, v := q.Columns()
		for i, at := range times {
			if q.Name == name && at >= ph.From && at < ph.To {
				values = append(values, v[i])
			}
		}
	}
	return values
}

func mean(x []float64) (m float64) {
	for _, v := range x {
		m += v / float64(len(x))
	}
	return m
}

func TestClosedLoopsAreRatesAndTimesWeighedByTime(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole run in virtual time")
	}
	rec, err := rig{options: loops}.run(t, t.Context(), loopPlan())
	if err != nil {
		t.Fatal(err)
	}
	res := report.New(rec)
	for _, name := range []string{"tcp loop", "udp loop"} {
		for _, phase := range []string{"idle", "both"} {
			ph := &rec.Phases[slices.IndexFunc(rec.Phases, func(p bufferbloat.Phase) bool { return p.Name == phase })]
			rates, rtts := quantity(rec, name+bufferbloat.LoopTransactions, ph), quantity(rec, name+bufferbloat.LoopRTT, ph)
			want := int((ph.To - ph.From) / (10 * time.Millisecond))
			if len(rates) < want-8 || len(rates) > want+1 || len(rtts) < want-8 || len(rtts) > want+1 {
				t.Errorf("%s of %s: %d rates and %d times, want about %d", phase, name, len(rates), len(rtts), want)
				continue
			}
			// As the next request leaves when a response comes, the transactions fill the time: 1/s of them is the harmonic mean of times by time.
			var inverse float64
			for _, v := range rtts {
				inverse += 1e3 / v / float64(len(rtts))
			}
			if got := mean(rates); math.Abs(got-inverse) > 0.05*inverse {
				t.Errorf("%s of %s: %.2f transactions a second, and the times say %.2f", phase, name, got, inverse)
			}
			l := res.Loops[slices.IndexFunc(res.Loops, func(l report.ClosedLoop) bool { return l.Phase == phase && l.Series == name })]
			if l.Rate == nil || l.Median == nil || l.Unanswered == nil || *l.Unanswered != 0 || math.Abs(*l.Rate-mean(rates)) > 0.01*mean(rates) {
				t.Errorf("%s of %s: the result has %+v", phase, name, l)
				continue
			}
			if open := res.Phases[slices.IndexFunc(res.Phases, func(p report.Phase) bool { return p.Name == phase })].Primary(); (*l.Median - open.Median).Abs() > open.Median/4 {
				t.Errorf("%s of %s: median by time %v, of probes on a schedule %v", phase, name, *l.Median, open.Median)
			}
			if phase == "both" && *l.Median < 80*time.Millisecond {
				t.Errorf("%s of %s: median %v under load, want what the queue adds", phase, name, *l.Median)
			}
		}
	}
	for _, s := range rec.Probes {
		if strings.Contains(s.Name, "loop") {
			t.Errorf("%s is told as probes on a schedule", s.Name)
		}
	}
}

func TestAClosedLoopWithoutResponsesIsUnansweredAndNoTime(t *testing.T) {
	plan := loopPlan()
	plan.Phases = []bufferbloat.PhasePlan{{Name: "idle", Kind: bufferbloat.Idle, Length: 12 * time.Second}}
	rec, err := rig{options: loops, link: lab.Config{Seed: 3, EffectsDown: link.Effects{Loss: link.Loss{Good: 0.02}}}}.run(t, t.Context(), plan)
	if err != nil {
		t.Fatal(err)
	}
	ph := &rec.Phases[0]
	rtts, waits := quantity(rec, "udp loop"+bufferbloat.LoopRTT, ph), quantity(rec, "udp loop"+bufferbloat.LoopUnanswered, ph)
	if len(waits) < 400 || len(rtts) == 0 || slices.Max(rtts) > 100 || slices.Max(waits) > 10_000 {
		t.Fatalf("%d times and %d moments without one", len(rtts), len(waits))
	}
	res := report.New(rec)
	l := res.Loops[slices.IndexFunc(res.Loops, func(l report.ClosedLoop) bool { return l.Series == "udp loop" })]
	if want := float64(len(waits)) / float64(len(waits)+len(rtts)); l.Unanswered == nil || math.Abs(*l.Unanswered-want) > 0.001 || l.P99 != nil {
		t.Errorf("got %+v, want %.3f unanswered and no 99th percentile", l, want)
	}
	var b strings.Builder
	if err := res.WriteTable(&b); err != nil || !strings.Contains(b.String(), "Median by time") {
		t.Errorf("the table has no closed loops (%v)", err)
	}
}

// stubLoop is a closed loop that does as it is told.
type stubLoop func(ctx context.Context) (netperf.TransactionResult, error)

func (stubLoop) Open(context.Context) error                                   { return nil }
func (s stubLoop) Run(ctx context.Context) (netperf.TransactionResult, error) { return s(ctx) }
func (stubLoop) Sample() (netperf.Interval, bool)                             { return netperf.Interval{}, false }
func (stubLoop) Close()                                                       {}

// stubbed runs an idle line for 4 s beside a closed loop.
func stubbed(t *testing.T, run func(ctx context.Context, h host.Host) (netperf.TransactionResult, error)) *bufferbloat.Recording {
	t.Helper()
	p := loopPlan()
	p.Phases = []bufferbloat.PhasePlan{{Name: "idle", Kind: bufferbloat.Idle, Length: 4 * time.Second}}
	p.Probes = p.Probes[:2]
	closed := func(c *netperf.Client, _ netperf.TransactionOptions) bufferbloat.Transactions {
		return stubLoop(func(ctx context.Context) (netperf.TransactionResult, error) { return run(ctx, c.Host) })
	}
	rec, err := rig{options: bufferbloat.RunOptions{Kinds: bufferbloat.Kinds{Closed: closed}}}.run(t, t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func TestAMomentWithoutAnAnswerIsWhenItWas(t *testing.T) {
	rec := stubbed(t, func(ctx context.Context, h host.Host) (netperf.TransactionResult, error) {
		asked := h.Now()
		err := h.SleepUntil(ctx, asked.Add(time.Hour))
		waiting := h.Now().Sub(asked)
		_ = h.SleepUntil(context.WithoutCancel(ctx), h.Now().Add(3*time.Second)) // for the server's results
		return netperf.TransactionResult{RTTs: &netperf.RTTs{}, Oldest: asked, Waiting: waiting}, err
	})
	i := slices.IndexFunc(rec.Others, func(q bufferbloat.Quantity) bool { return q.Name == "tcp loop"+bufferbloat.LoopUnanswered })
	if i < 0 {
		t.Fatal("no moment without an answer")
	}
	at, waits := rec.Others[i].Columns()
	if first, last := at[0], at[len(at)-1]; first > 100*time.Millisecond || last < 3900*time.Millisecond || last > 4*time.Second {
		t.Errorf("from %v to %v, want all 4 s and no more", first, last)
	}
	if got, want := waits[len(waits)-1], at[len(at)-1].Seconds()*1e3; math.Abs(got-want) > 1 {
		t.Errorf("the last moment had waited for %.1f ms, want %.1f", got, want)
	}
}

func TestAClosedLoopThatEndsBeforeThePlanSaysSo(t *testing.T) {
	rec := stubbed(t, func(context.Context, host.Host) (netperf.TransactionResult, error) {
		return netperf.TransactionResult{}, nil
	})
	if f, ok := finding(rec, "closed_loop_ended"); !ok || !strings.Contains(f.Text, "that time was up") {
		t.Errorf("findings %+v, want one that says when it ended", rec.Findings)
	}
	rec = stubbed(t, func(ctx context.Context, h host.Host) (netperf.TransactionResult, error) {
		return netperf.TransactionResult{}, h.SleepUntil(ctx, h.Now().Add(time.Hour))
	})
	if f, ok := finding(rec, "closed_loop_ended"); ok {
		t.Errorf("one that ran to the plan's end: %+v", f)
	}
}
