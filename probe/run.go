package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"bufferbloat/internal/host"
)

const (
	// patientErrors is how many errors of Receive in a row are taken without a pause. The pauses after them start at firstPause and
	// double up to lastPause: short at first, because a packet that arrives in a pause may be stamped at its end.
	patientErrors = 16
	firstPause    = time.Millisecond
	lastPause     = 100 * time.Millisecond
)

// Run sends probe n through t at start + n x o.Interval, for n = 0, 1, 2, ..., until count were due (0: no bound) or sending is done.
// Then it listens on until every probe is answered, but no longer than Tracker.Window after the last send: 3 times the highest RTT
// seen, those that still arrive included, at least 2 s and at most 30 s. When ctx is done it sends and listens no more: what had not
// been listened for as long as that is Unfinished.
//
// It calls record once for every probe that was due, in the order in which their fates are decided, from one goroutine at a time;
// record must be quick, as neither sending nor receiving goes on meanwhile. The samples' times are offsets from start.
//
// A probe whose slot was missed leaves at once, and Sample.Lateness tells. One that is more than a whole interval late is Unsent
// and counted in Tally.SenderLate: a burst of overdue probes would measure the burst. A send that fails makes one probe Unsent and ends
// nothing. An error of Receive that is not a wake-up is counted, and a series of them is slowed down.
//
// Run returns when all it started is gone, and closes t. Its Tally holds with an error too. The error is nil whenever the series ended
// because it was over or was stopped; it is about o, or says that t was closed or could not be woken.
func Run(ctx, sending context.Context, clock host.Clock, t Transport, o Options, start time.Time, count uint64,
	record func(Sample)) (Tally, error) {
	defer t.Close()
	o, err := o.WithDefaults()
	if err != nil {
		return Tally{}, err
	}
	sending, cancel := context.WithCancel(sending)
	defer cancel()
	r := &runner{clock: clock, transport: t, stopSending: cancel}
	r.sent.L = &r.mu
	r.tracker = NewTracker(start, o.Deadline, record)

	halted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(halted); r.halt() })
	var listening sync.WaitGroup
	listening.Go(func() { r.receive(ctx) })
	r.send(sending, Schedule{Start: start, Interval: o.Interval}, count)
	r.drain()
	listening.Wait()
	if !stop() {
		<-halted
	}
	r.tracker.Close(clock.Now())
	tally := r.tracker.Tally()
	tally.Waking = r.wakings.summary()
	if s, ok := t.(interface{ SendStamps() (stack, all uint64) }); ok {
		tally.StackSends, _ = s.SendStamps()
	}
	return tally, r.err
}

// runner is one Run: its goroutine sends, a second one receives, and a third may halt both.
type runner struct {
	clock       host.Clock
	transport   Transport
	stopSending func()

	mu        sync.Mutex // guards all below
	sent      sync.Cond  // sendingIt has become false
	tracker   *Tracker
	sendingIt bool      // the tracker's next probe is being sent
	lastSend  time.Time // the stamp of the last probe that left; valid while the tracker has open ones
	drained   bool      // no more probes leave
	halted    bool      // listen no more
	err       error
	wakings   wakings
}

// send runs the schedule.
func (r *runner) send(ctx context.Context, s Schedule, count uint64) {
	sleep := r.clock.SleepUntil
	if p, ok := r.clock.(host.PreciseClock); ok {
		sleep = p.SleepPrecisely
	}
	for n := uint64(0); count == 0 || n < count; n++ {
		due := s.Due(n)
		if sleep(ctx, due) != nil || ctx.Err() != nil {
			return
		}
		now := r.clock.Now()
		if now.Sub(due) > s.Interval {
			r.mu.Lock()
			r.tracker.SenderLate(due)
			r.mu.Unlock()
			continue
		}
		r.sendOne(n, due)
	}
}

// sendOne sends probe n. The lock is not held meanwhile, so that a slow send delays no other probe's reply; the reply to this one
// may come before its stamp is known, and waits in reply.
func (r *runner) sendOne(n uint64, due time.Time) {
	r.mu.Lock()
	r.sendingIt = true
	r.mu.Unlock()
	at, err := r.transport.Send(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.tracker.Unsent(due, err)
	} else {
		r.tracker.Sent(due, at)
		r.lastSend = at
	}
	r.sendingIt = false
	r.sent.Broadcast()
}

// drain begins the wait for the replies that are still under way.
func (r *runner) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drained = true
	r.wakeAtEnd(r.clock.Now())
}

// halt ends the listening now.
func (r *runner) halt() {
	r.stopSending()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.halted = true
	r.wake(r.clock.Now())
}

// wakeAtEnd sets when Receive is to return, once the last probe has left. r.mu is held, so that it does not undo halt's wake.
func (r *runner) wakeAtEnd(now time.Time) {
	if r.over(now) {
		r.wake(now)
	} else if r.drained {
		r.wake(r.lastSend.Add(r.tracker.Window()))
	}
}

// wake makes Receive return at t, one way or the other. r.mu is held.
func (r *runner) wake(t time.Time) {
	if err := r.transport.Wake(t); err != nil && !errors.Is(err, net.ErrClosed) {
		r.fail(fmt.Errorf("end the wait for replies: %w", err))
		r.transport.Close()
	}
}

// over reports whether there is nothing more to listen for. r.mu is held.
func (r *runner) over(now time.Time) bool {
	return r.halted || r.drained && (r.tracker.Open() == 0 || now.Sub(r.lastSend) >= r.tracker.Window())
}

// fail ends the series with its first error. r.mu is held.
func (r *runner) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.halted = true
	r.stopSending()
}

// receive hears replies until the series is over.
func (r *runner) receive(ctx context.Context) {
	failures, pause := 0, firstPause
	for {
		reply, err := r.transport.Receive()
		now := r.clock.Now()
		if err == nil {
			failures, pause = 0, firstPause
			if r.reply(reply, now) {
				return
			}
			continue
		}
		if r.receiveError(err, now) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if failures++; failures > patientErrors {
			if r.clock.SleepUntil(ctx, now.Add(pause)) != nil {
				r.halt()
				return
			}
			pause = min(2*pause, lastPause)
		}
	}
}

// reply hands a reply to the tracker and reports whether the series is over.
func (r *runner) reply(reply Reply, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.sendingIt && reply.Seq == r.tracker.Next() {
		r.sent.Wait()
	}
	if reply.Kind == Answer && reply.Seq < r.tracker.Next() && reply.Stamp == host.KernelStamp && !reply.At.IsZero() {
		r.wakings.add(now.Sub(reply.At))
	}
	r.tracker.Reply(reply, now)
	return r.over(now)
}

// receiveError takes in an error of Receive and reports whether the series is over.
func (r *runner) receiveError(err error, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over(now) {
		return true
	}
	switch {
	case errors.Is(err, net.ErrClosed):
		r.fail(fmt.Errorf("listen for replies: %w", err))
		return true
	case errors.Is(err, os.ErrDeadlineExceeded):
		r.tracker.Expire(now)
		r.wakeAtEnd(now)
	default:
		r.tracker.ReceiveError(err)
	}
	return false
}
