// Package http loads a path with GET and POST over HTTP and HTTPS, from and to any web server: for places where nothing else passes.
//
// Each flow is one connection. A download gets its object again and again, an upload sends one body after the other. A server whose objects are small
// has its connection wait for a round trip between them; how long is in the flow's warning. All waiting is bounded: 7 s for a connection, 10 s for a TLS handshake
// and for the answer that opens the flow.
//
// Whose count it is: a download is counted by our own reads. An upload is what the server's stack has acknowledged, less the heads of the requests; behind TLS, what was
// written less what is not acknowledged, which counts a record's 22 bytes of each 16 KiB under way as lost. On a stack that does not tell what was
// acknowledged, it is the bodies that the server has answered with success.
package http

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/http"
	"bufferbloat/load"
)

const (
	connectTimeout   = 7 * time.Second
	handshakeTimeout = 10 * time.Second
	answerTimeout    = 10 * time.Second
	maxRedirects     = 5
)

// Client knows a URL. Its fields must not change once it is used; its methods may be called from several goroutines.
type Client struct {
	Host   host.Host
	URL    *url.URL     // http or https
	Addr   netip.Addr   // where the URL's host is; the zero Addr has it looked up, as the hosts of redirections are
	Family host.Family  // of what is looked up
	Socket host.Options // of all connections
	Roots  *x509.CertPool
	// AnyCertificate has a server believed whoever it is.
	AnyCertificate bool
	HTTP2          bool   // speak HTTP/2, which wants https, in place of HTTP/1.1
	Agent          string // what we say we are; "" is "bloat"
}

// Errors that a caller may test for.
var (
	ErrUnreachable = errors.New("it can't be reached")
	ErrNotHTTP     = errors.New("it does not speak this version of HTTP")
	ErrRedirected  = fmt.Errorf("more than %d redirections", maxRedirects)
	ErrNoData      = errors.New("no data came")
)

// A StatusError is an answer that refuses what was asked.
type StatusError struct {
	Method, URL string
	Status      int
	Reason      string
}

func (e *StatusError) Error() string {
	advice := ""
	switch e.Status {
	case 401, 403:
		advice = "; the server lets nobody in, or not this program"
	case 404, 410:
		advice = "; name an object that is there"
	case 405, 501:
		advice = "; the server does not take this method: name a URL that takes uploads"
	case 413:
		advice = "; the server takes no body of this size"
	case 429, 503:
		advice = "; the server has enough of us: try later, and less"
	}
	return fmt.Sprintf("%s %s: the server answers %d %.80q%s", e.Method, e.URL, e.Status, e.Reason, advice)
}

// place is what a URL comes to: whom to connect to, and what to ask for.
type place struct {
	url    *url.URL
	addr   netip.AddrPort
	target string // path and query
}

// locate finds the address of a URL.
func (c *Client) locate(ctx context.Context, u *url.URL, known netip.Addr) (place, error) {
	p := place{url: u, target: u.RequestURI()}
	port := uint16(80)
	switch u.Scheme {
	case "http":
	case "https":
		port = 443
	default:
		return p, fmt.Errorf("URL %q: want http:// or https://", u.Redacted())
	}
	if u.Hostname() == "" || u.User != nil {
		return p, fmt.Errorf("URL %q: want a host, and no user", u.Redacted())
	}
	if err := wire.CheckTarget(p.target); err != nil {
		return p, err
	}
	if strings.ContainsFunc(u.Host, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return p, fmt.Errorf("URL %q: its host has a byte that no host has", u.Redacted())
	}
	if c.HTTP2 && u.Scheme != "https" {
		return p, fmt.Errorf("URL %q: HTTP/2 wants https://", u.Redacted())
	}
	if text := u.Port(); text != "" {
		at, err := netip.ParseAddrPort("0.0.0.0:" + text)
		if err != nil || at.Port() == 0 {
			return p, fmt.Errorf("URL %q: want a port from 1 to 65535", u.Redacted())
		}
		port = at.Port()
	}
	if !known.IsValid() {
		list, err := c.Host.Resolve(ctx, u.Hostname(), c.Family)
		if err != nil {
			return p, err
		}
		known = list[0]
	}
	p.addr = netip.AddrPortFrom(known, port)
	return p, nil
}

// ServerInfo is what Check learned of a server.
type ServerInfo struct {
	Setup time.Duration  // of the TCP handshake
	Addr  netip.AddrPort // where redirections led
}

// Check opens a connection as a flow of that direction would, and closes it, so that a server that refuses is known before any load. Errors are as Flow.Open's.
func (c *Client) Check(ctx context.Context, d load.Direction) (ServerInfo, error) {
	f := c.NewFlow(FlowOptions{Direction: d, Length: time.Second})
	if err := f.Open(ctx); err != nil {
		return ServerInfo{}, err
	}
	defer f.Close()
	return ServerInfo{Setup: f.link.setup, Addr: f.link.place.addr}, nil
}

