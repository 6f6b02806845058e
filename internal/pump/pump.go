// Package pump moves bytes between a connection and nowhere, as fast as the connection takes or gives them, and counts them.
package pump

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
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
	Size  int           // bytes of one write, or of one read into a buffer, at most; 0, or ChunkSize and more, leave it to the pump
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

// mostDiscarded is the most of one read without a buffer. A socket never holds so much.
const mostDiscarded = 16 << 20

// payload is what Send sends: the same bytes in every chunk, random so that a compressing link gains nothing by them.
var payload = sync.OnceValue(func() []byte {
	b := make([]byte, chunk)
	_, _ = rand.NewChaCha8([32]byte{'b', 'l', 'o', 'a', 't'}).Read(b)
	return b
})

// Receive reads from c until an end of o, the end of the stream or of ctx, and adds to n what it reads. The Outcome is true
// whatever the error, which is the cause of ctx or the connection's own. Receive owns c's read deadline while it runs and
// clears it before it returns; it does not close c.
//
// A TCP connection of Linux that gives access to its descriptor is read there, without c's Read and without copying what nobody looks at. On a
// fast flow it reads about once a millisecond; First and Last are then as much later than the bytes, and 10 ms at most where the flow stops.
func Receive(ctx context.Context, clock host.Clock, c net.Conn, n *Counter, o Options) (Outcome, error) {
	p := pumping{clock: clock, setDeadline: c.SetReadDeadline, n: n, o: o, most: o.size(), sock: newSocket(c)}
	if p.sock != nil {
		p.most, p.batches = mostDiscarded, true
		defer func() { p.setBatch(0) }()
	}
	r := reader{conn: c, p: &p}
	return p.run(ctx, r.turn)
}

// reader is the turn of Receive.
type reader struct {
	conn net.Conn
	p    *pumping
	buf  []byte // nil until the connection's own Read is needed
}

func (r *reader) turn(_ context.Context, limit int) (int, error) {
	k, err := r.read(limit)
	if k > 0 {
		// One clock reading per read, so that Last is known whatever ends the stream; see BenchmarkReceive for its price.
		now := r.p.clock.Now()
		if r.p.out.First.IsZero() {
			r.p.out.First = now
		}
		r.p.out.Last = now
	}
	return k, err
}

func (r *reader) read(limit int) (int, error) {
	if r.p.sock != nil {
		k, err := r.p.sock.discard(limit)
		switch {
		case k == 0 && err == nil:
			return 0, io.EOF
		case err == nil || !lacksDiscard(err):
			return k, err
		}
		r.p.sock = nil
	}
	if r.buf == nil {
		r.buf = make([]byte, r.p.o.size())
	}
	return r.conn.Read(r.buf[:min(limit, len(r.buf))])
}

// Send writes to c until an end of o or ctx, and adds to n what the local stack has taken, which is not what has arrived. Error,
// deadline and ownership are as with Receive, for c's write deadline.
//
// On a TCP connection of Linux, as with Receive, what the stack has taken and not sent for the first time is kept at some 10 ms of the flow's
// rate, so that the end of the sending is soon the end of the flow.
func Send(ctx context.Context, clock host.Clock, c net.Conn, n *Counter, o Options) (Outcome, error) {
	p := pumping{clock: clock, setDeadline: c.SetWriteDeadline, n: n, o: o, most: o.size(), sock: newSocket(c)}
	w := writer{conn: c, p: &p, begin: clock.Now(), piece: leastPiece}
	w.next = w.begin
	if p.sock != nil {
		release := w.tune()
		defer release()
	}
	return p.run(ctx, w.turn)
}

// writer is the turn of Send.
type writer struct {
	conn  net.Conn
	p     *pumping
	begin time.Time
	next  time.Time // when a write may begin, with a rate
	piece int       // of a write that waits until the stack has taken all of it
	queue backlog
	fed   bool // it has been tried to give pages
}

// tune sets up a socket for a flow; a single block is too short to be one.
func (w *writer) tune() (release func()) {
	o := w.p.o
	if o.Limit > 0 && o.Limit <= chunk {
		return func() {}
	}
	if s, ok := w.p.sock.queue(); ok && w.p.sock.limitUnsent(startBacklog) == nil {
		w.queue = backlog{limit: startBacklog, segment: s.segment}
	}
	if o.Rate == 0 {
		return w.p.sock.closeFeed
	}
	w.p.sock.smooth(o.Rate)
	return func() { w.p.sock.smooth(0) }
}

func (w *writer) turn(ctx context.Context, limit int) (int, error) {
	p := w.p
	if p.o.Rate > 0 {
		if err := p.pace(ctx, w.next); err != nil {
			return 0, err
		}
	}
	k, err := w.write(limit)
	now := p.clock.Now()
	if k > 0 {
		p.out.First, p.out.Last = w.begin, now
		w.look(now)
	}
	if p.o.Rate > 0 {
		if behind := now.Add(-mostBehind); w.next.Before(behind) {
			w.next = behind
		}
		w.next = w.next.Add(time.Duration(float64(k) * 8 / float64(p.o.Rate) * float64(time.Second)))
	}
	return k, err
}

