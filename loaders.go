package bufferbloat

import (
	"fmt"
	"time"

	"bufferbloat/load"
	"bufferbloat/load/netperf"
)

// smallBuffer is what each of many flows reads at once.
const smallBuffer = 16 << 10

// newLoaders returns the loaders of a phase's flows, by their places in the phase. A flow whose server can't be reached has that as its error. They will
// begin later by up to ahead. A protocol needs a FlowKind, and a case in Protocol.needs where its server must answer before anything begins.
func (r *run) newLoaders(ph PhasePlan, ahead time.Duration) []AskedLoader {
	loaders := make([]AskedLoader, len(ph.Flows))
	places := map[Protocol][]int{}
	asked := map[Protocol][]AskedFlow{}
	for i := range ph.Flows {
		f := &ph.Flows[i]
		p := r.peer(f.Server, f.Family)
		if p.err != nil {
			loaders[i].Err = p.err
			continue
		}
		flow := AskedFlow{Plan: f, Site: r.site(p, f.server(p)), Length: f.lasts(ph.Length), Wait: ahead + f.Start + openTime(len(ph.Flows)), Many: len(ph.Flows) > manyFlow}
		if f.Protocol == "" || f.Protocol == Netperf {
			loaders[i].Loader = r.netperfFlow(flow, p)
			continue
		}
		places[f.Protocol] = append(places[f.Protocol], i)
		asked[f.Protocol] = append(asked[f.Protocol], flow)
	}
	for protocol, flows := range asked {
		kind, ok := r.o.Kinds.Flows[protocol]
		if !ok { // Plan.beyond refuses such a plan
			for _, i := range places[protocol] {
				loaders[i].Err = fmt.Errorf("protocol %s can't be carried out", protocol)
			}
			continue
		}
		for n, l := range kind.Loaders(flows) {
			loaders[places[protocol][n]] = l
		}
	}
	return loaders
}

func (r *run) netperfFlow(f AskedFlow, p *peer) Loader {
	o := netperf.FlowOptions{Direction: f.Plan.Direction, Length: f.Length, Wait: f.Wait, DSCP: f.Plan.DSCP, ServerDSCP: f.Plan.DSCP,
		DataPort: p.server.DataPort, Bytes: f.Plan.Bytes, Rate: f.Plan.Rate, Size: f.Plan.Size, ServerCPU: true, Server: p.info}
	if f.Plan.Direction == load.Download {
		o.ServerCongestionControl = f.Plan.CongestionControl
	} else {
		o.CongestionControl = f.Plan.CongestionControl
	}
	if f.Many {
		o.Buffer = smallBuffer
	}
	return r.client(f.Site.Server, p.addr).NewFlow(o)
}
