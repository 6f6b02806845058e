// Package host is what a measurement stands on: one network stack and one clock, the kernel's or an emulated one.
package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
)

// Host is a network stack together with the clock that its packets are timed by. All of a program's sockets and all of
// its waiting go through one Host, so that the same client and server code runs on the kernel, in a network namespace
// and on an emulated link in virtual time. Its methods may be called from any goroutine.
type Host interface {
	Clock
	Network
}

// Clock tells the time and waits. The times that it returns are compared and subtracted only with each other; on the
// kernel they carry Go's monotonic reading, so a step of the wall clock changes no difference.
type Clock interface {
	Now() time.Time
	// SleepUntil returns nil once Now is at or after t. It returns the cause of ctx as soon as ctx is done.
	SleepUntil(ctx context.Context, t time.Time) error
	// AfterFunc calls f in a goroutine of its own once d has passed, at once if d is not positive.
	AfterFunc(d time.Duration, f func()) Timer
}

// PreciseClock is a Clock that can wait more precisely than by its SleepUntil, at the price of a thread for the last milliseconds. It is for the
// few who send on a schedule that is itself part of what they say.
type PreciseClock interface {
	Clock
	// SleepPrecisely is SleepUntil, but for ctx: it may end by it some milliseconds later.
	SleepPrecisely(ctx context.Context, t time.Time) error
}

// Timer is a pending AfterFunc call.
type Timer interface {
	// Stop prevents the call and returns true, or returns false where it has begun or was stopped before.
	Stop() bool
}

// Network opens sockets. What the stack cannot do is an error that wraps errors.ErrUnsupported, at the opening where it
// was asked for in Options, so that no option is silently dropped.
type Network interface {
	// Resolve returns the addresses of a name or of an address in text, in the resolver's order, restricted to family.
	// It never returns an empty list without an error.
	Resolve(ctx context.Context, name string, family Family) ([]netip.Addr, error)
	DialTCP(ctx context.Context, to netip.AddrPort, o Options) (net.Conn, error)
	// ListenTCP listens at an address, or on all addresses of its family where the address is 0.0.0.0 or ::. An IPv6
	// listener takes no IPv4 connections.
	ListenTCP(ctx context.Context, at netip.AddrPort, o Options) (net.Listener, error)
	// DialUDP opens a connected UDP socket: Send's address is ignored, and only the peer's datagrams are received. An ICMP error about
	// what was sent comes from Receive, as a Datagram with Rejected set; on a stack that does not tell which packet it was
	// about, as an error that wraps a *RejectedError.
	DialUDP(ctx context.Context, to netip.AddrPort, o Options) (PacketConn, error)
	// ListenUDP opens an unconnected UDP socket. Datagram.To tells which of the host's addresses a datagram was sent to,
	// and SendFrom answers from there.
	ListenUDP(ctx context.Context, at netip.AddrPort, o Options) (PacketConn, error)
	// DialEcho opens a socket that sends ICMP or ICMPv6 echo requests to one address and receives ICMP messages. What is sent and
	// received begins with the ICMP header; the port of Datagram.From is 0. The stack fills in the checksum of what is sent. Identifier is
	// what the replies carry where the stack sets it (Linux ping sockets), and otherwise what the caller put there.
	// Where neither an unprivileged nor a raw socket is permitted, the error wraps os.ErrPermission and says what to do.
	// Where this host's address changes, a socket of Linux without Options.Source goes on from the new one; the sends of others fail.
	DialEcho(ctx context.Context, to netip.Addr, o Options) (EchoConn, error)
	// TCPInfo returns what the stack knows of a connection that it opened or accepted.
	TCPInfo(c net.Conn) (TCPInfo, error)
	// Name says which stack this is: "kernel", "lab (in process)".
	Name() string
}

// Family restricts a look-up to one address family.
type Family uint8

// The families; the zero value takes both.
const (
	AnyFamily Family = 0
	IPv4      Family = 4
	IPv6      Family = 6
)

// FamilyOf returns IPv4 for IPv4 and IPv4-mapped addresses, otherwise IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// AddrPortOf is a net.Addr of TCP or UDP as a value, IPv4 where it is IPv4-mapped; the zero AddrPort where it is something else.
func AddrPortOf(a net.Addr) netip.AddrPort {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return "IPv4 or IPv6"
}

