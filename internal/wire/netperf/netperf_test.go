package netperf

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// capture returns the records of a captured stream.
func capture(t testing.TB, name string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "captures", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var stream []byte
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		b, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		stream = append(stream, b...)
	}
	var records [][]byte
	for len(stream) > 0 {
		n := min(Size, len(stream))
		records, stream = append(records, stream[:n:n]), stream[n:]
	}
	return records
}

// edit returns a copy of r changed by f.
func edit(r Request, f func(*Request)) Request {
	f(&r)
	return r
}

// requests are the captured requests of 2.7.1 clients, and the parameters that they were made from.
var requests = []struct {
	capture string
	record  int
	want    Request
}{
	{"omni-tcp-stream.c2s", 0, Omni(TCPStream, IPv4, 1)},
	{"omni-tcp-maerts.c2s", 0, Omni(TCPMaerts, IPv4, 1)},
	{"speedtest-netperf-download.c2s", 0, Omni(TCPMaerts, IPv4, 1)},
	{"omni-tcp-rr.c2s", 0, Omni(TCPRR, IPv4, 1)},
	{"omni-tcp-rr-trans.c2s", 0, Omni(TCPRR, IPv4, -100)},
	{"omni-tcp-stream-bytes.c2s", 0, Omni(TCPStream, IPv4, -1000000)},
	{"omni-tcp-crr.c2s", 0, edit(Omni(TCPCRR, IPv4, 1), func(r *Request) { r.ClientPort = 0xfddd })},
	{"omni-udp-rr.c2s", 0, edit(Omni(UDPRR, IPv4, 1), func(r *Request) { r.ClientPort = 33902 })},
	{"omni-udp-stream.c2s", 0, edit(Omni(UDPStream, IPv4, 1), func(r *Request) { r.ClientPort, r.SendRing = 0xc924, 0x99 })},
	{"omni-tcp-stream-cpu.c2s", 0, edit(Omni(TCPStream, IPv4, 1), func(r *Request) { r.Flags |= FlagCPU })},
	{"omni-tcp-rr-sizes-burst.c2s", 0, edit(Omni(TCPRR, IPv4, 1), func(r *Request) {
		r.RequestSize, r.ResponseSize, r.Flags = 100, 200, FlagRoute|FlagNoDelay
	})},
	{"omni-tcp-stream-options.c2s", 0, edit(Omni(TCPStream, IPv4, 1), func(r *Request) {
		r.SendBuffer, r.SendSize, r.RecvBuffer, r.RecvSize, r.SendRing = 70000, 2000, 80000, 3000, 0x65
		r.DataPort, r.ClientPort, r.Priority, r.DS = 30002, 30001, 4, 0x28
		r.Congestion, r.FillFile = "cubic", "/dev/zero"
	})},
	{"omni-tcp-stream-3-iterations.c2s", 0, Omni(TCPStream, IPv4, 1)},
	{"omni-tcp-stream-3-iterations.c2s", 2, edit(Omni(TCPStream, IPv4, 1), func(r *Request) { r.DataPort = 0x87e1 })},
	{"omni-udp-rr-ipv6-explicit-host.c2s", 0, edit(Omni(UDPRR, IPv6, 1), func(r *Request) {
		r.ClientPort, r.ServerAddr = 0x8947, AddrFrom(netip.MustParseAddr("::1"))
	})},
	{"flent-download.c2s", 0, edit(Omni(TCPMaerts, IPv4, 1), func(r *Request) {
		r.DS, r.Congestion, r.ServerAddr = 0x20, "cubic", AddrFrom(netip.MustParseAddr("127.0.0.1"))
	})},
	{"flent-upload.c2s", 0, edit(Omni(TCPStream, IPv4, 1), func(r *Request) {
		r.DS, r.Congestion, r.ServerAddr = 0x20, "cubic", AddrFrom(netip.MustParseAddr("127.0.0.1"))
	})},
	{"flent-udp-rr.c2s", 0, edit(Omni(UDPRR, IPv4, 1), func(r *Request) {
		r.DS, r.ClientPort, r.ServerAddr = 0x20, 0xcf12, AddrFrom(netip.MustParseAddr("127.0.0.1"))
	})},
	{"passphrase-good.c2s", 1, Omni(TCPStream, IPv4, 1)},
	{"passphrase-bad.c2s", 1, Omni(TCPStream, IPv4, 1)},
	{"passphrase-missing.c2s", 0, Omni(TCPStream, IPv4, 1)},
	{"passphrase-not-needed.c2s", 1, Omni(TCPStream, IPv4, 1)},
	{"v260-client-tcp-maerts.c2s", 1, edit(Omni(TCPMaerts, IPv4, 1), func(r *Request) { r.ClientPort = 0xad6d })},
}

