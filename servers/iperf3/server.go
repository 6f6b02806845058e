// Package iperf3 is a server for the iperf3 protocol: it absorbs and supplies load for our own client and for stock iperf3.
//
// Unlike a stock server it serves several clients at once. What a client asks for is bounded: tests at once, in all and per address, their
// length, streams and rate; nothing is allocated in proportion to a number from a client. A client that does not get as far as its test's
// parameters within 15 s is dropped, and earlier where others want its place. A test ends at the latest when its control connection ends, when
// no data has come or gone for 30 s, or 40 s after its time; one without a time of its own has that of the longest. Datagrams go only to an
// address from which a control connection stands, and the answer to one is never longer than itself.
package iperf3

import (
	"context"
	"crypto/rsa"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/servers/internal/bounds"
	"bufferbloat/servers/internal/listen"
)

// Options are a server's settings. The zero value is useful.
type Options struct {
	MaxTests           int             // tests at once; 0 means 64. Who comes too much is told that the server is busy
	MaxTestsPerAddress int             // of one IPv4 address or IPv6 /64; 0 means 32
	MaxIdle            int             // connections that are no part of a test yet; 0 means 256
	MaxTestsPerHour    int             // that one address may begin; 0 is no limit
	MaxBytesPerHour    uint64          // of payload, both ways, that one address may move; its test ends there. 0 is no limit
	MaxStreams         int             // of a test in each direction; 0 means 128, which is also the most
	MaxLength          time.Duration   // of a test, with what it omits; 0 means 1 h
	MaxRate            bitrate.Bitrate // of a test's streams together; then clients must name a rate. 0 is no limit
	// MaxUDPRate is of a UDP test's streams together. Then a client that sends must name a rate, and one that receives gets this one where it
	// names none. 0 means 1 Gbit/s, and that who sends need not name one.
	MaxUDPRate bitrate.Bitrate
	Login      *Login // nil lets everyone in
	// CPU returns the CPU time that this program has used, which the protocol tells clients. nil tells them 0.
	CPU func() (user, system time.Duration, err error)
	// Log takes one line per test begun and ended, and per refusal, at most some ten a second. It is called from one goroutine at
	// a time. nil drops them.
	Log func(line string)
	// Ready is called once all addresses are being listened at, with the ports in use. nil is no one to tell.
	Ready func(at []netip.AddrPort)
}

// Login says who may use a server.
type Login struct {
	Key     *rsa.PrivateKey
	Users   wire.Users
	Padding wire.Padding     // the one that is taken: stock clients send PKCS1 up to 3.16, then OAEP
	Now     func() time.Time // wall clock; nil is the host's
}

// Server serves the iperf3 protocol. It holds no state: what a Serve call does is gone when it returns.
type Server struct {
	Options Options
}

// Times of the protocol and of this server.
const (
	cookieTimeout  = 10 * time.Second
	paramsTimeout  = 15 * time.Second
	writeTimeout   = 10 * time.Second // for an answer
	drainTimeout   = 2 * time.Second  // for what a refused client still sends
	guessDelay     = 200 * time.Millisecond
	streamsTimeout = 120 * time.Second // as stock servers have it: a client may agree on a test before its baseline
	idleTimeout    = 30 * time.Second
	lengthGrace    = 40 * time.Second // as stock servers have it
	resultsTimeout = 30 * time.Second
	goodbye        = time.Second
	clockSkew      = 10 * time.Second // between a login and our clock
	maxWindow      = 16 << 20
	maxResults     = 1 << 20 // of a client, which sends no report
)

// Serve listens at the given addresses and serves until ctx is done; then it returns nil once everything that it started is
// gone, tests in progress included. An address that cannot be had is an error at once.
func (s *Server) Serve(ctx context.Context, h host.Host, at ...netip.AddrPort) error {
	v, err := newService(s.Options, h)
	if err != nil {
		return err
	}
	defer v.sessions.Wait()
	return listen.Serve(ctx, "iperf3 server", at, s.Options.Ready, func(ctx context.Context, a netip.AddrPort) (listen.Opened, error) {
		l, p, err := open(ctx, h, a)
		if err != nil {
			return listen.Opened{}, err
		}
		accept := func(ctx context.Context) error { return v.accept(ctx, l) }
		return listen.Opened{At: host.AddrPortOf(l.Addr()), Loops: []func(context.Context) error{accept, v.newSocket(p).receive},
			Close: func() error { return errors.Join(l.Close(), p.Close()) }}, nil
	})
}

// open listens for connections and datagrams at the same port.
func open(ctx context.Context, h host.Host, a netip.AddrPort) (net.Listener, host.PacketConn, error) {
	for try := 0; ; try++ {
		l, err := h.ListenTCP(ctx, a, host.Options{})
		if err != nil {
			return nil, nil, err
		}
		at := host.AddrPortOf(l.Addr())
		p, err := h.ListenUDP(ctx, netip.AddrPortFrom(a.Addr(), at.Port()), host.Options{ReceiveBuffer: udpBuffer})
		if err == nil {
			return l, p, nil
		}
		_ = l.Close()
		// A port of the system's choice may be free for one of them only.
		if a.Port() != 0 || try == 8 {
			return nil, nil, err
		}
	}
}

