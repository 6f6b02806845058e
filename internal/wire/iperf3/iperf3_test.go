package iperf3

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func TestAMessageIsBoundedBeforeItIsRead(t *testing.T) {
	long := binary.BigEndian.AppendUint32(nil, MaxParams+1)
	r := bytes.NewReader(append(long, make([]byte, 100)...))
	var format *FormatError
	if _, err := ReadMessage(r, MaxParams); !errors.As(err, &format) {
		t.Errorf("got %v, want a FormatError", err)
	}
	if r.Len() != 100 {
		t.Errorf("%d bytes of a message that is too long were read", 100-r.Len())
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = ReadMessage(bytes.NewReader(long), MaxParams) }); n > 10 {
		t.Errorf("%v allocations for a message that is refused", n)
	}
}

func TestAStateInPlaceOfALengthIsFound(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    []byte
		want StateError
	}{
		{"an error", []byte{0xfe, 0, 0, 0, 117, 0, 0, 0, 5}, StateError{ServerError, NoResults, 5}},
		{"an error without errno", []byte{0xfe, 0, 0, 0, 117}, StateError{ServerError, NoResults, 0}},
		{"busy", []byte{0xff, 0, 0, 0}, StateError{State: AccessDenied}},
		{"busy alone", []byte{0xff}, StateError{State: AccessDenied}},
		{"interrupted", []byte{0x0b}, StateError{State: ServerTerminate}},
	} {
		_, err := ReadMessage(bytes.NewReader(tt.b), MaxResults)
		var got *StateError
		if !errors.As(err, &got) || *got != tt.want {
			t.Errorf("%s: got %v, want %+v", tt.name, err, tt.want)
		}
	}
	if _, err := ReadMessage(bytes.NewReader(nil), 10); !errors.Is(err, io.EOF) {
		t.Errorf("nothing: got %v", err)
	}
}

