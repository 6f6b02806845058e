package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	randv2 "math/rand/v2"
	"net"
	"net/netip"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"bufferbloat/internal/host"
)

// Sizes of the sockets' buffers, in bytes. A send buffer begins small and follows the congestion window, as the kernel's does: what a
// flow has queued when it is told to stop still has to be sent.
const (
	minBuffer, maxBuffer        = 4 << 10, 8 << 20
	sendBuffer, receiveBuffer   = 32 << 10, 1 << 20
	nicID                       = tcpip.NICID(1)
	hostBits4, hostBits6        = 24, 64
	unlimitedICMP, icmpInABurst = 1e9, 1 << 30
)

// Host is one of the lab's two hosts. It implements host.Host; see there. What the lab does not have is an error that wraps
// errors.ErrUnsupported: Options.Interface, ICMPTimestamp, and a CongestionControl other than "cubic".
type Host struct {
	lab   *Lab
	name  string
	ipv4  netip.Addr
	ipv6  netip.Addr
	stack *stack.Stack
	nic   *nic

	mu   sync.Mutex
	open map[io.Closer]struct{} // sockets, so that the end of the lab ends them; nil when it has
}

func (l *Lab) newHost(name string, v4, v6 netip.Addr, seed uint64) *Host {
	h := &Host{lab: l, name: name, ipv4: v4, ipv6: v6, open: map[io.Closer]struct{}{}}
	h.nic = &nic{lab: l, flows: map[flowKey]*flow{}}
	h.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocolCUBIC, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
		Clock:              stackClock{l},
		RandSource:         &lockedSource{source: rand.NewSource(int64(seed)).(rand.Source64)},
		SecureRNG:          newLockedReader(seed),
		HandleLocal:        true,
	})
	return h
}

// attach connects the stack to the link.
func (h *Host) attach() error {
	if err := h.stack.CreateNICWithOptions(nicID, h.nic, stack.NICOptions{Name: "lab0"}); err != nil {
		return fmt.Errorf("lab %s: create the network device: %w", h.name, errno(err))
	}
	for _, a := range []struct {
		protocol tcpip.NetworkProtocolNumber
		addr     netip.Addr
		bits     int
	}{{ipv4.ProtocolNumber, h.ipv4, hostBits4}, {ipv6.ProtocolNumber, h.ipv6, hostBits6}} {
		with := tcpip.AddressWithPrefix{Address: stackAddr(a.addr), PrefixLen: a.bits}
		err := h.stack.AddProtocolAddress(nicID, tcpip.ProtocolAddress{Protocol: a.protocol, AddressWithPrefix: with}, stack.AddressProperties{})
		if err != nil {
			return fmt.Errorf("lab %s: add address %v: %w", h.name, a.addr, errno(err))
		}
		h.stack.AddRoute(tcpip.Route{Destination: with.Subnet(), NIC: nicID})
	}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: minBuffer, Default: sendBuffer, Max: maxBuffer}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: minBuffer, Default: receiveBuffer, Max: maxBuffer}
	for _, o := range []tcpip.SettableTransportProtocolOption{&send, &receive} {
		if err := h.stack.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("lab %s: set TCP's buffers: %w", h.name, errno(err))
		}
	}
	for _, o := range []any{tcpip.SendBufferSizeOption{Min: minBuffer, Default: receiveBuffer, Max: maxBuffer},
		tcpip.ReceiveBufferSizeOption{Min: minBuffer, Default: receiveBuffer, Max: maxBuffer}} {
		if err := h.stack.SetOption(o); err != nil {
			return fmt.Errorf("lab %s: set the datagram buffers: %w", h.name, errno(err))
		}
	}
	// A host answers every ping; the stack's limit of 1000 a second would look like loss on the link.
	h.stack.SetICMPLimit(unlimitedICMP)
	h.stack.SetICMPBurst(icmpInABurst)
	return nil
}

// close ends the sockets and the stack.
func (h *Host) close() {
	h.mu.Lock()
	open := h.open
	h.open = nil
	h.mu.Unlock()
	for c := range open {
		c.Close()
	}
	h.stack.Close()
	h.stack.Wait()
}

// add keeps track of a socket; it closes it at once and fails where the lab is over.
func (h *Host) add(c io.Closer) error {
	h.mu.Lock()
	ok := h.open != nil && !over(h.lab.done)
	if ok {
		h.open[c] = struct{}{}
	}
	h.mu.Unlock()
	if !ok {
		c.Close()
		return h.lab.errOver()
	}
	return nil
}

func (h *Host) remove(c io.Closer) {
	h.mu.Lock()
	delete(h.open, c)
	h.mu.Unlock()
}

// Name implements host.Network.
func (h *Host) Name() string { return "lab (in process)" }

// Resolve implements host.Network. It knows Name, and addresses in text.
func (h *Host) Resolve(ctx context.Context, name string, family host.Family) ([]netip.Addr, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	addrs := []netip.Addr{serverIPv4, serverIPv6}
	if name != Name {
		a, err := netip.ParseAddr(name)
		if err != nil {
			return nil, &net.DNSError{Err: "the lab knows only the name " + Name, Name: name, IsNotFound: true}
		}
		addrs = []netip.Addr{a}
	}
	var found []netip.Addr
	for _, a := range addrs {
		if family == host.AnyFamily || family == host.FamilyOf(a) {
			found = append(found, a)
		}
	}
	if len(found) == 0 {
		return nil, &net.DNSError{Err: fmt.Sprintf("no %v address", family), Name: name, IsNotFound: true}
	}
	return found, nil
}

