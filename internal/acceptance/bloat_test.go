package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

// workshop is the directory of the program under test. TestMain alone sets it.
var workshop string

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(helperVariable)); len(words) > 3 {
		os.Exit(helper(words))
	}
	dir, err := os.MkdirTemp("", "bloat-acceptance")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workshop = dir
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// build makes the program once, as the Makefile does, and returns its path or why it can't be built.
var build = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(workshop, "bloat")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-X main.version=acceptance", "-o", binary, "../../cmd/bloat")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w: %s", cmd.Args, err, out)
	}
	return binary, nil
})

// bloat returns the program's command in a namespace. It gets a SIGKILL when ctx ends.
func bloat(ctx context.Context, t *testing.T, s *testnet.Space, args ...string) *exec.Cmd {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	c := s.Command(binary, args...)
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.WaitDelay = time.Second
	return cmd
}

// serve runs the lab server, with further flags, until the test ends; the test fails if it does not stop within 5 s of an interrupt.
func serve(t *testing.T, n *testnet.Net, flags ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := bloat(ctx, t, n.Server, append([]string{"serve"}, flags...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		overdue := time.AfterFunc(5*time.Second, cancel)
		cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		if !overdue.Stop() {
			t.Errorf("bloat serve still ran 5 s after an interrupt")
		}
		if t.Failed() {
			t.Logf("bloat serve ended with %v and printed:\n%s", err, out.String())
		}
	})
	waitFor(t, n, netip.AddrPortFrom(n.Server.IP, 12865))
}

// waitFor returns when the server takes a connection from the client, which is when a user could begin.
func waitFor(t *testing.T, n *testnet.Net, at netip.AddrPort) {
	t.Helper()
	var err error
	n.Client.Inside(t, func() {
		for range 200 {
			var conn net.Conn
			if conn, err = net.DialTimeout("tcp", at.String(), time.Second); err == nil {
				conn.Close()
				return
			}
			time.Sleep(25 * time.Millisecond) // refused: the server is on its way, and tells nobody when it is there
		}
	})
	if err != nil {
		t.Fatalf("bloat serve does not answer within 5 s: %v", err)
	}
}

// outcome is what one speedtest left behind.
type outcome struct {
	result document
	rec    *bufferbloat.Recording
	pings  []pinged
	pinger pingTotals
	kernel echoes // what the client's kernel counted meanwhile
}

// speedtest runs bloat speedtest against the server with a stock ping beside it. Both are over when it returns.
func speedtest(t *testing.T, n *testnet.Net, length time.Duration, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*length+60*time.Second)
	defer cancel()
	recording := filepath.Join(t.TempDir(), "run.bloat.json.gz")
	before := readEchoes(t, n.Client)
	pinger := startPing(t, n)
	cmd := bloat(ctx, t, n.Client, append([]string{"speedtest", "-H", n.Server.IP.String(), "-t", seconds(length), "--json", "-o", recording}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var o outcome
	o.pings, o.pinger = pinger()
	o.kernel = readEchoes(t, n.Client).since(before)
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 4 && os.Getenv(accuracyVariable) == "" {
		skipIfBusy(t, parse(t, stdout.Bytes()))
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, stderr.String(), stdout.String())
	}
	o.result = parse(t, stdout.Bytes())
	file, err := os.Open(recording)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if o.rec, err = bufferbloat.ReadRecording(file); err != nil {
		t.Fatal(err)
	}
	return o
}

// skipIfBusy skips the test where the program itself says that this machine, and not the link, may be what a run shows: it then makes no comparison.
func skipIfBusy(t *testing.T, d document) {
	t.Helper()
	for _, f := range d.Findings {
		switch f.Code {
		case "cpu_client", "cpu_server", "probes_unsent", "probes_late":
			t.Skipf("this machine is too busy to compare: %s", f.Text)
		}
	}
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// pinged is one reply that ping printed.
type pinged struct {
	sent time.Time // by the wall clock
	rtt  time.Duration
}

// pingTotals are ping's own last words.
type pingTotals struct{ sent, received int }

var (
	pingReply  = regexp.MustCompile(`(?m)^\[(\d+\.\d+)\] .*time=([\d.]+) ms`)
	pingCounts = regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`)
)

// startPing starts iputils ping and returns the function that ends it and returns what it saw.
func startPing(t *testing.T, n *testnet.Net) func() ([]pinged, pingTotals) {
	t.Helper()
	if _, err := exec.LookPath("ping"); err != nil {
		facility.Missing(t, "ping", err.Error())
	}
	cmd := n.Client.Command("ping", "-n", "-D", "-i", "0.2", n.Server.IP.String())
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() ([]pinged, pingTotals) {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Errorf("end ping: %v", err)
		}
		var exit *exec.ExitError // ping's status says whether all pings were answered
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			t.Errorf("ping: %v", err)
		}
		var pings []pinged
		for _, m := range pingReply.FindAllStringSubmatch(out.String(), -1) {
			at, err1 := strconv.ParseFloat(m[1], 64)
			ms, err2 := strconv.ParseFloat(m[2], 64)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatalf("ping printed %q: %v", m[0], err)
			}
			rtt := time.Duration(ms * float64(time.Millisecond))
			pings = append(pings, pinged{time.UnixMicro(int64(at * 1e6)).Add(-rtt), rtt})
		}
		counts := pingCounts.FindStringSubmatch(out.String())
		if counts == nil {
			t.Fatalf("ping printed no summary:\n%s", out.String())
		}
		sent, _ := strconv.Atoi(counts[1])
		received, _ := strconv.Atoi(counts[2])
		return pings, pingTotals{sent, received}
	}
}

// echoes are the kernel's counts of ICMP echo in one namespace.
type echoes struct{ requests, replies int }

func (e echoes) since(before echoes) echoes {
	return echoes{e.requests - before.requests, e.replies - before.replies}
}

// readEchoes reads the requests that the namespace sent and the replies that it received (RFC 4293 by way of /proc/net/snmp).
func readEchoes(t *testing.T, s *testnet.Space) echoes {
	t.Helper()
	out, err := s.Command("cat", "/proc/net/snmp").Output()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Icmp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		count := map[string]int{}
		for i, name := range names[1:] {
			count[name], _ = strconv.Atoi(fields[i+1])
		}
		return echoes{count["OutEchos"], count["InEchoReps"]}
	}
	t.Fatalf("no ICMP counts in:\n%s", out)
	return echoes{}
}
