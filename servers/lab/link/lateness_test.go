package link

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
		l.Add(time.Duration(i+1) * time.Microsecond)
	}
	l.Add(-time.Second)
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
	for d := time.Duration(1); d > 0; d *= 3 {
		if i := lateBucket(d); lateEdge(i) <= d && lateEdge(i) > 0 || i > 0 && lateEdge(i-1) > d {
			t.Errorf("%v is in bucket %d, which ends at %v", d, i, lateEdge(i))
		}
	}
}
