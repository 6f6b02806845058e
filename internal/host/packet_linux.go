package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/dscp"
)

const (
	// maxPending bounds how often one packet is offered again after the socket reported earlier packets' ICMP errors.
	maxPending = 4
	// blindWait is how long Receive waits by poll(2) at a time where the runtime cannot wait for it; see receiveBlind.
	blindWait = 10 * time.Millisecond
)

var (
	_ Marker      = (*packetConn)(nil)
	_ SendStamper = (*packetConn)(nil)
)

// packetConn is a UDP or ICMP socket. Send and Receive keep their state in it and go through functions that are made
// once, so that a packet costs no allocation.
type packetConn struct {
	conn       net.PacketConn // owns the descriptor
	sys        syscall.RawConn
	kind       socketKind
	peer       netip.AddrPort // what it is connected to, or for ICMP where it sends to; the zero AddrPort where each packet says so
	local      netip.AddrPort
	errorQueue bool
	fixed      bool // it sends from local alone, whatever becomes of that
	raw        bool // an ICMP socket that hears of other programs' packets too
	rawIPv4    bool // of them one for ICMPv4: we fill in checksums, and what arrives begins with the IP header
	// dest is where an ICMP socket sends to. It is not connected, so that each packet leaves from the address that the host has then.
	dest    unix.RawSockaddrInet6
	destLen uint32

	sendMu sync.Mutex
	out    outgoing // under sendMu

	recvMu sync.Mutex
	in     incoming // under recvMu

	sends sendStamps
}

// message is one message header with what it points to.
type message struct {
	hdr     unix.Msghdr
	iov     [2]unix.Iovec
	name    unix.RawSockaddrInet6 // or a RawSockaddrInet4, which is shorter
	control [32]uint64            // bytes, aligned as the kernel wants them
	zones   zoneNames
}

type outgoing struct {
	message
	header [4]byte // raw ICMPv4: type, code and checksum
	write  func(fd uintptr) bool
	at     time.Time
	errno  syscall.Errno
	report reports
}

type incoming struct {
	message
	header  [minIPv4Header]byte
	read    func(fd uintptr) bool
	tryRead func(fd uintptr)
	b       []byte
	clock   stampClock
	from    addrCache
	got     Datagram
	done    bool
	errno   syscall.Errno
}

func newUDPConn(c *net.UDPConn, kind socketKind, peer netip.AddrPort, o Options) (PacketConn, error) {
	p, err := newPacketConn(c, kind, peer, o)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// newPacketConn takes over c, also where it fails.
func newPacketConn(c net.PacketConn, kind socketKind, peer netip.AddrPort, o Options) (*packetConn, error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		c.Close()
		return nil, err
	}
	p := &packetConn{conn: c, sys: raw, kind: kind, peer: peer, local: localAddrPort(c.LocalAddr())}
	p.fixed = o.Source.IsValid() || kind.proto == protoUDP && peer.IsValid()
	if err := raw.Control(func(fd uintptr) { p.errorQueue = hasErrorQueue(int(fd), kind.family) }); err != nil {
		c.Close()
		return nil, err
	}
	p.in.clock = newStampClock()
	if p.sends.wanted = o.StampSends && p.errorQueue; p.sends.wanted {
		p.out.report.clock = newStampClock()
	}
	p.out.write, p.in.read = p.writeOnce, p.readOnce
	p.in.tryRead = func(fd uintptr) { p.readOnce(fd) }
	return p, nil
}

func (c *packetConn) LocalAddr() netip.AddrPort { return c.local }

// SetReadDeadline implements PacketConn.
func (c *packetConn) SetReadDeadline(t time.Time) error { return c.sends.setDeadline(c.conn, t) }

// Close also ends a waiting Receive.
func (c *packetConn) Close() error { return c.conn.Close() }

// Send implements PacketConn.
func (c *packetConn) Send(b []byte, to netip.AddrPort) (time.Time, error) {
	return c.SendFrom(b, netip.Addr{}, to)
}

// SendFrom implements PacketConn; where from is the zero Addr it is Send.
func (c *packetConn) SendFrom(b []byte, from netip.Addr, to netip.AddrPort) (time.Time, error) {
	return c.send(b, from, to, noMark)
}

// SendMarked implements Marker.
func (c *packetConn) SendMarked(b []byte, from netip.Addr, to netip.AddrPort, mark dscp.CodePoint) (time.Time, error) {
	if mark > 63 {
		return time.Time{}, fmt.Errorf("DSCP %d is not a code point: want 0 to 63", uint8(mark))
	}
	return c.send(b, from, to, int(mark.Byte()))
}

