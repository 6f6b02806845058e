package iperf3

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/servers/iperf3"
	"bufferbloat/servers/lab"
)

// within calls f with a client of our server, both in virtual time at the ends of a link.
func within(t *testing.T, c lab.Config, o iperf3.Options, f func(ctx context.Context, c *Client)) {
	t.Helper()
	c.Virtual = true
	l, err := lab.New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	driving, stop := context.WithCancel(context.Background())
	var driver, servers errgroup.Group
	driver.Go(func() error { return l.Run(driving) })
	ready := make(chan []netip.AddrPort, 1)
	o.Ready = func(at []netip.AddrPort) { ready <- at }
	o.Log = func(line string) { t.Log(line) }
	servers.Go(func() error {
		return (&iperf3.Server{Options: o}).Serve(ctx, l.Server(), netip.MustParseAddrPort("0.0.0.0:5201"))
	})
	<-ready
	addrs, err := l.Client().Resolve(ctx, lab.Name, host.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	f(ctx, &Client{Host: l.Client(), Addr: netip.AddrPortFrom(addrs[0], 5201)})
	cancel()
	if err := servers.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if err := driver.Wait(); err != nil {
		t.Error(err)
	}
}

// payload is what TCP carries at most of a link's rate: 1448 bytes in packets of 1514.
func payload(link bitrate.Bitrate) float64 { return float64(link) * 1448 / 1514 }

func TestGoodputThroughALinkIsItsPayloadRate(t *testing.T) {
	if testing.Short() {
		t.Skip("many emulated runs")
	}
	for _, rate := range []bitrate.Bitrate{512 * bitrate.Kbit, bitrate.Mbit, 20 * bitrate.Mbit, 100 * bitrate.Mbit} {
		for _, o := range []TestOptions{{Downloads: 1}, {Uploads: 1}, {Downloads: 4}, {Uploads: 4}} {
			o.Length = 10 * time.Second
			within(t, lab.Config{Down: rate, Up: rate}, iperf3.Options{}, func(ctx context.Context, c *Client) {
				var bytes uint64
				var first, last time.Time
				test := c.NewTest(o)
				for i, r := range runAll(t, ctx, test) {
					bytes += r.Bytes
					if first.IsZero() || r.First.Before(first) {
						first = r.First
					}
					last = laterOf(last, r.Last)
					if r.Warning != "" {
						t.Logf("flow %d: %+v", i, r.Warning)
					}
				}
				sum := float64(bitrate.Of(bytes, last.Sub(first)))
				if share := sum / payload(rate); share < 0.99 || share > 1.01 {
					t.Errorf("%v, %d down, %d up: %.4f of the payload rate", rate, o.Downloads, o.Uploads, share)
				} else {
					t.Logf("%v, %d down, %d up: %.4f of the payload rate", rate, o.Downloads, o.Uploads, share)
				}
			})
		}
	}
}

var _ = load.Upload
