// Package lookup asks a DNS resolver for the addresses of a name, one UDP query from a socket of its own at a time (RFC 1035).
package lookup

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"bufferbloat/internal/host"
)

// Port is the UDP port of DNS.
const Port = 53

// maxAnswer is the longest answer over UDP to a query without EDNS (RFC 1035, 4.2.1); what is longer is cut off, and then no answer.
const maxAnswer = 512

// Query is a question that is ready to be asked. It may be used from any goroutine.
type Query struct {
	question dnsmessage.Question
	packet   []byte // with the ID 0
}

// NewQuery returns the question for the IPv4 addresses of name, or with ipv6 for its IPv6 addresses.
func NewQuery(name string, ipv6 bool) (*Query, error) {
	q := &Query{question: dnsmessage.Question{Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
	if ipv6 {
		q.question.Type = dnsmessage.TypeAAAA
	}
	absolute := strings.TrimSuffix(name, ".") + "."
	var err error
	if q.question.Name, err = dnsmessage.NewName(absolute); err == nil && absolute == "." {
		err = errors.New("it is empty")
	}
	if err == nil {
		m := dnsmessage.Message{Header: dnsmessage.Header{RecursionDesired: true}, Questions: []dnsmessage.Question{q.question}}
		q.packet, err = m.Pack()
	}
	if err != nil {
		return nil, fmt.Errorf("look up %q: no name that DNS can carry: %w", name, err)
	}
	return q, nil
}

// String returns the name that is asked for, without its last dot.
func (q *Query) String() string { return strings.TrimSuffix(q.question.Name.String(), ".") }

// What an answer says where it is none that a look-up could go on with. The errors of Ask wrap them.
var (
	ErrTruncated = errors.New("the answer is cut short, and a look-up would go on over TCP; ask for a name with fewer addresses")
	ErrNoAddress = errors.New("the name has no address of that family")
)

// RCodeError is a resolver's word that it has no answer.
type RCodeError struct{ Code dnsmessage.RCode }

func (e *RCodeError) Error() string {
	switch e.Code {
	case dnsmessage.RCodeNameError:
		return "the resolver says that there is no such name (NXDOMAIN)"
	case dnsmessage.RCodeServerFailure:
		return "the resolver failed (SERVFAIL)"
	case dnsmessage.RCodeRefused:
		return "the resolver refused (REFUSED)"
	}
	return fmt.Sprintf("the resolver answered with code %d", e.Code)
}

// Answer is when the answer came.
type Answer struct {
	At    time.Time
	Stamp host.Stamp
	DS    uint8 // the DS byte that it came in with, valid with HasDS
	HasDS bool
}

// Asker says whom to ask, and how.
type Asker struct {
	Network  host.Network
	Clock    host.Clock
	Resolver netip.AddrPort
	Socket   host.Options
	Stray    func() // is told of each packet that is no answer to the query; nil for nobody
}

// Ask sends q once, with a random ID from a socket of its own, and waits for the answer until ctx is done. It calls begun with the stamp of
// the send. Packets that do not fit the query are passed over, as anybody can send them. An error of before begun says that nothing was sent.
func (a *Asker) Ask(ctx context.Context, q *Query, begun func(time.Time)) (Answer, error) {
	o := a.Socket
	o.StampSends = true
	conn, err := a.Network.DialUDP(ctx, a.Resolver, o)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	var id [2]byte
	rand.Read(id[:]) // never fails, crypto/rand says
	packet := append(id[:], q.packet[2:]...)
	at, err := conn.Send(packet, a.Resolver)
	if err != nil {
		return Answer{}, err
	}
	begun(at)
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(a.Clock.Now()) })() // a closed socket needs no waking
	var b [maxAnswer]byte
	for {
		d, err := conn.Receive(b[:])
		switch {
		case ctx.Err() != nil:
			return Answer{}, context.Cause(ctx)
		case err != nil:
			return Answer{}, err
		case d.Rejected != nil:
			return Answer{}, d.Rejected
		}
		fits, err := q.judge(b[:d.N], binary.BigEndian.Uint16(id[:]))
		if fits {
			return Answer{d.At, d.Stamp, d.DS, d.HasDS}, err
		}
		if a.Stray != nil {
			a.Stray()
		}
	}
}

// judge reports whether b is an answer to the query with this ID, and what is wrong with such an answer, nil if it has an address.
func (q *Query) judge(b []byte, id uint16) (fits bool, err error) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || h.ID != id || !h.Response {
		return false, nil
	}
	asked, err := p.Question()
	if err != nil {
		// A server that can't read a query answers without it (RFC 1035, 4.1.1, format error).
		return h.RCode != dnsmessage.RCodeSuccess && errors.Is(err, dnsmessage.ErrSectionDone), &RCodeError{h.RCode}
	}
	if asked.Type != q.question.Type || asked.Class != q.question.Class || !strings.EqualFold(asked.Name.String(), q.question.Name.String()) {
		return false, nil
	}
	switch {
	case h.Truncated:
		return true, ErrTruncated
	case h.RCode != dnsmessage.RCodeSuccess:
		return true, &RCodeError{h.RCode}
	}
	if err := p.SkipAllQuestions(); err != nil {
		return true, fmt.Errorf("read the questions of the answer: %w", err)
	}
	for {
		r, err := p.AnswerHeader()
		switch {
		case errors.Is(err, dnsmessage.ErrSectionDone):
			return true, ErrNoAddress
		case err != nil:
			return true, fmt.Errorf("read the answer: %w", err)
		}
		if err := p.SkipAnswer(); err != nil {
			return true, fmt.Errorf("read the answer: %w", err)
		}
		if r.Type == q.question.Type && r.Class == q.question.Class {
			return true, nil
		}
	}
}
