package host

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// control is what the control messages of one packet say.
type control struct {
	stamp     int64 // nanoseconds since 1970
	hasStamp  bool
	to        netip.Addr // one of this host's addresses, without a zone; the zero Addr where not told
	ifindex   uint32     // where it came in; 0 where not told
	ds        uint8
	hasDS     bool
	rejection syscall.Errno // of an ICMP error; 0 where this is none
	by        netip.Addr    // who sent the ICMP error, without a zone; the zero Addr where not told
	byScope   uint32
	expired   bool // the ICMP error is that the TTL ran out
	sent      bool // no ICMP error: stamp is of a packet that was sent, on its way into its device's queue
	left      bool // likewise, as the device took it
	sentID    uint32
}

// Sizes of the kernel's structures, which are the same on all machines but for the message header.
const (
	sizeofLen     = unix.SizeofCmsghdr - 8 // cmsg_len is a size_t, and two ints follow
	sizeofErr     = 16                     // sock_extended_err
	offsetInfo    = 8                      // in it
	offsetData    = 12
	sizeofScope   = 4
	offsetAddr4   = 4 // in sockaddr_in
	offsetAddr6   = 8 // in sockaddr_in6
	originICMP    = unix.SO_EE_ORIGIN_ICMP
	originICMPv6  = unix.SO_EE_ORIGIN_ICMP6
	nanosPerSec   = 1_000_000_000
	maxStampSecs  = 1 << 33 // the year 2242; beyond it nanoseconds do not fit
	sizeofPktinfo = 12      // in_pktinfo: interface, local address, header's address
)

// parseControl reads the control messages of recvmsg. Messages that it does not know, and known ones of another size, are
// skipped. On an error it returns what it had read until then.
func parseControl(b []byte) (control, error) {
	var c control
	for off := 0; off < len(b); {
		rest := b[off:]
		if len(rest) < unix.SizeofCmsghdr {
			return c, &formatError{off, "control message without its header"}
		}
		size := readSize(rest)
		if size < unix.SizeofCmsghdr || size > uint64(len(rest)) {
			return c, &formatError{off, "control message longer than what is left, or shorter than its header"}
		}
		level := int32(binary.NativeEndian.Uint32(rest[sizeofLen:]))
		kind := int32(binary.NativeEndian.Uint32(rest[sizeofLen+4:]))
		c.read(level, kind, rest[unix.CmsgLen(0):size])
		off += unix.CmsgSpace(int(size) - unix.CmsgLen(0))
	}
	return c, nil
}

func readSize(b []byte) uint64 {
	if sizeofLen == 8 {
		return binary.NativeEndian.Uint64(b)
	}
	return uint64(binary.NativeEndian.Uint32(b))
}

func (c *control) read(level, kind int32, data []byte) {
	switch level {
	case unix.SOL_SOCKET:
		if kind == unix.SO_TIMESTAMPING || kind == unix.SO_TIMESTAMPING_NEW {
			c.readStamp(data)
		}
	case unix.IPPROTO_IP:
		c.readIPv4(kind, data)
	case unix.IPPROTO_IPV6:
		c.readIPv6(kind, data)
	}
}

// readStamp reads the first of three timespecs, the software stamp; it is zero where the packet was not stamped. Their
// size tells the form: the old one has the machine's own time_t.
func (c *control) readStamp(data []byte) {
	var sec, nsec int64
	switch len(data) {
	case 3 * 16:
		sec, nsec = int64(binary.NativeEndian.Uint64(data)), int64(binary.NativeEndian.Uint64(data[8:]))
	case 3 * 8:
		sec, nsec = int64(int32(binary.NativeEndian.Uint32(data))), int64(int32(binary.NativeEndian.Uint32(data[4:])))
	}
	if sec <= 0 || sec > maxStampSecs || nsec < 0 || nsec >= nanosPerSec {
		return
	}
	c.stamp, c.hasStamp = sec*nanosPerSec+nsec, true
}

func (c *control) readIPv4(kind int32, data []byte) {
	switch kind {
	case unix.IP_TOS:
		if len(data) >= 1 {
			c.ds, c.hasDS = data[0], true
		}
	case unix.IP_PKTINFO:
		if len(data) < sizeofPktinfo {
			return
		}
		c.ifindex = binary.NativeEndian.Uint32(data)
		// The second address is the one in the packet's header, which may be a broadcast; the first is ours to answer from, and
		// ping sockets, which hear replies to us alone, leave it zero.
		a, header := netip.AddrFrom4([4]byte(data[4:8])), netip.AddrFrom4([4]byte(data[8:12]))
		if a.IsUnspecified() {
			a = header
		}
		if !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			c.to = a
		}
	case unix.IP_RECVERR:
		c.readError(data, originICMP)
	}
}

func (c *control) readIPv6(kind int32, data []byte) {
	switch kind {
	case unix.IPV6_TCLASS:
		if len(data) >= 4 {
			c.ds, c.hasDS = uint8(binary.NativeEndian.Uint32(data)), true
		}
	case unix.IPV6_PKTINFO:
		if len(data) < unix.SizeofInet6Pktinfo {
			return
		}
		c.ifindex = binary.NativeEndian.Uint32(data[16:])
		if a := netip.AddrFrom16([16]byte(data)); !a.IsMulticast() && !a.IsUnspecified() {
			c.to = a
		}
	case unix.IPV6_RECVERR:
		c.readError(data, originICMPv6)
	}
}

// readError reads an extended error and the address of who sent it (the "offender") behind it. Errors of another origin
// are this host's own: the call that met them has returned them.
func (c *control) readError(data []byte, origin uint8) {
	if len(data) < sizeofErr {
		return
	}
	if data[4] == unix.SO_EE_ORIGIN_TIMESTAMPING {
		where := binary.NativeEndian.Uint32(data[offsetInfo:])
		c.sent, c.left = where == unix.SCM_TSTAMP_SCHED, where == unix.SCM_TSTAMP_SND
		c.sentID = binary.NativeEndian.Uint32(data[offsetData:])
	}
	if data[4] != origin {
		return
	}
	c.rejection = syscall.Errno(binary.NativeEndian.Uint32(data))
	const inTransit = 0
	c.expired = data[6] == inTransit && (origin == originICMP && data[5] == icmpTimeExceeded || origin == originICMPv6 && data[5] == icmp6TimeExceeded)
	who := data[sizeofErr:]
	if len(who) < 2 {
		return
	}
	switch family := binary.NativeEndian.Uint16(who); {
	case family == unix.AF_INET && len(who) >= offsetAddr4+4:
		c.by = netip.AddrFrom4([4]byte(who[offsetAddr4:]))
	case family == unix.AF_INET6 && len(who) >= offsetAddr6+16+sizeofScope:
		c.by = netip.AddrFrom16([16]byte(who[offsetAddr6:])).Unmap()
		c.byScope = binary.NativeEndian.Uint32(who[offsetAddr6+16:])
	}
}
