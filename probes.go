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
	planned   *ProbePlan
	series    ProbeSeries
	options   probe.Options
	transport probe.Transport
}

// remark records what a transport knows of its series beside samples and tally.
func (r *run) remark(p *openProbe) {
	t, ok := p.transport.(interface{ Remarks() []probe.Remark })
	if !ok {
		return
	}
	for _, m := range t.Remarks() {
		severity := Note
		if m.Weakens {
			severity = Weakens
		}
		r.find(Finding{Code: m.Code, Severity: severity, Text: p.series.Name + " probes: " + m.Text})
	}
}

func closeProbes(open []openProbe) {
	for _, p := range open {
		p.transport.Close()
	}
}

// openProbes makes the plan's probes ready, and finds out before the load which of them can work here.
func (r *run) openProbes(ctx context.Context) (open []openProbe, err error) {
	defer func() {
		if err != nil {
			closeProbes(open)
		}
	}()
	var failed []error
	for i := range r.plan.Probes {
		pp := &r.plan.Probes[i]
		if lost := r.peer(pp.Server, pp.Family); pp.Target == "" && lost.err != nil {
			severity := Weakens
			if pp.Optional {
				severity = Note
			}
			r.notes = append(r.notes, Finding{Code: "probe_left_out", Severity: severity, Text: fmt.Sprintf("no %s probe: %v", pp.Name, lost.err)})
			continue
		}
		list, err := r.openPlanned(ctx, pp)
		switch {
		case ctx.Err() != nil:
			return open, context.Cause(ctx)
		case err != nil && pp.Optional:
			r.notes = append(r.notes, Finding{Code: "probe_left_out", Severity: Note, Text: fmt.Sprintf("no %s probe: %v", pp.Name, err)})
		case err != nil && !pp.dispensable():
			return open, fmt.Errorf("probe %s: %w", pp.Name, err)
		case err != nil:
			failed = append(failed, fmt.Errorf("probe %s: %w", pp.Name, err))
			r.notes = append(r.notes, Finding{Code: "probe_left_out", Severity: Weakens, Text: fmt.Sprintf("no %s probe: %v", pp.Name, err)})
		case pp.Optional && len(list) == 1 && hasLike(open, pp, &list[0].series):
			closeProbes(list)
		default:
			for _, p := range list {
				p.planned = pp
				open = append(open, p)
			}
		}
	}
	if len(open) == 0 && len(r.loops) == 0 && len(failed) > 0 {
		return open, joined(failed)
	}
	nameSeries(open)
	return open, nil
}

// dispensable reports whether others can do without a probe that does not work: one that merely asks what a server has. What a plan names besides, a host,
// a page or something to look up, is a mistake where it is not there.
func (p *ProbePlan) dispensable() bool {
	switch p.Kind {
	case ICMP, UDP, IRTT, TCPRR, UDPRR, ClosedTCPRR, ClosedUDPRR:
		return p.Target == ""
	}
	return false
}

// openUDP opens the better of the kinds of UDP that the server has: irtt, which tells the direction of loss, else netperf's request and response,
// with the reason why.
func (r *run) openUDP(ctx context.Context, pp *ProbePlan) (openProbe, error) {
	p, err := r.open(ctx, pp, IRTT)
	if err == nil || ctx.Err() != nil {
		return p, err
	}
	other, rrErr := r.open(ctx, pp, UDPRR)
	if rrErr != nil {
		return other, fmt.Errorf("%w; and by netperf: %w", err, rrErr)
	}
	other.series.Reason = err.Error()
	return other, nil
}

// openPlanned makes the series of one planned probe ready: one, but for a path, which has one for each router, and a closed loop, which is kept apart.
func (r *run) openPlanned(ctx context.Context, pp *ProbePlan) ([]openProbe, error) {
	var p openProbe
	var err error
	switch pp.Kind {
	case Route:
		return r.openHops(ctx, pp)
	case ClosedTCPRR, ClosedUDPRR:
		return nil, r.openClosedLoop(ctx, pp)
	case Auto:
		p, err = r.openBest(ctx, pp)
	case UDP:
		p, err = r.openUDP(ctx, pp)
	default:
		p, err = r.open(ctx, pp, pp.Kind)
	}
	return []openProbe{p}, err
}

