// Package tcp probes with TCP handshakes: each probe is one connection attempt. It stands in where ICMP is not permitted and no
// irtt server runs, as all it needs is a TCP port that answers.
package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// MaxInFlight bounds the attempts that wait for an answer, and with them the open sockets. A probe beyond it is not sent.
const MaxInFlight = 256

// initialTimeout is the least time after which TCP sends its SYN again (RFC 6298 2.1; Linux and others use the same).
const initialTimeout = time.Second

// errInFlight makes a probe Unsent.
var errInFlight = fmt.Errorf("%d TCP handshakes wait for an answer: probe at a longer interval", MaxInFlight)

// Transport is a probe.Transport that opens a connection for each probe and closes it at once (with a reset, where the stack can).
//
// The RTT runs from just before the connection is asked for until the stack says that it stands, both stamped by this program, so its
// delay in running is part of it. A refusal by the peer (RST) is a round trip like an acceptance and an Answer; Refused counts
// them, because a firewall on the way can send one in the peer's name. An ICMP error is Rejected, and so is a host or network
// that cannot be reached, whoever found that out. Any other failure to open a connection is our own: NotSent.
//
// TCP repeats a SYN that is not answered in time, so a lost one would show as an RTT of a second and more. It does not:
//
//   - Where the stack knows that nothing was sent again, the time from ask to answer is the RTT, however long.
//   - Where a SYN was sent again and the RTT that the stack measured says that the answer was to the first one, likewise: the path is
//     slower than TCP's first timeout. (Linux measures it by the time-stamp option, RFC 7323.) Where it says that the answer was to a later
//     SYN, the first one or its answer was lost, and so is the probe: nothing is reported for it.
//   - Where the stack does not tell, an answer within the first second is one to the first SYN. The time of a later one cannot be told:
//     such a probe is Invalid.
//
// An attempt is given up after Options.Deadline, so no reply is Late.
type Transport struct {
	host   host.Host
	target netip.AddrPort
	socket host.Options
	limit  time.Duration

	ctx      context.Context // of the attempts: it ends with Close, and Send has none to give them
	cancel   context.CancelFunc
	slots    chan struct{}    // one token for each attempt whose result was not yet received
	results  chan probe.Reply // as many as slots, so that no attempt waits for a reader
	wake     chan struct{}
	attempts sync.WaitGroup
	refused  atomic.Uint64

	mu     sync.Mutex // guards closed and timer
	closed bool
	timer  host.Timer
}

var _ probe.Transport = (*Transport)(nil)

// Dial returns a Transport of handshakes with target, from sockets with o.Socket's settings. It opens nothing yet: whether target
// answers shows with the first probe.
func Dial(h host.Host, target netip.AddrPort, o probe.Options) (*Transport, error) {
	o, err := o.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("probe with TCP handshakes: %w", err)
	}
	if !target.IsValid() || target.Port() == 0 {
		return nil, fmt.Errorf("probe with TCP handshakes: %v is no address and port", target)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Transport{host: h, target: target, socket: o.Socket, limit: o.Deadline, ctx: ctx, cancel: cancel,
		slots: make(chan struct{}, MaxInFlight), results: make(chan probe.Reply, MaxInFlight), wake: make(chan struct{}, 1)}, nil
}

// Refused returns how many of the answers were refusals. It may be called from any goroutine.
func (t *Transport) Refused() uint64 { return t.refused.Load() }

// Send implements probe.Transport: it begins an attempt and returns without waiting for its end.
func (t *Transport) Send(seq uint64) (time.Time, error) {
	begun := make(chan time.Time, 1)
	if err := t.begin(seq, begun); err != nil {
		return time.Time{}, err
	}
	return <-begun, nil
}

func (t *Transport) begin(seq uint64, begun chan<- time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	select {
	case t.slots <- struct{}{}:
	default:
		return errInFlight
	}
	t.attempts.Go(func() { t.attempt(seq, begun) })
	return nil
}

// attempt is the goroutine of one probe. The stamp is taken here, beside the call, and not before the goroutine runs.
func (t *Transport) attempt(seq uint64, begun chan<- time.Time) {
	ctx, cancel := host.WithTimeout(t.ctx, t.host, t.limit)
	defer cancel()
	sent := t.host.Now()
	begun <- sent
	conn, err := t.host.DialTCP(ctx, t.target, t.socket)
	at := t.host.Now()
	var end ending
	if err != nil {
		end = failed(err, at.Sub(sent))
	} else {
		info, infoErr := t.host.TCPInfo(conn)
		end = established(at.Sub(sent), info, infoErr == nil && info.HasRetransmits)
		shut(conn)
	}
	if err != nil && end == answered {
		t.refused.Add(1)
	}
	r := probe.Reply{Seq: seq, At: at}
	switch end {
	case silent:
		<-t.slots
		return
	case untimed:
		r.At = time.Time{}
	case rejected:
		r.Kind, r.Err = probe.Rejected, err
		var by *host.RejectedError
		if errors.As(err, &by) {
			r.By = by.By
		}
	case notSent:
		r.Kind, r.Err = probe.NotSent, err
	}
	t.results <- r
}

// ending is how an attempt ended.
type ending uint8

const (
	answered ending = iota // the first SYN was
	untimed                // a SYN was, and it cannot be told which
	silent                 // the first SYN was not
	rejected               // by an ICMP error, or no route
	notSent
)

// established judges a handshake that took so long; info counts with hasInfo.
func established(took time.Duration, info host.TCPInfo, hasInfo bool) ending {
	switch {
	case !hasInfo:
		return answeredWithin(took)
	case info.Retransmits == 0:
		return answered
	case info.RTT == 0:
		return untimed
	case took-info.RTT < initialTimeout/2: // an answer to a later SYN would have come at least initialTimeout after RTT
		return answered
	}
	return silent
}

func answeredWithin(took time.Duration) ending {
	if took < initialTimeout {
		return answered
	}
	return untimed
}

// failed judges an attempt that ended with err after so long.
func failed(err error, took time.Duration) ending {
	var icmp *host.RejectedError
	switch {
	case errors.As(err, &icmp):
		return rejected
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, syscall.ETIMEDOUT):
		return silent
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return answeredWithin(took)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return rejected
	}
	return notSent
}

// shut closes a connection without the long farewell, which would leave one port after the other in TIME_WAIT.
func shut(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0) // where it cannot, Close is the ordinary one
	}
	_ = c.Close() // nothing was written that could be lost
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
	t.timer = t.host.AfterFunc(at.Sub(t.host.Now()), func() {
		select {
		case t.wake <- struct{}{}:
		default: // one is pending
		}
	})
	return nil
}

// Close implements probe.Transport. It returns when all attempts have ended.
func (t *Transport) Close() error {
	t.mu.Lock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	t.cancel()
	t.mu.Unlock()
	t.attempts.Wait()
	return nil
}
