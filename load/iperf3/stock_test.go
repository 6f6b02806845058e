package iperf3

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
)

// stock is Debian's iperf3 as a server on loopback.
type stock struct {
	at  netip.AddrPort
	out *output
	cmd *exec.Cmd
}

// output keeps what a program prints, and tells when a server says that it listens.
type output struct {
	mu    sync.Mutex
	text  bytes.Buffer
	ready chan struct{}
	said  bool
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(b)
	if !o.said && bytes.Contains(o.text.Bytes(), []byte("Server listening")) {
		o.said = true
		close(o.ready)
	}
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// servers counts those that were started.
var servers atomic.Int32

// startStock starts a server that ends with the test. With -1 and -J it prints its side of one test, and says nothing before that.
func startStock(t testing.TB, args ...string) stock {
	t.Helper()
	path, err := exec.LookPath("iperf3")
	if err != nil {
		facility.Missing(t, "iperf3", err.Error())
	}
	// Each server has an address of its own, since a port that was free may be another's by the time that it is taken.
	n, pid := servers.Add(1), os.Getpid()
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(10 + pid>>8&0x7f), byte(pid), byte(n)}), wire.Port)
	s := stock{at: at, out: &output{ready: make(chan struct{})}}
	s.cmd = exec.Command(path, append([]string{"-s", "-B", at.Addr().String(), "--forceflush"}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
	if slices.Contains(args, "-J") {
		return s // it tells nobody when it listens: see opened
	}
	select {
	case <-s.out.ready:
	case <-time.After(20 * time.Second):
		t.Fatalf("iperf3 -s does not begin to listen: %s", s.out)
	}
	return s
}

// opened returns a test that was opened, once a server is there.
func opened(t *testing.T, c *Client, o TestOptions) *Test {
	for tries := 0; ; tries++ {
		test := c.NewTest(o)
		err := test.Open(t.Context())
		if err == nil || !errors.Is(err, ErrUnreachable) || tries == 2000 {
			return test // which says the same when it is run
		}
		time.Sleep(10 * time.Millisecond) // nobody listens yet, and nobody tells when
	}
}

// runFlows runs all flows of a test and returns their results, uploads first.
func runFlows(ctx context.Context, test *Test) ([]load.Result, []error) {
	flows := test.flows
	results, errs := make([]load.Result, len(flows)), make([]error, len(flows))
	var group sync.WaitGroup
	for i, f := range flows {
		group.Go(func() { results[i], errs[i] = f.Run(ctx) })
	}
	group.Wait()
	return results, errs
}

// runAll is runFlows where nothing may fail.
func runAll(t testing.TB, ctx context.Context, test *Test) []load.Result {
	t.Helper()
	results, errs := runFlows(ctx, test)
	for i, err := range errs {
		if err != nil {
			t.Errorf("%+v: flow %d: %v; result %+v", test.o, i, err, results[i])
		}
	}
	return results
}

// TestStockServers runs our client against Debian's iperf3, which prints what it saw: both must have counted the same.
func TestStockServers(t *testing.T) {
	const rate = 8 * bitrate.Mbit
	var group sync.WaitGroup
	for _, o := range []TestOptions{
		{Downloads: 1, Length: time.Second, Rate: rate}, {Uploads: 1, Length: time.Second, Rate: rate},
		{Uploads: 1, Downloads: 1, Length: time.Second, Rate: rate}, {Uploads: 2, Downloads: 2, Length: time.Second, Rate: rate},
		{Downloads: 4, Length: time.Second, Rate: rate}, {Uploads: 4, Length: time.Second, Rate: rate},
		{UDP: true, Downloads: 1, Length: time.Second, Rate: rate}, {UDP: true, Uploads: 1, Length: time.Second, Rate: rate},
		{UDP: true, Uploads: 1, Downloads: 1, Length: time.Second, Rate: rate}, {UDP: true, Uploads: 3, Length: time.Second, Rate: rate, WideCounters: true},
		{UDP: true, Downloads: 1, Blocks: 100, Rate: rate}, {UDP: true, Uploads: 1, Bytes: 120_000, Rate: rate},
		{Uploads: 1, Bytes: 2 << 20}, {Downloads: 1, Bytes: 2 << 20}, {Uploads: 2, Blocks: 40}, {Downloads: 2, Blocks: 40},
		{Uploads: 1, Length: time.Second, Omit: time.Second, Rate: rate}, {Downloads: 1, Length: time.Second, Omit: time.Second, Rate: rate},
		{Downloads: 1, Length: time.Second, Rate: rate, DSCP: dscp.EF, CongestionControl: "reno", Window: 100 << 10},
		{Uploads: 1, Length: time.Second, Rate: rate, KernelPacing: true, DSCP: dscp.CS1, CongestionControl: "reno"},
	} {
		s := startStock(t, "-1", "-J")
		group.Go(func() { compare(t, s, o) })
	}
	group.Wait()
}

// printed is a part of what iperf3 -s -J prints of a test.
type printed struct {
	Error string
	End   struct {
		Streams []struct {
			Sender, Receiver struct{ Bytes uint64 }
			UDP              struct {
				Packets uint64
				Lost    uint64 `json:"lost_packets"`
			}
		}
		ReceiverCongestion string `json:"receiver_tcp_congestion"`
		SenderCongestion   string `json:"sender_tcp_congestion"`
	}
}

func compare(t *testing.T, s stock, o TestOptions) {
	c := &Client{Host: host.NewKernel(), Addr: s.at}
	test := opened(t, c, o)
	results := runAll(t, t.Context(), test)
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%+v: the server ends with %v", o, err)
	}
	var p printed
	if err := json.Unmarshal([]byte(s.out.String()), &p); err != nil || p.Error != "" || len(p.End.Streams) != len(results) {
		t.Errorf("%+v: the server prints %q, %v: %s", o, p.Error, err, s.out)
		return
	}
	for i, r := range results {
		theirs := p.End.Streams[i]
		up := test.flows[i].direction == load.Upload
		switch {
		case up && r.CountedBy != load.CountedByServer && (o.UDP || r.CountedBy != load.CountedByAcks), !up && r.CountedBy != load.CountedByReads:
			t.Errorf("%+v: flow %d is counted by %v", o, i, r.CountedBy)
		case up && !o.UDP && (r.ServerBytes != theirs.Receiver.Bytes || r.Bytes < r.ServerBytes): // more where it had not read all that came
			t.Errorf("%+v: flow %d: %d bytes, %d by the server, which prints %d", o, i, r.Bytes, r.ServerBytes, theirs.Receiver.Bytes)
		case up && o.UDP && r.Datagrams.Received+r.Datagrams.Lost != theirs.UDP.Packets: // its print has no bytes
			t.Errorf("%+v: flow %d: %+v, and the server counts %+v", o, i, *r.Datagrams, theirs.UDP)
		case !up && !o.UDP && (r.ServerBytes != theirs.Sender.Bytes || r.Bytes > r.ServerBytes && o.Omit == 0):
			t.Errorf("%+v: flow %d: %d bytes of %d, and the server has sent %d", o, i, r.Bytes, r.ServerBytes, theirs.Sender.Bytes)
		}
		if want := o.Bytes + o.Blocks*uint64(test.o.Size); want > 0 && !o.UDP && o.Uploads+o.Downloads == 1 && r.Bytes != want {
			t.Errorf("%+v: flow %d: %d bytes, want %d", o, i, r.Bytes, want)
		}
		if o.Length > 0 && o.Omit == 0 && !o.KernelPacing { // a kernel begins with a burst
			if got := bitrate.Of(r.Bytes, o.Length).Mbps() / o.Rate.Mbps(); got < 0.1 || got > 1.3 { // the machine may be busy, and units not be wrong
				t.Errorf("%+v: flow %d carries %.2f of its rate", o, i, got)
			}
		}
		if d := r.Datagrams; o.UDP && (d == nil || !d.HasReceiver || !d.HasSender || d.Received == 0 || d.Received+d.Lost+d.AfterEnd != d.Sent) {
			t.Errorf("%+v: flow %d: datagrams %+v", o, i, d)
		} else if o.UDP && (len(d.Intervals) == 0 || !up && (!d.HasOrder || !d.HasDelay)) { // with -J the server reports its own
			t.Errorf("%+v: flow %d: datagrams %+v", o, i, d)
		}
		if o.CongestionControl != "" && (r.CongestionControl != "reno" || p.End.ReceiverCongestion != "reno" && p.End.SenderCongestion != "reno") {
			t.Errorf("%+v: flow %d by %q", o, i, r.CongestionControl)
		}
	}
}

