// Package irtt is a server of the irtt protocol, for irtt clients and for our own probes.
//
// It answers no datagram that failed a check, no reply (so two servers cannot keep each other busy), and no echo request that is
// shorter than its answer. A client, which is an address and a port, has one session: with the first echo request of another its earlier ones are
// forgotten. An open request is answered to an address that has not proved to be the sender's own: with one datagram,
// which is longer than the request by the 8 bytes of the token, as with the stock server, and by up to 4 more where a raised
// interval takes more bytes; what would be longer is not answered.
package irtt

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/internal/nonce"
	wire "bufferbloat/internal/wire/irtt"
)

// DefaultPort is the UDP port of irtt servers.
const DefaultPort = wire.Port

// Options are a server's limits and settings. The zero value serves a lab or a public place with care. Clients are told of the limits
// on what they ask for; a request beyond the others is not answered.
type Options struct {
	HMAC        func() hash.Hash // what every datagram must be signed by, as of package hmacmd5; nil for none
	MaxDuration time.Duration    // of a session; 0 means 1 h
	MinInterval time.Duration    // between a session's echo requests; 0 means 10 ms
	// Burst is how many echo requests may come at once before MinInterval holds. A path that stood still lets loose what was sent meanwhile,
	// and what is not answered then looks lost on its way. 0 means 100, a second's worth at the default MinInterval.
	Burst       int
	MaxLength   int // of echoes, bytes of UDP payload, at least 76; 0 means 1472, an Ethernet frame's worth over IPv4
	MaxSessions int // at a time; 0 means 1024
	// MaxSessionsPerAddress is how many of them an IPv4 address may have, or the addresses that share the first 64 bits of an IPv6 one; 0 means 128.
	MaxSessionsPerAddress int
	OpensPerSecond        int           // open requests answered, of all clients together; 0 means 50
	Timeout               time.Duration // without an echo request, after which a session is forgotten; 0 means 60 s
	NoDSCP                bool          // replies carry no mark, and clients are told so
	// Random is where tokens come from; nil means the system. Whoever can guess a token can, from the address that it belongs to, take
	// over the session.
	Random io.Reader
	// Log is told of sessions and of what was ignored, one line each, at most 10 a second. It is called from one goroutine at a time and should
	// return soon. nil logs nothing.
	Log func(line string)
	// Ready is called once when all addresses are listened at, with their ports. nil is fine.
	Ready func(at []netip.AddrPort)
}

// Check returns an error that names the field that is out of range, nil where a server can be run with o.
func (o Options) Check() error {
	_, err := o.withDefaults()
	return err
}

// withDefaults returns a copy of o with its zero fields filled in, or an error that names the field that is out of range.
func (o Options) withDefaults() (Options, error) {
	def(&o.MaxDuration, time.Hour)
	def(&o.MinInterval, 10*time.Millisecond)
	def(&o.Burst, 100)
	def(&o.MaxLength, 1500-20-8)
	def(&o.MaxSessions, 1024)
	def(&o.MaxSessionsPerAddress, 128)
	def(&o.OpensPerSecond, 50)
	def(&o.Timeout, time.Minute)
	if o.Random == nil {
		o.Random = nonce.Reader
	}
	switch {
	case o.MaxDuration < 0:
		return o, fmt.Errorf("irtt server's longest duration %v: want more than 0", o.MaxDuration)
	case o.Timeout < time.Second:
		return o, fmt.Errorf("irtt server's session timeout %v: want at least 1 s", o.Timeout)
	case o.MinInterval < 0 || o.MinInterval > o.Timeout/timeoutShare:
		return o, fmt.Errorf("irtt server's least interval %v: want more than 0 and at most a quarter of the session timeout, %v",
			o.MinInterval, o.Timeout)
	case o.MaxLength < minMaxLength || o.MaxLength > 65507:
		return o, fmt.Errorf("irtt server's greatest length %d: want %d to 65507 bytes", o.MaxLength, minMaxLength)
	case o.Burst < 1 || o.MaxSessions < 1 || o.MaxSessionsPerAddress < 1 || o.OpensPerSecond < 1:
		return o, fmt.Errorf("irtt server's burst %d, sessions %d, sessions of an address %d, open requests per second %d: want at least 1 each",
			o.Burst, o.MaxSessions, o.MaxSessionsPerAddress, o.OpensPerSecond)
	}
	return o, nil
}

