// Package transact runs transactions as probes: each in a goroutine of its own, bounded in number and in time, and waited for.
package transact

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// Options say how transactions are bounded.
type Options struct {
	What     string        // they are, as in "DNS look-ups"
	Limit    int           // how many may be under way; a probe beyond it is not sent. It must be positive
	Deadline time.Duration // after which one is given up: it must be positive
}

// Func carries out transaction seq. It calls begun once, with the stamp taken just before the first packet was asked for, and returns what came
// of it; Seq is filled in for it. It returns false where nothing came, which is no reply. Where it fails before it has called begun, nothing
// was sent, and the reply's Err says why. It must return soon after ctx is done.
type Func func(ctx context.Context, seq uint64, begun func(at time.Time)) (probe.Reply, bool)

// Transport is a probe.Transport of transactions.
type Transport struct {
	clock   host.Clock
	options Options
	do      Func

	ctx     context.Context // of the transactions: it ends with Close, and Send has none to give them
	cancel  context.CancelFunc
	slots   chan struct{}    // one token for each transaction whose result was not yet received
	results chan probe.Reply // as many as slots, so that no transaction waits for a reader
	asides  chan probe.Reply
	wake    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex // guards closed and timer
	closed bool
	timer  host.Timer
}

var _ probe.Transport = (*Transport)(nil)

// maxAsides is how many packets that are no replies may wait for Receive; more are forgotten.
const maxAsides = 64

// New returns a Transport that carries out do for each probe. It starts nothing yet.
func New(clock host.Clock, o Options, do Func) *Transport {
	ctx, cancel := context.WithCancel(context.Background())
	return &Transport{clock: clock, options: o, do: do, ctx: ctx, cancel: cancel, slots: make(chan struct{}, o.Limit),
		results: make(chan probe.Reply, o.Limit), asides: make(chan probe.Reply, maxAsides), wake: make(chan struct{}, 1)}
}

// ErrTooMany makes a probe Unsent: as many transactions as may be are under way.
var ErrTooMany = errors.New("too many are under way")

// Send implements probe.Transport: it begins a transaction and returns without waiting for its end.
func (t *Transport) Send(seq uint64) (time.Time, error) {
	begun := make(chan begin, 1)
	if err := t.start(seq, begun); err != nil {
		return time.Time{}, err
	}
	b := <-begun
	return b.at, b.err
}

// begin is how a transaction began: when, or why it did not.
type begin struct {
	at  time.Time
	err error
}

func (t *Transport) start(seq uint64, begun chan<- begin) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	select {
	case t.slots <- struct{}{}:
	default:
		return fmt.Errorf("%d %s wait for an answer: %w; probe at a longer interval", t.options.Limit, t.options.What, ErrTooMany)
	}
	t.running.Go(func() { t.run(seq, begun) })
	return nil
}

// run is the goroutine of one probe.
func (t *Transport) run(seq uint64, begun chan<- begin) {
	ctx, cancel := host.WithTimeout(t.ctx, t.clock, t.options.Deadline)
	defer cancel()
	sent := false
	r, ok := t.do(ctx, seq, func(at time.Time) {
		sent = true
		begun <- begin{at: at}
	})
	if !sent {
		<-t.slots
		err := r.Err
		if err == nil {
			err = errors.New("it could not begin")
		}
		begun <- begin{err: err}
		return
	}
	if !ok {
		<-t.slots
		return
	}
	r.Seq = seq
	t.results <- r
}

// Aside tells of a packet that is no reply: probe.Corrupt or probe.Stray. It may be called from any goroutine.
func (t *Transport) Aside(kind probe.ReplyKind) {
	select {
	case t.asides <- probe.Reply{Kind: kind}:
	default:
	}
}

// Receive implements probe.Transport.
func (t *Transport) Receive() (probe.Reply, error) {
	select {
	case r := <-t.results: // before a wake-up that is due as well
		<-t.slots
		return r, nil
	default:
	}
	select {
	case r := <-t.results:
		<-t.slots
		return r, nil
	case r := <-t.asides:
		return r, nil
	case <-t.wake:
		return probe.Reply{}, os.ErrDeadlineExceeded
	case <-t.ctx.Done():
		return probe.Reply{}, net.ErrClosed
	}
}

// Wake implements probe.Transport.
func (t *Transport) Wake(at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	t.timer = t.clock.AfterFunc(at.Sub(t.clock.Now()), func() {
		select {
		case t.wake <- struct{}{}:
		default: // one is pending
		}
	})
	return nil
}

// Close implements probe.Transport. It returns when all transactions have ended.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	t.cancel()
	t.mu.Unlock()
	t.running.Wait()
	return nil
}

// Check carries out one transaction, bounded like the others, and returns nil if it was answered. It shows before a series whether there can be
// one, and why not.
func (t *Transport) Check(ctx context.Context) error {
	ctx, cancel := host.WithTimeout(ctx, t.clock, t.options.Deadline)
	defer cancel()
	begun := t.clock.Now()
	r, ok := t.do(ctx, 0, func(time.Time) {})
	switch {
	case !ok && ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return context.Cause(ctx)
	case !ok:
		return fmt.Errorf("no answer in %v", t.clock.Now().Sub(begun).Round(time.Millisecond))
	case r.Err != nil:
		return r.Err
	}
	return nil
}

// Failed returns what an error makes of a probe that had begun: silence (false) where nothing came in time, the word of a router, or else
// probe.Rejected with err, because whoever answered did not do what was asked.
func Failed(ctx context.Context, err error) (probe.Reply, bool) {
	if ctx.Err() != nil || IsSilence(err) {
		return probe.Reply{}, false
	}
	r := probe.Reply{Kind: probe.Rejected, Err: err}
	var icmp *host.RejectedError
	if errors.As(err, &icmp) {
		r.By = icmp.By
	}
	return r, true
}

// FailedToConnect is Failed for the opening of a connection, where an error may also be this host's own: the probe was then not sent after all.
func FailedToConnect(ctx context.Context, err error) (probe.Reply, bool) {
	r, ok := Failed(ctx, err)
	if ok && !IsRefusal(err) && !IsUnreachable(err) {
		r.Kind = probe.NotSent
	}
	return r, ok
}

// IsSilence reports whether err says that nothing came in time.
func IsSilence(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, syscall.ETIMEDOUT)
}

// IsRefusal reports whether err says that the peer's host refused a connection (RST).
func IsRefusal(err error) bool {
	return !isICMP(err) && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET))
}

// IsUnreachable reports whether err is an ICMP error, or says that a host or network can't be reached, whoever found that out.
func IsUnreachable(err error) bool {
	return isICMP(err) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

func isICMP(err error) bool {
	var icmp *host.RejectedError
	return errors.As(err, &icmp)
}

// Shut closes a connection whose data is done with, without the long farewell, which would leave one port after the other in TIME_WAIT.
func Shut(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0) // where it cannot, Close is the ordinary one
	}
	_ = c.Close() // there is nothing left that could be lost
}
