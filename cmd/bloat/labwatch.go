package main

import (
	"slices"
	"strings"

	"bufferbloat"
	"bufferbloat/servers/lab/kernel"
	"bufferbloat/servers/lab/link"
)

// labTruth is what an emulated link counted until now, whatever carries it.
type labTruth struct {
	down, up labSide
	late     link.Lateness
	outside  map[string]uint64
}

// labSide is one direction of it.
type labSide struct {
	link  link.Stats
	queue link.QueueStats
}

// kernelTruth is that of a lab of the kernel's TCP.
func kernelTruth(s kernel.Stats) labTruth {
	t := labTruth{down: labSide{s.Down, s.DownQueue}, up: labSide{s.Up, s.UpQueue}, late: s.Lateness}
	for where, n := range map[string]uint64{"entrance": s.Outside.Unread, "exit": s.Outside.Unsent, "unknown offload": s.Outside.Foreign, "devices": s.Outside.Devices} {
		t.lost(where, n)
	}
	return t
}

func (t *labTruth) lost(where string, n uint64) {
	if n == 0 {
		return
	}
	if t.outside == nil {
		t.outside = map[string]uint64{}
	}
	t.outside[where] = n
}

// counts is the truth as a recording keeps it.
func (t *labTruth) counts() *bufferbloat.LabCounts {
	c := &bufferbloat.LabCounts{Down: t.down.counts(), Up: t.up.counts(), Outside: t.outside}
	if median, ok := t.late.Quantile(0.5); ok {
		p99, _ := t.late.Quantile(0.99)
		c.Late = &bufferbloat.LabLateness{Packets: t.late.Packets, Median: median, P99: p99, Max: t.late.Max}
	}
	return c
}

func (s *labSide) counts() bufferbloat.LabDirection {
	count := func(c link.Count) bufferbloat.LabCount {
		return bufferbloat.LabCount{Packets: c.Packets, Bytes: c.Bytes}
	}
	d := bufferbloat.LabDirection{
		Queue: s.queue.Kind, In: count(s.link.In), Out: count(s.link.Out), Sent: count(s.queue.Sent), Dropped: count(s.queue.Dropped),
		Backlog: count(s.queue.Backlog), Overlimits: s.queue.Overlimits, Marked: s.queue.Marked, MaxBacklog: count(s.link.MaxQueued),
		Duplicated: s.link.Duplicated.Packets, Corrupted: s.link.Corrupted, Held: s.link.Held,
	}
	for reason, n := range s.link.Drops {
		if n.Packets == 0 {
			continue
		}
		if d.Drops == nil {
			d.Drops = map[string]uint64{}
		}
		d.Drops[link.Reason(reason).String()] = n.Packets
	}
	for _, c := range s.queue.Extra {
		d.More = append(d.More, bufferbloat.LabCounter{Name: c.Name, Value: c.Value})
	}
	return d
}

// watchLabLink is what a run reads of an emulated link ten times a second: queues and losses of both directions, and what only their kind of queue
// counts. first is the link as it stood before the run; it says which counters there are.
func watchLabLink(first labTruth, read func() (labTruth, error)) bufferbloat.Watch {
	w := bufferbloat.Watch{Name: "the emulated link"}
	sides := []struct {
		name string
		more []link.Counter
	}{{"lab down", changing(first.down.queue.Extra)}, {"lab up", changing(first.up.queue.Extra)}}
	for _, side := range sides {
		w.Series = append(w.Series, []bufferbloat.WatchSeries{
			// The first two are named as flent's data files name them, and drawn as theirs are.
			{Name: side.name + "::backlog_bytes", Unit: "bytes"}, {Name: side.name + "::backlog_pkts", Unit: "packets"},
			{Name: side.name + "::sent_bytes", Unit: "bytes"}, {Name: side.name + "::dropped", Unit: "packets"}, {Name: side.name + "::ecn_mark", Unit: "packets"},
		}...)
		for _, c := range side.more {
			w.Series = append(w.Series, bufferbloat.WatchSeries{Name: side.name + "::" + c.Name, Unit: counterUnit(c.Name)})
		}
	}
	w.Read = func(values []float64) error {
		t, err := read()
		if err != nil {
			return err
		}
		for i, s := range []*labSide{&t.down, &t.up} {
			q := &s.queue
			n := copy(values, []float64{float64(q.Backlog.Bytes), float64(q.Backlog.Packets), float64(q.Sent.Bytes), float64(q.Dropped.Packets), float64(q.Marked)})
			for j, c := range sides[i].more {
				for _, e := range q.Extra {
					if e.Name == c.Name {
						values[n+j] = e.Value
					}
				}
			}
			values = values[n+len(sides[i].more):]
		}
		return nil
	}
	return w
}

// changing are the counters of which the course is of interest. Of the others, a recording has how they stood in the end.
func changing(all []link.Counter) []link.Counter {
	return slices.DeleteFunc(slices.Clone(all), func(c link.Counter) bool {
		return strings.HasSuffix(c.Name, "target_ns") || strings.Contains(c.Name, "_way_")
	})
}

// counterUnit is the unit that the name of a queue's counter says, "" for a plain number.
func counterUnit(name string) string {
	switch {
	case strings.HasSuffix(name, "_ns"):
		return "ns"
	case strings.HasSuffix(name, "bytes"), strings.HasSuffix(name, "backlog"), strings.HasSuffix(name, "memory_used"):
		return "bytes"
	}
	return ""
}

// keepLabCounts has a run keep what its emulated link counts.
func keepLabCounts(o *bufferbloat.RunOptions, read func() (labTruth, error)) error {
	first, err := read()
	if err != nil {
		return err
	}
	o.Watch = append(o.Watch, watchLabLink(first, read))
	o.LabCounts = func() *bufferbloat.LabCounts {
		t, err := read()
		if err != nil {
			return nil // what is wrong is a finding
		}
		return t.counts()
	}
	return nil
}