const (
	minMaxLength = 76           // an echo with all fields and an HMAC
	maxOpenReply = 20 + 8 + 128 // header, token and parameters
)

func def[T int | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

// Server serves irtt. Its methods do not change it, and it may serve on several hosts at once.
type Server struct {
	Options Options
}

// Serve listens at the given UDP addresses and answers until ctx is done, and then returns nil. It returns an error, with
// nothing left open, if it cannot listen at one of them or a socket breaks. All that it started is gone when it returns.
func (s *Server) Serve(ctx context.Context, h host.Host, at ...netip.AddrPort) error {
	o, err := s.Options.withDefaults()
	if err != nil {
		return err
	}
	if len(at) == 0 {
		return errors.New("irtt server has no address to listen at; name one")
	}
	v, err := newService(h, o)
	if err != nil {
		return err
	}
	conns, err := listen(ctx, h, at)
	if err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	closed := make(chan struct{})
	context.AfterFunc(inner, func() { defer close(closed); closeAll(conns) })
	if o.Ready != nil {
		o.Ready(addresses(conns))
	}
	var loops sync.WaitGroup
	for _, c := range conns {
		loops.Go(func() { cancel(v.serve(inner, c)) })
	}
	loops.Wait()
	<-closed
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(inner)
}

func listen(ctx context.Context, h host.Host, at []netip.AddrPort) ([]host.PacketConn, error) {
	var conns []host.PacketConn
	for _, a := range at {
		c, err := h.ListenUDP(ctx, a, host.Options{})
		if err != nil {
			closeAll(conns)
			return nil, fmt.Errorf("irtt server: listen at UDP %v: %w", a, err)
		}
		conns = append(conns, c)
	}
	return conns, nil
}

func closeAll(conns []host.PacketConn) {
	for _, c := range conns {
		c.Close()
	}
}

func addresses(conns []host.PacketConn) []netip.AddrPort {
	var at []netip.AddrPort
	for _, c := range conns {
		at = append(at, c.LocalAddr())
	}
	return at
}

const (
	// A socket that returns more than brokenErrors errors in a row is broken. After the first few there is a pause between them.
	brokenErrors  = 100
	patientErrors = 10
	errorPause    = 20 * time.Millisecond
)

// serve answers what comes to one socket until that is closed or broken.
func (v *service) serve(ctx context.Context, conn host.PacketConn) error {
	marker, _ := conn.(host.Marker)
	room := max(v.o.MaxLength, maxOpenReply)
	in, out := make([]byte, room+1), make([]byte, 0, room)
	for failures := 0; ; {
		d, err := conn.Receive(in)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return err
			}
			if _, ok := errors.AsType[*host.RejectedError](err); ok {
				continue // a client went away; its session times out
			}
			if failures++; failures > brokenErrors {
				return fmt.Errorf("irtt server: receive at %v: %w", conn.LocalAddr(), err)
			}
			if failures > patientErrors {
				_ = v.clock.SleepUntil(ctx, v.clock.Now().Add(errorPause)) // an error means that ctx is done: seen above
			}
			continue
		}
		failures = 0
		if d.Rejected != nil || d.Truncated {
			continue
		}
		reply, mark := v.handle(in[:d.N], d, marker != nil, out)
		if reply == nil {
			continue
		}
		if err := send(conn, marker, reply, d, mark); err != nil {
			v.sendError(d.From, err)
		}
	}
}

// send answers d from the address that it was sent to.
func send(conn host.PacketConn, marker host.Marker, b []byte, d host.Datagram, mark dscp.CodePoint) error {
	var err error
	switch {
	case mark != 0:
		_, err = marker.SendMarked(b, d.To, d.From, mark)
	case d.To.IsValid():
		_, err = conn.SendFrom(b, d.To, d.From)
	default:
		_, err = conn.Send(b, d.From)
	}
	return err
}
