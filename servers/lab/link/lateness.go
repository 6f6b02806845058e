package link

import (
	"fmt"
	"math/bits"
	"time"
)

// Lateness is the distribution of how long after its time each packet was delivered, by the fault of whoever drives a link. It is not safe
// for concurrent use.
type Lateness struct {
	Packets uint64
	Max     time.Duration
	// Counts are the packets by lateness in nanoseconds: eight buckets to an octave, the first eight of one nanosecond each.
	Counts [64 * 8]uint64
}

// Add counts a packet that was d late; less than nothing is punctual.
func (l *Lateness) Add(d time.Duration) {
	d = max(d, 0)
	l.Packets++
	l.Max = max(l.Max, d)
	l.Counts[lateBucket(d)]++
}

// lateBucket returns the bucket of d: its highest bit and the three below it.
func lateBucket(d time.Duration) int {
	if d < 8 {
		return int(d)
	}
	octave := bits.Len64(uint64(d)) - 4
	return octave*8 + int(uint64(d)>>octave)
}

// lateEdge returns the least duration that is above bucket i.
func lateEdge(i int) time.Duration {
	i++
	if i < 16 {
		return time.Duration(i)
	}
	octave := i/8 - 1
	return time.Duration(8+i%8) << octave
}

// Quantile returns a time that a share p of the packets was not later than, at most 12.5 % too high; false where there are no packets.
func (l *Lateness) Quantile(p float64) (time.Duration, bool) {
	if l.Packets == 0 {
		return 0, false
	}
	sum := uint64(0)
	for i, n := range l.Counts {
		if sum += n; n > 0 && float64(sum) >= p*float64(l.Packets) {
			return min(lateEdge(i), l.Max), true
		}
	}
	return l.Max, true
}

// String returns the median, the 99th percentile and the maximum.
func (l *Lateness) String() string {
	median, ok := l.Quantile(0.5)
	if !ok {
		return "no packets"
	}
	p99, _ := l.Quantile(0.99)
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Nanosecond) }
	return fmt.Sprintf("median %v, p99 %v, max %v", round(median), round(p99), round(l.Max))
}
