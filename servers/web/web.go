// Package web is a small HTTP/1.1 server for the lab: objects of any size that a client names, over TCP or TLS.
package web

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	randv2 "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/http"
	"bufferbloat/servers/internal/listen"
)

// The ports of HTTP and HTTPS.
const (
	Port    = 80
	TLSPort = 443
)

// Limits of Options where they are 0, and of what a client may ask for.
const (
	MaxConnections = 1024
	MaxTime        = time.Hour
	MaxObject      = 1 << 40 // bytes, of a GET or a POST
	rootObject     = 1000    // bytes of what "/" is
	idleTime       = 10 * time.Second
)

// Options are the settings of a Server. The zero value is useful.
type Options struct {
	TLS            *tls.Config   // nil for plain HTTP; SelfSigned makes one
	MaxConnections int           // at the same time; who has rested longest makes room for more. 0 means MaxConnections
	MaxTime        time.Duration // that a connection may last; 0 means MaxTime
	// Ready is called once when all addresses are listened at, with their ports. nil is fine.
	Ready func(at []netip.AddrPort)
}

// Server answers GET and HEAD of / with 1000 bytes and of /bytes/N with N bytes that do not compress, POST and PUT of any path by taking the
// body in, and everything else with 404 or 405. A connection is kept for further requests unless the client wants it closed, and ends after 10
// s in which neither side moved a byte.
type Server struct {
	Options Options
}

// Serve answers until ctx is done, and then returns nil. It fails where it can't listen. All connections have ended when it returns.
func (s *Server) Serve(ctx context.Context, h host.Host, at ...netip.AddrPort) error {
	v := &service{options: s.Options, host: h, block: block()}
	if v.options.MaxConnections == 0 {
		v.options.MaxConnections = MaxConnections
	}
	if v.options.MaxTime == 0 {
		v.options.MaxTime = MaxTime
	}
	defer v.serving.Wait()
	return listen.Serve(ctx, "web server", at, s.Options.Ready, func(ctx context.Context, a netip.AddrPort) (listen.Opened, error) {
		l, err := h.ListenTCP(ctx, a, host.Options{})
		if err != nil {
			return listen.Opened{}, err
		}
		accept := func(ctx context.Context) error { return v.accept(ctx, l) }
		return listen.Opened{At: host.AddrPortOf(l.Addr()), Loops: []func(context.Context) error{accept}, Close: l.Close}, nil
	})
}

// block returns bytes that no link compresses.
func block() []byte {
	b := make([]byte, 16<<10)                    // with a slow link's idle time in mind, and as much as a TLS record holds
	_, _ = randv2.NewChaCha8([32]byte{}).Read(b) // never fails
	return b
}

// service is one Serve.
type service struct {
	options Options
	host    host.Host
	block   []byte
	serving sync.WaitGroup

	mu      sync.Mutex
	open    int       // connections
	resting []*client // those of them that have no request under way, who has rested longest first
}

// client is a connection. service.mu guards out.
type client struct {
	net.Conn
	out bool // it made room for another
}

func (v *service) accept(ctx context.Context, l net.Listener) error {
	a := listen.Acceptor{Clock: v.host, Start: func(c net.Conn) { v.start(ctx, c) }, MakeRoom: func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.makeRoom()
	}}
	return a.Accept(ctx, l)
}

// start serves a connection in a goroutine of its own. Where there are too many, who has rested longest makes room.
func (v *service) start(ctx context.Context, conn net.Conn) {
	c := &client{Conn: conn}
	v.mu.Lock()
	room := v.open < v.options.MaxConnections || v.makeRoom()
	if room {
		v.open++
		v.resting = append(v.resting, c)
	}
	v.mu.Unlock()
	if !room {
		conn.Close()
		return
	}
	v.serving.Go(func() {
		defer v.leave(c)
		v.serve(ctx, c)
	})
}

// makeRoom closes the connection that has rested longest, and reports whether there was one. v.mu is held.
func (v *service) makeRoom() bool {
	if len(v.resting) == 0 {
		return false
	}
	c := v.resting[0]
	v.resting = v.resting[1:]
	v.open--
	c.out = true
	c.Close()
	return true
}

// works takes a connection off those that rest.
func (v *service) works(c *client) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := slices.Index(v.resting, c); i >= 0 {
		v.resting = slices.Delete(v.resting, i, i+1)
	}
}

// rests puts a connection among those that rest, unless it made room.
func (v *service) rests(c *client) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !c.out {
		v.resting = append(v.resting, c)
	}
}

