package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"bufferbloat"
)

// labCounted says in a few lines what an emulated link counted.
func labCounted(c *bufferbloat.LabCounts) (lines []string) {
	if c == nil {
		return nil
	}
	for _, d := range []struct {
		name string
		of   *bufferbloat.LabDirection
	}{{"down", &c.Down}, {"up", &c.Up}} {
		lines = append(lines, fmt.Sprintf("emulated link, %s, %s: %s and %d bytes sent, %d dropped%s, %d marked, at most %s and %d bytes queued", d.name,
			d.of.Queue, plural(int(d.of.Sent.Packets), "packet"), d.of.Sent.Bytes, d.of.Dropped.Packets, reasonsText(d.of.Drops), d.of.Marked,
			plural(int(d.of.MaxBacklog.Packets), "packet"), d.of.MaxBacklog.Bytes))
	}
	if l := c.Late; l != nil && l.Packets > 0 {
		round := func(d time.Duration) time.Duration { return d.Round(time.Microsecond) }
		lines = append(lines, fmt.Sprintf("emulated link, delivered late by: median %v, 99pct %v, max %v", round(l.Median), round(l.P99), round(l.Max)))
	}
	if len(c.Outside) > 0 {
		lines = append(lines, "lost outside the emulated link"+reasonsText(c.Outside))
	}
	return lines
}

// reasonsText lists counters by name, "" for none.
func reasonsText(of map[string]uint64) string {
	var parts []string
	for name, n := range of {
		parts = append(parts, fmt.Sprintf("%s %d", name, n))
	}
	if len(parts) == 0 {
		return ""
	}
	slices.Sort(parts)
	return " (" + strings.Join(parts, ", ") + ")"
}