func TestCapturedRequestsParseToTheirParametersAndEncodeToTheSameBytes(t *testing.T) {
	for _, c := range requests {
		record := capture(t, c.capture)[c.record]
		got, err := ParseRequest(record)
		if err != nil || got != c.want {
			t.Errorf("%s %d: parses to\n%+v, %v; want\n%+v", c.capture, c.record, got, err, c.want)
		}
		if enc := c.want.AppendTo(nil); !bytes.Equal(enc, record) {
			t.Errorf("%s %d: encodes to\n%x, want\n%x", c.capture, c.record, enc, record)
		}
	}
}

func TestCapturedPassphrasesParseAndEncodeToTheSameBytes(t *testing.T) {
	for name, want := range map[string]string{
		"passphrase-good.c2s": "opensesame", "passphrase-bad.c2s": "wrong", "passphrase-not-needed.c2s": "opensesame",
	} {
		record := capture(t, name)[0]
		if got, err := ParsePassphrase(record); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
		if enc, err := AppendPassphrase(nil, want); err != nil || !bytes.Equal(enc, record) {
			t.Errorf("%s: encodes to\n%x, %v, want\n%x", name, enc, err, record)
		}
	}
}

func TestCapturedResponsesAndResultsParseToTheDocumentedFields(t *testing.T) {
	const k128, k16, udp = 0x20000, 0x4000, 0x34000
	for _, c := range []struct {
		capture string
		skip    int // records before the response
		layout  Layout
		resp    Response
		results Results
	}{
		{"omni-tcp-stream.s2c", 0, Layout27,
			Response{RecvBuffer: k128, RecvSize: k128, RecvRing: 2, SendBuffer: k16, SendSize: -1, SendRing: 2, DataPort: 36141,
				Priority: -1, DS: -1},
			Results{RxBytes: 2617442304, RxCalls: 55270, RecvBuffer: 0xfab53, SendBuffer: 0x3c1e00, Congestion: "bbr",
				ElapsedSeconds: 0.999325}},
		{"omni-tcp-maerts.s2c", 0, Layout27,
			Response{RecvBuffer: k128, RecvSize: -1, RecvRing: 2, SendBuffer: k16, SendSize: k16, SendRing: 2, DataPort: 44879,
				Priority: -1, DS: -1},
			Results{TxBytes: 3115122688, TxCalls: 190132, RecvBuffer: k128, SendBuffer: 0x400000, Retransmits: 8,
				Congestion: "bbr", ElapsedSeconds: 1.000133}},
		{"omni-tcp-rr.s2c", 0, Layout27,
			Response{RecvBuffer: k128, RecvSize: 1, RecvRing: 1, SendBuffer: k16, SendSize: 1, SendRing: 1, DataPort: 35067,
				Priority: -1, DS: -1},
			Results{RxBytes: 30084, RxCalls: 30084, RecvBuffer: k128, TxBytes: 30084, TxCalls: 30084, SendBuffer: 0x3c1e00,
				Transactions: 30084, Congestion: "bbr", ElapsedSeconds: 0.999949}},
		{"omni-udp-rr.s2c", 0, Layout27,
			Response{RecvBuffer: udp, RecvSize: 1, RecvRing: 1, SendBuffer: udp, SendSize: 1, SendRing: 1, DataPort: 48339,
				Priority: -1, DS: -1},
			Results{RxBytes: 27035, RxCalls: 27035, RecvBuffer: udp, TxBytes: 27035, TxCalls: 27035, SendBuffer: udp,
				Transactions: 27035, Retransmits: -1, ElapsedSeconds: 0.999895}},
		{"flent-download.s2c", 0, Layout27,
			Response{RecvBuffer: k128, RecvSize: -1, RecvRing: 2, SendBuffer: k16, SendSize: k16, SendRing: 2, DataPort: 0x97bd,
				Priority: -1, DS: 0x20},
			Results{TxBytes: 0xc74c4000, TxCalls: 0x31d31, RecvBuffer: k128, SendBuffer: 0x400000, Congestion: "cubic",
				ElapsedSeconds: 1.000613}},
		{"omni-tcp-stream-cpu.s2c", 0, Layout27,
			Response{RecvBuffer: k128, RecvSize: k128, RecvRing: 2, SendBuffer: k16, SendSize: -1, SendRing: 2, DataPort: 0xa53d,
				Priority: -1, DS: -1, Flags: FlagCPU, CPURate: 100},
			Results{RxBytes: 0xb3014000, RxCalls: 0xee9b, RecvBuffer: 0xfab53, SendBuffer: 0x3c1e00, Congestion: "bbr",
				ElapsedSeconds: 0.999380, CPUPercent: 78.15169, CPUMethod: 8, CPUs: 2, BusiestCPU: 1, BusiestPercent: 99}},
		{"v260-both-tcp-maerts.s2c", 1, Layout22,
			Response{RecvBuffer: k128, RecvSize: -1, RecvRing: 2, SendBuffer: k16, SendSize: k16, SendRing: 2, DataPort: 0x8413,
				Priority: -1, DS: -1, Flags: 0x365f3630, RecvAvoid: 0, SendAvoid: 0},
			Results{TxBytes: 0xa0b9c000, TxCalls: 0x282e7, RecvBuffer: k128, SendBuffer: 0x400000, BusiestCPU: -1, BusiestPercent: -1, Retransmits: 9,
				Congestion: "bbr", ElapsedSeconds: 1.000087}},
	} {
		records := capture(t, c.capture)[c.skip:]
		resp, err := ParseResponse(records[0])
		if c.capture == "v260-both-tcp-maerts.s2c" {
			// What 2.6.0 leaves in the words that it does not fill in.
			resp.RecvAvoid, resp.SendAvoid = 0, 0
		}
		if err != nil || resp != c.resp {
			t.Errorf("%s: response\n%+v, %v, want\n%+v", c.capture, resp, err, c.resp)
		}
		results, err := ParseResults(records[1], c.layout)
		if d := results.ElapsedSeconds - c.results.ElapsedSeconds; d < -1e-6 || d > 1e-6 {
			t.Errorf("%s: elapsed %v, want %v", c.capture, results.ElapsedSeconds, c.results.ElapsedSeconds)
		}
		c.results.ElapsedSeconds = results.ElapsedSeconds
		if resp.Flags&FlagCPU == 0 {
			c.results.CPUPercent, c.results.CPUs = results.CPUPercent, results.CPUs // not valid
		}
		if err != nil || results != c.results {
			t.Errorf("%s: results\n%+v, %v, want\n%+v", c.capture, results, err, c.results)
		}
	}
}

