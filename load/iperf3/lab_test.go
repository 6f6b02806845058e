package iperf3

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
	"bufferbloat/servers/iperf3"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/link"
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
		t.Skip("several emulated runs")
	}
	for _, rate := range []bitrate.Bitrate{bitrate.Mbit, 20 * bitrate.Mbit} {
		for _, o := range []TestOptions{{Downloads: 4}, {Uploads: 4}} {
			o.Length = 10 * time.Second
			within(t, lab.Config{Down: rate, Up: rate}, iperf3.Options{}, func(ctx context.Context, c *Client) {
				test := c.NewTest(o)
				results := runAll(t, ctx, test)
				d := test.flows[0].direction
				// The start costs some.
				if share := float64(together(test, results, d)) / payload(rate); share < 0.98 || share > 1.005 {
					t.Errorf("%v: %.4f of the payload rate %v", rate, share, d)
				}
			})
		}
	}
}

// together is the rate of all flows of a direction, from the first to the last byte of any.
func together(test *Test, results []load.Result, d load.Direction) bitrate.Bitrate {
	var bytes uint64
	var first, last time.Time
	for i, r := range results {
		if test.flows[i].direction != d {
			continue
		}
		bytes += r.Bytes
		if first.IsZero() || r.First.Before(first) {
			first = r.First
		}
		last = laterOf(last, r.Last)
	}
	return bitrate.Of(bytes, last.Sub(first))
}

func TestATestsEndIsInTimeOnASlowPath(t *testing.T) {
	if testing.Short() {
		t.Skip("an emulated run")
	}
	for _, o := range []TestOptions{{Uploads: 4}, {Downloads: 4}} {
		o.Length = 5 * time.Second
		within(t, lab.Config{Down: 512 * bitrate.Kbit, Up: 512 * bitrate.Kbit, Buffer: 2 * time.Second}, iperf3.Options{}, func(ctx context.Context, c *Client) {
			began := c.Host.Now()
			for _, r := range runAll(t, ctx, c.NewTest(o)) {
				if !r.HasServerBytes {
					t.Errorf("no results: %+v", r)
				}
			}
			if d := c.Host.Now().Sub(began); d > 15*time.Second {
				t.Errorf("%+v: it took %v", o, d)
			}
		})
	}
}

func TestATestOfSoManyBytesTakesAsLongAsTheyDo(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated runs")
	}
	for _, o := range []TestOptions{{Uploads: 1, Bytes: 5_000_000}, {Downloads: 1, Bytes: 5_000_000}} {
		within(t, lab.Config{Down: bitrate.Mbit, Up: bitrate.Mbit}, iperf3.Options{}, func(ctx context.Context, c *Client) {
			r := runAll(t, ctx, c.NewTest(o))[0]
			if got := float64(bitrate.Of(r.Bytes, r.Duration())) / payload(bitrate.Mbit); r.Bytes < 5_000_000 || r.Bytes > 5_200_000 || got < 0.98 || got > 1.005 {
				t.Errorf("%+v: %d bytes in %v, %.3f of the payload rate", o, r.Bytes, r.Duration(), got)
			}
		})
	}
}

func TestDatagramsThroughABottleneck(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated runs")
	}
	for _, o := range []TestOptions{{UDP: true, Downloads: 1}, {UDP: true, Uploads: 1}} {
		o.Length, o.Rate = 5*time.Second, 5*bitrate.Mbit
		within(t, lab.Config{Down: 4 * bitrate.Mbit, Up: 4 * bitrate.Mbit}, iperf3.Options{}, func(ctx context.Context, c *Client) {
			r := runAll(t, ctx, c.NewTest(o))[0]
			d := r.Datagrams
			// 1200 bytes are 1242 on the link. A quarter of what is sent has no room.
			if got := float64(bitrate.Of(r.Bytes, r.Duration())) / (4e6 * 1200 / 1242); got < 0.98 || got > 1.02 {
				t.Errorf("%+v: %.4f of the payload rate", o, got)
			}
			if sent := uint64(2605); d.Sent < sent || o.Uploads > 0 && d.Sent > sent || d.Received+d.Lost+d.AfterEnd != d.Sent || d.Duplicate+d.Reordered != 0 || !d.HasOrder {
				t.Errorf("%+v: %+v", o, d)
			}
			if loss := float64(d.Lost) / float64(d.Lost+d.Received); loss < 0.17 || loss > 0.25 {
				t.Errorf("%+v: %.3f lost", o, loss)
			}
			// The queue holds 250 ms, and was empty at the start.
			if !d.HasDelay || d.DelayChange < 240*time.Millisecond || d.DelayChange > 260*time.Millisecond {
				t.Errorf("%+v: the delay changes by %v", o, d.DelayChange)
			}
			var bytes, received uint64
			for _, i := range d.Intervals {
				bytes += i.Bytes
				received += i.Received
			}
			if bytes != r.Bytes || received != d.Received || len(d.Intervals) < 5 || d.Intervals[0].Lost > d.Intervals[3].Lost {
				t.Errorf("%+v: intervals %+v of %d bytes, %d datagrams", o, d.Intervals, bytes, received)
			}
		})
	}
}

