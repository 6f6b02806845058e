package device

import (
	"encoding/binary"
	"errors"
	"testing"

	"bufferbloat/watch/rtnl"
)

// message is one about device 7 with these first counters.
func message(counters ...uint64) []byte {
	var stats []byte
	for _, n := range counters {
		stats = binary.NativeEndian.AppendUint64(stats, n)
	}
	b := make([]byte, infoSize)
	binary.NativeEndian.PutUint32(b[4:], 7)
	b = rtnl.AppendAttr(b, iflaName, []byte("eth0\x00"))
	b = rtnl.AppendAttr(b, iflaAddress, []byte{2, 0, 0, 0, 2, 1})
	b = rtnl.AppendAttr(b, iflaMTU, binary.NativeEndian.AppendUint32(nil, 1500))
	b = rtnl.AppendAttr(b, iflaTxQueueLength, binary.NativeEndian.AppendUint32(nil, 1000))
	b = rtnl.AppendAttr(b, iflaLinkInfo, rtnl.AppendAttr(nil, infoKind, []byte("veth\x00")))
	return rtnl.AppendAttr(b, iflaStats64, stats)
}

func TestADeviceAndItsCounters(t *testing.T) {
	got, err := ParseLink(message(1, 2, 3, 4, 5, 6, 7, 8, 9))
	want := Link{Index: 7, Name: "eth0", Address: "02:00:00:00:02:01", Kind: "veth", MTU: 1500, TxQueueLength: 1000, RxPackets: 1, TxPackets: 2, RxBytes: 3, TxBytes: 4,
		RxErrors: 5, TxErrors: 6, RxDropped: 7, TxDropped: 8}
	if err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestADeviceWithoutCountersIsAnErrorAndNotOneThatCountedNothing(t *testing.T) {
	for _, b := range [][]byte{message(), message(1, 2, 3), make([]byte, infoSize), nil} {
		var bad *rtnl.MalformedError
		if _, err := ParseLink(b); !errors.As(err, &bad) {
			t.Errorf("%d bytes: got %v", len(b), err)
		}
	}
}

func TestTheLineOfAWirelessDevice(t *testing.T) {
	const text = `Inter-| sta-|   Quality        |   Discarded packets               | Missed | WE
 face | tus | link level noise |  nwid  crypt   frag  retry   misc | beacon | 22
 wlan0: 0000   58.  -52.  -256        0      0      0     17      3        4
  wl1: 0000   xx.  -52.  -256        0      0      0     17      3        4
`
	if w, ok := parseWireless(text, "wlan0"); !ok || w != (Wireless{58, -52, -256, 17, 4}) {
		t.Errorf("got %+v, %v", w, ok)
	}
	for _, name := range []string{"wl1", "eth0", "face", ""} {
		if w, ok := parseWireless(text, name); ok {
			t.Errorf("%q: got %+v", name, w)
		}
	}
}

func FuzzParseLink(f *testing.F) {
	f.Add(message(1, 2, 3, 4, 5, 6, 7, 8))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLink(b)
		if err == nil && (l.MTU < 0 || l.TxQueueLength < 0 || l.countersMissed) {
			t.Errorf("%x is %+v", b, l)
		}
	})
}

func FuzzParseWireless(f *testing.F) {
	f.Add(" wlan0: 0000   58.  -52.  -256        0      0      0     17      3        4\n", "wlan0")
	f.Fuzz(func(t *testing.T, text, name string) {
		if w, ok := parseWireless(text, name); !ok && w != (Wireless{}) {
			t.Errorf("%q has %+v, which is not there", text, w)
		}
	})
}
