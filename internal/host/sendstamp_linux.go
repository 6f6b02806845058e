package host

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// sendStampFlags ask for a stamp of each packet as it enters its device's queue, by number and without the packet. The stamp of when it left the
// queue (TX_SOFTWARE) would hide the delay in this host's own queue, which may be the one in question.
const sendStampFlags = unix.SOF_TIMESTAMPING_TX_SCHED | unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY

const (
	// maxPendingErrors bounds the ICMP errors that the sender came across and nobody has received.
	maxPendingErrors = 64
	// maxQuoted is how much of a packet in question is kept of those: what an ICMPv4 error may be long (RFC 1812 4.3.2.3).
	maxQuoted = 576
)

// sendStamps has the kernel's stamps of what a socket sends. They come by the error queue, as a rule before the call that sent the packet returns,
// and are read there and then. The queue has the ICMP errors too; those that the sender meets wait here for Receive.
type sendStamps struct {
	wanted     bool
	stack, all atomic.Uint64

	queue   sync.Mutex // held from a send until its stamp was read, so that Receive does not take it off the queue
	pending []quotedError
	waiting atomic.Int32 // len(pending)

	deadlines sync.Mutex // guards the two below
	deadline  time.Time  // as the user set it
	awake     bool       // the socket's own is in the past, to have Receive look at pending
}

// quotedError is a rejection with what it quotes.
type quotedError struct {
	d Datagram
	b []byte
}

// reports is the sender's state of reading the error queue, under sendMu.
type reports struct {
	incoming
	quoted [maxQuoted]byte
	next   uint32 // at least the number of the next packet, as the kernel counts
}

// SendStamps implements SendStamper.
func (c *packetConn) SendStamps() (stack, all uint64) {
	return c.sends.stack.Load(), c.sends.all.Load()
}

// takeSendStamp reads the stamp of the packet that was just sent and puts it in place of the program's own, which is from before the call. It
// runs under sendMu and the lock of the queue. Packets that wait for a neighbour's address are stamped later, and keep the program's stamp.
func (c *packetConn) takeSendStamp(fd uintptr) {
	out := &c.out
	in := &out.report
	in.b = in.quoted[:]
	sent := out.errno == 0
	if sent {
		c.sends.all.Add(1)
	}
	for {
		n, ctl, ok := in.readError(fd)
		switch {
		case !ok:
			if sent {
				in.next++ // a packet that was not sent may have been counted or not
			}
			return
		case ctl.rejection != 0:
			if c.concerns(&in.incoming) {
				c.sends.keep(in.rejection(n, &ctl), in.b[:n])
			}
		case ctl.sent && int32(ctl.sentID-in.next) >= 0:
			in.next = ctl.sentID + 1
			if sent && ctl.hasStamp {
				c.useSendStamp(ctl.stamp)
			}
			return
		}
	}
}

// useSendStamp takes a stamp for that of the send if it can be: the packet was on its way between our own looks at the clock.
func (c *packetConn) useSendStamp(stamp int64) {
	in := &c.out.report
	in.clock.emptied() // what was read is from this call, not from before a step that was seen then
	r := in.clock.read()
	at, by := in.clock.arrival(stamp, r)
	if by != KernelStamp || at.Before(c.out.at) || at.After(r.now) {
		return
	}
	c.out.at = at
	c.sends.stack.Add(1)
}

// keep holds a rejection for Receive. The lock of the queue is held.
func (s *sendStamps) keep(d Datagram, quoted []byte) {
	if len(s.pending) < maxPendingErrors {
		s.pending = append(s.pending, quotedError{d, append([]byte(nil), quoted...)})
		s.waiting.Store(int32(len(s.pending)))
	}
}

// takePending gives Receive a rejection that the sender met, or returns false if there is none.
func (s *sendStamps) takePending(in *incoming) bool {
	if s.waiting.Load() == 0 {
		return false
	}
	s.queue.Lock()
	defer s.queue.Unlock()
	return s.takePendingLocked(in)
}

func (s *sendStamps) takePendingLocked(in *incoming) bool {
	if len(s.pending) == 0 {
		return false
	}
	first := s.pending[0]
	s.pending = append(s.pending[:0], s.pending[1:]...)
	s.waiting.Store(int32(len(s.pending)))
	in.got, in.done = first.d, true
	in.got.N = copy(in.b, first.b)
	in.got.Truncated = in.got.Truncated || in.got.N < len(first.b)
	return true
}

// nudge wakes a waiting Receive if there is a rejection for it: the kernel woke it when that was queued, and by the time it looks the queue may have
// been empty.
func (s *sendStamps) nudge(conn net.PacketConn) {
	if s.waiting.Load() == 0 {
		return
	}
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	s.awake = true
	_ = conn.SetReadDeadline(time.Unix(0, 1)) // fails on a closed socket, which nobody waits for
}

// nudged reports whether a Receive woke for a rejection, and sets its deadline again.
func (s *sendStamps) nudged(conn net.PacketConn) bool {
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	if !s.awake {
		return false
	}
	s.awake = false
	return conn.SetReadDeadline(s.deadline) == nil
}

// setDeadline sets the deadline of Receive. One that has been nudged has it set when it wakes.
func (s *sendStamps) setDeadline(conn net.PacketConn, t time.Time) error {
	if !s.wanted {
		return conn.SetReadDeadline(t)
	}
	s.deadlines.Lock()
	defer s.deadlines.Unlock()
	s.deadline = t
	if s.awake {
		return nil
	}
	return conn.SetReadDeadline(t)
}
