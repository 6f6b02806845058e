package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const echoPermissionHint = "add your group to the sysctl net.ipv4.ping_group_range, or grant the program CAP_NET_RAW"

// echoConn is a connected ICMP socket. The kernel then gives it the replies of its peer alone, and puts the ICMP errors
// about what it sent into its error queue, those of raw sockets too.
type echoConn struct {
	*packetConn
	id    uint16
	hasID bool
}

func (c *echoConn) Identifier() (uint16, bool) { return c.id, c.hasID }

// DialEcho implements Network.
func (k *Kernel) DialEcho(ctx context.Context, to netip.Addr, o Options) (EchoConn, error) {
	to = to.Unmap()
	kind := socketKind{family: FamilyOf(to), proto: protoEcho}
	if err := checkOptions(to, kind, o); err != nil {
		return nil, fmt.Errorf("open ICMP socket to %v: %w", to, err)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("open ICMP socket to %v: %w", to, context.Cause(ctx))
	}
	var pingErr, rawErr error
	if k.Echo != RawEchoSocket && !o.ICMPTimestamp { // ping sockets know echo alone
		fd, err := echoSocket(kind.family, unix.SOCK_DGRAM)
		if err == nil {
			return dialEcho(fd, kind, false, to, o)
		}
		pingErr = err
	}
	if k.Echo != PingEchoSocket {
		fd, err := echoSocket(kind.family, unix.SOCK_RAW)
		if err == nil {
			return dialEcho(fd, kind, true, to, o)
		}
		rawErr = err
	}
	return nil, echoOpenError(to, pingErr, rawErr)
}

func echoSocket(f Family, kind int) (int, error) {
	domain, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if f == IPv6 {
		domain, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return -1, fmt.Errorf("this host has no %v: %w (%w)", f, errors.ErrUnsupported, err)
	}
	return fd, err
}

// dialEcho makes an EchoConn of fd and takes it over, also where it fails.
func dialEcho(fd int, kind socketKind, raw bool, to netip.Addr, o Options) (EchoConn, error) {
	c, err := connectEcho(fd, kind, raw, to, o)
	if err != nil {
		return nil, fmt.Errorf("open ICMP socket to %v: %w", to, err)
	}
	return c, nil
}

func connectEcho(fd int, kind socketKind, raw bool, to netip.Addr, o Options) (*echoConn, error) {
	// FilePacketConn makes its own copy of the descriptor, known to the runtime's poller.
	f := os.NewFile(uintptr(fd), "icmp")
	defer f.Close()
	if err := setUpEcho(fd, kind, raw, to, o); err != nil {
		return nil, err
	}
	nc, err := net.FilePacketConn(f)
	if err != nil {
		return nil, err
	}
	p, err := newPacketConn(nc, kind, netip.AddrPortFrom(to, 0), o)
	if err != nil {
		return nil, err
	}
	p.rawIPv4 = raw && kind.family == IPv4
	c := &echoConn{packetConn: p}
	if !raw {
		c.id, c.hasID = p.local.Port(), true
	}
	p.local = netip.AddrPortFrom(p.local.Addr(), 0)
	return c, nil
}

func setUpEcho(fd int, kind socketKind, raw bool, to netip.Addr, o Options) error {
	if err := setOptions(uintptr(fd), kind, o); err != nil {
		return err
	}
	askForControl(uintptr(fd), kind.family, o)
	if raw {
		reply := uint8(icmpEchoReply)
		if o.ICMPTimestamp {
			reply = icmpTimestampReply
		}
		if err := filterICMP(fd, kind.family, reply); err != nil {
			return fmt.Errorf("filter for replies: %w", err)
		}
	}
	if o.Source.IsValid() {
		source, err := sockaddr(o.Source.Unmap())
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, source); err != nil {
			return fmt.Errorf("bind to source %v: %w", o.Source, err)
		}
	}
	peer, err := sockaddr(to)
	if err != nil {
		return err
	}
	for {
		if err := unix.Connect(fd, peer); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// filterICMP lets only replies of one type through to a raw socket, with ICMPv6 those to an echo. The errors come by the error queue, which
// no filter bars.
func filterICMP(fd int, f Family, reply uint8) error {
	if f == IPv4 {
		return unix.SetsockoptInt(fd, unix.SOL_RAW, unix.ICMP_FILTER, -1&^(1<<reply)) // a mask of the types to drop
	}
	var filter unix.ICMPv6Filter
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	filter.Data[icmp6EchoReply/32] &^= 1 << (icmp6EchoReply % 32)
	return unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &filter)
}

func sockaddr(a netip.Addr) (unix.Sockaddr, error) {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}, nil
	}
	var scope uint32
	if zone := a.Zone(); zone != "" {
		if dev, err := net.InterfaceByName(zone); err == nil {
			scope = uint32(dev.Index)
		} else if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
			scope = uint32(n)
		} else {
			return nil, fmt.Errorf("no network device %q", zone)
		}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), ZoneId: scope}, nil
}
