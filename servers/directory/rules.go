package directory

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// DefaultRunsPerDay is how often in 24 hours this program uses a public server whose operator names no number. It is this program's own restraint,
// and no rule of theirs.
const DefaultRunsPerDay = 10

// RunsPerDay returns how many runs a host may make in any 24 hours, and whether the operator said so.
func (e *Entry) RunsPerDay() (n int, said bool) {
	if e.MaxRunsPerDay != nil {
		return *e.MaxRunsPerDay, true
	}
	return DefaultRunsPerDay, false
}

// Use is what is asked of a server.
type Use struct {
	// Automation is what makes it more than one run that somebody started by hand, as the user wrote it: "--repeat", "a batch", "a sweep". ""
	// is a single run.
	Automation string
	Load       time.Duration // the longest time under load in one run
}

// RefusedError is a use that an operator's rules, or the want of any, forbid.
type RefusedError struct {
	Host, Policy string
	Reason       string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s is a public server: %s. Its policy: %s", e.Host, e.Reason, e.Policy)
}

func (e *Entry) refuse(format string, args ...any) error {
	name := e.Key()
	return &RefusedError{Host: name, Policy: e.Policy, Reason: fmt.Sprintf(format, args...)}
}

// Permit returns a *RefusedError for what the entry's rules forbid. Automation that no source permits is forbidden.
func (e *Entry) Permit(u Use) error {
	if u.Automation != "" && !e.automatic() {
		why := "it allows no automation"
		if e.AllowsAutomation == nil {
			why = "whether it allows automation is not known, so it does not"
		}
		return e.refuse("%s, and %s is automation; use a server of your own (bloat serve), or list this one in a file for --directory "+
			"once its operator has agreed", why, u.Automation)
	}
	if e.MaxSeconds != nil && u.Load > time.Duration(*e.MaxSeconds)*time.Second {
		return e.refuse("it allows %d s of load in a run, not %v; shorten the run", *e.MaxSeconds, u.Load)
	}
	return nil
}

// Wait draws the time until the next unattended test: exponential around Mean, within Min and Max, so that clients that were started together
// do not stay together.
func (g Gap) Wait(random *rand.Rand) time.Duration {
	d := time.Duration(random.ExpFloat64() * float64(g.Mean) * float64(time.Second))
	return min(max(d, time.Duration(g.Min)*time.Second), time.Duration(g.Max)*time.Second)
}
