package bufferbloat

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// The quantities of a closed loop, after its name. They are read at the plan's interval. What a transaction that is under way at such a moment takes in the
// end is RTT's value there: a time that lasts long is met often, so that equal weights of these values are weights by time.
const (
	LoopTransactions = "::transactions" // 1/s, ended since the value before, by the time since then
	LoopRTT          = "::rtt"          // ms, of the transaction that was under way
	LoopUnanswered   = "::unanswered"   // ms, in place of it: how long a request was out that never had its response
)

// closedLoop is a test whose requests wait for the response before them.
type closedLoop struct {
	r    *run
	plan *ProbePlan
	test Transactions
	step time.Duration
	next time.Duration // whose transaction is not known yet
}

// isClosedLoop reports whether probes of this kind have no schedule.
func (k ProbeKind) isClosedLoop() bool { return k == ClosedTCPRR || k == ClosedUDPRR }

// openClosedLoop makes a closed loop ready.
func (r *run) openClosedLoop(ctx context.Context, pp *ProbePlan) error {
	a, err := r.asked(ctx, pp, pp.Kind)
	if err != nil {
		return err
	}
	every := Watch{Every: pp.Interval}
	l := &closedLoop{r: r, plan: pp, step: every.every(r.plan.Length())}
	l.next = pp.Start + l.step
	c, t := r.transactions(a, a.options())
	t.Ended, t.Wait, t.Length = l.ended, pp.Start+sessionSlack, pp.Length
	if pp.Length == 0 {
		t.Length = a.length + sessionSlack
	}
	l.test = r.o.Kinds.Closed(c, t)
	if err := l.test.Open(ctx); err != nil {
		return err
	}
	r.loops = append(r.loops, l)
	return nil
}

// errLoopOver is why a closed loop ended before the plan did.
var errLoopOver = fmt.Errorf("the server was asked for %v more than the plan's length, and that time was up", sessionSlack)

func (r *run) closeLoops() {
	for _, l := range r.loops {
		l.test.Close()
	}
}

// runLoop runs a closed loop until its time is up or sending is done.
func (r *run) runLoop(ctx, sending context.Context, l *closedLoop) {
	start := r.start.Add(l.plan.Start)
	if r.h.SleepUntil(sending, start) != nil {
		return
	}
	running, stop := context.WithCancel(sending)
	var counting sync.WaitGroup
	counting.Go(func() {
		for n := time.Duration(1); r.h.SleepUntil(running, start.Add(n*l.step)) == nil; n++ {
			if i, ok := l.test.Sample(); ok && i.To.After(i.From) {
				l.put(LoopTransactions, "1/s", r.offset(i.To), float64(i.Transactions)/i.To.Sub(i.From).Seconds())
			}
			n = max(n, (r.now()-l.plan.Start)/l.step)
		}
	})
	result, err := l.test.Run(sending)
	stop()
	counting.Wait()
	now := r.h.Now()
	if result.RTTs != nil && result.Waiting > result.RTTs.Max() { // for longer than any, so it is no shorter than those
		l.ended(result.Oldest, result.Oldest.Add(result.Waiting), false)
	}
	if err == nil && l.plan.Length == 0 {
		err = errLoopOver
	}
	if err != nil && sending.Err() == nil && ctx.Err() == nil {
		r.find(Finding{Code: "closed_loop_ended", Severity: Weakens, Text: fmt.Sprintf("%s: the closed loop ended %v after its begin: %v",
			l.plan.Name, now.Sub(start).Round(time.Millisecond), err)})
	}
}

// ended takes in a transaction: it is the one that was under way at the moments between its ends.
func (l *closedLoop) ended(sent, over time.Time, answered bool) {
	from, to := l.r.offset(sent), l.r.offset(over)
	for ; l.next < to; l.next += l.step {
		switch {
		case l.next < from:
		case answered:
			l.put(LoopRTT, "ms", l.next, (to-from).Seconds()*1e3)
		default:
			l.put(LoopUnanswered, "ms", l.next, (l.next-from).Seconds()*1e3)
		}
	}
}

func (l *closedLoop) put(what, unit string, at time.Duration, value float64) {
	l.r.rec.quantity(l.plan.Name+what, unit, at, value)
}

// loopBytes is what the closed loops took of a direction in a time at most.
func (r *Recording) loopBytes(from, to time.Duration) (bytes float64) {
	for i := range r.Plan.Probes {
		p := &r.Plan.Probes[i]
		if q := r.other(p.Name + LoopTransactions); p.Kind.isClosedLoop() && q != nil {
			at, rates := q.Columns()
			for j := 1; j < len(at); j++ {
				if at[j] > from && at[j-1] < to {
					bytes += rates[j] * (at[j] - at[j-1]).Seconds() * (1.05*float64(p.Size) + ownPacket)
				}
			}
		}
	}
	return bytes
}
