package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// DialUDP implements Network.
func (k *Kernel) DialUDP(ctx context.Context, to netip.AddrPort, o Options) (PacketConn, error) {
	to = unmapPort(to)
	kind := socketKind{family: FamilyOf(to.Addr()), proto: protoUDP}
	if err := checkOptions(to.Addr(), kind, o); err != nil {
		return nil, fmt.Errorf("open UDP socket to %v: %w", to, err)
	}
	d := net.Dialer{Control: packetControl(kind, o)}
	if o.Source.IsValid() {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(o.Source.Unmap(), 0))
	}
	c, err := d.DialContext(ctx, networkName("udp", kind.family), to.String())
	if err != nil {
		return nil, openError(ctx, "open UDP socket to", to, err)
	}
	return newUDPConn(c.(*net.UDPConn), kind, to, o)
}

// ListenUDP implements Network.
func (k *Kernel) ListenUDP(ctx context.Context, at netip.AddrPort, o Options) (PacketConn, error) {
	at = unmapPort(at)
	kind := socketKind{family: FamilyOf(at.Addr()), proto: protoUDP, listen: true}
	at, err := listenAddress(at, kind, o)
	if err != nil {
		return nil, fmt.Errorf("listen for UDP at %v: %w", at, err)
	}
	l := net.ListenConfig{Control: packetControl(kind, o)}
	c, err := l.ListenPacket(ctx, networkName("udp", kind.family), at.String())
	if err != nil {
		return nil, openError(ctx, "listen for UDP at", at, err)
	}
	return newUDPConn(c.(*net.UDPConn), kind, netip.AddrPort{}, Options{})
}

// packetControl is optionsControl for a socket that also asks for stamps and for the rest of what Datagram tells.
func packetControl(kind socketKind, o Options) func(string, string, syscall.RawConn) error {
	set := optionsControl(kind, o)
	return func(network, address string, c syscall.RawConn) error {
		if err := set(network, address, c); err != nil {
			return err
		}
		return c.Control(func(fd uintptr) { askForControl(fd, kind.family, o) })
	}
}

// localAddrPort returns the address of a socket of package net; the port of an ICMP socket is its identifier, if any.
func localAddrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.UDPAddr:
		return unmapPort(a.AddrPort())
	case *net.IPAddr:
		ip, _ := netip.AddrFromSlice(a.IP)
		return netip.AddrPortFrom(ip.Unmap().WithZone(a.Zone), 0)
	}
	return netip.AddrPort{}
}
