package host

import "time"

const (
	// maxStampAge bounds the time between a kernel stamp and the read that returns it. A process that was stopped for longer
	// gets user stamps, which say so, until its queue is empty.
	maxStampAge = 10 * time.Second
	// pairGap is the longest that two readings of the clocks may lie apart and still count as one moment, and pairTries how often that is tried.
	pairGap   = 5 * time.Microsecond
	pairTries = 5
	// stepSize is the least change between the clocks that counts as a step. The monotonic clock is slewed together with the
	// wall clock, so only steps and a suspended machine move the one against the other; what readings differ by beyond the time that they
	// took is that of CPUs whose counters do not quite agree.
	stepSize = 2 * time.Microsecond
)

// stampClock turns the kernel's stamps, which are wall-clock times, into times of the monotonic clock. The difference of the two clocks changes
// by steps of the wall clock alone. Each pair of readings bounds it, and the closest bounds of all are used, so that a reading that was
// interrupted moves no stamp. A stamp that may be from before a step is not vouched for.
// It is not safe for concurrent use.
type stampClock struct {
	base      time.Time
	low, high time.Duration // bounds of the wall clock less the monotonic one, from an arbitrary origin
	known     bool          // they are set
	suspect   bool          // a step was seen, and packets from before it may still be queued
}

// reading is one look at both clocks.
type reading struct {
	now  time.Time     // its wall part was read at most gap before its monotonic part
	mono time.Duration // since the stampClock's base
	gap  time.Duration
}

func newStampClock() stampClock {
	s := stampClock{base: time.Now()}
	s.take(s.read())
	return s
}

// read returns the present. It reads anew where it was interrupted between the clocks, a few times.
func (s *stampClock) read() reading {
	for tries := 1; ; tries++ {
		before := time.Since(s.base)
		now := time.Now()
		r := reading{now: now, mono: now.Sub(s.base)}
		if r.gap = r.mono - before; r.gap < pairGap || tries == pairTries {
			return r
		}
	}
}

// take narrows the bounds by a reading, or begins anew with it where the wall clock was stepped.
func (s *stampClock) take(r reading) {
	low := time.Duration(r.now.UnixNano() - int64(r.mono))
	s.narrow(low, low+r.gap)
}

func (s *stampClock) narrow(low, high time.Duration) {
	switch {
	case !s.known:
		s.low, s.high, s.known = low, high, true
	case low > s.high+stepSize || high < s.low-stepSize:
		s.suspect = true
		s.low, s.high = low, high
	case low > s.high || high < s.low: // within what CPUs differ by
		s.low, s.high = low, high
	default:
		s.low, s.high = max(s.low, low), min(s.high, high)
	}
}

// arrival returns the time of a packet with this kernel stamp, in nanoseconds since 1970, that was read from the socket before r;
// where the stamp cannot be vouched for it returns r's as a user stamp.
func (s *stampClock) arrival(stamp int64, r reading) (time.Time, Stamp) {
	s.take(r)
	age, ok := s.age(stamp, r.mono)
	if !ok {
		return r.now, UserStamp
	}
	return r.now.Add(-age), KernelStamp
}

// age returns how long before mono the stamp was taken, or false where that cannot be told.
func (s *stampClock) age(stamp int64, mono time.Duration) (time.Duration, bool) {
	offset := s.low + (s.high-s.low)/2
	age := mono - time.Duration(stamp-int64(offset))
	const rounding = time.Microsecond // of bounds that are apart
	if age < 0 && age > -rounding {
		age = 0
	}
	return age, !s.suspect && s.high-s.low < pairGap && age >= 0 && age <= maxStampAge
}

// emptied tells that the socket's queue was empty, so that whatever is read later arrived later.
func (s *stampClock) emptied() { s.suspect = false }
