// Package timestamp probes with ICMP timestamp requests (RFC 792), which many hosts answer with the time of their own clock: one-way delays without a
// server.
//
// # What the delays are worth
//
// The peer's times are whole milliseconds, cut off, of its wall clock. So Up may be up to a millisecond too short, Down as much too long, and
// both have the difference of the two hosts' clocks in them, with opposite signs: seconds, where the peer keeps no good time. The values are
// kept as they come, signed. What can be believed is their change against the idle baseline of the same run: a queue of 50 ms in one direction
// shows there as 50 ms, whatever the clocks. A clock that is being corrected drifts by at most 0.5 ms a second (500 ppm). The round-trip time
// uses this host's stamps alone.
package timestamp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/nonce"
	"bufferbloat/probe"
)

// Transport is a probe.Transport over one raw ICMP socket.
//
// A reply is an Answer if it has our identifier, the number of a probe that was sent, and the originate time that this probe had. With another
// identifier it is a Stray, as raw sockets hear what belongs to others; with another time it is Corrupt. Where the peer marks its times as not
// standard, or they can't be times of the day (some systems send them in the wrong byte order), the answer has a round-trip time and no
// one-way delays.
type Transport struct {
	conn host.EchoConn
	to   netip.AddrPort
	id   uint16
	now  func() time.Time

	sendBuffer    [MessageSize]byte // Send's
	receiveBuffer [64]byte          // Receive's

	mu      sync.Mutex // guards all below
	done    sync.Cond  // sending has become false
	sending bool       // probe last is being sent: its reply can be here before its stamp
	sent    []sent     // a ring: probe n is at n % len
	last    uint64     // the highest sequence number that was handed to Send
	any     bool
}

// sent is what was sent as probe seq.
type sent struct {
	seq       uint64
	originate uint32
	at        time.Time // the zero Time where the send failed
}

var _ probe.Transport = (*Transport)(nil)

// Dial opens a socket for timestamp requests to target with o.Socket's mark, source and device. It takes a raw socket: where that is not
// permitted, the error wraps os.ErrPermission and says what to do. What the stack cannot do at all, and IPv6, which has no such message, wraps
// errors.ErrUnsupported. Nothing is sent.
func Dial(ctx context.Context, h host.Host, target netip.Addr, o probe.Options) (*Transport, error) {
	o, err := o.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("probe with ICMP timestamps: %w", err)
	}
	target = target.Unmap()
	if !target.IsValid() {
		return nil, fmt.Errorf("probe with ICMP timestamps: no target address")
	}
	o.Socket.ICMPTimestamp = true
	conn, err := h.DialEcho(ctx, target, o.Socket)
	if err != nil {
		return nil, fmt.Errorf("probe with ICMP timestamps: %w", err)
	}
	t := &Transport{conn: conn, to: netip.AddrPortFrom(target, 0), now: h.Now}
	var given bool
	if t.id, given = conn.Identifier(); !given {
		t.id = nonce.Uint16()
	}
	n := 64
	for time.Duration(n)*o.Interval <= probe.Patience {
		n *= 2
	}
	t.sent = make([]sent, min(n, 1<<16))
	t.done.L = &t.mu
	return t, nil
}

// Send implements probe.Transport.
func (t *Transport) Send(seq uint64) (time.Time, error) {
	s := &t.sent[seq%uint64(len(t.sent))]
	originate := sinceMidnight(t.now())
	t.mu.Lock()
	*s = sent{seq: seq, originate: originate}
	t.last, t.any, t.sending = seq, true, true
	t.mu.Unlock()
	m := message{kind: request, id: t.id, seq: uint16(seq), originate: originate}
	at, err := t.conn.Send(m.AppendTo(t.sendBuffer[:0]), t.to)
	t.mu.Lock()
	defer t.mu.Unlock()
	s.at, t.sending = at, false
	t.done.Broadcast()
	return at, err
}

// Receive implements probe.Transport. It passes over ICMP messages that are no timestamp replies.
func (t *Transport) Receive() (probe.Reply, error) {
	for {
		d, err := t.conn.Receive(t.receiveBuffer[:])
		if err != nil {
			return probe.Reply{}, err
		}
		m, err := parse(t.receiveBuffer[:d.N])
		if d.Rejected != nil {
			return t.rejected(t.receiveBuffer[:d.N], d.Rejected), nil
		}
		if err != nil {
			if d.N > 0 && t.receiveBuffer[0] != reply {
				continue
			}
			return probe.Reply{Kind: probe.Corrupt}, nil
		}
		if m.kind == reply {
			return t.judge(m, d), nil
		}
	}
}

// judge says what a reply is.
func (t *Transport) judge(m message, d host.Datagram) probe.Reply {
	s, ok := t.find(m.seq)
	switch {
	case m.id != t.id || !ok:
		return probe.Reply{Kind: probe.Stray}
	case m.originate != s.originate:
		return probe.Reply{Kind: probe.Corrupt}
	}
	r := probe.Reply{Seq: s.seq, At: d.At, Stamp: d.Stamp, DS: d.DS, HasDS: d.HasDS}
	if !s.at.IsZero() && !stepped(s.at, d.At) {
		r.Up, r.Down, r.HasOneWay = m.oneWay(s.at, d.At)
	}
	return r
}

// find returns the latest probe whose number ends in low, or false where it is forgotten or none was sent.
func (t *Transport) find(low uint16) (sent, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	seq := t.last - uint64(uint16(t.last)-low)
	if !t.any || seq > t.last { // it has not come to that number yet
		return sent{}, false
	}
	for t.sending && seq == t.last {
		t.done.Wait()
	}
	s := t.sent[seq%uint64(len(t.sent))]
	return s, s.seq == seq
}

// rejected assigns an ICMP error to the probe that it quotes, of which RFC 792 lets a router leave out the times.
func (t *Transport) rejected(b []byte, e *host.RejectedError) probe.Reply {
	const header = 8
	if len(b) < header || b[0] != request || binary.BigEndian.Uint16(b[4:]) != t.id {
		return probe.Reply{Kind: probe.Stray}
	}
	s, ok := t.find(binary.BigEndian.Uint16(b[6:]))
	if !ok {
		return probe.Reply{Kind: probe.Stray}
	}
	return probe.Reply{Kind: probe.Rejected, Seq: s.seq, By: e.By, Err: e}
}

// stepped reports whether the wall clock and the monotonic one differ on the time from a to b by more than slewing explains.
func stepped(a, b time.Time) bool {
	mono := b.Sub(a)
	return (time.Duration(b.UnixNano()-a.UnixNano()) - mono).Abs() > time.Millisecond+mono.Abs()/1000
}

// Wake implements probe.Transport.
func (t *Transport) Wake(at time.Time) error { return t.conn.SetReadDeadline(at) }

// Close implements probe.Transport.
func (t *Transport) Close() error { return t.conn.Close() }
