package netperf_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
	server "bufferbloat/servers/netperf"
)

// serve runs our server on the kernel's loopback until the test ends, or until stop is called.
func serve(t *testing.T, at string, o server.Options) (client *netperf.Client, stop func()) {
	t.Helper()
	h := host.NewKernel()
	ready, done := make(chan []netip.AddrPort, 1), make(chan error, 1)
	o.Ready = func(at []netip.AddrPort) { ready <- at }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- (&server.Server{Options: o}).Serve(ctx, h, netip.MustParseAddrPort(at)) }()
	select {
	case bound := <-ready:
		stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Serve returned %v", err)
			}
		})
		t.Cleanup(stop)
		return &netperf.Client{Host: h, Addr: bound[0], Passphrase: o.Passphrase}, stop
	case err := <-done:
		cancel()
		if strings.HasPrefix(at, "[") {
			facility.Missing(t, "ipv6-loopback", err.Error())
		}
		t.Fatalf("Serve returned %v", err)
		return nil, nil
	}
}

type outcome struct {
	flow   *netperf.Flow
	result load.Result
	err    error
}

// run opens n flows, then runs them together.
func run(ctx context.Context, t *testing.T, c *netperf.Client, n int, o netperf.FlowOptions) []outcome {
	t.Helper()
	out := make([]outcome, n)
	for i := range out {
		out[i].flow = c.NewFlow(o)
		if err := out[i].flow.Open(ctx); err != nil {
			t.Fatal(err)
		}
	}
	var flows sync.WaitGroup
	for i := range out {
		flows.Go(func() { out[i].result, out[i].err = out[i].flow.Run(ctx) })
	}
	flows.Wait()
	return out
}

func TestOurClientAndOurServerOverTheKernel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at         string
		flows      int
		passphrase string
	}{{"127.0.0.1:0", 1, ""}, {"127.0.0.1:0", 5, "opensesame"}, {"[::1]:0", 1, ""}} {
		for _, direction := range []load.Direction{load.Download, load.Upload} {
			t.Run(fmt.Sprintf("%d %v %s", c.flows, direction, c.at), func(t *testing.T) {
				client, _ := serve(t, c.at, server.Options{Version: "test", Passphrase: c.passphrase})
				info, err := client.Check(t.Context())
				if err != nil || info.Name != "bufferbloat test" || info.Setup <= 0 || info.Addr != client.Addr {
					t.Fatalf("Check: %+v, %v", info, err)
				}
				for _, o := range run(t.Context(), t, client, c.flows, netperf.FlowOptions{
					Direction: direction, Length: time.Second, Server: info, DSCP: 8, ServerDSCP: 46,
				}) {
					check(t, o, direction)
				}
			})
		}
	}
}

func check(t *testing.T, o outcome, direction load.Direction) {
	t.Helper()
	r := o.result
	// On a machine that is busy elsewhere a flow of this length may be too short for a rate, or pause; that is not the matter here.
	busy := strings.Contains(r.Warning, "too short") || strings.Contains(r.Warning, "in the last")
	if o.err != nil || r.Warning != "" && !busy || r.Bytes == 0 || r.Duration() <= 0 {
		t.Fatalf("got %+v, %v", r, o.err)
	}
	if r.First.Before(r.Connected) || r.Last.Before(r.First) || r.Stopped.Before(r.Connected) {
		t.Errorf("times out of order: %+v", r)
	}
	if delivered, ok := o.flow.Delivered(); ok && delivered != r.Bytes {
		t.Errorf("%d bytes delivered, result %d", delivered, r.Bytes)
	}
	if !r.HasServerBytes || r.ServerBytes < r.Bytes {
		t.Errorf("the server counted %d bytes (%v), we %d", r.ServerBytes, r.HasServerBytes, r.Bytes)
	}
	switch direction {
	case load.Upload:
		if r.CountedBy != load.CountedByServer || r.ServerBytes != r.Bytes {
			t.Errorf("got %+v", r)
		}
	case load.Download:
		if r.CountedBy != load.CountedByReads {
			t.Errorf("got %+v", r)
		}
	}
	if r.HasRemoteDS && r.RemoteDS != 0xb8 {
		t.Errorf("the server sends DS %#x, want 0xb8", r.RemoteDS)
	}
}

func TestAServerThatIsStoppedInMidTestOverTheKernel(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		client, stop := serve(t, "127.0.0.1:0", server.Options{})
		f := client.NewFlow(netperf.FlowOptions{Direction: direction, Length: time.Minute})
		if err := f.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		var killer sync.WaitGroup
		killer.Go(func() { awaitBytes(t, f); stop() })
		begin := time.Now()
		got, err := f.Run(t.Context())
		killer.Wait()
		if !errors.Is(err, netperf.ErrServerGone) || got.Bytes == 0 || time.Since(begin) > 10*time.Second {
			t.Errorf("%v: got %+v, %v after %v", direction, got, err, time.Since(begin))
		}
	}
}

