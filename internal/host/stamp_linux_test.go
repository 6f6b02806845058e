package host

import (
	"testing"
	"time"
)

func TestNoStampIsVouchedForAcrossAStepOfTheWallClock(t *testing.T) {
	const noon = int64(1_800_000_000_000_000_000)
	const ms = int64(time.Millisecond)
	type read struct {
		step  time.Duration // of the wall clock since the read before
		gap   time.Duration // between the looks at the two clocks
		after time.Duration // how long after the packet came it is read
		// stampedBeforeStep: the packet came before the step
		stampedBeforeStep bool
		emptied           bool // the queue was seen empty before this read
		want              bool
	}
	const years50 = 50 * 365 * 24 * time.Hour
	tests := []struct {
		name  string
		reads []read
	}{
		{"steady clocks", []read{{want: true}, {after: time.Millisecond, want: true}, {after: 3 * time.Second, want: true}}},
		{"a reading that was interrupted between the clocks", []read{{gap: 90 * time.Microsecond, after: ms1, want: true}, {after: ms1, want: true}}},
		{"CPUs that differ a little", []read{{step: time.Microsecond, after: ms1, want: true}, {step: -time.Microsecond, after: ms1, want: true}}},
		{"a step of 10 us, and no more certainty than that", []read{{step: 10 * time.Microsecond, after: ms1}, {emptied: true, after: ms1, want: true}}},
		{"set back 120 s before the read", []read{{want: true}, {step: -120 * time.Second, after: ms1, stampedBeforeStep: true}}},
		{"set back 120 s before the packet came", []read{{want: true}, {step: -120 * time.Second, after: ms1}, {emptied: true, want: true}}},
		{"set forward 50 years", []read{{step: years50, after: ms1, stampedBeforeStep: true}, {emptied: true, after: ms1, want: true}}},
		{"set forward 300 ms, a plausible age", []read{{step: 300 * time.Millisecond, after: ms1, stampedBeforeStep: true}}},
		{"set back 300 ms, hidden by a longer time in the queue", []read{{step: -300 * time.Millisecond, after: time.Second, stampedBeforeStep: true}}},
		{"more packets from before the step are queued", []read{
			{step: -300 * time.Millisecond, after: time.Second, stampedBeforeStep: true},
			{after: time.Second, stampedBeforeStep: true}, {after: time.Second, stampedBeforeStep: true}, {emptied: true, after: ms1, want: true},
		}},
		{"a stamp older than the bound", []read{{after: maxStampAge + 1}}},
		{"a stamp from the future", []read{{after: -ms1}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := stampClock{low: time.Duration(noon), high: time.Duration(noon), known: true}
			mono, offset, before := int64(0), noon, noon
			for i, r := range test.reads {
				if r.emptied {
					s.emptied()
				}
				if r.step != 0 {
					before, offset = offset, offset+int64(r.step)
				}
				mono += 20 * ms
				came := offset
				if r.stampedBeforeStep {
					came = before
				}
				// The wall clock was read first, the monotonic one the gap later.
				s.narrow(time.Duration(offset)-r.gap, time.Duration(offset))
				age, ok := s.age(came+mono-int64(r.after), time.Duration(mono))
				if ok != r.want {
					t.Errorf("read %d: vouched for: %v; want %v", i, ok, r.want)
				}
				if ok && age != r.after {
					t.Errorf("read %d: age %v; want %v", i, age, r.after)
				}
			}
		})
	}
}

const ms1 = time.Millisecond

func TestArrivalKeepsTheMonotonicReading(t *testing.T) {
	s := newStampClock()
	for range 1000 { // until the bounds are close
		s.take(s.read())
	}
	r := s.read()
	within := func(d, want time.Duration) bool { return (d - want).Abs() <= pairGap }
	at, stamp := s.arrival(r.now.UnixNano()-50_000, r)
	if stamp != KernelStamp || !within(r.now.Sub(at), 50*time.Microsecond) {
		t.Errorf("got %v before now by the %v; want 50µs by the kernel", r.now.Sub(at), stamp)
	}
	at, stamp = s.arrival(r.now.Add(time.Second).UnixNano(), r)
	if stamp != UserStamp || !at.Equal(r.now) {
		t.Errorf("a stamp from the future: got %v by the %v; want now, user", at, stamp)
	}
}
