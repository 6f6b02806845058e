package bufferbloat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/probe/icmp"
	"bufferbloat/probe/irtt"
	"bufferbloat/probe/tcp"
)

// openProbe is a series that is ready to be sent.
type openProbe struct {
	planned   string // its name in the plan
	series    ProbeSeries
	options   probe.Options
	transport probe.Transport
}

// openProbes makes the plan's probes ready, and finds out before the load which of them can work here.
func (r *run) openProbes(ctx context.Context) (open []openProbe, err error) {
	defer func() {
		if err != nil {
			for _, p := range open {
				p.transport.Close()
			}
		}
	}()
	for _, pp := range r.plan.Probes {
		var p openProbe
		if pp.Kind == Auto {
			p, err = r.openBest(ctx, pp)
		} else {
			p, err = r.open(ctx, pp, pp.Kind)
		}
		switch {
		case ctx.Err() != nil:
			return open, context.Cause(ctx)
		case err != nil && pp.Optional:
			r.notes = append(r.notes, Finding{Code: "probe_left_out", Severity: Note, Text: fmt.Sprintf("no %s probe: %v", pp.Name, err)})
		case err != nil:
			return open, fmt.Errorf("probe %s: %w", pp.Name, err)
		case pp.Optional && hasKind(open, p.series.Kind):
			p.transport.Close()
		default:
			p.planned = pp.Name
			open = append(open, p)
		}
	}
	nameSeries(open)
	return open, nil
}

// nameSeries names each series by its kind, or all of them as the plan does where two are of one kind.
func nameSeries(open []openProbe) {
	alike := false
	for i := range open {
		alike = alike || hasKind(open[:i], open[i].series.Kind)
	}
	for i := range open {
		open[i].series.Name = open[i].series.Kind
		if alike {
			open[i].series.Name = open[i].planned
		}
	}
}

func hasKind(open []openProbe, kind string) bool {
	for _, p := range open {
		if p.series.Kind == kind {
			return true
		}
	}
	return false
}

// openBest opens the best kind that works: ICMP, where it is permitted and answered; else irtt, else TCP, with the reason why. These two go to
// the server, whoever was to be pinged, because nobody else is sure to answer them. A host that was named and does not exist is a
// mistake, and no reason to probe another.
func (r *run) openBest(ctx context.Context, pp ProbePlan) (openProbe, error) {
	addr, err := r.target(ctx, pp.Target)
	if err != nil {
		return openProbe{}, err
	}
	p, err := r.openAt(ctx, pp, ICMP, addr)
	if err == nil {
		if r.answered(ctx, p) {
			return r.openAt(ctx, pp, ICMP, addr) // the try's transport is spent
		}
		err = fmt.Errorf("%v does not answer ICMP echo", addr)
	}
	if ctx.Err() != nil {
		return openProbe{}, context.Cause(ctx)
	}
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("ICMP is not permitted here (%w)", err)
	}
	why := []string{err.Error()}
	fallback := pp
	fallback.Target = ""
	p, err = r.openAt(ctx, fallback, IRTT, r.server)
	if err != nil {
		why = append(why, err.Error())
		if p, err = r.openAt(ctx, fallback, TCP, r.server); err != nil {
			return openProbe{}, err
		}
	}
	p.series.Reason = strings.Join(why, "; ")
	return p, nil
}

// open makes one series ready.
func (r *run) open(ctx context.Context, pp ProbePlan, kind ProbeKind) (openProbe, error) {
	addr, err := r.target(ctx, pp.Target)
	if err != nil {
		return openProbe{}, err
	}
	return r.openAt(ctx, pp, kind, addr)
}

// openAt makes a series ready that goes to addr.
func (r *run) openAt(ctx context.Context, pp ProbePlan, kind ProbeKind, addr netip.Addr) (p openProbe, err error) {
	target := pp.Target
	if target == "" {
		target = r.plan.Server.Host
	}
	p.options = probe.Options{Interval: pp.Interval, Socket: r.socket()}
	p.options.Socket.DSCP = pp.DSCP
	p.series = ProbeSeries{Kind: string(kind), Target: target, Address: addr.String(), Interval: pp.Interval,
		DSCP: pp.DSCP.String(), Primary: pp.Primary}
	switch kind {
	case ICMP:
		p.transport, err = icmp.Dial(ctx, r.h, addr, p.options)
	case IRTT:
		var t *irtt.Transport
		t, err = irtt.Dial(ctx, r.h, netip.AddrPortFrom(addr, r.plan.Server.IRTTPort), p.options,
			irtt.Options{Duration: r.plan.Length() + sessionSlack, OpenWait: r.patience()})
		if err != nil {
			return p, err
		}
		if w := t.Warning(); w != "" {
			r.notes = append(r.notes, Finding{Code: "irtt_restricted", Severity: Note, Text: "irtt probes: " + w})
		}
		p.transport = t
	case TCP:
		p.transport, err = tcp.Dial(r.h, netip.AddrPortFrom(addr, r.plan.Server.NetperfPort), p.options)
	default:
		err = fmt.Errorf("unknown kind %q", kind)
	}
	return p, err
}

// sessionSlack is what an irtt session lasts beyond the plan: what drains add, and the wait for late replies.
const sessionSlack = 2 * time.Minute

// target returns the address to probe: the server's own, or the first of another host's, in the server's family where it has one.
func (r *run) target(ctx context.Context, name string) (netip.Addr, error) {
	if name == "" || name == r.plan.Server.Host {
		return r.server, nil
	}
	addrs, err := r.resolve(ctx, name, host.FamilyOf(r.server))
	if err != nil && r.plan.Server.Family == 0 {
		addrs, err = r.resolve(ctx, name, host.AnyFamily)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0], nil
}

// patience is how long a host may take to answer before the load: three times the server's TCP handshake, at least a second.
func (r *run) patience() time.Duration { return min(15*time.Second, max(time.Second, 3*r.info.Setup)) }

// answered reports whether any of a few probes is answered. It closes the transport.
func (r *run) answered(ctx context.Context, p openProbe) bool {
	const tries = 3
	o := p.options
	o.Interval, o.Deadline = 50*time.Millisecond, r.patience()
	limited, cancel := host.WithTimeout(ctx, r.h, tries*o.Interval+r.patience())
	defer cancel()
	got := false
	_, _ = probe.Run(limited, limited, r.h, p.transport, o, r.h.Now(), tries, func(s probe.Sample) { got = got || s.Outcome.HasRTT() })
	return got
}
