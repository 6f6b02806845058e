package pump

import "time"

// A reader that is woken for every segment spends most of its time with waking up, and the kernel with waking it. On a fast flow it is
// woken for a millisecond's worth of bytes instead.
const (
	batchTime  = time.Millisecond
	batchLook  = 5 * time.Millisecond
	batchWait  = 8 * time.Millisecond // that what has come may lie unread; a flow that has fallen so far behind its rate is no more fast
	leastBatch = 64 << 10             // less is not worth the trouble: 500 Mbit/s
	mostBatch  = 512 << 10            // with more the reader is cheaper still, and the sender, who then acknowledges more of it to itself, dearer with many flows
)

// batch decides for how many bytes a reader is woken.
type batch struct {
	at    int       // in force; 0 is one byte
	since time.Time // of the last look
	bytes int       // since then
}

// add counts k bytes that were read at now, and reports whether it was time to look: then want is what at should be.
func (b *batch) add(now time.Time, k int) (want int, look bool) {
	if b.since.IsZero() {
		b.since = now
		return 0, false
	}
	b.bytes += k
	d := now.Sub(b.since)
	if d < batchLook {
		return 0, false
	}
	want = int(float64(b.bytes) * float64(batchTime) / float64(d))
	b.since, b.bytes = now, 0
	if want < leastBatch {
		return 0, true
	}
	return min(want, mostBatch), true
}
