package bufferbloat

import (
	"errors"
	"fmt"
)

// beyond says what of a plan Run can't carry out, or returns nil. It keeps a flow that would run otherwise than planned from looking like a measurement.
func (p *Plan) beyond() error {
	var errs []error
	can := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format+" can't be carried out", args...))
		}
	}
	for _, ph := range p.Phases {
		can(ph.Skip == 0, "%s without its beginning", ph.Name)
		for _, f := range ph.Flows {
			can(f.Protocol == "" || f.Protocol == Netperf, "flow %q: protocol %s", f.Name, f.Protocol)
			can(f.Server == "", "flow %q: another server", f.Name)
			can(f.Family == 0, "flow %q: a family of its own", f.Name)
			can(f.Start == 0 && f.Length == 0, "flow %q: a time of its own", f.Name)
			can(f.CongestionControl == "", "flow %q: congestion control", f.Name)
			can(f.Rate == 0, "flow %q: a rate", f.Name)
			can(f.Bytes == 0, "flow %q: a number of bytes", f.Name)
			can(f.Size == 0, "flow %q: a size", f.Name)
			can(!f.Optional, "flow %q: to be optional", f.Name)
		}
	}
	for _, pr := range p.Probes {
		switch pr.Kind {
		case Auto, ICMP, IRTT, TCP:
		default:
			can(false, "probe %q: kind %s", pr.Name, pr.Kind)
		}
		can(pr.Server == "", "probe %q: another server", pr.Name)
		can(pr.Family == 0, "probe %q: a family of its own", pr.Name)
		can(pr.Start == 0 && pr.Length == 0, "probe %q: a time of its own", pr.Name)
		can(pr.Size == 0, "probe %q: a size", pr.Name)
		can(pr.ECN == 0, "probe %q: ECN", pr.Name)
	}
	return errors.Join(errs...)
}
