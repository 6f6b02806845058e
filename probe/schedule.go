package probe

import "time"

// Schedule says when each probe of a series is due. It counts from its start, never from the last wake-up, so that a late
// wake-up delays one probe and shifts none after it.
type Schedule struct {
	Start    time.Time
	Interval time.Duration
}

// Due returns when probe n is due: Start + n x Interval.
func (s Schedule) Due(n uint64) time.Time { return s.Start.Add(time.Duration(n) * s.Interval) }
