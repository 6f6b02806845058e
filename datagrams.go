package bufferbloat

import (
	"fmt"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
)

// keepDatagrams records how a UDP flow's datagrams came over time.
func (r *run) keepDatagrams(f *openFlow, res *load.Result) {
	d := res.Datagrams
	if d == nil {
		return
	}
	name := func(what string) string { return f.plan.Name + "::" + what }
	begin := r.offset(res.First)
	if res.First.IsZero() {
		begin = r.offset(f.due)
	}
	for _, i := range d.Intervals {
		at := begin + i.To
		r.rec.quantityOf(f.plan.Name, name("udp_received"), "datagrams", at, float64(i.Received))
		r.rec.quantityOf(f.plan.Name, name("udp_lost"), "datagrams", at, float64(i.Lost))
		if i.HasOrder {
			r.rec.quantityOf(f.plan.Name, name("udp_reordered"), "datagrams", at, float64(i.Reordered))
			r.rec.quantityOf(f.plan.Name, name("udp_duplicate"), "datagrams", at, float64(i.Duplicate))
		}
		if i.HasDelay {
			r.rec.quantityOf(f.plan.Name, name("udp_delay_change"), "ms", at, i.MostDelay.Seconds()*1e3)
		}
	}
	r.find(Finding{Code: "udp_flow", Severity: Note, Text: f.plan.Name + ", a test of capacity and policers by datagrams that heed no congestion: " +
		datagramsText(d, f.plan.Rate)})
}

// datagramsText says in one line what became of a flow's datagrams.
func datagramsText(d *load.Datagrams, rate bitrate.Bitrate) string {
	text := fmt.Sprintf("%d-byte datagrams at %v", d.Size, rate)
	if d.HasSender {
		text += fmt.Sprintf(", %d sent", d.Sent)
	}
	if left := d.Unsent + d.Skipped; left > 0 {
		text += fmt.Sprintf(", %d more held back by this host", left)
	}
	if !d.HasReceiver {
		return text + "; what arrived is not known"
	}
	text += fmt.Sprintf(", %d received", d.Received)
	if all := d.Received + d.Lost; all > 0 {
		text += fmt.Sprintf(", %d lost (%.3g%%)", d.Lost, 100*float64(d.Lost)/float64(all))
	}
	if d.AfterEnd > 0 {
		text += fmt.Sprintf(", %d not arrived by the end", d.AfterEnd)
	}
	if d.HasOrder {
		text += fmt.Sprintf(", %d out of order, %d twice", d.Reordered, d.Duplicate)
	}
	text += fmt.Sprintf(", RTP jitter %v", d.RTPJitter.Round(time.Microsecond))
	if d.HasDelay {
		text += fmt.Sprintf(", one-way delay up to %v above its least", d.DelayChange.Round(10*time.Microsecond))
	}
	return text
}

// Speak gives all flows of the plan another protocol. Flows of others than netperf wait for nobody's rate.
func (p *Plan) Speak(protocol Protocol) {
	if protocol == Netperf {
		protocol = "" // as plans have it that say nothing
	}
	for i := range p.Phases {
		for j := range p.Phases[i].Flows {
			f := &p.Phases[i].Flows[j]
			if f.Protocol = protocol; protocol != "" {
				f.Above = 0
			}
		}
	}
}
