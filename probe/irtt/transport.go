package irtt

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/probe"
)

// Transport is a series of probes of an irtt server, over a session with it. It is a probe.Transport: Send from one goroutine and Receive from another,
// Wake and Close from any. It allocates nothing per probe.
//
// The server knows a client by its address. Where that has changed, because this host has another one or a router on the way gives it another, the session is of
// no use: where sends fail, or nothing was heard for silence, another is opened beside it, from a socket of its own, which takes its place if it
// is still needed then. Remarks tells.
type Transport struct {
	host   host.Host
	target netip.AddrPort
	po     probe.Options
	o      Options
	asked  wire.Params

	sendMu sync.Mutex // guards all that is sent over t.s, and the two below; taken before mu
	out    []byte
	closed bool

	mu       sync.Mutex // guards all below, and is not held while a probe is sent
	s        *session
	deadline time.Time // of Receive
	done     sync.Cond // sending has become noSeq
	sending  uint64    // the probe that is being sent, or noSeq
	next     uint64    // one above the highest Seq that was sent
	sends    []sent    // len is a power of two; probe n, if it is remembered, is sends[n & (len-1)]
	reopening
}

// sent is the stamp of one probe.
type sent struct {
	seq uint64
	at  time.Time
}

const (
	noSeq = math.MaxUint64
	// seqEnd is the number that the protocol never uses.
	seqEnd = math.MaxUint32
	// slack is what a reply may have beyond the agreed length before it counts as truncated. Some servers send more than they announced.
	slack = 128
)

func newTransport(h host.Host, target netip.AddrPort, po probe.Options, o Options, asked wire.Params) *Transport {
	t := &Transport{host: h, target: target, po: po, o: o, asked: asked, sending: noSeq}
	t.out = make([]byte, asked.EchoSize(o.HMAC != nil))
	// A Tracker forgets a probe after probe.Patience; until then the reply needs its send stamp.
	n := 64
	for time.Duration(n)*po.Interval <= probe.Patience {
		n *= 2
	}
	t.sends = make([]sent, n)
	for i := range t.sends {
		t.sends[i].seq = noSeq
	}
	t.done.L = &t.mu
	return t
}

// session returns the session of the moment.
func (t *Transport) session() *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.s
}

// Warning is what this server keeps from the results though it answers, "" if nothing: "the irtt server gives no time stamps".
func (t *Transport) Warning() string { return t.session().warning }

// Send sends probe seq. After the server has ended the session the error wraps ErrSessionEnded.
func (t *Transport) Send(seq uint64) (time.Time, error) {
	if seq >= seqEnd {
		return time.Time{}, fmt.Errorf("irtt probe %d: the protocol counts to %d; start another series", seq, uint64(seqEnd-1))
	}
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	s := t.beginSend(seq)
	if s == nil {
		return time.Time{}, fmt.Errorf("irtt server %v: %w; ask for a longer one, or use a server without that limit", t.target, ErrSessionEnded)
	}
	e := wire.Echo{Flags: s.hmac, Token: s.token, Seq: uint32(seq)}
	e.AppendTo(t.out[:0], s.fields) // the payload behind it stays zero
	if s.signer != nil {
		s.signer.Sign(t.out[:s.size])
	}
	at, err := s.conn.Send(t.out[:s.size], t.target)
	stray := t.endSend(seq, at, err)
	if stray != 0 {
		s.sendClose(stray)
	}
	if errors.Is(err, syscall.EMSGSIZE) {
		return at, fmt.Errorf("send irtt probe of %d bytes: %w; at most %d pass everywhere", s.size, err, MaxSafeLength)
	}
	return at, err
}

// beginSend returns the session to send probe seq over, nil where the server has ended it.
func (t *Transport) beginSend(seq uint64) *session {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.s.over {
		return nil
	}
	if !t.begun {
		if t.begun = true; t.stop != nil {
			t.stop()
		}
	}
	t.sending = seq
	return t.s
}

// endSend keeps the stamp of probe seq and returns a token whose session is to be closed, or 0.
func (t *Transport) endSend(seq uint64, at time.Time, err error) (stray wire.Token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sending = noSeq
	t.done.Broadcast()
	if err == nil {
		t.sends[seq&uint64(len(t.sends)-1)] = sent{seq, at}
		t.next = max(t.next, seq+1)
	}
	t.judge(at, err)
	return t.s.popStray()
}

// Receive waits for the next datagram that concerns a probe; see probe.Transport. A datagram that fails a check is Corrupt, and one that
// carries another session's token, or a sequence number that was not sent, is a Stray. A refusal that cannot be assigned to a
// probe, because too little of it came back, is an error that wraps a *host.RejectedError.
func (t *Transport) Receive() (probe.Reply, error) {
	for {
		s := t.session()
		d, err := s.conn.Receive(s.in)
		if err != nil {
			if errors.Is(err, net.ErrClosed) && t.session() != s {
				continue // another has taken its place
			}
			return probe.Reply{}, err
		}
		if d.Rejected != nil {
			return s.rejected(s.in[:d.N], d.Rejected)
		}
		if reply, ok := t.hear(s, s.in[:d.N], d); ok {
			return reply, nil
		}
	}
}