// noMark leaves a packet the socket's own DS byte.
const noMark = -1

func (c *packetConn) send(b []byte, from netip.Addr, to netip.AddrPort, ds int) (time.Time, error) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.fixed && c.kind.family == IPv6 && !from.IsValid() {
		from = c.local.Addr() // has the kernel check that it is an address of this host: by itself it goes on sending from one that is gone
	}
	if err := c.putDestination(to); err != nil {
		return time.Time{}, err
	}
	if err := c.putControl(from, ds); err != nil {
		return time.Time{}, err
	}
	if err := c.fill(b); err != nil {
		return time.Time{}, err
	}
	err := c.sys.Write(c.out.write)
	c.out.iov = [2]unix.Iovec{} // keeps nothing of the caller's alive
	if c.sends.wanted {
		c.sends.nudge(c.conn)
	}
	if err != nil {
		return time.Time{}, err
	}
	if c.out.errno != 0 {
		return time.Time{}, c.sendError(to)
	}
	return c.out.at, nil
}

// putDestination writes the destination of the next packet, none where the socket is connected.
func (c *packetConn) putDestination(to netip.AddrPort) error {
	h := &c.out.hdr
	h.Name, h.Namelen = nil, 0
	if c.destLen > 0 {
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&c.dest)), c.destLen
		return nil
	}
	if c.peer.IsValid() {
		return nil
	}
	a, scope, err := c.scoped(to.Addr())
	if err != nil {
		return fmt.Errorf("send to %v: %w", to, err)
	}
	h.Name = (*byte)(unsafe.Pointer(&c.out.name))
	h.Namelen = putSockaddr(&c.out.name, a, to.Port(), scope)
	return nil
}

