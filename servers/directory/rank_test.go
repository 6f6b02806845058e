package directory

import (
	"net"
	"testing"

	"bufferbloat/internal/host"
)

// Only loopback is asked here, and never a server of the built-in list.
func TestRankPutsTheNearestFirstAndTheSilentLast(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	defer func() { l.Close(); <-accepted }()
	loopback, port, nobody := "127.0.0.1", uint16(l.Addr().(*net.TCPAddr).Port), uint16(1)
	entries := []*Entry{
		{ID: "refuses", Protocol: "netperf", Host: &loopback, Port: &nobody},
		{ID: "answers", Protocol: "netperf", Host: &loopback, Port: &port},
		{ID: "speaks something else", Protocol: "icmp", Host: &loopback},
		{ID: "hands out servers", Protocol: "netperf", Port: &port},
		{ID: "speaks it too", Protocol: "ndt7", Host: &loopback, Also: []Service{{"netperf", port}}},
	}
	got := Rank(t.Context(), host.NewKernel(), entries, "netperf", host.AnyFamily, host.Options{})
	if len(got) != 3 || got[2].Entry.ID != "refuses" || got[2].Err == nil {
		t.Fatalf("got %+v, want three, the refusing one last", got)
	}
	for _, r := range got[:2] {
		if r.Err != nil || r.RTT <= 0 || r.Address.String() != loopback {
			t.Errorf("%s: %+v, want an RTT", r.Entry.ID, r)
		}
	}
	if got[0].RTT > got[1].RTT {
		t.Errorf("%v comes before %v", got[0].RTT, got[1].RTT)
	}
}