// leave forgets a connection that is over.
func (v *service) leave(c *client) {
	v.works(c)
	v.mu.Lock()
	defer v.mu.Unlock()
	if !c.out {
		v.open--
	}
}

// serve answers the requests of one connection. What goes wrong in it is the client's business, who sees how it ends.
func (v *service) serve(ctx context.Context, c *client) {
	ctx, cancel := host.WithTimeout(ctx, v.host, v.options.MaxTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	defer c.Close()
	var stream net.Conn = &patient{Conn: c.Conn, host: v.host}
	if v.options.TLS != nil {
		t := tls.Server(stream, v.options.TLS)
		if t.Handshake() != nil {
			return
		}
		defer t.CloseWrite() // before the connection closes
		stream = t
	}
	r := bufio.NewReader(stream)
	for ctx.Err() == nil {
		q, err := wire.ReadRequest(r)
		v.works(c)
		var format *wire.FormatError
		if errors.As(err, &format) {
			bad := wire.Response{Status: 400, Reason: "Bad Request", Close: true}
			_, _ = stream.Write(bad.AppendTo(nil, ""))
		}
		if err != nil || v.answer(stream, r, &q) != nil || q.Close {
			return
		}
		v.rests(c)
	}
}

// answer answers one request; an error ends the connection.
func (v *service) answer(w io.Writer, r *bufio.Reader, q *wire.Request) error {
	p := wire.Response{Status: 200, Reason: "OK", Close: q.Close}
	body := int64(0)
	if q.Length > MaxObject {
		p.Status, p.Reason, p.Close = 413, "Content Too Large", true
	} else if _, err := io.CopyN(io.Discard, r, q.Length); err != nil {
		return err
	}
	switch {
	case p.Status != 200:
	case q.Method == "POST" || q.Method == "PUT":
	case q.Method != "GET" && q.Method != "HEAD":
		p.Status, p.Reason = 405, "Method Not Allowed"
	default:
		if n, ok := size(q.Target); ok {
			body = n
		} else {
			p.Status, p.Reason = 404, "Not Found"
		}
	}
	p.Length = body
	if q.Method == "HEAD" {
		body = 0
	}
	// The first bytes go out with the head, as other servers do: a small object is then one segment, and one TLS record.
	head := p.AppendTo(make([]byte, 0, 4<<10), "application/octet-stream")
	first := min(body, int64(cap(head)-len(head)))
	if _, err := w.Write(append(head, v.block[:first]...)); err != nil {
		return err
	}
	for left := body - first; left > 0; {
		n, err := w.Write(v.block[:min(left, int64(len(v.block)))])
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	if p.Close {
		q.Close = true
	}
	return nil
}

// size returns the length of the object at target, or false where there is none.
func size(target string) (int64, bool) {
	path, _, _ := strings.Cut(target, "?")
	if path == "/" {
		return rootObject, true
	}
	digits, ok := strings.CutPrefix(path, "/bytes/")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	return int64(n), err == nil && n <= MaxObject
}

// patient is a connection whose every read and write has idleTime to move a byte.
type patient struct {
	net.Conn
	host host.Host
}

func (p *patient) Read(b []byte) (int, error) {
	_ = p.SetReadDeadline(p.host.Now().Add(idleTime)) // where it fails, so does Read
	return p.Conn.Read(b)
}

// Write goes on for as long as the client acknowledges what was written before: a stack makes room for more only when a good part of its buffer is free, which a
// slow client takes long for.
func (p *patient) Write(b []byte) (total int, err error) {
	for acked, known := p.acked(); ; {
		_ = p.SetWriteDeadline(p.host.Now().Add(idleTime))
		n, err := p.Conn.Write(b[total:])
		if total += n; err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return total, err
		}
		now, _ := p.acked()
		if n == 0 && (!known || now == acked) {
			return total, err
		}
		acked = now
	}
}

func (p *patient) acked() (uint64, bool) {
	info, err := p.host.TCPInfo(p.Conn)
	return info.BytesAcked, err == nil && info.HasBytesAcked
}

// SelfSigned returns the settings of a TLS server with a new key and a certificate of its own for names, which may be addresses, and the roots
// by which a client knows it. The certificate is valid by clock, which the server keeps to.
func SelfSigned(clock host.Clock, names ...string) (*tls.Config, *x509.CertPool, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	now := clock.Now()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bloat lab"}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true, IsCA: true}
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil {
			c.IPAddresses = append(c.IPAddresses, a.AsSlice())
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read the certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}}, Time: clock.Now, MinVersion: tls.VersionTLS12}, roots, nil
}
