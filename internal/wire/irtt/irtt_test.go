package irtt

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/wire/irtt/hmacmd5"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const allFields = HasCount | HasWindow | receiveWall | receiveMono | sendWall | sendMono

// second is the session that most captures ask for.
var second = Params{Version: 1, Duration: time.Second, Interval: 10 * time.Millisecond, Stats: 3, Stamps: BothStamps, Clock: BothClocks}

func TestOpenOfACapturedSession(t *testing.T) {
	all := captures(t)
	loose := second
	loose.Length, loose.DS, loose.Fill = 200, 0xb8, "rand"
	restricted := Params{1, 500 * time.Millisecond, 20 * time.Millisecond, 100, 3, MidpointStamp, BothClocks, 0, "pattern:69727474"}
	foreign := second
	foreign.Version = 2
	for _, c := range []struct {
		claim, name string
		datagram    int
		want        Open
	}{
		{"a request has parameters and no token", "session-0.9.0", 0, Open{FlagOpen, 0, second}},
		{"a reply has a token in little-endian order", "session-0.9.0", 1, Open{FlagOpen | FlagReply, 0x709a4dfb6efac4ba, second}},
		{"a signed request", "session-hmac-0.9.0", 0, Open{FlagOpen | FlagHMAC, 0, second}},
		{"a signed reply", "session-hmac-0.9.0", 1, Open{FlagOpen | FlagReply | FlagHMAC, 0xfc884a5581201128, second}},
		{"a request with all parameters", "restricted-loose-0.9.0", 0, Open{FlagOpen, 0, loose}},
		{"a reply that changes them", "restricted-loose-0.9.0", 1, Open{FlagOpen | FlagReply, 0x7d155f4099292e09, restricted}},
		{"a request without a test", "no-test-0.9.0", 0, Open{FlagOpen | FlagClose, 0, second}},
		{"a reply without a session", "no-test-0.9.0", 1, Open{FlagOpen | FlagReply | FlagClose, 0, second}},
		{"a foreign version", "version-2-0.9.0", 0, Open{FlagOpen, 0, foreign}},
		{"is answered with version 1", "version-2-0.9.0", 1, Open{FlagOpen | FlagReply, 0x2fada70e16b77d63, second}},
	} {
		got, err := ParseOpen(all[c.name][c.datagram].payload)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.claim, got, err, c.want)
		}
	}
}

func TestEchoOfACapturedSession(t *testing.T) {
	all := captures(t)
	first := Echo{Flags: FlagReply, Token: 0x709a4dfb6efac4ba, Count: 1, Window: 1,
		Receive: Time{1796039469252096822, 628210431}, Send: Time{1796039469252101922, 628215510}}
	for _, c := range []struct {
		claim, name string
		datagram    int
		fields      Fields
		want        Echo
		payload     string
	}{
		{"a request has zeroed fields", "session-0.9.0", 2, allFields, Echo{Token: 0x709a4dfb6efac4ba}, ""},
		{"a reply has them filled in", "session-0.9.0", 3, allFields, first, ""},
		{"a reply without fields has the server's fill", "no-fields-length40-0.9.0", 3, 0,
			Echo{Flags: FlagReply, Token: 0x034ec21008ef015c}, "irttirttirttirttirttirtt"},
		{"the last reply has the close flag", "duration-exceeded-0.9.0", 5, allFields,
			Echo{FlagReply | FlagClose, 0x91bd0595e56a2b07, 1, 2, 3, Time{1796040239921879361, 3199290994}, Time{}, Time{1796040239928212732, 3205624365}}, ""},
		{"a midpoint stamp of the monotonic clock follows the window", "midpoint-mono-server-0.9.2", 3, HasCount | HasWindow | midpointMono,
			Echo{Flags: FlagReply, Token: 0x8bf1112e00e964fa, Count: 1, Window: 1, Midpoint: Time{Mono: 0x18ecd08cc436139f}}, "\xc7s?-\x00\x00\x00\x00"},
	} {
		got, payload, err := ParseEcho(all[c.name][c.datagram].payload, c.fields)
		if err != nil || got != c.want || string(payload) != c.payload {
			t.Errorf("%s: %+v, payload %q, %v, want %+v, payload %q", c.claim, got, payload, err, c.want, c.payload)
		}
	}
	last := all["session-0.9.0"][len(all["session-0.9.0"])-2]
	got, _, err := ParseEcho(last.payload, allFields)
	if err != nil || got.Seq != 99 || got.Count != 100 || got.Window != 1<<64-1 {
		t.Errorf("reply to the last of 100 requests: sequence %d, count %d, window %x, %v", got.Seq, got.Count, got.Window, err)
	}
}

