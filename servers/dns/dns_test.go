package dns

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func query(t testing.TB, name string, kind dnsmessage.Type, h dnsmessage.Header) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: h, Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatIsAnswered(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	asked := dnsmessage.Header{ID: 7, RecursionDesired: true}
	for name, c := range map[string]struct {
		query  []byte
		to     netip.Addr
		none   bool
		code   dnsmessage.RCode
		record string
	}{
		"A over IPv4":               {query(t, "lab.", dnsmessage.TypeA, asked), v4, false, 0, "192.0.2.2"},
		"A over mapped IPv4":        {query(t, "lab.", dnsmessage.TypeA, asked), netip.MustParseAddr("::ffff:192.0.2.2"), false, 0, "192.0.2.2"},
		"AAAA over IPv6":            {query(t, "www.lab.", dnsmessage.TypeAAAA, asked), v6, false, 0, "2001:db8::2"},
		"AAAA over IPv4":            {query(t, "lab.", dnsmessage.TypeAAAA, asked), v4, false, 0, ""},
		"an address that is not to": {query(t, "lab.", dnsmessage.TypeA, asked), netip.Addr{}, false, 0, ""},
		"a name that is not there":  {query(t, "x.nx.", dnsmessage.TypeA, asked), v4, false, dnsmessage.RCodeNameError, ""},
		"a name that ends likewise": {query(t, "onyx.phoenx.", dnsmessage.TypeA, asked), v4, false, 0, "192.0.2.2"},
		"another opcode":            {query(t, "lab.", dnsmessage.TypeA, dnsmessage.Header{ID: 7, OpCode: 5}), v4, false, dnsmessage.RCodeNotImplemented, ""},
		"an answer":                 {query(t, "lab.", dnsmessage.TypeA, dnsmessage.Header{ID: 7, Response: true}), v4, true, 0, ""},
		"noise":                     {[]byte("GET / HTTP/1.1\r\n"), v4, true, 0, ""},
		"nothing":                   {nil, v4, true, 0, ""},
	} {
		b, ok := answer(nil, c.query, c.to)
		if ok == c.none {
			t.Errorf("%s: answered %v", name, ok)
		}
		if !ok {
			continue
		}
		var m dnsmessage.Message
		if err := m.Unpack(b); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		record := ""
		for _, r := range m.Answers {
			switch body := r.Body.(type) {
			case *dnsmessage.AResource:
				record = netip.AddrFrom4(body.A).String()
			case *dnsmessage.AAAAResource:
				record = netip.AddrFrom16(body.AAAA).String()
			}
		}
		if m.ID != 7 || !m.Response || m.RCode != c.code || record != c.record || len(m.Questions) != 1 {
			t.Errorf("%s: %+v with %q, want code %v and %q", name, m.Header, record, c.code, c.record)
		}
	}
}

// An answer is to a query, repeats its ID and question, and is hardly longer.
func FuzzAnswer(f *testing.F) {
	f.Add(query(f, "lab.", dnsmessage.TypeA, dnsmessage.Header{ID: 1}), true)
	f.Add(query(f, strings.Repeat("a.", 100), dnsmessage.TypeAAAA, dnsmessage.Header{ID: 2}), false)
	f.Add([]byte{0, 0, 0x80}, true)
	f.Fuzz(func(t *testing.T, b []byte, four bool) {
		to := netip.MustParseAddr("2001:db8::2")
		if four {
			to = netip.MustParseAddr("192.0.2.2")
		}
		got, ok := answer(nil, b, to)
		if !ok {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(got); err != nil || !m.Response || len(m.Questions) != 1 || len(m.Answers) > 1 {
			t.Fatalf("%x is answered by %+v, %v", b, m, err)
		}
		if len(got) > len(b)+maxGrowth || !bytes.Equal(got[:2], b[:2]) {
			t.Errorf("%x is answered by %d bytes %x", b, len(got), got)
		}
	})
}
