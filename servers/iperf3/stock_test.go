package iperf3

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/iperf3"
)

// serve runs a server until the test ends and returns its address and the lines that it has logged.
func serve(t testing.TB, h host.Host, o Options) (netip.AddrPort, func() []string) {
	t.Helper()
	ready := make(chan []netip.AddrPort, 1)
	var mu sync.Mutex
	var lines []string
	o.Ready = func(at []netip.AddrPort) { ready <- at }
	o.Log = func(line string) { mu.Lock(); lines = append(lines, line); mu.Unlock() }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Server{Options: o}).Serve(ctx, h, netip.MustParseAddrPort("127.0.0.1:0")) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	select {
	case at := <-ready:
		return at[0], func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(lines) }
	case err := <-done:
		t.Fatalf("Serve returned %v", err)
		panic("not reached")
	}
}

// iperf3 returns the path of Debian's iperf3.
func iperf3(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("iperf3")
	if err != nil {
		facility.Missing(t, "iperf3", err.Error())
	}
	return path
}

// stock runs Debian's iperf3 as a client and returns what it printed as JSON.
func stock(t testing.TB, at netip.AddrPort, args ...string) report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, iperf3(t), append([]string{"-c", at.Addr().String(), "-p", strconv.Itoa(int(at.Port())), "-J"}, args...)...)
	cmd.Env = append(cmd.Environ(), "IPERF3_PASSWORD=rossi")
	out, err := cmd.Output()
	var r report
	if jerr := json.Unmarshal(out, &r); jerr != nil {
		t.Errorf("iperf3 %v: %v, %v: %s", args, err, jerr, out)
	}
	return r
}

// report is a part of what iperf3 -J prints.
type report struct {
	Error string
	End   struct {
		Streams []struct {
			Sender, Receiver struct {
				Bytes   uint64
				Seconds float64
			}
			UDP struct {
				Packets int
				Lost    int `json:"lost_packets"`
			}
		}
		SumSent     struct{ Bytes uint64 } `json:"sum_sent"`
		SumReceived struct{ Bytes uint64 } `json:"sum_received"`
		Congestion  string                 `json:"sender_tcp_congestion"`
	}
	ServerText string          `json:"server_output_text"`
	ServerJSON json.RawMessage `json:"server_output_json"`
}

// TestStockClients runs Debian's iperf3 against our server in all its ways, all at once: a stock server would turn all but one away.
func TestStockClients(t *testing.T) {
	iperf3(t)
	at, _ := serve(t, host.NewKernel(), Options{})
	var group sync.WaitGroup
	for _, tt := range []struct {
		args    string
		streams int
		bytes   uint64 // that are to be received; 0 is whatever was sent
	}{
		{"-t 1 -b 8M -l 4K", 1, 0}, {"-t 1 -b 8M -l 4K -R", 1, 0}, {"-t 1 -b 4M -l 4K --bidir", 2, 0},
		{"-t 1 -P 4 -b 2M -l 4K", 4, 0}, {"-t 1 -P 3 -R -b 2M -l 4K", 3, 0}, {"-t 1 -P 2 --bidir -b 2M -l 4K", 4, 0},
		{"-t 1 -O 1 -b 8M -l 4K", 1, 0}, {"-t 1 -O 1 -b 8M -l 4K -R", 1, 0},
		{"-n 1M -b 8M", 1, 1 << 20}, {"-n 1M -R", 1, 1 << 20}, {"-k 20 -l 16K -R", 1, 20 << 14}, {"-n 2M -R -P 2", 2, 2 << 20}, {"-n 1M -R -b 8M", 1, 1 << 20},
		{"-u -l 1200 -t 1 -b 4M", 1, 0}, {"-u -l 1200 -t 1 -b 4M -R", 1, 0}, {"-u -l 1200 -t 1 -b 4M --bidir", 2, 0},
		{"-u -l 1200 -t 1 -b 2M -P 3 --udp-counters-64bit", 3, 0}, {"-u -l 1200 -n 100K -b 4M -R", 1, 0},
		{"-t 1 --get-server-output -b 4M -l 4K", 1, 0}, {"-u -l 1200 -t 1 --get-server-output -b 4M", 1, 0},
		{"-t 1 -S 0xb8 -C reno -R -b 4M -l 4K -N -w 100K", 1, 0}, {"-t 1 --fq-rate 8M -R", 1, 0},
	} {
		group.Go(func() {
			r := stock(t, at, strings.Fields(tt.args)...)
			sent, received := r.End.SumSent.Bytes, r.End.SumReceived.Bytes
			switch slack := 64<<10 + sent/8; { // what is under way when the end is told, on a busy machine
			case r.Error != "":
				t.Errorf("%s: %s", tt.args, r.Error)
			case len(r.End.Streams) != tt.streams:
				t.Errorf("%s: %d streams, want %d", tt.args, len(r.End.Streams), tt.streams)
			case tt.bytes > 0 && received != tt.bytes:
				t.Errorf("%s: %d bytes received, want %d", tt.args, received, tt.bytes)
			case strings.Contains(tt.args, "fq-rate"): // it writes ahead of its pace
			case strings.HasPrefix(tt.args, "-u -l 1200 -n 100K"): // the server sends on, until the client has told it that it has enough
				if received < 100<<10 || received > sent {
					t.Errorf("%s: %d bytes received of %d", tt.args, received, sent)
				}
			case strings.Contains(tt.args, "-O"): // each end omits by its own clock, and the machine may be busy
			case received == 0 || received+slack < sent || received > sent:
				t.Errorf("%s: %d bytes received of %d, which is more than %d apart", tt.args, received, sent, slack)
			}
			for _, s := range r.End.Streams {
				if strings.Contains(tt.args, "-u") && (s.UDP.Packets == 0 || s.UDP.Lost > s.UDP.Packets/10) {
					t.Errorf("%s: %d of %d datagrams lost on loopback", tt.args, s.UDP.Lost, s.UDP.Packets)
				}
			}
			switch {
			case strings.Contains(tt.args, "-C reno") && r.End.Congestion != "reno":
				t.Errorf("%s: the server sends with %q", tt.args, r.End.Congestion)
			case strings.Contains(tt.args, "-u") && strings.Contains(tt.args, "get-server") && !strings.Contains(string(r.ServerJSON), "intervals"),
				!strings.Contains(tt.args, "-u") && strings.Contains(tt.args, "get-server") && !strings.Contains(r.ServerText, "received"):
				t.Errorf("%s: the server's report is %q %s", tt.args, r.ServerText, r.ServerJSON)
			}
		})
	}
	group.Wait()
}

