package qdisc

import (
	"bytes"
	"encoding/json"
	"errors"
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

// named are the counters of a kind that tc's JSON has too: our names, and tc's.
func named(kind string) map[string]string {
	switch kind {
	case "fq_codel":
		return map[string]string{"maxpacket": "maxpacket", "drop_overlimit": "drop_overlimit", "new_flow_count": "new_flow_count", "ecn_mark": "ecn_mark",
			"new_flows_len": "new_flows_len", "old_flows_len": "old_flows_len"}
	case "codel":
		return map[string]string{"count": "count", "drop_overlimit": "drop_overlimit", "ecn_mark": "ecn_mark"}
	case "pie":
		return map[string]string{"packets_in": "pkts_in", "overlimit": "overlimit", "maxq": "maxq", "ecn_mark": "ecn_mark"}
	case "fq_pie":
		return map[string]string{"new_flow_count": "new_flow_count", "memory_used": "memory_used"}
	case "red", "choke":
		return map[string]string{"early": "early", "pdrop": "pdrop", "other": "other"}
	case "fq":
		return map[string]string{"flows": "flows", "inactive_flows": "inactive", "throttled_flows": "throttled"}
	case "cake":
		return map[string]string{"memory_used": "memory_used"}
	}
	return nil
}

func TestEachKindThatThisKernelHasIsReadAsTcReadsIt(t *testing.T) {
	n := testnet.New(t)
	device := n.ClientDevice.Name
	for _, c := range []struct {
		kind string
		args string
	}{
		{"pfifo", "limit 50"}, {"bfifo", "limit 50000"}, {"pfifo_fast", ""}, {"tbf", "rate 20mbit burst 10k limit 50000"}, {"htb", "default 1"},
		{"fq_codel", "limit 100"}, {"codel", ""}, {"cake", "bandwidth 20mbit diffserv4"}, {"pie", ""}, {"fq_pie", ""}, {"fq", ""}, {"sfq", ""},
		{"red", "limit 400000 min 30000 max 90000 avpkt 1000 burst 55 probability 0.02"}, {"choke", "limit 1000 min 5 max 10 burst 5 bandwidth 20mbit"}, {"netem", "limit 3000"},
		{"hfsc", ""}, {"prio", ""}, {"drr", ""}, {"qfq", ""},
	} {
		t.Run(c.kind, func(t *testing.T) {
			args := append([]string{"qdisc", "replace", "dev", device, "root", "handle", "1:", c.kind}, strings.Fields(c.args)...)
			if out, err := n.Client.Command("tc", args...).CombinedOutput(); err != nil {
				facility.Missing(t, c.kind, string(out))
			}
			defer func() { _ = n.Client.Command("tc", "qdisc", "del", "dev", device, "root").Run() }()
			// Some kinds drop what no class is made for.
			_ = n.Client.Command("ping", "-q", "-c", "5", "-i", "0.002", "-W", "1", "-w", "2", "-s", "1000", n.Server.IP.String()).Run()
			show := func() []byte { return tc(t, n.Client, "-s", "-j", "qdisc", "show", "dev", device) }
			var got []Queue
			text := show()
			for range 10 { // until nothing passed between the readings
				n.Client.Inside(t, func() {
					i, err := net.InterfaceByName(device)
					if err == nil {
						got, err = Read(i.Index)
					}
					if err != nil {
						t.Error(err)
					}
				})
				before := text
				if text = show(); bytes.Equal(before, text) {
					break
				}
			}
			var want []tcQueue
			var raw []map[string]any
			if err := errors.Join(json.Unmarshal(text, &want), json.Unmarshal(text, &raw)); err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 || len(want) == 0 {
				t.Fatalf("got %+v; tc has %s", got, text)
			}
			g, w := got[0], want[0]
			if g.Kind != c.kind || w.Kind != c.kind || g.Parent != Root || g.Bytes != w.Bytes || g.Packets != w.Packets || g.Drops != w.Drops ||
				g.Overlimits != w.Overlimits || g.Requeues != w.Requeues || g.Backlog != w.Backlog || g.Length != w.Length {
				t.Errorf("got %+v\ntc  %+v", g, w)
			}
			if layoutFields, _ := layout(c.kind, false); len(g.More) == 0 && (len(layoutFields) > 0 || c.kind == "cake" || c.kind == "pie") {
				t.Errorf("nothing of its own is read; tc has %s", text)
			}
			compared := 0
			keys := named(c.kind)
			for _, m := range g.More {
				if v, ok := raw[0][keys[m.Name]].(float64); ok {
					if compared++; v != m.Value {
						t.Errorf("%s is %v; tc has %v", m.Name, m.Value, v)
					}
				}
			}
			if compared == 0 && len(keys) > 0 {
				t.Errorf("nothing of %+v is in tc's %s", g.More, text)
			}
		})
	}
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
