// Package testnet gives a test a real network of its own: three kernel namespaces in a row, client - router - server, with queues,
// blocks and broken cables where the test wants them.
//
// A test that needs something that the machine has not is skipped by facility.Missing with one of the names that this package
// documents: "netns" (root, ip, network namespaces), "veth", "ethtool" at New; "tbf", "bfifo" at Shape; "iprule" at Block.
//
// The kernel's default congestion control is the machine's own and may well be one that keeps queues short (bbr), so a test that
// asserts a queueing delay says which it uses: Space.SetCongestionControl, or an option of the sending socket.
package testnet

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"bufferbloat/internal/facility"
)

// Net is a client, a router that forwards between them, and a server, joined by two unshaped veth links without any offload
// that would put several packets into one. New makes it for one test; its parts may be used from any goroutine, but each
// device be changed by one at a time.
type Net struct {
	Client, Router, Server *Space

	// The four ends of the two links, from the client to the server. A packet is queued where it leaves a device: Down shapes what the
	// server sends (download), Up what the client sends. ClientDevice is the client's own, where a full queue is an error of send.
	ClientDevice, Down, Up, ServerDevice *Device
}

// Space is one network namespace.
type Space struct {
	Name    string     // as "ip netns" knows it
	IP, IP6 netip.Addr // the host's own addresses; the router's are those of its client's side
}

// Device is one end of a link.
type Device struct {
	Space *Space
	Name  string
	peer  *Device
}

// The prefixes are set aside for documentation (RFC 5737, RFC 3849): nothing that is sent to them by mistake goes anywhere.
const (
	clientIP, clientGateway   = "192.0.2.1", "192.0.2.254"
	serverIP, serverGateway   = "198.51.100.1", "198.51.100.254"
	clientIP6, clientGateway6 = "2001:db8:1::1", "2001:db8:1::fe"
	serverIP6, serverGateway6 = "2001:db8:2::1", "2001:db8:2::fe"
)

// New makes a network for t and removes it, with every process still in it, when t is over. It also removes what earlier
// test processes left that were killed before they could.
func New(t testing.TB) *Net {
	t.Helper()
	need(t, "netns", "ip")
	need(t, "ethtool", "ethtool")
	if os.Geteuid() != 0 {
		facility.Missing(t, "netns", "making network namespaces takes root")
	}
	if err := sweep(); err != nil {
		t.Logf("namespaces of dead test processes stay behind: %v", err)
	}
	n := layout(prefix(t))
	t.Cleanup(func() {
		for _, s := range n.spaces() {
			if err := remove(s.Name); err != nil {
				t.Errorf("remove namespace %s: %v", s.Name, err)
			}
		}
	})
	for _, s := range n.spaces() {
		if err := run("", "ip", "netns", "add", s.Name); err != nil {
			facility.Missing(t, "netns", err.Error())
		}
	}
	n.settings(t)
	for _, d := range []*Device{n.ClientDevice, n.Up} {
		if err := run("", "ip", "link", "add", d.Name, "netns", d.Space.Name, "type", "veth",
			"peer", "name", d.peer.Name, "netns", d.peer.Space.Name); err != nil {
			facility.Missing(t, "veth", err.Error())
		}
	}
	n.addresses(t)
	n.noOffload(t)
	return n
}

// layout names the parts of a network whose namespaces begin with prefix; it makes none of them.
func layout(prefix string) *Net {
	n := &Net{
		Client: &Space{Name: prefix + "cl", IP: netip.MustParseAddr(clientIP), IP6: netip.MustParseAddr(clientIP6)},
		Router: &Space{Name: prefix + "rt", IP: netip.MustParseAddr(clientGateway), IP6: netip.MustParseAddr(clientGateway6)},
		Server: &Space{Name: prefix + "sv", IP: netip.MustParseAddr(serverIP), IP6: netip.MustParseAddr(serverIP6)},
	}
	n.ClientDevice, n.Down = link(n.Client, "cl0", n.Router, "rt0")
	n.Up, n.ServerDevice = link(n.Router, "rt1", n.Server, "sv0")
	return n
}

func link(a *Space, aName string, b *Space, bName string) (*Device, *Device) {
	x, y := &Device{Space: a, Name: aName}, &Device{Space: b, Name: bName}
	x.peer, y.peer = y, x
	return x, y
}

func (n *Net) spaces() []*Space { return []*Space{n.Client, n.Router, n.Server} }

// settings are made before there is a device, so that every device begins with them.
func (n *Net) settings(t testing.TB) {
	t.Helper()
	for _, s := range n.spaces() {
		s.Sysctl(t, "net/ipv4/tcp_no_metrics_save", "1") // or one connection's ssthresh is the next one's
		s.Sysctl(t, "net/ipv6/conf/default/accept_dad", "0")
		s.Sysctl(t, "net/ipv6/conf/default/accept_ra", "0")
		s.Sysctl(t, "net/ipv6/conf/all/keep_addr_on_down", "1")
		s.Sysctl(t, "net/ipv6/conf/default/keep_addr_on_down", "1")
	}
	n.Router.Sysctl(t, "net/ipv4/ip_forward", "1")
	n.Router.Sysctl(t, "net/ipv6/conf/all/forwarding", "1")
}