// link is an open connection to a place. It is used from one goroutine at a time; what other goroutines read of it is guarded by its flow.
type link struct {
	client *Client
	place  place
	raw    net.Conn
	stream net.Conn // what HTTP is spoken on: raw, or TLS over it
	reader *bufio.Reader
	secure *secure       // nil for plain HTTP
	setup  time.Duration // of the TCP handshake
	base   uint64        // acknowledged before any byte was sent: the SYN where the stack counts it
	two    *h2           // nil for HTTP/1.1
	heads  uint64        // bytes of heads that were written
}

// secure is what TLS costs.
type secure struct {
	handshake time.Duration
	state     tls.ConnectionState
	inner     *meter // below TLS
	outer     *meter // above it
}

// connect opens a connection, with its TLS handshake where there is one.
func (c *Client) connect(ctx context.Context, p place) (*link, error) {
	dialing, cancel := host.WithTimeout(ctx, c.Host, connectTimeout)
	defer cancel()
	began := c.Host.Now()
	raw, err := c.Host.DialTCP(dialing, p.addr, c.Socket)
	if err != nil {
		if dialing.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer to the connection request within %v: %w", connectTimeout, os.ErrDeadlineExceeded)
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w; does a web server listen there, and on this port?", err)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	l := &link{client: c, place: p, raw: raw, stream: raw, setup: c.Host.Now().Sub(began)}
	if info, err := c.Host.TCPInfo(raw); err == nil {
		l.base = info.BytesAcked
	}
	if p.url.Scheme == "https" {
		if err := l.handshake(ctx); err != nil {
			l.drop()
			return nil, err
		}
	}
	l.reader = bufio.NewReaderSize(l.stream, 16<<10)
	if c.HTTP2 {
		if l.two, err = newH2(l); err != nil {
			l.drop()
			return nil, err
		}
	}
	return l, nil
}

// handshake puts TLS over the connection.
func (l *link) handshake(ctx context.Context) error {
	clock := l.client.Host
	s := &secure{inner: &meter{Conn: l.raw, clock: clock}}
	protocol := "http/1.1"
	if l.client.HTTP2 {
		protocol = "h2"
	}
	conn := tls.Client(s.inner, &tls.Config{ServerName: l.place.url.Hostname(), RootCAs: l.client.Roots, Time: clock.Now, NextProtos: []string{protocol},
		MinVersion: tls.VersionTLS12, InsecureSkipVerify: l.client.AnyCertificate, DynamicRecordSizingDisabled: true})
	defer l.wakeBy(ctx, clock.Now().Add(handshakeTimeout))()
	began := clock.Now()
	if err := conn.Handshake(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var unknown *tls.CertificateVerificationError
		switch {
		case errors.As(err, &unknown):
			err = fmt.Errorf("%w; for a server of your own, name its certificate by --ca FILE, or believe anybody by --insecure", err)
		case pump.IsDeadline(err):
			err = fmt.Errorf("no answer within %v", handshakeTimeout)
		}
		return fmt.Errorf("TLS handshake with %v: %w", l.place.addr, err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; l.client.HTTP2 && got != protocol {
		return fmt.Errorf("%v: %w: HTTP/2 was asked for", l.place.addr, ErrNotHTTP)
	}
	s.handshake, s.state = clock.Now().Sub(began), conn.ConnectionState()
	s.outer = &meter{Conn: conn, clock: clock}
	s.inner.reset()
	l.secure, l.stream = s, s.outer
	return nil
}

// wakeBy bounds all that is done on the connection by a time and by ctx, until release is called.
func (l *link) wakeBy(ctx context.Context, until time.Time) (release func()) {
	_ = l.raw.SetDeadline(until) // it fails only where the next call will
	done := pump.OnDone(ctx, func() { _ = l.raw.SetDeadline(l.client.Host.Now().Add(-time.Second)) })
	return func() {
		done()
		_ = l.raw.SetDeadline(time.Time{})
	}
}

// drop closes the connection; what is queued is thrown away.
func (l *link) drop() {
	if s, ok := l.raw.(interface{ SetLinger(int) error }); ok {
		_ = s.SetLinger(0)
	}
	_ = l.raw.Close()
}

// agent is who we say we are.
func (l *link) agent() string { return cmp.Or(l.client.Agent, "bloat") }

// head is the head of a request of HTTP/1.1.
func (l *link) head(method string, length int64) []byte {
	q := wire.Request{Method: method, Target: l.place.target, Host: l.place.url.Host, Agent: l.agent(), Length: length}
	return q.AppendTo(nil)
}

// closing reports whether the server of HTTP/2 wants no further request on the connection.
func (l *link) closing() bool { return l.two != nil && l.two.closing }

// ask sends the head of a request.
func (l *link) ask(method string, length int64) error {
	if l.two != nil {
		return l.two.ask(method, length)
	}
	_, err := l.stream.Write(l.head(method, length))
	return err
}

// body is the content of a response.
func (l *link) body(p *wire.Response) io.Reader {
	if l.two != nil {
		return l.two
	}
	return p.Body(l.reader)
}

// skip reads the content of a response that is no object.
func (l *link) skip(p *wire.Response) error {
	n, err := io.Copy(io.Discard, io.LimitReader(l.body(p), maxRefusal+1))
	if err == nil && n > maxRefusal {
		err = fmt.Errorf("an answer of more than %d bytes", maxRefusal)
	}
	return err
}

// answer reads the head of a response.
func (l *link) answer() (wire.Response, error) {
	if l.two != nil {
		return l.two.answer()
	}
	p, err := wire.ReadResponse(l.reader)
	var format *wire.FormatError
	if errors.As(err, &format) {
		err = fmt.Errorf("%w: %w", ErrNotHTTP, err)
	}
	return p, err
}

// maxRefusal bounds the body of an answer that is no object, which is read so that the connection can be kept.
const maxRefusal = 64 << 10

// open finds the place that the client's URL leads to for a method, and returns a connection to it that is ready for requests. The server is asked once, without
// a body, so that one that refuses is known before the flow.
func (c *Client) open(ctx context.Context, method string) (*link, error) {
	p, err := c.locate(ctx, c.URL, c.Addr)
	if err != nil {
		return nil, err
	}
	for range maxRedirects + 1 {
		l, err := c.connect(ctx, p)
		if err != nil {
			return nil, err
		}
		keep, next, err := l.tryOut(ctx, method)
		if err == nil && next == nil && keep {
			return l, nil
		}
		l.drop()
		switch {
		case err != nil:
			return nil, err
		case next == nil:
			return c.connect(ctx, p) // the server ends each connection after its answer
		}
		known := netip.Addr{}
		if next.Hostname() == c.URL.Hostname() {
			known = p.addr.Addr()
		}
		if p, err = c.locate(ctx, next, known); err != nil {
			return nil, fmt.Errorf("redirected: %w", err)
		}
	}
	return nil, ErrRedirected
}

// tryOut asks for the object without its body, or sends an empty one. keep says that the connection is ready for the next request; next is where the
// server sends us instead.
func (l *link) tryOut(ctx context.Context, method string) (keep bool, next *url.URL, err error) {
	asked := method
	if method == "GET" {
		asked = "HEAD"
	}
	defer l.wakeBy(ctx, l.client.Host.Now().Add(answerTimeout))()
	l.heads += uint64(len(l.head(asked, 0)))
	if err = l.ask(asked, 0); err != nil {
		return false, nil, l.failed(ctx, err)
	}
	r, err := l.answer()
	if err != nil {
		return false, nil, l.failed(ctx, err)
	}
	if asked == "HEAD" {
		r.Length, r.Chunked = 0, false // it says what a GET would bring
	}
	switch {
	case r.Status/100 == 3 && r.Location != "":
		if method != "GET" && r.Status != 307 && r.Status != 308 {
			return false, nil, fmt.Errorf("%w, which is no place for uploads", l.refused(asked, &r))
		}
		next, err = l.place.url.Parse(r.Location)
		if err != nil {
			return false, nil, fmt.Errorf("redirected to %.80q: %w", r.Location, err)
		}
		if l.place.url.Scheme == "https" && next.Scheme == "http" {
			return false, nil, fmt.Errorf("redirected from https to %.80q, where anybody can listen: name that URL to go there", next.Redacted())
		}
		return false, next, nil
	case asked == "HEAD" && (r.Status == 405 || r.Status == 501): // a GET will tell
	case r.Status/100 != 2:
		return false, nil, l.refused(asked, &r)
	}
	if err := l.skip(&r); err != nil {
		return false, nil, nil // the answer was good; a body that is too long, or breaks off, only costs the connection
	}
	return !r.Close && !l.closing(), nil, nil
}

func (l *link) refused(method string, r *wire.Response) error {
	return &StatusError{Method: method, URL: l.place.url.Redacted(), Status: r.Status, Reason: r.Reason}
}

// failed explains an error on the connection.
func (l *link) failed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case pump.IsDeadline(err):
		return fmt.Errorf("%v accepted the connection and did not answer the request within %v; is this a web server?", l.place.addr, answerTimeout)
	}
	return fmt.Errorf("%v: %w", l.place.addr, err)
}
