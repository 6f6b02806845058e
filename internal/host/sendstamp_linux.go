package host

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// sendStampFlags ask for two stamps of each packet, by number and without the packet: as it enters its device's queue (TX_SCHED), and as the device takes it
// (TX_SOFTWARE). The second alone would hide the delay in this host's own queue, which may be the one in question.
const sendStampFlags = unix.SOF_TIMESTAMPING_TX_SCHED | unix.SOF_TIMESTAMPING_TX_SOFTWARE | unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY

// passage is the longest that a packet takes through a queue that it does not wait in. Then the second stamp is the better one: to hand out the first takes the kernel time
// that the packet spends between the two, some 30 us where it wakes a thread on a CPU that sleeps. What is hidden by that is a wait of less, which is half of a full packet
// at 100 Mbit/s.
const passage = 50 * time.Microsecond

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

// takeSendStamp reads the stamps of the packet that was just sent and puts the right one in place of the program's own, which is from before the call. It
// runs under sendMu and the lock of the queue. Packets that wait for a neighbour's address are stamped later, and keep the program's stamp.
func (c *packetConn) takeSendStamp(fd uintptr) {
	out := &c.out
	in := &out.report
	in.b = in.quoted[:]
	sent, scheduled, stamped := out.errno == 0, false, false
	if sent {
		c.sends.all.Add(1)
	}
	for {
		n, ctl, ok := in.readError(fd)
		switch {
		case !ok:
			if sent && !scheduled {
				in.next++ // a packet that was not sent may have been counted or not
			}
			return
		case ctl.rejection != 0:
			if c.concerns(&in.incoming) {
				c.sends.keep(in.rejection(n, &ctl), in.b[:n])
			}
		case ctl.sent && int32(ctl.sentID-in.next) >= 0:
			in.next, scheduled = ctl.sentID+1, true
			if at, ok := in.sendStamp(&ctl, out.at); ok && sent {
				out.at, stamped = at, true
				c.sends.stack.Add(1)
			}
		case ctl.left && scheduled && ctl.sentID == in.next-1:
			if at, ok := in.sendStamp(&ctl, out.at); ok && stamped && at.Sub(out.at) <= passage {
				out.at = at
			}
			return
		}
	}
}

// sendStamp returns a stamp of what was just sent if it can be one: the packet was on its way between earliest and now.
func (r *reports) sendStamp(ctl *control, earliest time.Time) (time.Time, bool) {
	if !ctl.hasStamp {
		return time.Time{}, false
	}
	r.clock.emptied() // what was read is from this call, not from before a step that was seen then
	now := r.clock.read()
	at, by := r.clock.arrival(ctl.stamp, now)
	return at, by == KernelStamp && !at.Before(earliest) && !at.After(now.now)
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