// service is one Serve call.
type service struct {
	o        Options
	udpNamed bool // whoever sends datagrams must name a rate
	host     host.Host
	log      *bounds.Log
	clients  *bounds.Accounts
	sessions sync.WaitGroup
	precise  atomic.Int64 // senders of datagrams that wait, of which mostPrecise do so precisely

	mu       sync.Mutex
	accepted uint64                   // connections so far
	half     []*arrival               // connections that are no part of a test yet, oldest first
	waiting  map[wire.Cookie]*streams // tests that wait for their data connections, by their cookie's Key
	opening  map[opener]*opening      // tests that wait for their UDP streams
}

// arrival is a connection with its place in the order of all.
type arrival struct {
	net.Conn
	peer   netip.AddrPort
	number uint64
}

func newService(o Options, h host.Host) (*service, error) {
	if o.MaxTests == 0 {
		o.MaxTests = 64
	}
	if o.MaxTestsPerAddress == 0 {
		o.MaxTestsPerAddress = min(32, o.MaxTests)
	}
	if o.MaxIdle == 0 {
		o.MaxIdle = 256
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 128
	}
	if o.MaxLength == 0 {
		o.MaxLength = time.Hour
	}
	named := o.MaxUDPRate > 0 || o.MaxRate > 0
	if o.MaxUDPRate == 0 {
		o.MaxUDPRate = bitrate.Gbit
	}
	if o.MaxRate > 0 {
		o.MaxUDPRate = min(o.MaxUDPRate, o.MaxRate)
	}
	switch {
	case o.MaxTests < 0 || o.MaxTestsPerAddress < 0 || o.MaxIdle < 0 || o.MaxStreams < 0 || o.MaxTestsPerHour < 0 || o.MaxLength < 0 || o.MaxRate < 0 || o.MaxUDPRate < 0:
		return nil, errors.New("iperf3 server: a limit is negative")
	case o.MaxStreams > 128:
		return nil, errors.New("iperf3 server: more than 128 streams, which no client asks for")
	case o.Login != nil && (o.Login.Key == nil || len(o.Login.Users) == 0):
		return nil, errors.New("iperf3 server: a login wants a private key and at least one user")
	}
	return &service{o: o, udpNamed: named, host: h, log: bounds.NewLog(h, o.Log), clients: bounds.NewAccounts(h, bounds.Limits{Tests: o.MaxTests, TestsPerAddress: o.MaxTestsPerAddress,
		TestsPerHour: o.MaxTestsPerHour, BytesPerHour: o.MaxBytesPerHour}),
		waiting: map[wire.Cookie]*streams{}, opening: map[opener]*opening{}}, nil
}

// accept starts a goroutine for every connection, until ctx is done. Where there are no descriptors, who has not said yet what he wants makes
// room.
func (v *service) accept(ctx context.Context, l net.Listener) error {
	a := listen.Acceptor{Clock: v.host, Start: func(conn net.Conn) {
		one := v.arrive(conn)
		v.sessions.Go(func() { v.handle(ctx, one) })
	}, MakeRoom: func() bool { return v.evict(2) }, Trouble: func(line string) { v.log.Printf("iperf3: %s", line) }}
	return a.Accept(ctx, l)
}

// arrive notes a new connection among those that are no part of a test, the oldest of which leaves where they are too many.
func (v *service) arrive(conn net.Conn) *arrival {
	a := &arrival{Conn: conn, peer: host.AddrPortOf(conn.RemoteAddr())}
	v.mu.Lock()
	v.accepted++
	a.number = v.accepted
	v.half = append(v.half, a)
	full := len(v.half) > v.o.MaxIdle
	v.mu.Unlock()
	if full {
		v.evict(v.o.MaxIdle)
	}
	return a
}

// evict closes the oldest of the connections that are no part of a test: one in so many of them, and one at least. Their own goroutines do the
// rest. It reports whether there was one.
func (v *service) evict(oneIn int) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := min(len(v.half), 1+len(v.half)/oneIn)
	for _, a := range v.half[:n] {
		_ = a.Close()
	}
	v.half = slices.Delete(v.half, 0, n)
	return n > 0
}

// belongs takes a connection off those that are no part of a test: it is one now, or is over.
func (v *service) belongs(a *arrival) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := slices.Index(v.half, a); i >= 0 {
		v.half = slices.Delete(v.half, i, i+1)
	}
}

// handle reads a connection's cookie: it belongs to a test that waits for it, or begins one of its own.
func (v *service) handle(ctx context.Context, a *arrival) {
	defer v.belongs(a)
	release := pump.OnDone(ctx, func() { _ = a.Close() })
	var cookie wire.Cookie
	_ = a.SetReadDeadline(v.host.Now().Add(cookieTimeout)) // it fails only where the read will
	_, err := io.ReadFull(a, cookie[:])
	release()
	if err != nil || ctx.Err() != nil {
		_ = a.Close()
		return
	}
	_ = a.SetReadDeadline(time.Time{})
	switch v.offer(cookie, a) {
	case taken:
		return
	case refused:
		_ = a.SetWriteDeadline(v.host.Now().Add(writeTimeout))
		_, _ = a.Write([]byte{wire.AccessDenied.Byte()})
		_ = a.Close()
		return
	}
	s := &session{service: v, conn: a, peer: a.peer, cookie: cookie}
	s.run(ctx)
}
