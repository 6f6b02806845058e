package acceptance

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	probes "bufferbloat/probe"
	"bufferbloat/probe/icmp"
	"bufferbloat/probe/irtt"
	irttserver "bufferbloat/servers/irtt"
)

// The middle link passes 1280 bytes. Probes of the usual sizes and the longest that
// is called safe all come back; what is too long is no silent loss where the router speaks.
func TestProbesFitAPathOf1280Bytes(t *testing.T) {
	t.Parallel()
	n := testnet.New(t)
	n.Up.SetMTU(t, 1280)
	h := host.NewKernel()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		s := irttserver.Server{Options: irttserver.Options{Ready: func([]netip.AddrPort) { close(ready) }}}
		ended <- s.Serve(ctx, inside{h, n.Server, t}, netip.MustParseAddrPort("0.0.0.0:2112"), netip.MustParseAddrPort("[::]:2112"))
	}()
	defer func() { cancel(); <-ended }()
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	o := probes.Options{Interval: 10 * time.Millisecond}
	run := func(open func() (probes.Transport, error)) (map[probes.Outcome]int, probes.Tally) {
		t.Helper()
		var tr probes.Transport
		var err error
		n.Client.Inside(t, func() { tr, err = open() })
		if err != nil {
			t.Fatal(err)
		}
		got := map[probes.Outcome]int{}
		tally, err := probes.Run(t.Context(), t.Context(), h, tr, o, h.Now(), 10, func(x probes.Sample) { got[x.Outcome]++ })
		if err != nil {
			t.Error(err)
		}
		return got, tally
	}
	for _, to := range []netip.Addr{n.Server.IP, n.Server.IP6} {
		for _, length := range []int{0, irtt.MaxSafeLength} {
			got, tally := run(func() (probes.Transport, error) {
				return irtt.Dial(t.Context(), h, netip.AddrPortFrom(to, irtt.DefaultPort), o, irtt.Options{Length: length})
			})
			if got[probes.Received] == 0 || got[probes.Received]+int(tally.SenderLate) != 10 {
				t.Errorf("irtt to %v, %d bytes: %v, %+v; want all answered", to, length, got, tally)
			}
		}
		got, tally := run(func() (probes.Transport, error) { return icmp.Dial(t.Context(), h, to, o) })
		if got[probes.Received] == 0 || got[probes.Received]+int(tally.SenderLate) != 10 {
			t.Errorf("icmp to %v: %v, %+v; want all answered", to, got, tally)
		}
		got, tally = run(func() (probes.Transport, error) {
			return irtt.Dial(t.Context(), h, netip.AddrPortFrom(to, irtt.DefaultPort), o, irtt.Options{Length: 1400})
		})
		// The first one meets the router's word; after that the kernel sends the longer ones in parts.
		if !strings.Contains(tally.FirstError, "message too long") || int(tally.Rejected) != got[probes.Lost] || tally.Rejected == 0 {
			t.Errorf("irtt to %v, 1400 bytes: %v, %+v; want it said that they are too long", to, got, tally)
		}
	}
}
