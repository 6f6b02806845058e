package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

// socketKind is what the options of a socket depend on.
type socketKind struct {
	family Family
	proto  protocol
	listen bool
}

type protocol uint8

const (
	protoTCP protocol = iota
	protoUDP
	protoEcho
)

// dialedConn is a connection that this end opened.
type dialedConn struct{ *net.TCPConn }

// DialTCP implements Network. The connection has all methods of a *net.TCPConn.
func (k *Kernel) DialTCP(ctx context.Context, to netip.AddrPort, o Options) (net.Conn, error) {
	to = unmapPort(to)
	kind := socketKind{family: FamilyOf(to.Addr()), proto: protoTCP}
	if err := checkOptions(to.Addr(), kind, o); err != nil {
		return nil, fmt.Errorf("connect to %v: %w", to, err)
	}
	d := net.Dialer{Control: optionsControl(kind, o)}
	d.SetMultipathTCP(false) // several paths under one flow would be neither of them
	if o.Source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(o.Source.Unmap(), 0))
	}
	conn, err := d.DialContext(ctx, networkName("tcp", kind.family), to.String())
	if err != nil {
		return nil, openError(ctx, "connect to", to, err)
	}
	return dialedConn{conn.(*net.TCPConn)}, nil
}

// ListenTCP implements Network. Its connections inherit the options.
func (k *Kernel) ListenTCP(ctx context.Context, at netip.AddrPort, o Options) (net.Listener, error) {
	at = unmapPort(at)
	kind := socketKind{family: FamilyOf(at.Addr()), proto: protoTCP, listen: true}
	at, err := listenAddress(at, kind, o)
	if err != nil {
		return nil, fmt.Errorf("listen at %v: %w", at, err)
	}
	c := net.ListenConfig{Control: optionsControl(kind, o)}
	c.SetMultipathTCP(false)
	l, err := c.Listen(ctx, networkName("tcp", kind.family), at.String())
	if err != nil {
		return nil, openError(ctx, "listen at", at, err)
	}
	return l, nil
}

// optionsControl returns the hook of package net that applies o between socket and bind.
func optionsControl(kind socketKind, o Options) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = setOptions(fd, kind, o) }); cerr != nil {
			return cerr
		}
		return err
	}
}

// checkOptions refuses what no stack can do, before a socket is opened.
func checkOptions(peer netip.Addr, kind socketKind, o Options) error {
	switch {
	case !peer.IsValid():
		return errors.New("no address given")
	case o.Source.IsValid() && FamilyOf(o.Source) != kind.family:
		return fmt.Errorf("the source address %v is %v, and %v is %v: choose a source of the same family",
			o.Source, FamilyOf(o.Source), peer, kind.family)
	case o.DSCP > 63:
		return fmt.Errorf("DSCP %d is not a code point: want 0 to 63", uint8(o.DSCP))
	case o.ECN > CE:
		return fmt.Errorf("ECN %d: want 0 to 3", uint8(o.ECN))
	case o.ECN != NotECT && kind.proto == protoTCP:
		return fmt.Errorf("%v on a TCP socket: %w, because TCP negotiates ECN itself", o.ECN, errors.ErrUnsupported)
	case o.ICMPTimestamp && (kind.proto != protoEcho || kind.family != IPv4):
		return fmt.Errorf("ICMP timestamps on this socket: %w; they are a matter of ICMP over IPv4", errors.ErrUnsupported)
	case o.SendBuffer < 0 || o.ReceiveBuffer < 0:
		return fmt.Errorf("socket buffers of %d and %d bytes: want 0 or more", o.SendBuffer, o.ReceiveBuffer)
	case o.CongestionControl != "" && kind.proto != protoTCP:
		return fmt.Errorf("congestion control %q for datagrams: %w", o.CongestionControl, errors.ErrUnsupported)
	}
	return nil
}

// listenAddress checks o and returns where to bind: at, or Source where at is all addresses.
func listenAddress(at netip.AddrPort, kind socketKind, o Options) (netip.AddrPort, error) {
	if err := checkOptions(at.Addr(), kind, o); err != nil {
		return at, err
	}
	source := o.Source.Unmap()
	switch {
	case !source.IsValid() || source == at.Addr():
		return at, nil
	case at.Addr().IsUnspecified():
		return netip.AddrPortFrom(source, at.Port()), nil
	}
	return at, fmt.Errorf("the source address is %v: a socket cannot listen at one address and send from another", source)
}

// openError adds to err what was opened, and what the context, the family or the option says about it.
func openError(ctx context.Context, verb string, at netip.AddrPort, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s %v: %w", verb, at, context.Cause(ctx))
	}
	if errors.Is(err, syscall.EAFNOSUPPORT) {
		return fmt.Errorf("%s %v: this host has no %v: %w (%w)", verb, at, FamilyOf(at.Addr()), errors.ErrUnsupported, err)
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		err = op.Err // the rest of it repeats the address
	}
	return fmt.Errorf("%s %v: %w", verb, at, err)
}

func unmapPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func networkName(proto string, f Family) string {
	if f == IPv4 {
		return proto + "4"
	}
	return proto + "6" // IPV6_V6ONLY is then set on listeners, whatever net.ipv6.bindv6only says
}
