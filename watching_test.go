package bufferbloat

import (
	"testing"
	"time"
)

func TestALongRunIsReadLessOften(t *testing.T) {
	for _, c := range []struct{ every, length, want time.Duration }{
		{0, time.Minute, 100 * time.Millisecond},
		{time.Second, time.Minute, time.Second},
		{0, 2000 * time.Second, 100 * time.Millisecond},
		{0, 2001 * time.Second, 200 * time.Millisecond},
		{0, time.Hour, 200 * time.Millisecond},
		{0, 0, 100 * time.Millisecond},
	} {
		if got := (&Watch{Every: c.every}).every(c.length); got != c.want {
			t.Errorf("every %v in a run of %v: got %v, want %v", c.every, c.length, got, c.want)
		}
	}
}