// hear returns what the datagram b of session s says of a probe, or false where it is an open reply that nobody waits for.
func (t *Transport) hear(s *session, b []byte, d host.Datagram) (probe.Reply, bool) {
	corrupt := probe.Reply{Kind: probe.Corrupt, At: d.At, Stamp: d.Stamp}
	f, err := wire.ParseHeader(b)
	if err != nil || f&wire.FlagReply == 0 || !s.authentic(f, b) {
		return corrupt, true
	}
	if f&wire.FlagOpen != 0 {
		o, err := wire.ParseOpen(b)
		if err != nil {
			return corrupt, true
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		s.lateOpen(o)
		return probe.Reply{}, false
	}
	if len(b) < s.size {
		return corrupt, true
	}
	e, payload, err := wire.ParseEcho(b, s.fields)
	if err != nil {
		return corrupt, true
	}
	if e.Token != s.token {
		return probe.Reply{Kind: probe.Stray, At: d.At, Stamp: d.Stamp}, true
	}
	at, next, ok := t.sentAt(s, uint64(e.Seq), f&wire.FlagClose != 0)
	if uint64(e.Seq) >= next {
		return probe.Reply{Kind: probe.Stray, At: d.At, Stamp: d.Stamp}, true
	}
	r := probe.Reply{Kind: probe.Answer, Seq: uint64(e.Seq), At: d.At, Stamp: d.Stamp, DS: d.DS, HasDS: d.HasDS, Processing: processing(&e)}
	if ok {
		r.Up, r.Down, r.HasOneWay = oneWay(at, d.At, &e)
	}
	if s.marks {
		r.UpDS, r.HasUpDS = wire.Mark(payload)
	}
	r.Verdicts = s.ledger.reply(int64(e.Seq), e.Window, e.Count, int64(next)-1)
	return r, true
}

// sentAt takes in that probe seq was answered and returns its stamp, false where it is not known, and one above the highest probe that was sent. It waits
// while just this probe is being sent: its reply can be here before its stamp. With ends, the session is over.
func (t *Transport) sentAt(s *session, seq uint64, ends bool) (at time.Time, next uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.sending == seq {
		t.done.Wait()
	}
	s.over = s.over || ends
	t.quietSince = time.Time{}
	x := t.sends[seq&uint64(len(t.sends)-1)]
	return x.at, t.next, x.seq == seq
}

// SendStamps says how many of the probes so far have the stack's own send stamp, and the number of all; see host.SendStamper. The request that
// closes the session counts too.
func (t *Transport) SendStamps() (stack, all uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stack, all = t.s.sendStamps()
	return t.earlier[0] + stack, t.earlier[1] + all
}

// Wake makes a waiting Receive, or the next one, return at at on the host's clock.
func (t *Transport) Wake(at time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deadline = at
	return t.s.conn.SetReadDeadline(at)
}

// Close sends one close request, unless the server has ended the session, and closes the socket. Only the first call does anything.
func (t *Transport) Close() error {
	err := t.closeSession()
	t.running.Wait()
	return err
}

func (t *Transport) closeSession() error {
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stop != nil {
		t.stop()
	}
	return t.s.end()
}

// processing returns how long the server held the request, 0 where its stamps do not tell.
func processing(e *wire.Echo) time.Duration {
	switch {
	case e.Receive.Mono != 0 && e.Send.Mono != 0:
		return time.Duration(e.Send.Mono - e.Receive.Mono)
	case e.Receive.Wall != 0 && e.Send.Wall != 0:
		return time.Duration(e.Send.Wall - e.Receive.Wall)
	}
	return 0
}

// oneWay returns the one-way delays of a probe sent at sent and answered at at, or false where the server's stamps do not tell or a wall clock
// was stepped meanwhile. A single stamp of the server's serves for both.
func oneWay(sent, at time.Time, e *wire.Echo) (up, down time.Duration, ok bool) {
	received, answered := e.Receive.Wall, e.Send.Wall
	if e.Midpoint.Wall != 0 {
		received, answered = e.Midpoint.Wall, e.Midpoint.Wall
	}
	if received == 0 {
		received = answered
	}
	if answered == 0 {
		answered = received
	}
	// Before 1970 is no wall clock; this bound also keeps the differences within their type.
	if received <= 0 || answered <= 0 || at.IsZero() {
		return 0, 0, false
	}
	if stepped(time.Duration(at.UnixNano()-sent.UnixNano()), at.Sub(sent)) {
		return 0, 0, false
	}
	if e.Receive.Mono != 0 && e.Send.Mono != 0 && stepped(time.Duration(answered-received), time.Duration(e.Send.Mono-e.Receive.Mono)) {
		return 0, 0, false
	}
	return time.Duration(received - sent.UnixNano()), time.Duration(at.UnixNano() - answered), true
}

// stepped reports whether a wall clock and a monotonic one differ on the length of a time by more than slewing explains, which is at most
// 500 ppm with NTP.
func stepped(wall, mono time.Duration) bool {
	const least = time.Millisecond
	return (wall - mono).Abs() > least+mono.Abs()/1000
}
