package host

import "time"

const (
	// maxStampAge bounds the time between a kernel stamp and the read that returns it. A process that was stopped for longer
	// gets user stamps, which say so, until its queue is empty.
	maxStampAge = 10 * time.Second
	// pairGap is the longest that two readings of the clocks may lie apart and still count as one moment.
	pairGap = 50 * time.Microsecond
	// stepSize is the least change between the clocks that counts as a step. The monotonic clock is slewed together with the
	// wall clock, so only steps and a suspended machine move the one against the other; the rest is within pairGap, twice.
	stepSize = 200 * time.Microsecond
)

// stampClock turns the kernel's receive stamps, which are wall-clock times, into times of the monotonic clock: the age of a stamp by
// the wall clock is taken from the present. That is false where the wall clock was stepped between the two, so a stampClock
// watches the difference of the clocks from read to read, and vouches for no stamp that may be from before a step.
// It is not safe for concurrent use.
type stampClock struct {
	base    time.Time
	offset  time.Duration // wall less monotonic clock at the last read, from an arbitrary origin
	known   bool          // offset is set
	suspect bool          // a step was seen, and packets from before it may still be queued
}

func newStampClock() stampClock {
	s := stampClock{base: time.Now()}
	if now, tight := s.read(); tight {
		s.offset, s.known = wallLessMonotonic(now, s.base), true
	}
	return s
}

func wallLessMonotonic(now, base time.Time) time.Duration {
	return time.Duration(now.UnixNano() - int64(now.Sub(base)))
}

// read returns the present. Only where tight is true do its wall and its monotonic part belong to the same moment: a
// process can be interrupted between the two readings.
func (s *stampClock) read() (now time.Time, tight bool) {
	for range 3 {
		before := time.Since(s.base)
		now = time.Now()
		if now.Sub(s.base)-before < pairGap {
			return now, true
		}
	}
	return now, false
}

// arrival returns the time of a packet with this kernel stamp, in nanoseconds since 1970, read from the socket at now;
// where the stamp cannot be vouched for it returns now as a user stamp.
func (s *stampClock) arrival(stamp int64, now time.Time) (time.Time, Stamp) {
	age, ok := s.age(stamp, now.UnixNano(), wallLessMonotonic(now, s.base))
	if !ok {
		return now, UserStamp
	}
	return now.Add(-age), KernelStamp
}

// age returns how long before now the stamp was taken, or false where that cannot be told.
func (s *stampClock) age(stamp, wallNow int64, offset time.Duration) (time.Duration, bool) {
	if moved := offset - s.offset; s.known && (moved > stepSize || moved < -stepSize) {
		s.suspect = true
	}
	s.offset, s.known = offset, true
	age := time.Duration(wallNow - stamp)
	return age, !s.suspect && age >= 0 && age <= maxStampAge
}

// emptied tells that the socket's queue was empty, so that whatever is read later arrived later.
func (s *stampClock) emptied() { s.suspect = false }
