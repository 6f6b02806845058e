package probe

import (
	"math/bits"
	"time"
)

// Waking says how long replies that the stack had stamped waited until this program read them. It is no part of any RTT, as those end at the stack's
// stamp, and tells how far this host's other times, which the program takes itself, can be believed.
type Waking struct {
	N        uint64        // replies with a stamp of the stack
	P50, P99 time.Duration // no less than the true ones, and at most an eighth more
	Max      time.Duration
}

// wakings counts times in classes of which each is an eighth of a power of two wide.
type wakings struct {
	classes [64 * 8]uint64
	n       uint64
	max     time.Duration
}

func (w *wakings) add(d time.Duration) {
	d = max(d, 0) // stamps are exact to a fraction of a microsecond
	w.classes[class(d)]++
	w.n++
	w.max = max(w.max, d)
}

// class returns the number of the class that d is in: the place of its highest bit, and the three bits after that.
func class(d time.Duration) int {
	u := uint64(d)
	if u < 8 {
		return int(u)
	}
	high := bits.Len64(u) - 1
	return high*8 + int(u>>(high-3)&7)
}

// top returns the longest time in class i.
func top(i int) time.Duration {
	if i < 8 {
		return time.Duration(i)
	}
	high := i / 8
	return time.Duration((uint64(8+i%8)+1)<<(high-3) - 1)
}

// quantile returns a time that the part q of all is no longer than.
func (w *wakings) quantile(q float64) time.Duration {
	rank, seen := uint64(q*float64(w.n-1)), uint64(0)
	for i, n := range w.classes {
		if seen += n; seen > rank {
			return min(top(i), w.max)
		}
	}
	return w.max
}

func (w *wakings) summary() Waking {
	if w.n == 0 {
		return Waking{}
	}
	return Waking{N: w.n, P50: w.quantile(0.5), P99: w.quantile(0.99), Max: w.max}
}
