package bufferbloat_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/report"
	"bufferbloat/servers/lab"
)

// starved is a host whose CPU has other things to do: who sleeps there wakes up to 90 ms late, as it comes.
type starved struct {
	host.Host
	wakings atomic.Uint64
}

func (s *starved) SleepUntil(ctx context.Context, t time.Time) error {
	late := [...]time.Duration{0, 65, 2, 0, 90, 31, 0, 7, 48}
	return s.Host.SleepUntil(ctx, t.Add(late[s.wakings.Add(1)%uint64(len(late))]*time.Millisecond))
}

// A warm-up of 2 s is left out of 7 s, and the counters are read when this host comes to it. What is shown then is the truth all the same: no interval is
// divided by the time that it should have had, and of the warm-up neither the bytes nor the time are in the final figure. The queue holds all that TCP has under
// way, since behind a lost packet nothing is delivered until it has come again.
func TestTheFinalFigureIsTheMeanOfIntervalsOnAStarvedHost(t *testing.T) {
	slow(t)
	const line = 10 * bitrate.Mbit
	paced := bufferbloat.FlowPlan{Name: "paced", Direction: load.Download, Protocol: bufferbloat.IPerf3, Rate: 8 * bitrate.Mbit}
	for name, tt := range map[string]struct {
		flows  []bufferbloat.FlowPlan
		steady bitrate.Bitrate // which each interval has; 0 where TCP searches for its rate
	}{
		"at a constant rate": {[]bufferbloat.FlowPlan{paced}, paced.Rate},
		"at the line's rate": {[]bufferbloat.FlowPlan{{Name: "all", Direction: load.Download}}, 0},
	} {
		p := one(7*time.Second, tt.flows...)
		p.Server.IPerf3Port, p.Phases[1].Skip = 5201, 2*time.Second
		var told []bitrate.Bitrate
		rec, err := rig{link: lab.Config{Down: line, Up: line, RTT: 20 * time.Millisecond, Buffer: 8 * time.Second}, iperf3: true,
			host:    func(h host.Host) host.Host { return &starved{Host: h} },
			options: bufferbloat.RunOptions{ProgressEvery: 100 * time.Millisecond},
			progress: func(p bufferbloat.Progress, _ func()) {
				for _, rate := range p.Rates {
					if rate.OK && p.Elapsed > 2*time.Second && p.Elapsed < 7*time.Second {
						told = append(told, rate.Rate)
					}
				}
			}}.run(t, t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		final := report.New(rec).Phases[1].Goodput[0]
		intervals, uneven := shown(rec, rec.Phases[1].From, rec.Phases[1].To)
		if len(intervals) < 20 || uneven < 5 || len(told) < 20 {
			t.Fatalf("%s: %d intervals, %d of them of another length, and %d rates told", name, len(intervals), uneven, len(told))
		}
		var bits, took float64
		for _, i := range intervals {
			bits, took = bits+float64(i.rate)*i.length.Seconds(), took+i.length.Seconds()
			told = append(told, i.rate)
		}
		if mean := bits / took; math.Abs(float64(final.Rate)/mean-1) > 0.02 {
			t.Errorf("%s: the final figure is %v, and the mean of the intervals %.3g", name, final.Rate, mean)
		}
		for _, rate := range told {
			if tt.steady > 0 && math.Abs(float64(rate)/float64(tt.steady)-1) > 0.05 {
				t.Errorf("%s: %v is shown at a constant %v", name, rate, tt.steady)
			}
			if rate > line+line/20 {
				t.Errorf("%s: %v is shown of a line of %v", name, rate, line)
			}
		}
	}
}

// shownInterval is a rate between two readings of the counters.
type shownInterval struct {
	rate   bitrate.Bitrate
	length time.Duration
}

// shown returns the intervals of a recording's one flow in a window, each over its own time, and how many are not of 100 ms.
func shown(rec *bufferbloat.Recording, from, to time.Duration) (list []shownInterval, uneven int) {
	var before bufferbloat.Point
	for _, p := range rec.Flows[0].Points {
		if length := p.At - before.At; before.At >= from && p.At <= to {
			list = append(list, shownInterval{bitrate.Of(p.Bytes-before.Bytes, length), length})
			if (length - 100*time.Millisecond).Abs() > 5*time.Millisecond {
				uneven++
			}
		}
		before = p
	}
	return list, uneven
}
