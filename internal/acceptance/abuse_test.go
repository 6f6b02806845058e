package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load"
	"bufferbloat/load/iperf3"
	"bufferbloat/load/netperf"
)

// descriptors is the limit of the server under abuse, below what its limits of tests would take.
const descriptors = 64

// TestTheServerWithFewDescriptorsServesTheNextRealClient runs bloat serve with a limit of 64 descriptors, keeps all of them busy with strangers, and
// has a real client measure in their midst and after they were killed.
func TestTheServerWithFewDescriptorsServesTheNextRealClient(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		facility.Missing(t, "proc", err.Error())
	}
	at, _, _, pid, log := fewDescriptors(t)
	client := &netperf.Client{Host: host.NewKernel(), Addr: at}
	real := func(when string) {
		t.Helper()
		begin := time.Now()
		r, err := client.NewFlow(netperf.FlowOptions{Direction: load.Download, Length: 300 * time.Millisecond}).Run(t.Context())
		if err != nil || r.Bytes == 0 {
			t.Errorf("%s: a real client: %d bytes, %v", when, r.Bytes, err)
			return
		}
		// It takes some 10 ms; what it may take is tested in virtual time, by the servers.
		if d := r.First.Sub(begin); d > 10*time.Second {
			t.Errorf("%s: a real client had its first byte after %v", when, d)
		}
	}
	real("before")
	before := openDescriptors(t, pid)
	half := wire.Omni(wire.TCPStream, wire.IPv4, 1).AppendTo(nil)[:300]
	for _, crowd := range []struct {
		name  string
		n     int
		hello []byte
	}{
		{"silent clients", 200, nil}, {"half greetings", 200, half}, {"HTTP hellos", 200, []byte("GET / HTTP/1.1\r\n\r\n")},
		{"TLS hellos", 200, []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")},
		{"uploads", 200, wire.Omni(wire.TCPStream, wire.IPv4, 100).AppendTo(nil)},
	} {
		var open []net.Conn
		for range crowd.n {
			c, err := net.DialTimeout("tcp", at.String(), 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write(crowd.hello) // it may be put out meanwhile
			open = append(open, c)
		}
		if crowd.name != "uploads" { // they hold the descriptors by right, until they end
			real("among " + crowd.name)
		}
		for _, c := range open {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
		real("after " + crowd.name)
	}
	dribble(t, at, real)
	for deadline := time.Now().Add(10 * time.Second); openDescriptors(t, pid) > before+2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors are open 10 s after the last client left, %d were before", openDescriptors(t, pid), before)
		}
	}
	// 64 lines at once, and ten a second.
	if lines := strings.Count(log(), "\n"); lines > 64+10*60 {
		t.Errorf("%d lines of log", lines)
	}
}

// dribble has clients that send one byte each 20 ms, and a real one among them.
func dribble(t *testing.T, at netip.AddrPort, real func(string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 80 {
		c, err := net.DialTimeout("tcp", at.String(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer c.Close()
			for _, b := range wire.Omni(wire.TCPRR, wire.IPv4, 1).AppendTo(nil) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
	real("among clients of one byte each 20 ms")
	cancel()
	group.Wait()
}

// TestStrangersAtOnePortLeaveTheOthersRoom fills each of three servers of one process with silence, and has real clients of two in its midst: the
// servers share the descriptors, and none knows what another could give up.
func TestStrangersAtOnePortLeaveTheOthersRoom(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		facility.Missing(t, "proc", err.Error())
	}
	np, ip, web, _, _ := fewDescriptors(t)
	h := host.NewKernel()
	for _, at := range []netip.AddrPort{np, ip, web} {
		for _, n := range []int{descriptors - 16, 200} {
			var open []net.Conn
			for range n {
				c, err := net.DialTimeout("tcp", at.String(), 5*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				open = append(open, c)
			}
			r, err := (&netperf.Client{Host: h, Addr: np}).NewFlow(netperf.FlowOptions{Direction: load.Upload, Length: 100 * time.Millisecond}).Run(t.Context())
			if err != nil || r.Bytes == 0 {
				t.Errorf("%d strangers at %v: a netperf client: %d bytes, %v", n, at, r.Bytes, err)
			}
			flow := (&iperf3.Client{Host: h, Addr: ip}).NewTest(iperf3.TestOptions{Uploads: 1, Length: 100 * time.Millisecond}).Flows(load.Upload)[0]
			if r, err = flow.Run(t.Context()); err != nil || r.Bytes == 0 {
				t.Errorf("%d strangers at %v: an iperf3 client: %d bytes, %v", n, at, r.Bytes, err)
			}
			for _, c := range open {
				_ = c.Close()
			}
		}
	}
}

// fewDescriptors runs the server on loopback and returns its addresses for netperf, iperf3 and HTTP, its process and what it has logged so far.
func fewDescriptors(t *testing.T) (np, ip, web netip.AddrPort, pid int, log func() string) {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	var ports [4]int
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	script := fmt.Sprintf("ulimit -n %d && exec %q serve --bind 127.0.0.1 --port %d --irtt-port %d --iperf3-port %d --http-port %d",
		descriptors, binary, ports[0], ports[1], ports[2], ports[3])
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	var mu sync.Mutex
	var printed bytes.Buffer
	cmd.Stderr = writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return printed.Write(b) })
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log = func() string { mu.Lock(); defer mu.Unlock(); return printed.String() }
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			s := log()
			t.Logf("bloat serve printed, at the end:\n%s", s[max(0, len(s)-3000):])
		}
	})
	at := func(port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))
	}
	np, ip, web = at(ports[0]), at(ports[2]), at(ports[3])
	for range 400 {
		c, err := net.DialTimeout("tcp", np.String(), time.Second)
		if err == nil {
			_ = c.Close()
			return np, ip, web, cmd.Process.Pid, log
		}
		time.Sleep(25 * time.Millisecond) // refused: the server is on its way, and tells nobody when it is there
	}
	t.Fatal("bloat serve does not answer within 10 s")
	return np, ip, web, 0, nil
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

var _ io.Writer = writer(nil)

// openDescriptors counts what a process has open.
func openDescriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
