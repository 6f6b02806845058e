package irtt

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/probe"
)

// Transport is a session with an irtt server. It is a probe.Transport: Send from one goroutine and Receive from another, Wake and Close from
// any. It allocates nothing per probe.
type Transport struct {
	conn   host.PacketConn
	target netip.AddrPort
	hmac   wire.Flags // wire.FlagHMAC with a key, otherwise 0

	// Of the session, unchanged after Dial.
	token   wire.Token
	fields  wire.Fields
	size    int // bytes of a request, and of a reply at least
	warning string
	opens   [2]uint64 // what SendStamps said when it was opened

	// Receive's own.
	in      []byte
	checker *wire.Authenticator
	ledger  ledger

	sendMu sync.Mutex // guards all that sends: conn.Send and the three below; taken before mu
	out    []byte
	signer *wire.Authenticator
	closed bool

	mu      sync.Mutex // guards all below, and is not held while anything is sent
	done    sync.Cond  // sending has become noSeq
	sending uint64     // the probe that is being sent, or noSeq
	next    uint64     // one above the highest Seq that was sent
	sends   []sent     // len is a power of two; probe n, if it is remembered, is sends[n & (len-1)]
	over    bool       // the server has ended the session
	strays  []wire.Token
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

func newTransport(conn host.PacketConn, target netip.AddrPort, po probe.Options, o Options, asked wire.Params) *Transport {
	t := &Transport{conn: conn, target: target, sending: noSeq, ledger: newLedger()}
	t.signer, t.checker = wire.NewAuthenticator(o.HMAC), wire.NewAuthenticator(o.HMAC)
	if t.signer != nil {
		t.hmac = wire.FlagHMAC
	}
	size := asked.EchoSize(t.hmac != 0)
	t.in, t.out = make([]byte, max(size, maxOpenReply)+slack), make([]byte, size)
	// A Tracker forgets a probe after probe.Patience; until then the reply needs its send stamp.
	n := 64
	for time.Duration(n)*po.Interval <= probe.Patience {
		n *= 2
	}
	t.sends = make([]sent, n)
	for i := range t.sends {
		t.sends[i].seq = noSeq
	}
	t.strays = make([]wire.Token, 0, maxOpens)
	t.done.L = &t.mu
	return t
}

// maxOpenReply is the length of the longest open reply: header, token and parameters.
const maxOpenReply = 20 + 8 + 128

// begin takes the session that the server opened.
func (t *Transport) begin(asked wire.Params, reply wire.Open) {
	t.token = reply.Token
	t.fields = reply.Params.Fields()
	t.size = reply.Params.EchoSize(t.hmac != 0)
	t.warning = warning(asked, reply.Params)
	t.opens[0], t.opens[1] = t.SendStamps()
}

// Warning is what this server keeps from the results though it answers, "" if nothing: "the irtt server gives no time stamps".
func (t *Transport) Warning() string { return t.warning }

// Send sends probe seq. After the server has ended the session the error wraps ErrSessionEnded.
func (t *Transport) Send(seq uint64) (time.Time, error) {
	if seq >= seqEnd {
		return time.Time{}, fmt.Errorf("irtt probe %d: the protocol counts to %d; start another series", seq, uint64(seqEnd-1))
	}
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	if !t.beginSend(seq) {
		return time.Time{}, fmt.Errorf("irtt server %v: %w; ask for a longer one, or use a server without that limit", t.target, ErrSessionEnded)
	}
	e := wire.Echo{Flags: t.hmac, Token: t.token, Seq: uint32(seq)}
	e.AppendTo(t.out[:0], t.fields) // the payload behind it stays zero
	if t.signer != nil {
		t.signer.Sign(t.out[:t.size])
	}
	at, err := t.conn.Send(t.out[:t.size], t.target)
	stray := t.endSend(seq, at, err)
	if stray != 0 {
		t.sendCloseLocked(stray)
	}
	if errors.Is(err, syscall.EMSGSIZE) {
		return at, fmt.Errorf("send irtt probe of %d bytes: %w; at most %d pass everywhere", t.size, err, MaxSafeLength)
	}
	return at, err
}

func (t *Transport) beginSend(seq uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	t.sending = seq
	return true
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
	return t.popStray()
}

// popStray takes a token from the list, or returns 0. t.mu is held.
func (t *Transport) popStray() wire.Token {
	n := len(t.strays)
	if n == 0 {
		return 0
	}
	stray := t.strays[n-1]
	t.strays = t.strays[:n-1]
	return stray
}

// Receive waits for the next datagram that concerns a probe; see probe.Transport. A datagram that fails a check is Corrupt, and one that
// carries another session's token, or a sequence number that was not sent, is a Stray. A refusal that cannot be assigned to a
// probe, because too little of it came back, is an error that wraps a *host.RejectedError.
func (t *Transport) Receive() (probe.Reply, error) {
	for {
		d, err := t.conn.Receive(t.in)
		if err != nil {
			return probe.Reply{}, err
		}
		if d.Rejected != nil {
			return t.rejected(t.in[:d.N], d.Rejected)
		}
		if reply, ok := t.hear(t.in[:d.N], d); ok {
			return reply, nil
		}
	}
}

// hear returns what the datagram b says of a probe, or false where it is an open reply that nobody waits for.
func (t *Transport) hear(b []byte, d host.Datagram) (probe.Reply, bool) {
	corrupt := probe.Reply{Kind: probe.Corrupt, At: d.At, Stamp: d.Stamp}
	f, err := wire.ParseHeader(b)
	if err != nil || f&wire.FlagReply == 0 || !t.authentic(f, b) {
		return corrupt, true
	}
	if f&wire.FlagOpen != 0 {
		o, err := wire.ParseOpen(b)
		if err != nil {
			return corrupt, true
		}
		t.lateOpen(o)
		return probe.Reply{}, false
	}
	if len(b) < t.size {
		return corrupt, true
	}
	e, _, err := wire.ParseEcho(b, t.fields)
	if err != nil {
		return corrupt, true
	}
	at, next, ok := t.sentAt(uint64(e.Seq), f&wire.FlagClose != 0 && e.Token == t.token)
	if e.Token != t.token || uint64(e.Seq) >= next {
		return probe.Reply{Kind: probe.Stray, At: d.At, Stamp: d.Stamp}, true
	}
	r := probe.Reply{Kind: probe.Answer, Seq: uint64(e.Seq), At: d.At, Stamp: d.Stamp, DS: d.DS, HasDS: d.HasDS, Processing: processing(&e)}
	if ok {
		r.Up, r.Down, r.HasOneWay = oneWay(at, d.At, &e)
	}
	r.Verdicts = t.ledger.reply(int64(e.Seq), e.Window, e.Count, int64(next)-1)
	return r, true
}

// sentAt returns the stamp of probe seq, false where it is not known, and one above the highest probe that was sent. It waits
// while just this probe is being sent: its reply can be here before its stamp. With ends, the session is over.
func (t *Transport) sentAt(seq uint64, ends bool) (at time.Time, next uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.sending == seq {
		t.done.Wait()
	}
	t.over = t.over || ends
	s := t.sends[seq&uint64(len(t.sends)-1)]
	return s.at, t.next, s.seq == seq
}

// authentic reports whether b has the right HMAC, or none where there is no key.
func (t *Transport) authentic(f wire.Flags, b []byte) bool {
	if t.checker == nil {
		return f&wire.FlagHMAC == 0
	}
	return t.checker.Verify(b)
}

// lateOpen takes in the answer to an open request that was sent again while the first answer was under way. The other session that it
// may have opened is closed with the next probe.
func (t *Transport) lateOpen(o wire.Open) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.Token != t.token && o.Token != 0 && o.Flags&wire.FlagClose == 0 && len(t.strays) < cap(t.strays) {
		t.strays = append(t.strays, o.Token)
	}
}

