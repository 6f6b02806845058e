package probe_test

import (
	"context"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// bubble is the clock of a synctest bubble: the time package itself.
type bubble struct{}

func (bubble) Now() time.Time { return time.Now() }

func (bubble) SleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (bubble) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(d, f) }

// link is a Transport over a simulated path. What it does to a probe is path's to say.
type link struct {
	// path returns the delays after which replies to probe seq, sent at, arrive; none is a loss.
	path func(seq uint64, at time.Duration) []time.Duration
	// sendError and receiveError, where set, may refuse a call.
	sendError    func(seq uint64) error
	receiveError func() error
	answer       func(probe.Reply) probe.Reply // alters a reply

	start   time.Time
	replies chan probe.Reply
	wake    chan struct{}
	closed  chan struct{}
	once    sync.Once

	mu    sync.Mutex
	timer *time.Timer
}

func newLink(path func(seq uint64, at time.Duration) []time.Duration) *link {
	return &link{path: path, start: time.Now(), replies: make(chan probe.Reply, 1<<16), wake: make(chan struct{}, 1),
		closed: make(chan struct{})}
}

// always is a path with one delay.
func always(d time.Duration) func(uint64, time.Duration) []time.Duration {
	return func(uint64, time.Duration) []time.Duration { return []time.Duration{d} }
}

func silent(uint64, time.Duration) []time.Duration { return nil }

func (l *link) Send(seq uint64) (time.Time, error) {
	if l.sendError != nil {
		if err := l.sendError(seq); err != nil {
			return time.Time{}, err
		}
	}
	at := time.Now()
	for _, d := range l.path(seq, at.Sub(l.start)) {
		time.AfterFunc(d, func() { l.arrive(seq) })
	}
	return at, nil
}

func (l *link) arrive(seq uint64) {
	r := probe.Reply{Kind: probe.Answer, Seq: seq, At: time.Now(), Stamp: host.LinkStamp}
	if l.answer != nil {
		r = l.answer(r)
	}
	l.replies <- r
}

func (l *link) Receive() (probe.Reply, error) {
	if l.receiveError != nil {
		if err := l.receiveError(); err != nil {
			return probe.Reply{}, err
		}
	}
	select {
	case r := <-l.replies:
		return r, nil
	default:
	}
	select {
	case r := <-l.replies:
		return r, nil
	case <-l.wake:
		return probe.Reply{}, os.ErrDeadlineExceeded
	case <-l.closed:
		return probe.Reply{}, net.ErrClosed
	}
}

func (l *link) Wake(t time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.AfterFunc(time.Until(t), func() {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	})
	return nil
}

func (l *link) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// series collects samples and fails where a probe has none or two.
type series struct {
	t       *testing.T
	samples []probe.Sample
}

func (s *series) record(x probe.Sample) { s.samples = append(s.samples, x) }

// bySeq returns the samples in the order of the schedule.
func (s *series) bySeq() []probe.Sample {
	s.t.Helper()
	out := slices.Clone(s.samples)
	slices.SortFunc(out, func(a, b probe.Sample) int { return int(a.Seq) - int(b.Seq) })
	for i, x := range out {
		if x.Seq != uint64(i) {
			s.t.Fatalf("sample %d has Seq %d: every probe must have exactly one", i, x.Seq)
		}
	}
	return out
}

func (s *series) count(o probe.Outcome) int {
	n := 0
	for _, x := range s.samples {
		if x.Outcome == o {
			n++
		}
	}
	return n
}

// wantOutcomes compares the outcomes in the order of the schedule.
func (s *series) wantOutcomes(want ...probe.Outcome) {
	s.t.Helper()
	var got []probe.Outcome
	for _, x := range s.bySeq() {
		got = append(got, x.Outcome)
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("outcomes %v, want %v", got, want)
	}
}