// putControl writes the control messages of the next packet: its source where from is valid, its DS byte unless ds is noMark.
func (c *packetConn) putControl(from netip.Addr, ds int) error {
	n := 0
	if from.IsValid() {
		a, scope, err := c.scoped(from)
		if err != nil {
			return fmt.Errorf("send from %v: %w", from, err)
		}
		if c.kind.family == IPv4 {
			data := c.out.put(&n, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
			*(*unix.Inet4Pktinfo)(data) = unix.Inet4Pktinfo{Spec_dst: a.As4()}
		} else {
			data := c.out.put(&n, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
			*(*unix.Inet6Pktinfo)(data) = unix.Inet6Pktinfo{Addr: a.As16(), Ifindex: scope}
		}
	}
	if ds != noMark {
		level, option := int32(unix.IPPROTO_IP), int32(unix.IP_TOS)
		if c.kind.family == IPv6 {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		}
		*(*int32)(c.out.put(&n, level, option, 4)) = int32(ds)
	}
	h := &c.out.hdr
	h.Control = nil
	if n > 0 {
		h.Control = (*byte)(unsafe.Pointer(&c.out.control))
	}
	h.SetControllen(n)
	return nil
}

// put appends the header of a control message after the first *n bytes and returns where its size bytes of data go.
func (m *message) put(n *int, level, option int32, size int) unsafe.Pointer {
	at := unsafe.Add(unsafe.Pointer(&m.control), *n)
	h := (*unix.Cmsghdr)(at)
	h.Level, h.Type = level, option
	h.SetLen(unix.CmsgLen(size))
	*n += unix.CmsgSpace(size)
	return unsafe.Add(at, unix.CmsgLen(0))
}

// scoped returns an address of the socket's family and the number of its zone.
func (c *packetConn) scoped(a netip.Addr) (netip.Addr, uint32, error) {
	a = a.Unmap()
	if !a.IsValid() || FamilyOf(a) != c.kind.family {
		return a, 0, fmt.Errorf("not an %v address, and the socket is for those only", c.kind.family)
	}
	scope, err := c.out.zones.index(a.Zone())
	return a, scope, err
}

// fill points the message to b. The checksum of a raw ICMPv4 packet is ours to compute, and b is not ours to change: its
// first four bytes go out from a copy.
func (c *packetConn) fill(b []byte) error {
	h, iov := &c.out.hdr, &c.out.iov
	h.Iov = &iov[0]
	h.SetIovlen(1)
	if !c.rawIPv4 {
		setIovec(&iov[0], b)
		return nil
	}
	if len(b) < icmpHeader {
		return fmt.Errorf("ICMP message of %d bytes: shorter than its header", len(b))
	}
	sum := echoChecksum(b)
	c.out.header = [4]byte{b[0], b[1], byte(sum >> 8), byte(sum)}
	setIovec(&iov[0], c.out.header[:])
	setIovec(&iov[1], b[4:])
	h.SetIovlen(2)
	return nil
}

func setIovec(v *unix.Iovec, b []byte) {
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
}

// writeOnce runs under sendMu. It never waits: a full queue is to be told, not hidden in the time stamp.
func (c *packetConn) writeOnce(fd uintptr) bool {
	if c.sends.wanted {
		c.sends.queue.Lock()
		defer c.sends.queue.Unlock()
		defer c.takeSendStamp(fd)
	}
	for pending := 0; ; {
		c.out.at = time.Now()
		_, c.out.errno = sendmsg(fd, &c.out.hdr, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case c.out.errno == unix.EINTR:
		case isRejection(c.out.errno) && pending < maxPending:
			// The error of an earlier packet, most likely: the socket reports it to whoever calls next, and once. What it is
			// about stays in the error queue for Receive.
			pending++
		default:
			return true
		}
	}
}

// isSourceGone reports whether errno is what the kernel says where a socket's source address is no longer the host's.
func isSourceGone(errno syscall.Errno) bool {
	return errno == unix.ENETUNREACH || errno == unix.EINVAL || errno == unix.EADDRNOTAVAIL // which of them depends on the kernel's version
}

func (c *packetConn) sendError(to netip.AddrPort) error {
	if c.peer.IsValid() {
		to = c.peer
	}
	switch errno := c.out.errno; {
	case errno == unix.ENOBUFS || errno == unix.EAGAIN:
		return fmt.Errorf("send to %v: %w (%w)", to, ErrNoBuffer, errno)
	case c.fixed && isSourceGone(errno):
		return fmt.Errorf("send to %v: %w; is %v still an address of this host?", to, errno, c.local.Addr())
	default:
		return fmt.Errorf("send to %v: %w", to, errno)
	}
}

// isRejection reports whether an ICMP error can be the cause of errno.
func isRejection(errno syscall.Errno) bool {
	switch errno {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.ENOPROTOOPT, unix.EOPNOTSUPP,
		unix.EACCES, unix.EPROTO, unix.EMSGSIZE:
		return true
	}
	return false
}

// Receive implements PacketConn.
func (c *packetConn) Receive(b []byte) (Datagram, error) {
	c.recvMu.Lock()
	defer c.recvMu.Unlock()
	in := &c.in
	in.b, in.done, in.errno, in.got = b, false, 0, Datagram{}
	defer func() { in.b, in.iov = nil, [2]unix.Iovec{} }()
	for {
		if c.sends.wanted && c.sends.takePending(in) {
			break
		}
		err := c.sys.Read(in.read)
		if err != nil && !in.done {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if c.sends.nudged(c.conn) {
					continue
				}
				return Datagram{}, os.ErrDeadlineExceeded
			}
			if errors.Is(err, net.ErrClosed) {
				return Datagram{}, err
			}
			if err := c.receiveBlind(); err != nil {
				return Datagram{}, err
			}
		}
		if in.done {
			break
		}
	}
	if in.errno != 0 {
		return Datagram{}, fmt.Errorf("receive at %v: %w", c.local, in.errno)
	}
	return in.got, nil
}

// receiveBlind takes one turn without the runtime's poller. That refuses to wait for a socket of which it last heard
// nothing but "error": an ICMP error came while the send queue was too full to be called writable. The next event ends it.
func (c *packetConn) receiveBlind() error {
	err := c.sys.Control(c.in.tryRead)
	if err != nil || c.in.done {
		return err
	}
	return c.sys.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, _ = unix.Poll(fds, int(blindWait.Milliseconds())) // whatever ends it, the caller looks at the socket again
	})
}

// readOnce runs under recvMu. It returns false where there is nothing to read, neither a packet nor an error.
func (c *packetConn) readOnce(fd uintptr) bool {
	in := &c.in
	for {
		in.prepare(c.rawIPv4)
		n, errno := recvmsg(fd, &in.hdr, unix.MSG_DONTWAIT)
		switch {
		case errno == 0:
			in.done = c.accept(n)
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			// A sender that met the error first has taken it off the socket, so the queue is looked at in any case; an error left
			// in it would wake us for nothing for ever.
			if in.done = c.readErrorQueue(fd); !in.done {
				in.clock.emptied()
				return false
			}
		case isRejection(errno) && c.errorQueue:
			// The error queue has the same with the packet and the sender, or has given it out already.
			in.done = c.readErrorQueue(fd)
		default:
			in.errno, in.done = errno, true
		}
		if in.done {
			return true
		}
	}
}

