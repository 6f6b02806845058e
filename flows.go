package bufferbloat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/load"
)

// tcpTeller is a loader over one TCP connection.
type tcpTeller interface {
	// TCPInfo returns the state of the connection now, or false where it does not stand or the stack does not tell. It is safe to call at any time.
	TCPInfo() (host.TCPInfo, bool)
}

// The counters of flows are read each step; many flows are read less often, to keep the reading itself small, and TCP_INFO is kept of the first ones
// only.
const (
	step     = 100 * time.Millisecond
	slowStep = time.Second
	manyFlow = 64
)

// openFlow is a flow that is ready to begin, or why it is not.
type openFlow struct {
	plan     *FlowPlan
	peer     *peer
	loader   Loader // nil with err
	err      error
	took     time.Duration // to agree on it with the server
	due      time.Time     // when it is to begin
	recorded Flow          // as it stands in the recording, without its points
	tellTCP  func() (host.TCPInfo, bool)
	tcp      *tcpSeries // nil where it is not kept
	ecn      bool       // its ends have agreed on ECN
}

// close gives up a flow that will not be run.
func (f *openFlow) close() {
	if c, ok := f.loader.(interface{ Close() }); ok && f.err == nil {
		c.Close()
	}
}

// load runs the flows of one phase, each at its time, and returns when all of them have ended.
func (r *run) load(ctx context.Context, ph PhasePlan) {
	flows := r.begin(ph, r.prepared(ctx, ph))
	if len(flows) == 0 {
		return
	}
	running, finished := context.WithCancel(ctx)
	defer finished()
	var over atomic.Int64
	oneOver := func() {
		if over.Add(1) == int64(len(flows)) {
			finished()
		}
	}
	began := r.h.Now()
	waiting := newReserve(&ph, flows, r.rec.lowestRTT())
	var group sync.WaitGroup
	start := func(f *openFlow) {
		group.Go(func() { defer oneOver(); r.runFlow(ctx, f) })
	}
	for i := range flows {
		if f := &flows[i]; f.plan.Above == 0 {
			f.due = began.Add(f.plan.Start)
			start(f)
		}
	}
	every := step
	if len(flows) > manyFlow {
		every = slowStep
	}
	for n := 1; r.h.SleepUntil(running, began.Add(time.Duration(n)*every)) == nil; n++ {
		r.sampleFlows(flows)
		at := r.h.Now().Sub(began)
		full := func(rate bitrate.Bitrate) bool { return r.fills(rate, r.offset(began)+at/2) }
		for _, f := range waiting.due(at, over.Load() > 0 || len(flows) < len(ph.Flows), full) {
			r.beginLate(f, at)
			start(f)
		}
		for range waiting.giveUp(at) {
			oneOver()
		}
		n = max(n, int(r.h.Now().Sub(began)/every)) // readings that were missed are not made up for
	}
	group.Wait()
	r.sayHeld(waiting, ph.Name, r.h.Now().Sub(began))
	waiting.giveUp(ph.Length)
	r.sayECN(ph, flows)
}

// sayECN says how many flows had queues mark their packets instead of dropping them: this host's setting and the server's decide it, and no plan.
func (r *run) sayECN(ph PhasePlan, flows []openFlow) {
	agreed, asked := 0, 0
	for i := range flows {
		if flows[i].tcp != nil {
			asked++
		}
		if flows[i].ecn {
			agreed++
		}
	}
	if agreed > 0 {
		r.find(Finding{"ecn_agreed", Note, ph.Name, fmt.Sprintf(
			"%s: %d of %d streams agreed on ECN with the server, by the settings of both (net.ipv4.tcp_ecn): a queue may mark their packets where it would drop others'",
			ph.Name, agreed, asked)})
	}
}

// prepared returns the flows of a phase, which were made ready before it or are now.
func (r *run) prepared(ctx context.Context, ph PhasePlan) []openFlow {
	if flows := r.ready; flows != nil {
		r.ready = nil
		return flows
	}
	return r.openFlows(ctx, ph, 0)
}

