package acceptance

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

const (
	proberCount    = 600
	proberInterval = 10 * time.Millisecond
	proberLeast    = 300 // round trips that a 99th percentile is of
)

// proberCase is a situation that the probers are compared in, with the goal for the 99th percentile of our error.
type proberCase struct {
	name    string
	burners int // processes that do nothing but keep a CPU busy
	flows   int // bulk flows each way in our own process
	goal    time.Duration
}

// TestAccuracyOfProbes has all probers at work at once and compares what each says with the kernel's stamps on its packets on the wire, as an AF_PACKET
// socket in the same namespace sees them. Of irtt's round trips the server's own time is taken off, as the packets tell it.
func TestAccuracyOfProbes(t *testing.T) {
	if os.Getenv(accuracyVariable) == "" {
		t.Skipf("set %s=1 (make bench) for the comparison of probers", accuracyVariable)
	}
	for _, program := range []string{"ping", "fping", "irtt"} {
		if _, err := exec.LookPath(program); err != nil {
			facility.Missing(t, program, err.Error())
		}
	}
	n := testnet.New(t)
	to := directLink(t, n)
	server := n.Server.Command("irtt", "server", "-b", to.String(), "-i", "1ms")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	stop := startServer(t, n.Server, "netperf", netip.AddrPortFrom(to, 12865), 8)
	t.Cleanup(func() { stop() })
	awaitPeers(t, n.Client, to)
	fmt.Println("| situation | prober | probes | error p50, us | p90 | p99 | highest |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |")
	for _, c := range []proberCase{
		{"idle", 0, 0, 50 * time.Microsecond},
		{"both CPUs busy", runtime.NumCPU(), 0, 150 * time.Microsecond},
		{"four flows in our process", 0, 2, 150 * time.Microsecond},
	} {
		c.compare(t, n, to)
	}
}

// awaitPeers returns when the neighbour is known and the irtt server answers.
func awaitPeers(t *testing.T, s *testnet.Space, to netip.Addr) {
	t.Helper()
	var out []byte
	err := fmt.Errorf("not tried")
	for tries := 0; err != nil && tries < 20; tries++ {
		if out, err = s.Command("ping", "-n", "-c", "1", "-W", "1", to.String()).CombinedOutput(); err == nil {
			out, err = s.Command("irtt", "client", "-n", "-q", to.String()).CombinedOutput()
		}
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestRoundTripsAreThoseOfTheWireOnABusyHost is the part of the comparison that needs no quiet machine: both CPUs have something better to do.
func TestRoundTripsAreThoseOfTheWireOnABusyHost(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	// Not in parallel: others measure too.
	if _, err := exec.LookPath("irtt"); err != nil {
		facility.Missing(t, "irtt", err.Error())
	}
	n := testnet.New(t)
	to := directLink(t, n)
	server := n.Server.Command("irtt", "server", "-b", to.String())
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	awaitPeers(t, n.Client, to)
	burn(t, runtime.NumCPU())
	stop := make(chan struct{})
	wire := captureProbes(t, n.Client, "cl1", stop)
	cmd := asHelper(t, n.Client, "prober", to.String(), "100", "10ms", "0")
	out, err := cmd.Output()
	close(stop)
	seen := wire()
	said := map[string]roundTrips{}
	if err == nil {
		err = json.Unmarshal(out, &said)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, size := range map[string]proberSize{"our ICMP": {unix.IPPROTO_ICMP, ourEchoSize}, "our irtt": {unix.IPPROTO_UDP, ourIRTTSize}} {
		errors := errorsOf(said[name], seen[size])
		if len(errors) < 10 {
			t.Errorf("%s: %d round trips of %d said and %d on the wire go together", name, len(errors), len(said[name]), len(seen[size]))
			continue
		}
		if p90 := errors[len(errors)*9/10]; p90 > time.Millisecond {
			t.Errorf("%s: one in ten is %v or more off the wire's", name, p90)
		}
	}
}

// burn keeps so many CPUs busy until the test ends.
func burn(t *testing.T, n int) {
	t.Helper()
	for range n {
		burner := exec.Command("sh", "-c", "while :; do :; done")
		if err := burner.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = burner.Process.Kill(); _ = burner.Wait() })
	}
}

func (c proberCase) compare(t *testing.T, n *testnet.Net, to netip.Addr) {
	t.Helper()
	for range c.burners {
		burner := exec.Command("sh", "-c", "while :; do :; done")
		if err := burner.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = burner.Process.Kill(); _ = burner.Wait() }()
	}
	stop := make(chan struct{})
	wire := captureProbes(t, n.Client, "cl1", stop)
	said := probeAtOnce(t, n.Client, to, c.flows)
	close(stop)
	seen := wire()
	best, ours := time.Duration(math.MaxInt64), map[string]time.Duration{}
	bestName := ""
	for _, p := range []struct {
		name string
		size proberSize
		ours bool
	}{
		{"our ICMP", proberSize{unix.IPPROTO_ICMP, ourEchoSize}, true}, {"our irtt", proberSize{unix.IPPROTO_UDP, ourIRTTSize}, true},
		{"ping", proberSize{unix.IPPROTO_ICMP, pingSize}, false}, {"fping", proberSize{unix.IPPROTO_ICMP, fpingSize}, false},
		{"irtt", proberSize{unix.IPPROTO_UDP, stockIRTTSize}, false}, {"pro-bing", proberSize{unix.IPPROTO_ICMP, proBingSize}, false},
	} {
		errors := errorsOf(said[p.name], seen[p.size])
		if len(errors) < proberLeast || len(errors) < len(said[p.name])*9/10 {
			t.Errorf("%s, %s: %d round trips of %d said and %d on the wire go together", c.name, p.name, len(errors), len(said[p.name]), len(seen[p.size]))
			continue
		}
		q := func(f float64) time.Duration { return errors[int(f*float64(len(errors)-1))] }
		us := func(d time.Duration) float64 { return float64(d) / 1000 }
		fmt.Printf("| %s | %s | %d | %.1f | %.1f | %.1f | %.1f |\n", c.name, p.name, len(errors), us(q(0.5)), us(q(0.9)), us(q(0.99)), us(q(1)))
		if p99 := q(0.99); p.ours {
			ours[p.name] = p99
		} else if p99 < best {
			best, bestName = p99, p.name
		}
	}
	for name, p99 := range ours {
		if p99 > c.goal || p99 > best {
			t.Errorf("%s, %s: 99th percentile of the error %v, want at most %v and no more than %s's %v", c.name, name, p99, c.goal, bestName, best)
		}
	}
}

