package iperf3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pace"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
)

// streams are the data streams of a test, by the index of their flows.
type streams struct {
	tcp     []net.Conn
	udp     []host.PacketConn
	pumped  []pump.Outcome // TCP
	broken  []error        // beside it, and for UDP
	paced   []pace.Sent    // UDP, what this end sends
	arrived []arrivals     // UDP, what this end receives
	drained []bool         // TCP uploads, all of which arrived before the server learned of the end
}

// arrivals are when the first and the last datagram of a flow came.
type arrivals struct{ first, last time.Time }

// open opens the streams, one after the other: which is which the server knows by their order.
func (s *streams) connect(ctx context.Context, t *Test) error {
	n := len(t.flows)
	s.pumped, s.broken = make([]pump.Outcome, n), make([]error, n)
	s.paced, s.arrived, s.drained = make([]pace.Sent, n), make([]arrivals, n), make([]bool, n)
	for i, f := range t.flows {
		var err error
		what := "data connection"
		if t.o.UDP {
			what = "UDP stream"
			err = s.openUDP(ctx, t, f)
		} else {
			err = s.openTCP(ctx, t, f)
		}
		if err != nil && ctx.Err() == nil && !isOptionError(err) {
			return &DataError{At: t.remote(), Stream: i + 1, What: what, Err: err}
		}
		if err != nil {
			return fmt.Errorf("%s %d: %w", what, i+1, err)
		}
	}
	return nil
}

// isOptionError tells a socket option that this host does not have from a connection that was not made.
func isOptionError(err error) bool {
	return errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission)
}

// socket are the settings of the data streams.
func (t *Test) socket() host.Options {
	o := t.client.Socket
	if t.o.DSCP != 0 {
		o.DSCP = t.o.DSCP
	}
	if t.o.CongestionControl != "" && !t.o.UDP {
		o.CongestionControl = t.o.CongestionControl
	}
	if t.o.Window > 0 {
		o.SendBuffer, o.ReceiveBuffer = t.o.Window, t.o.Window
	}
	return o
}

func (s *streams) openTCP(ctx context.Context, t *Test, f *Flow) error {
	h := t.client.Host
	dialing, cancel := host.WithTimeout(ctx, h, connectTimeout)
	defer cancel()
	start := h.Now()
	conn, err := h.DialTCP(dialing, t.remote(), t.socket())
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v: %w", connectTimeout, err)
		}
		return err
	}
	s.tcp = append(s.tcp, conn)
	setup := h.Now().Sub(start)
	if t.o.KernelPacing && t.o.Rate > 0 && f.direction == load.Upload {
		tuner, ok := h.(host.Tuner)
		if !ok {
			return fmt.Errorf("pacing by the stack: %w", errors.ErrUnsupported)
		}
		if err := tuner.Tune(conn, host.Tuning{PacingRate: t.o.Rate}); err != nil {
			return err
		}
	}
	_ = conn.SetWriteDeadline(h.Now().Add(connectTimeout))
	if _, err := conn.Write(t.ctl.cookie[:]); err != nil {
		return err
	}
	f.connected(conn, setup)
	return nil
}

// udpBuffer is asked for where this end receives: what comes while this program waits for its CPU is not to be taken for loss.
const udpBuffer = 4 << 20

func (s *streams) openUDP(ctx context.Context, t *Test, f *Flow) error {
	h := t.client.Host
	o := t.socket()
	if f.direction == load.Download && o.ReceiveBuffer == 0 {
		o.ReceiveBuffer = udpBuffer
	}
	conn, err := h.DialUDP(ctx, t.remote(), o)
	if err != nil {
		return err
	}
	s.udp = append(s.udp, conn)
	start := h.Now()
	question := wire.Hello(t.ctl.cookie)
	if _, err := conn.Send(question[:], netip.AddrPort{}); err != nil {
		return err
	}
	if err := awaitWelcome(ctx, h, conn); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.linked = h.Now()
	f.setup = f.linked.Sub(start)
	return nil
}

// awaitWelcome waits for the answer that opens a stream. Data of a download may overtake it.
func awaitWelcome(ctx context.Context, h host.Host, conn host.PacketConn) error {
	_ = conn.SetReadDeadline(h.Now().Add(welcomeTimeout))
	release := pump.OnDone(ctx, func() { _ = conn.SetReadDeadline(past(h)) })
	defer release()
	b := make([]byte, 1<<16)
	for range 1000 {
		d, err := conn.Receive(b)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("no answer to the datagram that opens it within %v: it or its answer was lost, or UDP is blocked; try again", welcomeTimeout)
		case err != nil:
			return err
		case d.Rejected != nil:
			return d.Rejected
		case wire.IsWelcome(b[:d.N]):
			return nil
		}
	}
	return fmt.Errorf("%w: no answer to the datagram that opens it among a thousand others", ErrNotIPerf3)
}

// close closes what is open.
func (r *running) close() {
	for _, f := range r.flows {
		f.end(true)
	}
	for _, c := range r.tcp {
		_ = c.Close() // also one whose flow does not have it yet
	}
	for _, c := range r.udp {
		_ = c.Close()
	}
}