func (n *Net) addresses(t testing.TB) {
	t.Helper()
	for _, e := range []struct {
		d             *Device
		ip, ip6       string
		route, route6 string
	}{
		{n.Down, clientGateway, clientGateway6, "", ""},
		{n.Up, serverGateway, serverGateway6, "", ""},
		{n.ClientDevice, clientIP, clientIP6, clientGateway, clientGateway6},
		{n.ServerDevice, serverIP, serverIP6, serverGateway, serverGateway6},
	} {
		lines := []string{
			"link set lo up",
			"addr add " + e.ip + "/24 dev " + e.d.Name,
			"addr add " + e.ip6 + "/64 dev " + e.d.Name + " nodad",
			"link set " + e.d.Name + " up",
		}
		if e.route != "" {
			lines = append(lines, "route add default via "+e.route, "route add default via "+e.route6)
		}
		if err := run(strings.Join(lines, "\n"), "ip", "-n", e.d.Space.Name, "-batch", "-"); err != nil {
			t.Fatalf("set up %s: %v", e.d.Name, err)
		}
	}
}

// noOffload makes every packet in the queues one frame. With segmentation offload a queue holds lumps of 64 kB, and the delay that a
// test would measure is the lump's.
func (n *Net) noOffload(t testing.TB) {
	t.Helper()
	for _, d := range []*Device{n.ClientDevice, n.Down, n.Up, n.ServerDevice} {
		out, err := d.Space.Command("ethtool", "-K", d.Name, "tso", "off", "gso", "off", "gro", "off").CombinedOutput()
		if err != nil {
			facility.Missing(t, "ethtool", fmt.Sprintf("turn off the offloads of %s: %v: %s", d.Name, err, out))
		}
	}
}

// Command returns the command, not yet started, to run in the namespace. It is killed at the latest when the test ends, but a
// test that starts it waits for it.
func (s *Space) Command(name string, args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", s.Name, name}, args...)...)
}

// Do runs ip's command line (without "ip") in the namespace and fails the test if it does not succeed.
func (s *Space) Do(t testing.TB, args ...string) {
	t.Helper()
	if err := run("", "ip", append([]string{"-n", s.Name}, args...)...); err != nil {
		t.Fatal(err)
	}
}

// Sysctl sets one of the namespace's kernel settings, named by its path below /proc/sys, and fails the test if it cannot.
func (s *Space) Sysctl(t testing.TB, path, value string) {
	t.Helper()
	if err := s.sysctl(path, value); err != nil {
		t.Fatal(err)
	}
}

func (s *Space) sysctl(path, value string) error {
	out, err := s.Command("sh", "-c", `printf %s "$2" > "/proc/sys/$1"`, "sh", path, value).CombinedOutput()
	if err != nil {
		return fmt.Errorf("set %s=%s in %s: %w: %s", path, value, s.Name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// SetCongestionControl makes the first of the algorithms that the kernel permits the namespace's default for new TCP connections and
// returns its name. A namespace may be refused what the machine at large allows only to privileged sockets.
func (s *Space) SetCongestionControl(t testing.TB, names ...string) string {
	t.Helper()
	var refused []string
	for _, name := range names {
		err := s.sysctl("net/ipv4/tcp_congestion_control", name)
		if err == nil {
			return name
		}
		refused = append(refused, err.Error())
	}
	t.Fatalf("no congestion control of %v: %s", names, strings.Join(refused, "; "))
	return ""
}

// SetHosts makes text the hosts file of the commands in this namespace, so that they know names that nobody else does.
func (s *Space) SetHosts(t testing.TB, text string) { t.Helper(); s.setFile(t, "hosts", text) }

// SetResolver makes text the resolv.conf of the commands in this namespace.
func (s *Space) SetResolver(t testing.TB, text string) { t.Helper(); s.setFile(t, "resolv.conf", text) }

// setFile puts a file over that of /etc for the commands in this namespace.
func (s *Space) setFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filesOf(s.Name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filesOf(s.Name)+"/"+name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// need ends the test as lacking the facility where command is not installed.
func need(t testing.TB, name, command string) {
	t.Helper()
	if _, err := exec.LookPath(command); err != nil {
		facility.Missing(t, name, err.Error())
	}
}

// run executes a command with stdin as its input. Its error holds the command line and what it printed.
func run(stdin, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// output is run that returns what the command printed on stdout.
func output(name string, args ...string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// prefix begins the names of one network's namespaces: who owns them, and a random part, as a process may have several at a time.
func prefix(t testing.TB) string {
	t.Helper()
	b := make([]byte, 4)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	own, err := started(os.Getpid())
	if err != nil {
		facility.Missing(t, "netns", err.Error())
	}
	return owner{os.Getpid(), own}.prefix() + hex.EncodeToString(b) + "-"
}