// closeReady gives up flows that were made ready for a phase that does not come.
func (r *run) closeReady() {
	for i := range r.ready {
		r.ready[i].close()
	}
	r.ready = nil
}

// begin records the flows of a phase, and returns those that can run.
func (r *run) begin(ph PhasePlan, flows []openFlow) (good []openFlow) {
	for i := range flows {
		f := &flows[i]
		if f.plan.Optional && f.peer.err != nil {
			continue // a finding says so
		}
		f.recorded = Flow{Name: f.plan.Name, Phase: ph.Name, Direction: f.plan.Direction, Group: f.plan.Group, Started: r.now()}
		if f.peer.err == nil {
			f.recorded.Address = f.peer.addr.String()
		}
		if f.plan.Above == 0 || f.err != nil {
			r.rec.put(&entry{Flow: &f.recorded})
		}
		if f.err != nil {
			r.notBegun(f, f.err)
			continue
		}
		good = append(good, *f)
	}
	r.saySlow(ph, flows)
	return good
}

// runFlow waits for the flow's time and runs it.
func (r *run) runFlow(ctx context.Context, f *openFlow) {
	if err := r.h.SleepUntil(ctx, f.due); err != nil {
		f.close()
		r.notBegun(f, err)
		return
	}
	r.follow.flow(f.recorded)
	res, err := f.loader.Run(ctx)
	f.recorded.Result = r.flowResult(f.due, &res)
	r.keepDatagrams(f, &res)
	if err != nil {
		f.recorded.Error = err.Error()
	}
	r.endFlow(f)
	r.follow.flowOver(f.recorded)
}

// notBegun records why a flow does not come to run.
func (r *run) notBegun(f *openFlow, err error) {
	f.recorded.Error = err.Error()
	r.endFlow(f)
	r.follow.flow(f.recorded)
}

// sampleFlows reads the counters of flows.
func (r *run) sampleFlows(flows []openFlow) {
	for i := range flows {
		f := &flows[i]
		if p, ok := r.delivered(f.loader); ok && p.Bytes > 0 {
			r.rec.point(f.plan.Name, p)
			r.follow.point(f.plan.Name, f.plan.Direction, p)
		}
		if f.tcp == nil {
			continue
		}
		if info, ok := f.tellTCP(); ok {
			f.ecn = f.ecn || info.ECN
			f.tcp.keep(r.rec, r.now(), &info)
		}
	}
}

// delivered reads a flow's counter. The stamp is from behind the reading, so that nothing counts before it has come; a reading in which this program had to
// wait for a CPU is made again, since it may be from any time of it.
func (r *run) delivered(l Loader) (p Point, ok bool) {
	const quick, tries = time.Millisecond, 3
	for range tries {
		began := r.now()
		p.Bytes, ok = l.Delivered()
		if p.At = r.now(); p.At-began <= quick {
			break
		}
	}
	return p, ok
}

// openFlows agrees with the servers on all flows of a phase, which will begin later by up to ahead.
func (r *run) openFlows(ctx context.Context, ph PhasePlan, ahead time.Duration) []openFlow {
	flows := make([]openFlow, len(ph.Flows))
	loaders := r.newLoaders(ph, ahead)
	var group sync.WaitGroup
	slots := make(chan struct{}, mostAtOnce)
	for i := range ph.Flows {
		fp, f := &ph.Flows[i], &flows[i]
		f.plan, f.peer = fp, r.peer(fp.Server, fp.Family)
		if f.loader, f.err = loaders[i].Loader, loaders[i].Err; f.err != nil {
			continue
		}
		if t, ok := f.loader.(tcpTeller); ok && i < manyFlow {
			f.tellTCP, f.tcp = t.TCPInfo, newTCPSeries(fp)
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			began := r.h.Now()
			f.err = f.loader.Open(ctx)
			f.took = r.h.Now().Sub(began)
		})
	}
	group.Wait()
	return flows
}

// server is the flow's server as its packets go there.
func (f *FlowPlan) server(p *peer) Server { return p.server.leaving(f.Source, f.Interface) }

// lasts returns how long a flow runs in a phase of that length.
func (f *FlowPlan) lasts(phase time.Duration) time.Duration {
	return cmp.Or(f.Length, max(0, phase-f.Start))
}

