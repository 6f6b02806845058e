package bufferbloat

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load/netperf"
)

// peer is a server at the one address that all its flows and probes of a family use.
type peer struct {
	server Server
	family int                // that was asked for; 0 is what works
	needs  need               // how it must answer
	must   bool               // something that is not optional goes to it
	iperf3 bool               // a flow to it speaks iperf3
	silent bool               // where iperf3 is all that it has to speak: its netperf port does not even refuse
	addr   netip.Addr         // valid without err
	info   netperf.ServerInfo // what it said of itself; Setup alone where it was not asked
	note   *Finding           // what its address is worth saying, or nil
	err    error              // why no address can be used
}

// need is what flows and probes want of a server before any of them begins, the strongest of them.
type need int

const (
	needsRoute   need = iota // that packets can be sent to it: probes will tell whether it answers
	needsIPerf3              // that it is an iperf3 server
	needsTCP                 // that its control port accepts connections
	needsNetperf             // that it is a netperf server that takes us
)

// peersOf returns the peers that a plan needs, the plan's own server first.
func peersOf(p *Plan) []*peer {
	peers := []*peer{{server: p.Server, family: p.Server.Family}}
	add := func(name string, family int, needs need, must, iperf3 bool) {
		s, ok := p.ServerOf(name)
		if !ok {
			return // Plan.Check refuses such a plan
		}
		if family == 0 {
			family = s.Family
		}
		for _, known := range peers {
			if known.server.Name == name && known.family == family {
				known.needs, known.must, known.iperf3 = max(known.needs, needs), known.must || must, known.iperf3 || iperf3
				return
			}
		}
		peers = append(peers, &peer{server: s, family: family, needs: needs, must: must, iperf3: iperf3})
	}
	for i := range p.Phases {
		for _, f := range p.Phases[i].Flows {
			add(f.Server, f.Family, f.Protocol.needs(), !f.Optional, f.Protocol.needs() == needsIPerf3)
		}
	}
	for _, pr := range p.Probes {
		if pr.Target == "" || pr.Kind == Auto { // which falls back to the server
			add(pr.Server, pr.Family, pr.Kind.needs(), !pr.Optional, false)
		}
	}
	return peers
}

func (p Protocol) needs() need {
	switch p {
	case "", Netperf:
		return needsNetperf
	case IPerf3, IPerf3UDP:
		return needsIPerf3
	}
	return needsRoute
}

func (k ProbeKind) needs() need {
	switch k {
	case TCPRR, UDPRR, ClosedTCPRR, ClosedUDPRR:
		return needsNetperf
	case TCP:
		return needsTCP
	}
	return needsRoute
}

// reach finds for each server, and for each family of it that the plan asks for, the one address that its flows and probes will use. A server that
// can't be reached does not stop the others; where it is the only one, or none of them can, that is an error.
func (r *run) reach(ctx context.Context) error {
	r.peers = peersOf(&r.plan)
	var free, fixed []*peer
	for _, p := range r.peers {
		if p.family == 0 {
			free = append(free, p)
		} else {
			fixed = append(fixed, p)
		}
	}
	r.reachAll(ctx, free)
	r.reachAll(ctx, fixed)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var errs []error
	said := map[string]bool{}
	for _, p := range r.peers {
		if p.note != nil {
			r.notes = append(r.notes, *p.note)
		}
		if p.err == nil || said[p.err.Error()] {
			continue
		}
		said[p.err.Error()] = true
		errs = append(errs, p.err)
		f := Finding{Code: "server_unreachable", Severity: Weakens, Text: p.err.Error() + "; what was planned with it did not run"}
		if !p.must {
			f.Code, f.Severity = "family_left_out", Note
		}
		r.notes = append(r.notes, f)
	}
	if !slices.ContainsFunc(r.peers, func(p *peer) bool { return p.err == nil }) {
		return joined(errs)
	}
	return nil
}

// joined makes one line of errors.
func joined(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return &unreachableError{brief(texts), errors.Join(errs...)}
}

// mostAtOnce bounds what is opened or asked at the same time, so that a server's queue of connections, and our own, hold it.
const mostAtOnce = 64

// reachAll finds the addresses of peers, several at a time.
func (r *run) reachAll(ctx context.Context, peers []*peer) {
	var group sync.WaitGroup
	slots := make(chan struct{}, mostAtOnce)
	for _, p := range peers {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			p.err = r.reachOne(ctx, p)
		})
	}
	group.Wait()
}

// reachOne finds the first address in the resolver's order that answers as is needed, where a silent or unreachable one holds up the others
// by no more than stagger. An address that was found for the server before, of the family that is wanted, is taken again.
func (r *run) reachOne(ctx context.Context, p *peer) error {
	if p.family != 0 {
		for _, q := range r.peers {
			if q.family == 0 && q.server.Name == p.server.Name && q.err == nil && q.needs >= p.needs && int(host.FamilyOf(q.addr)) == p.family {
				p.addr, p.info, p.silent = q.addr, q.info, q.silent
				return nil
			}
		}
	}
	addrs, err := r.resolve(ctx, p.server.Host, host.Family(p.family))
	if err != nil {
		return err
	}
	addrs = alternate(addrs)
	addrs = addrs[:min(len(addrs), maxAddresses)]
	check := func(ctx context.Context, a netip.Addr) (netperf.ServerInfo, error) { return r.check(ctx, p, a) }
	found, seen := -1, outcome[netperf.ServerInfo]{}
	if p.needs == needsRoute && len(addrs) > 1 { // an address that answers is better than one that may be silent
		found, seen = race(ctx, r.h, addrs, func(ctx context.Context, a netip.Addr) (netperf.ServerInfo, error) { return r.echo(ctx, p, a) })
	}
	if found < 0 && ctx.Err() == nil {
		found, seen = race(ctx, r.h, addrs, check)
	}
	if found < 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return unreachable(p.server.Host, addrs, seen.errors)
	}
	p.addr, p.info = addrs[found], seen.info
	if p.iperf3 && p.needs < needsNetperf {
		p.silent = r.isSilent(ctx, p)
	}
	if first := addrs[0]; found > 0 && host.FamilyOf(first) != host.FamilyOf(p.addr) {
		why := "did not answer in time"
		if err := seen.errors[0]; err != nil {
			why = err.Error()
		}
		p.note = &Finding{Code: "family", Severity: Note, Text: fmt.Sprintf("%v is used throughout: %v %s", host.FamilyOf(p.addr), first, why)}
	}
	return nil
}

