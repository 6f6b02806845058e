package iperf3

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
)

const (
	// udpBuffer is asked for, since all tests share one socket: what comes while this program waits for its CPU is not to be taken for loss.
	udpBuffer = 8 << 20
	// maxFailures is how many errors in a row a socket may give.
	maxFailures = 1000
	spanLength  = time.Second
)

// socket is one of the server's UDP sockets, which all tests share.
type socket struct {
	service *service
	conn    host.PacketConn
	// streams are by the client's address and port. The map that it points to does not change; writers replace it under service.mu.
	streams atomic.Pointer[map[netip.AddrPort]*udpStream]
}

func (v *service) newSocket(conn host.PacketConn) *socket {
	s := &socket{service: v, conn: conn}
	s.streams.Store(&map[netip.AddrPort]*udpStream{})
	return s
}

// udpStream is one UDP stream.
type udpStream struct {
	socket *socket
	peer   netip.AddrPort
	local  netip.Addr // where its first datagram went; the zero Addr where the stack does not tell

	mu       sync.Mutex
	counting bool
	wide     bool
	track    wire.Track
	origin   time.Time
	last     time.Time // when a datagram came
}

// opener is what the datagrams that open a test's streams tell of it: their address, and the Key of its cookie where its client sends that.
type opener struct {
	addr   netip.Addr
	cookie wire.Cookie // zero from stock clients
}

func (t *test) opener() opener {
	if t.p.NamedStreams {
		return opener{t.peer.Addr(), t.cookie.Key()}
	}
	return opener{addr: t.peer.Addr()}
}

// opening is a test that waits for its UDP streams. service.mu guards it.
type opening struct {
	want int
	got  []*udpStream
	full chan struct{} // closed when there are as many as wanted
	done chan struct{} // closed when it waits no more
}

// receive takes what comes, until ctx is done.
func (s *socket) receive(ctx context.Context) error {
	release := pump.OnDone(ctx, func() { _ = s.conn.SetReadDeadline(s.service.host.Now().Add(-time.Second)) })
	defer release()
	b := make([]byte, 1<<16)
	for failures := 0; ; {
		d, err := s.conn.Receive(b)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			// A datagram that met a closed port comes back as an error, which is no end; a socket that gives nothing else is.
			if failures++; failures > maxFailures || errors.Is(err, net.ErrClosed) {
				return err
			}
			continue
		case d.Rejected != nil:
			continue
		}
		failures = 0
		peer := netip.AddrPortFrom(d.From.Addr().Unmap(), d.From.Port())
		stream := (*s.streams.Load())[peer]
		switch cookie, hello := wire.ParseHello(b[:d.N]); {
		case hello && stream == nil:
			stream, ready := s.service.join(s, peer, d.To, cookie)
			if stream != nil {
				stream.welcome(b[:d.N])
				if ready != nil {
					close(ready)
				}
			}
		case hello:
			stream.welcome(b[:d.N]) // the answer was lost
		case stream != nil:
			stream.take(b[:d.N], d.At)
		}
	}
}

// join adds a stream to the test of its address and cookie that waits for some, and returns it with what is to be closed once it was answered, where it was the
// last. Where no test waits it returns nil: nothing is answered to who has no control connection.
func (v *service) join(s *socket, peer netip.AddrPort, local netip.Addr, cookie wire.Cookie) (*udpStream, chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o := v.opening[opener{peer.Addr(), cookie}]
	if o == nil || len(o.got) == o.want {
		return nil, nil
	}
	u := &udpStream{socket: s, peer: peer, local: local}
	o.got = append(o.got, u)
	next := maps.Clone(*s.streams.Load())
	next[peer] = u
	s.streams.Store(&next)
	if len(o.got) == o.want {
		return u, o.full
	}
	return u, nil
}

// leave takes a stream off its socket.
func (u *udpStream) leave() {
	v := u.socket.service
	v.mu.Lock()
	defer v.mu.Unlock()
	next := maps.Clone(*u.socket.streams.Load())
	delete(next, u.peer)
	u.socket.streams.Store(&next)
}

// welcome answers the datagram that opens a stream.
func (u *udpStream) welcome(question []byte) {
	b := wire.Welcome(question)
	_, _ = u.socket.conn.SendFrom(b[:], u.local, u.peer) // what is lost here the client asks for again, or gives up
}

// begin lets a stream count from a time on, where this end receives on it.
func (u *udpStream) begin(receives, wide bool, origin time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counting, u.wide, u.origin, u.last = receives, wide, origin, origin
	u.track.Every = spanLength
}

// take counts a datagram.
func (u *udpStream) take(b []byte, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.counting {
		return
	}
	d, err := wire.ParseDatagram(b, u.wide)
	if err != nil {
		return
	}
	u.last = at
	u.track.Take(d, len(b), at.Sub(u.origin), u.wide)
}

func (u *udpStream) tally() wire.Tally {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.track.Tally
}

// spans ends the counting and returns how it came about.
func (u *udpStream) spans(now time.Time) []wire.Span {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counting = false
	return u.track.Spans(now.Sub(u.origin))
}

// openUDP waits for the client's streams. A stock client's datagrams do not say of which test they are, so of one address one such test waits at a time.
func (t *test) openUDP(ctx context.Context) error {
	client, server := t.p.Sends()
	o, err := t.takeTurn(ctx, client+server)
	if err != nil {
		return err
	}
	err = t.await(ctx, o.full)
	t.mu.Lock()
	delete(t.opening, t.opener())
	close(o.done)
	got := o.got
	t.mu.Unlock()
	for _, u := range got {
		t.streams = append(t.streams, &stream{udp: u})
	}
	return err
}

// takeTurn waits until no other test waits for streams that could be its own, and takes that place.
func (t *test) takeTurn(ctx context.Context, want int) (*opening, error) {
	for who := t.opener(); ; {
		t.mu.Lock()
		other := t.opening[who]
		if other == nil {
			o := &opening{want: want, full: make(chan struct{}), done: make(chan struct{})}
			t.opening[who] = o
			t.mu.Unlock()
			return o, nil
		}
		t.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// sender returns what sends one datagram of a stream. It is called from one goroutine.
func (u *udpStream) sender(t *test, sent *atomic.Uint64) func(seq uint64, now time.Time) error {
	b := make([]byte, t.p.Size)
	copy(b, pump.Payload())
	mark := dscp.FromByte(uint8(t.p.TOS))
	marker, marks := u.socket.conn.(host.Marker)
	if mark != 0 && !marks {
		t.log.Printf("iperf3: %v asks for %v, and this stack cannot mark its answers", t.peer, mark)
	}
	return func(seq uint64, now time.Time) error {
		wire.Datagram{Sent: now.Sub(t.began), Seq: seq}.Put(b, t.p.Counters64)
		var err error
		if mark != 0 && marks {
			_, err = marker.SendMarked(b, u.local, u.peer, mark)
		} else {
			_, err = u.socket.conn.SendFrom(b, u.local, u.peer)
		}
		if err == nil {
			sent.Store(seq)
		}
		return err
	}
}

// watchIdle gives a test up where no datagram of any stream has come for too long.
func (t *test) watchIdle(ctx context.Context, giveUp context.CancelCauseFunc) {
	for t.host.SleepUntil(ctx, t.host.Now().Add(idleTimeout/6)) == nil {
		last := t.began
		for _, s := range t.streams[:t.receive] {
			s.udp.mu.Lock()
			if s.udp.last.After(last) {
				last = s.udp.last
			}
			s.udp.mu.Unlock()
		}
		if t.host.Now().Sub(last) > idleTimeout {
			giveUp(errStalled)
			return
		}
	}
}
