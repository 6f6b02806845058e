package lab

import (
	"net/netip"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"bufferbloat/servers/lab/link"
)

// nic is a host's end of the link: a point-to-point device that needs no addresses of its own, so that no packet waits for ARP or
// neighbour discovery.
type nic struct {
	lab        *Lab
	out        *link.Link
	peer       *nic
	dispatcher atomic.Pointer[stack.NetworkDispatcher]
	flows      map[flowKey]*flow // TCP connections that this host takes part in; guarded by lab.mu
}

// transit is a packet inside a link.
type transit struct {
	pkt      *stack.PacketBuffer
	protocol tcpip.NetworkProtocolNumber
	to       *nic
	// The receiver's view of a TCP segment: its flow, the acknowledgement that it carries, the bytes of its payload.
	key     flowKey
	flags   header.TCPFlags
	ack     uint32
	payload int
	isTCP   bool
	syn     time.Duration // when the SYN left that this is, or answers
}

// flowKey names a TCP connection at one host; a host has one address per family, and so has its peer.
type flowKey struct {
	ipv6          bool
	local, remote uint16
}

// atPeer names the same connection at the other host.
func (k flowKey) atPeer() flowKey { return flowKey{k.ipv6, k.remote, k.local} }

// flow is what the link saw of a TCP connection, at the end of one host. It is guarded by lab.mu.
type flow struct {
	initial    uint32 // sequence number of our SYN
	next       uint32 // the highest sequence number sent, exclusive
	acked      uint32 // the highest acknowledgement that the host was given
	total      uint64 // sequence numbers acknowledged, without the SYN
	fin        uint32 // sequence number of our FIN, valid with finished
	finished   bool
	maxPayload int // bytes of the largest segment sent
	// How often our SYN was sent after the first time, when the last one left that reached the peer, and the round trip of the one that was answered: the
	// stack does not count those, and takes the time since the first for their round trip.
	synsAgain          uint64
	reached, handshake time.Duration
	growth             *growth
	delayed            delayedAck
}

// WritePackets implements stack.LinkEndpoint: the packets enter the link now.
func (n *nic) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	l := n.lab
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return pkts.Len(), nil
	}
	now := l.elapsed()
	n.out.Advance(now, l.arrived)
	for _, pkt := range pkts.AsSlice() {
		if n.send(pkt) {
			p := linkPacket(pkt)
			p.Handle = n.transit(pkt)
			n.out.Send(p, now)
		}
	}
	l.arm()
	return pkts.Len(), nil
}

// linkPacket returns what the link has to know of pkt.
func linkPacket(pkt *stack.PacketBuffer) link.Packet {
	f := flowOf(pkt)
	p := link.Packet{Flow: f.Hash(), Size: pkt.Size(), DS: dsByte(pkt)}
	p.From, p.To = f.Hosts()
	if h := tcpHeader(pkt); h != nil && h.Flags() == header.TCPFlagAck && pkt.Data().Size() == 0 {
		p.PureACK, p.ACK = len(h.ParsedOptions().SACKBlocks) == 0, h.AckNumber()
	}
	return p
}

// transit returns what crosses the link for pkt.
func (n *nic) transit(pkt *stack.PacketBuffer) *transit {
	l := n.lab
	t := &transit{}
	if last := len(l.spare) - 1; last >= 0 {
		t, l.spare = l.spare[last], l.spare[:last]
	}
	// The receiver's stack wants a packet whose headers are not parsed. The bytes are shared with the sender until one of them writes.
	t.pkt = stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: pkt.ToBuffer()})
	t.protocol, t.to = pkt.NetworkProtocolNumber, n.peer
	if h := tcpHeader(pkt); h != nil {
		t.isTCP, t.flags, t.ack, t.payload = true, h.Flags(), h.AckNumber(), pkt.Data().Size()
		t.key = flowKey{pkt.NetworkProtocolNumber == header.IPv6ProtocolNumber, h.DestinationPort(), h.SourcePort()}
		if t.flags.Contains(header.TCPFlagSyn) {
			t.syn = n.synSent(t)
		}
	}
	return t
}

// synSent returns when the SYN left that t is, which leaves now, or answers. The caller holds lab.mu.
func (n *nic) synSent(t *transit) time.Duration {
	if f := n.peer.flows[t.key]; f != nil && t.flags.Contains(header.TCPFlagAck) {
		return f.reached
	}
	return n.lab.elapsed()
}

