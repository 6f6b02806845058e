package compare

import (
	"fmt"
	"math/rand/v2"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report"
	"bufferbloat/report/stat"
)

const msec = time.Millisecond

// line is a link as a run measures it: the middles of its figures.
type line struct {
	idle, down, up         time.Duration // medians
	downRate, upRate, loss float64       // Mbit/s, share
	within                 float64       // how far single samples lie from the middle, as a share of it
}

func goodLine() line {
	return line{idle: 40 * msec, down: 60 * msec, up: 80 * msec, downRate: 20, upRate: 4, loss: 0, within: 0.02}
}

func (l line) scaled(by float64) line {
	l.down, l.up = time.Duration(float64(l.down)*by), time.Duration(float64(l.up)*by)
	return l
}

// result makes a result as report.New would from a run on the line, with all figures that compare looks at.
func (l line) result(name string, r *rand.Rand) *report.Result {
	out := &report.Result{File: name, Started: time.Date(2026, 11, 30, 15, 0, 0, int(r.Uint32()), time.UTC), Length: time.Minute,
		Path:   bufferbloat.Path{Host: "server.example", Family: "IPv4"},
		Client: bufferbloat.HostFacts{OS: "linux", Kernel: "6.18"},
		Plan:   bufferbloat.Plan{Name: "speedtest"},
		Series: []report.Series{{Name: "icmp", Kind: "icmp", Primary: true}}}
	idle := report.Phase{Name: "idle", Kind: bufferbloat.Idle, Reached: true, End: 5 * time.Second, To: 5 * time.Second, Latency: []report.Latency{l.latency(l.idle, 50, r)}}
	out.Phases = []report.Phase{idle, l.load(load.Download, l.down, l.downRate, r), l.load(load.Upload, l.up, l.upRate, r)}
	for _, p := range out.Phases[1:] {
		d := report.Induced{Phase: p.Name, Series: "icmp", OK: true, Idle: idle.Latency[0].Summary, Loaded: p.Latency[0].Summary}
		d.Median = difference(p.Latency[0].MedianRange, idle.Latency[0].MedianRange)
		d.P90 = difference(p.Latency[0].P90Range, idle.Latency[0].P90Range)
		out.Induced = append(out.Induced, d)
	}
	return out
}

func (l line) latency(mid time.Duration, n int, r *rand.Rand) report.Latency {
	x := make([]time.Duration, 0, n)
	lost := 0
	for range n {
		if r.Float64() < l.loss {
			lost++
			continue
		}
		x = append(x, time.Duration(float64(mid)*(1+l.within*r.NormFloat64())))
	}
	out := report.Latency{Series: "icmp", Kind: "icmp", Primary: true, Summary: stat.Summarize(x, lost), Ladder: stat.Ladder(x)}
	out.Count = report.Count{Due: n, Sent: n, Received: len(x), Lost: lost}
	out.MedianRange, out.P90Range = independent(x, 0.5, out.Median), independent(x, 0.9, out.P90)
	return out
}

// independent is what stat.EstimateQuantiles says of samples that do not depend on each other, at a fraction of the price.
func independent(x []time.Duration, q float64, value time.Duration) stat.Estimate {
	e := stat.Estimate{Value: value, Low: value, High: value, N: len(x), NEff: float64(len(x))}
	low, high, err := stat.QuantileInterval(x, 0, q)
	if err == nil {
		e.Low, e.High = low.Value, high.Value
	}
	return stat.Restored(e, err != nil)
}

// difference is what stat.Difference says, without drawing.
func difference(a, b stat.Estimate) stat.Estimate {
	low, high := stat.DifferenceInterval(float64(b.Value), float64(b.Low), float64(b.High), float64(a.Value), float64(a.Low), float64(a.High))
	e := stat.Estimate{Value: a.Value - b.Value, Low: time.Duration(low), High: time.Duration(high), N: min(a.N, b.N), NEff: min(a.NEff, b.NEff)}
	return stat.Restored(e, a.Weak() || b.Weak())
}

func (l line) load(d load.Direction, mid time.Duration, mbps float64, r *rand.Rand) report.Phase {
	rate := bitrate.Bitrate(mbps * 1e6)
	g := report.Goodput{Direction: d, OK: true, Rate: rate, Flowed: 5, Whole: 5, Planned: 5, Fairness: 0.99, HasFairness: true,
		Range: report.RateRange{OK: true, Low: rate - rate/100, High: rate + rate/100, NEff: 50}}
	return report.Phase{Name: d.String(), Kind: bufferbloat.Load, Reached: true, Start: 5 * time.Second, End: 35 * time.Second, From: 6 * time.Second, To: 35 * time.Second,
		UnderLoad: true, Goodput: []report.Goodput{g}, Latency: []report.Latency{l.latency(mid, 300, r)}}
}

// runs makes k runs whose middles differ from each other by the share between.
func (l line) runs(side string, k int, between float64, r *rand.Rand) []*report.Result {
	var out []*report.Result
	for i := range k {
		one := l
		vary := func(d time.Duration) time.Duration { return time.Duration(float64(d) * (1 + between*r.NormFloat64())) }
		one.down, one.up, one.idle = vary(l.down), vary(l.up), vary(l.idle)
		one.downRate *= 1 + between/2*r.NormFloat64()
		one.upRate *= 1 + between/2*r.NormFloat64()
		out = append(out, one.result(fmt.Sprintf("%s-%d.json", side, i+1), r))
	}
	return out
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 77)) }
