package acceptance

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	probes "bufferbloat/probe"
	"bufferbloat/probe/icmp"
	"bufferbloat/probe/irtt"
	"bufferbloat/probe/tcp"
	"bufferbloat/probe/timestamp"
	irttserver "bufferbloat/servers/irtt"
)

// DialUDP and DialTCP are those of the namespace as well, from any goroutine: that opens an irtt session anew, and makes the attempts of handshakes.
func (i inside) DialUDP(ctx context.Context, to netip.AddrPort, o host.Options) (c host.PacketConn, err error) {
	i.space.Inside(i.t, func() { c, err = i.Host.DialUDP(ctx, to, o) })
	return c, err
}

func (i inside) DialTCP(ctx context.Context, to netip.AddrPort, o host.Options) (c net.Conn, err error) {
	i.space.Inside(i.t, func() { c, err = i.Host.DialTCP(ctx, to, o) })
	return c, err
}

// The client's address is taken away, and another comes a moment later: each kind of probe, by ICMP on both kinds of socket, goes on from it, and every probe
// has one outcome.
func TestProbesGoOnWhereTheAddressChanges(t *testing.T) {
	t.Parallel()
	for _, family := range []host.Family{host.IPv4, host.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			t.Parallel()
			goOnFromAnotherAddress(t, family)
		})
	}
}

func goOnFromAnotherAddress(t *testing.T, family host.Family) {
	n := testnet.New(t)
	n.Client.Sysctl(t, "net/ipv4/ping_group_range", "0 2147483647")
	server, client, bits, via := n.Server.IP, n.Client.IP, "/24", n.Router.IP
	if family == host.IPv6 {
		server, client, bits, via = n.Server.IP6, n.Client.IP6, "/64", n.Router.IP6
	}
	k := host.NewKernel()
	at2112 := netip.AddrPortFrom(server, irtt.DefaultPort)
	serving, stopServer := context.WithCancel(t.Context())
	ready, served := make(chan struct{}), make(chan error, 1)
	go func() {
		s := irttserver.Server{Options: irttserver.Options{Ready: func([]netip.AddrPort) { close(ready) }}}
		served <- s.Serve(serving, inside{k, n.Server, t}, at2112)
	}()
	select {
	case <-ready:
	case err := <-served:
		t.Fatalf("the server: %v", err)
	}
	defer func() { stopServer(); <-served }()
	o := probes.Options{Interval: 50 * time.Millisecond}
	h := inside{k, n.Client, t}
	series := map[string]probes.Transport{}
	open := func(name string, tr probes.Transport, err error) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		series[name] = tr
	}
	n.Client.Inside(t, func() {
		ping, err := icmp.Dial(t.Context(), &host.Kernel{Echo: host.PingEchoSocket}, server, o)
		open("ping socket", ping, err)
		raw, err := icmp.Dial(t.Context(), &host.Kernel{Echo: host.RawEchoSocket}, server, o)
		open("raw socket", raw, err)
		if family == host.IPv4 {
			stamps, err := timestamp.Dial(t.Context(), k, server, o)
			open("timestamps", stamps, err)
		}
	})
	udp, err := irtt.Dial(t.Context(), h, at2112, o, irtt.Options{OpenWait: 10 * time.Second})
	open("irtt", udp, err)
	shakes, err := tcp.Dial(h, netip.AddrPortFrom(server, 9), o) // a refusal is an answer
	open("TCP", shakes, err)
	if t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sending, stop := context.WithCancel(ctx)
	defer stop()
	var changed, back sync.WaitGroup // ten replies each, before and after the change
	var moved sync.Mutex             // guards the two below
	var at time.Duration             // when the new address was there; 0 before
	start := k.Now()
	var group sync.WaitGroup
	for name, tr := range series {
		changed.Add(1)
		back.Add(1)
		group.Go(func() {
			outcomes, before, after := map[uint64]probes.Outcome{}, 0, 0
			_, err := probes.Run(ctx, sending, k, tr, o, start, 0, func(s probes.Sample) {
				if outcomes[s.Seq] != 0 {
					t.Errorf("%s: probe %d is %v and %v", name, s.Seq, outcomes[s.Seq], s.Outcome)
				}
				outcomes[s.Seq] = s.Outcome
				moved.Lock()
				defer moved.Unlock()
				switch {
				case s.Outcome != probes.Received:
				case at == 0:
					if before++; before == 10 {
						changed.Done()
					}
				case s.Sent > at:
					if after++; after == 10 {
						back.Done()
					}
				}
			})
			for seq := range uint64(len(outcomes)) {
				if outcomes[seq] == 0 {
					t.Errorf("%s: of %d probes, number %d has no outcome", name, len(outcomes), seq)
				}
			}
			if err != nil || before < 10 || after < 10 {
				t.Errorf("%s: %v, %d replies before the change and %d after it, want 10 and 10 at least", name, err, before, after)
				if before < 10 {
					changed.Done()
				}
				if after < 10 {
					back.Done()
				}
			}
		})
	}
	changed.Wait()
	device := n.ClientDevice.Name
	n.Client.Do(t, "addr", "del", client.String()+bits, "dev", device)
	next := client.Next().Next().Next()
	add := []string{"addr", "add", next.String() + bits, "dev", device}
	if family == host.IPv6 {
		add = append(add, "nodad")
	}
	n.Client.Do(t, add...)
	n.Client.Do(t, "route", "replace", "default", "via", via.String(), "dev", device)
	moved.Lock()
	at = k.Now().Sub(start)
	moved.Unlock()
	back.Wait()
	stop()
	group.Wait()
	if r := udp.Remarks(); len(r) != 1 || r[0].Code != "irtt_reopened" {
		t.Errorf("irtt: remarks %v, want that another session was opened", r)
	}
}