// prepare points the message to in.b, behind room for an IP header where withHeader says so.
func (in *incoming) prepare(withHeader bool) {
	h := &in.hdr
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&in.name)), unix.SizeofSockaddrInet6
	h.Control = (*byte)(unsafe.Pointer(&in.control))
	h.SetControllen(len(in.control) * 8)
	h.Flags = 0
	h.Iov = &in.iov[0]
	if !withHeader {
		setIovec(&in.iov[0], in.b)
		h.SetIovlen(1)
		return
	}
	setIovec(&in.iov[0], in.header[:])
	setIovec(&in.iov[1], in.b)
	h.SetIovlen(2)
}

func (in *incoming) controls() control {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&in.control)), len(in.control)*8)
	ctl, _ := parseControl(b[:min(int(in.hdr.Controllen), len(b))]) // what it had not read is unset in it
	return ctl
}

// accept turns the message of n bytes into a Datagram, or returns false where it is none.
func (c *packetConn) accept(n int) bool {
	in := &c.in
	r := in.clock.read()
	ctl := in.controls()
	if c.rawIPv4 {
		var ok bool
		if n, ok = in.stripIPv4(n); !ok {
			return false
		}
	}
	d := &in.got
	d.N, d.Truncated = n, in.hdr.Flags&unix.MSG_TRUNC != 0
	d.From = in.from.get(&in.name, c.kind, &in.zones)
	d.DS, d.HasDS = ctl.ds, ctl.hasDS
	d.To = in.zones.with(ctl.to, ctl.ifindex)
	d.At, d.Stamp = r.now, UserStamp
	if ctl.hasStamp {
		d.At, d.Stamp = in.clock.arrival(ctl.stamp, r)
	}
	return true
}

// stripIPv4 drops the IP header of the message, whose first bytes are in in.header and the rest in in.b, and returns the
// length of what is left.
func (in *incoming) stripIPv4(n int) (int, bool) {
	length := int(in.header[0]&0x0f) * 4
	if n < minIPv4Header || in.header[0]>>4 != 4 || length < minIPv4Header || length > n {
		return 0, false
	}
	options := length - minIPv4Header
	rest := min(n-minIPv4Header, len(in.b))
	if options > rest {
		return 0, false
	}
	return copy(in.b, in.b[options:rest]), true
}

// readErrorQueue reads ICMP errors until one concerns a packet of ours, or returns false at the queue's end.
func (c *packetConn) readErrorQueue(fd uintptr) bool {
	if !c.errorQueue {
		return false
	}
	in := &c.in
	if c.sends.wanted {
		c.sends.queue.Lock() // the sender reads it as well
		defer c.sends.queue.Unlock()
		if c.sends.takePendingLocked(in) {
			return true
		}
	}
	for {
		n, ctl, ok := in.readError(fd)
		if !ok {
			return false
		}
		if ctl.rejection != 0 && c.concerns(in) {
			in.got = in.rejection(n, &ctl)
			return true
		}
	}
}

// readError reads the next message of the error queue, or returns false at its end.
func (in *incoming) readError(fd uintptr) (n int, ctl control, ok bool) {
	for {
		in.prepare(false) // a quoted packet has lost its IP header
		n, errno := recvmsg(fd, &in.hdr, unix.MSG_DONTWAIT|unix.MSG_ERRQUEUE)
		switch errno {
		case 0:
			return n, in.controls(), true
		case unix.EINTR:
		default:
			return 0, control{}, false
		}
	}
}

// concerns reports whether the message of the error queue is about a packet to the socket's peer. A raw socket has those about other programs' packets too.
func (c *packetConn) concerns(in *incoming) bool {
	if !c.raw {
		return true
	}
	if c.kind.family == IPv4 {
		return (*unix.RawSockaddrInet4)(unsafe.Pointer(&in.name)).Addr == (*unix.RawSockaddrInet4)(unsafe.Pointer(&c.dest)).Addr
	}
	return in.name.Addr == c.dest.Addr
}

// rejection returns the ICMP error of which n bytes of the packet in question were read.
func (in *incoming) rejection(n int, ctl *control) Datagram {
	r := in.clock.read()
	d := Datagram{N: n, Truncated: in.hdr.Flags&unix.MSG_TRUNC != 0, At: r.now, Stamp: UserStamp}
	if ctl.hasStamp {
		d.At, d.Stamp = in.clock.arrival(ctl.stamp, r)
	}
	d.Rejected = &RejectedError{By: in.zones.with(ctl.by, ctl.byScope), Err: ctl.rejection, Expired: ctl.expired}
	return d
}
