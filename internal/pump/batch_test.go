package pump

import (
	"testing"
	"time"
)

func TestABatchIsAMillisecondOfAFastFlow(t *testing.T) {
	for _, c := range []struct {
		name string
		rate int // bytes per millisecond, read at once
		at   int
		want int
	}{
		{"100 Mbit/s is read as it comes", 12_500, 0, 0},
		{"1 Gbit/s", 125_000, 0, 125_000},
		{"a rate that has fallen", 80_000, 125_000, 80_000},
		{"4 Gbit/s", 500_000, 125_000, 500_000},
		{"40 Gbit/s", 5_000_000, 0, mostBatch},
		{"a flow that has become slow", 12_500, 250_000, 0},
	} {
		b := batch{at: c.at}
		now := time.Unix(1_000_000_000, 0)
		looks := 0
		for range 7 { // the first read begins the first look's time
			want, look := b.add(now, c.rate)
			now = now.Add(time.Millisecond)
			if !look {
				continue
			}
			if looks++; want != c.want {
				t.Errorf("%s: got %d bytes, want %d", c.name, want, c.want)
			}
		}
		if looks != 1 {
			t.Errorf("%s: %d looks in 6 ms, want 1", c.name, looks)
		}
	}
}