// rejected assigns an ICMP error to the probe that it quotes.
func (t *Transport) rejected(quoted []byte, r *host.RejectedError) (probe.Reply, error) {
	e, _, err := wire.ParseEcho(quoted, 0)
	if err != nil || e.Flags != t.hmac || e.Token != t.token {
		return probe.Reply{}, r
	}
	return probe.Reply{Kind: probe.Rejected, Seq: uint64(e.Seq), By: r.By, Err: r.Err}, nil
}

// SendStamps says how many of the probes so far have the stack's own send stamp, and the number of all; see host.SendStamper. The request that
// closes the session counts too.
func (t *Transport) SendStamps() (stack, all uint64) {
	if s, ok := t.conn.(host.SendStamper); ok {
		stack, all = s.SendStamps()
	}
	return stack - t.opens[0], all - t.opens[1]
}

// Wake makes a waiting Receive, or the next one, return at at on the host's clock.
func (t *Transport) Wake(at time.Time) error { return t.conn.SetReadDeadline(at) }

// Close sends one close request, unless the server has ended the session, and closes the socket. Only the first call does anything.
func (t *Transport) Close() error {
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	t.mu.Lock()
	over := t.over
	t.mu.Unlock()
	if !over {
		t.sendCloseLocked(t.token)
	}
	for stray := t.takeStray(); stray != 0; stray = t.takeStray() {
		t.sendCloseLocked(stray)
	}
	return t.conn.Close()
}

func (t *Transport) takeStray() wire.Token {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.popStray()
}

func (t *Transport) sendClose(token wire.Token) {
	t.sendMu.Lock()
	defer t.sendMu.Unlock()
	t.sendCloseLocked(token)
}

// sendCloseLocked asks the server to forget the session of token. There is no answer, and nothing to do about an error: a request that
// is lost leaves the session to the server's timeout. t.sendMu is held.
func (t *Transport) sendCloseLocked(token wire.Token) {
	var buf [32]byte
	b := wire.Close{Flags: wire.FlagClose | t.hmac, Token: token}.AppendTo(buf[:0])
	if t.signer != nil {
		t.signer.Sign(b)
	}
	_, _ = t.conn.Send(b, t.target)
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
