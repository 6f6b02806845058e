package host

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestSleepPreciselyIsNeverEarly(t *testing.T) {
	k := NewKernel()
	var late []time.Duration
	for _, d := range []time.Duration{-1, 0, 1, time.Microsecond, 100 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond} {
		for range 10 {
			end := time.Now().Add(d)
			if err := k.SleepPrecisely(t.Context(), end); err != nil {
				t.Fatal(err)
			}
			now := time.Now()
			if now.Before(end) {
				t.Errorf("%v: ended %v early", d, end.Sub(now))
			}
			late = append(late, now.Sub(end))
		}
	}
	slices.Sort(late)
	t.Logf("late by %v in the median, %v at most", late[len(late)/2], late[len(late)-1])
}

func TestSleepPreciselyEndsByItsContext(t *testing.T) {
	k := NewKernel()
	ctx, cancel := context.WithCancelCause(t.Context())
	want := errors.New("enough")
	time.AfterFunc(time.Millisecond, func() { cancel(want) })
	for _, d := range []time.Duration{time.Hour, time.Millisecond, 0} { // the first waits for it, whenever it comes
		if err := k.SleepPrecisely(ctx, time.Now().Add(d+3*time.Millisecond)); !errors.Is(err, want) {
			t.Errorf("%v: got %v, want the context's cause", d, err)
		}
	}
}
