package acceptance

import (
	"slices"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
)

// interval is the time of one figure of a direction's rate, which is that of its streams' readings. In a round trip or two each stream may have a
// hole in what arrived, behind which nothing is delivered though the link is full.
const interval = 500 * time.Millisecond

// rampIntervals are those at the beginning in which a flow may still have nothing.
const rampIntervals = 3

// intervals are the bytes of a phase's flows in each interval from the first flow's start until the first is told to stop.
type intervals []uint64

// intervalsOf adds up the readings of a phase's flows in one direction. A reading counts for the interval that it ends in.
func intervalsOf(t *testing.T, rec *bufferbloat.Recording, name string) intervals {
	t.Helper()
	var start, stop time.Duration
	var flows []*bufferbloat.Flow
	for i := range rec.Flows {
		f := &rec.Flows[i]
		if f.Phase != name {
			continue
		}
		if flows == nil || f.Result.Connected < start {
			start = f.Result.Connected
		}
		if flows == nil || f.Result.Stopped < stop {
			stop = f.Result.Stopped
		}
		flows = append(flows, f)
	}
	if flows == nil || stop <= start {
		t.Fatalf("phase %q has no flows: %+v", name, rec.Phases)
	}
	list := make(intervals, (stop-start)/interval)
	for _, f := range flows {
		had := uint64(0)
		for _, p := range f.Points {
			// Readings are due on a schedule and may be a little late: the nearest end is theirs.
			if i := int((p.At - start - interval/2) / interval); i >= 0 && i < len(list) {
				list[i] += p.Bytes - had
				had = p.Bytes
			}
		}
	}
	return list
}

// check says which intervals are not as a shaped link gives them: none is empty once data flows, and none has more than the link carries in its time and what
// may have waited behind one lost packet: the queue that the packet is sent again through, and the packets by which the loss is noticed.
func (list intervals) check(t *testing.T, what string, payload bitrate.Bitrate, buffer time.Duration) {
	t.Helper()
	if len(list) < 2*rampIntervals {
		t.Errorf("%s: %d intervals", what, len(list))
		return
	}
	const noticed = 4 * 1448
	most := noticed + uint64(float64(payload)/8*(interval+buffer).Seconds())
	var empty []int
	for i, n := range list {
		if n == 0 && i >= rampIntervals {
			empty = append(empty, i)
		}
		if n > most {
			t.Errorf("%s: %d bytes in interval %d of %d, want at most %d: the link's and a queue's", what, n, i, len(list), most)
		}
	}
	if len(empty) > 0 {
		t.Errorf("%s: %d of %d intervals of %v are empty: %v", what, len(empty), len(list), interval, empty[:min(len(empty), 20)])
	}
}

func TestIntervalsAreOfTheirOwnTime(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * interval / 100 }
	rec := &bufferbloat.Recording{Flows: []bufferbloat.Flow{
		{Phase: "download", Result: bufferbloat.FlowResult{Connected: ms(50), Stopped: ms(560)},
			Points: []bufferbloat.Point{{At: ms(152), Bytes: 100}, {At: ms(251), Bytes: 250}, {At: ms(349), Bytes: 300}, {At: ms(551), Bytes: 700}}},
		{Phase: "download", Result: bufferbloat.FlowResult{Connected: ms(60), Stopped: ms(550)}, Points: []bufferbloat.Point{{At: ms(152), Bytes: 1}}},
		{Phase: "upload", Result: bufferbloat.FlowResult{Connected: ms(50), Stopped: ms(560)}, Points: []bufferbloat.Point{{At: ms(152), Bytes: 7}}},
	}}
	if got, want := intervalsOf(t, rec, "download"), (intervals{101, 150, 50, 0, 400}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A link on which a packet takes 24 ms: few flows, and still each interval has some.
func TestASlowLinksIntervalsAllHaveData(t *testing.T) {
	t.Parallel()
	l := link{512 * bitrate.Kbit, 512 * bitrate.Kbit, 250 * time.Millisecond}
	for _, r := range compare(t, l, 8*time.Second, "netperf") {
		t.Log(r)
		if off := r.goodputOff(); off > goodputTolerance || off < -3*goodputTolerance { // of eight seconds only
			t.Errorf("%s: goodput off by %+.2f %%", r.direction, off*100)
		}
	}
}
