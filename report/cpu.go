package report

import (
	"math"
	"time"

	"bufferbloat"
	"bufferbloat/report/stat"
)

// CPU is this host's CPU use in one phase. Shares are 0..1.
type CPU struct {
	OK    bool
	Why   string  // why it is not known, "" with OK
	Busy  Share   // of all CPUs together
	Cores []Share // each CPU
	Own   float64 // this program, as a share of all CPUs together; in a result from elsewhere, the program that made the load
	// OnlyCores says that the source tells the share of each CPU and not how much all of them together varied: Busy has a mean alone.
	OnlyCores bool
}

// Share is a share of CPU time: the mean, and the standard deviation of the single intervals about it.
type Share struct{ Mean, StdDev float64 }

// Busiest returns the core with the highest mean.
func (c *CPU) Busiest() (busiest Share) {
	for _, s := range c.Cores {
		if s.Mean >= busiest.Mean {
			busiest = s
		}
	}
	return busiest
}

// cpuUse averages the samples whose whole interval lies within from..to, each weighted by its own length.
func cpuUse(series *bufferbloat.CPUSeries, from, to time.Duration) CPU {
	if !series.Available {
		return CPU{Why: series.Why}
	}
	var last time.Duration
	var weights, all, own []float64
	var cores [][]float64
	for _, s := range series.Samples {
		began := last
		last = s.At
		if began < from || s.At > to || s.At <= began || !sound(s, len(cores)) {
			continue
		}
		if cores == nil {
			cores = make([][]float64, len(s.Busy))
		}
		var sum float64
		for i, b := range s.Busy {
			cores[i] = append(cores[i], b)
			sum += b
		}
		weights = append(weights, (s.At - began).Seconds())
		all = append(all, sum/float64(len(s.Busy)))
		own = append(own, s.Own)
	}
	if len(weights) == 0 {
		return CPU{Why: "no whole sample within the phase"}
	}
	c := CPU{OK: true}
	c.Busy.Mean, c.Busy.StdDev = stat.MeanStdDev(all, weights)
	c.Own, _ = stat.MeanStdDev(own, weights)
	for _, core := range cores {
		mean, sd := stat.MeanStdDev(core, weights)
		c.Cores = append(c.Cores, Share{mean, sd})
	}
	return c
}

// sound reports whether a sample has shares, and as many of them as those before it (0: any number).
func sound(s bufferbloat.CPUSample, cores int) bool {
	if len(s.Busy) == 0 || cores > 0 && len(s.Busy) != cores {
		return false
	}
	for _, b := range append([]float64{s.Own}, s.Busy...) {
		if math.IsNaN(b) || math.IsInf(b, 0) {
			return false
		}
	}
	return true
}
