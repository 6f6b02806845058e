package bufferbloat

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
)

// loader is what a run asks of a flow, whatever its protocol.
type loader interface {
	// Open agrees on the flow with the server, so that Run can start it without a further exchange.
	Open(ctx context.Context) error
	// Run carries data until the flow's time is up, and returns what arrived; beside an error, what arrived until then.
	Run(ctx context.Context) (load.Result, error)
	// Delivered returns the payload that has reached the receiver so far, or false while or where that is not known. It is safe to call
	// at any time.
	Delivered() (uint64, bool)
}

// The counters of flows are read each step; many flows are read less often, to keep the reading itself small.
const (
	step     = 100 * time.Millisecond
	slowStep = time.Second
	manyFlow = 64
)

// load runs the flows of one phase, all at once, and returns when all of them have ended.
func (r *run) load(ctx context.Context, ph PhasePlan) {
	flows := r.openFlows(ctx, ph)
	if len(flows) == 0 {
		return
	}
	running, finished := context.WithCancel(ctx)
	defer finished()
	var left atomic.Int64
	left.Store(int64(len(flows)))
	var group sync.WaitGroup
	for _, f := range flows {
		group.Go(func() {
			res, err := f.loader.Run(ctx)
			r.endFlow(f.name, res, err)
			if left.Add(-1) == 0 {
				finished()
			}
		})
	}
	every := step
	if len(flows) > manyFlow {
		every = slowStep
	}
	began := r.h.Now()
	for n := 1; r.h.SleepUntil(running, began.Add(time.Duration(n)*every)) == nil; n++ {
		for _, f := range flows {
			if bytes, ok := f.loader.Delivered(); ok && bytes > 0 {
				r.rec.point(f.name, Point{r.now(), bytes})
			}
		}
	}
	group.Wait()
}

type openFlow struct {
	name   string
	loader loader
}

// openFlows agrees with the server on all flows of a phase. Those that fail are recorded with their error and left out.
func (r *run) openFlows(ctx context.Context, ph PhasePlan) []openFlow {
	open := make([]openFlow, len(ph.Flows))
	errs := make([]error, len(ph.Flows))
	client := r.client(r.server)
	var group sync.WaitGroup
	for i, fp := range ph.Flows {
		r.rec.put(&entry{Flow: &Flow{Name: fp.Name, Phase: ph.Name, Direction: fp.Direction, Started: r.now()}})
		open[i] = openFlow{fp.Name, client.NewFlow(netperf.FlowOptions{Direction: fp.Direction, Length: ph.Length, DSCP: fp.DSCP,
			ServerDSCP: fp.DSCP, DataPort: r.plan.Server.DataPort, Server: r.info})}
		group.Go(func() { errs[i] = open[i].loader.Open(ctx) })
	}
	group.Wait()
	var good []openFlow
	for i, f := range open {
		if errs[i] != nil {
			r.endFlow(f.name, load.Result{}, errs[i])
			continue
		}
		good = append(good, f)
	}
	return good
}

// endFlow records what a flow did.
func (r *run) endFlow(name string, res load.Result, err error) {
	e := &flowEnd{Flow: name, Result: FlowResult{
		Bytes: res.Bytes, CountedBy: res.CountedBy, Flowed: !res.First.IsZero(),
		Connected: r.offset(res.Connected), First: r.offset(res.First), Last: r.offset(res.Last), Stopped: r.offset(res.Stopped),
		Retransmits: res.Retransmits, HasRetransmits: res.HasRetransmits, CongestionControl: res.CongestionControl,
		ServerBytes: res.ServerBytes, HasServerBytes: res.HasServerBytes, ServerCPU: res.ServerCPU, HasServerCPU: res.HasServerCPU,
		Warning: res.Warning,
	}}
	if res.HasRemoteDS {
		e.Result.RemoteDSCP = dscp.FromByte(res.RemoteDS).String()
	}
	if err != nil {
		e.Error = err.Error()
	}
	r.rec.put(&entry{FlowEnd: e})
}
