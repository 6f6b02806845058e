package bufferbloat

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"bufferbloat/load"
)

// checkFlows asks the servers of flows whose protocol has a FlowChecker, once for each URL, direction and way out of this host. Where the plan has no other flows and none of them can
// run, that is an error, before anything is measured; otherwise those that can't say so when they are to begin.
func (r *run) checkFlows(ctx context.Context) error {
	type place struct {
		url, server string
		protocol    Protocol
		family      int
		direction   load.Direction
		source      netip.Addr
		device      string
	}
	seen := map[place]bool{}
	var errs []error
	good, others := 0, 0
	for i := range r.plan.Phases {
		for j := range r.plan.Phases[i].Flows {
			f := &r.plan.Phases[i].Flows[j]
			k, ok := r.o.Kinds.Flows[f.Protocol].(FlowChecker)
			if !ok {
				others++
				continue
			}
			p, at := r.peer(f.Server, f.Family), place{f.URL, f.Server, f.Protocol, f.Family, f.Direction, f.Source, f.Interface}
			if seen[at] || p.err != nil {
				continue
			}
			seen[at] = true
			setup, note, err := k.CheckFlow(ctx, AskedFlow{Plan: f, Site: r.site(p, f.server(p)), Length: f.lasts(r.plan.Phases[i].Length)})
			p.info.Setup = max(p.info.Setup, setup)
			if note != nil && !slices.Contains(r.notes, *note) {
				r.notes = append(r.notes, *note)
			}
			if err == nil {
				good++
			} else {
				errs = append(errs, err)
			}
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if good+others > 0 || len(errs) == 0 {
		return nil
	}
	texts := []string{}
	for _, err := range errs {
		if text := err.Error(); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return errors.New(strings.Join(texts, "; "))
}
