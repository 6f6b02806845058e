package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
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
	// Samples is how many intervals the means are of, and Hertz the mean clock rate of each CPU, 0 where the host does not tell; neither is in the
	// document that WriteJSON prints.
	Samples int
	Hertz   []float64
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
	c.Samples = len(weights)
	for _, core := range cores {
		mean, sd := stat.MeanStdDev(core, weights)
		c.Cores = append(c.Cores, Share{mean, sd})
	}
	return c
}

// coreHertz returns the mean clock rate of each of n CPUs within from..to in Hz, 0 where it is not known.
func coreHertz(rec *bufferbloat.Recording, n int, from, to time.Duration) []float64 {
	out := make([]float64, n)
	for i := range out {
		if hertz, ok := meanWithin(rec, fmt.Sprintf("cpu%d::frequency", i), from, to); ok && hertz > 0 {
			out[i] = hertz
		}
	}
	return out
}

// cpuBlock prints the CPU use of a phase as speedtest-netperf.sh does.
func (t *speedtest) cpuBlock(p *Phase) {
	if !p.Reached {
		return
	}
	c := &p.CPU
	if !c.OK {
		t.line("CPU Load", none+" ("+printable(c.Why)+")")
		return
	}
	clocked := slices.ContainsFunc(c.Hertz, func(h float64) bool { return h > 0 })
	at := ""
	if clocked {
		at = " @ avg frequency"
	}
	t.line("CPU Load", fmt.Sprintf("[in %% busy (avg +/- std dev)%s, %s]", at, plural(c.Samples, "sample")))
	for i, s := range c.Cores {
		text := fmt.Sprintf("%5.1f +/- %4.1f", 100*s.Mean, 100*s.StdDev)
		if clocked && i < len(c.Hertz) && c.Hertz[i] > 0 {
			text += fmt.Sprintf("  @ %4.0f MHz", c.Hertz[i]/1e6)
		}
		t.line(fmt.Sprintf("cpu%d", i), text)
	}
	t.line("Overhead", "[in % used of total CPU available]")
	t.line("speedtest", fmt.Sprintf("%5.1f", 100*c.Own))
}

// stoppedShare is the share of its quota's periods in which a program is stopped from which the quota counts as the limit.
const stoppedShare = 0.05

// quotaUse returns the quota on the program's CPU time in CPUs, and the mean share of its periods within from..to in which it stopped the program;
// zeros where none was recorded.
func quotaUse(rec *bufferbloat.Recording, from, to time.Duration) (limit, stopped float64) {
	limit, _ = meanWithin(rec, "cpu_quota::limit", from, to)
	stopped, _ = meanWithin(rec, "cpu_quota::throttled", from, to)
	return limit, stopped
}

// The shares of the busiest CPU from which interrupts and packets, or what the hypervisor took, are named as what kept it busy.
const (
	packetsShare = 0.5
	stolenShare  = 0.1
)

// busyWith says what the busiest CPU was busy with within from..to, beside programs: "", or words that begin with a comma.
func busyWith(rec *bufferbloat.Recording, from, to time.Duration) (words string) {
	busiest, cpu := 0.0, ""
	for i := 0; rec != nil && i < len(rec.Others); i++ {
		if name, of := strings.CutSuffix(rec.Others[i].Name, "::busy"); of && strings.HasPrefix(name, "cpu") {
			if mean, ok := meanWithin(rec, rec.Others[i].Name, from, to); ok && mean > busiest {
				busiest, cpu = mean, name
			}
		}
	}
	if cpu == "" {
		return ""
	}
	softirq, _ := meanWithin(rec, cpu+"::softirq", from, to)
	irq, _ := meanWithin(rec, cpu+"::irq", from, to)
	if softirq+irq >= packetsShare {
		words += fmt.Sprintf(", %s of it with interrupts and packets (spread the device's receive queues: RSS, RPS)", percent((softirq+irq)/busiest))
	}
	if steal, _ := meanWithin(rec, cpu+"::steal", from, to); steal >= stolenShare {
		words += fmt.Sprintf(", %s of it stolen by the hypervisor", percent(steal/busiest))
	}
	return words
}

// meanWithin returns the mean of a quantity's values whose interval, from the reading before, ends within from..to, or false where there is none.
func meanWithin(rec *bufferbloat.Recording, name string, from, to time.Duration) (float64, bool) {
	if rec == nil {
		return 0, false
	}
	i := slices.IndexFunc(rec.Others, func(q bufferbloat.Quantity) bool { return q.Name == name })
	if i < 0 {
		return 0, false
	}
	sum, n, began := 0.0, 0, time.Duration(0)
	for at, v := range rec.Others[i].Each {
		if began >= from && at <= to {
			sum += v
			n++
		}
		began = at
	}
	if n == 0 {
		return 0, false
	}
	return sum / float64(n), true
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