// errorsOf returns how far what was said is from what the wire saw, without sign, in ascending order.
func errorsOf(said roundTrips, seen map[uint32]wireTrip) (errors []time.Duration) {
	for seq, rtt := range said {
		if w := seen[seq]; !w.sent.IsZero() && !w.came.IsZero() {
			errors = append(errors, (rtt - (w.came.Sub(w.sent) - w.held)).Abs())
		}
	}
	slices.Sort(errors)
	return errors
}

var (
	pingSaid  = regexp.MustCompile(`icmp_seq=(\d+) .*time=([0-9.]+) ms`)
	fpingSaid = regexp.MustCompile(` \[(\d+)\], \d+ bytes, ([0-9.]+) ms`)
)

// probeAtOnce runs all probers at the same time and returns what each said.
func probeAtOnce(t *testing.T, s *testnet.Space, to netip.Addr, flows int) map[string]roundTrips {
	t.Helper()
	count, interval := strconv.Itoa(proberCount), strconv.FormatFloat(proberInterval.Seconds(), 'f', -1, 64)
	commands := map[string]*exec.Cmd{
		"ours":  asHelper(t, s, "prober", to.String(), count, proberInterval.String(), strconv.Itoa(flows)),
		"ping":  s.Command("ping", "-n", "-c", count, "-i", interval, "-s", strconv.Itoa(pingSize-8), to.String()),
		"fping": s.Command("fping", "-c", count, "-i", "1", "-p", strconv.Itoa(int(proberInterval.Milliseconds())), "-b", strconv.Itoa(fpingSize-8), to.String()),
		"irtt": s.Command("irtt", "client", "-q", "-i", proberInterval.String(), "-d", (proberCount * proberInterval).String(), "-l", strconv.Itoa(stockIRTTSize),
			"-o", "-", to.String()),
	}
	outputs, errs := map[string][]byte{}, map[string]error{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for name, cmd := range commands {
		group.Go(func() {
			var out bytes.Buffer
			cmd.Stdout = &out
			err := cmd.Run()
			mu.Lock()
			defer mu.Unlock()
			outputs[name], errs[name] = out.Bytes(), err
		})
	}
	group.Wait()
	for name, err := range errs {
		if err != nil {
			t.Fatalf("%v: %v", commands[name].Args, err)
		}
	}
	said := map[string]roundTrips{}
	if err := json.Unmarshal(outputs["ours"], &said); err != nil {
		t.Fatalf("our helper printed %s: %v", outputs["ours"], err)
	}
	said["ping"] = printed(outputs["ping"], pingSaid)
	said["fping"] = printed(outputs["fping"], fpingSaid)
	said["irtt"] = stockTrips(t, outputs["irtt"])
	return said
}

// printed reads round trips in milliseconds.
func printed(out []byte, form *regexp.Regexp) roundTrips {
	said := roundTrips{}
	for _, m := range form.FindAllSubmatch(out, -1) {
		seq, _ := strconv.Atoi(string(m[1])) // digits
		rtt, _ := strconv.ParseFloat(string(m[2]), 64)
		said[uint32(seq)] = time.Duration(rtt * float64(time.Millisecond))
	}
	return said
}

func stockTrips(t *testing.T, out []byte) roundTrips {
	t.Helper()
	var doc struct {
		RoundTrips []struct {
			Seqno uint32 `json:"seqno"`
			Lost  string `json:"lost"`
			Delay struct {
				RTT time.Duration `json:"rtt"`
			} `json:"delay"`
		} `json:"round_trips"`
	}
	if at := bytes.IndexByte(out, '{'); at >= 0 {
		out = out[at:]
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatalf("irtt printed %.200s: %v", out, err)
	}
	said := roundTrips{}
	for _, r := range doc.RoundTrips {
		if r.Lost == "false" {
			said[r.Seqno] = r.Delay.RTT
		}
	}
	return said
}

// proberSize tells a prober's packets.
type proberSize struct {
	protocol byte
	size     int
}

// wireTrip is one probe on the wire.
type wireTrip struct {
	sent, came time.Time
	held       time.Duration // by the server, as its reply tells
}

// captureProbes reads what passes a device until stop is closed. It looks every now and then and does not wait: to wake a waiting reader takes the
// kernel time in the midst of sending the packet. wait returns the round trips, by sequence number.
func captureProbes(t *testing.T, s *testnet.Space, device string, stop chan struct{}) (wait func() map[proberSize]map[uint32]wireTrip) {
	t.Helper()
	fd := -1
	var err error
	s.Inside(t, func() { fd, err = openCapture(device) })
	if err != nil {
		facility.Missing(t, "packet-socket", err.Error())
	}
	seen := map[proberSize]map[uint32]wireTrip{}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer unix.Close(fd)
		b, oob := make([]byte, 256), make([]byte, 128)
		for {
			n, k, _, from, err := unix.Recvmsg(fd, b, oob, unix.MSG_DONTWAIT)
			if err == nil {
				out := false
				if link, ok := from.(*unix.SockaddrLinklayer); ok {
					out = link.Pkttype == unix.PACKET_OUTGOING
				}
				noteProbe(seen, b[:n], out, stampOf(oob[:k]))
				continue
			}
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	return func() map[proberSize]map[uint32]wireTrip { reader.Wait(); return seen }
}

// openCapture returns a socket that gets the ICMP and UDP packets of a device, from the IPv4 header on.
func openCapture(device string) (int, error) {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	const loadByte, jumpIfEqual, give = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	filter := []unix.SockFilter{ // bulk flows would fill the buffer
		{Code: loadByte, K: 9},
		{Code: jumpIfEqual, K: unix.IPPROTO_ICMP, Jt: 2},
		{Code: jumpIfEqual, K: unix.IPPROTO_UDP, Jt: 1},
		{Code: give, K: 0},
		{Code: give, K: 1 << 16},
	}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	for _, step := range []func() error{
		func() error {
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
		},
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) },
		func() error { return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: dev.Index}) },
	} {
		if err := step(); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// noteProbe keeps the stamp of a probe or of a reply.
func noteProbe(seen map[proberSize]map[uint32]wireTrip, b []byte, out bool, at time.Time) {
	if len(b) < 28 || b[0] != 0x45 {
		return
	}
	key, p := proberSize{b[9], int(binary.BigEndian.Uint16(b[2:])) - 20}, b[20:]
	var seq uint32
	var held time.Duration
	switch {
	case key.protocol == unix.IPPROTO_ICMP:
		seq = uint32(binary.BigEndian.Uint16(p[6:]))
	case len(p) >= 8+16 && p[8+3]&^2 == 0: // an echo request or reply
		key.size -= 8
		seq = binary.LittleEndian.Uint32(p[8+12:])
		if stamps := p[8+28:]; !out && len(stamps) >= 32 {
			held = time.Duration(binary.LittleEndian.Uint64(stamps[24:]) - binary.LittleEndian.Uint64(stamps[8:]))
		}
	default:
		return
	}
	if seen[key] == nil {
		seen[key] = map[uint32]wireTrip{}
	}
	w := seen[key][seq]
	if out {
		w.sent = at
	} else {
		w.came, w.held = at, held
	}
	seen[key][seq] = w
}
