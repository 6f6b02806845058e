package host

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// appendControl appends a control message as the kernel writes it.
func appendControl(b []byte, level, kind int, data []byte) []byte {
	m := make([]byte, unix.CmsgSpace(len(data)))
	if sizeofLen == 8 {
		binary.NativeEndian.PutUint64(m, uint64(unix.CmsgLen(len(data))))
	} else {
		binary.NativeEndian.PutUint32(m, uint32(unix.CmsgLen(len(data))))
	}
	binary.NativeEndian.PutUint32(m[sizeofLen:], uint32(level))
	binary.NativeEndian.PutUint32(m[sizeofLen+4:], uint32(kind))
	copy(m[unix.CmsgLen(0):], data)
	return append(b, m...)
}

func native(words ...uint32) []byte {
	var b []byte
	for _, w := range words {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

func stamp64(sec, nsec int64) []byte {
	b := make([]byte, 48)
	binary.NativeEndian.PutUint64(b, uint64(sec))
	binary.NativeEndian.PutUint64(b[8:], uint64(nsec))
	return b
}

func TestControlMessagesAreReadInEveryForm(t *testing.T) {
	sock4 := append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET), 0, 0, 192, 0, 2, 254, 0, 0, 0, 0, 0, 0, 0, 0)
	link := netip.MustParseAddr("fe80::1").As16()
	sock6 := append(append(append(binary.NativeEndian.AppendUint16(nil, unix.AF_INET6), 0, 0, 0, 0, 0, 0), link[:]...), native(7)...)
	ee := func(origin uint8, errno syscall.Errno) []byte {
		return append(append(native(uint32(errno)), origin, 3, 1, 0), native(0, 0)...)
	}
	tests := []struct {
		name        string
		level, kind int
		data        []byte
		want        control
	}{
		{"a stamp with 64-bit seconds, past 2038", unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW, stamp64(5_000_000_000, 7),
			control{stamp: 5_000_000_000_000_000_007, hasStamp: true}},
		{"a stamp with 32-bit seconds", unix.SOL_SOCKET, unix.SO_TIMESTAMPING, native(1_700_000_000, 9, 0, 0, 0, 0),
			control{stamp: 1_700_000_000_000_000_009, hasStamp: true}},
		{"a packet that was not stamped", unix.SOL_SOCKET, unix.SO_TIMESTAMPING, stamp64(0, 0), control{}},
		{"a stamp before 1970", unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW, stamp64(-5, 0), control{}},
		{"a stamp with a second of nanoseconds", unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW, stamp64(5, 1_000_000_000), control{}},
		{"a stamp of another size", unix.SOL_SOCKET, unix.SO_TIMESTAMPING, native(1, 2, 3), control{}},
		{"an IPv4 DS byte", unix.IPPROTO_IP, unix.IP_TOS, []byte{0xb9}, control{ds: 0xb9, hasDS: true}},
		{"an IPv6 DS byte", unix.IPPROTO_IPV6, unix.IPV6_TCLASS, native(0xb9), control{ds: 0xb9, hasDS: true}},
		{"our own address, not the header's broadcast", unix.IPPROTO_IP, unix.IP_PKTINFO,
			append(native(3), 192, 0, 2, 1, 192, 0, 2, 255), control{ifindex: 3, to: netip.MustParseAddr("192.0.2.1")}},
		{"the header's address, where only that is told", unix.IPPROTO_IP, unix.IP_PKTINFO,
			append(native(3), 0, 0, 0, 0, 192, 0, 2, 1), control{ifindex: 3, to: netip.MustParseAddr("192.0.2.1")}},
		{"the header's multicast address is no address of ours", unix.IPPROTO_IP, unix.IP_PKTINFO,
			append(native(3), 0, 0, 0, 0, 224, 0, 0, 1), control{ifindex: 3}},
		{"an IPv6 destination", unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, append(link[:], native(3)...),
			control{ifindex: 3, to: netip.MustParseAddr("fe80::1")}},
		{"a multicast destination is no address of ours", unix.IPPROTO_IPV6, unix.IPV6_PKTINFO,
			append([]byte{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, native(3)...), control{ifindex: 3}},
		{"an ICMP error and its sender", unix.IPPROTO_IP, unix.IP_RECVERR, append(ee(originICMP, syscall.EHOSTUNREACH), sock4...),
			control{rejection: syscall.EHOSTUNREACH, by: netip.MustParseAddr("192.0.2.254")}},
		{"an ICMPv6 error and its sender", unix.IPPROTO_IPV6, unix.IPV6_RECVERR, append(ee(originICMPv6, syscall.EACCES), sock6...),
			control{rejection: syscall.EACCES, by: netip.MustParseAddr("fe80::1"), byScope: 7}},
		{"an ICMP error without a sender", unix.IPPROTO_IP, unix.IP_RECVERR, ee(originICMP, syscall.ECONNREFUSED),
			control{rejection: syscall.ECONNREFUSED}},
		{"this host's own error", unix.IPPROTO_IP, unix.IP_RECVERR, append(ee(unix.SO_EE_ORIGIN_LOCAL, syscall.EMSGSIZE), sock4...), control{}},
		{"a message that nobody asked for", unix.SOL_SOCKET, unix.SCM_RIGHTS, native(3), control{}},
		{"an empty message", unix.IPPROTO_IP, unix.IP_TOS, nil, control{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseControl(appendControl(nil, test.level, test.kind, test.data))
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
	all := appendControl(nil, unix.IPPROTO_IP, unix.IP_TOS, []byte{4})
	all = appendControl(all, unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW, stamp64(5, 6))
	if got, err := parseControl(all); err != nil || !got.hasDS || got.stamp != 5_000_000_006 {
		t.Errorf("two messages: got %+v, %v", got, err)
	}
	var format *formatError
	if got, err := parseControl(all[:len(all)-8]); !errors.As(err, &format) || format.Offset != unix.CmsgSpace(1) || !got.hasDS {
		t.Errorf("the second message cut short: got %+v, %v; want the first, and an error at byte %d", got, err, unix.CmsgSpace(1))
	}
}

func FuzzParseControl(f *testing.F) {
	f.Add(appendControl(appendControl(nil, unix.IPPROTO_IP, unix.IP_TOS, []byte{0xb8}), unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW, stamp64(5, 6)))
	f.Add(appendControl(nil, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, make([]byte, 44)))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseControl(b)
		var format *formatError
		if err != nil && (!errors.As(err, &format) || format.Offset < 0 || format.Offset >= len(b)) {
			t.Errorf("error %v for %d bytes", err, len(b))
		}
		if c.hasStamp && c.stamp <= 0 {
			t.Errorf("stamp %d", c.stamp)
		}
		if !c.hasDS && c.ds != 0 || c.by.Zone() != "" || c.to.IsValid() && c.to.IsUnspecified() {
			t.Errorf("got %+v", c)
		}
		if err != nil {
			return
		}
		// What parses keeps its meaning in front of another message.
		if again, err := parseControl(appendControl(b[:len(b):len(b)], unix.SOL_SOCKET, unix.SCM_RIGHTS, nil)); err == nil && again != c {
			t.Errorf("got %+v, and %+v with a message behind it", c, again)
		}
	})
}
