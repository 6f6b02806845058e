package iperf3

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/load"
)

// stock starts Debian's iperf3 as a server on loopback and returns its address.
func stock(t *testing.T, args ...string) netip.AddrPort {
	t.Helper()
	path, err := exec.LookPath("iperf3")
	if err != nil {
		facility.Missing(t, "iperf3", err.Error())
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	cmd := exec.Command(path, append([]string{"-s", "-B", "127.0.0.1", "-p", strconv.Itoa(int(at.Port())), "--forceflush"}, args...)...)
	out := &started{ready: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	select {
	case <-out.ready:
	case <-time.After(10 * time.Second):
		t.Fatal("iperf3 -s does not begin to listen")
	}
	return at
}

// started tells when iperf3 says that it listens.
type started struct {
	seen  bytes.Buffer
	ready chan struct{}
	said  bool
}

func (s *started) Write(b []byte) (int, error) {
	if s.seen.Len() < 1<<20 {
		s.seen.Write(b)
	}
	if !s.said && bytes.Contains(s.seen.Bytes(), []byte("Server listening")) {
		s.said = true
		close(s.ready)
	}
	return len(b), nil
}

// runAll runs all flows of a test and returns their results, uploads first.
func runAll(t *testing.T, ctx context.Context, test *Test) []load.Result {
	t.Helper()
	results, errs := runFlows(ctx, test)
	for i, err := range errs {
		if err != nil {
			t.Fatalf("flow %d: %v; result %+v", i, err, results[i])
		}
	}
	return results
}

func runFlows(ctx context.Context, test *Test) ([]load.Result, []error) {
	flows := test.flows
	results, errs := make([]load.Result, len(flows)), make([]error, len(flows))
	done := make(chan int, len(flows))
	for i, f := range flows {
		go func() { results[i], errs[i] = f.Run(ctx); done <- i }()
	}
	for range flows {
		<-done
	}
	return results, errs
}

func TestStockServers(t *testing.T) {
	at := stock(t)
	c := &Client{Host: host.NewKernel(), Addr: at}
	const rate = 40 * bitrate.Mbit
	for _, tt := range []struct {
		name string
		o    TestOptions
	}{
		{"download", TestOptions{Downloads: 1, Length: 2 * time.Second, Rate: rate}},
		{"upload", TestOptions{Uploads: 1, Length: 2 * time.Second, Rate: rate}},
		{"both ways, two each", TestOptions{Uploads: 2, Downloads: 2, Length: time.Second, Rate: rate}},
		{"UDP download", TestOptions{UDP: true, Downloads: 1, Length: 2 * time.Second, Rate: rate}},
		{"UDP upload", TestOptions{UDP: true, Uploads: 1, Length: 2 * time.Second, Rate: rate}},
		{"UDP both", TestOptions{UDP: true, Uploads: 1, Downloads: 1, Length: 2 * time.Second, Rate: rate}},
		{"bytes up", TestOptions{Uploads: 1, Bytes: 10 << 20}},
		{"bytes down", TestOptions{Downloads: 1, Bytes: 10 << 20}},
		{"omit up", TestOptions{Uploads: 1, Length: time.Second, Omit: time.Second, Rate: rate}},
		{"omit down", TestOptions{Downloads: 1, Length: time.Second, Omit: time.Second, Rate: rate}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			test := c.NewTest(tt.o)
			for _, r := range runAll(t, t.Context(), test) {
				t.Logf("%+v", r)
				t.Logf("%.3f Mbit/s %v", bitrate.Of(r.Bytes, r.Duration()).Mbps(), r.Duration())
				if r.Datagrams != nil {
					t.Logf("%+v", *r.Datagrams)
				}
			}
		})
	}
}
