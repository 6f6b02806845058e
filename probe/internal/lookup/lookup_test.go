package lookup

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func mustQuery(t testing.TB, name string, ipv6 bool) *Query {
	t.Helper()
	q, err := NewQuery(name, ipv6)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// reply is a resolver's answer to q, changed by change.
func reply(t testing.TB, q *Query, change func(m *dnsmessage.Message)) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 99, Response: true}, Questions: []dnsmessage.Question{q.question}}
	head := dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET}
	m.Answers = []dnsmessage.Resource{
		{Header: head, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("other.example.")}},
		{Header: head, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}},
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestOnlyAnAnswerToTheQueryIsOne(t *testing.T) {
	q := mustQuery(t, "www.example", false)
	isCode := func(code dnsmessage.RCode) func(error) bool {
		return func(err error) bool { var e *RCodeError; return errors.As(err, &e) && e.Code == code }
	}
	is := func(want error) func(error) bool { return func(err error) bool { return errors.Is(err, want) } }
	ok := func(err error) bool { return err == nil }
	for name, c := range map[string]struct {
		change func(m *dnsmessage.Message)
		fits   bool
		err    func(error) bool
	}{
		"an address behind an alias": {nil, true, ok},
		"another letter case":        {func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("WWW.Example.") }, true, ok},
		"another ID":                 {func(m *dnsmessage.Message) { m.ID++ }, false, ok},
		"a query":                    {func(m *dnsmessage.Message) { m.Response = false }, false, ok},
		"another name":               {func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("evil.example.") }, false, ok},
		"another type":               {func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeAAAA }, false, ok},
		"no question":                {func(m *dnsmessage.Message) { m.Questions = nil }, false, func(error) bool { return true }},
		"format error, no question": {func(m *dnsmessage.Message) { m.Questions, m.Answers, m.RCode = nil, nil, dnsmessage.RCodeFormatError }, true,
			isCode(dnsmessage.RCodeFormatError)},
		"no such name":   {func(m *dnsmessage.Message) { m.Answers, m.RCode = nil, dnsmessage.RCodeNameError }, true, isCode(dnsmessage.RCodeNameError)},
		"failure":        {func(m *dnsmessage.Message) { m.Answers, m.RCode = nil, dnsmessage.RCodeServerFailure }, true, isCode(dnsmessage.RCodeServerFailure)},
		"refused":        {func(m *dnsmessage.Message) { m.Answers, m.RCode = nil, dnsmessage.RCodeRefused }, true, isCode(dnsmessage.RCodeRefused)},
		"cut short":      {func(m *dnsmessage.Message) { m.Truncated = true }, true, is(ErrTruncated)},
		"an alias alone": {func(m *dnsmessage.Message) { m.Answers = m.Answers[:1] }, true, is(ErrNoAddress)},
		"no records":     {func(m *dnsmessage.Message) { m.Answers = nil }, true, is(ErrNoAddress)},
	} {
		fits, err := q.judge(reply(t, q, c.change), 99)
		if fits != c.fits || fits && !c.err(err) {
			t.Errorf("%s: fits %v, %v; want %v", name, fits, err, c.fits)
		}
	}
	whole := reply(t, q, nil)
	for n := range whole[:len(whole)-1] {
		if fits, err := q.judge(whole[:n], 99); fits && err == nil {
			t.Errorf("the first %d of %d bytes are taken for an answer", n, len(whole))
		}
	}
}

func TestNamesThatDNSCannotCarry(t *testing.T) {
	for _, name := range []string{"", ".", strings.Repeat("a", 64), strings.Repeat("abc.", 70), "a..b"} {
		if q, err := NewQuery(name, false); err == nil {
			t.Errorf("%q becomes %v, want an error", name, q)
		}
	}
	if got := mustQuery(t, "a.example.", true).String(); got != "a.example" {
		t.Errorf("got %q", got)
	}
}

// What is taken for an answer with an address carries the ID, the question and an address record.
func FuzzJudge(f *testing.F) {
	q := mustQuery(f, "www.example", false)
	f.Add(reply(f, q, nil))
	f.Add(reply(f, q, func(m *dnsmessage.Message) { m.Truncated = true }))
	f.Add(reply(f, q, func(m *dnsmessage.Message) { m.Answers, m.RCode = nil, dnsmessage.RCodeNameError }))
	f.Fuzz(func(t *testing.T, b []byte) {
		fits, err := q.judge(b, 99)
		if !fits || err != nil {
			return
		}
		if b[0] != 0 || b[1] != 99 || b[2]&0x82 != 0x80 || b[3]&0xf != 0 || b[5] == 0 && b[4] == 0 || b[7] == 0 && b[6] == 0 {
			t.Errorf("%x is taken for an answer", b)
		}
	})
}