func TestTheStockWindowLosesItsMemoryOnALateRequest(t *testing.T) {
	want := map[int]uint64{3: 0b1, 5: 0b11, 7: 0b1101, 9: 0b1, 11: 0b101, 13: 0b101, 15: 0b1011, 17: 0b1, 19: 0b11}
	session := captures(t)["reorder-duplicate-0.9.0"]
	for i, w := range want {
		if got, _, err := ParseEcho(session[i].payload, allFields); err != nil || got.Window != w {
			t.Errorf("%s: window %b, %v, want %b", session[i].note, got.Window, err, w)
		}
	}
}

func TestCloseOfACapturedSession(t *testing.T) {
	all := captures(t)
	for _, c := range []struct {
		name string
		want Close
	}{
		{"session-0.9.0", Close{FlagClose, 0x709a4dfb6efac4ba}},
		{"session-hmac-0.9.0", Close{FlagClose | FlagHMAC, 0xfc884a5581201128}},
	} {
		d := all[c.name][len(all[c.name])-1]
		if got, err := ParseClose(d.payload); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestFieldsFollowTheParameters(t *testing.T) {
	for _, c := range []struct {
		claim        string
		p            Params
		size, signed int
	}{
		{"all fields take 60 bytes", Params{Stats: 3, Stamps: BothStamps, Clock: BothClocks}, 60, 76},
		{"no fields take 16 bytes", Params{}, 16, 32},
		{"a clock without stamps takes none", Params{Clock: BothClocks}, 16, 32},
		{"count and one monotonic stamp", Params{Stats: CountStats, Stamps: ReceiveStamp, Clock: MonotonicClock}, 28, 44},
		{"one wall stamp", Params{Stamps: SendStamp, Clock: WallClock}, 24, 40},
		{"window and midpoint by one clock", Params{Stats: WindowStats, Stamps: MidpointStamp, Clock: WallClock}, 32, 48},
		{"midpoint by both clocks", Params{Stats: WindowStats, Stamps: MidpointStamp, Clock: BothClocks}, 40, 56},
		{"a length below the fields is raised to them", Params{Length: 50, Stats: 3, Stamps: BothStamps, Clock: BothClocks}, 60, 76},
		{"a length above them counts", Params{Length: 172, Stats: 3, Stamps: BothStamps, Clock: BothClocks}, 172, 172},
	} {
		if got, signed := c.p.EchoSize(false), c.p.EchoSize(true); got != c.size || signed != c.signed {
			t.Errorf("%s: %d bytes, signed %d, want %d and %d", c.claim, got, signed, c.size, c.signed)
		}
	}
}

func TestParametersInOtherForms(t *testing.T) {
	for _, c := range []struct {
		claim, list string
		want        Params
	}{
		{"an empty list is all zero", "", Params{}},
		{"any order will do", "07 06 01 02", Params{Version: 1, Clock: BothClocks}},
		{"an unknown number is skipped with its value", "63 80a8d6b907 01 02", Params{Version: 1}},
		{"of two values the last counts", "01 02 01 04", Params{Version: 2}},
		{"an endless test", "02 feffffffffffffffff01", Params{Duration: Endless}},
		{"an empty fill", "09 00", Params{}},
		{"the greatest DS byte", "08 fe03", Params{DS: 255}},
	} {
		if got, err := ParseParams(unhex(t, c.list)); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.claim, got, err, c.want)
		}
	}
}

