package irtt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

const (
	// silence is how long probes may go unanswered before the session is held for lost: longer than any queue that answers in the end.
	silence = 10 * time.Second
	// The pauses between two attempts to open a session start at firstPause and double up to lastPause.
	firstPause = 250 * time.Millisecond
	lastPause  = 10 * time.Second
	// freshness is how old a session may become that waits for its first probe, less what opening another takes, and the first probe: servers forget
	// one without, ours after 15 s.
	freshness    = 10 * time.Second
	shortestWait = time.Second
)

// reopening is what a Transport keeps for sessions after the first; all but running is under its mu.
type reopening struct {
	running    sync.WaitGroup     // keep or reopen
	stop       context.CancelFunc // ends that; nil: there is none
	begun      bool               // a probe was sent
	failing    error              // of the last probe, if it could not be sent
	quietSince time.Time          // when the first probe was sent since anything was heard; the zero Time: none
	earlier    [2]uint64          // SendStamps of the sessions before this one
	reopened   int
	why        string     // of the first time
	from       netip.Addr // of the last time
}

// judge takes in how the send of a probe went, and sees to another session where this one may be lost. t.mu is held.
func (t *Transport) judge(at time.Time, err error) {
	switch {
	case err == nil:
		t.failing = nil
		if t.quietSince.IsZero() {
			t.quietSince = at
		}
	case errors.Is(err, host.ErrNoBuffer) || errors.Is(err, syscall.EMSGSIZE) || errors.Is(err, net.ErrClosed):
		return
	default:
		t.failing = err
	}
	if t.stop == nil && t.lost(at) != "" {
		t.start(t.reopen)
	}
}

// start runs what opens other sessions; there is one of these at a time. t.mu is held, or nobody else has t yet.
func (t *Transport) start(run func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	t.stop = cancel
	t.running.Go(func() {
		run(ctx)
		t.mu.Lock()
		defer t.mu.Unlock()
		cancel()
		t.stop = nil
	})
}

// keep replaces the session by a fresh one every now and then until the first probe was sent.
func (t *Transport) keep(ctx context.Context) {
	for t.host.SleepUntil(ctx, t.host.Now().Add(max(freshness-2*t.session().took, shortestWait))) == nil {
		// Where that fails the old one may still do.
		if s, err := t.connect(ctx); err == nil && !t.refresh(ctx, s) {
			return
		}
	}
}

// refresh puts s in the place of the session of the moment, or closes it where probes are being sent or ctx is done, and returns false.
func (t *Transport) refresh(ctx context.Context, s *session) bool {
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun || ctx.Err() != nil || s.conn.SetReadDeadline(t.deadline) != nil {
		_ = s.end()
		return false
	}
	t.replace(s)
	return true
}

// lost says why the session may be lost, "" where it is not. t.mu is held.
func (t *Transport) lost(now time.Time) string {
	switch {
	case t.s.over:
		return "" // by the server's own word
	case t.failing != nil:
		return t.failing.Error()
	case !t.quietSince.IsZero() && now.Sub(t.quietSince) > silence:
		return fmt.Sprintf("nothing came back for %v", silence)
	}
	return ""
}

// reopen tries to open another session until one has taken the place of this one, none is needed any more, or ctx is done.
func (t *Transport) reopen(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		s, err := t.connect(ctx)
		if err == nil && t.adopt(ctx, s) || t.host.SleepUntil(ctx, t.host.Now().Add(pause)) != nil || !t.needed() {
			return
		}
	}
}

func (t *Transport) needed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost(t.host.Now()) != ""
}

// adopt puts s in the place of the session of the moment and reports whether that is over with: it closes s instead where ctx is done or the
// old one has proved to be alive.
func (t *Transport) adopt(ctx context.Context, s *session) bool {
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	why := t.lost(t.host.Now())
	if why == "" || ctx.Err() != nil {
		_ = s.end()
		return true
	}
	if err := s.conn.SetReadDeadline(t.deadline); err != nil {
		_ = s.end()
		return false
	}
	if t.reopened++; t.reopened == 1 {
		t.why = why
	}
	t.from = s.conn.LocalAddr().Addr()
	t.replace(s)
	return true
}

// replace makes s the session and ends the one before. t.sendMu and t.mu are held.
func (t *Transport) replace(s *session) {
	stack, all := t.s.sendStamps()
	t.earlier[0] += stack
	t.earlier[1] += all
	s.ledger.floor = int64(t.next) - 1 // its server never hears of those before
	old := t.s
	t.s, t.failing, t.quietSince = s, nil, time.Time{}
	_ = old.end()
}

// Remarks says whether another session had to be opened. Call it when the series is over.
func (t *Transport) Remarks() []probe.Remark {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reopened == 0 {
		return nil
	}
	return []probe.Remark{{Code: "irtt_reopened", Weakens: true, Text: fmt.Sprintf(
		"another session with %v was opened (%d in all, the last from %v), as the one before was lost: %s; what was probed until then is unsent or lost, and the path may be another one since",
		t.target, t.reopened, t.from, t.why)}}
}
