// Package netperf is a server for the netperf protocol: it absorbs and supplies load for our own client, for stock netperf 2.6
// and 2.7 and for the tools that call it.
//
// It serves the tests TCP_STREAM, TCP_MAERTS, TCP_RR, TCP_CRR, UDP_STREAM and UDP_RR, as omni tests and in the form that netperf had
// before, answers the auxiliary messages, and error 998 to everything else. What a client asks for is bounded: tests at once, in all and
// per address, their length, their buffers and message sizes; nothing is allocated in proportion to a number from a client. A test ends
// at the latest when the client's control connection ends, when no byte has moved for 30 s (a download: 60 s), or 8 s after its length,
// or that of the longest where it has none, whichever is first. Data is exchanged only with the address that the control connection comes from, a datagram is answered with one
// that is no longer than it or than one packet, and the file that a client may name is never opened.
//
// Where connections or descriptors run out, the connection that has been without a test for longest is closed: a real client asks as soon
// as it is connected, and the others are scans, clients of other protocols and clients that have hung.
package netperf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/servers/internal/bounds"
	"bufferbloat/servers/internal/listen"
)

// Options are a server's settings. The zero value is useful.
type Options struct {
	Passphrase         string        // "" lets everyone in
	DataPorts          PortRange     // where data connections and sockets are taken; the zero range is any free port
	MaxTests           int           // tests at once; 0 means 64
	MaxTestsPerAddress int           // of one IPv4 address or IPv6 /64; 0 means 32
	MaxIdle            int           // connections that run no test, of all addresses; 0 means as many as come with four times MaxTests
	MaxLength          time.Duration // of a test; 0 means 1 h. A client's usual extra minute is allowed on top
	// MaxTestsPerHour and MaxBytesPerHour are what one address may begin and move in an hour; 0 is no limit. A bulk flow that reaches the
	// limit of bytes is ended.
	MaxTestsPerHour int
	MaxBytesPerHour uint64
	MaxRate         bitrate.Bitrate // payload of all tests together, each way; 0 is no limit. Then there are no UDP_STREAM tests
	Version         string          // that the server tells about itself; "" means "unversioned"
	// CPU reads the busy and the total time of each of the host's CPUs since boot, for clients that ask. nil: they are told that it is not
	// measured.
	CPU func() (busy, total []time.Duration, err error)
	// Log takes one line per test begun and ended, and per refusal, at most some ten a second. It is called from one goroutine at
	// a time. nil drops them.
	Log func(line string)
	// Ready is called once all addresses are being listened at, with the ports in use. nil is no one to tell.
	Ready func(at []netip.AddrPort)
}

// PortRange is the ports First to Last, both included.
type PortRange struct{ First, Last uint16 }

func (p PortRange) isZero() bool { return p == PortRange{} }

// Server serves the netperf protocol. It holds no state: what a Serve call does is gone when it returns.
type Server struct {
	Options Options
}

// Times of the protocol and of this server.
const (
	firstRecord   = 20 * time.Second // for the passphrase
	betweenTests  = 60 * time.Second // of silence on a control connection without a test
	writeTimeout  = 10 * time.Second // for an answer of 656 bytes
	drainTimeout  = 2 * time.Second  // for what a refused client still sends
	guessDelay    = 200 * time.Millisecond
	dataGrace     = 4 * time.Second  // beyond a test's length, for the data connection to come; and for RR tests to end
	receiveGrace  = 8 * time.Second  // beyond a test's length, for a deep queue to drain
	oldGrace      = 10 * time.Second // beyond the length of a download in its old form, for the client's end
	idleTimeout   = 30 * time.Second
	sendLonger    = 250 * time.Millisecond // so that the client's timer, which began later, is the one that ends a download
	lengthGrace   = time.Minute            // a client asks for its preparations on top of its length
	maxSockBuffer = 16 << 20
	maxTCPMessage = 1 << 20
	maxDatagram   = 65507
	onePacket     = 1472                   // the longest answer to a datagram that is shorter
	quietEnd      = 500 * time.Millisecond // of silence, beyond a test's length, where the client does not signal the end
	oldClient     = 500 * time.Millisecond // of silence behind 256 bytes: a client of the protocol before 2.6
)

