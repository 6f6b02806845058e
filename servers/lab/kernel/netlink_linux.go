package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The five requests to rtnetlink(7) that a lab needs, written out: the usual library for it would be larger than all else here together.

// request is a netlink message under construction.
type request struct{ b []byte }

func newRequest(kind, flags uint16) *request {
	r := &request{make([]byte, unix.SizeofNlMsghdr, 512)}
	h := (*unix.NlMsghdr)(unsafe.Pointer(&r.b[0]))
	h.Type, h.Flags, h.Seq = kind, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags, 1
	return r
}

func (r *request) append(b ...byte) {
	r.b = append(r.b, b...)
	for len(r.b)%unix.NLMSG_ALIGNTO != 0 {
		r.b = append(r.b, 0)
	}
}

func (r *request) word(w uint32) { r.append(binary.NativeEndian.AppendUint32(nil, w)...) }

// attribute appends an attribute with this value.
func (r *request) attribute(kind uint16, value []byte) {
	r.b = binary.NativeEndian.AppendUint16(r.b, uint16(unix.SizeofRtAttr+len(value)))
	r.b = binary.NativeEndian.AppendUint16(r.b, kind)
	r.append(value...)
}

func (r *request) number(kind uint16, n uint32) {
	r.attribute(kind, binary.NativeEndian.AppendUint32(nil, n))
}

// nest appends an attribute whose value is what fill appends.
func (r *request) nest(kind uint16, fill func()) {
	start := len(r.b)
	r.attribute(kind, nil)
	fill()
	binary.NativeEndian.PutUint16(r.b[start:], uint16(len(r.b)-start))
}

// infomsg appends a struct ifinfomsg.
func (r *request) infomsg(index int, flags, change uint32) {
	r.append(unix.AF_UNSPEC, 0, 0, 0)
	r.word(uint32(index))
	r.word(flags)
	r.word(change)
}

// do sends the request and waits for the kernel's answer, in the calling thread's network namespace.
func (r *request) do() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer unix.Close(fd)
	binary.NativeEndian.PutUint32(r.b, uint32(len(r.b)))
	if err := unix.Sendto(fd, r.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask netlink: %w", err)
	}
	b := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return fmt.Errorf("netlink's answer: %w", err)
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(b[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("netlink's answer of %d bytes is no acknowledgement", n)
	}
	if errno := -int32(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

const vethInfoPeer = 1 // VETH_INFO_PEER

// end is one end of a veth pair.
type end struct {
	name string
	mac  [6]byte
}

// addVeth makes a pair of devices: here in the calling thread's namespace, there in that of the descriptor.
func addVeth(here, there end, namespace int) error {
	r := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	describe := func(e end) {
		r.infomsg(0, 0, 0)
		r.attribute(unix.IFLA_IFNAME, append([]byte(e.name), 0))
		r.attribute(unix.IFLA_ADDRESS, e.mac[:])
		r.number(unix.IFLA_MTU, mtu)
	}
	describe(here)
	r.nest(unix.IFLA_LINKINFO, func() {
		r.attribute(unix.IFLA_INFO_KIND, []byte("veth"))
		r.nest(unix.IFLA_INFO_DATA, func() {
			r.nest(vethInfoPeer, func() {
				describe(there)
				r.number(unix.IFLA_NET_NS_FD, uint32(namespace))
			})
		})
	})
	return r.do()
}

// setUp turns a device on.
func setUp(index int) error {
	r := newRequest(unix.RTM_NEWLINK, 0)
	r.infomsg(index, unix.IFF_UP, unix.IFF_UP)
	return r.do()
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// addAddress gives a device an address, usable at once.
func addAddress(index int, p netip.Prefix) error {
	r := newRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	r.append(family(p.Addr()), byte(p.Bits()), unix.IFA_F_NODAD, unix.RT_SCOPE_UNIVERSE)
	r.word(uint32(index))
	r.attribute(unix.IFA_LOCAL, p.Addr().AsSlice())
	r.attribute(unix.IFA_ADDRESS, p.Addr().AsSlice())
	return r.do()
}

// addNeighbour says once and for all which Ethernet address is behind an IP address.
func addNeighbour(index int, a netip.Addr, mac [6]byte) error {
	r := newRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	r.append(family(a), 0, 0, 0)
	r.word(uint32(index))
	r.append(append(binary.NativeEndian.AppendUint16(nil, unix.NUD_PERMANENT), 0, 0)...)
	r.attribute(unix.NDA_DST, a.AsSlice())
	r.attribute(unix.NDA_LLADDR, mac[:])
	return r.do()
}
