package bufferbloat

import (
	"errors"
	"net/netip"
	"testing"
)

func TestTheDeviceToTheFirstReachableServerIsWatched(t *testing.T) {
	t.Parallel()
	noRoute := errors.New("no route")
	devices := map[string]int{"192.0.2.1": 2, "192.0.2.2": 2, "192.0.2.3": 3}
	of := func(a netip.Addr) (int, error) {
		if i, ok := devices[a.String()]; ok {
			return i, nil
		}
		return 0, noRoute
	}
	for name, tt := range map[string]struct {
		addrs  []string // "" for a server that cannot be reached
		want   int
		alone  bool
		failed bool
	}{
		"the only server's":                            {[]string{"192.0.2.1"}, 2, true, false},
		"the second where the first cannot be reached": {[]string{"", "192.0.2.3"}, 3, true, false},
		"alone where others are behind it":             {[]string{"192.0.2.1", "", "192.0.2.2"}, 2, true, false},
		"not alone where another is behind another":    {[]string{"192.0.2.1", "192.0.2.3"}, 2, false, false},
		"not alone where another has none":             {[]string{"192.0.2.1", "198.51.100.1"}, 2, false, false},
		"the second where the first has none":          {[]string{"198.51.100.1", "192.0.2.1"}, 2, false, false},
		"none where no server can be reached":          {[]string{"", ""}, 0, false, true},
		"none where none of the servers has a device":  {[]string{"198.51.100.1"}, 0, false, true},
	} {
		var peers []*peer
		for _, a := range tt.addrs {
			p := &peer{}
			if a != "" {
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