func TestErrorsTellTheOffset(t *testing.T) {
	params := func(s string) func() error {
		return func() error { _, err := ParseParams(unhex(t, s)); return err }
	}
	open := func(s string) func() error {
		return func() error { _, err := ParseOpen(unhex(t, s)); return err }
	}
	echo := func(s string) func() error {
		return func() error { _, _, err := ParseEcho(unhex(t, s), HasCount); return err }
	}
	closing := func(s string) func() error {
		return func() error { _, err := ParseClose(unhex(t, s)); return err }
	}
	for _, c := range []struct {
		claim  string
		parse  func() error
		offset int
	}{
		{"nothing at all", echo(""), 0},
		{"three bytes", echo("14a75b"), 3},
		{"wrong magic", echo("14a65b00"), 1},
		{"a flag above 8", echo("14a75b10"), 3},
		{"an HMAC cut off", open("14a75b09 0011"), 6},
		{"an open datagram without its flag", open("14a75b00"), 3},
		{"an open reply without a whole token", open("14a75b03 01020304050607"), 11},
		{"a parameter out of range, counted from the beginning", open("14a75b01 0102 02 01"), 7},
		{"an echo with the open flag", echo("14a75b01"), 3},
		{"a close request is no echo", echo("14a75b04 0102030405060708 00000000 00000000"), 3},
		{"an echo without its sequence", echo("14a75b00 0102030405060708 000000"), 15},
		{"an echo without its fields", echo("14a75b02 0102030405060708 00000000 000000"), 19},
		{"a close request without its token", closing("14a75b04 01020304"), 8},
		{"an echo reply is no close request", closing("14a75b06 0102030405060708"), 3},
		{"a number cut off", params("0102 80"), 2},
		{"a number too great", params("ffffffffffffffffff7f"), 0},
		{"a value missing", params("0102 03"), 3},
		{"a value too great", params("03 ffffffffffffffffff7f"), 1},
		{"a negative interval", params("03 01"), 1},
		{"a zero duration", params("02 00"), 1},
		{"statistics 4", params("05 08"), 1},
		{"stamps 5", params("06 0a"), 1},
		{"clock 0", params("07 00"), 1},
		{"clock 4", params("07 08"), 1},
		{"a DS byte above 255", params("08 8004"), 1},
		{"a negative length", params("04 01"), 1},
		{"a fill of 33 bytes", params("09 21" + strings.Repeat("61", 33)), 1},
		{"a fill cut off", params("09 04 6161"), 4},
		{"a fill's length cut off", params("09 80"), 1},
		{"129 bytes of parameters", params(strings.Repeat("0102", 64) + "01"), 128},
	} {
		err := c.parse()
		var pe *ParseError
		if !errors.As(err, &pe) || pe.Offset != c.offset {
			t.Errorf("%s: %v, want an error at byte %d", c.claim, err, c.offset)
		}
	}
}

func TestNoKeyGivesNoAuthenticator(t *testing.T) {
	if NewAuthenticator(hmacmd5.New(nil)) != nil {
		t.Error("no key gives an Authenticator")
	}
}