// The bounds of a piece, and of the time that one should take: short enough that every tenth of a second has some.
const (
	leastPiece = 4 << 10
	shortPiece = 5 * time.Millisecond
	longPiece  = 40 * time.Millisecond
)

// write writes once. Where a write waits until the stack has taken all of it, its size follows the rate, so that the counter moves often.
func (w *writer) write(limit int) (int, error) {
	if w.p.sock != nil {
		return w.p.sock.write(w.queue.piece(limit))
	}
	start := w.p.clock.Now()
	k, err := w.conn.Write(payload()[:min(limit, w.piece)])
	switch took := w.p.clock.Now().Sub(start); {
	case took < shortPiece:
		w.piece = min(2*w.piece, chunk)
	case took > longPiece:
		w.piece = max(w.piece/2, leastPiece)
	}
	return k, err
}

// look keeps what is unsent at what the rate needs.
func (w *writer) look(now time.Time) {
	if !w.queue.due(now) {
		return
	}
	if s, ok := w.p.sock.queue(); ok && w.queue.adapt(now, s) {
		_ = w.p.sock.limitUnsent(w.queue.limit) // a limit that stays as it was costs time at the end and falsifies nothing
	}
	if !w.fed && w.p.most == chunk && w.p.o.Rate == 0 && w.queue.rate >= fastFlow {
		w.fed = true
		w.p.most = max(chunk, w.p.sock.openFeed())
	}
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
	most        int // bytes of a turn
	out         Outcome
	sock        *socket // nil where c's own Read and Write are to be used
	batches     bool    // it reads from sock, and looks whether batches would help
	batch       batch
	yielded     time.Time
}

// run turns until something ends it.
func (p *pumping) run(ctx context.Context, turn func(ctx context.Context, limit int) (int, error)) (Outcome, error) {
	p.begin = p.clock.Now()
	release := OnDone(ctx, func() { _ = p.setDeadline(p.clock.Now().Add(-time.Second)) })
	err := p.loop(ctx, turn)
	release()
	_ = p.setDeadline(time.Time{}) // it fails only on a connection that is closed
	return p.out, err
}

func (p *pumping) loop(ctx context.Context, turn func(ctx context.Context, limit int) (int, error)) error {
	if end, err := p.arm(ctx); end != 0 {
		p.out.End = end
		return err
	}
	for {
		limit := p.most
		if p.o.Limit > 0 {
			limit = int(min(uint64(limit), p.o.Limit-p.out.Bytes))
		}
		k, err := turn(ctx, limit)
		if k > 0 {
			p.out.Bytes += uint64(k)
			p.out.Calls++
			p.n.n.Add(uint64(k))
			if p.out.Bytes == p.o.Limit {
				p.out.End = Full
				return nil
			}
			p.yield()
			if p.rebatch(k) && err == nil {
				if end, err := p.arm(ctx); end != 0 {
					p.out.End = end
					return err
				}
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

// setBatch has a reader woken for so many bytes, 0 for any.
func (p *pumping) setBatch(bytes int) {
	if p.sock == nil || bytes == p.batch.at {
		return
	}
	if p.sock.wakeAt(bytes) == nil {
		p.batch.at = bytes
	}
}

// yieldEvery is how long a pump that never waits may go on while probes wait for their turn. Each yield costs as much as moving 100 kB.
const yieldEvery = 2 * time.Millisecond

// yield lets others run now and then. The scheduler has not seen the calls of a socket, and would let this goroutine go on for 10 ms.
func (p *pumping) yield() {
	if p.sock != nil && p.out.Last.Sub(p.yielded) >= yieldEvery {
		p.yielded = p.out.Last
		runtime.Gosched()
	}
}

// rebatch adapts the batch to k bytes that were just read, and reports whether the deadline must follow.
func (p *pumping) rebatch(k int) bool {
	if p.sock == nil || !p.batches {
		return false
	}
	want, look := p.batch.add(p.out.Last, k)
	before := p.batch.at
	if look {
		p.setBatch(want)
	}
	return look && (before > 0 || p.batch.at > 0)
}

// classify says what an error of a turn means; no End at all where only the idle bound has to move on.
func (p *pumping) classify(ctx context.Context, err error) (End, error) {
	switch {
	case ctx.Err() != nil:
		return Stopped, context.Cause(ctx)
	case errors.Is(err, io.EOF):
		return Closed, nil
	case IsDeadline(err):
		p.setBatch(0) // what lies unread is read now
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
	if soon := now.Add(batchWait); p.batch.at > 0 && (next.IsZero() || soon.Before(next)) {
		next = soon
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