func TestAnInterruptOverTheKernelLeavesNothingOnTheServer(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		ended := make(chan struct{}, 8)
		client, _ := serve(t, "127.0.0.1:0", server.Options{MaxTests: 1, Log: func(line string) {
			if strings.Contains(line, " ends ") {
				ended <- struct{}{}
			}
		}})
		f := client.NewFlow(netperf.FlowOptions{Direction: direction, Length: time.Minute})
		if err := f.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		interrupted := errors.New("interrupted")
		var user sync.WaitGroup
		user.Go(func() { awaitBytes(t, f); cancel(interrupted) })
		got, err := f.Run(ctx)
		user.Wait()
		if !errors.Is(err, interrupted) || got.Bytes == 0 {
			t.Errorf("%v: got %+v, %v", direction, got, err)
		}
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Errorf("%v: the server's test goes on", direction)
		}
	}
}

// awaitBytes returns once the flow carries data.
func awaitBytes(t *testing.T, f *netperf.Flow) {
	h := host.NewKernel()
	for deadline := h.Now().Add(10 * time.Second); h.Now().Before(deadline); {
		if n, _ := f.Delivered(); n > 0 {
			return
		}
		_ = h.SleepUntil(t.Context(), h.Now().Add(time.Millisecond))
	}
}

func TestATestThatTheServerDoesNotPermitOverTheKernel(t *testing.T) {
	client, _ := serve(t, "127.0.0.1:0", server.Options{MaxLength: time.Second})
	got, err := client.NewFlow(netperf.FlowOptions{Direction: load.Upload, Length: 5 * time.Minute}).Run(t.Context())
	var refused *netperf.RefusedError
	if !errors.As(err, &refused) || refused.Number != 1 || got != (load.Result{}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAFlowEndsAfterItsBytes(t *testing.T) {
	client, _ := serve(t, "127.0.0.1:0", server.Options{Version: "test"})
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		o := netperf.FlowOptions{Direction: direction, Length: 30 * time.Second, Bytes: 3_000_001, Buffer: 8 << 10, Size: 10_000}
		got := run(t.Context(), t, client, 1, o)[0]
		if got.err != nil || got.result.Bytes != o.Bytes || got.result.Warning != "" {
			t.Errorf("%v: got %+v, %v; want %d bytes and no warning", direction, got.result, got.err, o.Bytes)
		}
	}
}

func TestAFlowWhoseTimeIsUpBeforeItsBytesSaysSo(t *testing.T) {
	client, _ := serve(t, "127.0.0.1:0", server.Options{Version: "test"})
	o := netperf.FlowOptions{Direction: load.Upload, Length: time.Second, Bytes: 10_000_000, Rate: 8_000_000}
	got := run(t.Context(), t, client, 1, o)[0]
	if got.err != nil || got.result.Bytes < 800_000 || got.result.Bytes > 1_050_000 || !strings.Contains(got.result.Warning, "of its 10000000 bytes") {
		t.Errorf("got %+v, %v; want about 1 MB by its rate, and a warning", got.result, got.err)
	}
	o.Direction = load.Download
	if err := client.NewFlow(o).Open(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a download with a rate: got %v", err)
	}
}

func TestAServersOwnLimitsAreSaidWithTheFigure(t *testing.T) {
	t.Parallel()
	client, _ := serve(t, "127.0.0.1:0", server.Options{Version: "test", MaxRate: 80_000_000})
	info, err := client.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		o := netperf.FlowOptions{Direction: direction, Length: time.Second, Server: info}
		got := run(t.Context(), t, client, 1, o)[0]
		if got.err != nil || got.result.Bytes > 12_000_000 || !strings.Contains(got.result.Warning, "to 80.00 Mbit/s") {
			t.Errorf("%v: got %+v, %v; want some 10 MB and a warning", direction, got.result, got.err)
		}
	}
	busy, n := [][]time.Duration{{0, 0}, {99, 40}}, 0
	cpu := func() ([]time.Duration, []time.Duration, error) {
		n++
		return busy[(n-1)%2], []time.Duration{time.Duration(100 * ((n - 1) % 2)), time.Duration(100 * ((n - 1) % 2))}, nil
	}
	client, _ = serve(t, "127.0.0.1:0", server.Options{Version: "test", CPU: cpu})
	if info, err = client.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := netperf.FlowOptions{Direction: load.Download, Length: time.Second, ServerCPU: true, Server: info}
	got := run(t.Context(), t, client, 1, o)[0]
	if got.err != nil || !got.result.HasServerCPU || got.result.ServerCPU < 0.69 || got.result.ServerCPU > 0.7 ||
		!strings.Contains(got.result.Warning, "CPU of the server was busy for 99%") {
		t.Errorf("got %+v, %v; want 69.5%% and a warning", got.result, got.err)
	}
}

func TestALimitOfTheServerIsSaidInItsOwnWords(t *testing.T) {
	t.Parallel()
	client, _ := serve(t, "127.0.0.1:0", server.Options{Version: "test", MaxLength: time.Second})
	_, err := client.NewFlow(netperf.FlowOptions{Direction: load.Download, Length: 5 * time.Minute}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "where this server allows at most 1s") {
		t.Errorf("got %v", err)
	}
}