func TestEchoesAllocateNothing(t *testing.T) {
	e := Echo{Flags: FlagReply | FlagHMAC, Token: 1, Seq: 2, Count: 3, Window: 4, Receive: Time{5, 6}, Send: Time{7, 8}}
	buf := make([]byte, 0, 76)
	a := NewAuthenticator(hmacmd5.New([]byte("swordfish")))
	a.Sign(e.AppendTo(buf, allFields)) // the first computation allocates
	n := testing.AllocsPerRun(100, func() {
		b := e.AppendTo(buf, allFields)
		a.Sign(b)
		got, _, err := ParseEcho(b, allFields)
		if err != nil || got != e || !a.Verify(b) {
			t.Errorf("%x parses to %+v, %v, want %+v", b, got, err, e)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per echo, want 0", n)
	}
}

func BenchmarkEcho(b *testing.B) {
	for _, signed := range []bool{false, true} {
		name, flags := "plain", FlagReply
		if signed {
			name, flags = "signed", FlagReply|FlagHMAC
		}
		b.Run(name, func(b *testing.B) {
			e, buf, a := Echo{Flags: flags, Token: 1, Seq: 2}, make([]byte, 0, 76), NewAuthenticator(hmacmd5.New([]byte("swordfish")))
			b.ReportAllocs()
			for b.Loop() {
				d := e.AppendTo(buf, allFields)
				if signed {
					a.Sign(d)
				}
				if _, _, err := ParseEcho(d, allFields); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// seed adds all captured datagrams to a fuzz target's corpus.
func seed(f *testing.F, add func(payload []byte)) {
	seen := make(map[string]bool)
	for _, session := range captures(f) {
		for _, d := range session[:min(len(session), 6)] {
			if !seen[string(d.payload)] {
				seen[string(d.payload)] = true
				add(d.payload)
			}
		}
	}
}

// checkOffset fails the test unless err is a *ParseError within b.
func checkOffset(t *testing.T, b []byte, err error) {
	t.Helper()
	pe, ok := err.(*ParseError)
	if !ok || pe.Offset < 0 || pe.Offset > len(b) {
		t.Errorf("%x: error %v (%T), want a *ParseError within", b, err, err)
	}
}

// FuzzParams: what parses, encodes to a list that parses to the same, and that encodes to the same bytes again.
func FuzzParams(f *testing.F) {
	seed(f, func(b []byte) {
		if o, err := ParseOpen(b); err == nil {
			f.Add(o.Params.AppendTo(nil))
		}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseParams(b)
		if err != nil {
			checkOffset(t, b, err)
			return
		}
		list := p.AppendTo(nil)
		again, err := ParseParams(list)
		if err != nil || again != p {
			t.Errorf("%x parses to %+v, encodes to %x, and that parses to %+v, %v", b, p, list, again, err)
		}
		if len(list) > len(b) {
			t.Errorf("%x encodes to the longer %x", b, list)
		}
	})
}

// FuzzOpen: what parses, encodes to a datagram that parses to the same, with the same header and token.
func FuzzOpen(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseOpen(b)
		if err != nil {
			checkOffset(t, b, err)
			return
		}
		d := o.AppendTo(nil)
		again, err := ParseOpen(d)
		if err != nil || again != o {
			t.Errorf("%x parses to %+v, encodes to %x, and that parses to %+v, %v", b, o, d, again, err)
		}
	})
}

// FuzzEcho: what parses, encodes back to the same bytes but for the HMAC.
func FuzzEcho(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b, uint8(allFields)) })
	f.Fuzz(func(t *testing.T, b []byte, fields uint8) {
		e, payload, err := ParseEcho(b, Fields(fields))
		if err != nil {
			checkOffset(t, b, err)
			return
		}
		got := append(e.AppendTo(nil, Fields(fields)), payload...)
		if e.Flags&FlagHMAC != 0 {
			copy(got[hmacOffset:hmacOffset+hmacSize], b[hmacOffset:])
		}
		if !bytes.Equal(got, b) {
			t.Errorf("%x parses to %+v, encodes to %x", b, e, got)
		}
	})
}

// FuzzClose: what parses, encodes back to its first bytes but for the HMAC.
func FuzzClose(f *testing.F) {
	seed(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseClose(b)
		if err != nil {
			checkOffset(t, b, err)
			return
		}
		got := c.AppendTo(nil)
		if c.Flags&FlagHMAC != 0 {
			copy(got[hmacOffset:hmacOffset+hmacSize], b[hmacOffset:])
		}
		if !bytes.HasPrefix(b, got) {
			t.Errorf("%x parses to %+v, encodes to %x", b, c, got)
		}
	})
}

func TestAMarkIsToldWhereThereIsRoom(t *testing.T) {
	for size := range 5 {
		for _, known := range []bool{false, true} {
			for _, ds := range []uint8{0, 1, 0xb8, 0xff} {
				payload := bytes.Repeat([]byte{0xaa}, size)
				FillMark(payload, ds, known)
				got, ok := Mark(payload)
				if want := known && size >= MarkSize; ok != want || ok && got != ds {
					t.Errorf("%#02x (known %v) in %d bytes: got %#02x, %v", ds, known, size, got, ok)
				}
			}
		}
	}
	for _, fill := range []string{"", "irttirtt", strings.Repeat("\x00", 20)} {
		if ds, ok := Mark([]byte(fill)); ok {
			t.Errorf("the fill %q tells %#02x", fill, ds)
		}
	}
}
