package bufferbloat

import (
	"fmt"
	"time"

	"bufferbloat/load"
	"bufferbloat/load/netperf"
)

// flowSpec is all that a loader needs to know of its flow.
type flowSpec struct {
	plan   *FlowPlan
	peer   *peer             // where it goes; its address is known
	length time.Duration     // from Run on; then it begins to end
	wait   time.Duration     // the longest time between Open and Run
	iperf3 map[string]loader // of the phase's iperf3 flows, by their names
	many   bool              // it is one of so many that each must take little memory
}

// smallBuffer is what each of many flows reads at once.
const smallBuffer = 16 << 10

// newLoader returns the loader of a flow, by its protocol. A protocol needs a case here, in Plan.beyond and in Protocol.needs.
func (r *run) newLoader(f flowSpec) (loader, error) {
	switch f.plan.Protocol {
	case "", Netperf:
		return r.netperfFlow(f), nil
	case IPerf3, IPerf3UDP:
		return f.iperf3[f.plan.Name], nil
	case HTTP, HTTP2:
		return r.httpFlow(f)
	}
	return nil, fmt.Errorf("flow %q: protocol %s can't be carried out", f.plan.Name, f.plan.Protocol)
}

func (r *run) netperfFlow(f flowSpec) loader {
	o := netperf.FlowOptions{Direction: f.plan.Direction, Length: f.length, Wait: f.wait, DSCP: f.plan.DSCP, ServerDSCP: f.plan.DSCP,
		DataPort: f.peer.server.DataPort, Bytes: f.plan.Bytes, Rate: f.plan.Rate, Size: f.plan.Size, ServerCPU: true, Server: f.peer.info}
	if f.plan.Direction == load.Download {
		o.ServerCongestionControl = f.plan.CongestionControl
	} else {
		o.CongestionControl = f.plan.CongestionControl
	}
	if f.many {
		o.Buffer = smallBuffer
	}
	return r.client(f.peer.server, f.peer.addr).NewFlow(o)
}
