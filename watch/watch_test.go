package watch

import (
	"testing"
	"time"
)

func TestUse(t *testing.T) {
	s := time.Second
	two := func(b0, b1, own time.Duration, total time.Duration) Times {
		return Times{Busy: []time.Duration{b0, b1}, Total: []time.Duration{total, total}, Own: own}
	}
	for _, c := range []struct {
		name     string
		from, to Times
		busy     []float64
		own      float64
	}{
		{"one CPU busy half the time", two(0, 0, 0, 0), two(s/2, 0, s/4, s), []float64{0.5, 0}, 0.125},
		{"a large uptime changes nothing", two(1e6*s, 0, 0, 2e6*s), two(1e6*s+s, s, s, 2e6*s+s), []float64{1, 1}, 0.5},
		{"no time passed", two(s, s, s, s), two(s, s, s, s), nil, 0},
		{"a CPU went away", two(0, 0, 0, 0), Times{Busy: []time.Duration{s}, Total: []time.Duration{s}}, nil, 0},
	} {
		busy, own := Use(c.from, c.to)
		if len(busy) != len(c.busy) || own != c.own {
			t.Errorf("%s: got %v and %v, want %v and %v", c.name, busy, own, c.busy, c.own)
			continue
		}
		for i := range busy {
			if busy[i] != c.busy[i] {
				t.Errorf("%s: CPU %d is %v busy, want %v", c.name, i, busy[i], c.busy[i])
			}
		}
	}
}

func TestCPUOfThisHost(t *testing.T) {
	a, err := CPU()
	if err != nil {
		t.Skipf("no CPU times here: %v", err)
	}
	for i := range a.Total {
		if a.Busy[i] < 0 || a.Busy[i] > a.Total[i] {
			t.Errorf("CPU %d: busy %v of %v", i, a.Busy[i], a.Total[i])
		}
	}
	if a.Own <= 0 {
		t.Errorf("this process used %v of CPU", a.Own)
	}
}