// check asks a server at one of its addresses for what is needed.
func (r *run) check(ctx context.Context, p *peer, a netip.Addr) (netperf.ServerInfo, error) {
	switch p.needs {
	case needsNetperf:
		return r.client(p.server, a).Check(ctx)
	case needsTCP, needsIPerf3:
		if k, ok := r.o.Kinds.Flows[IPerf3].(ServerChecker); ok && p.iperf3 {
			site := r.site(p, p.server)
			site.Addr = a
			return k.CheckServer(ctx, site)
		}
		return r.handshake(ctx, p.server, netip.AddrPortFrom(a, p.tcpPort()))
	}
	// A connected socket finds out whether there is a route, and sends nothing.
	conn, err := r.h.DialUDP(ctx, netip.AddrPortFrom(a, p.server.IRTTPort), socket(p.server))
	if err != nil {
		return netperf.ServerInfo{}, err
	}
	return netperf.ServerInfo{Addr: netip.AddrPortFrom(a, 0)}, conn.Close()
}

// echo asks whether an address answers ICMP echo.
func (r *run) echo(ctx context.Context, p *peer, a netip.Addr) (netperf.ServerInfo, error) {
	probe, err := r.openAt(ctx, askedProbe{plan: &ProbePlan{}, kind: ICMP, peer: p, target: p.server.Host, addr: a})
	if err != nil {
		return netperf.ServerInfo{}, err
	}
	if !r.answered(ctx, probe, p) {
		return netperf.ServerInfo{}, fmt.Errorf("%v does not answer ICMP echo", a)
	}
	return netperf.ServerInfo{Addr: netip.AddrPortFrom(a, 0)}, nil
}

const handshakeTimeout = 7 * time.Second

// handshake opens a TCP connection and closes it.
func (r *run) handshake(ctx context.Context, s Server, to netip.AddrPort) (netperf.ServerInfo, error) {
	ctx, cancel := host.WithTimeout(ctx, r.h, handshakeTimeout)
	defer cancel()
	began := r.h.Now()
	conn, err := r.h.DialTCP(ctx, to, socket(s))
	if err != nil {
		return netperf.ServerInfo{}, fmt.Errorf("%s can't be reached: %w; is a server running there, and on this port?", quoteOdd(s.Host), err)
	}
	info := netperf.ServerInfo{Setup: r.h.Now().Sub(began), Addr: to}
	_ = conn.Close()
	return info, nil
}

// peer returns the peer of a server's name and a family, 0 for the server's own.
func (r *run) peer(name string, family int) *peer {
	s, _ := r.plan.ServerOf(name)
	if family == 0 {
		family = s.Family
	}
	for _, p := range r.peers {
		if p.server.Name == name && p.family == family {
			return p
		}
	}
	return &peer{server: s, err: fmt.Errorf("no address of %s is known", quoteOdd(s.Host))} // peersOf has all that a plan names
}

// path describes a peer for the recording.
func (r *run) path(p *peer) Path {
	out := Path{Name: p.server.Name, Host: p.server.Host, Stack: r.h.Name(), Lab: r.o.Lab, Server: p.info.Name, Setup: p.info.Setup}
	if p.err != nil {
		out.Error = p.err.Error()
		return out
	}
	out.Address, out.Family = p.addr.String(), host.FamilyOf(p.addr).String()
	return out
}

// paths are those of all peers but the first.
func (r *run) paths() (out []Path) {
	for _, p := range r.peers[1:] {
		out = append(out, r.path(p))
	}
	return out
}

// isSilent reports whether nothing answers at a peer's netperf port, not even that nobody is there.
func (r *run) isSilent(ctx context.Context, p *peer) bool {
	ctx, cancel := host.WithTimeout(ctx, r.h, p.patience())
	defer cancel()
	conn, err := r.h.DialTCP(ctx, netip.AddrPortFrom(p.addr, p.server.NetperfPort), socket(p.server))
	if err == nil {
		_ = conn.Close()
	}
	return err != nil && !errors.Is(err, syscall.ECONNREFUSED)
}

// tcpPort is the port that TCP probes shake hands with: netperf's, where a refusal is an answer too. iperf3's is the last resort, because a stock
// server takes each of the probes for a client, and may end a test over one that comes while its streams are being opened.
func (p *peer) tcpPort() uint16 {
	if p.silent {
		return p.server.IPerf3Port
	}
	return p.server.NetperfPort
}

// patience is how long a peer may take to answer before the load: three times its TCP handshake, at least a second.
func (p *peer) patience() time.Duration { return min(15*time.Second, max(time.Second, 3*p.info.Setup)) }