// Options are a socket's settings, applied before it is bound, connected or listening. The zero value changes nothing.
type Options struct {
	Source            netip.Addr     // local address to send from; the zero Addr lets the stack choose
	Interface         string         // network device to send through; "" lets the routes choose
	DSCP              dscp.CodePoint // mark of what is sent; the ECN bits are those of ECN, and for TCP the stack's own
	ECN               ECN            // of the datagrams that are sent; TCP negotiates its own and has no such option
	TTL               uint8          // hops after which a router drops what is sent and says so; 0 leaves the stack's own
	ICMPTimestamp     bool           // for DialEcho: the messages are timestamp requests and replies (RFC 792), which take a raw socket
	CongestionControl string         // TCP's algorithm by its name in the stack; "" is the stack's default
	SendBuffer        int            // bytes; 0 leaves the stack's automatic size
	ReceiveBuffer     int            // bytes; 0 leaves the stack's automatic size
	ReusePort         bool           // several sockets may share the port
	// StampSends has Send return the stack's own stamp, of when the packet came to the queue of its device, or of when it left it where that took no time, where
	// the stack can: DialUDP and DialEcho on Linux. SendStamper tells. It costs two system calls for each packet.
	StampSends bool
}

// DS returns the DS byte of what is sent: code point and ECN.
func (o Options) DS() uint8 { return o.DSCP.Byte() | uint8(o.ECN) }

// ECN are the lower two bits of the DS byte (RFC 3168, RFC 8311).
type ECN uint8

// The code points.
const (
	NotECT ECN = 0
	ECT1   ECN = 1 // what L4S sends (RFC 9331)
	ECT0   ECN = 2
	CE     ECN = 3 // congestion experienced: what a queue makes of the two before it
)

// ECNOf returns the ECN of a DS byte.
func ECNOf(ds uint8) ECN { return ECN(ds & 3) }

func (e ECN) String() string {
	return [...]string{"Not-ECT", "ECT(1)", "ECT(0)", "CE"}[e&3]
}

// PacketConn sends and receives datagrams with time stamps.
type PacketConn interface {
	// Send sends one datagram and returns the stamp taken just before it was handed to the stack. On an error nothing
	// was sent; a full local queue is an error that wraps ErrNoBuffer, and the connection stays usable.
	Send(b []byte, to netip.AddrPort) (time.Time, error)
	// SendFrom is Send from one of the host's own addresses, as told by Datagram.To.
	SendFrom(b []byte, from netip.Addr, to netip.AddrPort) (time.Time, error)
	// Receive waits for one datagram and copies it to b; Datagram.N may be less than what was sent where b is too
	// short, and Truncated then says so. After the read deadline it returns os.ErrDeadlineExceeded, after Close net.ErrClosed.
	Receive(b []byte) (Datagram, error)
	// SetReadDeadline bounds Receive, also one that is waiting, by the host's clock; the zero time means no bound.
	SetReadDeadline(t time.Time) error
	LocalAddr() netip.AddrPort
	Close() error
}

// Marker is a PacketConn whose datagrams can each have a mark of their own: what a server needs that answers with the mark that a client
// asked for. Where a stack's sockets are no Markers, the server tells the client that it cannot.
type Marker interface {
	PacketConn
	// SendMarked is SendFrom with mark in place of the socket's own and the ECN bits zero. The zero from leaves the source to the stack.
	SendMarked(b []byte, from netip.Addr, to netip.AddrPort, mark dscp.CodePoint) (time.Time, error)
}

// SendStamper is a PacketConn that tells who took the stamps of what it sent.
type SendStamper interface {
	PacketConn
	// SendStamps returns how many of the sends so far have the stack's stamp, and the number of all. It may be called from any goroutine.
	SendStamps() (stack, all uint64)
}

// EchoConn is a PacketConn for ICMP echo.
type EchoConn interface {
	PacketConn
	// Identifier is the echo identifier that this socket's replies carry, or false where the caller must choose one
	// and sort out the replies to others (a raw socket).
	Identifier() (uint16, bool)
}

