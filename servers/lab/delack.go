package lab

import (
	"container/heap"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"bufferbloat/servers/lab/link"
)

const (
	// ackDelay is the longest time that an acknowledgement is held back, Linux's least; RFC 1122, 4.2.3.2, allows 500 ms.
	ackDelay = 40 * time.Millisecond
	// quickAcks go out at once when a connection is new, as Linux does it, so that slow start is not slowed down.
	quickAcks = 16

	plainHeader = header.TCPMinimumSize + 12 // bytes of a TCP header with time stamps and nothing more
)

// delayedAck holds back what the stack acknowledges segment by segment, so that the host acknowledges every second full segment as
// kernels do (RFC 1122, 4.2.3.2; RFC 5681, 4.2). Otherwise the acknowledgements of a download would fill a slow uplink at half the rate
// at which they really do. It is part of a flow, and guarded by lab.mu.
type delayedAck struct {
	sent       uint32 // the highest acknowledgement that went out
	immediate  int    // how many did
	peerFull   int    // bytes of the largest segment that the peer sent
	peerClosed bool   // the peer's FIN has come
	held       *transit
	packet     link.Packet // of held
	timer      *timer
}

// hold keeps pkt back and returns true where it is an acknowledgement that may wait; else whatever is held back is superseded by it.
func (d *delayedAck) hold(n *nic, pkt *stack.PacketBuffer, h header.TCP) bool {
	ack := h.AckNumber()
	news := int32(ack - d.sent)
	plain := pkt.Data().Size() == 0 && h.Flags() == header.TCPFlagAck && int(h.DataOffset()) <= plainHeader
	d.discard(n.lab)
	if !plain || d.peerClosed || d.immediate < quickAcks || news <= 0 || int(news) > d.peerFull {
		d.sent = ack
		d.immediate++
		return false
	}
	d.held, d.packet = n.transit(pkt), linkPacket(pkt)
	if d.timer == nil {
		d.timer = &timer{l: n.lab, index: -1, f: func() { n.ackNow(d) }}
	}
	n.lab.schedule(d.timer, ackDelay)
	return true
}

// discard gives up what is held back. The caller holds l.mu.
func (d *delayedAck) discard(l *Lab) {
	if d.held == nil {
		return
	}
	if d.timer.index >= 0 {
		heap.Remove(&l.timers, d.timer.index)
	}
	d.held.pkt.DecRef()
	l.recycle(d.held)
	d.held = nil
}

// ackNow sends what was held back for long enough.
func (n *nic) ackNow(d *delayedAck) {
	l := n.lab
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.held == nil || l.closed {
		return
	}
	t := d.held
	d.held = nil
	d.sent = t.ack
	now := l.elapsed()
	n.out.Advance(now, l.arrived)
	d.packet.Handle = t
	n.out.Send(d.packet, now)
	l.arm()
}
