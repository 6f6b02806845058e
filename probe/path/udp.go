package path

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

const (
	// firstPort is where the datagrams of the first distance go to; each further one has the next. It is traceroute's, which nobody listens at, and which
	// firewalls know.
	firstPort = 33434
	// datagramSize is a random token and the probe's number.
	datagramSize = 16
	maxAnswers   = 8
)

// datagrams is a probe.Transport of UDP datagrams whose TTL ends at a router. A router's word of it, or the target's that nobody listens, is an answer if it
// quotes the whole datagram, as routers do since RFC 1812; those that quote no more than RFC 792 asks for are strays.
type datagrams struct {
	conn  host.PacketConn
	to    netip.AddrPort
	token uint64
	next  atomic.Uint64 // one above the highest probe that was handed to Send

	mu      sync.Mutex // guards the one below
	answers []netip.Addr

	out [datagramSize]byte     // Send's
	in  [4 * datagramSize]byte // Receive's
}

func dialDatagrams(ctx context.Context, network host.Network, target netip.Addr, ttl uint8, o probe.Options) (prober, error) {
	o.Socket.TTL, o.Socket.StampSends = ttl, true
	to := netip.AddrPortFrom(target, firstPort-1+uint16(ttl))
	conn, err := network.DialUDP(ctx, to, o.Socket)
	if err != nil {
		return nil, fmt.Errorf("probe a hop with UDP: %w", err)
	}
	var token [8]byte
	nonce.Fill(token[:])
	return &datagrams{conn: conn, to: to, token: binary.BigEndian.Uint64(token[:])}, nil
}

// Send implements probe.Transport.
func (t *datagrams) Send(seq uint64) (time.Time, error) {
	t.next.Store(seq + 1)
	binary.BigEndian.PutUint64(t.out[:], t.token)
	binary.BigEndian.PutUint64(t.out[8:], seq)
	return t.conn.Send(t.out[:], t.to)
}

// Receive implements probe.Transport.
func (t *datagrams) Receive() (probe.Reply, error) {
	d, err := t.conn.Receive(t.in[:])
	if err != nil {
		return probe.Reply{}, err
	}
	b := t.in[:d.N]
	if d.Rejected == nil || len(b) < datagramSize || binary.BigEndian.Uint64(b) != t.token || binary.BigEndian.Uint64(b[8:]) >= t.next.Load() {
		return probe.Reply{Kind: probe.Stray, At: d.At, Stamp: d.Stamp}, nil
	}
	r := probe.Reply{Seq: binary.BigEndian.Uint64(b[8:]), At: d.At, Stamp: d.Stamp, By: d.Rejected.By}
	if !d.Rejected.Expired && r.By.WithZone("") != t.to.Addr().WithZone("") {
		r.Kind, r.Err = probe.Rejected, d.Rejected
		return r, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.answers) < maxAnswers && !slices.Contains(t.answers, r.By) {
		t.answers = append(t.answers, r.By)
	}
	return r, nil
}

// Answers returns whose words came, each address once, at most 8.
func (t *datagrams) Answers() []netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.answers)
}

// SendStamps is what host.SendStamper says.
func (t *datagrams) SendStamps() (stack, all uint64) {
	if s, ok := t.conn.(host.SendStamper); ok {
		return s.SendStamps()
	}
	return 0, 0
}

// Wake implements probe.Transport.
func (t *datagrams) Wake(at time.Time) error { return t.conn.SetReadDeadline(at) }

// Close implements probe.Transport.
func (t *datagrams) Close() error { return t.conn.Close() }