// hasLike reports whether there is a series of the same kind to the same address and from the same, of which another is no second opinion.
func hasLike(open []openProbe, pp *ProbePlan, s *ProbeSeries) bool {
	for _, p := range open {
		if p.planned.Source == pp.Source && p.planned.Interface == pp.Interface && p.series.Kind == s.Kind && p.series.Address == s.Address && p.series.DSCP == s.DSCP && p.series.ECN == s.ECN && p.series.Size == s.Size {
			return true
		}
	}
	return false
}

// nameSeries names each series that has no name as the plan does; one whose kind the plan left open by what it became, unless another has that name.
func nameSeries(open []openProbe) {
	for i := range open {
		if s := &open[i].series; s.Name == "" {
			s.Name = open[i].planned.Name
		}
	}
	for i := range open {
		if s := &open[i].series; open[i].planned.Kind == Auto && !hasName(open, s.Kind) {
			s.Name = s.Kind
		}
	}
}

func hasName(open []openProbe, name string) bool {
	for _, p := range open {
		if p.series.Name == name {
			return true
		}
	}
	return false
}

// openBest opens the best kind that works: ICMP, where it is permitted and answered; else irtt, else TCP, with the reason why. These two go to
// the server, whoever was to be pinged, because nobody else is sure to answer them. A host that was named and does not exist is a
// mistake, and no reason to probe another.
func (r *run) openBest(ctx context.Context, pp *ProbePlan) (openProbe, error) {
	a, err := r.asked(ctx, pp, ICMP)
	if err != nil {
		return openProbe{}, err
	}
	p, err := r.openAt(ctx, a)
	if err == nil {
		if r.answered(ctx, p, a.peer) {
			return r.openAt(ctx, a) // the try's transport is spent
		}
		err = fmt.Errorf("%v does not answer ICMP echo", a.addr)
	}
	if ctx.Err() != nil {
		return openProbe{}, context.Cause(ctx)
	}
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("ICMP is not permitted here (%w)", err)
	}
	why := []string{err.Error()}
	if a.peer.err != nil {
		return openProbe{}, fmt.Errorf("%w, and its server is of no help: %w", err, a.peer.err)
	}
	a.kind, a.addr, a.target = IRTT, a.peer.addr, a.peer.server.Host
	p, err = r.openAt(ctx, a)
	if err != nil {
		why = append(why, err.Error())
		a.kind = TCP
		if p, err = r.openAt(ctx, a); err != nil {
			return openProbe{}, err
		}
	}
	p.series.Reason = strings.Join(why, "; ")
	return p, nil
}

// askedProbe is all that a kind of probe needs to know to be opened.
type askedProbe struct {
	plan   *ProbePlan
	kind   ProbeKind
	peer   *peer         // its server; for the ports, and for the address where the plan names no target
	target string        // the host that it goes to, as named
	addr   netip.Addr    // its address
	length time.Duration // how long it sends at most, without what drains add
}

// asked finds out where a probe goes.
func (r *run) asked(ctx context.Context, pp *ProbePlan, kind ProbeKind) (a askedProbe, err error) {
	a = askedProbe{plan: pp, kind: kind, peer: r.peer(pp.Server, pp.Family), target: pp.Target, length: pp.Length}
	if a.target == "" {
		a.target = a.peer.server.Host
	}
	if a.length == 0 {
		a.length = r.plan.Length() - pp.Start
	}
	switch {
	case pp.URL != "" && kind.takesURL():
		u, _, err := a.object()
		if err != nil {
			return a, err
		}
		there := *pp
		a.target, there.Target = u.Hostname(), u.Hostname()
		a.addr, err = r.target(ctx, &there, a.peer)
		return a, err
	case kind == Page:
		a.target, a.addr = a.peer.server.Host, a.peer.addr // its target is the resolver
		return a, a.peer.err
	case kind == DNS:
		a.addr, err = r.resolver(ctx, pp, a.peer)
		return a, err
	}
	a.addr, err = r.target(ctx, pp, a.peer)
	return a, err
}

// server is the probe's server as its packets go there.
func (a *askedProbe) server() Server { return a.peer.server.leaving(a.plan.Source, a.plan.Interface) }

// options are what all kinds of probe share.
func (a *askedProbe) options() probe.Options {
	o := probe.Options{Interval: a.plan.Interval, Socket: socket(a.server())}
	o.Socket.DSCP, o.Socket.ECN = a.plan.DSCP, a.plan.ECN
	if a.kind == Page {
		o.Deadline = pageDeadline
	}
	return o
}

