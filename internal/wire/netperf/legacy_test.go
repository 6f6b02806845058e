package netperf

import (
	"bytes"
	"errors"
	"testing"
)

// legacies are the captured tests of a netperf without omni tests, each of 1 s.
var legacies = []struct {
	capture  string
	request  Legacy
	response LegacyResponse
	results  LegacyResults
}{
	{"legacy-tcp-stream", Legacy{Test: TCPStream, SendBuffer: -1, RecvBuffer: -1, Length: 1, Family: IPv4},
		LegacyResponse{Test: TCPStream, RecvBuffer: 131072, SendBuffer: 16384, Size: 131072, DataPort: 45107},
		LegacyResults{Test: TCPStream, Bytes: 3005415424, Calls: 57059, ElapsedSeconds: 0.999418}},
	{"legacy-tcp-maerts", Legacy{Test: TCPMaerts, SendBuffer: -1, RecvBuffer: -1, Length: 1, Family: IPv4},
		LegacyResponse{Test: TCPMaerts, RecvBuffer: 131072, SendBuffer: 16384, Size: 16384, DataPort: 0xb5a7},
		LegacyResults{Test: TCPMaerts, Bytes: 2828779520, Calls: 0x2a26f, ElapsedSeconds: 1.000596}},
	{"legacy-tcp-rr", Legacy{Test: TCPRR, SendBuffer: -1, RecvBuffer: -1, RequestSize: 1, ResponseSize: 1, Length: 1, Family: IPv4},
		LegacyResponse{Test: TCPRR, RecvBuffer: 131072, SendBuffer: 16384, Length: 1, DataPort: 0x8b69},
		LegacyResults{Test: TCPRR, Bytes: 0x109cc, Units: 0x84e6, ElapsedSeconds: 1.0003881}},
	{"legacy-udp-rr", Legacy{Test: UDPRR, SendBuffer: -1, RecvBuffer: -1, RequestSize: 1, ResponseSize: 1, Length: 1, Family: IPv4},
		LegacyResponse{Test: UDPRR, RecvBuffer: 0x34000, SendBuffer: 0x34000, DataPort: 0x89d8},
		LegacyResults{Test: UDPRR, Bytes: 0x100ce, Units: 0x8067, ElapsedSeconds: 1.0004392}},
	{"legacy-udp-stream", Legacy{Test: UDPStream, RecvBuffer: -1, Size: 1400, Length: 1, Family: IPv4},
		LegacyResponse{Test: UDPStream, RecvBuffer: 0x34000, SendBuffer: 0x34000, Length: 1, DataPort: 0xe666},
		LegacyResults{Test: UDPStream, Bytes: 0x0c48a357, Units: 0x23f05, ElapsedSeconds: 1.0039129}},
	{"legacy-tcp-crr", Legacy{Test: TCPCRR, SendBuffer: -1, RecvBuffer: -1, RequestSize: 1, ResponseSize: 1, Length: 1, Family: IPv4},
		LegacyResponse{Test: TCPCRR, RecvBuffer: 131072, SendBuffer: 16384, DataPort: 0xb60d},
		LegacyResults{Test: TCPCRR, Bytes: 0x5e78, Units: 0x2f3c, ElapsedSeconds: 1.0004859}},
}

func TestCapturedLegacyTestsParseToTheDocumentedFields(t *testing.T) {
	for _, c := range legacies {
		sent, answered := capture(t, c.capture+".c2s"), capture(t, c.capture+".s2c")
		if got, err := ParseLegacy(sent[0]); err != nil || got != c.request {
			t.Errorf("%s: request %+v, %v, want %+v", c.capture, got, err, c.request)
		}
		if got, err := ParseLegacyResponse(answered[0], c.request.Test); err != nil || got != c.response {
			t.Errorf("%s: response\n%+v, %v, want\n%+v", c.capture, got, err, c.response)
		}
		got, err := ParseLegacyResults(answered[1], c.request.Test)
		// Where the CPU was not measured its words are what was there before.
		got.CPUPercent, got.CPUMethod, got.CPUs = 0, 0, 0
		if err != nil || got != c.results {
			t.Errorf("%s: results\n%+v, %v, want\n%+v", c.capture, got, err, c.results)
		}
	}
}

func TestARefusalCarriesItsReasonOnlyFromOurServer(t *testing.T) {
	ours := Refusal{Number: NotPermitted, Reason: "a test of 2h0m0s, where at most 1h0m0s is allowed"}
	if got, err := ParseRefusal(ours.AppendTo(nil, TypeOmniResponse)); err != nil || got != ours {
		t.Errorf("got %+v, %v, want %+v", got, err, ours)
	}
	if got, err := ParseRefusal(capture(t, "unsupported-test.s2c")[0]); err != nil || got != (Refusal{Number: UnknownTest}) {
		t.Errorf("stock: got %+v, %v", got, err)
	}
	stale := append([]byte("\x00\x00\x00\x62\x00\x00\x00\x01text of the previous message"), make([]byte, Size)...)
	if got, err := ParseRefusal(stale); err != nil || got != (Refusal{Number: NotPermitted}) {
		t.Errorf("stale text: got %+v, %v", got, err)
	}
	long := Refusal{Number: Busy, Reason: string(bytes.Repeat([]byte("x"), 2*Size))}
	if got, err := ParseRefusal(long.AppendTo(nil, TypeOmniResponse)); err != nil || len(got.Reason) != MaxReason {
		t.Errorf("long: got %d bytes, %v, want %d", len(got.Reason), err, MaxReason)
	}
}

func FuzzLegacy(f *testing.F) {
	for _, c := range legacies {
		f.Add(capture(f, c.capture+".c2s")[0])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLegacy(b)
		if err != nil {
			var p *ParseError
			if !errors.As(err, &p) || p.Offset < 0 || p.Offset > Size {
				t.Fatalf("%v is no ParseError within the record", err)
			}
			return
		}
		again, err := ParseLegacy(l.AppendTo(nil))
		if err != nil || again != l {
			t.Errorf("%+v came back as %+v, %v", l, again, err)
		}
	})
}

func FuzzLegacyAnswers(f *testing.F) {
	for _, c := range legacies {
		for _, b := range capture(f, c.capture+".s2c") {
			f.Add(b, uint8(c.request.Test))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		test := Test(n%6) + TCPStream
		if p, err := ParseLegacyResponse(b, test); err == nil {
			if again, err := ParseLegacyResponse(p.AppendTo(nil), test); err != nil || again != p {
				t.Errorf("%+v came back as %+v, %v", p, again, err)
			}
		}
		if p, err := ParseLegacyResults(b, test); err == nil {
			enc := p.AppendTo(nil)
			if again, err := ParseLegacyResults(enc, test); err != nil || !bytes.Equal(again.AppendTo(nil), enc) {
				t.Errorf("%+v came back as %+v, %v", p, again, err)
			}
		}
		if p, err := ParseRefusal(b); err == nil {
			if again, err := ParseRefusal(p.AppendTo(nil, TypeOmniResponse)); err != nil || again != p {
				t.Errorf("%+v came back as %+v, %v", p, again, err)
			}
		}
	})
}
