package kernel

import (
	"testing"
	"time"
)

func TestLatenessQuantiles(t *testing.T) {
	var l Lateness
	if _, ok := l.Quantile(0.5); ok || l.String() != "no packets" {
		t.Errorf("of nothing: %v", &l)
	}
	for i := range 100 {
		l.add(time.Duration(i+1) * time.Microsecond)
	}
	l.add(-time.Second)
	for _, tt := range []struct {
		p        float64
		low, top time.Duration
	}{{0, 0, 1}, {0.5, 50 * time.Microsecond, 57 * time.Microsecond}, {0.99, 99 * time.Microsecond, 100 * time.Microsecond}, {1, 100 * time.Microsecond, 100 * time.Microsecond}} {
		if got, _ := l.Quantile(tt.p); got < tt.low || got > tt.top {
			t.Errorf("quantile %v: got %v, want %v to %v", tt.p, got, tt.low, tt.top)
		}
	}
	if l.Packets != 101 || l.Max != 100*time.Microsecond {
		t.Errorf("got %d packets and a maximum of %v", l.Packets, l.Max)
	}
}
