// Package bufferbloat measures what a link's queue does under load: a Plan says which flows and probes run when, Run turns a Plan
// and a path into a Recording, and package report turns Recordings into statements.
package bufferbloat

import (
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/load"
)

// Plan says which flows and probes run when. It is data: it can be printed, compared, stored and checked before anything is sent.
type Plan struct {
	Name   string // "speedtest"
	Host   string // the server: a name or an address
	Phases []PhasePlan
	Probes []ProbePlan // they run through all phases
}

// PhasePlan is one stretch of a plan. A phase begins when the one before it is over.
type PhasePlan struct {
	Name   string
	Kind   PhaseKind
	Length time.Duration
	Flows  []FlowPlan // only in a Load phase
}

// FlowPlan is one bulk flow.
type FlowPlan struct {
	Name      string
	Direction load.Direction
	DSCP      dscp.CodePoint
}

// ProbePlan is one probe.
type ProbePlan struct {
	Name     string
	Kind     string // "icmp", "irtt", "tcp"
	Target   string // host; "" is the plan's Host
	Interval time.Duration
	DSCP     dscp.CodePoint
	Primary  bool
}