// openTime is how long the opening of so many flows may take: each a control connection and an answer, some at once.
func openTime(flows int) time.Duration {
	const one = 22 * time.Second
	return one * time.Duration(min(4, 1+(flows-1)/mostAtOnce))
}

// slowAnswer is the time to agree on a flow from which the server is called slow, unless its distance alone takes that long.
const slowAnswer = 3 * time.Second

// saySlow says where servers took long to agree on flows. A packet that is lost holds up one flow of many, and a busy server all of them.
func (r *run) saySlow(ph PhasePlan, flows []openFlow) {
	all, slow, longest := map[*peer]int{}, map[*peer]int{}, map[*peer]time.Duration{}
	var order []*peer
	for i := range flows {
		f := &flows[i]
		all[f.peer]++
		if f.took <= max(slowAnswer, 10*f.peer.info.Setup) {
			continue
		}
		if slow[f.peer]++; slow[f.peer] == 1 {
			order = append(order, f.peer)
		}
		longest[f.peer] = max(longest[f.peer], f.took)
	}
	for _, p := range order {
		severity, why := Weakens, "it is busy, or its control port is held up"
		if 2*slow[p] < all[p] {
			severity, why = Note, "packets were lost on the way, or it was busy for a moment"
		}
		r.find(Finding{"server_slow", severity, ph.Name, fmt.Sprintf("%s took up to %v to agree on %d of %d streams: %s",
			quoteOdd(p.server.Host), longest[p].Round(time.Millisecond), slow[p], all[p], why)})
	}
}

// endFlow records what a flow did.
func (r *run) endFlow(f *openFlow) {
	r.rec.put(&entry{FlowEnd: &flowEnd{Flow: f.recorded.Name, Result: f.recorded.Result, Error: f.recorded.Error}})
}

// flowResult puts a result on the run's time base.
func (r *run) flowResult(due time.Time, res *load.Result) FlowResult {
	out := FlowResult{
		Due:   r.offset(due),
		Bytes: res.Bytes, CountedBy: res.CountedBy, Flowed: !res.First.IsZero(),
		Connected: r.offset(res.Connected), First: r.offset(res.First), Last: r.offset(res.Last), Stopped: r.offset(res.Stopped),
		Retransmits: res.Retransmits, HasRetransmits: res.HasRetransmits, CongestionControl: res.CongestionControl,
		ServerBytes: res.ServerBytes, HasServerBytes: res.HasServerBytes, ServerCPU: res.ServerCPU, HasServerCPU: res.HasServerCPU,
		ServerOwnCPU: res.ServerOwnCPU, HasServerOwnCPU: res.HasServerOwnCPU, Datagrams: res.Datagrams, TLS: res.TLS,
		Warning: res.Warning,
	}
	if res.HasRemoteDS {
		out.RemoteDSCP = dscp.FromByte(res.RemoteDS).String()
	}
	return out
}

// checkSockets finds out, before anything is sent, whether this host has the algorithms, the addresses and the devices that its flows are to use. A socket
// that is never connected tells as well as one that is, whatever the stack.
func (r *run) checkSockets(ctx context.Context) error {
	checked := map[host.Options]bool{{}: true}
	var errs []error
	for i := range r.plan.Phases {
		for _, f := range r.plan.Phases[i].Flows {
			o := host.Options{Source: f.Source, Interface: f.Interface}
			if f.Direction == load.Upload {
				o.CongestionControl = f.CongestionControl
			}
			if checked[o] {
				continue
			}
			checked[o] = true
			at := netip.IPv4Unspecified()
			if o.Source.IsValid() {
				at = o.Source
			}
			l, err := r.h.ListenTCP(ctx, netip.AddrPortFrom(at, 0), o)
			if err == nil {
				_ = l.Close()
				continue
			}
			if inner := errors.Unwrap(err); inner != nil && !o.Source.IsValid() {
				err = inner // without the address, which says nothing here
			}
			errs = append(errs, fmt.Errorf("flow %q can't run: %w", f.Name, err))
		}
	}
	return errors.Join(errs...)
}