func TestNumbersAreReadAsAllVersionsWriteThem(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "7": 7, "-1": -1, "18446744073709551615": -1, "1.8446744073709552e+19": -1, "1e3": 1000, "2.0": 2, "9223372036854775808": math.MinInt64,
		"4294967296": 1 << 32,
	} {
		if got, ok := parseInteger(text); !ok || got != want {
			t.Errorf("%s: got %d, %v; want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "true", `"1"`, "NaN", "Infinity", "inf", "-1e30", "[]"} {
		if got, ok := parseInteger(text); ok {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

func TestParameters(t *testing.T) {
	p, err := ParseParams([]byte(`{"TCP":true,"reverse":false,"parallel":2,"Len":16384,"tos":184,"unknown":{"a":[1]},"time":1e1,"mss":null}` + "\n\x00"))
	want := Params{Reverse: true, Parallel: 2, Size: 16384, TOS: 184, Time: 10 * time.Second}
	if err != nil || p != want {
		t.Errorf("got %+v, %v; want %+v: a flag that is false is set, keys have no case", p, err, want)
	}
	if p, err := ParseParams([]byte("{}")); err != nil || p != (Params{Parallel: 1}) {
		t.Errorf("nothing: got %+v, %v", p, err)
	}
	if strings.Contains(string(Params{}.AppendTo(nil)), "false") {
		t.Error("a flag that is not set is sent as false, which sets it")
	}
	for _, text := range []string{
		``, `[]`, `{`, `{"time":`, `{"time":-5}`, `{"parallel":"1"}`, `{"time":1}{}`, `{"time":1,"TIME":2}`, `{"num":1e300}`, `{"title":1}`,
		`{"time":99999999999}`, strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40), `{"x":` + strings.Repeat("[", 8000) + "}",
	} {
		var format *FormatError
		if p, err := ParseParams([]byte(text)); !errors.As(err, &format) {
			t.Errorf("%.60s: got %+v, %v; want a FormatError", text, p, err)
		}
	}
	if _, err := ParseParams([]byte(`{"title":"` + strings.Repeat("[{", 100) + `\"["}`)); err != nil {
		t.Errorf("brackets in a text are taken for nesting: %v", err)
	}
}

func TestResults(t *testing.T) {
	const stream = `{"id":1,"bytes":18446744073709,"retransmits":18446744073709551615,"jitter":6.2e-05,"errors":3,"packets":100,"start_time":0,"end_time":1.5}`
	r, err := ParseResults([]byte(`{"cpu_util_total":12.5,"cpu_util_user":10,"cpu_util_system":2.5,"sender_has_retransmits":18446744073709551615,"streams":[` + stream + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := StreamResult{ID: 1, Bytes: 18446744073709, Retransmits: -1, Jitter: 62 * time.Microsecond, Errors: 3, Packets: 100, End: 1500 * time.Millisecond}
	if r.Streams[0] != want || r.CPUTotal != 0.125 || r.Retransmits != OnlyReceives {
		t.Errorf("got %+v; want %+v", r, want)
	}
	if _, ok := r.Stream(3); ok {
		t.Error("a stream that is not there is found")
	}
	for _, text := range []string{
		`{"cpu_util_total":1e300,"streams":[` + stream + `]}`, `{"cpu_util_user":-1e9,"streams":[` + stream + `]}`,
		`{}`, `{"streams":{}}`, `{"streams":[{}]}`, `{"streams":[{"id":1}]}`, `{"streams":[` + stream + "," + stream + `]}`, `{"streams":[{"id":1,"bytes":-4}]}`,
		`{"streams":[{"id":1,"bytes":4,"end_time":-1}]}`, `{"streams":[{"id":1,"bytes":4,"jitter":nan}]}`, `{"streams":[[1]]}`, `{"streams":1}`,
		`{"streams":[` + strings.Repeat("1,", maxStreams) + `1]}`, `{"streams":[],"streams":[]}`,
	} {
		var format *FormatError
		if r, err := ParseResults([]byte(text)); !errors.As(err, &format) {
			t.Errorf("%.60s: got %+v, %v; want a FormatError", text, r, err)
		}
	}
}

func TestTheLongestResultsFit(t *testing.T) {
	r := Results{ServerText: strings.Repeat("[  5]   0.00-0.10   sec  1.00 MBytes  1.00 Mbits/sec\n", 16*6000)}
	for i := range 256 {
		r.Streams = append(r.Streams, StreamResult{ID: StreamID(i), Bytes: math.MaxInt64 / 2, End: time.Hour, HasOmitted: true})
	}
	b, err := ReadMessage(bytes.NewReader(r.AppendTo(nil)), MaxResults)
	if err != nil {
		t.Fatalf("ten minutes of sixteen streams at 0.1 s: %v", err)
	}
	if got, err := ParseResults(b); err != nil || len(got.Streams) != 256 || got.ServerText != r.ServerText {
		t.Errorf("%d streams, %v", len(got.Streams), err)
	}
}

func TestCookiesMatchUpToTheirEnd(t *testing.T) {
	a, b := NewCookie(), NewCookie()
	if a.Matches(b) || !a.Matches(a) || a[36] != 0 || bytes.IndexByte(a[:], 0) != 36 {
		t.Errorf("cookies %q and %q", a, b)
	}
	var c, d Cookie
	copy(c[:], "abc\x00x")
	copy(d[:], "abc\x00y")
	if !c.Matches(d) || c.Key() != d.Key() {
		t.Error("what is behind the NUL counts")
	}
}

func TestATallyTellsLossFromReorderingFromDuplicates(t *testing.T) {
	for _, tt := range []struct {
		name                                  string
		seqs                                  []uint64
		received, lost, reordered, duplicates uint64
	}{
		{"in order", []uint64{1, 2, 3}, 3, 0, 0, 0},
		{"the first are missing", []uint64{3, 4}, 2, 2, 0, 0},
		{"a gap", []uint64{1, 2, 5}, 3, 2, 0, 0},
		{"late is not lost", []uint64{1, 3, 2, 4}, 4, 0, 1, 0},
		{"twice hides no loss", []uint64{1, 2, 2, 2, 5}, 3, 2, 0, 2},
		{"a jump beyond the window", []uint64{1, 5000, 4999, 5000}, 3, 4997, 1, 1},
		{"far behind", []uint64{1, 5000, 2}, 3, 4997, 1, 0},
		{"no number", []uint64{0, 1 << 40}, 0, 0, 0, 0},
		{"nothing", nil, 0, 0, 0, 0},
	} {
		var n Tally
		for i, s := range tt.seqs {
			n.Take(Datagram{Seq: s}, 100, time.Duration(i), true)
		}
		if n.Received != tt.received || n.Lost() != tt.lost || n.Reordered != tt.reordered || n.Duplicate != tt.duplicates || n.Bytes != 100*n.Received {
			t.Errorf("%s: got %d received, %d lost, %d reordered, %d twice; want %d, %d, %d, %d", tt.name, n.Received, n.Lost(), n.Reordered, n.Duplicate,
				tt.received, tt.lost, tt.reordered, tt.duplicates)
		}
	}
}

func TestANarrowCounterGoesOnBehindItsEnd(t *testing.T) {
	n := Tally{Highest: 1<<32 - 2, Received: 1<<32 - 2}
	for _, s := range []uint64{1<<32 - 1, 0, 2, 1} { // the low 32 bits
		n.Take(Datagram{Seq: s}, 1, 0, false)
	}
	if n.Highest != 1<<32+2 || n.Lost() != 0 || n.Reordered != 1 {
		t.Errorf("highest %d, lost %d, reordered %d", n.Highest, n.Lost(), n.Reordered)
	}
}

func TestDelayIsOfTheSlowestLessTheFastest(t *testing.T) {
	track := Track{Every: time.Second}
	const skew = 5 * time.Hour // between the clocks
	for i, delay := range []time.Duration{30, 10, 50, 20} {
		sent := time.Duration(i) * 600 * time.Millisecond
		track.Take(Datagram{Seq: uint64(i + 1), Sent: sent + skew}, 10, sent+delay*time.Millisecond, true)
	}
	if most, ok := track.Most(); !ok || most != 40*time.Millisecond {
		t.Errorf("got %v, want 40ms", most)
	}
	if last, _ := track.Delay(); last != 10*time.Millisecond {
		t.Errorf("the last: got %v, want 10ms", last)
	}
	spans := track.Spans(1900 * time.Millisecond)
	if len(spans) != 2 || spans[0].Received != 2 || spans[1].Received != 2 || spans[0].Least != 0 || spans[0].Most != 20*time.Millisecond ||
		spans[1].Most != 40*time.Millisecond || spans[1].To != 1900*time.Millisecond {
		t.Errorf("spans %+v", spans)
	}
	report, err := ParseReport(Report([][]Span{nil, spans}), 2)
	if err != nil || len(report[0]) != 0 || len(report[1]) != 2 || report[1][1] != spans[1] {
		t.Errorf("the report %s is read as %+v, %v; want %+v", Report([][]Span{nil, spans}), report, err, spans)
	}
	for _, bad := range []string{`{"intervals":[{"streams":[]}]}`, `{"intervals":[{"streams":[{"start":0,"end":1,"packets":1,"lost_packets":2},{}]}]}`, `{"intervals":1}`, ``} {
		if r, err := ParseReport([]byte(bad), 2); err == nil {
			t.Errorf("%s is read as %+v", bad, r)
		}
	}
}

func TestTheLossOfASpanIsThatOfItsOwnTime(t *testing.T) {
	track := Track{Every: time.Second}
	for _, d := range []struct {
		seq uint64
		at  time.Duration
	}{{1, 0}, {4, 100}, {5, 1100}, {2, 1200}, {8, 3500}} {
		track.Take(Datagram{Seq: d.seq}, 10, d.at*time.Millisecond, true)
	}
	var lost []int64
	for _, s := range track.Spans(3600 * time.Millisecond) {
		lost = append(lost, s.Lost)
	}
	if len(lost) != 4 || lost[0] != 2 || lost[1] != -1 || lost[2] != 0 || lost[3] != 2 {
		t.Errorf("got %v, want 2 lost, 1 of them late in the next, 0, 2", lost)
	}
}

func TestTakingADatagramAllocatesNothing(t *testing.T) {
	var n Tally
	b := make([]byte, 100)
	seq := uint64(0)
	if got := testing.AllocsPerRun(1000, func() {
		seq++
		Datagram{Seq: seq}.Put(b, false)
		d, _ := ParseDatagram(b, false)
		n.Take(d, len(b), 0, false)
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

func BenchmarkTake(b *testing.B) {
	b.ReportAllocs()
	var n Tally
	seq := uint64(0)
	for b.Loop() {
		seq++
		n.Take(Datagram{Seq: seq}, 1200, time.Duration(seq), false)
	}
}

func TestDatagramsThatOpenAStream(t *testing.T) {
	named := NewCookie()
	ours := Hello(named)
	for _, tt := range []struct {
		b      []byte
		cookie Cookie
	}{{[]byte("9876"), Cookie{}}, {[]byte{0x15, 0xcd, 0x5b, 0x07}, Cookie{}}, {[]byte{0x07, 0x5b, 0xcd, 0x15}, Cookie{}}, {ours[:], named}} {
		answer := Welcome(tt.b)
		if got, ok := ParseHello(tt.b); !ok || got != tt.cookie || !IsWelcome(answer[:]) || len(answer) > len(tt.b) {
			t.Errorf("%x has the cookie %q and is answered by %x", tt.b, got, answer)
		}
	}
	for _, b := range [][]byte{nil, []byte("98765"), make([]byte, 4), make([]byte, HelloSize), ours[:HelloSize-1], ours[len(hello):], make([]byte, 1200)} {
		if _, ok := ParseHello(b); ok || IsWelcome(b) {
			t.Errorf("%d bytes open a stream", len(b))
		}
	}
}
