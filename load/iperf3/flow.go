package iperf3

import (
	"context"
	"net"
	"sync"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
)

// Flow is one flow of a Test. Open and Run are called once, in this order, from one goroutine; Delivered and Datagrams at any time from any.
type Flow struct {
	test      *Test
	direction load.Direction
	index     int // among the test's flows of its direction
	id        int // of its stream

	received pump.Counter // TCP
	sent     pump.Counter // TCP

	mu      sync.Mutex
	setup   time.Duration // of its connection
	linked  time.Time     // when that stood
	conn    net.Conn      // TCP; nil until it stands
	ended   bool          // conn is closed, the figures stand
	acked   uint64        // highest seen; only a TCP upload's
	acks    bool          // the stack tells
	rtt     time.Duration
	ackAt   time.Time // when acked last grew, as far as was looked
	first   time.Time // when payload was first known to have arrived; with an omitted time, its end
	info    host.TCPInfo
	track   wire.Track // UDP, what this end received
	sending uint64     // UDP, datagrams that left so far
	omitted omitted

	// Written by the test's run, valid once test.finished is closed.
	result load.Result
	err    error
}

// omitted is what a flow had done when the omitted time was over.
type omitted struct {
	bytes, acked, retransmits uint64
	tally                     wire.Tally
	sent                      uint64
}

// cookieSent is what is on a data connection before the payload.
const cookieSent = wire.CookieSize

// Open agrees with the server on the whole test, so that Run can start it. The first flow's Open does it, the others wait for that.
func (f *Flow) Open(ctx context.Context) error { return f.test.Open(ctx) }

// Close gives up the test of a flow that will not be run.
func (f *Flow) Close() { f.test.Close() }

// Run runs the test with all its flows, or waits for the one who does, and returns what this flow did. The Result is what was counted, and is
// true also beside an error. Once ctx is done the test ends within two seconds for all of them.
func (f *Flow) Run(ctx context.Context) (load.Result, error) {
	if err := f.test.Open(ctx); err != nil {
		return load.Result{}, err
	}
	f.test.join(ctx)
	return f.result, f.err
}

// Delivered returns how many bytes of payload have arrived so far: received here (download), or acknowledged by the server's stack (TCP upload).
// It is false before data can flow, and for a UDP upload, of which only the server knows. What is omitted counts too. It never falls.
func (f *Flow) Delivered() (uint64, bool) {
	udp, download := f.test.o.UDP, f.direction == load.Download
	if !udp && !download {
		f.look()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case udp && download:
		return f.track.Bytes, !f.linked.IsZero()
	case udp:
		return 0, false
	case download:
		return f.received.Bytes(), f.conn != nil
	}
	return f.acked, f.acks
}

// Datagrams returns what is known of a UDP flow's datagrams so far at this end, or false for TCP and before the flow began.
func (f *Flow) Datagrams() (load.Datagrams, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.test.o.UDP || f.linked.IsZero() {
		return load.Datagrams{}, false
	}
	if f.direction == load.Upload {
		return load.Datagrams{Size: f.test.o.Size, Sent: f.sending, HasSender: true}, true
	}
	return f.countedHere(f.omitted.tally), true
}

// countedHere is what this end received after what was counted in from. f.mu is held.
func (f *Flow) countedHere(from wire.Tally) load.Datagrams {
	t := &f.track.Tally
	d := load.Datagrams{Size: f.test.o.Size, Received: t.Received - from.Received, Reordered: t.Reordered - from.Reordered,
		Duplicate: t.Duplicate - from.Duplicate, HasOrder: true, HasReceiver: true, RTPJitter: t.Jitter}
	if lost := t.Lost(); lost > from.Lost() {
		d.Lost = lost - from.Lost()
	}
	d.DelayChange, d.HasDelay = t.Most()
	d.LastDelay, _ = t.Delay()
	return d
}

// connected publishes a TCP data connection on which the cookie was sent.
func (f *Flow) connected(conn net.Conn, setup time.Duration) {
	h := f.test.client.Host
	info, err := h.TCPInfo(conn)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn, f.setup, f.linked, f.rtt = conn, setup, h.Now(), info.RTT
	f.acks = err == nil && info.HasBytesAcked && f.direction == load.Upload
}

// look asks the stack what was acknowledged. It is called from the sampler's goroutine and from the test's own. The connection stays open
// while it looks, because closing takes the same lock.
func (f *Flow) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == nil || f.ended {
		return
	}
	h := f.test.client.Host
	info, err := h.TCPInfo(f.conn)
	if err != nil {
		return
	}
	f.info = info
	f.rtt = max(f.rtt, info.RTT)
	if !f.acks || info.BytesAcked <= cookieSent {
		return
	}
	// The counter of what was written moves after the write: what is acknowledged was written, whatever the counter says yet.
	if acked := info.BytesAcked - cookieSent; acked > f.acked {
		f.acked, f.ackAt = acked, h.Now()
		if f.first.IsZero() {
			f.first = f.ackAt
		}
	}
}

// seen reports whether payload is known to have arrived.
func (f *Flow) seen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.first.IsZero() || !f.acks
}

// end closes a TCP data connection; with drop, what is queued here is thrown away instead of sent.
func (f *Flow) end(drop bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == nil || f.ended {
		return
	}
	f.ended = true
	if l, ok := f.conn.(interface{ SetLinger(int) error }); ok && drop {
		_ = l.SetLinger(0)
	}
	_ = f.conn.Close()
}

// TCPInfo returns the state of a TCP flow's data connection now, or false where it does not stand or the stack does not tell.
func (f *Flow) TCPInfo() (host.TCPInfo, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn == nil || f.ended {
		return host.TCPInfo{}, false
	}
	info, err := f.test.client.Host.TCPInfo(f.conn)
	return info, err == nil
}