// pump starts the data phase of all flows in goroutines of the group.
func (r *running) pump(phase context.Context, group *sync.WaitGroup) {
	until := r.until()
	for i, f := range r.flows {
		switch {
		case r.o.UDP && f.direction == load.Download:
			f.mu.Lock()
			f.track.Every, f.track.Begin = spanLength, 0
			f.mu.Unlock()
			group.Go(func() { r.broken[i] = r.receiveDatagrams(phase, i, f, until) })
		case r.o.UDP:
			group.Go(func() { r.paced[i], r.broken[i] = r.sendDatagrams(phase, i, f, until) })
		case f.direction == load.Download:
			group.Go(func() {
				r.pumped[i], r.broken[i] = pump.Receive(phase, r.host, r.tcp[i], &f.received, pump.Options{Until: until})
			})
		default:
			b := pace.Blocks{Size: r.o.Size, Limit: r.o.share(), Burst: r.o.Burst, Until: until}
			if !r.o.KernelPacing {
				b.Rate = r.o.Rate
			}
			group.Go(func() { r.pumped[i], r.broken[i] = pace.Send(phase, r.host, r.tcp[i], &f.sent, b) })
		}
	}
}

// spanLength is the length of the intervals that this end keeps of what it receives.
const spanLength = time.Second

// receiveDatagrams counts what comes until a time, or until phase is done.
func (r *running) receiveDatagrams(phase context.Context, i int, f *Flow, until time.Time) error {
	conn := r.udp[i]
	_ = conn.SetReadDeadline(until)
	release := pump.OnDone(phase, func() { _ = conn.SetReadDeadline(past(r.host)) })
	defer release()
	b := make([]byte, 1<<16)
	for failures := 0; ; {
		d, err := conn.Receive(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			// An error of the stack concerns what we sent, which was one datagram; a socket that gives nothing else is of no use.
			if failures++; failures > 100 || errors.Is(err, net.ErrClosed) {
				return err
			}
			continue
		case d.Rejected != nil || !d.At.Before(until):
			continue
		}
		failures = 0
		head, err := wire.ParseDatagram(b[:d.N], r.o.WideCounters)
		if err != nil {
			continue // not of this stream
		}
		f.mu.Lock()
		if f.track.Take(head, d.N, d.At.Sub(r.began), r.o.WideCounters) {
			if r.arrived[i].first.IsZero() {
				r.arrived[i].first = d.At
			}
			r.arrived[i].last = d.At
		}
		f.mu.Unlock()
	}
}

// sendDatagrams sends on a schedule until a time, or until phase is done.
func (r *running) sendDatagrams(phase context.Context, i int, f *Flow, until time.Time) (pace.Sent, error) {
	conn := r.udp[i]
	b := append([]byte(nil), pump.Payload()[:r.o.Size]...)
	return pace.SendDatagrams(phase, r.host, pace.Datagrams{Size: r.o.Size, Rate: r.o.Rate, Burst: r.o.Burst, Limit: (r.o.share() + uint64(r.o.Size) - 1) / uint64(r.o.Size), Until: until},
		func(seq uint64, now time.Time) error {
			wire.Datagram{Sent: now.Sub(r.began), Seq: seq}.Put(b, r.o.WideCounters)
			if _, err := conn.Send(b, netip.AddrPort{}); err != nil {
				return err
			}
			f.mu.Lock()
			f.sending = seq
			f.mu.Unlock()
			return nil
		})
}

// awaitAcks waits until uploads have arrived whole, since the server counts only what came before it learns of the end: not longer than a grace
// after the last acknowledgement, nor than 30 s in all.
func (r *running) awaitAcks(ctx context.Context) {
	if r.o.UDP || r.o.Uploads == 0 {
		return
	}
	start := r.host.Now()
	for now := start; now.Before(start.Add(resultsTimeout)); now = r.host.Now() {
		waiting, pause := false, lookEvery
		for i, f := range r.flows {
			if f.direction != load.Upload {
				continue
			}
			f.look()
			f.mu.Lock()
			r.drained[i] = f.acks && f.acked >= r.pumped[i].Bytes
			grace := 3*max(f.rtt, f.setup) + leastGrace
			if last := laterOf(f.ackAt, start); f.acks && !r.drained[i] && now.Before(last.Add(grace)) {
				waiting = true
			}
			pause = min(pause, max(time.Millisecond, f.setup/8))
			f.mu.Unlock()
		}
		if !waiting {
			// For the server's program to read what its stack has.
			_ = r.host.SleepUntil(ctx, now.Add(readingTime))
			return
		}
		if r.host.SleepUntil(ctx, now.Add(pause)) != nil {
			return
		}
	}
}

const (
	leastGrace  = 2 * time.Second
	readingTime = 20 * time.Millisecond
)

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// drain goes on reading downloads after their end, since a server with full pipes could not answer.
func (r *running) drain(ctx context.Context, group *sync.WaitGroup) {
	for i, f := range r.flows {
		if f.direction == load.Download && !r.o.UDP {
			group.Go(func() {
				var none pump.Counter
				_, _ = pump.Receive(ctx, r.host, r.tcp[i], &none, pump.Options{})
			})
		}
	}
}
