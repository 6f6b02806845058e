package netperf

import (
	"net"
	"time"

	"bufferbloat/internal/host"
)

// The backlog is what was written and waits in this host for its turn. It must not run dry, and all of it has yet to cross the link
// when an upload's time is up: on a slow link with many flows a stack's automatic buffers are seconds of it.
const (
	startBacklog = 128 << 10 // until a rate is known; as much as one write
	leastBacklog = 16 << 10
	mostBacklog  = 16 << 20 // that a dry look can lead to; far more than a stack's own limit
	backlogTime  = 10 * time.Millisecond
)

// backlog keeps an upload's unsent bytes at what its rate needs, where the stack lets it. It is used from one goroutine.
type backlog struct {
	conn  host.UnsentLimiter // nil where the stack has no limit to set
	limit int
	at    time.Time // of the last adapt
	acked uint64
}

// newBacklog sets the limit that holds until the first rate is known.
func newBacklog(data net.Conn) *backlog {
	b := &backlog{limit: startBacklog}
	if conn, ok := data.(host.UnsentLimiter); ok && conn.SetUnsentLimit(startBacklog) == nil {
		b.conn = conn
	}
	return b
}

// adapt sets the limit by what was acknowledged since the last call. A failure leaves the limit as it was, which costs time at the
// end and falsifies nothing.
func (b *backlog) adapt(now time.Time, acked uint64, info host.TCPInfo) {
	if b.conn == nil || acked == 0 {
		return
	}
	if b.at.IsZero() {
		b.at, b.acked = now, acked
		return
	}
	d := now.Sub(b.at)
	if d < lookEvery {
		return
	}
	// A stack wakes the writer once half of the limit is free, so that half is its time to come.
	limit := nextBacklog(b.limit, acked-b.acked, d, info.HasUnsent && info.Unsent < b.limit/8)
	b.at, b.acked = now, acked
	if limit != b.limit && b.conn.SetUnsentLimit(limit) == nil {
		b.limit = limit
	}
}

// nextBacklog returns the limit after one of which so many bytes were acknowledged in d: 10 ms of that rate, approached from above by
// an eighth a step. A queue that was found nearly dry widens it instead: this host was too slow to refill it, and a limit that followed the
// rate alone would throttle the rate that it follows.
func nextBacklog(limit int, acked uint64, d time.Duration, dry bool) int {
	want := max(leastBacklog, int(float64(acked)*float64(backlogTime)/float64(d)))
	if dry {
		return max(want, min(4*limit, mostBacklog))
	}
	return max(want, limit-limit/8)
}
