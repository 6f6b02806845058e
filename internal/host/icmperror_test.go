package host

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"
)

// icmpErrorAbout returns an ICMP error message that quotes an IP packet with this payload to target.
func icmpErrorAbout(kind, code byte, target netip.Addr, payload []byte) []byte {
	b := []byte{kind, code, 0, 0, 0, 0, 0, 0}
	if target.Is4() {
		h := make([]byte, minIPv4Header)
		h[0], h[9] = 0x45, 1
		copy(h[16:], target.AsSlice())
		return append(append(b, h...), payload...)
	}
	h := make([]byte, ipv6Header)
	h[0], h[6] = 0x60, 58
	copy(h[24:], target.AsSlice())
	return append(append(b, h...), payload...)
}

func TestOnlyErrorsAboutOurEchoRequestsAreTaken(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
	echo4, echo6 := []byte{8, 0, 1, 2, 3, 4, 5, 6, 7}, []byte{128, 0, 1, 2, 3, 4, 5, 6}
	withOptions := icmpErrorAbout(3, 1, v4, append([]byte{1, 1, 1, 1}, echo4...))
	withOptions[icmpHeader] = 0x46
	fragment := icmpErrorAbout(11, 1, v4, echo4)
	binary.BigEndian.PutUint16(fragment[icmpHeader+6:], 3)
	udp := icmpErrorAbout(3, 3, v4, echo4)
	udp[icmpHeader+9] = 17
	tests := []struct {
		name   string
		b      []byte
		target netip.Addr
		quoted []byte
		cause  syscall.Errno
	}{
		{"host unreachable", icmpErrorAbout(3, 1, v4, echo4), v4, echo4, syscall.EHOSTUNREACH},
		{"net unreachable", icmpErrorAbout(3, 0, v4, echo4), v4, echo4, syscall.ENETUNREACH},
		{"port unreachable", icmpErrorAbout(3, 3, v4, echo4), v4, echo4, syscall.ECONNREFUSED},
		{"fragmentation needed", icmpErrorAbout(3, 4, v4, echo4), v4, echo4, syscall.EMSGSIZE},
		{"time exceeded", icmpErrorAbout(11, 0, v4, echo4), v4, echo4, syscall.EHOSTUNREACH},
		{"behind IP options", withOptions, v4, echo4, syscall.EHOSTUNREACH},
		{"IPv6 prohibited", icmpErrorAbout(1, 1, v6, echo6), v6, echo6, syscall.EACCES},
		{"IPv6 too big", icmpErrorAbout(2, 0, v6, echo6), v6, echo6, syscall.EMSGSIZE},
		{"IPv6 time exceeded", icmpErrorAbout(3, 0, v6, echo6), v6, echo6, syscall.EHOSTUNREACH},
		{"another host's request", icmpErrorAbout(3, 1, netip.MustParseAddr("192.0.2.8"), echo4), v4, nil, 0},
		{"an echo reply in it", icmpErrorAbout(3, 1, v4, append([]byte{0}, echo4[1:]...)), v4, nil, 0},
		{"not ICMP in it", udp, v4, nil, 0},
		{"a later fragment", fragment, v4, nil, 0},
		{"seven bytes behind the IP header", icmpErrorAbout(3, 1, v4, echo4[:7]), v4, nil, 0},
		{"no IP header", icmpErrorAbout(3, 1, v4, nil)[:20], v4, nil, 0},
		{"an echo reply", append([]byte{0, 0}, make([]byte, 60)...), v4, nil, 0},
		{"nothing", nil, v4, nil, 0},
		{"IPv6 cut short", icmpErrorAbout(1, 0, v6, echo6[:7]), v6, nil, 0},
		{"an IPv4 packet quoted by ICMPv6", icmpErrorAbout(1, 0, v4, make([]byte, 60)), v6, nil, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			quoted, cause, err := parseICMPError(test.b, test.target)
			if !bytes.Equal(quoted, test.quoted) || cause != test.cause || (err == nil) != (test.quoted != nil) {
				t.Errorf("got %x, %v, %v; want %x, %v", quoted, cause, err, test.quoted, test.cause)
			}
		})
	}
}

func FuzzParseICMPError(f *testing.F) {
	v4, v6 := netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
	f.Add(icmpErrorAbout(3, 1, v4, []byte{8, 0, 1, 2, 3, 4, 5, 6, 7}), false)
	f.Add(icmpErrorAbout(11, 0, v4, []byte{8, 0, 1, 2, 3, 4, 5, 6}), false)
	f.Add(icmpErrorAbout(1, 4, v6, []byte{128, 0, 1, 2, 3, 4, 5, 6}), true)
	f.Fuzz(func(t *testing.T, b []byte, six bool) {
		target, request, header := v4, byte(icmpEcho), minIPv4Header
		if six {
			target, request, header = v6, icmp6Echo, ipv6Header
		}
		quoted, cause, err := parseICMPError(b, target)
		if err != nil {
			if quoted != nil || cause != 0 {
				t.Errorf("an error with %x, %v", quoted, cause)
			}
			return
		}
		if len(quoted) < icmpHeader || quoted[0] != request || cause == 0 || !bytes.HasSuffix(b, quoted) || len(b)-len(quoted) < icmpHeader+header {
			t.Errorf("%x quotes %x, %v", b, quoted, cause)
		}
	})
}

func TestEchoChecksum(t *testing.T) {
	tests := []struct {
		b    []byte
		want uint16
	}{
		{[]byte{8, 0, 0, 0, 0, 1, 0, 1}, 0xf7fd},
		{[]byte{8, 0, 0xab, 0xcd, 0, 1, 0, 1}, 0xf7fd}, // the field itself counts as zero
		{[]byte{8, 0, 0, 0, 0, 1, 0, 1, 0x10}, 0xe7fd}, // an odd byte is the upper half
		{bytes.Repeat([]byte{0xff}, 60000), 0},
	}
	for _, test := range tests {
		if got := echoChecksum(test.b); got != test.want {
			t.Errorf("%.16x: got %#04x; want %#04x", test.b, got, test.want)
		}
	}
}
