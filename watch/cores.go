package watch

import "time"

// Core is one CPU at one moment: times since boot, and its clock rate.
type Core struct {
	Number int
	// Busy is as in Times; IRQ, SoftIRQ and Steal are parts of it: interrupts, what they leave to be done behind them (most of the network stack's
	// receiving), and what the hypervisor gave to others.
	Busy, IRQ, SoftIRQ, Steal, Total time.Duration
	Hertz                            float64 // 0 where it is not known
}

// Cores returns the host's CPUs that are online, or an error that wraps errors.ErrUnsupported where the system does not tell.
func Cores() ([]Core, error) { return readCores() }
