package lab

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
)

// datagrams is a UDP or ICMP echo socket.
type datagrams struct {
	host     *Host
	network  string // "udp" or "icmp"
	ep       tcpip.Endpoint
	family   host.Family
	local    netip.AddrPort
	peer     netip.AddrPort // valid where the socket is connected
	readable notice
	deadline *deadline
	closed   chan struct{}
	once     sync.Once

	receiveMu sync.Mutex
	dst       tcpip.SliceWriter

	ds uint8 // the socket's own DS byte

	sendMu sync.Mutex
	src    bytes.Reader
	to     tcpip.FullAddress
	setDS  uint8 // the DS byte that ep sends with now
}

// echo is a datagrams for ICMP echo, whose identifier the stack chooses, as for Linux's ping sockets.
type echo struct{ *datagrams }

func (h *Host) newDatagrams(ctx context.Context, network string, t tcpip.TransportProtocolNumber, a netip.Addr, o host.Options) (*datagrams, error) {
	ep, wq, err := h.endpoint(ctx, t, a, o)
	if err != nil {
		return nil, err
	}
	d := &datagrams{host: h, network: network, ep: ep, family: host.FamilyOf(a), deadline: newDeadline(h.lab), closed: make(chan struct{}),
		ds: o.DS(), setDS: o.DS()}
	ops := ep.SocketOptions()
	ops.SetReceiveTOS(true)
	ops.SetReceiveTClass(true)
	ops.SetReceivePacketInfo(true)
	ops.SetIPv6ReceivePacketInfo(true)
	d.readable.init(h.lab, wq, waiter.ReadableEvents)
	return d, nil
}

// DialUDP implements host.Network. A datagram that the peer refuses comes back as Datagram.Rejected.
func (h *Host) DialUDP(ctx context.Context, to netip.AddrPort, o host.Options) (host.PacketConn, error) {
	d, err := h.dialDatagrams(ctx, "udp", udp.ProtocolNumber, to, o)
	if err != nil {
		return nil, err
	}
	ops := d.ep.SocketOptions()
	ops.SetIPv4RecvError(true)
	ops.SetIPv6RecvError(true)
	return d, nil
}

// DialEcho implements host.Network.
func (h *Host) DialEcho(ctx context.Context, to netip.Addr, o host.Options) (host.EchoConn, error) {
	protocol := icmp.ProtocolNumber4
	if host.FamilyOf(to) == host.IPv6 {
		protocol = icmp.ProtocolNumber6
	}
	d, err := h.dialDatagrams(ctx, "icmp", protocol, netip.AddrPortFrom(to, 0), o)
	if err != nil {
		return nil, err
	}
	return echo{d}, nil
}

func (h *Host) dialDatagrams(ctx context.Context, network string, t tcpip.TransportProtocolNumber, to netip.AddrPort, o host.Options) (*datagrams, error) {
	d, err := h.newDatagrams(ctx, network, t, to.Addr(), o)
	if err == nil {
		d.peer = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
		err = d.bound(d.ep.Connect(fullAddr(to)))
	}
	if err != nil {
		return nil, opError("dial", network, nil, net.UDPAddrFromAddrPort(to), err)
	}
	return d, nil
}

// ListenUDP implements host.Network.
func (h *Host) ListenUDP(ctx context.Context, at netip.AddrPort, o host.Options) (host.PacketConn, error) {
	o.Source = netip.Addr{} // it listens at its own address
	d, err := h.newDatagrams(ctx, "udp", udp.ProtocolNumber, at.Addr(), o)
	if err == nil {
		err = d.bound(d.ep.Bind(fullAddr(at)))
	}
	if err != nil {
		return nil, opError("listen", "udp", nil, net.UDPAddrFromAddrPort(at), err)
	}
	return d, nil
}

// bound ends the opening of the socket, which went as err says.
func (d *datagrams) bound(err tcpip.Error) error {
	if err != nil {
		d.Close()
		return errno(err)
	}
	if a, err := d.ep.GetLocalAddress(); err == nil {
		d.local = addrPort(a, d.family)
	}
	return d.host.add(d)
}

func (d *datagrams) opError(op string, to netip.AddrPort, err error) error {
	return opError(op, d.network, net.UDPAddrFromAddrPort(d.local), net.UDPAddrFromAddrPort(to), err)
}

// Send implements host.PacketConn.
func (d *datagrams) Send(b []byte, to netip.AddrPort) (time.Time, error) { return d.send(b, to, d.ds) }

// send sends with a DS byte.
func (d *datagrams) send(b []byte, to netip.AddrPort, ds uint8) (time.Time, error) {
	if over(d.closed) {
		return time.Time{}, d.opError("send", to, net.ErrClosed)
	}
	d.sendMu.Lock()
	defer d.sendMu.Unlock()
	if ds != d.setDS {
		if err := d.ep.SetSockOptInt(dsOption(d.anyAddr()), int(ds)); err != nil {
			return time.Time{}, d.opError("send", to, fmt.Errorf("set DS byte %#x: %w", ds, errno(err)))
		}
		d.setDS = ds
	}
	o := tcpip.WriteOptions{}
	if d.peer.IsValid() {
		to = d.peer
	} else {
		d.to = fullAddr(to)
		o.To = &d.to
	}
	at := d.host.Now()
	err := d.write(b, o)
	if _, refused := err.(*tcpip.ErrConnectionRefused); refused {
		// That was about a datagram before this one, and Receive tells of it.
		err = d.write(b, o)
	}
	if err != nil {
		return time.Time{}, d.opError("send", to, errno(err))
	}
	return at, nil
}

