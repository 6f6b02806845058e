package host

import (
	"net"
	"net/netip"
	"testing"
)

func TestAnAddressOfTheStandardLibraryIsAValue(t *testing.T) {
	for name, tt := range map[string]struct {
		a    net.Addr
		want string // "" for the zero AddrPort
	}{
		"IPv4":                       {net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:80")), "192.0.2.1:80"},
		"IPv4-mapped, which is IPv4": {net.UDPAddrFromAddrPort(netip.MustParseAddrPort("[::ffff:192.0.2.1]:80")), "192.0.2.1:80"},
		"IPv6 with its zone":         {net.TCPAddrFromAddrPort(netip.MustParseAddrPort("[fe80::1%eth0]:80")), "[fe80::1%eth0]:80"},
		"another kind":               {&net.UnixAddr{Name: "/a", Net: "unix"}, ""},
	} {
		var want netip.AddrPort
		if tt.want != "" {
			want = netip.MustParseAddrPort(tt.want)
		}
		if got := AddrPortOf(tt.a); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
