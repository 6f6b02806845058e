package netperf

import (
	"net"
	"testing"
	"time"

	"bufferbloat/internal/host"
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
		{"an eighth less where the rate wants less", 128 << 10, 10_000, 100 * time.Millisecond, false, 112 << 10},
		{"never less than 16 KiB", 16 << 10, 0, 100 * time.Millisecond, false, 16 << 10},
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

// limited is a connection that notes the limits that it was given.
type limited struct {
	net.Conn
	limits []int
}

func (l *limited) SetUnsentLimit(bytes int) error { l.limits = append(l.limits, bytes); return nil }

func TestTheBacklogIsSetAtTheStartAndOnceARateIsKnown(t *testing.T) {
	conn := &limited{}
	b := newBacklog(conn)
	at := time.Unix(1_000_000_000, 0)
	for _, look := range []struct {
		after time.Duration
		acked uint64
	}{
		{0, 0}, {20 * time.Millisecond, 14_480}, {60 * time.Millisecond, 100_000}, {120 * time.Millisecond, 2_014_480},
		{220 * time.Millisecond, 4_014_480}, {320 * time.Millisecond, 4_014_480},
	} {
		b.adapt(at.Add(look.after), look.acked, host.TCPInfo{Unsent: 100_000, HasUnsent: true})
	}
	// The look at 60 ms is too soon for a rate, the one at 220 ms finds the same rate.
	if want := []int{128 << 10, 200_000, 175_000}; len(conn.limits) != 3 || [3]int(conn.limits) != [3]int(want) {
		t.Errorf("got limits %v, want %v", conn.limits, want)
	}
	b.adapt(at.Add(420*time.Millisecond), 4_014_480, host.TCPInfo{Unsent: 1448, HasUnsent: true})
	if got := conn.limits[len(conn.limits)-1]; got != 4*175_000 {
		t.Errorf("got a limit of %d bytes after a queue that was nearly dry, want %d", got, 4*175_000)
	}
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	newBacklog(ours).adapt(at, 1, host.TCPInfo{}) // a stack without a limit to set
}