// series describes the series without its name.
func (a *askedProbe) series() ProbeSeries {
	s := ProbeSeries{Kind: string(a.kind), Target: a.target, Address: a.addr.String(), Interval: a.plan.Interval, DSCP: a.plan.DSCP.String(), Primary: a.plan.Primary,
		Size: a.plan.Size, Voice: a.kind == IRTT && a.plan.isVoice()}
	if a.plan.ECN != host.NotECT {
		s.ECN = a.plan.ECN.String()
	}
	return s
}

// open makes one series ready.
func (r *run) open(ctx context.Context, pp *ProbePlan, kind ProbeKind) (openProbe, error) {
	a, err := r.asked(ctx, pp, kind)
	if err != nil {
		return openProbe{}, err
	}
	return r.openAt(ctx, a)
}

// openAt makes a series ready that goes to an address.
func (r *run) openAt(ctx context.Context, a askedProbe) (p openProbe, err error) {
	p.options, p.series = a.options(), a.series()
	p.transport, err = r.newTransport(ctx, a, p.options)
	return p, err
}

// newTransport opens the transport of a probe, by its kind. A kind needs a case here or a Prober, and a case in ProbeKind.needs where its server must answer before
// anything begins.
func (r *run) newTransport(ctx context.Context, a askedProbe, o probe.Options) (probe.Transport, error) {
	switch a.kind {
	case ICMP:
		return icmp.Dial(ctx, r.h, a.addr, o)
	case IRTT:
		return r.irttProbe(ctx, a, o)
	case TCP:
		if a.peer.silent {
			r.notes = append(r.notes, Finding{Code: "tcp_probes_iperf3", Severity: Note, Text: fmt.Sprintf(
				"%s probes: TCP handshakes with the iperf3 port %d, since port %d does not answer: a stock iperf3 server takes each of them for a client",
				a.plan.Name, a.peer.server.IPerf3Port, a.peer.server.NetperfPort)})
		}
		return tcp.Dial(r.h, netip.AddrPortFrom(a.addr, a.peer.tcpPort()), o)
	case ICMPTimestamp:
		return r.timestampProbe(ctx, a, o)
	case TCPRR, UDPRR:
		return r.exchangeProbe(ctx, a, o)
	case Connect:
		return r.connectProbe(a, o)
	}
	return r.kindProbe(ctx, a, o)
}

// sessionSlack is what an irtt session lasts beyond the plan: what drains add, and the wait for late replies.
const sessionSlack = 2 * time.Minute

func (r *run) irttProbe(ctx context.Context, a askedProbe, o probe.Options) (probe.Transport, error) {
	t, err := irtt.Dial(ctx, r.h, netip.AddrPortFrom(a.addr, a.peer.server.IRTTPort), o,
		irtt.Options{Duration: a.plan.Start + a.length + sessionSlack, Length: a.plan.Size, OpenWait: a.peer.patience()})
	if err != nil {
		return nil, err
	}
	if w := t.Warning(); w != "" {
		r.notes = append(r.notes, Finding{Code: "irtt_restricted", Severity: Note, Text: a.plan.Name + " probes: " + w})
	}
	return t, nil
}

// target returns the address to probe: the peer's own, or the first of another host's, in the family that is asked for, else in the peer's
// family where it has one.
func (r *run) target(ctx context.Context, pp *ProbePlan, p *peer) (netip.Addr, error) {
	if pp.Target == "" || pp.Target == p.server.Host && p.err == nil {
		return p.addr, p.err
	}
	family := host.Family(p.family)
	if family == host.AnyFamily && p.err == nil {
		family = host.FamilyOf(p.addr)
	}
	addrs, err := r.resolve(ctx, pp.Target, family)
	if err != nil && p.family == 0 {
		addrs, err = r.resolve(ctx, pp.Target, host.AnyFamily)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0], nil
}

// answered reports whether any of a few probes is answered. It closes the transport.
func (r *run) answered(ctx context.Context, p openProbe, to *peer) bool {
	const tries = 3
	o := p.options
	o.Interval, o.Deadline = 50*time.Millisecond, to.patience()
	limited, cancel := host.WithTimeout(ctx, r.h, tries*o.Interval+o.Deadline)
	defer cancel()
	got := false
	_, _ = probe.Run(limited, limited, r.h, p.transport, o, r.h.Now(), tries, func(s probe.Sample) { got = got || s.Outcome.HasRTT() })
	return got
}
