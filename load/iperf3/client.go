// Package iperf3 loads a path with TCP or UDP flows from and to an iperf3 server.
//
// It speaks to iperf3 3.0 to 3.21 and to our own server. A Test is one control connection with its streams, from which flows are handed
// out; a stock server runs one test at a time. All waiting is bounded: 10 s for a connection and for each answer before the test, 5 s for
// the answer that opens a UDP stream, 30 s for the server to begin and 30 s for its results, which queue behind the data on a full path.
//
// A UDP flow sends at its rate whatever arrives. It tells a path's capacity and shows policers; it does not behave as traffic does that
// heeds congestion, and is no working load.
package iperf3

import (
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load/internal/remote"
)

const (
	connectTimeout = 10 * time.Second
	answerTimeout  = 10 * time.Second
	welcomeTimeout = 5 * time.Second  // for the answer that opens a UDP stream
	beginTimeout   = 30 * time.Second // from the last stream to the start
	resultsTimeout = 30 * time.Second // for each step of the end, on a full path
	goodbye        = 2 * time.Second  // for the server to close its side
	busyPause      = 500 * time.Millisecond
	reopens        = 700 * time.Millisecond // how long a port that is closed may be a stock server's between two tests
)

// Client knows a server. Its methods may be called from several goroutines; its fields must not change once it is used.
type Client struct {
	Host   host.Host
	Server string         // the server as the user named it, for messages; "" where it was given as an address
	Addr   netip.AddrPort // its port
	Socket host.Options   // of all connections; a test's own marks and congestion control are set on its data streams
	Login  *Login         // nil where the server wants none
	// BusyWait is how long a server that runs another test is asked again; 0 means 10 s, less than 0 not at all.
	BusyWait time.Duration
	// CPU returns the CPU time that this program has used, which the protocol tells the server. nil tells it 0.
	CPU func() (user, system time.Duration, err error)
	// Version is told to the server; "" means that of iperf3 3.12, whose ways are ours.
	Version string
}

// Login is who we are to a server that asks.
type Login struct {
	User, Password string
	Key            *rsa.PublicKey // the server's
	Padding        wire.Padding   // a server takes one only: OAEP from 3.17 on, PKCS1 before
	Now            func() time.Time
}

// ServerInfo is what Check learned of a server.
type ServerInfo struct {
	Setup  time.Duration // of the TCP handshake
	Answer time.Duration // from the cookie to the first state
	Addr   netip.AddrPort
}

// Check connects and has the server begin a test that it then gives up, so that a server that cannot be used is known before any load or
// probe is sent. A stock server notes that in its log as an error. An error says what the user can do; it wraps ErrUnreachable, ErrBusy,
// ErrSilent, ErrNotIPerf3 or a wire.ErrorCode, or it is the cause of ctx.
func (c *Client) Check(ctx context.Context) (ServerInfo, error) {
	k, err := c.open(ctx)
	if err != nil {
		return ServerInfo{}, err
	}
	defer k.close()
	return ServerInfo{Setup: k.setup, Answer: k.answer, Addr: k.remote}, nil
}

// control is an open control connection, used from one goroutine at a time, except for close and wake.
type control struct {
	host   host.Host
	conn   net.Conn
	cookie wire.Cookie
	remote netip.AddrPort
	setup  time.Duration // of the TCP handshake
	answer time.Duration
}

func (k *control) close() { _ = k.conn.Close() }

