package host

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
)

// formatError says what is wrong with bytes from the network or the kernel, and where.
type formatError struct {
	Offset int
	What   string
}

func (e *formatError) Error() string { return fmt.Sprintf("byte %d: %s", e.Offset, e.What) }

// The ICMP types of RFC 792 and RFC 4443 that concern an echo.
const (
	icmpEchoReply    = 0
	icmpUnreachable  = 3
	icmpEcho         = 8
	icmpTimeExceeded = 11
	icmpParameter    = 12

	icmpTimestampReply = 14

	icmp6Unreachable  = 1
	icmp6TooBig       = 2
	icmp6TimeExceeded = 3
	icmp6Parameter    = 4
	icmp6Echo         = 128
	icmp6EchoReply    = 129
)

const (
	minIPv4Header = 20
	ipv6Header    = 40
	icmpHeader    = 8
)

// parseICMPError reads an ICMP error message, from its ICMP header on, about an echo request to target: it returns the request from its
// own ICMP header on, as much as came back, and the error by its system number. An error about any other packet is an
// error here. quoted is a part of b. Systems whose sockets queue the errors of their own packets do not need it.
func parseICMPError(b []byte, target netip.Addr) (quoted []byte, cause syscall.Errno, err error) {
	if len(b) < icmpHeader {
		return nil, 0, &formatError{len(b), "ends in the ICMP header"}
	}
	if target.Is4() {
		if cause = icmpCause(b[0], b[1]); cause == 0 {
			return nil, 0, &formatError{0, "not an ICMP error"}
		}
		quoted, err = quotedEcho4(b, target)
	} else {
		if cause = icmp6Cause(b[0], b[1]); cause == 0 {
			return nil, 0, &formatError{0, "not an ICMPv6 error"}
		}
		quoted, err = quotedEcho6(b, target)
	}
	if err != nil {
		return nil, 0, err
	}
	return quoted, cause, nil
}

func quotedEcho4(b []byte, target netip.Addr) ([]byte, error) {
	p := b[icmpHeader:]
	if len(p) < minIPv4Header || p[0]>>4 != 4 {
		return nil, &formatError{icmpHeader, "no IPv4 header"}
	}
	length := int(p[0]&0x0f) * 4
	if length < minIPv4Header || len(p) < length+icmpHeader {
		return nil, &formatError{icmpHeader, "IPv4 header of a false length, or less than 8 bytes behind it"}
	}
	const fragmentOffset = 0x1fff
	if p[9] != 1 || binary.BigEndian.Uint16(p[6:])&fragmentOffset != 0 || netip.AddrFrom4([4]byte(p[16:20])) != target || p[length] != icmpEcho {
		return nil, &formatError{icmpHeader, "not about an echo request to the target"}
	}
	return p[length:], nil
}

func quotedEcho6(b []byte, target netip.Addr) ([]byte, error) {
	p := b[icmpHeader:]
	if len(p) < ipv6Header+icmpHeader || p[0]>>4 != 6 {
		return nil, &formatError{icmpHeader, "no IPv6 header, or less than 8 bytes behind it"}
	}
	const nextICMPv6 = 58
	if p[6] != nextICMPv6 || netip.AddrFrom16([16]byte(p[24:40])) != target.WithZone("") || p[ipv6Header] != icmp6Echo {
		return nil, &formatError{icmpHeader, "not about an echo request to the target"}
	}
	return p[ipv6Header:], nil
}

// icmpCause returns the system's number for an ICMP error, as RFC 1122 section 4.2.3.9 sorts them, or 0 for other types.
func icmpCause(kind, code byte) syscall.Errno {
	switch kind {
	case icmpTimeExceeded:
		return syscall.EHOSTUNREACH
	case icmpParameter:
		return syscall.EPROTO
	case icmpUnreachable:
		switch code {
		case 0, 6, 9, 11: // net unreachable, unknown, prohibited, not for this service
			return syscall.ENETUNREACH
		case 2: // protocol
			return syscall.ENOPROTOOPT
		case 3: // port
			return syscall.ECONNREFUSED
		case 4: // fragmentation needed
			return syscall.EMSGSIZE
		}
		return syscall.EHOSTUNREACH
	}
	return 0
}

// icmp6Cause is icmpCause for ICMPv6.
func icmp6Cause(kind, code byte) syscall.Errno {
	switch kind {
	case icmp6TooBig:
		return syscall.EMSGSIZE
	case icmp6TimeExceeded:
		return syscall.EHOSTUNREACH
	case icmp6Parameter:
		return syscall.EPROTO
	case icmp6Unreachable:
		switch code {
		case 0: // no route
			return syscall.ENETUNREACH
		case 1, 5, 6: // prohibited
			return syscall.EACCES
		case 4: // port
			return syscall.ECONNREFUSED
		}
		return syscall.EHOSTUNREACH
	}
	return 0
}
