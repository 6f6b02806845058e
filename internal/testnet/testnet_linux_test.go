package testnet

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
)

func TestAnIdleNetAddsLessThanAMillisecond(t *testing.T) {
	t.Parallel()
	n := New(t)
	for _, to := range []netip.Addr{n.Server.IP, n.Server.IP6} {
		p := ping(t, n.Client, to, "-c", "20", "-i", "0.01")
		if p.received != 20 {
			t.Errorf("%v answered %d of 20 pings", to, p.received)
		}
		if p.least >= time.Millisecond {
			t.Errorf("%v: least RTT %v, want under 1 ms", to, p.least)
		}
	}
}

func TestTCPFillsAShapedLink(t *testing.T) {
	t.Parallel()
	n := New(t)
	n.Down.Shape(t, Queue{Rate: 20 * bitrate.Mbit, Buffer: 250 * time.Millisecond})
	algorithm := n.Server.SetCongestionControl(t, "cubic", "reno")
	got, want := iperf3(t, n, "-R", "-t", "4", "-O", "1"), Payload(20*bitrate.Mbit)
	off := float64(got)/float64(want) - 1
	t.Logf("iperf3 with %s received %v, theory %v, off by %.2f %%", algorithm, got, want, off*100)
	// On a busy machine iperf3's second that is left out ends late, with a queue full of data behind it. Headers that are not counted would be 4.5 %.
	if math.Abs(off) > 0.04 {
		t.Errorf("iperf3 with %s received %v, want %v within 4 %%", algorithm, got, want)
	}
	if sent := n.Down.QueueCounters(t).Bytes; sent < 10_000_000 {
		t.Errorf("%d bytes went through the queue in 5 s at 20 Mbit/s", sent)
	}
}

// The pings are sent all at once, more than the queue holds: the last that finds room waits for the whole of it.
func TestAFullQueueDelaysByItsSizeAndDropsTheRest(t *testing.T) {
	t.Parallel()
	n := New(t)
	q := Queue{Rate: 4 * bitrate.Mbit, Buffer: 250 * time.Millisecond}
	for _, tt := range []struct {
		name string
		d    *Device
	}{{"down", n.Down}, {"up", n.Up}} {
		tt.d.Shape(t, q)
		p := ping(t, n.Client, n.Server.IP, "-l", "200", "-c", "200", "-s", "1472", "-W", "1")
		want := q.Rate.Duration(q.Bytes())
		if p.most < want*95/100 || p.most > want*105/100 {
			t.Errorf("%s: highest RTT %v, want %v within 5 %%", tt.name, p.most, want)
		}
		if room := q.Bytes() / 1514; p.received < room || p.received == p.sent {
			t.Errorf("%s: %d of %d pings answered, want at least the %d that the queue holds and not all", tt.name, p.received, p.sent, room)
		}
		if c := tt.d.QueueCounters(t); int(c.Drops) != p.sent-p.received {
			t.Errorf("%s: the queue counts %d drops, ping %d", tt.name, c.Drops, p.sent-p.received)
		}
		tt.d.Shape(t, Queue{Rate: bitrate.Gbit, Buffer: 10 * time.Millisecond})
	}
}

