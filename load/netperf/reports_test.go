package netperf_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/memnet"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
	server "bufferbloat/servers/netperf"
)

// inMemory runs f in fake time with our server at the other end of a network of streams.
func inMemory(t *testing.T, n *memnet.Net, f func(t *testing.T, c *netperf.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ready, done := make(chan []netip.AddrPort, 1), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		s := &server.Server{Options: server.Options{MaxTestsPerAddress: 64, Ready: func(at []netip.AddrPort) { ready <- at }}}
		go func() { done <- s.Serve(ctx, n, netip.MustParseAddrPort("127.0.0.1:12865")) }()
		at := <-ready
		f(t, &netperf.Client{Host: n, Addr: at[0]})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A test by size outlasts every default of time: 10 s of a test, 4 s of grace, 30 s of idleness.
func TestATestBySizeTakesTheTimeThatItNeeds(t *testing.T) {
	inMemory(t, &memnet.Net{Delay: 10 * time.Millisecond, BytesPerS: 125_000, Buffer: 60_000}, func(t *testing.T, c *netperf.Client) {
		for _, direction := range []load.Direction{load.Download, load.Upload} {
			const size = 5_000_000
			f := c.NewFlow(netperf.FlowOptions{Direction: direction, Length: 10 * time.Minute, Bytes: size})
			begin := time.Now()
			got, err := f.Run(t.Context())
			d := time.Since(begin)
			if err != nil || got.Warning != "" || got.Bytes != size || got.Duration() < 39*time.Second || d > 43*time.Second {
				t.Errorf("%v: %+v, %v after %v, want %d bytes in 40 s", direction, got, err, d, size)
			}
		}
	})
}

func TestTwentyClientsInBothDirectionsAllMoveDataWithinTwoSeconds(t *testing.T) {
	inMemory(t, &memnet.Net{Delay: 10 * time.Millisecond, BytesPerS: 250_000, Buffer: 60_000}, func(t *testing.T, c *netperf.Client) {
		var running sync.WaitGroup
		for range 20 {
			for _, direction := range []load.Direction{load.Download, load.Upload} {
				f := c.NewFlow(netperf.FlowOptions{Direction: direction, Length: 5 * time.Second})
				running.Go(func() {
					begin := time.Now()
					got, err := f.Run(t.Context())
					if err != nil || got.Bytes == 0 || got.First.Sub(begin) > 2*time.Second {
						t.Errorf("%v: %+v, %v, first byte after %v", direction, got, err, got.First.Sub(begin))
					}
				})
			}
		}
		running.Wait()
	})
}
