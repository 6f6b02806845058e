package irtt

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
)

const (
	// timeoutShare is the share of the session timeout that an interval may take.
	timeoutShare = 4
	// timeoutGrace is what the session timeout and overtime what the duration are exceeded by before a client is cut off.
	timeoutGrace = 5 * time.Second
	overtime     = 2 * time.Second
	// unprovenTimeout is how long a session is kept that has not sent an echo request: longer than the stock client waits between two
	// open requests, 8 s. Forged open requests can hold OpensPerSecond x unprovenTimeout sessions at most.
	unprovenTimeout = 15 * time.Second
	sweepInterval   = time.Second
	// maxGrowth is how much longer than an open request its answer may be: the token, and a raised interval.
	maxGrowth = 8 + 4
	// fillRandom is the fill of the protocol that a client may ask for, beside wire.FillDS.
	fillRandom = "rand"
	filler     = "irtt"
)

// service is what all sockets of a Serve share: the sessions.
type service struct {
	clock  host.Clock
	o      Options
	origin time.Time // of the monotonic stamps
	hmac   wire.Flags

	mu       sync.Mutex // guards all below
	auth     *wire.Authenticator
	sessions map[wire.Token]*session
	unproven map[netip.AddrPort]*session // those without an echo request, the latest of each client
	proven   map[netip.AddrPort]*session // those with one, of which a client has one
	held     map[netip.Addr]int          // how many sessions each address has, see holder
	opens    bucket
	swept    time.Time
	fill     *rand.ChaCha8
	log      logger
}

func newService(clock host.Clock, o Options) (*service, error) {
	var seed [32]byte
	if _, err := io.ReadFull(o.Random, seed[:]); err != nil {
		return nil, fmt.Errorf("irtt server: seed of the random fill: %w", err)
	}
	now := clock.Now()
	v := &service{
		clock:    clock,
		o:        o,
		origin:   now.Add(-time.Second), // keeps the stamps of what came in before this moment positive
		auth:     wire.NewAuthenticator(o.HMAC),
		sessions: make(map[wire.Token]*session),
		unproven: make(map[netip.AddrPort]*session),
		proven:   make(map[netip.AddrPort]*session),
		held:     make(map[netip.Addr]int),
		opens:    newBucket(float64(o.OpensPerSecond)),
		swept:    now,
		fill:     rand.NewChaCha8(seed),
		log:      newLogger(o.Log),
	}
	if v.auth != nil {
		v.hmac = wire.FlagHMAC
	}
	return v, nil
}

