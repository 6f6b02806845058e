// Package watch reads what the measuring host itself did meanwhile: its CPU use, and the facts about it that bear on a result.
package watch

import "time"

// Times are CPU times since boot, or since the process began, at one moment.
type Times struct {
	Busy  []time.Duration // per CPU: everything but idle and waiting for I/O; time stolen by the hypervisor is busy, since we could not use it
	Total []time.Duration // per CPU
	Own   time.Duration   // this process, user and system
}

// CPU returns the host's CPU times, or an error that wraps errors.ErrUnsupported where the system does not tell.
func CPU() (Times, error) { return readCPU() }

// Use returns the CPU use between two readings: the busy share of each CPU, 0..1, and this process's share of all CPUs together. It
// returns nil and 0 where the readings do not cover the same CPUs or no time passed between them.
func Use(from, to Times) (busy []float64, own float64) {
	if len(from.Total) != len(to.Total) || len(to.Total) == 0 {
		return nil, 0
	}
	busy = make([]float64, len(to.Total))
	var all time.Duration
	for i := range busy {
		total := to.Total[i] - from.Total[i]
		if total > 0 {
			busy[i] = min(1, max(0, float64(to.Busy[i]-from.Busy[i])/float64(total)))
			all += total
		}
	}
	if all <= 0 {
		return nil, 0
	}
	return busy, min(1, max(0, float64(to.Own-from.Own)/float64(all)))
}

// Kernel returns the kernel's release, or "" where the system does not tell.
func Kernel() string { return readKernel() }

// CongestionControl returns TCP's default algorithm, or "" where the system does not tell.
func CongestionControl() string { return readCongestionControl() }
