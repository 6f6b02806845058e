package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestResolveTakesAddressesAsTheyAre(t *testing.T) {
	k := NewKernel()
	tests := []struct {
		name   string
		family Family
		want   string
	}{
		{"192.0.2.1", AnyFamily, "192.0.2.1"},
		{"192.0.2.1", IPv4, "192.0.2.1"},
		{"2001:db8::1", IPv6, "2001:db8::1"},
		{"::ffff:192.0.2.1", AnyFamily, "192.0.2.1"},
		{"::ffff:192.0.2.1", IPv4, "192.0.2.1"},
		{"fe80::1%eth0", AnyFamily, "fe80::1%eth0"},
	}
	for _, test := range tests {
		got, err := k.Resolve(t.Context(), test.name, test.family)
		if err != nil || len(got) != 1 || got[0] != netip.MustParseAddr(test.want) {
			t.Errorf("%s as %v: got %v, %v; want %s", test.name, test.family, got, err, test.want)
		}
	}
	for name, family := range map[string]Family{"192.0.2.1": IPv6, "::ffff:192.0.2.1": IPv6, "2001:db8::1": IPv4} {
		got, err := k.Resolve(t.Context(), name, family)
		if want := name + " has no " + family.String() + " address"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v; want %q", got, err, want)
		}
	}
}

func TestResolveRefusesWhatCannotBeAName(t *testing.T) {
	k := NewKernel()
	k.resolver = net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		t.Error("asked the resolver")
		return nil, errors.New("no resolver here")
	}}
	for _, name := range []string{
		"", ".", "..", "-f", "--help", "192.0.2.9;id", "192.0.2.9&cmd", "$(id)", "`id`", "a b", " host", "host ", "a\nb", "host\r", "a\tb",
		"\x1b[31mred", "a\x00b", "caf\u00e9.example", "h\xff", "a..b", ".a", "host|x", "host>x", "host'", `host"`, `host\`, "host/24", "host:80",
		"[::1]", "fe80::1%eth0;id x", "fe80::1%\n", "fe80::1%" + strings.Repeat("e", 300), "user@host", "*", strings.Repeat("a", 64) + ".example",
		strings.Repeat("a.", 128), strings.Repeat("abcdefghi.", 30), strings.Repeat("x", 300), strings.Repeat("x", 8192),
	} {
		got, err := k.Resolve(t.Context(), name, AnyFamily)
		if err == nil || got != nil {
			t.Errorf("%.40q: got %v, %v; want a refusal", name, got, err)
			continue
		}
		for _, c := range err.Error() {
			if c < ' ' || c == 0x7f {
				t.Errorf("%.40q: the error has a control character in it: %q", name, err)
			}
		}
		if len(err.Error()) > 600 {
			t.Errorf("%.40q: an error of %d bytes", name, len(err.Error()))
		}
	}
}

func TestALongNameMayHave253Bytes(t *testing.T) {
	long := strings.Repeat("abcdefghi.", 25) + "abc"
	if err := checkName(long); len(long) != 253 || err != nil {
		t.Errorf("%d bytes: %v", len(long), err)
	}
	if err := checkName(long + "."); err != nil {
		t.Errorf("with its closing dot: %v", err)
	}
	if err := checkName(long + "d"); err == nil {
		t.Error("254 bytes: no error")
	}
}

// zone is what a nameserver of a test knows.
type zone map[string][]netip.Addr

// withNames returns a Kernel whose nameserver is z's, and silent for other names where silent is true.
func withNames(t *testing.T, z zone, silent bool) *Kernel {
	t.Helper()
	server, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { server.Close(); <-done })
	go func() {
		defer close(done)
		b := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(b)
			if err != nil {
				return
			}
			if reply, ok := z.answer(b[:n], silent); ok {
				_, _ = server.WriteTo(reply, from)
			}
		}
	}()
	k := NewKernel()
	k.resolver = net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", server.LocalAddr().String())
	}}
	return k
}

func (z zone) answer(query []byte, silent bool) ([]byte, bool) {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil, false
	}
	q := m.Questions[0]
	addrs, known := z[strings.TrimSuffix(q.Name.String(), ".")]
	if !known && silent {
		return nil, false
	}
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addrs {
		h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			reply.Answers = append(reply.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	b, err := reply.Pack()
	return b, err == nil
}

func TestResolveGivesTheFamilyAskedForAndNamesTheOneMissing(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	k := withNames(t, zone{"both.example": {v6, v4, v4}, "four.example": {v4}, "six.example": {v6}, "none.example": nil}, false)
	tests := []struct {
		name   string
		family Family
		want   []netip.Addr
		err    string
	}{
		{"both.example", IPv4, []netip.Addr{v4}, ""},
		{"both.example", IPv6, []netip.Addr{v6}, ""},
		{"four.example", AnyFamily, []netip.Addr{v4}, ""},
		{"six.example", AnyFamily, []netip.Addr{v6}, ""},
		{"six.example.", IPv6, []netip.Addr{v6}, ""},
		{"four.example", IPv6, nil, "four.example has no IPv6 address, only 192.0.2.2"},
		{"six.example", IPv4, nil, "six.example has no IPv4 address, only 2001:db8::2"},
		{"none.example", AnyFamily, nil, "none.example"},
		{"none.example", IPv4, nil, "none.example"},
		{"unknown.example", AnyFamily, nil, "look up unknown.example (IPv4 or IPv6): "},
		{"unknown.example", IPv6, nil, "look up unknown.example (IPv6): "},
	}
	for _, test := range tests {
		got, err := k.Resolve(t.Context(), test.name, test.family)
		if !slices.Equal(got, test.want) || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s as %v: got %v, %v; want %v, %q", test.name, test.family, got, err, test.want, test.err)
		}
	}
	got, err := k.Resolve(t.Context(), "both.example", AnyFamily)
	slices.SortFunc(got, netip.Addr.Compare) // the resolver's order depends on this machine's routes (RFC 6724)
	if want := []netip.Addr{v4, v6}; err != nil || !slices.Equal(got, want) {
		t.Errorf("both.example: got %v, %v; want %v, each once", got, err, want)
	}
}

func TestASilentNameserverIsBoundedByTheContext(t *testing.T) {
	k := withNames(t, zone{}, true)
	ctx, cancel := WithTimeout(t.Context(), k, 20*time.Millisecond)
	defer cancel()
	_, err := k.Resolve(ctx, "host.example", AnyFamily)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "look up host.example: ") {
		t.Errorf("got %v; want context.DeadlineExceeded", err)
	}
}
