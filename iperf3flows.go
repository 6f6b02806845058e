package bufferbloat

import (
	"context"
	"crypto/rsa"
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
	"bufferbloat/load/iperf3"
	"bufferbloat/load/netperf"
	"bufferbloat/watch"
)

// IPerf3Login is who the client is to an iperf3 server that asks. The password is RunOptions.Passphrase.
type IPerf3Login struct {
	User  string
	Key   *rsa.PublicKey // the server's
	PKCS1 bool           // encrypt as iperf3 before 3.17 wants it
}

// iperf3Client returns an iperf3 client for a server at a.
func (r *run) iperf3Client(s Server, a netip.Addr) *iperf3.Client {
	c := &iperf3.Client{Host: r.h, Server: quoteOdd(s.Host), Addr: netip.AddrPortFrom(a, s.IPerf3Port), Socket: socket(s)}
	if r.o.NoCPU == "" {
		c.CPU = watch.Own
	}
	if l := r.o.IPerf3Login; l != nil {
		c.Login = &iperf3.Login{User: l.User, Password: r.o.Passphrase, Key: l.Key, Now: r.h.Now}
		if l.PKCS1 {
			c.Login.Padding = wire.PKCS1
		}
	}
	return c
}

// checkIPerf3 asks whether an iperf3 server is at a.
func (r *run) checkIPerf3(ctx context.Context, s Server, a netip.Addr) (netperf.ServerInfo, error) {
	info, err := r.iperf3Client(s, a).Check(ctx)
	return netperf.ServerInfo{Name: "iperf3", Setup: info.Setup, Answer: info.Answer, Addr: info.Addr}, err
}

// iperf3Kind is what flows must have in common to be of one test: the protocol says it once for all of them.
type iperf3Kind struct {
	peer          *peer
	protocol      Protocol
	dscp          dscp.CodePoint
	cc            string
	rate          bitrate.Bitrate
	bytes         uint64
	size          int
	start, length time.Duration
}

// iperf3Tests returns the loaders of a phase's iperf3 flows, by the flow's name. Flows of one kind share a test, which has one control connection;
// both directions share one where they are of one kind, and as many. A stock server runs one test at a time, so that all others of a phase find it busy.
func (r *run) iperf3Tests(ph PhasePlan) map[string]loader {
	type group struct{ down, up []string }
	groups := map[iperf3Kind]*group{}
	var order []iperf3Kind
	for i := range ph.Flows {
		f := &ph.Flows[i]
		if f.Protocol != IPerf3 && f.Protocol != IPerf3UDP {
			continue
		}
		k := iperf3Kind{r.peer(f.Server, f.Family), f.Protocol, f.DSCP, f.CongestionControl, f.Rate, f.Bytes, f.Size, f.Start, f.lasts(ph.Length)}
		if k.peer.err != nil {
			continue
		}
		g := groups[k]
		if g == nil {
			g = new(group)
			groups[k] = g
			order = append(order, k)
		}
		if f.Direction == load.Download {
			g.down = append(g.down, f.Name)
		} else {
			g.up = append(g.up, f.Name)
		}
	}
	loaders := map[string]loader{}
	for _, k := range order {
		for down, up := groups[k].down, groups[k].up; len(down)+len(up) > 0; {
			var d, u []string
			switch n := min(len(down), len(up)); {
			case n > 0 && len(down) == len(up):
				n = min(n, iperf3.MaxStreams)
				d, down, u, up = down[:n], down[n:], up[:n], up[n:]
			case len(down) > 0:
				n = min(len(down), iperf3.MaxStreams)
				d, down = down[:n], down[n:]
			default:
				n = min(len(up), iperf3.MaxStreams)
				u, up = up[:n], up[n:]
			}
			r.iperf3Test(k, d, u, loaders)
		}
	}
	return loaders
}

// iperf3Test makes one test of so many flows of a kind.
func (r *run) iperf3Test(k iperf3Kind, down, up []string, loaders map[string]loader) {
	test := r.iperf3Client(k.peer.server, k.peer.addr).NewTest(iperf3.TestOptions{UDP: k.protocol == IPerf3UDP, Downloads: len(down), Uploads: len(up),
		Length: k.length, Bytes: k.bytes * uint64(max(len(down), len(up))), Rate: k.rate, Size: k.size, DSCP: k.dscp, CongestionControl: k.cc})
	for i, f := range test.Flows(load.Download) {
		loaders[down[i]] = f
	}
	for i, f := range test.Flows(load.Upload) {
		loaders[up[i]] = f
	}
}

// keepDatagrams records how a UDP flow's datagrams came over time.
func (r *run) keepDatagrams(f *openFlow, res *load.Result) {
	d := res.Datagrams
	if d == nil {
		return
	}
	name := func(what string) string { return f.plan.Name + "::" + what }
	begin := r.offset(res.First)
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

// Speak gives all flows of the plan another protocol.
func (p *Plan) Speak(protocol Protocol) {
	if protocol == Netperf {
		protocol = "" // as plans have it that say nothing
	}
	for i := range p.Phases {
		for j := range p.Phases[i].Flows {
			p.Phases[i].Flows[j].Protocol = protocol
		}
	}
}
