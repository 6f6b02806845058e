package host

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// setOptions applies o to a socket that is neither bound nor connected.
func setOptions(fd uintptr, kind socketKind, o Options) error {
	s := int(fd)
	if o.Interface != "" {
		if err := unix.BindToDevice(s, o.Interface); err != nil {
			return fmt.Errorf("bind to device %q: %w%s", o.Interface, err, permissionHint(err))
		}
	}
	if o.DS() != 0 {
		if err := setDS(s, kind.family, int(o.DS())); err != nil {
			return fmt.Errorf("set DSCP %v and ECN %v: %w", o.DSCP, o.ECN, err)
		}
	}
	if o.TTL != 0 {
		if err := setTTL(s, kind.family, int(o.TTL)); err != nil {
			return fmt.Errorf("set TTL %d: %w", o.TTL, err)
		}
	}
	if o.CongestionControl != "" {
		if err := unix.SetsockoptString(s, unix.IPPROTO_TCP, unix.TCP_CONGESTION, o.CongestionControl); err != nil {
			return congestionError(o.CongestionControl, err)
		}
	}
	for _, b := range []struct {
		name        string
		option, len int
	}{{"send", unix.SO_SNDBUF, o.SendBuffer}, {"receive", unix.SO_RCVBUF, o.ReceiveBuffer}} {
		if b.len == 0 {
			continue
		}
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, b.option, b.len); err != nil {
			return fmt.Errorf("set %s buffer of %d bytes: %w", b.name, b.len, err)
		}
	}
	if o.ReusePort {
		if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			return fmt.Errorf("share the port: %w", err)
		}
	}
	return nil
}

// setTTL sets after how many hops a socket's packets are dropped.
func setTTL(s int, f Family, ttl int) error {
	if f == IPv4 {
		return unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_TTL, ttl)
	}
	return unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl)
}

// setDS sets the byte that a socket's packets carry. For TCP the kernel keeps its own low two bits, ECN.
func setDS(s int, f Family, ds int) error {
	if f == IPv4 {
		return unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_TOS, ds)
	}
	return unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, ds)
}

func permissionHint(err error) string {
	if errors.Is(err, os.ErrPermission) {
		return "; grant CAP_NET_RAW, or choose the path by the source address"
	}
	return ""
}

// congestionError says what the kernel would have taken.
func congestionError(name string, err error) error {
	list := func(file string) string {
		b, err := os.ReadFile("/proc/sys/net/ipv4/" + file)
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(b))
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("set congestion control %q: %w; without CAP_NET_ADMIN this kernel allows: %s",
			name, err, list("tcp_allowed_congestion_control"))
	}
	return fmt.Errorf("set congestion control %q: %w; this kernel has: %s (others may be modules to load)",
		name, err, list("tcp_available_congestion_control"))
}

// askForControl asks for the control messages that Datagram is filled from, and for stamps of what is sent where o wants them. A kernel that lacks
// one of them leaves the field that it would fill unset, and says so there: a user stamp, no DS byte, no To.
func askForControl(fd uintptr, f Family, o Options) {
	s := int(fd)
	// SO_TIMESTAMPING, not SO_TIMESTAMPNS: the latter passes off the time of the read as the time of arrival for packets
	// that came in before the kernel had begun to stamp. The new form has 64-bit seconds on every machine (Linux 5.1).
	flags := unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_SOFTWARE
	if o.StampSends {
		flags |= sendStampFlags
	}
	if unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW, flags) != nil {
		_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags)
	}
	if f == IPv4 {
		for _, option := range [...]int{unix.IP_PKTINFO, unix.IP_RECVTOS, unix.IP_RECVERR} {
			_ = unix.SetsockoptInt(s, unix.IPPROTO_IP, option, 1)
		}
		return
	}
	for _, option := range [...]int{unix.IPV6_RECVPKTINFO, unix.IPV6_RECVTCLASS, unix.IPV6_RECVERR} {
		_ = unix.SetsockoptInt(s, unix.IPPROTO_IPV6, option, 1)
	}
}

// hasErrorQueue reports whether the kernel queues the ICMP errors of this socket.
func hasErrorQueue(s int, f Family) bool {
	var on int
	var err error
	if f == IPv4 {
		on, err = unix.GetsockoptInt(s, unix.IPPROTO_IP, unix.IP_RECVERR)
	} else {
		on, err = unix.GetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_RECVERR)
	}
	return err == nil && on != 0
}
