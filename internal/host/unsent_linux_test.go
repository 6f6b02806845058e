package host

import (
	"testing"
	"time"
)

func TestAWriterIsNoFurtherAheadThanItsLimit(t *testing.T) {
	const limit, oneBuffer = 16 << 10, 64 << 10
	k := NewKernel()
	for _, at := range loopbacks(t) {
		unsent := func(limit int) int {
			dialed, _ := pair(t, k, at, Options{ReceiveBuffer: 4096}, Options{SendBuffer: 400 << 10})
			if limit > 0 {
				if err := dialed.(UnsentLimiter).SetUnsentLimit(limit); err != nil {
					t.Fatal(err)
				}
			}
			// The peer does not read, so the write ends at its deadline with all that the stack takes.
			if err := dialed.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, _ := dialed.Write(make([]byte, 2<<20))
			info, err := k.TCPInfo(dialed)
			if err != nil || !info.HasUnsent || info.Unsent == 0 || info.Unsent > n {
				t.Errorf("%v: %d bytes unsent (%v) of %d, %v", at, info.Unsent, info.HasUnsent, n, err)
			}
			return info.Unsent
		}
		if got := unsent(limit); got > limit+oneBuffer {
			t.Errorf("%v: %d bytes unsent with a limit of %d", at, got, limit)
		}
		if got := unsent(0); got <= limit+oneBuffer {
			t.Errorf("%v: %d bytes unsent without a limit: this test tests nothing", at, got)
		}
	}
}

func TestALimitThatIsNoneIsRefused(t *testing.T) {
	dialed, _ := pair(t, NewKernel(), loopbacks(t)[0], Options{}, Options{})
	for _, bytes := range []int{0, -1, 1<<30 + 1} {
		if dialed.(UnsentLimiter).SetUnsentLimit(bytes) == nil {
			t.Errorf("a limit of %d bytes was taken", bytes)
		}
	}
}
