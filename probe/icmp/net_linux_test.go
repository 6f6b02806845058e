package icmp

import (
	"net/netip"
	"testing"

	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	"bufferbloat/probe"
)

// On a real path: both kinds of socket, answered by the server and refused by the router, in both families.
func TestThroughARouter(t *testing.T) {
	n := testnet.New(t)
	n.Client.Sysctl(t, "net/ipv4/ping_group_range", "0 2147483647")
	// Linux limits the ICMP errors that it sends: by these two, and those of an IPv4 route to 5 for each client, later 1 a second.
	n.Router.Sysctl(t, "net/ipv4/icmp_ratelimit", "0")
	n.Router.Sysctl(t, "net/ipv6/icmp/ratelimit", "0")
	const probes = 2
	refused4, refused6 := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:99::9")
	n.Refuse(t, netip.PrefixFrom(refused4, 32), testnet.Unreachable)
	n.Refuse(t, netip.PrefixFrom(refused6, 128), testnet.Unreachable)
	for _, c := range []struct {
		name   string
		target netip.Addr
		want   probe.Outcome
	}{
		{"IPv4", n.Server.IP, probe.Received},
		{"IPv6", n.Server.IP6, probe.Received},
		{"IPv4 unreachable", refused4, probe.Lost},
		{"IPv6 unreachable", refused6, probe.Lost},
	} {
		for kind, name := range map[host.EchoSocket]string{host.PingEchoSocket: "unprivileged", host.RawEchoSocket: "raw"} {
			t.Run(c.name+" "+name, func(t *testing.T) {
				k := &host.Kernel{Echo: kind}
				var tr *Transport
				n.Client.Inside(t, func() {
					var err error
					if tr, err = Dial(t.Context(), k, c.target, probe.Options{}); err != nil {
						t.Error(err)
					}
				})
				if tr == nil {
					t.FailNow()
				}
				got := map[probe.Outcome]int{}
				start := k.Now()
				tally, err := probe.Run(t.Context(), t.Context(), k, tr, probe.Options{Interval: 20 * ms}, start, probes,
					func(s probe.Sample) { got[s.Outcome]++ })
				if err != nil || got[c.want]+int(tally.SenderLate) != probes || got[c.want] == 0 {
					t.Fatalf("error %v, outcomes %v, tally %+v; want %d %v", err, got, tally, probes, c.want)
				}
				if c.want == probe.Lost && (int(tally.Rejected) != got[probe.Lost] || len(tally.RejectedBy) != 1 || tally.FirstError == "") {
					t.Errorf("tally %+v, want all rejected by the router", tally)
				}
				if tally.Stray+tally.Corrupt+tally.Duplicates != 0 {
					t.Errorf("tally %+v, want nothing stray, corrupt or twice", tally)
				}
			})
		}
	}
}
