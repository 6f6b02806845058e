package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

const echoPermissionHint = "add your group to the sysctl net.ipv4.ping_group_range, or grant the program CAP_NET_RAW"

// echoConn is an ICMP socket that sends to one peer. Of replies the kernel gives a raw socket those of the peer alone, and a ping socket those with its
// identifier, whoever they are from: a host may answer from another of its addresses, and who tells a reply by its data loses nothing by a stranger's. The
// kernel puts the ICMP errors about what was sent into the socket's error queue, for raw sockets too. It is not connected: a connected socket sends from the
// address that the host had at that moment, and hears what comes to that alone.
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
	c, err := openEcho(fd, kind, raw, to, o)
	if err != nil {
		return nil, fmt.Errorf("open ICMP socket to %v: %w", to, err)
	}
	return c, nil
}

func openEcho(fd int, kind socketKind, raw bool, to netip.Addr, o Options) (*echoConn, error) {
	// FilePacketConn makes its own copy of the descriptor, known to the runtime's poller.
	f := os.NewFile(uintptr(fd), "icmp")
	defer f.Close()
	peer, err := sockaddr(to)
	if err != nil {
		return nil, err
	}
	if err := setUpEcho(fd, kind, raw, to, o); err != nil {
		return nil, err
	}
	source, err := sourceTo(peer, kind.family, o)
	if err != nil {
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
	p.raw, p.rawIPv4 = raw, raw && kind.family == IPv4
	p.destLen = putSockaddr(&p.dest, to, 0, scopeOf(peer))
	c := &echoConn{packetConn: p}
	if !raw {
		c.id, c.hasID = p.local.Port(), true
	}
	p.local = netip.AddrPortFrom(source, 0)
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
		if err := filterPeer(fd, to); err != nil {
			return fmt.Errorf("filter for what %v sends: %w", to, err)
		}
	}
	return bindSource(fd, kind.family, o) // which gives a ping socket its identifier
}

// bindSource binds a socket to the source that o names, or to all addresses.
func bindSource(fd int, f Family, o Options) error {
	source := netip.IPv4Unspecified()
	if f == IPv6 {
		source = netip.IPv6Unspecified()
	}
	if o.Source.IsValid() {
		source = o.Source.Unmap()
	}
	a, err := sockaddr(source)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, a); err != nil {
		return fmt.Errorf("bind to source %v: %w", source, err)
	}
	return nil
}

// sourceTo returns the address that packets to peer leave from as the routes are now, or says why there is no way there. It sends nothing.
func sourceTo(peer unix.Sockaddr, f Family, o Options) (netip.Addr, error) {
	domain := unix.AF_INET
	if f == IPv6 {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return netip.Addr{}, err
	}
	defer unix.Close(fd)
	if err := setOptions(uintptr(fd), socketKind{family: f, proto: protoUDP}, o); err != nil {
		return netip.Addr{}, err
	}
	if err := bindSource(fd, f, o); err != nil {
		return netip.Addr{}, err
	}
	if err := unix.Connect(fd, peer); err != nil {
		return netip.Addr{}, err
	}
	local, err := unix.Getsockname(fd)
	if err != nil {
		return netip.Addr{}, err
	}
	switch a := local.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr), nil
	case *unix.SockaddrInet6:
		return new(zoneNames).with(netip.AddrFrom16(a.Addr), a.ZoneId), nil
	}
	return netip.Addr{}, nil
}

// scopeOf returns the number of an address's zone, 0 for none.
func scopeOf(a unix.Sockaddr) uint32 {
	if a, ok := a.(*unix.SockaddrInet6); ok {
		return a.ZoneId
	}
	return 0
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

// filterPeer lets only packets of one sender through to a raw socket.
func filterPeer(fd int, from netip.Addr) error {
	const header4, header6 = 12, 8 // where the IP headers have the sender
	at, sender := uint32(header4), from.AsSlice()
	if from.Is6() {
		at = header6
	}
	words := len(sender) / 4
	var filter []unix.SockFilter
	for i := range words {
		const load, jumpIfEqual = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		filter = append(filter, unix.SockFilter{Code: load, K: networkHeader + at + uint32(4*i)},
			unix.SockFilter{Code: jumpIfEqual, Jf: uint8(2*(words-i) - 1), K: binary.BigEndian.Uint32(sender[4*i:])})
	}
	const give, all = unix.BPF_RET | unix.BPF_K, 1 << 18
	filter = append(filter, unix.SockFilter{Code: give, K: all}, unix.SockFilter{Code: give, K: 0})
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// networkHeader is where a socket filter finds the IP header, whatever the socket's own data begin with (linux/filter.h, SKF_NET_OFF).
const networkHeader = 1<<32 - 0x100000

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
