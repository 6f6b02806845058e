// Package icmp probes with ICMP and ICMPv6 echo, as ping does.
//
// The library github.com/prometheus-community/pro-bing was meant to do this, and its version 0.9.1 cannot be wrapped into a probe
// of this house:
//
//   - The send time travels in the packet, as wall-clock time, and RTT is what comes back subtracted from the wall clock: a clock
//     step, or a peer that alters eight bytes, makes any RTT. (A test here shows it.)
//   - It is told of no loss: Count is compared with replies too, so a series with one lost packet ends only by its timeout, and
//     the entry of the lost packet stays in memory. (A test here shows it.) There is no late reply, only a reply.
//   - The receive stamp is taken after the packet went through a channel to the goroutine that also sends. With four bulk flows in
//     the process its RTTs were 5 ms too high in the median and 14 ms in one of ten, where the kernel's stamp was 0.02 ms off.
//   - It sends on a ticker, without a due time to compare with, and its callbacks carry no send time.
//   - Each of its read deadlines reaches the callback for receive errors.
//   - It opens its own sockets by package net, so it cannot run on an emulated stack.
//
// Package golang.org/x/net/icmp is not used either: its Marshal allocates for each packet, and ours has one form.
package icmp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/nonce"
	"bufferbloat/probe"
)

// receiveSize holds what is ours; what is longer is not, and is cut off.
const receiveSize = 2 * MessageSize

// Transport is a probe.Transport over one ICMP echo socket.
//
// A reply is an Answer if its data is, to the bit, what was sent: a random token of 64 bits, the probe's number and a filler. The number in
// the data has 64 bits, so the 16 of the header may wrap. The send time is never on the wire. A reply of which a part was altered is
// Corrupt, and one with another token is Stray: NAT and raw sockets hand over what belongs to others, even with our identifier.
//
// The source address of a reply is not checked, as the token proves the round trip: a host may answer from another of its addresses.
type Transport struct {
	conn           host.EchoConn
	to             netip.AddrPort
	request, reply uint8
	id             uint16
	token          uint64
	last           atomic.Uint64 // the highest sequence number that was handed to Send
	hop            bool          // a router's word that the TTL ran out is the answer

	mu      sync.Mutex   // guards all below
	answers []netip.Addr // who answered, each address once, at most maxAnswers

	sendBuffer    [MessageSize]byte // Send's
	receiveBuffer [receiveSize]byte // Receive's
}

var _ probe.Transport = (*Transport)(nil)

const maxAnswers = 8

// DialHop is Dial for a Transport that probes the router that is ttl hops away on the way to target: its word that the TTL ran out (time exceeded) is the
// Answer, as is the target's own reply where the path is no longer than that. Answers tells who answered.
func DialHop(ctx context.Context, network host.Network, target netip.Addr, ttl uint8, o probe.Options) (*Transport, error) {
	if ttl == 0 {
		return nil, fmt.Errorf("probe a hop with ICMP: TTL 0: want 1 or more")
	}
	o.Socket.TTL = ttl
	t, err := Dial(ctx, network, target, o)
	if err != nil {
		return nil, err
	}
	t.hop = true
	return t, nil
}

// Answers returns whose replies came, each address once, at most 8. It may be called from any goroutine.
func (t *Transport) Answers() []netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.answers)
}

// answered keeps who answered. It allocates nothing once all have.
func (t *Transport) answered(by netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if by.IsValid() && len(t.answers) < maxAnswers && !slices.Contains(t.answers, by) {
		t.answers = append(t.answers, by)
	}
}