func TestStockClientsPrintWhyTheyAreRefused(t *testing.T) {
	iperf3(t)
	at, lines := serve(t, host.NewKernel(), Options{MaxTests: 1, MaxStreams: 2, MaxLength: 5 * time.Second, MaxRate: 10 * bitrate.Mbit})
	for args, want := range map[string]string{
		"-t 1 -b 11M":     "bandwidth is larger than server limit",
		"-t 1":            "bandwidth is larger than server limit",
		"-t 6 -b 1M":      "duration",
		"-t 1 -b 1M -P 3": "number of parallel streams",
	} {
		if r := stock(t, at, strings.Fields(args)...); !strings.Contains(r.Error, want) {
			t.Errorf("%s: it prints %q, want %q", args, r.Error, want)
		}
	}
	if all := strings.Join(lines(), "\n"); !strings.Contains(all, "at most 5s is allowed") || !strings.Contains(all, "at most 10Mbit") {
		t.Errorf("the log does not state the caps: %s", all)
	}
}

// What a client may not have now, or in this hour, has one word in the protocol.
func TestStockClientsPrintThatTheServerIsBusy(t *testing.T) {
	iperf3(t)
	for name, tt := range map[string]struct {
		o    Options
		held bool   // by a test that goes on
		log  string // states the cap
	}{
		"tests at once":                {Options{MaxTests: 1}, true, "1 tests are running, which is this server's limit"},
		"tests of an address at once":  {Options{MaxTestsPerAddress: 1}, true, "this server's limit for one address"},
		"tests of an address, an hour": {Options{MaxTestsPerHour: 1}, false, "has begun 1 tests, which is this server's limit in an hour"},
		"bytes of an address, an hour": {Options{MaxBytesPerHour: 1000}, false, "this server's limit in an hour is 1000"},
	} {
		h := host.NewKernel()
		at, lines := serve(t, h, tt.o)
		p := begin(t, h, at)
		data := p.open(wire.Params{Parallel: 1, Time: 5 * time.Second}, at)
		if !tt.held {
			_, _ = data[0].Write(make([]byte, 2000))
			p.end(1)
			_ = data[0].Close()
			for deadline := time.Now().Add(10 * time.Second); len(lines()) < 2 && time.Now().Before(deadline); { // until its end is noted
				time.Sleep(5 * time.Millisecond)
			}
		}
		r := stock(t, at, "-n", "64K")
		for deadline := time.Now().Add(10 * time.Second); !tt.held && r.Error == "" && time.Now().Before(deadline); {
			r = stock(t, at, "-n", "64K") // the bytes are counted a moment after the end
		}
		if all := strings.Join(lines(), "\n"); !strings.Contains(r.Error, "busy") || !strings.Contains(all, tt.log) {
			t.Errorf("%s: it prints %q, want that the server is busy; the log says %q, want %q in it", name, r.Error, all, tt.log)
		}
		_ = data[0].Close()
		_ = p.conn.Close()
	}
}

func TestAStockClientPrintsThatATestWithoutAnEndWasTooLong(t *testing.T) {
	at, _ := serve(t, host.NewKernel(), Options{MaxLength: time.Second})
	for _, args := range []string{"-t 0 -b 1M", "-t 0 -R -b 1M"} {
		if r := stock(t, at, strings.Fields(args)...); !strings.Contains(r.Error, "duration") {
			t.Errorf("%s: it prints %q", args, r.Error)
		}
	}
}

func TestStockClientsLogIn(t *testing.T) {
	iperf3(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	public := filepath.Join(t.TempDir(), "public.pem")
	if err := os.WriteFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	l := Login{Key: key, Users: wire.Users{"mario": wire.PasswordHash("mario", "rossi")}, Padding: wire.PKCS1} // as Debian's 3.12 sends it
	at, lines := serve(t, host.NewKernel(), Options{Login: &l})
	off, _ := serve(t, host.NewKernel(), Options{Login: &Login{Key: key, Users: l.Users, Padding: wire.PKCS1, Now: func() time.Time { return time.Now().Add(time.Minute) }}})
	for _, tt := range []struct {
		at   netip.AddrPort
		user string
		want string // in the error; "" is none
	}{{at, "mario", ""}, {at, "luigi", "authorization failed"}, {at, "", "authorization failed"}, {off, "mario", "authorization failed"}} {
		args := []string{"-n", "64K", "-R"}
		if tt.user != "" {
			args = append(args, "--username", tt.user, "--rsa-public-key-path", public)
		}
		r := stock(t, tt.at, args...)
		if tt.want == "" && (r.Error != "" || r.End.SumReceived.Bytes < 64<<10) || !strings.Contains(r.Error, tt.want) {
			t.Errorf("%q: it prints %q, want %q; %d bytes; log %q", tt.user, r.Error, tt.want, r.End.SumReceived.Bytes, lines())
		}
	}
}
