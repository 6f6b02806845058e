package pump

import (
	"time"

	"bufferbloat/internal/bitrate"
)

// The backlog is what was written and waits in this host for its turn. It must not run dry, and all of it has yet to cross the link
// when a sender's time is up: on a slow link with many flows a stack's automatic buffers are seconds of it.
const (
	startBacklog = 16 << 10 // until a rate is known: what several flows write at once to a slow link is there for their whole time
	leastBacklog = 4 * 1448 // four segments, so that one is always being sent and one is there behind it
	mostBacklog  = 16 << 20 // that a dry look can lead to; far more than a stack's own limit
	backlogTime  = 10 * time.Millisecond
	backlogLook  = 25 * time.Millisecond
	// A limit up to this is filled in quarters, which the stack then does not join to buffers of up to 64 KiB that the limit does not bound.
	smallBacklog = 256 << 10
)

// sending is what the stack knows of a connection's written bytes.
type sending struct {
	acked   uint64 // by the peer, give or take one for the handshake
	unsent  int    // not sent for the first time
	segment int    // bytes of payload in a full one
}

// backlog decides how much a sender may have unsent, by what its rate needs.
type backlog struct {
	limit   int // 0 is none
	segment int
	at      time.Time // of the last look
	acked   uint64
	rate    bitrate.Bitrate // between the last two looks
}

// fastFlow is the rate from which pages are given in place of copies. Below it there is little to be saved.
const fastFlow = bitrate.Gbit

// due reports whether it is time to look.
func (b *backlog) due(now time.Time) bool { return b.limit > 0 && now.Sub(b.at) >= backlogLook }

// piece returns how much of limit to write at once, in whole segments or as many of them as one buffer of the stack takes: what is left over
// would go out as a packet of its own, and cost as much as 64 KiB. With apart it is to have buffers of its own.
func (b *backlog) piece(limit int) (n int, apart bool) {
	if b.limit == 0 || b.segment <= 0 {
		return limit, false
	}
	if b.limit > smallBacklog {
		whole := buffer(b.segment)
		return max(limit-limit%whole, min(limit, whole)), false
	}
	return min(limit, max(1, b.limit/4/b.segment)*b.segment), true
}

// buffer returns how many bytes of whole segments Linux's TCP puts into one buffer: they fill 64 KiB together with the room that it keeps for headers.
func buffer(segment int) int {
	const headers = 321
	return max(1, (64<<10-headers)/segment) * segment
}

// adapt looks at the stack right after a write, and reports whether limit has changed.
func (b *backlog) adapt(now time.Time, s sending) bool {
	b.segment = s.segment
	if s.acked == 0 {
		return false
	}
	d, got := now.Sub(b.at), s.acked-b.acked
	first := b.at.IsZero()
	b.at, b.acked = now, s.acked
	if first {
		return false
	}
	b.rate = bitrate.Of(got, d)
	// A stack wakes the writer once half of the limit is free, so that half is its time to come.
	limit := nextBacklog(b.limit, got, d, s.unsent < b.limit/8)
	changed := limit != b.limit
	b.limit = limit
	return changed
}

// nextBacklog returns the limit after one of which so many bytes were acknowledged in d: 10 ms of that rate, approached from above by
// a thirty-second each 25 ms. A queue that was found nearly dry widens it instead: this host was too slow to refill it, and a limit that followed
// the rate alone would throttle the rate that it follows.
func nextBacklog(limit int, acked uint64, d time.Duration, dry bool) int {
	want := max(leastBacklog, int(float64(acked)*float64(backlogTime)/float64(d)))
	if dry {
		return max(want, min(4*limit, mostBacklog))
	}
	for ; d >= backlogLook && limit > want; d -= backlogLook {
		limit -= limit / 32
	}
	return max(want, limit)
}
