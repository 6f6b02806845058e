package wifi

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"

	"bufferbloat/internal/bitrate"
	"bufferbloat/watch/rtnl"
)

func word(n uint32) []byte  { return binary.NativeEndian.AppendUint32(nil, n) }
func short(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }

var mac = []byte{2, 0, 0, 0xaa, 0xbb, 0xcc}

// message is one about a station, as the kernel writes them; there is no Wi-Fi where it was made.
func message(facts []byte) []byte {
	b := rtnl.AppendAttr([]byte{19, 1, 0, 0}, attrIndex, word(3))
	b = rtnl.AppendAttr(b, attrMAC, mac)
	b = rtnl.AppendAttr(b, 46, word(7)) // the generation, which is of no interest
	return rtnl.AppendAttr(b, attrStation|1<<15, facts)
}

func facts() []byte {
	b := rtnl.AppendAttr(nil, 1, word(20)) // inactive for 20 ms
	b = rtnl.AppendAttr(b, infoSignal, []byte{0xc5})
	b = rtnl.AppendAttr(b, infoTxRate|1<<15, append(rtnl.AppendAttr(nil, rateOf32Bits, word(8667)), rtnl.AppendAttr(nil, rateOf16Bits, short(8666))...))
	b = rtnl.AppendAttr(b, infoRxRate|1<<15, rtnl.AppendAttr(nil, rateOf16Bits, short(540)))
	b = rtnl.AppendAttr(b, infoTxPackets, word(1000))
	b = rtnl.AppendAttr(b, infoTxRetries, word(42))
	return rtnl.AppendAttr(b, infoTxFailed, word(2))
}

func TestAStationsFacts(t *testing.T) {
	whole := Station{MAC: [6]byte(mac), Signal: -59, HasSignal: true, TxRate: 866_700_000, RxRate: 54 * bitrate.Mbit, TxPackets: 1000, TxRetries: 42, TxFailed: 2,
		HasTxCounters: true}
	for _, c := range []struct {
		claim string
		facts []byte
		want  Station
	}{
		{"all of them", facts(), whole},
		{"none of them", nil, Station{MAC: whole.MAC}},
		{"a rate of 16 bits first", rtnl.AppendAttr(nil, infoTxRate, append(rtnl.AppendAttr(nil, rateOf16Bits, short(65535)), rtnl.AppendAttr(nil, rateOf32Bits, word(100_000))...)),
			Station{MAC: whole.MAC, TxRate: 10_000 * bitrate.Mbit}},
		{"a rate without a rate", rtnl.AppendAttr(nil, infoTxRate, rtnl.AppendAttr(nil, 2, []byte{7})), Station{MAC: whole.MAC}},
		{"values that are too short", rtnl.AppendAttr(rtnl.AppendAttr(nil, infoSignal, nil), infoTxRetries, []byte{1}), Station{MAC: whole.MAC}},
	} {
		if got, err := Parse(message(c.facts)); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.claim, got, err, c.want)
		}
	}
	if got := whole.String(); got != "02:00:00:aa:bb:cc" {
		t.Errorf("named %s", got)
	}
}

func TestAMessageThatIsCutOffIsAnErrorOrTellsLess(t *testing.T) {
	whole := message(facts())
	malformed := 0
	for n := range whole {
		s, err := Parse(whole[:n:n])
		if e := (*rtnl.MalformedError)(nil); errors.As(err, &e) {
			malformed++
		} else if err != nil || s.HasTxCounters {
			t.Errorf("%d of %d bytes: %+v, %v", n, len(whole), s, err)
		}
	}
	if malformed < len(whole)*3/4 {
		t.Errorf("%d of %d parts are refused", malformed, len(whole))
	}
	for _, b := range [][]byte{{19, 1, 0, 0}, rtnl.AppendAttr([]byte{19, 1, 0, 0}, attrMAC, mac[:5])} {
		if s, err := Parse(b); err == nil {
			t.Errorf("%x is %+v", b, s)
		}
	}
}

func TestAFamilyHasItsNumber(t *testing.T) {
	if id, err := family(rtnl.AppendAttr([]byte{1, 2, 0, 0}, 1, short(0x1c))); err != nil || id != 0x1c {
		t.Errorf("got %d, %v", id, err)
	}
	if id, err := family([]byte{1, 2, 0, 0}); err != nil || id != 0 {
		t.Errorf("got %d, %v of an answer without it", id, err)
	}
	if _, err := family([]byte{1}); err == nil {
		t.Error("half a header is taken")
	}
}

func TestAHostWithoutWiFiSaysSo(t *testing.T) {
	const loopback = 1
	all, err := Read(loopback)
	switch {
	case errors.Is(err, errors.ErrUnsupported): // there is no nl80211
	case runtime.GOOS == "linux" && err == nil && len(all) > 0:
		t.Errorf("loopback has the stations %v", all)
	case err != nil:
		t.Logf("nl80211 is here, and says of loopback: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(facts()))
	f.Add(message(nil))
	f.Add([]byte{19, 1, 0, 0, 5, 0, 6, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err == nil && (s.TxRate < 0 || s.RxRate < 0 || max(s.TxPackets, s.TxRetries, s.TxFailed) > 1<<32-1) {
			t.Errorf("%x is %+v", b, s)
		}
		_, _ = family(b)
	})
}
