package bufferbloat

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	"bufferbloat/watch/wifi"
)

func TestTheDeviceToTheFirstReachableServerIsWatched(t *testing.T) {
	t.Parallel()
	noRoute := errors.New("no route")
	devices := map[string]int{"192.0.2.1": 2, "192.0.2.2": 2, "192.0.2.3": 3}
	of := func(a, from netip.Addr, through string) (int, error) {
		if through != "" {
			return 9, nil
		}
		if i, ok := devices[a.String()]; ok {
			return i, nil
		}
		return 0, noRoute
	}
	for name, tt := range map[string]struct {
		addrs  []string // "" for a server that cannot be reached; one with a device after a % is gone to through that
		want   int
		alone  bool
		failed bool
	}{
		"the only server's":                                  {[]string{"192.0.2.1"}, 2, true, false},
		"the second where the first cannot be reached":       {[]string{"", "192.0.2.3"}, 3, true, false},
		"alone where others are behind it":                   {[]string{"192.0.2.1", "", "192.0.2.2"}, 2, true, false},
		"not alone where another is behind another":          {[]string{"192.0.2.1", "192.0.2.3"}, 2, false, false},
		"not alone where another is gone to through another": {[]string{"192.0.2.1", "192.0.2.2%wan9"}, 2, false, false},
		"not alone where another has none":                   {[]string{"192.0.2.1", "198.51.100.1"}, 2, false, false},
		"the second where the first has none":                {[]string{"198.51.100.1", "192.0.2.1"}, 2, false, false},
		"none where no server can be reached":                {[]string{"", ""}, 0, false, true},
		"none where none of the servers has a device":        {[]string{"198.51.100.1"}, 0, false, true},
	} {
		var peers []*peer
		for _, a := range tt.addrs {
			p := &peer{}
			if a, p.server.Interface, _ = strings.Cut(a, "%"); a != "" {
				p.addr = netip.MustParseAddr(a)
			}
			peers = append(peers, p)
		}
		got, alone, err := egress(peers, of)
		if got != tt.want || alone != tt.alone || (err != nil) != tt.failed {
			t.Errorf("%s: got %d, alone %v, %v; want %d, alone %v, an error %v", name, got, alone, err, tt.want, tt.alone, tt.failed)
		}
	}
}

func TestAPlanForksWhereAnythingLeavesByAWayOfItsOwn(t *testing.T) {
	for name, change := range map[string]func(*Plan){
		"":                  func(p *Plan) { p.Server.Interface = "wan0" },
		"a flow's device":   func(p *Plan) { p.Phases[1].Flows[1].Interface = "wan1" },
		"a flow's address":  func(p *Plan) { p.Phases[1].Flows[0].Source = netip.MustParseAddr("192.0.2.7") },
		"a probe's device":  func(p *Plan) { p.Probes[1].Interface = "wan1" },
		"a probe's address": func(p *Plan) { p.Probes[0].Source = netip.MustParseAddr("192.0.2.7") },
	} {
		p := Speedtest(speedtestOptions())
		if change(&p); p.forks() != (name != "") {
			t.Errorf("%q: it forks: %v", name, p.forks())
		}
	}
}

func TestTheStationOfAnAccessPointIsFollowedByItsAddress(t *testing.T) {
	was := wifi.Station{MAC: [6]byte{1}}
	other := wifi.Station{MAC: [6]byte{2}, Signal: -40, HasSignal: true, TxRate: 1, HasTxCounters: true}
	now := wifi.Station{MAC: [6]byte{1}, Signal: -59, HasSignal: true, TxRate: 866_700_000, TxPackets: 1000, TxRetries: 42, TxFailed: 2, HasTxCounters: true}
	nan := math.NaN()
	for _, c := range []struct {
		claim string
		now   []wifi.Station
		want  []float64
	}{
		{"among others", []wifi.Station{other, now}, []float64{-59, 866_700_000, nan, 1000, 42, 2}},
		{"told nothing of", []wifi.Station{{MAC: [6]byte{1}}}, []float64{nan, nan, nan, nan, nan, nan}},
		{"gone", []wifi.Station{other}, []float64{nan, nan, nan, nan, nan, nan}},
	} {
		got := make([]float64, len(stationSeries()))
		for i := range got {
			got[i] = nan
		}
		stationValues(got, &was, c.now)
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %v, want %v", c.claim, got, c.want)
		}
	}
}