// recycle keeps t for another packet. The caller holds l.mu.
func (l *Lab) recycle(t *transit) {
	*t = transit{}
	l.spare = append(l.spare, t)
}

// took notes what a packet tells its receiver, as the driver takes it out of the link. The caller holds l.mu.
func (l *Lab) took(a arrival) {
	if !l.config.Virtual {
		l.lateness.Add(l.elapsed() - a.at)
	}
	if a.t.isTCP {
		a.t.to.receive(a.t)
	}
}

// deliver hands a packet to its host's stack. Only the driver calls it, without l.mu.
func (l *Lab) deliver(a arrival) {
	pkt := a.t.pkt
	if a.marked {
		pkt = congestionExperienced(pkt, a.t.protocol)
	}
	if d := a.t.to.dispatcher.Load(); d != nil {
		l.delivering.Store(int64(a.at))
		(*d).DeliverNetworkPacket(a.t.protocol, pkt)
		l.delivering.Store(-1)
	}
	pkt.DecRef()
	l.mu.Lock()
	l.recycle(a.t)
	l.mu.Unlock()
}

// congestionExperienced returns the packet with CE in its DS byte (RFC 3168) instead of pkt.
func congestionExperienced(pkt *stack.PacketBuffer, protocol tcpip.NetworkProtocolNumber) *stack.PacketBuffer {
	b := append([]byte(nil), pkt.Data().AsRange().ToSlice()...) // a copy: the sender may still hold the bytes to send them again
	markCE(b, protocol)
	pkt.DecRef()
	return stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
}

// markCE writes CE into an IP packet, and mends the header's checksum.
func markCE(b []byte, protocol tcpip.NetworkProtocolNumber) {
	switch {
	case protocol == header.IPv4ProtocolNumber && len(b) >= header.IPv4MinimumSize:
		h := header.IPv4(b)
		tos, _ := h.TOS()
		h.SetTOS(tos|3, 0)
		h.SetChecksum(0)
		h.SetChecksum(^h.CalculateChecksum())
	case protocol == header.IPv6ProtocolNumber && len(b) >= header.IPv6MinimumSize:
		h := header.IPv6(b)
		tos, label := h.TOS()
		h.SetTOS(tos|3, label)
	}
}

// send notes what an outgoing packet tells of its connection, and returns whether it goes out now. The caller holds lab.mu.
func (n *nic) send(pkt *stack.PacketBuffer) bool {
	h := tcpHeader(pkt)
	if h == nil {
		return true
	}
	key := flowKey{pkt.NetworkProtocolNumber == header.IPv6ProtocolNumber, h.SourcePort(), h.DestinationPort()}
	seq, payload, flags := h.SequenceNumber(), pkt.Data().Size(), h.Flags()
	f := n.flows[key]
	switch {
	case flags.Contains(header.TCPFlagSyn):
		if f == nil || f.initial != seq {
			n.forget(key)
			n.flows[key] = &flow{initial: seq, next: seq + 1, acked: seq}
		} else {
			f.synsAgain++
		}
		return true
	case f == nil:
		return true
	case flags.Contains(header.TCPFlagRst):
		n.forget(key)
		return true
	}
	if f.growth != nil && payload > 0 {
		f.growth.grow()
	}
	f.maxPayload = max(f.maxPayload, payload)
	end := seq + uint32(payload)
	if flags.Contains(header.TCPFlagFin) {
		f.fin, f.finished = end, true
		end++
	}
	if int32(end-f.next) > 0 {
		f.next = end
	}
	return !f.delayed.hold(n, pkt, h)
}

// forget ends the account of a connection. The caller holds lab.mu.
func (n *nic) forget(key flowKey) {
	if f := n.flows[key]; f != nil {
		f.delayed.discard(n.lab)
		delete(n.flows, key)
	}
}

// receive notes what an incoming segment tells of its connection.
func (n *nic) receive(t *transit) {
	if t.flags&(header.TCPFlagSyn|header.TCPFlagAck) == header.TCPFlagSyn {
		if f := n.peer.flows[t.key.atPeer()]; f != nil {
			f.reached = t.syn
		}
	}
	f := n.flows[t.key]
	if f == nil {
		return
	}
	if t.flags.Contains(header.TCPFlagRst) {
		n.forget(t.key)
		return
	}
	f.delayed.peerFull = max(f.delayed.peerFull, t.payload)
	f.delayed.peerClosed = f.delayed.peerClosed || t.flags.Contains(header.TCPFlagFin)
	// Old acknowledgements, and those of what was never sent, say nothing.
	if !t.flags.Contains(header.TCPFlagAck) || int32(t.ack-f.acked) <= 0 || int32(t.ack-f.next) > 0 {
		return
	}
	if f.acked != f.initial {
		f.total += uint64(t.ack - f.acked)
	} else {
		f.total += uint64(t.ack - f.acked - 1) // the SYN
		f.handshake = n.lab.elapsed() - t.syn
	}
	f.acked = t.ack
}

