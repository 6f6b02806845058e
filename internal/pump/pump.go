// Package pump moves bytes between a connection and nowhere, as fast as the connection takes or gives them, and counts them.
package pump

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
)

// Counter counts bytes while a pump runs. The zero Counter is ready; any goroutine may read it, the pump never waits for one.
type Counter struct{ n atomic.Uint64 }

// Bytes returns the count so far.
func (c *Counter) Bytes() uint64 { return c.n.Load() }

// Options say when a pump ends, beside the end of the connection. The zero value sets no end.
type Options struct {
	Until time.Time     // end at this time of the host's clock; the zero time is no bound
	Idle  time.Duration // end once no byte has moved for this long (Send: at most twice as long); 0 is no bound
	Limit uint64        // end after this many bytes; 0 is no bound
	Size  int           // bytes of one read or write at most; 0 is ChunkSize, which is also the most
	// Rate is what Send sends at most, evenly: it is no more than one write, or 100 ms, ahead or behind. 0 is no bound.
	Rate bitrate.Bitrate
}

// size is how many bytes a turn moves at most: those of 10 ms where there is a rate, in whole packets.
func (o Options) size() int {
	size := chunk
	if o.Size > 0 {
		size = min(size, o.Size)
	}
	if o.Rate > 0 {
		const packet, turns = 1448, 100 // a second
		size = min(size, packet*max(1, int(min(o.Rate/8/turns/packet, chunk))))
	}
	return size
}

// End is why a pump ended.
type End uint8

// The ends. Broken and Stopped come with an error.
const (
	Closed  End = iota + 1 // the peer ended its stream (only Receive)
	TimeUp                 // Options.Until
	Stalled                // Options.Idle
	Full                   // Options.Limit
	Stopped                // the context is done
	Broken                 // the connection failed: reset, broken pipe, closed locally
)

func (e End) String() string {
	return [...]string{"", "closed", "time up", "stalled", "full", "stopped", "broken"}[e]
}

// Outcome is what a pump moved.
type Outcome struct {
	Bytes uint64 // read from the connection, or taken by the local stack
	Calls uint64 // reads or writes that moved bytes
	// First and Last are times of the host's clock. Receive stamps the first and the last read that returned bytes, just after it;
	// Send stamps the time before its first write and after its last one. Both are zero where nothing moved.
	First, Last time.Time
	End         End
}

// chunk is the size of a read or write. It is large enough that the cost of a turn does not show at 10 Gbit/s.
const chunk = 128 << 10

// payload is what Send sends: the same bytes in every chunk, random so that a compressing link gains nothing by them.
var payload = sync.OnceValue(func() []byte {
	b := make([]byte, chunk)
	_, _ = rand.NewChaCha8([32]byte{'b', 'l', 'o', 'a', 't'}).Read(b)
	return b
})

// Receive reads from c until an end of o, the end of the stream or of ctx, and adds to n what it reads. The Outcome is true
// whatever the error, which is the cause of ctx or the connection's own. Receive owns c's read deadline while it runs and
// clears it before it returns; it does not close c.
func Receive(ctx context.Context, clock host.Clock, c net.Conn, n *Counter, o Options) (Outcome, error) {
	p := pumping{clock: clock, setDeadline: c.SetReadDeadline, n: n, o: o}
	buf := make([]byte, o.size())
	return p.run(ctx, func(limit int) (int, error) {
		k, err := c.Read(buf[:limit])
		if k > 0 {
			// One clock reading per read, so that Last is known whatever ends the stream; see BenchmarkReceive for its price.
			now := clock.Now()
			if p.out.First.IsZero() {
				p.out.First = now
			}
			p.out.Last = now
		}
		return k, err
	})
}

