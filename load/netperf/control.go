package netperf

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
)

// control is an open control connection. It is used from one goroutine at a time, except for close and wake.
type control struct {
	host     host.Host
	conn     net.Conn
	remote   netip.AddrPort
	setup    time.Duration // of the TCP handshake
	begin    []byte        // what goes out with the first request: the passphrase record, or nothing
	asked    time.Time     // when the last request left, and
	answered time.Time     // when its answer was complete
}

// connect opens the control connection. A passphrase goes out together with the first request, since a server does not answer it.
func (c *Client) connect(ctx context.Context) (*control, error) {
	var begin []byte
	if c.Passphrase != "" {
		var err error
		if begin, err = wire.AppendPassphrase(nil, c.Passphrase); err != nil {
			return nil, c.explain(ctx, err)
		}
	}
	dialing, cancel := host.WithTimeout(ctx, c.Host, connectTimeout)
	defer cancel()
	start := c.Host.Now()
	conn, err := c.Host.DialTCP(dialing, c.Addr, c.Socket)
	if err != nil {
		return nil, c.explain(ctx, c.remote().Unreachable(ErrUnreachable, err, connectTimeout))
	}
	k := &control{host: c.Host, conn: conn, setup: c.Host.Now().Sub(start), begin: begin, remote: c.Addr}
	if at := host.AddrPortOf(conn.RemoteAddr()); at.IsValid() {
		k.remote = at
	}
	return k, nil
}

// ask sends a request and returns the answer, one record. An error wraps ErrClosed, ErrSilent, ErrTooOld or ErrNotNetserver.
func (k *control) ask(ctx context.Context, request []byte, wait time.Duration) ([]byte, error) {
	until := k.host.Now().Add(wait)
	release := k.wakeBy(ctx, until)
	defer func() {
		release()
		_ = k.conn.SetDeadline(time.Time{}) // what comes next may take as long as the test
	}()
	k.begin = nil
	k.asked = k.host.Now()
	if _, err := k.conn.Write(request); err != nil {
		if pump.IsDeadline(err) {
			return nil, ErrSilent
		}
		return nil, ErrClosed
	}
	record := make([]byte, wire.Size)
	n, err := k.read(ctx, record, until)
	k.answered = k.host.Now()
	switch {
	case err == nil && isText(record):
		return nil, fmt.Errorf("%w: it answers in text, %q; is the port right?", ErrNotNetserver, record[:typeAndError])
	case err == nil:
		return record, nil
	case n > 0 && n%wire.OldSize == 0:
		return nil, fmt.Errorf("%w: it answers in records of %d bytes; update it", ErrTooOld, wire.OldSize)
	case n > 0:
		return nil, fmt.Errorf("%w: it answered %d bytes where a record has %d; is the port right?", ErrNotNetserver, n, wire.Size)
	case pump.IsDeadline(err):
		return nil, fmt.Errorf("%w within %v, though it accepted the connection; is this the port of a netperf server?",
			ErrSilent, wait.Round(time.Second/10))
	}
	return nil, ErrClosed
}

// typeAndError is the length of a record's first two words.
const typeAndError = 8

// isText reports whether a record begins with printable ASCII. The type of an answer is not to be relied on, but no type with an error
// number is all text: that number would be above 500 million.
func isText(record []byte) bool {
	for _, c := range record[:typeAndError] {
		if (c < ' ' || c > '~') && c != '\r' && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// read fills record, by until or once nothing has come for a while in the middle of it.
func (k *control) read(ctx context.Context, record []byte, until time.Time) (int, error) {
	n := 0
	for {
		m, err := k.conn.Read(record[n:])
		n += m
		if n == len(record) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if soon := k.host.Now().Add(quiet); soon.Before(until) {
			if err := k.conn.SetDeadline(soon); err != nil {
				return n, err
			}
		}
		// The deadline may just have undone the wake-up of ctx.
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
	}
}

// wakeBy bounds what is done on the connection until release is called, by a time and by ctx.
func (k *control) wakeBy(ctx context.Context, until time.Time) (release func()) {
	_ = k.conn.SetDeadline(until) // it fails only where the next call will
	return pump.OnDone(ctx, func() { _ = k.conn.SetDeadline(past(k.host)) })
}

// bye half-closes the connection and waits for the server to do the same. How it does that is no matter: the answers are in.
func (k *control) bye(ctx context.Context) {
	w, ok := k.conn.(interface{ CloseWrite() error })
	if !ok || w.CloseWrite() != nil {
		return
	}
	release := k.wakeBy(ctx, k.host.Now().Add(goodbye))
	defer release()
	_, _ = io.CopyN(io.Discard, k.conn, 16*wire.Size)
}

func (k *control) close() { _ = k.conn.Close() }

// past is a deadline that is over.
func past(clock host.Clock) time.Time { return clock.Now().Add(-time.Second) }
