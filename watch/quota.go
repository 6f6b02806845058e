package watch

import "time"

// Quota is a limit that the system sets on the CPU time of a group of processes, this one among them, and what it has done so far.
type Quota struct {
	CPUs      float64       // CPU time per time; 0.2 is a fifth of one CPU
	Periods   uint64        // in which the group wanted to run
	Throttled uint64        // periods in which it was stopped until the next one
	Stopped   time.Duration // time that its processes were stopped for, each CPU's added up
}

// Group is where the system accounts for this process's quota.
type Group struct{ group }

// FindGroup returns the group with the tightest quota on this process, or an error that wraps errors.ErrUnsupported where there is none or
// the system does not tell. A quota that comes later is not found.
func FindGroup() (Group, error) { return findGroup() }

// Read returns the quota as it stands.
func (g *Group) Read() (Quota, error) { return g.read() }

// ThrottledShare returns the share of the periods between two readings in which the group was stopped, 0..1; 0 where it did not run.
func ThrottledShare(from, to Quota) float64 {
	if to.Periods <= from.Periods || to.Throttled < from.Throttled {
		return 0
	}
	return min(1, float64(to.Throttled-from.Throttled)/float64(to.Periods-from.Periods))
}
