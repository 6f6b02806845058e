//go:build !linux

package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// packetConn is a UDP socket with what all systems have: stamps by this program, no DS byte, no destination address.
type packetConn struct {
	conn  *net.UDPConn
	peer  netip.AddrPort // what it is connected to; the zero AddrPort where it is not
	local netip.AddrPort

	sendMu sync.Mutex // orders stamps as the packets
}

func newUDPConn(c *net.UDPConn, _ socketKind, peer netip.AddrPort, _ Options) (PacketConn, error) {
	return &packetConn{conn: c, peer: peer, local: localAddrPort(c.LocalAddr())}, nil
}

func askForControl(uintptr, Family, Options) {}

func (c *packetConn) LocalAddr() netip.AddrPort { return c.local }

func (c *packetConn) SetReadDeadline(t time.Time) error { return c.conn.SetReadDeadline(t) }

func (c *packetConn) Close() error { return c.conn.Close() }

// Send implements PacketConn.
func (c *packetConn) Send(b []byte, to netip.AddrPort) (time.Time, error) {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	at, err := c.write(b, to)
	if err != nil && errors.Is(err, syscall.ECONNREFUSED) {
		at, err = c.write(b, to) // that was the ICMP error of an earlier packet, which a socket reports to the next call
	}
	switch {
	case errors.Is(err, noBufferErrno) || errors.Is(err, syscall.ENOBUFS):
		return time.Time{}, fmt.Errorf("%w (%w)", ErrNoBuffer, err)
	case err != nil:
		return time.Time{}, err
	}
	return at, nil
}

func (c *packetConn) write(b []byte, to netip.AddrPort) (time.Time, error) {
	at := time.Now()
	if c.peer.IsValid() {
		_, err := c.conn.Write(b)
		return at, err
	}
	_, err := c.conn.WriteToUDPAddrPort(b, unmapPort(to))
	return at, err
}

// SendFrom implements PacketConn. Only the address that the socket is bound to can be chosen.
func (c *packetConn) SendFrom(b []byte, from netip.Addr, to netip.AddrPort) (time.Time, error) {
	if from.IsValid() && from.Unmap() != c.local.Addr() {
		return time.Time{}, fmt.Errorf("send from %v on a socket at %v: %w on this system; listen at that address", from, c.local, errors.ErrUnsupported)
	}
	return c.Send(b, to)
}

// Receive implements PacketConn.
func (c *packetConn) Receive(b []byte) (Datagram, error) {
	n, _, flags, from, err := c.conn.ReadMsgUDPAddrPort(b, nil)
	at := time.Now()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Datagram{}, os.ErrDeadlineExceeded
	case errors.Is(err, syscall.ECONNREFUSED):
		return Datagram{}, fmt.Errorf("receive at %v: %w", c.local, &RejectedError{Err: syscall.ECONNREFUSED})
	case err != nil:
		return Datagram{}, err
	}
	return Datagram{N: n, Truncated: flags&truncatedFlag != 0, From: unmapPort(from), At: at, Stamp: UserStamp}, nil
}