func TestWithAnUnknownLayoutTheFieldsThatMovedAreAbsent(t *testing.T) {
	got, err := ParseResults(capture(t, "omni-tcp-maerts.s2c")[1], UnknownLayout)
	if err != nil || got.TxBytes != 3115122688 || got.Retransmits != -1 || got.Congestion != "" || got.CPUs != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestCapturedAuxiliaryAnswersParse(t *testing.T) {
	for name, want := range map[string]SysInfo{
		"v260-client-tcp-maerts.s2c": {Deprecated, Deprecated, Deprecated, Deprecated},
		"v260-both-tcp-maerts.s2c":   {"Linux", "", "x86_64", ""},
	} {
		got, err := ParseSysInfo(capture(t, name)[0])
		if name == "v260-both-tcp-maerts.s2c" {
			got.Release, got.Version = "", "" // the kernel's build
		}
		if err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	if got, err := ParseCPUCalibration(capture(t, "cpu-calibrate.s2c")[0]); err != nil || got != (CPUCalibration{100, 2}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, want := TypeCPUCalibrate.AppendTo(nil, -1), capture(t, "cpu-calibrate.c2s")[0]; !bytes.Equal(got, want) {
		t.Errorf("CPU request %x, want %x", got, want)
	}
	if got, want := TypeSysInfo.AppendTo(nil, -1), capture(t, "v260-both-tcp-maerts.c2s")[0]; !bytes.Equal(got, want) {
		t.Errorf("SYSINFO request %x, want %x", got, want)
	}
	got, err := ParseResponse(capture(t, "unsupported-test.s2c")[0])
	if err != nil || got != (Response{Error: UnknownTest}) {
		t.Errorf("unsupported test: got %+v, %v", got, err)
	}
}

func TestOnlyOurServersResponseSaysThatItEchoes(t *testing.T) {
	want := Response{DataPort: 30002, Priority: -1, DS: -1, Echoes: true}
	if got, err := ParseResponse(want.AppendTo(nil)); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, name := range []string{"omni-udp-rr.s2c", "v260-client-tcp-maerts.s2c"} {
		for i, record := range capture(t, name) {
			if p, err := ParseResponse(record); err == nil && p.Echoes {
				t.Errorf("%s: record %d of a stock server is said to echo", name, i)
			}
		}
	}
}

func TestNetserversOwnAnswersComeBackFromOurEncoder(t *testing.T) {
	want := capture(t, "v260-client-tcp-maerts.s2c")[0]
	if got := (SysInfo{Deprecated, Deprecated, Deprecated, Deprecated}).AppendTo(nil); !bytes.Equal(got, want) {
		t.Errorf("system information %x, want %x", got, want)
	}
	want = capture(t, "cpu-calibrate.s2c")[0]
	if got := (CPUCalibration{100, 2}).AppendTo(nil); !bytes.Equal(got, want) {
		t.Errorf("CPU calibration %x, want %x", got, want)
	}
	for _, name := range []string{"omni-tcp-stream.s2c", "omni-tcp-maerts.s2c", "omni-tcp-stream-options.s2c"} {
		want := capture(t, name)[0]
		p, err := ParseResponse(want)
		if got := p.AppendTo(nil); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: response %x, %v, want %x", name, got, err, want)
		}
	}
}

func TestSysInfoPicksADelimiterThatNoFieldContains(t *testing.T) {
	for _, s := range []SysInfo{
		{"a,b", "c", "d", "e"}, {"a,b", "c|d", "e_f", "g"}, {"", "", "", ""}, {"bufferbloat", "-", "netperf", "server"},
	} {
		if got, err := ParseSysInfo(s.AppendTo(nil)); err != nil || got != s {
			t.Errorf("%q came back as %q, %v", s, got, err)
		}
	}
	all := SysInfo{"a,b|c_d;e", "", "", ""}
	if got, err := ParseSysInfo(all.AppendTo(nil)); err != nil || got.System != "a b|c_d;e" {
		t.Errorf("%q came back as %q, %v", all, got, err)
	}
}

func TestParsersNameTheOffsetOfWhatIsWrong(t *testing.T) {
	request := capture(t, "omni-tcp-stream.c2s")[0]
	bad := func(offset int, b byte) []byte {
		c := bytes.Clone(request)
		c[offset] = b
		return c
	}
	parse := func(b []byte) error { _, err := ParseRequest(b); return err }
	for _, c := range []struct {
		name   string
		err    error
		offset int
	}{
		{"a short request", parse(request[:655]), 655},
		{"an empty request", parse(nil), 0},
		{"another type", parse(bad(0, 1)), 0},
		{"a data port beyond 65535", parse(bad(88, 1)), 88},
		{"a client port beyond 65535", parse(bad(109, 1)), 108},
		{"a short response", func() error { _, err := ParseResponse(request[:100]); return err }(), 100},
		{"short results", func() error { _, err := ParseResults(request[:256], Layout27); return err }(), 256},
		{"a request for a passphrase", func() error { _, err := ParsePassphrase(request); return err }(), 0},
		{"a request for system information", func() error { _, err := ParseSysInfo(request); return err }(), 0},
		{"system information without text", func() error {
			_, err := ParseSysInfo(TypeSysInfoReply.AppendTo(nil, 0))
			return err
		}(), 8},
	} {
		var p *ParseError
		if !errors.As(c.err, &p) || p.Offset != c.offset {
			t.Errorf("%s: got %v, want a ParseError at offset %d", c.name, c.err, c.offset)
		}
	}
}

func TestPassphrasesThatTheRecordWouldCutAreRefused(t *testing.T) {
	for phrase, ok := range map[string]bool{
		strings.Repeat("x", MaxPassphrase): true, strings.Repeat("x", MaxPassphrase+1): false, "a\x00b": false, "": true,
	} {
		b, err := AppendPassphrase(nil, phrase)
		if (err == nil) != ok {
			t.Errorf("%d bytes: got %v, want ok %v", len(phrase), err, ok)
			continue
		}
		if !ok {
			continue
		}
		if got, err := ParsePassphrase(b); err != nil || got != phrase {
			t.Errorf("%d bytes came back as %d, %v", len(phrase), len(got), err)
		}
	}
}

func TestAddressesComeInBothByteOrders(t *testing.T) {
	six := netip.MustParseAddr("2001:db8::1")
	if got := AddrFrom(six).Candidates(IPv6); len(got) != 2 || got[0] != six {
		t.Errorf("little-endian sender: got %v, want %v first", got, six)
	}
	if got := Addr(six.As16()).Candidates(IPv6); len(got) != 2 || got[1] != six {
		t.Errorf("big-endian sender: got %v, want %v second", got, six)
	}
	four := netip.MustParseAddr("192.0.2.1")
	if got := AddrFrom(four).Candidates(IPv4); len(got) != 1 || got[0] != four {
		t.Errorf("got %v, want %v", got, four)
	}
	if got := (Addr{}).Candidates(IPv6); got != nil {
		t.Errorf("no address: got %v", got)
	}
}

func TestLengthIsTimeOrUnits(t *testing.T) {
	for length, want := range map[int32]struct {
		d     time.Duration
		timed bool
		n     uint64
		units bool
	}{
		10: {10 * time.Second, true, 0, false}, 0: {}, -7: {0, false, 7, true}, -1 << 31: {0, false, 1 << 31, true},
	} {
		r := Request{Length: length}
		d, timed := r.Duration()
		n, units := r.Units()
		if timed != want.timed || units != want.units || timed && d != want.d || units && n != want.n {
			t.Errorf("%d: got %v %v, %v %v, want %+v", length, d, timed, n, units, want)
		}
	}
}

func TestEncodingIntoABufferWithRoomAllocatesNothing(t *testing.T) {
	b := make([]byte, 0, Size)
	r := Omni(TCPStream, IPv4, 10)
	if n := testing.AllocsPerRun(100, func() { b = r.AppendTo(b[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzRequest(f *testing.F) {
	for _, c := range requests {
		f.Add(capture(f, c.capture)[c.record])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRequest(b)
		if err != nil {
			var p *ParseError
			if !errors.As(err, &p) || p.Offset < 0 || p.Offset > Size {
				t.Fatalf("%v is no ParseError within the record", err)
			}
			return
		}
		got := r.AppendTo(nil)
		if len(got) != Size || !bytes.Equal(got[:160], b[:160]) {
			t.Errorf("%x parses to %+v, encodes to %x", b, r, got)
		}
		if again, err := ParseRequest(got); err != nil || !bytes.Equal(again.AppendTo(nil), got) {
			t.Errorf("%+v encodes to %x, parses to %+v, %v", r, got, again, err)
		}
		r.ServerAddr.Candidates(r.Family)
	})
}

func FuzzResponse(f *testing.F) {
	for _, name := range []string{"omni-tcp-stream.s2c", "omni-udp-rr.s2c", "unsupported-test.s2c", "v260-both-tcp-maerts.s2c"} {
		f.Add(capture(f, name)[0])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseResponse(b)
		if err != nil {
			return
		}
		got := r.AppendTo(nil)
		again, err := ParseResponse(got)
		if len(got) != Size || err != nil || !bytes.Equal(again.AppendTo(nil), got) {
			t.Errorf("%+v encodes to %x, parses to %+v, %v", r, got, again, err)
		}
		if r.Error == 0 && (!bytes.Equal(got[8:40], b[8:40]) || !bytes.Equal(got[44:64], b[44:64])) {
			t.Errorf("%x parses to %+v, encodes to %x", b, r, got)
		}
		_, _ = r.Error.String(), err
	})
}

func FuzzResults(f *testing.F) {
	f.Add(capture(f, "omni-tcp-stream.s2c")[1], uint8(Layout27))
	f.Add(capture(f, "v260-both-tcp-maerts.s2c")[2], uint8(Layout22))
	f.Fuzz(func(t *testing.T, b []byte, layout uint8) {
		l := Layout(layout % 3)
		r, err := ParseResults(b, l)
		if err != nil {
			return
		}
		got := r.AppendTo(nil, l)
		if len(got) != Size || !bytes.Equal(got[8:40], b[8:40]) || !bytes.Equal(got[44:56], b[44:56]) {
			t.Errorf("%x parses to %+v, encodes to %x", b, r, got)
		}
		if again, err := ParseResults(got, l); err != nil || !bytes.Equal(again.AppendTo(nil, l), got) {
			t.Errorf("%+v encodes to %x, parses to %+v, %v", r, got, again, err)
		}
	})
}

func FuzzAuxiliary(f *testing.F) {
	f.Add(capture(f, "v260-both-tcp-maerts.s2c")[0])
	f.Add(capture(f, "passphrase-good.c2s")[0])
	f.Add(capture(f, "cpu-calibrate.s2c")[0])
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseCPUCalibration(b); err == nil {
			enc := c.AppendTo(nil)
			if again, err := ParseCPUCalibration(enc); err != nil || !bytes.Equal(again.AppendTo(nil), enc) {
				t.Errorf("%+v came back as %+v, %v", c, again, err)
			}
		}
		if s, err := ParseSysInfo(b); err == nil {
			if again, err := ParseSysInfo(s.AppendTo(nil)); err != nil {
				t.Errorf("%q came back as %q, %v", s, again, err)
			}
		}
		if phrase, err := ParsePassphrase(b); err == nil {
			enc, err := AppendPassphrase(nil, phrase)
			if again, perr := ParsePassphrase(enc); err != nil || perr != nil || again != phrase {
				t.Errorf("%q came back as %q, %v, %v", phrase, again, err, perr)
			}
		}
		_, _, _ = ParseType(b)
	})
}
