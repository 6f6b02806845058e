package acceptance

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	probes "bufferbloat/probe"
	"bufferbloat/probe/icmp"
	"bufferbloat/probe/irtt"
	irttserver "bufferbloat/servers/irtt"
)

// The link goes down for 5 s and comes back: every probe has one outcome, those of the gap are lost or unsent, and those behind it come back.
func TestProbesSurviveALinkThatIsDownForFiveSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 8 s")
	}
	t.Parallel()
	const interval, before, down, after = 10 * time.Millisecond, time.Second, 5 * time.Second, 1500 * time.Millisecond
	n := testnet.New(t)
	h := host.NewKernel()
	at := netip.AddrPortFrom(n.Server.IP, irtt.DefaultPort)
	serving, stop := context.WithCancel(t.Context())
	ready, served := make(chan struct{}), make(chan error, 1)
	s := irttserver.Server{Options: irttserver.Options{Ready: func([]netip.AddrPort) { close(ready) }}}
	go func() { served <- s.Serve(serving, inside{h, n.Server, t}, at) }()
	select {
	case <-ready:
	case err := <-served:
		t.Fatalf("the server: %v", err)
	}
	defer func() { stop(); <-served }()
	var echo *icmp.Transport
	var udp *irtt.Transport
	var err, err1 error
	o := probes.Options{Interval: interval}
	n.Client.Inside(t, func() {
		echo, err = icmp.Dial(t.Context(), h, n.Server.IP, o)
		udp, err1 = irtt.Dial(t.Context(), h, at, o, irtt.Options{})
	})
	if err != nil || err1 != nil {
		t.Fatal(err, err1)
	}
	start := h.Now()
	count := uint64((before + down + after) / interval)
	outcomes := map[string][]probes.Sample{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for name, tr := range map[string]probes.Transport{"icmp": echo, "irtt": udp} {
		group.Go(func() {
			all := make([]probes.Sample, count)
			_, err := probes.Run(t.Context(), t.Context(), h, tr, o, start, count, func(s probes.Sample) {
				if all[s.Seq].Outcome != 0 {
					t.Errorf("%s: probe %d is %v and %v", name, s.Seq, all[s.Seq].Outcome, s.Outcome)
				}
				all[s.Seq] = s
			})
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes[name] = all
		})
	}
	_ = h.SleepUntil(t.Context(), start.Add(before))
	n.ClientDevice.Unplug(t)
	pulled := time.Since(start)
	_ = h.SleepUntil(t.Context(), start.Add(before+down))
	plugging := time.Since(start)
	n.ClientDevice.Plug(t)
	group.Wait()
	for name, all := range outcomes {
		received, back := 0, 0
		for i, s := range all {
			switch {
			case s.Outcome == 0:
				t.Errorf("%s: probe %d has no outcome", name, i)
			case s.Outcome.HasRTT() && s.Sent > pulled+s.RTT && s.Sent+s.RTT < plugging:
				t.Errorf("%s: probe %d, sent at %v, came back in %v through a link that was down", name, i, s.Sent, s.RTT)
			case s.Outcome.HasRTT() && s.Sent > plugging:
				back++
			case s.Outcome.HasRTT():
				received++
			}
		}
		if received < 10 || back < 10 {
			t.Errorf("%s: %d came back before the link went down and %d after it came up, want most of %d and %d", name, received, back, before/interval, after/interval)
		}
	}
}

// inside is a host whose sockets are in a namespace.
type inside struct {
	host.Host
	space *testnet.Space
	t     *testing.T
}

func (i inside) ListenUDP(ctx context.Context, at netip.AddrPort, o host.Options) (c host.PacketConn, err error) {
	i.space.Inside(i.t, func() { c, err = i.Host.ListenUDP(ctx, at, o) })
	return c, err
}