// Send writes to c until an end of o or ctx, and adds to n what the local stack has taken, which is not what has arrived. Error,
// deadline and ownership are as with Receive, for c's write deadline.
func Send(ctx context.Context, clock host.Clock, c net.Conn, n *Counter, o Options) (Outcome, error) {
	p := pumping{clock: clock, setDeadline: c.SetWriteDeadline, n: n, o: o}
	buf := payload()
	begin := clock.Now()
	next := begin // when a write may begin, with a rate
	return p.run(ctx, func(limit int) (int, error) {
		if o.Rate > 0 {
			if err := p.pace(ctx, next); err != nil {
				return 0, err
			}
		}
		k, err := c.Write(buf[:limit])
		if k > 0 {
			p.out.First, p.out.Last = begin, clock.Now()
		}
		if o.Rate > 0 {
			if behind := clock.Now().Add(-mostBehind); next.Before(behind) {
				next = behind
			}
			next = next.Add(time.Duration(float64(k) * 8 / float64(o.Rate) * float64(time.Second)))
		}
		return k, err
	})
}

// mostBehind is how much of its rate a paced sender makes up for after it was held up.
const mostBehind = 100 * time.Millisecond

// pace waits until next, or until the time of the pump is up.
func (p *pumping) pace(ctx context.Context, next time.Time) error {
	if until := p.o.Until; !until.IsZero() && next.After(until) {
		if err := p.clock.SleepUntil(ctx, until); err != nil {
			return err
		}
		return os.ErrDeadlineExceeded
	}
	return p.clock.SleepUntil(ctx, next)
}

// pumping is one call's state.
type pumping struct {
	clock       host.Clock
	setDeadline func(time.Time) error
	n           *Counter
	o           Options
	begin       time.Time
	out         Outcome
}

// run turns until something ends it.
func (p *pumping) run(ctx context.Context, turn func(limit int) (int, error)) (Outcome, error) {
	p.begin = p.clock.Now()
	release := OnDone(ctx, func() { _ = p.setDeadline(p.clock.Now().Add(-time.Second)) })
	err := p.loop(ctx, turn)
	release()
	_ = p.setDeadline(time.Time{}) // it fails only on a connection that is closed
	return p.out, err
}

func (p *pumping) loop(ctx context.Context, turn func(limit int) (int, error)) error {
	if end, err := p.arm(ctx); end != 0 {
		p.out.End = end
		return err
	}
	size := p.o.size()
	for {
		limit := size
		if p.o.Limit > 0 {
			limit = int(min(uint64(size), p.o.Limit-p.out.Bytes))
		}
		k, err := turn(limit)
		if k > 0 {
			p.out.Bytes += uint64(k)
			p.out.Calls++
			p.n.n.Add(uint64(k))
			if p.out.Bytes == p.o.Limit {
				p.out.End = Full
				return nil
			}
		}
		if err == nil {
			continue
		}
		if end, err := p.classify(ctx, err); end != 0 {
			p.out.End = end
			return err
		}
	}
}

// classify says what an error of a turn means; no End at all where only the idle bound has to move on.
func (p *pumping) classify(ctx context.Context, err error) (End, error) {
	switch {
	case ctx.Err() != nil:
		return Stopped, context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return Closed, nil
	case IsDeadline(err):
		return p.arm(ctx)
	}
	return Broken, err
}

// arm sets the deadline to the next end that time can bring, or returns that end where it is here already.
func (p *pumping) arm(ctx context.Context) (End, error) {
	now, next := p.clock.Now(), p.o.Until
	if !next.IsZero() && !now.Before(next) {
		return TimeUp, nil
	}
	if p.o.Idle > 0 {
		moved := p.begin
		if p.out.Last.After(moved) {
			moved = p.out.Last
		}
		idle := moved.Add(p.o.Idle)
		if !now.Before(idle) {
			return Stalled, nil
		}
		if next.IsZero() || idle.Before(next) {
			next = idle
		}
	}
	if err := p.setDeadline(next); err != nil {
		return Broken, err
	}
	// The context may have been done before the deadline was set here, which then has undone its wake-up.
	if ctx.Err() != nil {
		return Stopped, context.Cause(ctx)
	}
	return 0, nil
}

// ChunkSize is the most bytes that one read or write moves.
const ChunkSize = chunk

// Payload returns ChunkSize bytes that mean nothing, the same in every call. They must not be written to.
func Payload() []byte { return payload() }