// bytesAcked is the payload that the peer's stack acknowledged, as far as those acknowledgements have arrived here.
func (f *flow) bytesAcked() uint64 {
	if f.finished && f.acked == f.fin+1 {
		return f.total - 1 // the FIN
	}
	return f.total
}

// tcpHeader returns the TCP header of an outgoing packet, nil where it has none.
func tcpHeader(pkt *stack.PacketBuffer) header.TCP {
	h := pkt.TransportHeader().Slice()
	if pkt.TransportProtocolNumber != header.TCPProtocolNumber || len(h) < header.TCPMinimumSize {
		return nil
	}
	return header.TCP(h)
}

// flowOf returns the 5-tuple of an outgoing packet.
func flowOf(pkt *stack.PacketBuffer) link.Flow {
	f := link.Flow{Protocol: uint8(pkt.TransportProtocolNumber)}
	switch b := pkt.NetworkHeader().Slice(); {
	case pkt.NetworkProtocolNumber == header.IPv4ProtocolNumber && len(b) >= header.IPv4MinimumSize:
		h := header.IPv4(b)
		f.From, f.To = netip.AddrFrom4(h.SourceAddress().As4()), netip.AddrFrom4(h.DestinationAddress().As4())
		f.Protocol = h.Protocol()
	case pkt.NetworkProtocolNumber == header.IPv6ProtocolNumber && len(b) >= header.IPv6MinimumSize:
		h := header.IPv6(b)
		f.From, f.To = netip.AddrFrom16(h.SourceAddress().As16()), netip.AddrFrom16(h.DestinationAddress().As16())
		f.Protocol = h.NextHeader()
	default:
		f.From, f.To = netip.IPv6Unspecified(), netip.IPv6Unspecified()
	}
	t := pkt.TransportHeader().Slice()
	if (f.Protocol == uint8(header.TCPProtocolNumber) || f.Protocol == uint8(header.UDPProtocolNumber)) && len(t) >= header.UDPMinimumSize {
		// The ports stand at the same place in both.
		f.FromPort, f.ToPort = header.UDP(t).SourcePort(), header.UDP(t).DestinationPort()
	}
	return f
}

// dsByte returns the DS byte of an outgoing packet.
func dsByte(pkt *stack.PacketBuffer) uint8 {
	b := pkt.NetworkHeader().Slice()
	switch {
	case pkt.NetworkProtocolNumber == header.IPv4ProtocolNumber && len(b) >= header.IPv4MinimumSize:
		ds, _ := header.IPv4(b).TOS()
		return ds
	case pkt.NetworkProtocolNumber == header.IPv6ProtocolNumber && len(b) >= header.IPv6MinimumSize:
		ds, _ := header.IPv6(b).TOS()
		return ds
	}
	return 0
}

// Attach implements stack.LinkEndpoint.
func (n *nic) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		n.dispatcher.Store(nil)
		return
	}
	n.dispatcher.Store(&d)
}

// IsAttached implements stack.LinkEndpoint.
func (n *nic) IsAttached() bool { return n.dispatcher.Load() != nil }

// Capabilities implements stack.LinkEndpoint. No byte is ever damaged here, so no checksum is worth computing.
func (*nic) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// MTU implements stack.LinkEndpoint.
func (*nic) MTU() uint32 { return mtu }

// The rest of stack.LinkEndpoint, for a device without a link layer.
func (*nic) SetMTU(uint32)                           {}
func (*nic) MaxHeaderLength() uint16                 { return 0 }
func (*nic) LinkAddress() tcpip.LinkAddress          { return "" }
func (*nic) SetLinkAddress(tcpip.LinkAddress)        {}
func (*nic) Wait()                                   {}
func (*nic) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (*nic) AddHeader(*stack.PacketBuffer)           {}
func (*nic) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (*nic) Close()                                  {}
func (*nic) SetOnCloseAction(func())                 {}
