package path

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	"bufferbloat/probe"
	"bufferbloat/servers/lab"
)

const ms = time.Millisecond

func TestAPathWithoutRoutersHasNone(t *testing.T) {
	l, err := lab.New(lab.Config{Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return l.Run(ctx) })
	for _, target := range []string{"192.0.2.2", "2001:db8::2", "192.0.2.9"} { // the last is nobody
		hops, err := Discover(ctx, l.Client(), netip.MustParseAddr(target), probe.Options{}, Options{})
		if err != nil || len(hops) != 0 {
			t.Errorf("%s: %v, %v; want no routers", target, hops, err)
		}
	}
	for _, o := range []Options{{Hops: -1}, {Hops: MaxHops + 1}, {Patience: -1}} {
		if _, err := Discover(ctx, l.Client(), netip.MustParseAddr("192.0.2.2"), probe.Options{}, o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
	ended, end := context.WithCancel(ctx)
	end()
	if _, err := Discover(ended, l.Client(), netip.MustParseAddr("192.0.2.2"), probe.Options{}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted search: %v", err)
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// A real path with a router in it: it is found and named.
func TestARouterIsFoundAndProbed(t *testing.T) {
	n := testnet.New(t)
	n.Client.Sysctl(t, "net/ipv4/ping_group_range", "0 2147483647")
	n.Router.Sysctl(t, "net/ipv4/icmp_ratemask", "0")
	n.Router.Sysctl(t, "net/ipv6/icmp/ratelimit", "0")
	for _, c := range []struct{ server, router netip.Addr }{{n.Server.IP, n.Router.IP}, {n.Server.IP6, n.Router.IP6}} {
		for _, kind := range []host.EchoSocket{host.PingEchoSocket, host.RawEchoSocket} {
			k := &host.Kernel{Echo: kind}
			n.Client.Inside(t, func() {
				hops, err := Discover(t.Context(), k, c.server, probe.Options{}, Options{Hops: 3, Patience: 500 * ms})
				if err != nil || len(hops) != 1 || hops[0] != (Hop{TTL: 1, Addr: c.router}) {
					t.Errorf("%v: %v, %v; want the router %v", c.server, hops, err, c.router)
					return
				}
				tr, err := Dial(t.Context(), k, c.server, hops[0], probe.Options{})
				if err != nil {
					t.Error(err)
					return
				}
				received := 0
				tally, err := probe.Run(t.Context(), t.Context(), k, tr, probe.Options{Interval: 20 * ms}, k.Now(), 10, func(s probe.Sample) {
					if s.Outcome == probe.Received && s.RTT > 0 && s.RTT < 5*time.Second {
						received++
					}
				})
				if err != nil || received+int(tally.SenderLate) != 10 || received == 0 || tally.Rejected != 0 {
					t.Errorf("%d received, %+v, %v", received, tally, err)
				}
				if got := tr.Remarks(); got != nil {
					t.Errorf("remarks %+v, want none", got)
				}
				if wrong, err := Dial(t.Context(), k, c.server, Hop{TTL: 1, Addr: netip.MustParseAddr("192.0.2.77")}, probe.Options{}); err != nil {
					t.Error(err)
				} else if _, err := probe.Run(t.Context(), t.Context(), k, wrong, probe.Options{}, k.Now(), 1, func(probe.Sample) {}); err != nil || len(wrong.Remarks()) != 1 {
					t.Errorf("another router answered: remarks %+v, %v; want one", wrong.Remarks(), err)
				}
			})
		}
	}
}

// The router drops echo requests without a word, or this program may not send any: it is found and probed by UDP, and so is nothing else.
func TestARouterThatForwardsNoEchoIsProbedByUDP(t *testing.T) {
	t.Parallel()
	n := testnet.New(t)
	n.Client.Sysctl(t, "net/ipv4/ping_group_range", "0 2147483647")
	n.Router.Sysctl(t, "net/ipv4/icmp_ratemask", "0")
	n.Router.Sysctl(t, "net/ipv6/icmp/ratelimit", "0")
	n.Block(t, testnet.Block{Protocol: "icmp", How: testnet.Blackhole})
	k := host.NewKernel()
	for _, c := range []struct {
		h              host.Host
		server, router netip.Addr
	}{{k, n.Server.IP, n.Router.IP}, {noEcho{k}, n.Server.IP, n.Router.IP}, {noEcho{k}, n.Server.IP6, n.Router.IP6}} {
		n.Client.Inside(t, func() {
			hops, err := Discover(t.Context(), c.h, c.server, probe.Options{}, Options{Hops: 2, Patience: time.Second})
			if err != nil || len(hops) != 1 || hops[0] != (Hop{TTL: 1, Addr: c.router, UDP: true}) {
				t.Errorf("%T, %v: %v, %v; want the router %v by UDP", c.h, c.server, hops, err, c.router)
				return
			}
			tr, err := Dial(t.Context(), c.h, c.server, hops[0], probe.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			received := 0
			tally, err := probe.Run(t.Context(), t.Context(), k, tr, probe.Options{Interval: 20 * ms}, k.Now(), 10, func(s probe.Sample) {
				if s.Outcome == probe.Received && s.RTT > 0 && s.RTT < 5*time.Second {
					received++
				}
			})
			if err != nil || received+int(tally.SenderLate) != 10 || received == 0 || tally.Rejected+tally.Stray != 0 || tr.Remarks() != nil {
				t.Errorf("%T, %v: %d received, %+v, %v, %v", c.h, c.server, received, tally, err, tr.Remarks())
			}
		})
	}
	// Without UDP there is no way to find it, and the error of ICMP is told.
	n.Block(t, testnet.Block{Protocol: "udp", How: testnet.Blackhole})
	n.Client.Inside(t, func() {
		if hops, err := Discover(t.Context(), k, n.Server.IP, probe.Options{}, Options{Hops: 2, Patience: 100 * ms}); err != nil || len(hops) > 0 {
			t.Errorf("%v, %v; want no routers", hops, err)
		}
		if _, err := Discover(t.Context(), noEcho{k}, n.Server.IP, probe.Options{}, Options{Hops: 2, Patience: 100 * ms}); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%v; want that ICMP is not permitted", err)
		}
	})
}

// noEcho is a host where ICMP is not permitted.
type noEcho struct{ host.Host }

func (noEcho) DialEcho(context.Context, netip.Addr, host.Options) (host.EchoConn, error) {
	return nil, os.ErrPermission
}
