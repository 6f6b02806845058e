package bufferbloat

import (
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load"
)

// tcpSeries are the names of what is kept of a flow's TCP_INFO over time, made once. Those of round trips, window, rates and variance are flent's.
// What counts or adds up (retransmissions, marks, times) does so from the flow's begin.
type tcpSeries struct {
	flow                                                                string
	receives                                                            bool // a receiver's window and retransmissions say nothing of its flow
	rtt, minRTT, rttVar, receiveRTT, window, pacing, delivery           string
	retransmits, marks, unsent, busy, receiveWindowLimited, sendLimited string
}

func newTCPSeries(f *FlowPlan) *tcpSeries {
	name := func(what string) string { return f.Name + "::tcp_" + what }
	return &tcpSeries{flow: f.Name, receives: f.Direction == load.Download, rtt: name("rtt"), minRTT: name("min_rtt"), rttVar: name("rtt_var"), receiveRTT: name("rcv_rtt"), window: name("cwnd"),
		pacing: name("pacing_rate"), delivery: name("delivery_rate"), retransmits: name("retransmits"), marks: name("delivered_ce"),
		unsent: name("notsent"), busy: name("busy"), receiveWindowLimited: name("rwnd_limited"), sendLimited: name("sndbuf_limited")}
}

// keep records what the stack knows.
func (s *tcpSeries) keep(r *recorder, at time.Duration, i *host.TCPInfo) {
	put := func(name, unit string, value float64, known bool) {
		if known {
			r.quantityOf(s.flow, name, unit, at, value)
		}
	}
	ms := func(name string, d time.Duration) { put(name, "ms", d.Seconds()*1e3, d > 0) }
	if s.receives {
		ms(s.receiveRTT, i.ReceiveRTT)
		return
	}
	ms(s.rtt, i.RTT)
	ms(s.minRTT, i.MinRTT)
	ms(s.rttVar, i.RTTVariance)
	put(s.window, "segments", float64(i.CongestionWindow), i.CongestionWindow > 0)
	put(s.pacing, "bit/s", float64(i.PacingRate), i.PacingRate > 0)
	put(s.delivery, "bit/s", float64(i.DeliveryRate), i.DeliveryRate > 0)
	put(s.retransmits, "segments", float64(i.Retransmits), i.HasRetransmits)
	put(s.marks, "segments", float64(i.DeliveredCE), i.HasDeliveredCE)
	put(s.unsent, "bytes", float64(i.Unsent), i.HasUnsent)
	put(s.busy, "s", i.Busy.Seconds(), i.HasBusy)
	put(s.receiveWindowLimited, "s", i.ReceiveWindowLimited.Seconds(), i.HasBusy)
	put(s.sendLimited, "s", i.SendBufferLimited.Seconds(), i.HasBusy)
}