// endpoint returns a new socket of the transport for the family of a, with the options of o applied.
func (h *Host) endpoint(ctx context.Context, t tcpip.TransportProtocolNumber, a netip.Addr, o host.Options) (tcpip.Endpoint, *waiter.Queue, error) {
	if err := h.lab.begun(ctx); err != nil {
		return nil, nil, err
	}
	switch {
	case !a.IsValid():
		return nil, nil, errors.New("no address")
	case o.Interface != "":
		return nil, nil, fmt.Errorf("send through interface %q: %w in the lab, which has one link only", o.Interface, errors.ErrUnsupported)
	case o.CongestionControl != "" && o.CongestionControl != "cubic":
		return nil, nil, fmt.Errorf("congestion control %q: %w in the lab, which has cubic only", o.CongestionControl, errors.ErrUnsupported)
	case o.ICMPTimestamp:
		return nil, nil, fmt.Errorf("ICMP timestamps: %w in the lab, whose hosts do not answer them", errors.ErrUnsupported)
	case o.ECN != host.NotECT && t == tcp.ProtocolNumber:
		return nil, nil, fmt.Errorf("%v on a TCP socket: %w, because TCP negotiates ECN itself", o.ECN, errors.ErrUnsupported)
	case o.Source.IsValid() && host.FamilyOf(o.Source) != host.FamilyOf(a):
		return nil, nil, fmt.Errorf("source %v and %v are of two families", o.Source, a)
	}
	network := ipv4.ProtocolNumber
	if host.FamilyOf(a) == host.IPv6 {
		network = ipv6.ProtocolNumber
	}
	wq := &waiter.Queue{}
	ep, terr := h.stack.NewEndpoint(t, network, wq)
	if terr != nil {
		return nil, nil, errno(terr)
	}
	ops := ep.SocketOptions()
	ops.SetV6Only(true)
	ops.SetReusePort(o.ReusePort)
	if o.SendBuffer > 0 {
		ops.SetSendBufferSize(int64(o.SendBuffer), true)
	}
	if o.ReceiveBuffer > 0 {
		ops.SetReceiveBufferSize(int64(o.ReceiveBuffer), true)
	}
	if terr := setDSCP(ep, a, o); terr != nil {
		ep.Close()
		return nil, nil, fmt.Errorf("set DSCP %v and ECN %v: %w", o.DSCP, o.ECN, errno(terr))
	}
	if o.TTL != 0 {
		if terr := ep.SetSockOptInt(ttlOption(a), int(o.TTL)); terr != nil {
			ep.Close()
			return nil, nil, fmt.Errorf("set TTL %d: %w", o.TTL, errno(terr))
		}
	}
	if o.Source.IsValid() {
		if terr := ep.Bind(tcpip.FullAddress{Addr: stackAddr(o.Source)}); terr != nil {
			ep.Close()
			return nil, nil, fmt.Errorf("send from %v: %w", o.Source, errno(terr))
		}
	}
	return ep, wq, nil
}

// setDSCP makes ep send with the DS byte of o to addresses of a's family.
func setDSCP(ep tcpip.Endpoint, a netip.Addr, o host.Options) tcpip.Error {
	return ep.SetSockOptInt(dsOption(a), int(o.DS()))
}

// dsOption is the socket option that holds the DS byte towards a.
func dsOption(a netip.Addr) tcpip.SockOptInt {
	if host.FamilyOf(a) == host.IPv6 {
		return tcpip.IPv6TrafficClassOption
	}
	return tcpip.IPv4TOSOption
}

// ttlOption is the socket option that holds the number of hops towards a.
func ttlOption(a netip.Addr) tcpip.SockOptInt {
	if host.FamilyOf(a) == host.IPv6 {
		return tcpip.IPv6HopLimitOption
	}
	return tcpip.IPv4TTLOption
}

// stackAddr returns a in the stack's form; an unspecified address is the empty one there.
func stackAddr(a netip.Addr) tcpip.Address {
	a = a.Unmap()
	if !a.IsValid() || a.IsUnspecified() {
		return tcpip.Address{}
	}
	return tcpip.AddrFromSlice(a.AsSlice())
}

func fullAddr(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{Addr: stackAddr(a.Addr()), Port: a.Port()}
}

// addrPort returns a in netip's form; the empty address is the unspecified one of the family.
func addrPort(a tcpip.FullAddress, family host.Family) netip.AddrPort {
	ip, ok := netip.AddrFromSlice(a.Addr.AsSlice())
	switch {
	case ok:
	case family == host.IPv6:
		ip = netip.IPv6Unspecified()
	default:
		ip = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(ip, a.Port)
}

// own reports whether a is one of the host's addresses.
func (h *Host) own(a netip.Addr) bool { return a.Unmap() == h.ipv4 || a == h.ipv6 }

// lockedSource is a random source for several goroutines.
type lockedSource struct {
	mu     sync.Mutex
	source rand.Source64
}

func (s *lockedSource) Int63() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source.Int63()
}

func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source.Uint64()
}

func (s *lockedSource) Seed(seed int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.source.Seed(seed)
}

// lockedReader is a stream of random bytes for several goroutines. Nothing here is secret: equal seeds must give equal runs.
type lockedReader struct {
	mu     sync.Mutex
	stream *randv2.ChaCha8
}

func newLockedReader(seed uint64) *lockedReader {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	return &lockedReader{stream: randv2.NewChaCha8(key)}
}

func (r *lockedReader) Read(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stream.Read(b)
}

var (
	_ host.Host          = (*Host)(nil)
	_ stack.LinkEndpoint = (*nic)(nil)
	_ tcpip.Clock        = stackClock{}
)
