//go:build !linux

package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/net/icmp"
)

// echoConn is an ICMP socket that hears the errors about its own packets as messages among the others.
type echoConn struct {
	conn *icmp.PacketConn
	to   netip.Addr
	dst  net.Addr

	sendMu  sync.Mutex
	scratch []byte // under sendMu: the packet with its checksum
}

// DialEcho implements Network.
func (k *Kernel) DialEcho(ctx context.Context, to netip.Addr, o Options) (EchoConn, error) {
	to = to.Unmap()
	kind := socketKind{family: FamilyOf(to), proto: protoEcho}
	err := checkOptions(to, kind, o)
	if err == nil {
		err = checkEchoOptions(o)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("open ICMP socket to %v: %w", to, err)
	}
	var pingErr, rawErr error
	if k.Echo != RawEchoSocket {
		c, err := listenEcho(kind.family, false, to, o)
		if err == nil {
			return c, nil
		}
		pingErr = err
	}
	if k.Echo != PingEchoSocket {
		c, err := listenEcho(kind.family, true, to, o)
		if err == nil {
			return c, nil
		}
		rawErr = err
	}
	return nil, echoOpenError(to, pingErr, rawErr)
}

// checkEchoOptions refuses what package icmp has no way to set.
func checkEchoOptions(o Options) error {
	if o.Interface != "" || o.SendBuffer != 0 || o.ReceiveBuffer != 0 || o.ReusePort {
		return fmt.Errorf("device, buffer sizes or port sharing for ICMP: %w on this system", errors.ErrUnsupported)
	}
	if o.ICMPTimestamp {
		return fmt.Errorf("ICMP timestamps: %w on this system", errors.ErrUnsupported)
	}
	return nil
}

func listenEcho(f Family, raw bool, to netip.Addr, o Options) (EchoConn, error) {
	network, source := "udp4", "0.0.0.0"
	switch {
	case f == IPv4 && raw:
		network = "ip4:icmp"
	case f == IPv6 && raw:
		network, source = "ip6:ipv6-icmp", "::"
	case f == IPv6:
		network, source = "udp6", "::"
	}
	if o.Source.IsValid() {
		source = o.Source.Unmap().String()
	}
	conn, err := icmp.ListenPacket(network, source)
	if err != nil {
		return nil, err
	}
	err = markEcho(conn, f, o)
	if err == nil && o.TTL != 0 {
		err = limitEcho(conn, f, int(o.TTL))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	c := &echoConn{conn: conn, to: to}
	if c.dst = net.Addr(&net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()}); !raw {
		c.dst = &net.UDPAddr{IP: to.AsSlice(), Zone: to.Zone()}
	}
	return c, nil
}

func markEcho(conn *icmp.PacketConn, f Family, o Options) error {
	if o.DS() == 0 {
		return nil
	}
	if !canMark {
		return fmt.Errorf("set DSCP %v and ECN %v: %w on this system", o.DSCP, o.ECN, errors.ErrUnsupported)
	}
	if f == IPv4 {
		return conn.IPv4PacketConn().SetTOS(int(o.DS()))
	}
	return conn.IPv6PacketConn().SetTrafficClass(int(o.DS()))
}

func limitEcho(conn *icmp.PacketConn, f Family, ttl int) error {
	if f == IPv4 {
		return conn.IPv4PacketConn().SetTTL(ttl)
	}
	return conn.IPv6PacketConn().SetHopLimit(ttl)
}

// Identifier returns false: the caller chooses it, and sorts out the replies to others.
func (c *echoConn) Identifier() (uint16, bool) { return 0, false }

func (c *echoConn) LocalAddr() netip.AddrPort {
	return netip.AddrPortFrom(localAddrPort(c.conn.LocalAddr()).Addr(), 0)
}

func (c *echoConn) SetReadDeadline(t time.Time) error { return c.conn.SetReadDeadline(t) }

func (c *echoConn) Close() error { return c.conn.Close() }

// Send implements PacketConn. The checksum of ICMPv6 is the stack's, because it covers the addresses.
func (c *echoConn) Send(b []byte, _ netip.AddrPort) (time.Time, error) {
	if len(b) < icmpHeader {
		return time.Time{}, fmt.Errorf("ICMP message of %d bytes: shorter than its header", len(b))
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	c.scratch = append(c.scratch[:0], b...)
	if c.to.Is4() {
		sum := echoChecksum(b)
		c.scratch[2], c.scratch[3] = byte(sum>>8), byte(sum)
	}
	at := time.Now()
	_, err := c.conn.WriteTo(c.scratch, c.dst)
	switch {
	case errors.Is(err, noBufferErrno):
		return time.Time{}, fmt.Errorf("%w (%w)", ErrNoBuffer, err)
	case err != nil:
		return time.Time{}, err
	}
	return at, nil
}

// SendFrom implements PacketConn; the source is that of Options.
func (c *echoConn) SendFrom(b []byte, from netip.Addr, to netip.AddrPort) (time.Time, error) {
	if from.IsValid() && from.Unmap() != c.LocalAddr().Addr() {
		return time.Time{}, fmt.Errorf("send ICMP from %v: %w on this system; give it as the source", from, errors.ErrUnsupported)
	}
	return c.Send(b, to)
}

// Receive implements PacketConn. It passes over what is neither an echo reply of the target nor an error about a request to it.
func (c *echoConn) Receive(b []byte) (Datagram, error) {
	for {
		n, addr, err := c.conn.ReadFrom(b)
		at := time.Now()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return Datagram{}, os.ErrDeadlineExceeded
		}
		if err != nil {
			return Datagram{}, err
		}
		if d, ok := c.sort(b, n, localAddrPort(addr).Addr(), at); ok {
			return d, nil
		}
	}
}

// sort tells what the n bytes in b are, or returns false where they do not concern the target.
func (c *echoConn) sort(b []byte, n int, from netip.Addr, at time.Time) (Datagram, bool) {
	if n < icmpHeader {
		return Datagram{}, false
	}
	reply := c.to.Is4() && b[0] == icmpEchoReply || !c.to.Is4() && b[0] == icmp6EchoReply
	if reply && from.WithZone("") == c.to.WithZone("") {
		return Datagram{N: n, From: netip.AddrPortFrom(from, 0), At: at, Stamp: UserStamp}, true
	}
	expired := b[1] == 0 && (c.to.Is4() && b[0] == icmpTimeExceeded || !c.to.Is4() && b[0] == icmp6TimeExceeded)
	quoted, cause, err := parseICMPError(b[:n], c.to)
	if err != nil {
		return Datagram{}, false
	}
	return Datagram{N: copy(b, quoted), At: at, Stamp: UserStamp, Rejected: &RejectedError{By: from, Err: cause, Expired: expired}}, true
}
