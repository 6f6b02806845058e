package netperf

import (
	"math"
	"math/bits"
	"time"
)

// RTTs is the distribution of the round-trip times of transactions that follow each other, in bounded memory. Such a test samples a long
// queue rarely and a short one often, so each time is counted in two ways: once, and with the time since the transaction before it. Only
// the second view says what a packet met that came at any moment.
//
// Times are kept to within a hundredth. The zero RTTs is empty and ready.
type RTTs struct {
	n       uint64
	sum     float64 // of the round-trip times, and of their squares about shift, in ns
	squares float64
	shift   float64
	least   time.Duration
	most    time.Duration
	time    time.Duration // weight of all, lost included
	lost    time.Duration // in which a request was out that was never answered
	counts  [buckets]uint64
	weights [buckets]time.Duration
}

// A bucket is a 64th of a power of two.
const (
	subBits = 6
	sub     = 1 << subBits
	buckets = (44 - subBits + 1) * sub // up to 2^44 ns, some 5 hours
)

func bucketOf(d time.Duration) int {
	v := uint64(max(0, d))
	if v < sub {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - subBits
	return min((shift+1)*sub+int(v>>shift)-sub, buckets-1)
}

// bounds returns the least time of a bucket and of the next.
func bounds(i int) (from, to float64) {
	if i < sub {
		return float64(i), float64(i + 1)
	}
	shift, rest := i/sub-1, i%sub
	return math.Ldexp(float64(sub+rest), shift), math.Ldexp(float64(sub+rest+1), shift)
}

// add counts a transaction that took rtt and ended since after the one before.
func (r *RTTs) add(rtt, since time.Duration) {
	if r.n == 0 {
		r.least, r.most, r.shift = rtt, rtt, float64(rtt)
	}
	r.n++
	d := float64(rtt) - r.shift
	r.sum += d
	r.squares += d * d
	r.least, r.most = min(r.least, rtt), max(r.most, rtt)
	since = max(0, since)
	i := bucketOf(rtt)
	r.counts[i]++
	r.weights[i] += since
	r.time += since
}

// lose counts a time at whose end a request was given up.
func (r *RTTs) lose(since time.Duration) {
	r.time += max(0, since)
	r.lost += max(0, since)
}

// N returns how many transactions there are.
func (r *RTTs) N() uint64 { return r.n }

// Min and Max return the shortest and the longest time, 0 where there is none.
func (r *RTTs) Min() time.Duration { return r.least }

// Max is documented at Min.
func (r *RTTs) Max() time.Duration { return r.most }

// Mean returns the mean of the times, each counted once, or false where there is none.
func (r *RTTs) Mean() (time.Duration, bool) {
	if r.n == 0 {
		return 0, false
	}
	return time.Duration(math.Round(r.shift + r.sum/float64(r.n))), true
}

// Deviation returns the standard deviation of the sample, or false where there are fewer than two.
func (r *RTTs) Deviation() (time.Duration, bool) {
	if r.n < 2 {
		return 0, false
	}
	n := float64(r.n)
	return time.Duration(math.Sqrt(max(0, (r.squares-r.sum*r.sum/n)/(n-1)))), true
}

// Quantile returns the time that the share q (0..1) of the transactions did not exceed, each counted once, or false where there is none.
func (r *RTTs) Quantile(q float64) (time.Duration, bool) {
	if r.n == 0 || !(q >= 0 && q <= 1) {
		return 0, false
	}
	return r.find(q*float64(r.n), func(i int) float64 { return float64(r.counts[i]) })
}

// TimeQuantile returns the time that was not exceeded for the share q (0..1) of the test's duration. The time in which a request was
// out that was never answered counts as longer than any; where q lies in it, and where there are no transactions, it returns false.
func (r *RTTs) TimeQuantile(q float64) (time.Duration, bool) {
	if r.n == 0 || r.time <= 0 || !(q >= 0 && q <= 1) || q*float64(r.time) > float64(r.time-r.lost) {
		return 0, false
	}
	return r.find(q*float64(r.time), func(i int) float64 { return float64(r.weights[i]) })
}

// TimeLost returns the share (0..1) of the test's duration in which a request was out that was never answered.
func (r *RTTs) TimeLost() float64 {
	if r.time <= 0 {
		return 0
	}
	return float64(r.lost) / float64(r.time)
}

// find returns the time below which the weight is, evenly spread within a bucket.
func (r *RTTs) find(weight float64, of func(i int) float64) (time.Duration, bool) {
	seen := 0.0
	for i := range r.counts {
		w := of(i)
		if w == 0 || seen+w < weight {
			seen += w
			continue
		}
		from, to := bounds(i)
		v := time.Duration(from + (to-from)*(weight-seen)/w)
		return min(max(v, r.least), r.most), true
	}
	return r.most, true
}