// Dial opens a socket for echo requests to target with o.Socket's mark, source and device. Where neither an unprivileged nor a raw socket is
// permitted, the error wraps os.ErrPermission and says what to do; what the stack cannot do at all wraps
// errors.ErrUnsupported. Nothing is sent.
func Dial(ctx context.Context, network host.Network, target netip.Addr, o probe.Options) (*Transport, error) {
	target = target.Unmap()
	if !target.IsValid() {
		return nil, fmt.Errorf("probe with ICMP: no target address")
	}
	o.Socket.StampSends = true
	conn, err := network.DialEcho(ctx, target, o.Socket)
	if err != nil {
		return nil, fmt.Errorf("probe with ICMP: %w", err)
	}
	var random [10]byte
	nonce.Fill(random[:])
	t := &Transport{conn: conn, to: netip.AddrPortFrom(target, 0), token: binary.BigEndian.Uint64(random[2:])}
	t.request, t.reply = types(host.FamilyOf(target))
	var given bool
	if t.id, given = conn.Identifier(); !given {
		t.id = binary.BigEndian.Uint16(random[:])
	}
	return t, nil
}

// Send implements probe.Transport.
func (t *Transport) Send(seq uint64) (time.Time, error) {
	t.last.Store(seq)
	m := message{kind: t.request, id: t.id, seq: seq, token: t.token}
	return t.conn.Send(m.AppendTo(t.sendBuffer[:0]), t.to)
}

// Receive implements probe.Transport. It passes over ICMP messages that are no replies.
func (t *Transport) Receive() (probe.Reply, error) {
	for {
		d, err := t.conn.Receive(t.receiveBuffer[:])
		if err != nil {
			return probe.Reply{}, err
		}
		b := t.receiveBuffer[:d.N]
		if d.Rejected != nil {
			r := t.rejected(b, d.Rejected)
			if t.hop && r.Kind == probe.Rejected && d.Rejected.Expired {
				t.answered(r.By)
				return probe.Reply{Seq: r.Seq, At: d.At, Stamp: d.Stamp}, nil
			}
			return r, nil
		}
		if len(b) > 0 && b[0] != t.reply {
			continue
		}
		r := probe.Reply{At: d.At, Stamp: d.Stamp, DS: d.DS, HasDS: d.HasDS}
		if r.Kind, r.Seq = t.classify(b, d.Truncated); r.Kind == probe.Answer {
			t.answered(d.From.Addr())
		}
		return r, nil
	}
}

// classify says what an echo reply is, and which probe an Answer belongs to.
func (t *Transport) classify(b []byte, truncated bool) (probe.ReplyKind, uint64) {
	m, err := parse(b)
	switch {
	case err == nil && !truncated && m.token == t.token && m.id == t.id:
		return probe.Answer, m.seq
	case looksLike(b, t.token):
		return probe.Corrupt, 0
	}
	return probe.Stray, 0
}

// rejected reads the request that an ICMP error quotes. Where the quotation ends before the full sequence number, as RFC 792 permits,
// the probe is the latest that has its low 16 bits.
func (t *Transport) rejected(b []byte, e *host.RejectedError) probe.Reply {
	r := probe.Reply{Kind: probe.Rejected, By: e.By, Err: e}
	if len(b) < headerSize || b[0] != t.request || binary.BigEndian.Uint16(b[4:]) != t.id {
		return probe.Reply{Kind: probe.Stray}
	}
	low, last := binary.BigEndian.Uint16(b[6:]), t.last.Load()
	r.Seq = last - uint64(uint16(last)-low)
	if r.Seq > last { // it has not come to that number yet
		return probe.Reply{Kind: probe.Stray}
	}
	if len(b) >= seqAt && binary.BigEndian.Uint64(b[tokenAt:]) != t.token {
		return probe.Reply{Kind: probe.Stray}
	}
	if len(b) >= fillerAt {
		if seq := binary.BigEndian.Uint64(b[seqAt:]); uint16(seq) == low {
			r.Seq = seq
		}
	}
	return r
}

// SendStamps says how many of the probes so far have the stack's own send stamp, and the number of all; see host.SendStamper.
func (t *Transport) SendStamps() (stack, all uint64) {
	if s, ok := t.conn.(host.SendStamper); ok {
		return s.SendStamps()
	}
	return 0, 0
}

// Wake implements probe.Transport.
func (t *Transport) Wake(at time.Time) error { return t.conn.SetReadDeadline(at) }

// Close implements probe.Transport.
func (t *Transport) Close() error { return t.conn.Close() }