// open connects, and asks a busy server again for a while.
func (c *Client) open(ctx context.Context) (*control, error) {
	wait := c.BusyWait
	if wait == 0 {
		wait = 10 * time.Second
	}
	begin := c.Host.Now()
	for {
		k, err := c.openOnce(ctx)
		if err == nil {
			return k, nil
		}
		now := c.Host.Now()
		// A stock server closes its port for a moment between two tests.
		between := isReset(err) || errors.Is(err, syscall.ECONNREFUSED) && now.Sub(begin) < reopens
		if !errors.Is(err, ErrBusy) && !between || now.Sub(begin)+busyPause > wait {
			if spent := now.Sub(begin); errors.Is(err, ErrBusy) && spent > busyPause {
				err = fmt.Errorf("%w; asked for %v", err, spent.Round(100*time.Millisecond))
			}
			return nil, c.explain(ctx, err)
		}
		if err := c.Host.SleepUntil(ctx, now.Add(busyPause)); err != nil {
			return nil, err
		}
	}
}

// openOnce connects and sends the cookie; it returns once the server wants the parameters.
func (c *Client) openOnce(ctx context.Context) (*control, error) {
	dialing, cancel := host.WithTimeout(ctx, c.Host, connectTimeout)
	defer cancel()
	start := c.Host.Now()
	conn, err := c.Host.DialTCP(dialing, c.Addr, c.Socket)
	if err != nil {
		return nil, c.remote().Unreachable(ErrUnreachable, err, connectTimeout)
	}
	asked := c.Host.Now()
	k := &control{host: c.Host, conn: conn, cookie: wire.NewCookie(), setup: asked.Sub(start), remote: c.Addr}
	if at := host.AddrPortOf(conn.RemoteAddr()); at.IsValid() {
		k.remote = at
	}
	if err := k.greet(ctx); err != nil {
		k.close()
		return nil, err
	}
	k.answer = c.Host.Now().Sub(asked)
	return k, nil
}

// greet sends the cookie and takes the first state.
func (k *control) greet(ctx context.Context) error {
	release := k.wakeBy(ctx, answerTimeout)
	defer release()
	_, werr := k.conn.Write(k.cookie[:]) // a server that is busy has perhaps closed; what it said before is still to be read
	var b [1]byte
	_, err := io.ReadFull(k.conn, b[:])
	switch {
	case err == nil:
	case pump.IsDeadline(err):
		return fmt.Errorf("%w within %v, though it accepted the connection; "+
			"it may hold another test, of which a stock server runs one at a time; or is this not the port of an iperf3 server?", ErrSilent, answerTimeout)
	case werr != nil, errors.Is(err, io.EOF), isReset(err):
		return fmt.Errorf("%w, or it refuses this host: it closed the connection at once; try again later, or another port", ErrBusy)
	default:
		return err
	}
	s, err := wire.ParseState(b[0])
	switch {
	case err != nil:
		return fmt.Errorf("%w: it begins with byte 0x%02x; is the port right?", ErrNotIPerf3, b[0])
	case s == wire.ParamExchange:
		return nil
	case s == wire.AccessDenied:
		return fmt.Errorf("%w; try again later, or another port: public servers have several, often 5200 to 5209", ErrBusy)
	case s == wire.ServerError:
		return wire.ReadError(k.conn)
	}
	return fmt.Errorf("%w: it begins with %v", ErrNotIPerf3, s)
}

// wakeBy bounds what is done on the connection until release is called, by a time from now and by ctx. Release lifts the bound.
func (k *control) wakeBy(ctx context.Context, wait time.Duration) (release func()) {
	_ = k.conn.SetDeadline(k.host.Now().Add(wait)) // it fails only where the next call will
	done := pump.OnDone(ctx, func() { _ = k.conn.SetDeadline(past(k.host)) })
	return func() {
		done()
		_ = k.conn.SetDeadline(time.Time{})
	}
}

// past is a deadline that is over.
func past(clock host.Clock) time.Time { return clock.Now().Add(-time.Second) }

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}

func (c *Client) remote() remote.Server {
	return remote.Server{Protocol: "iperf3", Program: "iperf3 -s", Name: c.Server, Addr: c.Addr}
}

// explain puts the server's name before err, unless it is not the server's fault that ctx is done.
func (c *Client) explain(ctx context.Context, err error) error { return c.remote().Explain(ctx, err) }
