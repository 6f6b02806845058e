package resolvconf

import (
	"net/netip"
	"slices"
	"testing"
)

func TestNameserversOfAResolvConf(t *testing.T) {
	text := "# nameserver 192.0.2.7\nsearch example\nnameserver 127.0.0.53\n\tnameserver  fe80::1%eth0 # x\nnameserver\nnameserver one\nnameserver ::ffff:192.0.2.1"
	got := Nameservers([]byte(text))
	want := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.53:53"), netip.MustParseAddrPort("[fe80::1%eth0]:53"), netip.MustParseAddrPort("192.0.2.1:53")}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Whatever the text, what is found are addresses.
func FuzzNameservers(f *testing.F) {
	f.Add([]byte("nameserver 127.0.0.53\noptions edns0\n"))
	f.Add([]byte("nameserver ::1\r\nnameserver\t192.0.2.1\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, a := range Nameservers(text) {
			if !a.IsValid() || a.Port() != Port {
				t.Errorf("%q names %v", text, a)
			}
		}
	})
}