func TestAFullQueueOnTheClientsOwnDeviceIsAnErrorOfSend(t *testing.T) {
	t.Parallel()
	n := New(t)
	n.ClientDevice.Shape(t, Queue{Rate: 64 * bitrate.Kbit, Limit: 3000})
	var conn net.Conn
	var err error
	n.Client.Inside(t, func() { conn, err = net.Dial("udp", netip.AddrPortFrom(n.Server.IP, 9).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := reportErrors(conn.(*net.UDPConn)); err != nil {
		t.Fatal(err)
	}
	var full int
	for range 20 {
		if _, err := conn.Write(make([]byte, 1000)); errors.Is(err, syscall.ENOBUFS) {
			full++
		}
	}
	if full == 0 {
		t.Errorf("20 datagrams of 1000 bytes find room in a queue of 3000")
	}
}

// reportErrors makes the kernel report a full queue to send (ip(7), IP_RECVERR).
func reportErrors(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var optErr error
	err = raw.Control(func(fd uintptr) { optErr = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_RECVERR, 1) })
	return errors.Join(err, optErr)
}

func TestTheRouterRefusesWhatItIsToldTo(t *testing.T) {
	t.Parallel()
	n := New(t)
	for _, to := range []netip.Addr{n.Server.IP, n.Server.IP6} {
		for how, words := range map[Refusal]string{
			Blackhole:   `^PING [^\n]*\n\n---`,
			Prohibit:    "Packet filtered|Administratively prohibited",
			Unreachable: "Net Unreachable|No route",
		} {
			unblock := n.Block(t, Block{Protocol: "icmp", How: how})
			p := ping(t, n.Client, to, "-c", "1", "-W", "0.2")
			if p.received != 0 || !regexp.MustCompile(words).MatchString(p.text) {
				t.Errorf("%v, %s: %d answers, want 0 and a match of %q:\n%s", to, how, p.received, words, p.text)
			}
			unblock()
		}
		if p := ping(t, n.Client, to, "-c", "1"); p.received != 1 {
			t.Errorf("%v does not answer after the block is gone:\n%s", to, p.text)
		}
	}
	n.Block(t, Block{Protocol: "udp", First: 20000, Last: 65534, How: Prohibit})
	n.Block(t, Block{Protocol: "tcp", First: 12865, How: Prohibit})
	n.Refuse(t, netip.PrefixFrom(n.Server.IP6, 128), Unreachable)
	if p := ping(t, n.Client, n.Server.IP, "-c", "1"); p.received != 1 {
		t.Errorf("a block of other ports, and of IPv6, stops ping over IPv4:\n%s", p.text)
	}
	if p := ping(t, n.Client, n.Server.IP6, "-c", "1", "-W", "0.2"); p.received != 0 || !strings.Contains(p.text, "nreachable") {
		t.Errorf("%d answers over a refused prefix, want 0 and the words No route:\n%s", p.received, p.text)
	}
}

func TestAPulledCableKeepsAddressesAndRoutes(t *testing.T) {
	t.Parallel()
	n := New(t)
	for _, d := range []*Device{n.ClientDevice, n.ServerDevice} {
		d.Unplug(t)
		if p := ping(t, n.Client, n.Server.IP, "-c", "1", "-W", "0.2"); p.received != 0 {
			t.Errorf("%s: an answer without a cable", d.Name)
		}
		d.Plug(t)
		for _, to := range []netip.Addr{n.Server.IP, n.Server.IP6} {
			if p := ping(t, n.Client, to, "-c", "1", "-i", "0.1", "-w", "3"); p.received == 0 {
				t.Errorf("%s, %v: no answer within 3 s with the cable back:\n%s", d.Name, to, p.text)
			}
		}
	}
}

func TestASmallMTURefusesLargerPackets(t *testing.T) {
	t.Parallel()
	n := New(t)
	n.ServerDevice.SetMTU(t, 1280)
	if p := ping(t, n.Client, n.Server.IP, "-c", "1", "-M", "do", "-s", "1252"); p.received != 1 {
		t.Errorf("1280 bytes do not pass an MTU of 1280:\n%s", p.text)
	}
	if p := ping(t, n.Client, n.Server.IP, "-c", "1", "-W", "0.2", "-M", "do", "-s", "1253"); p.received != 0 {
		t.Errorf("1281 bytes pass an MTU of 1280:\n%s", p.text)
	}
}

func TestADeviceCountsFramesWithTheirHeader(t *testing.T) {
	t.Parallel()
	n := New(t)
	ping(t, n.Client, n.Server.IP, "-c", "1") // neighbours know each other from here on
	before := n.Down.Counters(t)
	ping(t, n.Client, n.Server.IP, "-c", "10", "-i", "0.01", "-s", "972")
	after := n.Down.Counters(t)
	// A stray neighbour or multicast message of the kernel's own may be among them.
	for name, got := range map[string]uint64{"received": after.RxBytes - before.RxBytes, "sent": after.TxBytes - before.TxBytes} {
		if want := uint64(10 * (1000 + FrameOverhead)); got < want || got > want+1000 {
			t.Errorf("the router's device %s %d bytes for 10 pings of 1000, want %d", name, got, want)
		}
	}
}

func TestASpaceHasItsOwnHostsFile(t *testing.T) {
	t.Parallel()
	n := New(t)
	n.Client.SetHosts(t, n.Server.IP.String()+" two.example\n"+n.Server.IP6.String()+" two.example\n")
	out, err := n.Client.Command("cat", "/etc/hosts").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "two.example") {
		t.Errorf("/etc/hosts in the client: %v\n%s", err, out)
	}
}

// Whatever reads /proc/self/net is to see this process's own namespace, which is that of its main thread.
func TestThisProcessStaysInItsNamespace(t *testing.T) {
	t.Parallel()
	n := New(t)
	own := func() string {
		text, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := own()
	for range 300 {
		n.Client.Inside(t, func() {})
	}
	if after := own(); after != before {
		t.Errorf("the process was in %s, and is in %s", before, after)
	}
}

func TestCleanupLeavesNothing(t *testing.T) {
	t.Parallel()
	var spaces []string
	var server *exec.Cmd
	t.Run("a test that leaves a process", func(t *testing.T) {
		n := New(t)
		n.Client.SetHosts(t, "192.0.2.9 nobody.example\n")
		for _, s := range n.spaces() {
			spaces = append(spaces, s.Name)
		}
		server = n.Server.Command("sleep", "600")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
	})
	if server == nil {
		t.Skip("the network could not be made")
	}
	if err := server.Wait(); err == nil || server.ProcessState.Success() {
		t.Errorf("the process in the namespace ended with %v, want a kill", err)
	}
	left, err := ours()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range spaces {
		if slices.Contains(left, name) {
			t.Errorf("%s is still there", name)
		}
	}
}

func TestOnlyDeadOwnersNamespacesAreSwept(t *testing.T) {
	t.Parallel()
	New(t) // asks for the facility
	own, err := started(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// Our number with another start time is a process that was ours before and is dead.
	dead := owner{os.Getpid(), own - 1}.prefix() + "00000000-cl"
	alive := owner{os.Getpid(), own}.prefix() + "00000000-cl"
	foreign := "bb-of-somebody-else"
	for _, name := range []string{dead, alive, foreign} {
		if err := run("", "ip", "netns", "add", name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := os.Stat("/run/netns/" + name); err == nil {
				if err := run("", "ip", "netns", "delete", name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if err := sweep(); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]bool{dead: false, alive: true, foreign: true} {
		_, err := os.Stat("/run/netns/" + name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if got := err == nil; got != want {
			t.Errorf("after the sweep %s is there: %v, want %v", name, got, want)
		}
	}
}

func TestOwnersReadBackFromNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		owner{12, 345}.prefix() + "0a1b2c3d-cl": true,
		"bb-12-345-0a1b2c3d":                    false,
		"bb-0-345-0a1b2c3d-cl":                  false,
		"bb-x-345-0a1b2c3d-cl":                  false,
		"bb-12-y-0a1b2c3d-cl":                   false,
		"cc-12-345-0a1b2c3d-cl":                 false,
		"":                                      false,
	} {
		if got, ok := parseOwner(name); ok != want || ok && got != (owner{12, 345}) {
			t.Errorf("parseOwner(%q) = %+v, %v, want %v", name, got, ok, want)
		}
	}
}

// pinged is what ping printed.
type pinged struct {
	sent, received int
	least, most    time.Duration // 0 without a reply
	text           string
}

var (
	pingCounts = regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`)
	pingTimes  = regexp.MustCompile(`= ([\d.]+)/[\d.]+/([\d.]+)/`)
)

// ping runs iputils ping in a namespace and reads its summary; that nobody answers is no error.
func ping(t *testing.T, from *Space, to netip.Addr, args ...string) pinged {
	t.Helper()
	need(t, "ping", "ping")
	cmd := from.Command("ping", append(slices.Clone(args), "-n", to.String())...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	counts := pingCounts.FindSubmatch(out)
	if counts == nil && bytes.Contains(out, []byte("transmitted")) {
		counts = regexp.MustCompile(`(\d+) packets transmitted.* (\d+) received`).FindSubmatch(out)
	}
	if counts == nil {
		t.Fatalf("ping %v printed no summary (%v):\n%s", to, err, out)
	}
	p := pinged{sent: number(t, counts[1]), received: number(t, counts[2]), text: string(out)}
	if times := pingTimes.FindSubmatch(out); times != nil {
		p.least, p.most = milliseconds(t, times[1]), milliseconds(t, times[2])
	}
	return p
}

func number(t *testing.T, b []byte) int {
	t.Helper()
	n, err := strconv.Atoi(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func milliseconds(t *testing.T, b []byte) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(string(b) + "ms")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// iperf3 runs one test of the client against a server of its own and returns what the receiver got.
func iperf3(t *testing.T, n *Net, args ...string) bitrate.Bitrate {
	t.Helper()
	need(t, "iperf3", "iperf3")
	server := n.Server.Command("iperf3", "-s", "-1", "--forceflush")
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	// It prints that it listens; the client may come then.
	if _, err := out.Read(make([]byte, 512)); err != nil {
		t.Errorf("iperf3's server: %v", err)
	}
	result, err := output("timeout", append([]string{"30", "ip", "netns", "exec", n.Client.Name,
		"iperf3", "-J", "-c", n.Server.IP.String()}, args...)...)
	if err != nil {
		t.Errorf("iperf3's client: %v", err)
		_ = server.Process.Kill() // it waits for a client that will not come
	}
	if waitErr := server.Wait(); waitErr != nil && err == nil {
		t.Errorf("iperf3's server: %v", waitErr)
	}
	var parsed struct {
		End struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal(result, &parsed); err != nil {
		t.Fatalf("iperf3's result: %v:\n%s", err, result)
	}
	return bitrate.Bitrate(parsed.End.Received.BitsPerSecond)
}
