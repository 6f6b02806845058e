package irtt

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/probe"
)

// Dial opens a session with the irtt server at target and returns a Transport for it. It sends the open request again as Options says, and
// gives up after Options.OpenWait, as soon as the server's host refuses the port, or when ctx is done, with its cause. The
// server's mark is asked to be that of the socket, po.Socket.DSCP.
//
// The error wraps ErrNoAnswer, ErrRefused or a *RestrictedError where it is about that.
func Dial(ctx context.Context, h host.Host, target netip.AddrPort, po probe.Options, o Options) (*Transport, error) {
	po, err := po.WithDefaults()
	if err != nil {
		return nil, err
	}
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	asked := wire.Params{
		Version:  wire.Version,
		Duration: o.Duration,
		Interval: po.Interval,
		Stats:    wire.CountStats | wire.WindowStats,
		Stamps:   wire.BothStamps,
		Clock:    wire.BothClocks,
		DS:       po.Socket.DSCP.Byte(),
		Length:   o.Length,
	}
	if po.Socket.DSCP != 0 || po.Socket.ECN != host.NotECT {
		asked.Length = 0
		asked.Fill, asked.Length = wire.FillDS, max(o.Length, asked.EchoSize(o.HMAC != nil)+wire.MarkSize)
	}
	if asked.Duration == 0 {
		asked.Duration = wire.Endless
	}
	po.Socket.StampSends = true
	t := newTransport(h, target, po, o, asked)
	if t.s, err = t.connect(ctx); err != nil {
		return nil, err
	}
	t.start(t.keep)
	return t, nil
}

// connect opens a socket and a session over it.
func (t *Transport) connect(ctx context.Context) (*session, error) {
	conn, err := t.host.DialUDP(ctx, t.target, t.po.Socket)
	if err != nil {
		return nil, fmt.Errorf("open UDP socket to irtt server %v: %w", t.target, err)
	}
	s := newSession(conn, t.target, t.o.HMAC, t.asked)
	began := t.host.Now()
	if err := s.open(ctx, t.host, t.o); err != nil {
		conn.Close()
		return nil, fmt.Errorf("irtt server %v: %w", t.target, err)
	}
	s.took = t.host.Now().Sub(began)
	return s, nil
}

// open does the handshake: it waits for the first valid open reply and takes or refuses what it grants.
func (s *session) open(ctx context.Context, clock host.Clock, o Options) error {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(woken); s.conn.SetReadDeadline(clock.Now()) })
	reply, err := s.handshake(ctx, clock, o)
	if !stop() {
		<-woken
		if err == nil {
			s.sendClose(reply.Token)
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return err
	}
	switch {
	case reply.Flags&wire.FlagClose != 0:
		return fmt.Errorf("%w (close flag in its open reply)", ErrRefused)
	case reply.Token == 0:
		return fmt.Errorf("%w (token 0 in its open reply)", ErrRefused)
	}
	if err := checkGranted(s.asked, reply.Params, o.Length); err != nil {
		s.sendClose(reply.Token)
		return err
	}
	s.begin(reply)
	return s.conn.SetReadDeadline(time.Time{})
}

// handshake sends the open request on schedule and returns the first valid reply.
func (s *session) handshake(ctx context.Context, clock host.Clock, o Options) (wire.Open, error) {
	request := wire.Open{Flags: wire.FlagOpen | s.hmac, Params: s.asked}.AppendTo(nil)
	if s.signer != nil {
		s.signer.Sign(request)
	}
	start := clock.Now()
	var failure opening
	for i, at := range o.Opens {
		if err := clock.SleepUntil(ctx, start.Add(at)); err != nil {
			return wire.Open{}, err
		}
		if _, err := s.conn.Send(request, s.target); err != nil {
			if stop := failure.note(err); stop != nil {
				return wire.Open{}, stop
			}
		}
		until := start.Add(o.OpenWait)
		if i+1 < len(o.Opens) {
			until = start.Add(o.Opens[i+1])
		}
		reply, err := s.awaitOpen(ctx, until, &failure)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return reply, err
		}
	}
	return wire.Open{}, failure.err(o.OpenWait)
}

// opening is what went wrong while an open reply was awaited.
type opening struct {
	last    error // of the socket
	errors  int   // of the socket, ICMP errors apart
	corrupt int   // datagrams that failed a check
}

// maxErrors is how many errors of the socket are taken before it is held for broken.
const maxErrors = 16

// note keeps an error of the socket, and returns one where waiting on is pointless: the time is up, nobody listens there, or the
// socket is broken.
func (f *opening) note(err error) error {
	var rejected *host.RejectedError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w; no irtt server runs there", ErrNoAnswer, err)
	}
	f.last = err
	if !errors.As(err, &rejected) {
		f.errors++
	}
	if f.errors > maxErrors {
		return fmt.Errorf("wait for the open reply: %w", err)
	}
	return nil
}

func (f *opening) err(wait time.Duration) error {
	switch {
	case f.last != nil:
		return fmt.Errorf("%w in %v; the last error was: %w", ErrNoAnswer, wait, f.last)
	case f.corrupt > 0:
		return fmt.Errorf("%w in %v, but %d datagrams that failed a check; does the server want an HMAC key, which bloat's probes do not have?", ErrNoAnswer, wait, f.corrupt)
	}
	return fmt.Errorf("%w in %v; is an irtt server running there, does a firewall drop UDP, does the server want an HMAC key, which these probes do not have?", ErrNoAnswer, wait)
}

// awaitOpen returns the first valid open reply, os.ErrDeadlineExceeded at until, the cause of ctx when it is done, or an error that makes
// waiting pointless.
func (s *session) awaitOpen(ctx context.Context, until time.Time, failure *opening) (wire.Open, error) {
	if err := s.conn.SetReadDeadline(until); err != nil {
		return wire.Open{}, err
	}
	// ctx may have been done before the deadline was set, which then undid its wake-up.
	for ctx.Err() == nil {
		d, err := s.conn.Receive(s.in)
		if err == nil && d.Rejected == nil {
			if reply, ok := s.parseOpen(s.in[:d.N], failure); ok {
				return reply, nil
			}
			continue
		}
		if err == nil {
			err = d.Rejected
		}
		if stop := failure.note(err); stop != nil && ctx.Err() == nil {
			return wire.Open{}, stop
		}
	}
	return wire.Open{}, context.Cause(ctx)
}

// parseOpen returns the open reply in b, or false if it is none.
func (s *session) parseOpen(b []byte, failure *opening) (wire.Open, bool) {
	f, err := wire.ParseHeader(b)
	if err != nil || f&wire.FlagReply == 0 || !s.authentic(f, b) {
		failure.corrupt++
		return wire.Open{}, false
	}
	if f&wire.FlagOpen == 0 {
		return wire.Open{}, false // an echo reply to an earlier user of this port
	}
	o, err := wire.ParseOpen(b)
	if err != nil {
		failure.corrupt++
		return wire.Open{}, false
	}
	return o, true
}
