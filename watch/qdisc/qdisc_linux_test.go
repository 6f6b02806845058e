package qdisc

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

// tcQueue is what "tc -s -j qdisc" prints of a discipline.
type tcQueue struct {
	Kind   string `json:"kind"`
	Handle string `json:"handle"`
	Parent string `json:"parent"`
	Root   bool   `json:"root"`

	Bytes      uint64 `json:"bytes"`
	Packets    uint64 `json:"packets"`
	Drops      uint64 `json:"drops"`
	Overlimits uint64 `json:"overlimits"`
	Requeues   uint64 `json:"requeues"`
	Backlog    uint64 `json:"backlog"`
	Length     uint64 `json:"qlen"`
}

func tc(t *testing.T, s *testnet.Space, args ...string) []byte {
	t.Helper()
	out, err := s.Command("tc", args...).CombinedOutput()
	if err != nil {
		facility.Missing(t, "htb", string(out))
	}
	return out
}

func TestTheQueuesOfADeviceAreThoseThatTcShows(t *testing.T) {
	n := testnet.New(t)
	device := n.ClientDevice.Name
	tc(t, n.Client, "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "10")
	tc(t, n.Client, "class", "add", "dev", device, "parent", "1:", "classid", "1:10", "htb", "rate", "20mbit")
	tc(t, n.Client, "qdisc", "add", "dev", device, "parent", "1:10", "handle", "8001:", "pfifo", "limit", "50")
	if out, err := n.Client.Command("ping", "-q", "-c", "20", "-i", "0.002", "-s", "1000", n.Server.IP.String()).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got []Queue
	var index int
	n.Client.Inside(t, func() {
		i, err := net.InterfaceByName(device)
		if err == nil {
			index = i.Index
			got, err = Read(index)
		}
		if err != nil {
			t.Error(err)
		}
	})
	var want []tcQueue
	if err := json.Unmarshal(tc(t, n.Client, "-s", "-j", "qdisc", "show", "dev", device), &want); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || len(want) != 2 {
		t.Fatalf("got %+v; tc has %+v", got, want)
	}
	for i, w := range want {
		g := got[i]
		if g.Kind != w.Kind || g.Device != index || g.Handle.String() != w.Handle || w.Root != (g.Parent == Root) || !w.Root && g.Parent.String() != w.Parent ||
			g.Bytes != w.Bytes || g.Packets != w.Packets || g.Drops != w.Drops || g.Overlimits != w.Overlimits || g.Requeues != w.Requeues ||
			g.Backlog != w.Backlog || g.Length != w.Length || g.Packets < 20 {
			t.Errorf("got %+v\ntc  %+v", g, w)
		}
	}
	if got[1].Options.Limit != 50 || got[1].Name() != "pfifo parent 1:10" {
		t.Errorf("the leaf: %+v", got[1])
	}
	class := got[2]
	text := string(tc(t, n.Client, "-s", "class", "show", "dev", device))
	if !class.Class || class.Name() != "htb class 1:10" || class.Packets < 20 || len(class.More) != 2 || !strings.Contains(text, "class htb 1:10") {
		t.Errorf("the class: got %+v; tc has %s", class, text)
	}
}
