package irtt

import (
	"net/netip"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
)

// session is one client's test.
type session struct {
	token    wire.Token
	client   netip.AddrPort
	asked    wire.Params
	fields   wire.Fields
	size     int // bytes of every reply
	mark     dscp.CodePoint
	fill     string        // of the replies, "" for the server's own
	duration time.Duration // granted, 0 if the client named none

	proven bool      // an echo request came, so the client's address is its own
	first  time.Time // when the first one came
	last   time.Time // when the latest echo or open request came
	bucket bucket

	count   uint32 // echo requests taken, duplicates included
	highest uint32 // their highest sequence number; valid with count
	seen    [2]uint64
}

func newSession(token wire.Token, d host.Datagram, asked, granted wire.Params, hmac bool, burst int) *session {
	return &session{
		token:    token,
		client:   d.From,
		asked:    asked,
		fields:   granted.Fields(),
		size:     granted.EchoSize(hmac),
		mark:     dscp.FromByte(granted.DS), // the client's ECN bits are not sent: a reply is Not-ECT
		fill:     granted.Fill,
		duration: granted.Duration,
		last:     d.At,
		bucket:   newBucket(float64(burst)),
	}
}

// limit is how long the session may last.
func (s *session) limit(longest time.Duration) time.Duration {
	if s.duration == 0 {
		return longest
	}
	return s.duration
}

// received takes in request seq and returns its window: bit k tells whether request seq-k came. The window of a request that comes so
// late that not all of it is known any more is 0, no information.
//
// Of the 128 requests up to the highest, bit k of seen (64 to a word) tells whether request highest-k came: twice what a window
// shows, so that a late request's own window is as complete.
func (s *session) received(seq uint32) (window uint64) {
	s.count++
	if s.count == 1 {
		s.highest, s.seen = seq, [2]uint64{1, 0}
		return 1
	}
	if seq > s.highest {
		s.shift(seq - s.highest)
		s.highest = seq
		s.seen[0] |= 1
		return s.seen[0]
	}
	late := s.highest - seq
	switch {
	case late < 64:
		s.seen[0] |= 1 << late
		return s.seen[0]>>late | s.seen[1]<<(64-late)
	case late == 64:
		s.seen[1] |= 1
		return s.seen[1]
	case late < 128:
		s.seen[1] |= 1 << (late - 64)
	}
	return 0
}

// shift moves what was seen by n requests into the past. A shift count of 64 and more gives 0 in Go.
func (s *session) shift(n uint32) {
	if n >= 64 {
		s.seen[1] = s.seen[0] << (n - 64)
		s.seen[0] = 0
		return
	}
	s.seen[1] = s.seen[1]<<n | s.seen[0]>>(64-n)
	s.seen[0] <<= n
}

// bucket limits a rate and lets through a burst.
type bucket struct {
	size, level float64
	last        time.Time
}

func newBucket(size float64) bucket { return bucket{size: size, level: size} }

// take reports whether one more may pass at now, where one passes per interval in the long run.
func (b *bucket) take(now time.Time, interval time.Duration) bool {
	if !b.last.IsZero() && now.After(b.last) {
		b.level = min(b.size, b.level+float64(now.Sub(b.last))/float64(interval))
	}
	b.last = later(b.last, now)
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