// handle takes in one datagram and returns the answer with the mark to send it with, or nil for none. The answer is in out's memory, which has
// room for the longest. marks says that the socket can mark.
func (v *service) handle(b []byte, d host.Datagram, marks bool, out []byte) (reply []byte, mark dscp.CodePoint) {
	if d.At.IsZero() {
		d.At = v.clock.Now()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sweep(d.At)
	f, err := wire.ParseHeader(b)
	switch {
	case err != nil:
		v.ignore(d, "datagram", err.Error())
	case !v.authentic(f, b):
		v.ignore(d, "datagram", "HMAC missing, wrong or not wanted")
	case f&wire.FlagReply != 0:
		v.ignore(d, "datagram", "it is a reply")
	case f&wire.FlagOpen != 0:
		return v.open(b, d, marks, out), 0
	case f&wire.FlagClose != 0:
		v.close(b, d)
	default:
		return v.echo(b, d, out)
	}
	return nil, 0
}

func (v *service) authentic(f wire.Flags, b []byte) bool {
	if v.auth == nil {
		return f&wire.FlagHMAC == 0
	}
	return v.auth.Verify(b)
}

// open answers an open request, or ignores it.
func (v *service) open(b []byte, d host.Datagram, marks bool, out []byte) []byte {
	o, err := wire.ParseOpen(b)
	switch {
	case err != nil:
		v.ignore(d, "open request", err.Error())
		return nil
	case o.Params.Stamps != wire.NoStamps && o.Params.Clock == 0:
		v.ignore(d, "open request", "it asks for time stamps by no clock")
		return nil
	case v.busy(d, o.Params):
		v.ignore(d, "open request", "its session is going on") // it came twice, and a second answer would end a stock client's test
		return nil
	case !v.opens.take(d.At, time.Second/time.Duration(v.o.OpensPerSecond)):
		v.ignore(d, "open request", "too many of them; raise the limit, or wait")
		return nil
	}
	reply := wire.Open{Flags: o.Flags | wire.FlagReply, Params: v.restrict(o.Params, marks, d.HasDS)}
	if size := len(reply.AppendTo(out[:0])); size > len(b)+maxGrowth {
		v.ignore(d, "open request", "its answer would be too long")
		return nil
	}
	if o.Flags&wire.FlagClose == 0 {
		s := v.session(d, o.Params, reply.Params)
		if s == nil {
			return nil
		}
		reply.Token = s.token
	}
	return v.sign(reply.AppendTo(out[:0]))
}

// restrict returns the parameters that the server grants. A fill that is not allowed is left out, which means the server's own; naming that one,
// as the stock server does, could make the answer longer. told says that the socket tells which marks come in.
func (v *service) restrict(p wire.Params, marks, told bool) wire.Params {
	p.Version = wire.Version
	p.Duration = min(p.Duration, v.o.MaxDuration)
	p.Interval = min(max(p.Interval, v.o.MinInterval), v.o.Timeout/timeoutShare)
	p.Length = min(p.Length, v.o.MaxLength)
	if v.o.NoDSCP || !marks {
		p.DS = 0
	}
	if p.Fill != fillRandom && !(p.Fill == wire.FillDS && told) {
		p.Fill = ""
	}
	return p
}

// busy reports whether a client that asks for a session is in the midst of just that one.
func (v *service) busy(d host.Datagram, asked wire.Params) bool {
	const least = time.Second
	s := v.proven[d.From]
	return s != nil && s.asked == asked && d.At.Sub(s.last) < max(least, 2*asked.Interval)
}

// holder is the address that a client's sessions are counted for: who has an IPv6 address has, as a rule, all that share its first 64 bits.
func holder(client netip.AddrPort) netip.Addr {
	a := client.Addr()
	if host.FamilyOf(a) == host.IPv4 {
		return a.Unmap()
	}
	p, _ := a.WithZone("").Prefix(64) // fails on bad lengths alone
	return p.Addr()
}

// session returns the session that an open request belongs to, or nil if there is none to be had. An open request that comes again before the
// first echo request belongs to the session that it opened first.
func (v *service) session(d host.Datagram, asked, granted wire.Params) *session {
	if s := v.unproven[d.From]; s != nil && s.asked == asked {
		s.last = d.At
		return s
	}
	if len(v.sessions) >= v.o.MaxSessions {
		v.ignore(d, "open request", "as many sessions are open as the limit allows")
		return nil
	}
	if v.held[holder(d.From)] >= v.o.MaxSessionsPerAddress {
		v.ignore(d, "open request", "its address has as many sessions as one may have")
		return nil
	}
	token, err := v.newToken()
	if err != nil {
		v.ignore(d, "open request", err.Error())
		return nil
	}
	s := newSession(token, d, asked, granted, v.hmac != 0, v.o.Burst)
	v.sessions[token], v.unproven[d.From] = s, s
	v.held[holder(d.From)]++
	if v.log.allow(d.At) {
		v.log.print(fmt.Sprintf("irtt: %v opened a session: %v every %v, %d bytes, DS byte %#02x",
			d.From, granted.Duration, granted.Interval, s.size, granted.DS))
	}
	return s
}

func (v *service) newToken() (wire.Token, error) {
	var b [8]byte
	for range 8 {
		if _, err := io.ReadFull(v.o.Random, b[:]); err != nil {
			return 0, fmt.Errorf("no random token: %w", err)
		}
		if t := wire.Token(binary.LittleEndian.Uint64(b[:])); t != 0 && v.sessions[t] == nil {
			return t, nil
		}
	}
	return 0, fmt.Errorf("no random token: the source repeats itself")
}

// find returns the live session of a datagram from its own client, or nil.
func (v *service) find(token wire.Token, d host.Datagram) *session {
	s := v.sessions[token]
	if s == nil || s.client != d.From || v.stale(s, d.At) {
		return nil
	}
	return s
}

func (v *service) close(b []byte, d host.Datagram) {
	c, err := wire.ParseClose(b)
	if err != nil {
		v.ignore(d, "close request", err.Error())
		return
	}
	s := v.find(c.Token, d)
	if s == nil {
		v.ignore(d, "close request", "it belongs to no session")
		return
	}
	v.forget(s, d.At, "closed by the client")
}

// echo answers an echo request, or ignores it.
func (v *service) echo(b []byte, d host.Datagram, out []byte) ([]byte, dscp.CodePoint) {
	e, _, err := wire.ParseEcho(b, 0)
	if err != nil {
		v.ignore(d, "echo request", err.Error())
		return nil, 0
	}
	s := v.find(e.Token, d)
	switch {
	case s == nil:
		v.ignore(d, "echo request", "it belongs to no session")
		return nil, 0
	case len(b) > v.o.MaxLength:
		v.ignore(d, "echo request", "it is too long")
		return nil, 0
	case len(b) < s.size:
		v.ignore(d, "echo request", "it is shorter than agreed")
		return nil, 0
	case e.Seq == math.MaxUint32:
		v.ignore(d, "echo request", "its sequence number is none")
		return nil, 0
	}
	s.last = later(s.last, d.At)
	if !s.bucket.take(d.At, v.o.MinInterval) {
		v.ignore(d, "echo request", "they come too fast")
		return nil, 0
	}
	if !s.proven {
		s.proven, s.first = true, d.At
		if v.unproven[s.client] == s {
			delete(v.unproven, s.client)
		}
		if earlier := v.proven[s.client]; earlier != nil {
			v.forget(earlier, d.At, "ended: its client has begun another")
		}
		v.proven[s.client] = s
	}
	reply := wire.Echo{Flags: wire.FlagReply | v.hmac, Token: s.token, Seq: e.Seq}
	reply.Window = s.received(e.Seq)
	reply.Count = s.count
	if limit := s.limit(v.o.MaxDuration); d.At.Sub(s.first) > limit+overtime {
		reply.Flags |= wire.FlagClose
		v.forget(s, d.At, "ended: its time was over")
	}
	return v.encode(&reply, s, d, out), s.mark
}

// encode finishes a reply. The send stamp is taken as late as an HMAC over it allows.
func (v *service) encode(e *wire.Echo, s *session, d host.Datagram, out []byte) []byte {
	now := v.clock.Now()
	e.Receive, e.Send = v.stamp(d.At), v.stamp(now)
	e.Midpoint = v.stamp(d.At.Add(now.Sub(d.At) / 2))
	b := e.AppendTo(out[:0], s.fields)
	payload := b[len(b):s.size]
	switch s.fill {
	case fillRandom:
		_, _ = v.fill.Read(payload) // never an error
	case wire.FillDS:
		wire.FillMark(payload, d.DS, d.HasDS)
	default:
		for n := range payload {
			payload[n] = filler[n%len(filler)]
		}
	}
	return v.sign(b[:s.size])
}

// stamp returns a time by both clocks, never 0: that means absent.
func (v *service) stamp(t time.Time) wire.Time {
	s := wire.Time{Wall: t.UnixNano(), Mono: int64(t.Sub(v.origin))}
	if s.Wall == 0 {
		s.Wall = 1
	}
	if s.Mono == 0 {
		s.Mono = 1
	}
	return s
}

func (v *service) sign(b []byte) []byte {
	if v.auth != nil {
		v.auth.Sign(b)
	}
	return b
}

// sweep forgets the stale sessions, once in a while: the clients of those that are left behind send nothing that could do it.
func (v *service) sweep(now time.Time) {
	if now.Sub(v.swept) < sweepInterval {
		return
	}
	v.swept = now
	for _, s := range v.sessions {
		if v.stale(s, now) {
			v.forget(s, now, "forgotten: nothing came any more")
		}
	}
}

func (v *service) stale(s *session, now time.Time) bool {
	timeout := v.o.Timeout + timeoutGrace
	if !s.proven {
		timeout = min(timeout, unprovenTimeout)
	}
	return now.Sub(s.last) > timeout
}

func (v *service) forget(s *session, now time.Time, why string) {
	delete(v.sessions, s.token)
	if v.held[holder(s.client)]--; v.held[holder(s.client)] == 0 {
		delete(v.held, holder(s.client))
	}
	if v.proven[s.client] == s {
		delete(v.proven, s.client)
	}
	if v.unproven[s.client] == s {
		delete(v.unproven, s.client)
	}
	if v.log.allow(now) {
		v.log.print(fmt.Sprintf("irtt: session of %v %s; %d echo requests", s.client, why, s.count))
	}
}

// ignore logs that a datagram was not answered.
func (v *service) ignore(d host.Datagram, what, why string) {
	if v.log.allow(d.At) {
		v.log.print(fmt.Sprintf("irtt: %s from %v ignored: %s", what, d.From, why))
	}
}

func (v *service) sendError(to netip.AddrPort, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.log.allow(v.clock.Now()) {
		v.log.print(fmt.Sprintf("irtt: answer to %v: %v", to, err))
	}
}
