package lab

import (
	"fmt"
	"math/bits"
	"time"
)

// Lateness is the distribution of how long after its time each packet was delivered.
type Lateness struct {
	Packets uint64
	Max     time.Duration
	buckets [64 * 8]uint64 // eight to an octave
}

func (l *Lateness) add(d time.Duration) {
	d = max(d, 0)
	l.Packets++
	l.Max = max(l.Max, d)
	l.buckets[lateBucket(d)]++
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
func (l Lateness) Quantile(p float64) (time.Duration, bool) {
	if l.Packets == 0 {
		return 0, false
	}
	sum := uint64(0)
	for i, n := range l.buckets {
		if sum += n; n > 0 && float64(sum) >= p*float64(l.Packets) {
			return min(lateEdge(i), l.Max), true
		}
	}
	return l.Max, true
}

// String returns the median, the 99th percentile and the maximum.
func (l Lateness) String() string {
	median, ok := l.Quantile(0.5)
	if !ok {
		return "no packets"
	}
	p99, _ := l.Quantile(0.99)
	return fmt.Sprintf("%d packets, median %v, p99 %v, max %v", l.Packets, median, p99, l.Max)
}