func (d *datagrams) write(b []byte, o tcpip.WriteOptions) tcpip.Error {
	d.src.Reset(b)
	_, err := d.ep.Write(&d.src, o)
	return err
}

// SendFrom implements host.PacketConn. A host of the lab has one address per family, and sends from it anyway.
func (d *datagrams) SendFrom(b []byte, from netip.Addr, to netip.AddrPort) (time.Time, error) {
	return d.sendFrom(b, from, to, d.ds)
}

// SendMarked implements host.Marker.
func (d *datagrams) SendMarked(b []byte, from netip.Addr, to netip.AddrPort, mark dscp.CodePoint) (time.Time, error) {
	return d.sendFrom(b, from, to, mark.Byte())
}

func (d *datagrams) sendFrom(b []byte, from netip.Addr, to netip.AddrPort, ds uint8) (time.Time, error) {
	if from.IsValid() && !from.IsUnspecified() && !d.host.own(from) {
		return time.Time{}, d.opError("send", to, fmt.Errorf("from %v: %w", from, syscall.EADDRNOTAVAIL))
	}
	return d.send(b, to, ds)
}

// anyAddr is an address of the socket's family.
func (d *datagrams) anyAddr() netip.Addr {
	if d.family == host.IPv6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// Receive implements host.PacketConn.
func (d *datagrams) Receive(b []byte) (host.Datagram, error) {
	d.receiveMu.Lock()
	defer d.receiveMu.Unlock()
	deadline := d.deadline.passed()
	for {
		switch {
		case over(d.closed):
			return host.Datagram{}, d.opError("receive", d.peer, net.ErrClosed)
		case over(deadline):
			return host.Datagram{}, d.opError("receive", d.peer, os.ErrDeadlineExceeded)
		}
		if e := d.ep.SocketOptions().DequeueErr(); e != nil {
			return d.rejected(b, e), nil
		}
		d.dst = b
		res, err := d.ep.Read(&d.dst, tcpip.ReadOptions{NeedRemoteAddr: true})
		switch err.(type) {
		case nil:
			return d.datagram(res), nil
		case *tcpip.ErrConnectionRefused:
			continue // the error queue has it, with the packet
		case *tcpip.ErrWouldBlock:
		case *tcpip.ErrClosedForReceive:
			return host.Datagram{}, d.opError("receive", d.peer, net.ErrClosed)
		default:
			return host.Datagram{}, d.opError("receive", d.peer, errno(err))
		}
		select {
		case <-d.readable.ready:
		case <-deadline:
		case <-d.closed:
		case <-d.host.lab.done:
			return host.Datagram{}, d.opError("receive", d.peer, d.host.lab.errOver())
		}
	}
}

// datagram tells of a datagram that was read.
func (d *datagrams) datagram(res tcpip.ReadResult) host.Datagram {
	cm := &res.ControlMessages
	out := host.Datagram{N: res.Count, Truncated: res.Total > res.Count, From: addrPort(res.RemoteAddr, d.family),
		At: cm.Timestamp, Stamp: host.LinkStamp}
	if d.network == "icmp" {
		out.From = netip.AddrPortFrom(out.From.Addr(), 0)
	}
	switch {
	case cm.HasIPPacketInfo:
		out.To, _ = netip.AddrFromSlice(cm.PacketInfo.DestinationAddr.AsSlice())
	case cm.HasIPv6PacketInfo:
		out.To, _ = netip.AddrFromSlice(cm.IPv6PacketInfo.Addr.AsSlice())
	}
	switch {
	case cm.HasTOS:
		out.DS, out.HasDS = cm.TOS, true
	case cm.HasTClass:
		out.DS, out.HasDS = uint8(cm.TClass), true
	}
	return out
}

// rejected tells of a datagram that the peer's stack refused. The stack does not keep when, so that is now.
func (d *datagrams) rejected(b []byte, e *tcpip.SockError) host.Datagram {
	out := host.Datagram{At: d.host.Now(), Stamp: host.UserStamp, Rejected: &host.RejectedError{By: d.peer.Addr(), Err: errno(e.Err)}}
	if e.Payload != nil {
		payload := e.Payload.AsSlice()
		out.N = copy(b, payload)
		out.Truncated = out.N < len(payload)
	}
	return out
}

// SetReadDeadline implements host.PacketConn.
func (d *datagrams) SetReadDeadline(t time.Time) error {
	if over(d.closed) {
		return d.opError("set", d.peer, net.ErrClosed)
	}
	d.deadline.at(t)
	return nil
}

// LocalAddr implements host.PacketConn.
func (d *datagrams) LocalAddr() netip.AddrPort { return d.local }

// Close implements host.PacketConn.
func (d *datagrams) Close() error {
	err := d.opError("close", d.peer, net.ErrClosed)
	d.once.Do(func() {
		err = nil
		close(d.closed)
		d.deadline.at(time.Time{})
		d.ep.Close()
		d.readable.end()
		d.host.remove(d)
	})
	return err
}

// Identifier implements host.EchoConn.
func (e echo) Identifier() (uint16, bool) { return e.local.Port(), true }
