package host

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// putSockaddr writes an address to dst as the kernel wants it and returns its length.
func putSockaddr(dst *unix.RawSockaddrInet6, a netip.Addr, port uint16, scope uint32) uint32 {
	if a.Is4() {
		d := (*unix.RawSockaddrInet4)(unsafe.Pointer(dst))
		*d = unix.RawSockaddrInet4{Family: unix.AF_INET, Port: swapPort(port), Addr: a.As4()}
		return unix.SizeofSockaddrInet4
	}
	*dst = unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: swapPort(port), Addr: a.As16(), Scope_id: scope}
	return unix.SizeofSockaddrInet6
}

// swapPort turns a port into network byte order or back.
func swapPort(port uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&port))
	return uint16(b[0])<<8 | uint16(b[1])
}

// addrCache turns the sender's address into a netip.AddrPort. It keeps the last one, because an address with a zone
// allocates, and one peer sends many packets.
type addrCache struct {
	raw   unix.RawSockaddrInet6
	addr  netip.AddrPort
	valid bool
}

func (c *addrCache) get(raw *unix.RawSockaddrInet6, kind socketKind, zones *zoneNames) netip.AddrPort {
	if raw.Family == unix.AF_INET {
		r := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw))
		return netip.AddrPortFrom(netip.AddrFrom4(r.Addr), echoPort(kind, r.Port))
	}
	if raw.Family != unix.AF_INET6 {
		return netip.AddrPort{}
	}
	if !c.valid || c.raw != *raw {
		a := zones.with(netip.AddrFrom16(raw.Addr), raw.Scope_id)
		c.raw, c.addr, c.valid = *raw, netip.AddrPortFrom(a, echoPort(kind, raw.Port)), true
	}
	return c.addr
}

// echoPort is the port in host order, or 0 for ICMP, where the kernel may put something else in its place.
func echoPort(kind socketKind, port uint16) uint16 {
	if kind.proto == protoEcho {
		return 0
	}
	return swapPort(port)
}

// zoneNames keeps the names of network devices, by which Go calls IPv6 zones, and the numbers, by which the kernel does.
// It is not safe for concurrent use.
type zoneNames struct {
	byIndex map[uint32]string
	byName  map[string]uint32
	last    netip.Addr // with a zone, made from bare and lastIndex
	bare    netip.Addr
	scope   uint32
}

// with returns a with the zone of that number where it needs one.
func (z *zoneNames) with(a netip.Addr, index uint32) netip.Addr {
	if index == 0 || !a.Is6() || !a.IsLinkLocalUnicast() && !a.IsLinkLocalMulticast() {
		return a
	}
	if a == z.bare && index == z.scope {
		return z.last
	}
	name, ok := z.byIndex[index]
	if !ok {
		name = strconv.FormatUint(uint64(index), 10)
		if dev, err := net.InterfaceByIndex(int(index)); err == nil {
			name = dev.Name
		}
		if z.byIndex == nil {
			z.byIndex = make(map[uint32]string)
		}
		z.byIndex[index] = name
	}
	z.bare, z.scope, z.last = a, index, a.WithZone(name)
	return z.last
}

// index returns the number of a zone, 0 for none.
func (z *zoneNames) index(name string) (uint32, error) {
	if name == "" {
		return 0, nil
	}
	if i, ok := z.byName[name]; ok {
		return i, nil
	}
	i, err := strconv.ParseUint(name, 10, 32)
	if dev, derr := net.InterfaceByName(name); derr == nil {
		i, err = uint64(dev.Index), nil
	}
	if err != nil {
		return 0, fmt.Errorf("no network device %q", name)
	}
	if z.byName == nil {
		z.byName = make(map[string]uint32)
	}
	z.byName[name] = uint32(i)
	return uint32(i), nil
}