// Datagram says what Receive copied.
type Datagram struct {
	N         int
	Truncated bool
	From      netip.AddrPort
	To        netip.Addr // the zero Addr where the stack does not tell
	At        time.Time  // when it arrived, on the Host's clock
	Stamp     Stamp      // who took At
	DS        uint8      // the DS byte it carried, code point and ECN
	HasDS     bool
	// Rejected is set where the stack reports an ICMP error about a packet that this socket sent: b then holds the beginning of that
	// packet from the ICMP or UDP payload on (for echo sockets: from the ICMP header), and From is unset.
	Rejected *RejectedError
}

// Stamp says where a time stamp was taken.
type Stamp uint8

// The places.
const (
	UserStamp   Stamp = iota // by this program, beside the system call
	KernelStamp              // by the kernel, as the packet came in
	LinkStamp                // by the emulated link's own clock
)

func (s Stamp) String() string {
	return [...]string{"user", "kernel", "lab"}[s]
}

// ErrNoBuffer says that the local queue was full and a packet was not sent (ENOBUFS, EAGAIN): our own congestion, not loss.
var ErrNoBuffer = errors.New("no buffer space in the local queue")

// RejectedError is an ICMP error that a router or the peer sent about one of our packets.
type RejectedError struct {
	By  netip.Addr // who sent it; the zero Addr where the stack does not tell
	Err error      // the stack's error, such as syscall.ECONNREFUSED or syscall.EHOSTUNREACH
	// Expired says that a router dropped the packet because its TTL had run out, as Options.TTL asks for; false where the stack does not tell.
	Expired bool
}

func (e *RejectedError) Error() string {
	if e.By.IsValid() {
		return e.Err.Error() + " (reported by " + e.By.String() + ")"
	}
	return e.Err.Error()
}

func (e *RejectedError) Unwrap() error { return e.Err }

// TCPInfo is the state of a TCP connection. A field that the stack does not know is zero with its Has flag false.
type TCPInfo struct {
	BytesAcked       uint64 // payload that the peer acknowledged
	HasBytesAcked    bool
	Retransmits      uint64 // segments sent again
	HasRetransmits   bool
	Unsent           int // bytes that were written and not sent for the first time
	HasUnsent        bool
	RTT, MinRTT      time.Duration // smoothed; least
	SendMSS          int           // bytes of payload per full segment
	CongestionWindow int           // segments
	// Backoff is how many times in a row the retransmission timer has run out without any answer, and NextRetry what it is set to then: it
	// doubles each time. Both are 0 where all goes well, and where the stack does not tell.
	Backoff           int
	NextRetry         time.Duration
	CongestionControl string // "" where unknown
	SendBuffer        int    // bytes in effect; 0 where unknown
	ReceiveBuffer     int
	DS                uint8 // the DS byte that this end sends
	HasDS             bool
	RTTVariance       time.Duration   // mean deviation of RTT (RFC 6298); 0 where unknown
	ReceiveRTT        time.Duration   // the receiver's own estimate, from how data comes in; 0 where unknown
	PacingRate        bitrate.Bitrate // at which this end may send; 0 where unknown or unlimited
	DeliveryRate      bitrate.Bitrate // of the last data that was acknowledged; 0 where unknown
	DeliveredCE       uint64          // segments whose acknowledgement echoed a congestion mark
	HasDeliveredCE    bool
	// ECN says that both ends agreed, as the connection was opened, to echo congestion marks (RFC 3168); false where the stack does not tell.
	ECN bool
	// Busy is for how long this end had data to send or under way; and of it, for how long the peer's receive window or this end's own send
	// buffer held it back.
	Busy, ReceiveWindowLimited, SendBufferLimited time.Duration
	HasBusy                                       bool
}

// WithDeadline returns a context that is cancelled with context.DeadlineExceeded once clock reaches t. It is
// context.WithDeadline for a clock that may be virtual. The caller must call cancel.
func WithDeadline(ctx context.Context, clock Clock, t time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := clock.AfterFunc(t.Sub(clock.Now()), func() { cancel(context.DeadlineExceeded) })
	return ctx, func() { timer.Stop(); cancel(context.Canceled) }
}

// WithTimeout is WithDeadline at d from now.
func WithTimeout(ctx context.Context, clock Clock, d time.Duration) (context.Context, context.CancelFunc) {
	return WithDeadline(ctx, clock, clock.Now().Add(d))
}
