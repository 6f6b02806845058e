package report

import (
	"math"
	"sort"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/report/stat"
)

// RateRange is the interval, at stat.Level, that the ups and downs of a rate leave to its mean. It is of one run and does not cover how runs differ.
type RateRange struct {
	OK        bool // false where the flows' counters were not read often enough while all of them ran
	Low, High bitrate.Bitrate
	NEff      float64 // as many independent stretches would say as much
	Weak      bool    // too few of them: too narrow by an unknown amount
}

// The time over which the rate's ups and downs are averaged is many times the interval at which counters are read, and longer in a long phase.
const (
	minStretch   = 500 * time.Millisecond
	maxStretches = 4096
)

// rateRange returns the interval of a goodput from the flows' counters while all flows carried data.
func rateRange(g *Goodput, ph *Phase, rec *bufferbloat.Recording) RateRange {
	stretch := max(minStretch, (ph.To-ph.From)/maxStretches)
	n := int(max(0, ph.To-ph.From) / stretch) // not above maxStretches by more than one; a negative one would be cut to anything in 32 bits
	if !g.OK || n < 8 {
		return RateRange{}
	}
	rates := make([]float64, n)
	for i := range rec.Flows {
		f := &rec.Flows[i]
		if f.Phase != ph.Name || f.Direction != g.Direction {
			continue
		}
		points := f.Readings()
		if !f.Result.Flowed && len(points) == 0 {
			continue
		}
		if len(points) < n { // less than a reading a stretch
			return RateRange{}
		}
		last := bytesAt(points, ph.From)
		for k := range rates {
			now := bytesAt(points, ph.From+time.Duration(k+1)*stretch)
			rates[k] += (now - last) * 8 / stretch.Seconds()
			last = now
		}
	}
	low, high, nEff, err := stat.MeanInterval(rates)
	mean := low + (high-low)/2
	if err != nil || mean <= 0 {
		return RateRange{}
	}
	// The counters' mean is of the time in which all flows ran, Rate of all the time: the interval is taken over in proportion.
	scale := float64(g.Rate) / mean
	return RateRange{OK: true, Low: min(bitrate.Bitrate(math.Round(max(low*scale, 0))), g.Rate),
		High: max(bitrate.Bitrate(math.Round(high*scale)), g.Rate), NEff: nEff, Weak: nEff < 2*stat.FewEffective}
}

// bytesAt returns a counter's reading at a time, on the line between the two readings around it.
func bytesAt(points []bufferbloat.Point, at time.Duration) float64 {
	i := sort.Search(len(points), func(i int) bool { return points[i].At >= at })
	switch i {
	case 0:
		if len(points) > 0 && points[0].At == at {
			return float64(points[0].Bytes)
		}
		return 0
	case len(points):
		return float64(points[len(points)-1].Bytes)
	}
	a, b := points[i-1], points[i]
	return float64(a.Bytes) + (float64(b.Bytes)-float64(a.Bytes))*float64(at-a.At)/float64(b.At-a.At)
}
