package iperf3

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
)

// Why a test ends before the client ends it.
var (
	errClientGone  = errors.New("the client is gone")
	errClientEnded = errors.New("the client gave up")
)

// session is one control connection. Its goroutine is the only one that writes to it; while streams are there, a second one reads.
type session struct {
	*service
	conn   *arrival
	peer   netip.AddrPort
	cookie wire.Cookie
	p      wire.Params
	moved  uint64          // payload, both ways
	rate   bitrate.Bitrate // at which this end sends, of each stream; 0 is no limit

	ended chan struct{} // closed when the client has ended the test
}

// refusal is why a test is not run: the number for the client, the words for the log.
type refusal struct {
	code wire.ErrorCode
	why  string
}

func (r *refusal) Error() string { return r.why }

func refuse(code wire.ErrorCode, format string, args ...any) *refusal {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// run serves the connection to its end, and returns when nothing of it is left.
func (s *session) run(ctx context.Context) {
	defer s.conn.Close()
	release := sync.OnceFunc(pump.OnDone(ctx, func() { _ = s.conn.SetReadDeadline(s.host.Now().Add(-time.Second)) }))
	defer release()
	if !s.send(wire.ParamExchange.Byte()) {
		return
	}
	no, ok := s.read(ctx)
	if !ok {
		return
	}
	if no == nil {
		no = s.check()
	}
	if no == nil {
		no = s.authenticate(ctx)
	}
	if no != nil {
		s.refuse(no)
		return
	}
	if err := s.clients.TakeTest(s.peer.Addr()); err != nil {
		s.log.Printf("iperf3: %v refused: %v", s.peer, err)
		s.say(wire.AccessDenied.Byte()) // "busy", and to be tried later, is the only word for it
		return
	}
	defer func() { s.clients.GiveTest(s.peer.Addr(), s.moved) }()
	s.belongs(s.conn)
	s.ended = make(chan struct{})
	t := &test{session: s}
	defer t.close() // behind the last word: a client that finds its streams reset first says that, and not what it was told
	no, begun := t.attend(ctx)
	if no != nil && !begun {
		s.log.Printf("iperf3: %v: no test: %s", s.peer, no.why)
	}
	if no != nil && no.code != 0 {
		t.endStreams()
		s.say(wire.AppendError(nil, no.code, 0)...)
	}
	if ctx.Err() != nil {
		release() // it would undo the wait for the client's end, behind the last word
		t.endStreams()
		s.say(wire.ServerTerminate.Byte())
	}
}

// send writes to the client.
func (s *session) send(b ...byte) bool {
	_ = s.conn.SetWriteDeadline(s.host.Now().Add(writeTimeout))
	_, err := s.conn.Write(b)
	return err == nil
}

// expect bounds the wait for what the client sends next, and by ctx.
func (s *session) expect(ctx context.Context, wait time.Duration) {
	_ = s.conn.SetReadDeadline(s.host.Now().Add(wait))
	if ctx.Err() != nil { // which may have been before the deadline was set here
		_ = s.conn.SetReadDeadline(s.host.Now().Add(-time.Second))
	}
}

// read reads the parameters. It returns false where the connection ended, or is over, before they came.
func (s *session) read(ctx context.Context) (*refusal, bool) {
	s.expect(ctx, paramsTimeout)
	b, err := wire.ReadMessage(s.conn, wire.MaxParams)
	var format *wire.FormatError
	switch {
	case errors.As(err, &format):
		return refuse(wire.BadParams, "%v", err), true
	case err != nil:
		return nil, false
	}
	if s.p, err = wire.ParseParams(b); err != nil {
		return refuse(wire.BadParams, "%v", err), true
	}
	return nil, true
}

// check says what this server does not do.
func (s *session) check() *refusal {
	p := &s.p
	client, server := p.Sends()
	length := p.Omit + p.Time
	switch {
	case p.Protocol == wire.SCTP:
		return refuse(wire.BadParams, "SCTP, which this server does not speak")
	case p.Parallel < 1 || p.Parallel > s.o.MaxStreams:
		return refuse(wire.BadStreams, "%d streams, where 1 to %d are allowed", p.Parallel, s.o.MaxStreams)
	case p.Omit > 10*time.Minute:
		return refuse(wire.BadOmit, "%v to omit, where at most 10m are allowed", p.Omit)
	case length > s.o.MaxLength:
		return refuse(s.tooLong(), "a test of %v, where at most %v is allowed", length, s.o.MaxLength)
	case p.Protocol == wire.UDP && p.Size != 0 && (p.Size < wire.MinDatagram || p.Size > wire.MaxDatagram):
		return refuse(wire.BadUDPBlockSize, "datagrams of %d bytes, where %d to %d are allowed", p.Size, wire.MinDatagram, wire.MaxDatagram)
	case p.Size > 1<<20:
		return refuse(wire.BadBlockSize, "blocks of %d bytes, where at most %d are allowed", p.Size, 1<<20)
	case p.Window > maxWindow:
		return refuse(wire.BadWindow, "buffers of %d bytes, where at most %d are allowed", p.Window, maxWindow)
	case p.TOS > 255:
		return refuse(wire.BadTOS, "DS byte %d", p.TOS)
	case p.Burst > 1000:
		return refuse(wire.BadBurst, "a burst of %d, where at most 1000 are allowed", p.Burst)
	case p.MSS > 0 && server > 0:
		return refuse(123, "an MSS of %d for what this server sends, which it cannot set", p.MSS)
	}
	if p.Size == 0 {
		p.Size = 128 << 10
		if p.Protocol == wire.UDP {
			p.Size = 1460
		}
	}
	return s.checkRate(max(client, server))
}

// tooLong is the code for a test that is too long, as far as the client knows it.
func (s *session) tooLong() wire.ErrorCode {
	major, rest, _ := strings.Cut(s.p.ClientVersion, ".")
	digits := strings.IndexFunc(rest+".", func(r rune) bool { return r < '0' || r > '9' })
	minor, err := strconv.Atoi(rest[:digits])
	if major == "3" && err == nil && minor < 20 {
		return wire.BadDuration
	}
	return wire.DurationLimit
}

// checkRate judges what all streams of a direction ask for together, and chooses the rate at which this end sends.
func (s *session) checkRate(streams int) *refusal {
	p := &s.p
	asked := p.Rate
	if p.Protocol == wire.TCP && p.KernelRate > 0 && (asked == 0 || p.KernelRate < asked) {
		asked = p.KernelRate
	}
	limit, udp := s.o.MaxRate, p.Protocol == wire.UDP
	if udp {
		limit = s.o.MaxUDPRate
	}
	if asked > 1<<50 {
		return refuse(wire.RateLimit, "%v for each stream", asked)
	}
	all := asked * bitrate.Bitrate(streams)
	switch {
	case limit > 0 && all > limit:
		return refuse(wire.RateLimit, "%v in all, where at most %v is allowed", all, limit)
	case asked == 0 && (s.o.MaxRate > 0 || udp && s.udpNamed && !p.Reverse):
		return refuse(wire.RateLimit, "no rate is named, and this server allows at most %v (-b)", limit)
	}
	s.rate = p.Rate
	if udp && asked == 0 {
		s.rate = max(1, limit/bitrate.Bitrate(streams))
	}
	return nil
}

// authenticate looks at the login, if there is to be one. All failures look alike.
func (s *session) authenticate(ctx context.Context) *refusal {
	l := s.o.Login
	if l == nil {
		return nil
	}
	now := l.Now
	if now == nil {
		now = s.host.Now
	}
	why := "no login"
	if s.p.AuthToken != "" {
		login, err := wire.ParseToken(s.p.AuthToken, l.Key, l.Padding)
		hash := wire.PasswordHash(login.User, login.Password)
		known, ok := l.Users[login.User]
		right := subtle.ConstantTimeCompare([]byte(hash), []byte(known)) == 1
		skew := now().Sub(login.At)
		switch {
		case err != nil:
			why = fmt.Sprintf("its login cannot be read with this key and %v padding", l.Padding)
		case !ok || !right:
			why = "user or password is wrong"
		case skew < -clockSkew-time.Second || skew > clockSkew+time.Second:
			why = fmt.Sprintf("its clock is %v off, where %v are allowed", skew.Abs().Round(time.Second), clockSkew)
		default:
			return nil
		}
	}
	_ = s.host.SleepUntil(ctx, s.host.Now().Add(guessDelay)) // it bounds the guesses
	return refuse(wire.NotAuthorised, "%s", why)
}

// refuse tells the client the number and the log the words.
func (s *session) refuse(r *refusal) {
	s.log.Printf("iperf3: %v refused: %s", s.peer, r.why)
	s.say(wire.AppendError(nil, r.code, 0)...)
}

// say writes the last that there is to say, and gives it time to reach the client: closing with unread input would reset the connection and
// destroy it.
func (s *session) say(b ...byte) {
	if !s.send(b...) {
		return
	}
	if w, ok := s.conn.Conn.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
	_ = s.conn.SetReadDeadline(s.host.Now().Add(drainTimeout))
	_, _ = io.CopyN(io.Discard, s.conn, 1<<20)
}

// watch reads what the client says while the test runs, until it ends it, and gives it up where the client does, or is gone.
func (s *session) watch(giveUp context.CancelCauseFunc) {
	var b [1]byte
	_, err := io.ReadFull(s.conn, b[:])
	switch state := wire.State(int8(b[0])); {
	case err != nil:
		giveUp(errClientGone)
	case state == wire.TestEnd:
		close(s.ended)
	case state == wire.ClientTerminate:
		giveUp(errClientEnded)
	default:
		giveUp(fmt.Errorf("the client says 0x%02x in the middle of the test", b[0]))
	}
}