func TestStockServersRefusalsAreSaid(t *testing.T) {
	limited := startStock(t, "--server-bitrate-limit", "1M")
	ctx := t.Context()
	c := &Client{Host: host.NewKernel(), Addr: limited.at, BusyWait: -1}
	f := c.NewTest(TestOptions{Downloads: 1, Length: time.Second, Rate: 10 * bitrate.Mbit}).Flows(load.Download)[0]
	if _, err := f.Run(ctx); !errors.Is(err, ErrRefused) && !errors.Is(err, ErrServerGone) && !errors.Is(err, wire.RateLimit) {
		t.Errorf("a rate above the limit: %v", err)
	}
	plain := startStock(t)
	c = &Client{Host: host.NewKernel(), Addr: plain.at, BusyWait: -1}
	held := c.NewTest(TestOptions{Downloads: 1, Length: 10 * time.Second, Rate: bitrate.Mbit})
	if err := held.Open(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Check(ctx); !errors.Is(err, ErrBusy) {
		t.Errorf("a busy server: %v", err)
	}
	held.Close()
	c.BusyWait = 0
	if info, err := c.Check(ctx); err != nil || info.Setup <= 0 || info.Answer <= 0 {
		t.Errorf("a server that was busy before: %+v, %v", info, err)
	}
	_ = plain.cmd.Process.Kill()
	c.BusyWait = -1
	if _, err := c.Check(ctx); !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrBusy) {
		t.Errorf("a server that is gone: %v", err)
	}
}

func TestWeLogInToStockServers(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	private, users := filepath.Join(dir, "private.pem"), filepath.Join(dir, "users")
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := errors.Join(os.WriteFile(private, text, 0o600), os.WriteFile(users, []byte("mario,"+wire.PasswordHash("mario", "rossi")+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := startStock(t, "--rsa-private-key-path", private, "--authorized-users-path", users)
	c := &Client{Host: host.NewKernel(), Addr: s.at}
	c.Login = &Login{User: "mario", Password: "rossi", Key: &key.PublicKey, Padding: wire.PKCS1, Now: time.Now}
	o := TestOptions{Downloads: 1, Bytes: 64 << 10}
	runAll(t, t.Context(), c.NewTest(o))
	for name, login := range map[string]*Login{
		"no login": nil, "a wrong password": {User: "mario", Password: "verdi", Key: &key.PublicKey, Padding: wire.PKCS1, Now: time.Now},
		"the other padding": {User: "mario", Password: "rossi", Key: &key.PublicKey, Now: time.Now},
	} {
		c.Login = login
		_, err := c.NewTest(o).Flows(load.Download)[0].Run(t.Context())
		if !errors.Is(err, wire.NotAuthorised) && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "the other padding" && !strings.Contains(err.Error(), "PKCS#1") {
			t.Errorf("%s: %v, want the advice to try the other one", name, err)
		}
	}
}
