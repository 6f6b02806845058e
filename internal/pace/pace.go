// Package pace sends at a rate: blocks into a connection, or datagrams on a schedule that waits for nobody.
//
// Blocks are sent as finely as the clock's SleepUntil is, which on the kernel is about a millisecond: what falls due within one leaves back to back.
// Datagrams leave as precisely as the clock can wait (host.PreciseClock), since a burst is what a policer drops.
package pace

import (
	"context"
	"errors"
	"net"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
)

// Blocks say how blocks are sent into a connection. Size must be set.
type Blocks struct {
	Size  int             // bytes of a block; with a Rate, of a write at most
	Rate  bitrate.Bitrate // 0 is no limit
	Burst int             // blocks between two looks at the pace, with Claim; 0 means 1
	Limit uint64          // end after this many bytes, without Claim; 0 is no limit
	// Claim is asked for leave before each block. Once it says no, sending is over. Several senders may share one. nil gives leave always.
	Claim func() bool
	Until time.Time     // end at this time of the host's clock; the zero time is no bound
	Idle  time.Duration // end once no byte has moved for so long; 0 is no bound
}

// maxDebt is how far behind its schedule a sender may fall and still make up for it.
const maxDebt = 100 * time.Millisecond

// Send sends blocks until an end of b, of ctx or of the connection. Everything else is as with pump.Send, which it calls for each block; its
// End is Full where Claim said no.
func Send(ctx context.Context, clock host.Clock, c net.Conn, n *pump.Counter, b Blocks) (pump.Outcome, error) {
	if b.Claim == nil {
		o := pump.Options{Until: b.Until, Idle: b.Idle, Rate: b.Rate, Limit: b.Limit}
		if b.Rate > 0 {
			o.Size = min(b.Size, pump.ChunkSize)
		}
		return pump.Send(ctx, clock, c, n, o)
	}
	var out pump.Outcome
	s := schedule{start: clock.Now(), rate: b.Rate, size: b.Size}
	burst := uint64(max(1, b.Burst))
	for k := uint64(0); ; k++ {
		if !b.Claim() {
			out.End = pump.Full
			return out, nil
		}
		if b.Rate > 0 && k%burst == 0 {
			due := s.due(k)
			if debt := clock.Now().Sub(due); debt > maxDebt {
				s.start = s.start.Add(debt - maxDebt)
			}
			if !b.Until.IsZero() && due.After(b.Until) {
				due = b.Until
			}
			if clock.SleepUntil(ctx, due) != nil {
				out.End = pump.Stopped
				return out, context.Cause(ctx)
			}
		}
		got, err := pump.Send(ctx, clock, c, n, pump.Options{Until: b.Until, Idle: b.Idle, Limit: uint64(b.Size)})
		out.Bytes += got.Bytes
		out.Calls += got.Calls
		if out.First.IsZero() {
			out.First = got.First
		}
		if !got.Last.IsZero() {
			out.Last = got.Last
		}
		if got.End != pump.Full {
			out.End = got.End
			return out, err
		}
	}
}

// schedule says when each block is due.
type schedule struct {
	start time.Time
	rate  bitrate.Bitrate
	size  int
}

// due returns when block k is to be sent, without an error that adds up: a float64 holds nanoseconds to the unit for a hundred days.
func (s schedule) due(k uint64) time.Time {
	return s.start.Add(time.Duration(float64(k) * float64(s.size) * 8e9 / float64(s.rate)))
}

// number returns the first block that is due after t, and at least 1.
func (s schedule) number(t time.Time) uint64 {
	return uint64(max(0, t.Sub(s.start).Seconds())*float64(s.rate)/8/float64(s.size)) + 1
}

// Datagrams say how datagrams are sent. Size and Rate must be set.
type Datagrams struct {
	Size  int             // bytes of payload, which is what Rate counts
	Rate  bitrate.Bitrate // more than 0
	Burst int             // datagrams that are due at once; 0 means 1
	Limit uint64          // end after this many were sent; 0 is no limit
	Until time.Time       // must be set
}

// Sent is what became of a schedule of datagrams.
type Sent struct {
	Sent     uint64        // handed to the stack
	Unsent   uint64        // refused by the stack's full queue
	Skipped  uint64        // left out, since by the time that this host came to them they would have been a burst
	Lateness time.Duration // the most that one left behind its time
	First    time.Time     // and Last: when the first and the last one left; zero where none did
	Last     time.Time
	Full     bool // as many as the Limit
}

// maxBurst is how late a datagram may leave, where it is more than the time to the next: where one is later, all that are due by then are left
// out, so that the load stays what it was meant to be.
const maxBurst = 20 * time.Millisecond

// SendDatagrams calls send for each datagram when it is due, with its number, counted from 1 without gaps, and the time. send returns an error
// that wraps host.ErrNoBuffer for a datagram that was not sent; any other error ends it, as the end of ctx does, with what was sent until then.
func SendDatagrams(ctx context.Context, clock host.Clock, d Datagrams, send func(seq uint64, now time.Time) error) (Sent, error) {
	var out Sent
	s := schedule{start: clock.Now(), rate: d.Rate, size: d.Size}
	burst := uint64(max(1, d.Burst))
	latest := max(maxBurst, s.due(burst).Sub(s.start))
	sleep := clock.SleepUntil
	if p, ok := clock.(host.PreciseClock); ok {
		sleep = p.SleepPrecisely
	}
	now := s.start
	for k := uint64(0); ; k++ {
		due := s.due(k - k%burst)
		if !due.Before(d.Until) {
			return out, clock.SleepUntil(ctx, d.Until)
		}
		if now.Before(due) {
			if err := sleep(ctx, due); err != nil {
				return out, err
			}
		} else if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		now = clock.Now()
		late := now.Sub(due)
		if late > latest {
			by := now
			if end := d.Until.Add(-1); by.After(end) {
				by = end // what is due after the end was never to leave
			}
			missed := max(s.number(by), k+1) - k // all that should have left by now
			out.Skipped += missed
			k += missed - 1
			continue
		}
		if d.Limit > 0 && out.Sent == d.Limit {
			out.Full = true
			return out, nil
		}
		switch err := send(out.Sent+1, now); {
		case errors.Is(err, host.ErrNoBuffer):
			out.Unsent++
			continue
		case err != nil:
			return out, err
		}
		out.Sent++
		out.Lateness = max(out.Lateness, late)
		if out.First.IsZero() {
			out.First = now
		}
		out.Last = now
	}
}
