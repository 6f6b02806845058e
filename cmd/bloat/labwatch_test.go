package main

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/servers/lab/kernel"
	"bufferbloat/servers/lab/link"
)

// piePart is a lab with PIE upstream.
func piePart() labTruth {
	s := kernel.Stats{}
	s.DownQueue.Kind, s.UpQueue.Kind = "bfifo", "pie"
	s.UpQueue.Extra = []link.Counter{{Name: "prob", Value: 0.25}, {Name: "delay_ns", Value: 15e6}, {Name: "target_ns", Value: 20e6}}
	s.UpQueue.Sent, s.UpQueue.Dropped = link.Count{Packets: 10, Bytes: 15_000}, link.Count{Packets: 2, Bytes: 3000}
	s.UpQueue.Backlog, s.UpQueue.Marked = link.Count{Packets: 3, Bytes: 4500}, 1
	s.Up.Drops[link.AQM], s.Up.Drops[link.Lost] = link.Count{Packets: 2, Bytes: 3000}, link.Count{Packets: 4, Bytes: 6000}
	s.Up.MaxQueued = link.Count{Packets: 7, Bytes: 10_500}
	s.Outside.Unread = 5
	for range 100 {
		s.Lateness.Add(time.Millisecond)
	}
	return kernelTruth(s)
}

func TestARunReadsTheQueuesOfItsEmulatedLink(t *testing.T) {
	truth := piePart()
	var broken error
	w := watchLabLink(truth, func() (labTruth, error) { return truth, broken })
	values := make([]float64, len(w.Series))
	for i := range values {
		values[i] = math.NaN()
	}
	if err := w.Read(values); err != nil {
		t.Fatal(err)
	}
	got := map[bufferbloat.WatchSeries]float64{}
	for i, s := range w.Series {
		got[s] = values[i]
	}
	for s, want := range map[bufferbloat.WatchSeries]float64{
		{Name: "lab down::backlog_bytes", Unit: "bytes"}: 0,
		{Name: "lab up::backlog_bytes", Unit: "bytes"}:   4500, {Name: "lab up::backlog_pkts", Unit: "packets"}: 3,
		{Name: "lab up::sent_bytes", Unit: "bytes"}: 15_000, {Name: "lab up::dropped", Unit: "packets"}: 2, {Name: "lab up::ecn_mark", Unit: "packets"}: 1,
		{Name: "lab up::prob"}: 0.25, {Name: "lab up::delay_ns", Unit: "ns"}: 15e6,
	} {
		if v, ok := got[s]; !ok || v != want {
			t.Errorf("%+v is %v, %v; want %v", s, v, ok, want)
		}
	}
	if slices.ContainsFunc(w.Series, func(s bufferbloat.WatchSeries) bool { return s.Name == "lab up::target_ns" }) {
		t.Error("a parameter is watched as if it changed")
	}
	if broken = errors.New("gone"); w.Read(values) == nil {
		t.Error("a lab that is gone reads as one that is not")
	}
}

func TestARunKeepsWhatItsEmulatedLinkCounted(t *testing.T) {
	truth := piePart()
	var o bufferbloat.RunOptions
	if err := keepLabCounts(&o, func() (labTruth, error) { return truth, nil }); err != nil {
		t.Fatal(err)
	}
	c := o.LabCounts()
	if c.Up.Queue != "pie" || c.Up.Dropped.Packets != 2 || c.Up.Drops["aqm"] != 2 || c.Up.Drops["lost"] != 4 || c.Up.MaxBacklog.Bytes != 10_500 || len(c.Up.More) != 3 {
		t.Errorf("up: %+v", c.Up)
	}
	if c.Down.Queue != "bfifo" || c.Down.Drops != nil {
		t.Errorf("down: %+v", c.Down)
	}
	if c.Late == nil || c.Late.Packets != 100 || c.Late.Max != time.Millisecond || c.Late.P99 < time.Millisecond || c.Outside["entrance"] != 5 || len(c.Outside) != 1 {
		t.Errorf("late %+v, outside %v", c.Late, c.Outside)
	}
}
