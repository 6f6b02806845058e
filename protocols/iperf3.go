package protocols

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
	"bufferbloat/load/iperf3"
	"bufferbloat/load/netperf"
	"bufferbloat/watch"
)

// iperf3Flows carries out iperf3's flows, over TCP and UDP.
type iperf3Flows struct{ Options }

// client returns an iperf3 client.
func (k iperf3Flows) client(s bufferbloat.Site) *iperf3.Client {
	c := &iperf3.Client{Host: s.Host, Server: s.Called, Addr: netip.AddrPortFrom(s.Addr, s.Server.IPerf3Port), Socket: s.Socket}
	if s.HasCPU {
		c.CPU = watch.Own
	}
	if l := k.Login; l != nil {
		c.Login = &iperf3.Login{User: l.User, Password: l.Password, Key: l.Key, Now: s.Host.Now}
		if l.PKCS1 {
			c.Login.Padding = wire.PKCS1
		}
	}
	return c
}

// CheckServer implements bufferbloat.ServerChecker.
func (k iperf3Flows) CheckServer(ctx context.Context, s bufferbloat.Site) (netperf.ServerInfo, error) {
	info, err := k.client(s).Check(ctx)
	return netperf.ServerInfo{Name: "iperf3", Setup: info.Setup, Answer: info.Answer, Addr: info.Addr}, err
}

// kind is what flows must have in common to be of one test: the protocol says it once for all of them.
type kind struct {
	server        string
	family        int
	protocol      bufferbloat.Protocol
	dscp          dscp.CodePoint
	cc            string
	rate          bitrate.Bitrate
	bytes         uint64
	size          int
	start, length time.Duration
	socket        host.Options
}

func kindOf(f *bufferbloat.AskedFlow) kind {
	p := f.Plan
	return kind{f.Site.Server.Name, f.Site.Family, p.Protocol, p.DSCP, p.CongestionControl, p.Rate, p.Bytes, p.Size, p.Start, f.Length, f.Site.Socket}
}

// Loaders implements bufferbloat.FlowKind. Flows of one kind share a test, which has one control connection; both directions share one where they are of one
// kind, and as many. A stock server runs one test at a time, so that all others of a phase find it busy.
func (k iperf3Flows) Loaders(flows []bufferbloat.AskedFlow) []bufferbloat.AskedLoader {
	type group struct{ down, up []int } // places in flows
	groups := map[kind]*group{}
	var order []kind
	for i := range flows {
		of := kindOf(&flows[i])
		g := groups[of]
		if g == nil {
			g = new(group)
			groups[of] = g
			order = append(order, of)
		}
		if flows[i].Plan.Direction == load.Download {
			g.down = append(g.down, i)
		} else {
			g.up = append(g.up, i)
		}
	}
	loaders := make([]bufferbloat.AskedLoader, len(flows))
	for _, of := range order {
		for down, up := groups[of].down, groups[of].up; len(down)+len(up) > 0; {
			var d, u []int
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
			k.test(of, flows, d, u, loaders)
		}
	}
	return loaders
}

// test makes one test of the flows of a kind at those places.
func (k iperf3Flows) test(of kind, flows []bufferbloat.AskedFlow, down, up []int, loaders []bufferbloat.AskedLoader) {
	first := append(slices.Clone(down), up...)[0]
	test := k.client(flows[first].Site).NewTest(iperf3.TestOptions{UDP: of.protocol == bufferbloat.IPerf3UDP, Downloads: len(down), Uploads: len(up),
		Length: of.length, Bytes: of.bytes * uint64(max(len(down), len(up))), Rate: of.rate, Size: of.size, DSCP: of.dscp, CongestionControl: of.cc,
		Wait: flows[first].Wait})
	for i, f := range test.Flows(load.Download) {
		loaders[down[i]].Loader = f
	}
	for i, f := range test.Flows(load.Upload) {
		loaders[up[i]].Loader = f
	}
}