func TestDatagramsThatAreLostDoubledAndReordered(t *testing.T) {
	if testing.Short() {
		t.Skip("emulated runs")
	}
	effects := link.Effects{Loss: link.Loss{Good: 0.1}, Duplicate: 0.05, Reorder: link.Reorder{Share: 0.05}}
	for _, o := range []TestOptions{{UDP: true, Downloads: 1}, {UDP: true, Uploads: 1}} {
		o.Length, o.Rate = 10*time.Second, bitrate.Mbit
		config := lab.Config{Down: 100 * bitrate.Mbit, Up: 100 * bitrate.Mbit}
		if o.Uploads > 0 {
			config.EffectsUp = effects
		} else {
			config.EffectsDown = effects
		}
		within(t, config, iperf3.Options{}, func(ctx context.Context, c *Client) {
			var r load.Result
			for range 20 { // the datagram that opens a stream may be lost, and is not repeated
				results, errs := runFlows(ctx, c.NewTest(o))
				if r = results[0]; errs[0] == nil {
					break
				}
			}
			d := r.Datagrams
			if d == nil {
				t.Fatalf("%+v: no test of twenty came about", o)
			}
			share := func(n uint64) float64 { return float64(n) / float64(d.Sent) }
			if d.Received+d.Lost+d.AfterEnd != d.Sent || share(d.Lost) < 0.07 || share(d.Lost) > 0.13 || share(d.Duplicate) < 0.03 || share(d.Duplicate) > 0.08 ||
				share(d.Reordered) < 0.02 || share(d.Reordered) > 0.08 {
				t.Errorf("%+v: %+v", o, d)
			}
		})
	}
}

func TestManyTestsAtOnceMoveDataInBothDirections(t *testing.T) {
	if testing.Short() {
		t.Skip("twenty emulated tests")
	}
	within(t, lab.Config{Down: 20 * bitrate.Mbit, Up: 20 * bitrate.Mbit, Queue: "fq_codel"}, iperf3.Options{}, func(ctx context.Context, c *Client) {
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				test := c.NewTest(TestOptions{Downloads: 1, Uploads: 1, Length: 5 * time.Second})
				for i, r := range runAll(t, ctx, test) {
					if r.Bytes < 100_000 || r.First.Sub(r.Connected) > 2*time.Second {
						t.Errorf("flow %d: %+v", i, r)
					}
				}
			})
		}
		group.Wait()
	})
}

// TestTestsThatWereAgreedOnAtOnceRunAtTheirOwnTimes has them run in another order than they were agreed on, one beyond a stock server's patience.
func TestTestsThatWereAgreedOnAtOnceRunAtTheirOwnTimes(t *testing.T) {
	within(t, lab.Config{}, iperf3.Options{}, func(ctx context.Context, c *Client) {
		var tests []*Test
		for i, o := range []TestOptions{{UDP: true, Uploads: 1}, {UDP: true, Uploads: 2, Downloads: 2}, {UDP: true, Downloads: 1}, {Uploads: 1}} {
			o.Length, o.Rate, o.Wait = time.Second, bitrate.Mbit*bitrate.Bitrate(i+1)/4, 1000*time.Second
			test := c.NewTest(o)
			if err := test.Open(ctx); err != nil {
				t.Fatalf("%+v: %v", o, err)
			}
			tests = append(tests, test)
		}
		began := c.Host.Now()
		for i, at := range []time.Duration{0, 2 * time.Second, 500 * time.Second, 600 * time.Second} {
			test := tests[(i+1)%len(tests)]
			_ = c.Host.SleepUntil(ctx, began.Add(at))
			for j, r := range runAll(t, ctx, test) {
				if want := float64(test.o.Rate) / 8; float64(r.Bytes) < 0.8*want || float64(r.Bytes) > 1.1*want {
					t.Errorf("%+v: flow %d has %d bytes, want %.0f", test.o, j, r.Bytes, want)
				}
			}
		}
	})
}

func TestAServerThatWaitedForStreamsNoLongerIsNamed(t *testing.T) {
	for _, o := range []TestOptions{{UDP: true, Uploads: 1}, {Downloads: 1}} {
		o.Length, o.Rate = time.Second, bitrate.Mbit
		within(t, lab.Config{}, iperf3.Options{}, func(ctx context.Context, c *Client) {
			test := c.NewTest(o)
			if err := test.Open(ctx); err != nil {
				t.Fatal(err)
			}
			_ = c.Host.SleepUntil(ctx, c.Host.Now().Add(150*time.Second))
			if _, errs := runFlows(ctx, test); !errors.Is(errs[0], wire.StreamNotTaken) {
				t.Errorf("%+v: %v", o, errs[0])
			}
		})
	}
}

func TestMarksAreSetAtBothEnds(t *testing.T) {
	within(t, lab.Config{}, iperf3.Options{}, func(ctx context.Context, c *Client) {
		test := c.NewTest(TestOptions{Downloads: 1, Uploads: 1, Length: time.Second, DSCP: dscp.EF, Rate: bitrate.Mbit})
		marks := make(chan uint8, 1)
		go func() {
			_ = c.Host.SleepUntil(ctx, c.Host.Now().Add(500*time.Millisecond))
			info, _ := test.Flows(load.Upload)[0].TCPInfo()
			marks <- info.DS
		}()
		runAll(t, ctx, test)
		if got := <-marks; got != dscp.EF.Byte() {
			t.Errorf("an upload goes out with DS byte %#x, want EF", got)
		}
	})
}
