package report

import (
	"slices"
	"testing"
	"time"

	"bufferbloat"
)

func TestWhatAnEmulatedLinkCountedInWords(t *testing.T) {
	got := labCounted(&bufferbloat.LabCounts{
		Down: bufferbloat.LabDirection{Queue: "bfifo", Sent: bufferbloat.LabCount{Packets: 2, Bytes: 3028}},
		Up: bufferbloat.LabDirection{Queue: "fq_codel", Sent: bufferbloat.LabCount{Packets: 1, Bytes: 60}, Dropped: bufferbloat.LabCount{Packets: 3, Bytes: 4},
			Drops: map[string]uint64{"lost": 1, "aqm": 3}, Marked: 5, MaxBacklog: bufferbloat.LabCount{Packets: 7, Bytes: 8}},
		Late:    &bufferbloat.LabLateness{Packets: 9, Median: 12_300, P99: time.Millisecond, Max: 2 * time.Millisecond},
		Outside: map[string]uint64{"entrance": 2},
	})
	want := []string{
		"emulated link, down, bfifo: 2 packets and 3028 bytes sent, 0 dropped, 0 marked, at most 0 packets and 0 bytes queued",
		"emulated link, up, fq_codel: 1 packet and 60 bytes sent, 3 dropped (aqm 3, lost 1), 5 marked, at most 7 packets and 8 bytes queued",
		"emulated link, delivered late by: median 12µs, 99pct 1ms, max 2ms",
		"lost outside the emulated link (entrance 2)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if got := labCounted(nil); got != nil {
		t.Errorf("of nothing: %q", got)
	}
}
