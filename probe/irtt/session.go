package irtt

import (
	"hash"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/probe"
)

// session is one that a server has opened, with its socket. What it sends is sent by one goroutine at a time, and what it receives likewise.
type session struct {
	conn    host.PacketConn
	target  netip.AddrPort
	asked   wire.Params
	hmac    wire.Flags // wire.FlagHMAC with a key, otherwise 0
	token   wire.Token
	fields  wire.Fields
	size    int  // bytes of a request, and of a reply at least
	marks   bool // the server tells which mark a request came in with
	warning string
	took    time.Duration // to open it
	opens   [2]uint64     // what the socket's SendStamps said when it was opened

	signer *wire.Authenticator // the sender's

	in      []byte // the receiver's, with the two below
	checker *wire.Authenticator
	ledger  ledger

	over   bool         // the server has ended it; under the Transport's mu, as the next
	strays []wire.Token // sessions that were opened beside it, to be closed
}

// maxOpenReply is the length of the longest open reply: header, token and parameters.
const maxOpenReply = 20 + 8 + 128

func newSession(conn host.PacketConn, target netip.AddrPort, hmac func() hash.Hash, asked wire.Params) *session {
	s := &session{conn: conn, target: target, asked: asked, ledger: newLedger(), strays: make([]wire.Token, 0, maxOpens)}
	s.signer, s.checker = wire.NewAuthenticator(hmac), wire.NewAuthenticator(hmac)
	if s.signer != nil {
		s.hmac = wire.FlagHMAC
	}
	s.in = make([]byte, max(asked.EchoSize(s.hmac != 0), maxOpenReply)+slack)
	return s
}

// begin takes the session that the server opened.
func (s *session) begin(reply wire.Open) {
	s.token = reply.Token
	s.fields = reply.Params.Fields()
	s.size = reply.Params.EchoSize(s.hmac != 0)
	s.marks = reply.Params.Fill == wire.FillDS
	s.warning = warning(s.asked, reply.Params)
	if c, ok := s.conn.(host.SendStamper); ok {
		s.opens[0], s.opens[1] = c.SendStamps()
	}
}

// sendStamps is Transport.SendStamps of one session alone.
func (s *session) sendStamps() (stack, all uint64) {
	if c, ok := s.conn.(host.SendStamper); ok {
		stack, all = c.SendStamps()
	}
	return stack - s.opens[0], all - s.opens[1]
}

// authentic reports whether b has the right HMAC, or none where there is no key.
func (s *session) authentic(f wire.Flags, b []byte) bool {
	if s.checker == nil {
		return f&wire.FlagHMAC == 0
	}
	return s.checker.Verify(b)
}

// lateOpen takes in the answer to an open request that was sent again while the first answer was under way. The other session that it
// may have opened is closed with the next probe.
func (s *session) lateOpen(o wire.Open) {
	if o.Token != s.token && o.Token != 0 && o.Flags&wire.FlagClose == 0 && len(s.strays) < cap(s.strays) {
		s.strays = append(s.strays, o.Token)
	}
}

// popStray takes a token from the list, or returns 0.
func (s *session) popStray() wire.Token {
	n := len(s.strays)
	if n == 0 {
		return 0
	}
	stray := s.strays[n-1]
	s.strays = s.strays[:n-1]
	return stray
}

// rejected assigns an ICMP error to the probe that it quotes.
func (s *session) rejected(quoted []byte, r *host.RejectedError) (probe.Reply, error) {
	e, _, err := wire.ParseEcho(quoted, 0)
	if err != nil || e.Flags != s.hmac || e.Token != s.token {
		return probe.Reply{}, r
	}
	return probe.Reply{Kind: probe.Rejected, Seq: uint64(e.Seq), By: r.By, Err: r.Err}, nil
}

// end closes the session, unless the server has, those beside it, and the socket.
func (s *session) end() error {
	if !s.over {
		s.sendClose(s.token)
	}
	for stray := s.popStray(); stray != 0; stray = s.popStray() {
		s.sendClose(stray)
	}
	return s.conn.Close()
}

// sendClose asks the server to forget the session of token. There is no answer, and nothing to do about an error: a request that
// is lost leaves the session to the server's timeout.
func (s *session) sendClose(token wire.Token) {
	var buf [32]byte
	b := wire.Close{Flags: wire.FlagClose | s.hmac, Token: token}.AppendTo(buf[:0])
	if s.signer != nil {
		s.signer.Sign(b)
	}
	_, _ = s.conn.Send(b, s.target)
}
