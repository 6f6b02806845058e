package bufferbloat

import (
	"errors"
	"fmt"
	"slices"

	"bufferbloat/load"
)

// isGiven reports whether a kind of probe is none of Run's own.
func (k ProbeKind) isGiven() bool { return k == TLS || k == DNS || k == Fetch || k == Page }

// beyond says what of a plan Run can't carry out with the kinds that it was given, or returns nil. It keeps a flow that would run otherwise than planned from looking like a measurement.
func (p *Plan) beyond(given *Kinds) error {
	var cannot []string
	can := func(ok bool, format string, args ...any) {
		if !ok {
			cannot = append(cannot, fmt.Sprintf(format+" can't be carried out", args...))
		}
	}
	for _, ph := range p.Phases {
		for _, f := range ph.Flows {
			can(f.Protocol == "" || f.Protocol == Netperf || given.Flows[f.Protocol] != nil, "flow %q: protocol %s", f.Name, f.Protocol)
			can(!f.Protocol.isWeb() || f.Direction == load.Upload || f.Rate == 0 && f.CongestionControl == "",
				"flow %q: a rate, or a congestion control, that a web server is to keep to", f.Name)
			can(f.Rate == 0 || f.Direction == load.Upload || f.Protocol != "" && f.Protocol != Netperf, "flow %q: a rate that the server is to keep to", f.Name)
		}
	}
	for _, pr := range p.Probes {
		can(slices.Contains(kinds, pr.Kind) && (!pr.Kind.isGiven() || given.Probes[pr.Kind] != nil), "probe %q: kind %s", pr.Name, pr.Kind)
		can(!pr.Kind.isClosedLoop() || given.Closed != nil, "probe %q: kind %s", pr.Name, pr.Kind)
		can(pr.Size == 0 || pr.Kind == UDP || pr.Kind == IRTT || pr.Kind == TCPRR || pr.Kind == UDPRR || pr.Kind.isClosedLoop(), "probe %q: a size", pr.Name)
	}
	if len(cannot) == 0 {
		return nil
	}
	return errors.New(brief(cannot))
}
