package device

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"bufferbloat/internal/testnet"
)

func TestTheDeviceIsThatOfTheSourceAddressOrTheOneThatIsNamed(t *testing.T) {
	n := testnet.New(t)
	const source = "203.0.113.7"
	for _, args := range [][]string{
		{"link", "add", "wan0", "type", "veth", "peer", "name", "wan1"}, {"address", "add", source + "/24", "dev", "wan0"}, {"link", "set", "wan0", "up"},
		{"link", "set", "wan1", "up"}, {"rule", "add", "from", source, "lookup", "100"}, {"route", "add", "default", "dev", "wan0", "table", "100"},
	} {
		if out, err := n.Client.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	n.Client.Inside(t, func() {
		for _, tt := range []struct{ source, device, want string }{{"", "", n.ClientDevice.Name}, {source, "", "wan0"}, {"", "wan1", "wan1"}, {source, "lo", "lo"}} {
			from, _ := netip.ParseAddr(tt.source)
			index, err := Egress(n.Server.IP, from, tt.device)
			var l Link
			if err == nil {
				l, err = ReadLink(index)
			}
			if err != nil || l.Name != tt.want {
				t.Errorf("from %q through %q: %q, %v; want %s", tt.source, tt.device, l.Name, err, tt.want)
			}
		}
		if _, err := Egress(n.Server.IP, netip.Addr{}, "wan9"); err == nil {
			t.Error("through a device that is not there: no error")
		}
	})
}

func TestTheDeviceTowardsAnAddressAndWhatItCounts(t *testing.T) {
	n := testnet.New(t)
	name := n.ClientDevice.Name
	look := func() (l Link, f Facts) {
		t.Helper()
		n.Client.Inside(t, func() {
			for _, to := range []netip.Addr{n.Server.IP, n.Server.IP6, n.Router.IP} {
				index, err := Egress(to, netip.Addr{}, "")
				if err == nil {
					l, err = ReadLink(index)
				}
				if err != nil || l.Name != name {
					t.Errorf("to %v: %+v, %v; want %s", to, l, err, name)
				}
			}
			f = ReadFacts(l)
		})
		return l, f
	}
	before, _ := look()
	if out, err := n.Client.Command("ping", "-q", "-c", "10", "-i", "0.002", "-s", "1000", n.Server.IP.String()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after, facts := look()
	const least = 10 * (1000 + 8 + 20 + 14) // the last is Ethernet's header
	if sent, received := after.TxBytes-before.TxBytes, after.RxBytes-before.RxBytes; sent < least || received < least || after.TxPackets-before.TxPackets < 10 {
		t.Errorf("10 pings: %d bytes sent, %d received; want at least %d", sent, received, least)
	}
	if after.Kind != "veth" || after.MTU != 1500 || !facts.Virtual || facts.Driver != "veth" || len(facts.Offloads) != 0 {
		t.Errorf("got %+v, %+v; want a veth whose offloads were turned off", after, facts)
	}
	if why := facts.Missing["byte queue limits"]; !strings.Contains(why, "no such file") && !strings.Contains(why, "another network namespace") {
		t.Errorf("byte queue limits: %+v, %q; want that /sys is another namespace's", facts.BQL, why)
	}
	n.Client.Inside(t, func() {
		if _, err := Egress(netip.MustParseAddr("203.0.113.1"), netip.Addr{}, ""); err != nil {
			t.Errorf("by the default route: %v", err)
		}
		if _, err := ReadLink(4711); err == nil {
			t.Error("a device that is not there: no error")
		}
	})
	if out, err := n.Client.Command("ethtool", "-K", name, "tso", "on", "gso", "on", "gro", "on").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, facts = look(); strings.Join(facts.Offloads, " ") != "tso gso gro" {
		t.Errorf("offloads that were turned on: %v, %v", facts.Offloads, facts.Missing)
	}
}

func TestTheFactsOfThisHostsDevicesAreKnownOrHaveAReason(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil {
		t.Skip(err)
	}
	for _, i := range all {
		l, err := ReadLink(i.Index)
		if err != nil {
			t.Errorf("%s: %v", i.Name, err)
			continue
		}
		f := ReadFacts(l)
		if f.Speed == 0 && f.Missing["speed"] == "" {
			t.Errorf("%s: neither a speed nor a reason: %+v", i.Name, f)
		}
		if _, err := os.Stat("/sys/class/net/" + i.Name + "/queues/tx-0/byte_queue_limits/limit"); err == nil && len(f.BQL) == 0 {
			t.Errorf("%s: no byte queue limits: %+v", i.Name, f)
		}
		t.Logf("%+v %+v", l, f)
	}
}
