// Package fetch opens new connections over TCP and TLS and gets objects over them by HTTP/1.1, for the probes that time it.
package fetch

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/http"
	"bufferbloat/probe"
	"bufferbloat/probe/internal/transact"
)

// MaxObject is the longest object that is fetched, in bytes: what is longer is a load, and no probe.
const MaxObject = 16 << 20

// Target says whom to connect to, and how.
type Target struct {
	Host   host.Host
	At     netip.AddrPort
	Name   string      // of the server, for its certificate and for the Host field
	TLS    *tls.Config // nil for none
	Socket host.Options
}

// NewTarget returns the target of a URL that is at an address, whose port counts where the URL has none. An https one is checked against
// roots, nil for the system's own.
func NewTarget(h host.Host, at netip.AddrPort, u *url.URL, socket host.Options, roots *x509.CertPool) (Target, error) {
	t := Target{Host: h, At: at, Name: u.Host, Socket: socket}
	switch u.Scheme {
	case "http":
	case "https":
		t.TLS = Config(h, u.Hostname(), roots)
	default:
		return t, fmt.Errorf("URL %q: want http:// or https://", u.Redacted())
	}
	switch {
	case !at.IsValid() || at.Port() == 0:
		return t, fmt.Errorf("URL %q: %v is no address and port", u.Redacted(), at)
	case u.Host == "" || u.User != nil:
		return t, fmt.Errorf("URL %q: want a host, and no user", u.Redacted())
	}
	return t, nil
}

// Config returns the settings of a TLS client that wants whole handshakes with name, and checks who answers: a box on the way that answers in the
// server's name would make the path look shorter.
func Config(clock host.Clock, name string, roots *x509.CertPool) *tls.Config {
	return &tls.Config{ServerName: name, RootCAs: roots, Time: clock.Now, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
}

// Path returns the path and query of a URL as a request has it.
func Path(u *url.URL) (string, error) {
	target := u.RequestURI()
	return target, wire.CheckTarget(target)
}

// A StepError says at which step something failed.
type StepError struct {
	Connecting bool // the TCP connection did not stand
	Err        error
}

func (e *StepError) Error() string { return e.Err.Error() }
func (e *StepError) Unwrap() error { return e.Err }

// Failed returns what an error of Connect or Get makes of a probe; see transact.Failed.
func Failed(ctx context.Context, err error) (probe.Reply, bool) {
	var step *StepError
	if errors.As(err, &step) && step.Connecting {
		return transact.FailedToConnect(ctx, err)
	}
	return transact.Failed(ctx, err)
}

// Conn is an open connection. Close it by Shut.
type Conn struct {
	raw    net.Conn
	stream net.Conn
	stop   func() bool
}

// Shut closes the connection, at once and with a reset where the stack can.
func (c *Conn) Shut() {
	c.stop()
	transact.Shut(c.raw)
}

// Connect opens a connection, with its TLS handshake where there is one. When ctx is done, it and all that goes on in it fails.
func (t *Target) Connect(ctx context.Context) (*Conn, error) {
	raw, err := t.Host.DialTCP(ctx, t.At, t.Socket)
	if err != nil {
		return nil, &StepError{true, err}
	}
	c := &Conn{raw: raw, stream: raw, stop: context.AfterFunc(ctx, func() { transact.Shut(raw) })}
	if t.TLS == nil {
		return c, nil
	}
	secure := tls.Client(raw, t.TLS)
	if err := secure.Handshake(); err != nil {
		c.Shut()
		return nil, &StepError{false, fmt.Errorf("TLS handshake with %v: %w", t.At, err)}
	}
	c.stream = secure
	return c, nil
}

// Get fetches the object at path over a new connection and returns its length and when its last byte was read. The response must have the
// status 200 to 299 and be whole.
func (t *Target) Get(ctx context.Context, path string) (n int64, at time.Time, err error) {
	c, err := t.Connect(ctx)
	if err != nil {
		return 0, time.Time{}, err
	}
	defer c.Shut()
	n, err = c.get(t.Name, path)
	at = t.Host.Now()
	if err != nil {
		return n, at, &StepError{false, err}
	}
	return n, at, nil
}

func (c *Conn) get(name, path string) (int64, error) {
	q := wire.Request{Method: "GET", Target: path, Host: name, Agent: "bloat", Close: true}
	if _, err := c.stream.Write(q.AppendTo(nil)); err != nil {
		return 0, fmt.Errorf("send the request for %s: %w", path, err)
	}
	r := bufio.NewReaderSize(c.stream, 16<<10)
	p, err := wire.ReadResponse(r)
	if err != nil {
		return 0, fmt.Errorf("read the response to the request for %s: %w", path, err)
	}
	switch {
	case p.Status < 200 || p.Status > 299:
		return 0, &StatusError{path, p.Status, p.Reason, p.Location}
	}
	n, err := p.Discard(r, MaxObject)
	if err != nil {
		return n, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// StatusError says that the server answered otherwise than with the object.
type StatusError struct {
	Path     string
	Status   int
	Reason   string
	Location string
}

func (e *StatusError) Error() string {
	s := fmt.Sprintf("%s: HTTP status %d", e.Path, e.Status)
	if e.Reason != "" {
		s += fmt.Sprintf(" (%.60q)", e.Reason)
	}
	if e.Location != "" {
		s += fmt.Sprintf("; it is at %.200q: name that", e.Location)
	}
	return s
}
