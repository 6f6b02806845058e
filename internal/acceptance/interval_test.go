package acceptance

import (
	"cmp"
	"math"
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

// intervals are the bytes of a phase's flows in each interval from start, when the first flow has its connection, until the first is told to stop.
type intervals []uint64

// intervalsOf adds up the readings of a phase's flows in one direction. A reading may be late and knows its own time: between two of a flow it is taken
// to have gone on evenly.
func intervalsOf(t *testing.T, rec *bufferbloat.Recording, name string) (list intervals, start time.Duration) {
	t.Helper()
	var stop time.Duration
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
	list = make(intervals, (stop-start)/interval)
	for _, f := range flows {
		had := uint64(0)
		for i := range list {
			now := delivered(f.Points, start+time.Duration(i+1)*interval)
			list[i] += now - had
			had = now
		}
	}
	return list, start
}

// delivered returns the bytes that a flow had delivered at a time, by its readings before and after it.
func delivered(points []bufferbloat.Point, at time.Duration) uint64 {
	i, _ := slices.BinarySearchFunc(points, at, func(p bufferbloat.Point, at time.Duration) int { return cmp.Compare(p.At, at) })
	switch {
	case len(points) == 0 || i == 0 && points[0].At > at:
		return 0
	case i == len(points):
		return points[i-1].Bytes
	case i == 0:
		return points[0].Bytes
	}
	before, after := points[i-1], points[i]
	return before.Bytes + uint64(float64(after.Bytes-before.Bytes)*float64(at-before.At)/float64(after.At-before.At))
}

// spread is what the intervals of a direction say of its rate over time.
type spread struct {
	highest float64 // most in an interval, of what the link carries in that time
	holed   int     // intervals with more than a queue's worth above that, which had waited behind holes
}

// check says which intervals are not as a shaped link gives them:
//   - one without anything, once data flows;
//   - more in all, since the begin, than the link can have carried by then, so that nothing is counted before it has come;
//   - more in one than the link carries in its time and what may have waited behind one lost packet: the queue that the packet is sent again through, and
//     the packets by which the loss is noticed. Where packets of several flows are lost at once, or one is lost twice and waits for TCP's timer, more waits: the
//     windows of these flows. What is delivered at once then is no more than what the device had received before and the flows had not (behind).
func (list intervals) check(t *testing.T, what string, payload bitrate.Bitrate, buffer time.Duration, behind []uint64) (s spread) {
	t.Helper()
	if len(list) < 2*rampIntervals {
		t.Errorf("%s: %d intervals", what, len(list))
		return s
	}
	carries := func(d time.Duration) uint64 { return uint64(float64(payload) / 8 * d.Seconds()) }
	const noticed = 4 * 1448
	burst := noticed + carries(2*time.Millisecond) // of the shaper's bucket
	early := carries(50 * time.Millisecond)        // that may have come before a busy machine's stamp of the connection
	var empty []int
	all := uint64(0)
	for i, n := range list {
		if n == 0 && i >= rampIntervals {
			empty = append(empty, i)
		}
		if all += n; all > carries(time.Duration(i+1)*interval)+burst+early {
			t.Errorf("%s: %d bytes by the end of interval %d of %d, and the link carries %d until then", what, all, i, len(list), carries(time.Duration(i+1)*interval))
		}
		s.highest = max(s.highest, float64(n)/float64(carries(interval)))
		if i == 0 {
			n -= min(n, early)
		}
		if n <= carries(interval+buffer)+noticed {
			continue
		}
		s.holed++
		if n > carries(interval)+behind[i]+burst {
			t.Errorf("%s: %d bytes in interval %d of %d, want at most %d, the link's and a queue's, or %d, the link's and what had waited behind holes", what, n, i, len(list),
				carries(interval+buffer)+noticed, carries(interval)+behind[i])
		}
	}
	if len(empty) > 0 {
		t.Errorf("%s: %d of %d intervals of %v are empty: %v", what, len(empty), len(list), interval, empty[:min(len(empty), 20)])
	}
	return s
}

func TestIntervalsAreOfTheirOwnTime(t *testing.T) {
	at := func(n float64) time.Duration { return time.Duration(n * float64(interval)) }
	rec := &bufferbloat.Recording{Flows: []bufferbloat.Flow{
		{Phase: "download", Result: bufferbloat.FlowResult{Connected: at(0.5), Stopped: at(5.6)},
			Points: []bufferbloat.Point{{At: at(1.5), Bytes: 100}, {At: at(2.5), Bytes: 250}, {At: at(4), Bytes: 400}, {At: at(5.5), Bytes: 400}}},
		{Phase: "download", Result: bufferbloat.FlowResult{Connected: at(0.6), Stopped: at(5.5)}, Points: []bufferbloat.Point{{At: at(1.4), Bytes: 1}}},
		{Phase: "upload", Result: bufferbloat.FlowResult{Connected: at(0.5), Stopped: at(5.6)}, Points: []bufferbloat.Point{{At: at(1.5), Bytes: 7}}},
	}}
	if got, start := intervalsOf(t, rec, "download"); !slices.Equal(got, intervals{101, 150, 100, 50, 0}) || start != at(0.5) {
		t.Errorf("got %v from %v", got, start)
	}
}

// A link on which a packet takes 24 ms: few flows, and still each interval has some.
func TestASlowLinksIntervalsAllHaveData(t *testing.T) {
	t.Parallel()
	l := link{512 * bitrate.Kbit, 512 * bitrate.Kbit, 250 * time.Millisecond}
	for _, r := range compare(t, l, 6*time.Second, "netperf") {
		t.Log(r)
		if off := r.goodputOff(); math.Abs(off) > 3*goodputTolerance { // of six seconds, which are 250 packets
			t.Errorf("%s: goodput off by %+.2f %%", r.direction, off*100)
		}
	}
}