// Serve listens at the given addresses and serves until ctx is done; then it returns nil once everything that it started is
// gone, tests in progress included. An address that cannot be had is an error at once.
func (s *Server) Serve(ctx context.Context, h host.Host, at ...netip.AddrPort) error {
	v, err := newService(s.Options, h)
	if err != nil {
		return err
	}
	defer v.sessions.Wait()
	return listen.Serve(ctx, "netperf server", at, s.Options.Ready, func(ctx context.Context, a netip.AddrPort) (listen.Opened, error) {
		l, err := h.ListenTCP(ctx, a, host.Options{})
		if err != nil {
			return listen.Opened{}, err
		}
		accept := func(ctx context.Context) error { return v.accept(ctx, l) }
		return listen.Opened{At: host.AddrPortOf(l.Addr()), Loops: []func(context.Context) error{accept}, Close: l.Close}, nil
	})
}

// service is one Serve call.
type service struct {
	o        Options
	host     host.Host
	log      *bounds.Log
	clients  *bounds.Accounts
	in, out  *throttle
	sessions sync.WaitGroup
	starving atomic.Int32 // tests that wait for descriptors

	mu       sync.Mutex
	idle     idlers
	nextPort uint32 // offset in the port range where the next search begins
}

func newService(o Options, h host.Host) (*service, error) {
	if o.MaxTests == 0 {
		o.MaxTests = 64
	}
	if o.MaxTestsPerAddress == 0 {
		o.MaxTestsPerAddress = min(32, o.MaxTests)
	}
	if o.MaxLength == 0 {
		o.MaxLength = time.Hour
	}
	if o.Version == "" {
		o.Version = "unversioned"
	}
	switch {
	case o.MaxTests < 0 || o.MaxTestsPerAddress < 0 || o.MaxIdle < 0 || o.MaxLength < 0 || o.MaxTestsPerHour < 0 || o.MaxRate < 0:
		return nil, errors.New("netperf server: a limit is negative")
	case !o.DataPorts.isZero() && (o.DataPorts.First == 0 || o.DataPorts.First > o.DataPorts.Last):
		return nil, fmt.Errorf("netperf server: %d to %d is no port range", o.DataPorts.First, o.DataPorts.Last)
	case len(o.Passphrase) > wire.MaxPassphrase:
		return nil, fmt.Errorf("netperf server: the passphrase has more than %d bytes", wire.MaxPassphrase)
	}
	return &service{o: o, host: h, log: bounds.NewLog(h, o.Log), in: newThrottle(h, o.MaxRate), out: newThrottle(h, o.MaxRate),
		clients: bounds.NewAccounts(h, bounds.Limits{Tests: o.MaxTests, TestsPerAddress: o.MaxTestsPerAddress,
			TestsPerHour: o.MaxTestsPerHour, BytesPerHour: o.MaxBytesPerHour})}, nil
}

// accept starts a session for every connection, until ctx is done. None is taken while a test waits for descriptors; where there are none the
// session that has been idle longest is put out.
func (v *service) accept(ctx context.Context, l net.Listener) error {
	a := listen.Acceptor{Clock: v.host, Start: func(conn net.Conn) { v.start(ctx, conn) }, MakeRoom: func() bool { return v.evict(netip.Prefix{}, nil) },
		Trouble: func(line string) { v.log.Printf("netperf: %s", line) },
		Before: func(ctx context.Context) {
			for v.starving.Load() > 0 && v.host.SleepUntil(ctx, v.host.Now().Add(roomRetry)) == nil {
			}
		}}
	return a.Accept(ctx, l)
}

// start runs a session in a goroutine of its own. Where the limits allow no more connections the one of that address, or of all, that has
// been idle longest makes room.
func (v *service) start(ctx context.Context, conn net.Conn) {
	peer := host.AddrPortOf(conn.RemoteAddr())
	for {
		ofAddress, ofAll := v.clients.TakeConnection(peer.Addr())
		if !ofAddress && !ofAll {
			break
		}
		of := netip.Prefix{}
		if ofAddress {
			of = bounds.AccountOf(peer.Addr())
		}
		if !v.evict(of, nil) {
			v.turnAway(conn, peer)
			return
		}
	}
	s := newSession(v, conn)
	v.rested(s) // here, in the order in which they came
	v.sessions.Go(func() {
		defer v.clients.GiveConnection(peer.Addr())
		s.run(ctx)
	})
}

// turnAway tells a client that there is no room even for its question. The answer fits into an empty send buffer, so this waits for
// nobody.
func (v *service) turnAway(conn net.Conn, peer netip.AddrPort) {
	v.log.Printf("netperf: %v refused: too many connections", peer)
	_ = conn.SetWriteDeadline(v.host.Now().Add(writeTimeout))
	_, _ = conn.Write(wire.Refusal{Number: wire.Busy, Reason: "too many connections"}.AppendTo(nil, wire.TypeOmniResponse))
	_ = conn.Close()
}
