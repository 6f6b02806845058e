package pump

import (
	"testing"
	"time"
)

func TestTheBacklogFollowsTheRate(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit int
		acked uint64
		d     time.Duration
		dry   bool
		want  int
	}{
		{"10 ms of the rate at once where that is more", 128 << 10, 125_000_000, 100 * time.Millisecond, false, 12_500_000},
		{"a little less where the rate wants less", 128 << 10, 10_000, 25 * time.Millisecond, false, 124 << 10},
		{"as much less for each 25 ms where the writer slept", 128 << 10, 10_000, 74 * time.Millisecond, false, 123008},
		{"never less than four segments", 5800, 0, 100 * time.Millisecond, false, leastBacklog},
		{"no less than 10 ms of the rate", 100_000, 990_000, 100 * time.Millisecond, false, 99_000},
		{"a dry queue widens it", 16 << 10, 10_000, 100 * time.Millisecond, true, 64 << 10},
		{"a dry queue widens it within bounds", 10 << 20, 10_000, 100 * time.Millisecond, true, mostBacklog},
		{"a late look knows its own time", 16 << 10, 8_000_000, 200 * time.Millisecond, false, 400_000},
	} {
		if got := nextBacklog(c.limit, c.acked, c.d, c.dry); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestTheBacklogChangesOnceARateIsKnown(t *testing.T) {
	b := backlog{limit: startBacklog}
	at := time.Unix(1_000_000_000, 0)
	for _, look := range []struct {
		after   time.Duration
		acked   uint64
		unsent  int
		changed bool
		limit   int
	}{
		{0, 0, 10_000, false, startBacklog},
		{20 * time.Millisecond, 14_480, 10_000, false, startBacklog},
		{45 * time.Millisecond, 514_480, 10_000, true, 200_000},
		{70 * time.Millisecond, 1_014_480, 100_000, false, 200_000},
		{95 * time.Millisecond, 1_014_480, 100_000, true, 193_750},
		{120 * time.Millisecond, 1_014_480, 1448, true, 4 * 193_750},
	} {
		if !b.due(at.Add(look.after)) {
			t.Errorf("%v: no look is due", look.after)
		}
		if changed := b.adapt(at.Add(look.after), sending{look.acked, look.unsent, 1448}); changed != look.changed || b.limit != look.limit {
			t.Errorf("%v: limit %d, changed %v; want %d, %v", look.after, b.limit, changed, look.limit, look.changed)
		}
		if b.acked > 0 && b.due(at.Add(look.after+backlogLook-1)) {
			t.Errorf("%v: the next look is due too soon for a rate", look.after)
		}
	}
}

func TestWritesAreOfWholeSegments(t *testing.T) {
	for _, c := range []struct {
		name        string
		b           backlog
		limit, want int
		apart       bool
	}{
		{"where nothing is known", backlog{}, 100, 100, false},
		{"nor the segment", backlog{limit: leastBacklog}, 100, 100, false},
		{"a quarter of a small backlog", backlog{limit: leastBacklog, segment: 1448}, chunk, 1448, true},
		{"at least one segment", backlog{limit: leastBacklog, segment: 8948}, chunk, 8948, true},
		{"many of them", backlog{limit: 128 << 10, segment: 1448}, chunk, 22 * 1448, true},
		{"the rest of a limit", backlog{limit: 128 << 10, segment: 1448}, 100, 100, true},
		{"whole buffers of a large backlog", backlog{limit: 1 << 20, segment: 1448}, chunk, 2 * 45 * 1448, false},
		{"of one segment each on loopback", backlog{limit: 1 << 20, segment: 65483}, chunk, 2 * 65483, false},
		{"the rest of a limit where it is less than one", backlog{limit: 1 << 20, segment: 1448}, 100, 100, false},
		{"segments that are larger than a write", backlog{limit: 1 << 20, segment: 1 << 20}, chunk, chunk, false},
	} {
		if got, apart := c.b.piece(c.limit); got != c.want || apart != c.apart {
			t.Errorf("%s: got %d, %v; want %d, %v", c.name, got, apart, c.want, c.apart)
		}
	}
}
