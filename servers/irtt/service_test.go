package irtt

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/internal/wire/irtt/hmacmd5"
)

var (
	client = netip.MustParseAddrPort("192.0.2.1:40000")
	other  = netip.MustParseAddrPort("192.0.2.1:40001")
)

// stillClock is a clock that a test moves.
type stillClock struct {
	host.Clock // only Now is used
	now        time.Time
}

func (c *stillClock) Now() time.Time { return c.now }

// bench is a service with the hands of a client on it.
type bench struct {
	t     testing.TB
	clock *stillClock
	*service
	key *wire.Authenticator
}

func newBench(t testing.TB, o Options) *bench {
	t.Helper()
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	clock := &stillClock{now: time.Unix(1796039469, 0)}
	v, err := newService(clock, o)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t, clock, v, wire.NewAuthenticator(o.HMAC)}
}

func (b *bench) pass(d time.Duration) { b.clock.now = b.clock.now.Add(d) }

// ask hands over a datagram that arrives now, and returns the answer.
func (b *bench) ask(from netip.AddrPort, datagram []byte) ([]byte, dscp.CodePoint) {
	return b.handle(datagram, host.Datagram{N: len(datagram), From: from, At: b.clock.now}, true, make([]byte, 0, 65507))
}

// asked is what most tests ask for.
var asked = wire.Params{Version: 1, Duration: time.Minute, Interval: 10 * time.Millisecond, Stats: wire.CountStats | wire.WindowStats,
	Stamps: wire.BothStamps, Clock: wire.BothClocks}

// open opens a session and returns the open reply, or false where there is no answer.
func (b *bench) open(from netip.AddrPort, p wire.Params) (wire.Open, bool) {
	b.t.Helper()
	request := b.sign(wire.Open{Flags: wire.FlagOpen | b.hmac, Params: p}.AppendTo(nil))
	reply, _ := b.ask(from, request)
	if reply == nil {
		return wire.Open{}, false
	}
	o, err := wire.ParseOpen(reply)
	if err != nil || o.Flags != wire.FlagOpen|wire.FlagReply|b.hmac || o.Token == 0 {
		b.t.Errorf("open reply %x: %+v, %v", reply, o, err)
	}
	return o, true
}

func (b *bench) mustOpen(from netip.AddrPort, p wire.Params) wire.Open {
	b.t.Helper()
	o, ok := b.open(from, p)
	if !ok {
		b.t.Fatalf("no answer to an open request for %+v", p)
	}
	return o
}

// request returns an echo request of a session.
func (b *bench) request(o wire.Open, seq uint32) []byte {
	e := wire.Echo{Flags: b.hmac, Token: o.Token, Seq: seq}
	d := e.AppendTo(nil, o.Params.Fields())
	d = append(d, make([]byte, o.Params.EchoSize(b.hmac != 0)-len(d))...)
	return b.sign(d)
}

// echo sends an echo request and returns the reply, or false where there is none.
func (b *bench) echo(from netip.AddrPort, o wire.Open, seq uint32) (wire.Echo, bool) {
	b.t.Helper()
	reply, _ := b.ask(from, b.request(o, seq))
	if reply == nil {
		return wire.Echo{}, false
	}
	e, _, err := wire.ParseEcho(reply, o.Params.Fields())
	if err != nil || e.Token != o.Token || e.Seq != seq || len(reply) != o.Params.EchoSize(b.hmac != 0) {
		b.t.Errorf("reply to %d: %x, %+v, %v", seq, reply, e, err)
	}
	return e, true
}

func TestParametersAreRestrictedToTheLimits(t *testing.T) {
	with := func(change func(p *wire.Params)) wire.Params {
		p := asked
		change(&p)
		return p
	}
	small := Options{MaxDuration: 500 * time.Millisecond, MinInterval: 20 * time.Millisecond, MaxLength: 100, NoDSCP: true}
	for _, c := range []struct {
		claim       string
		o           Options
		asked, want wire.Params
	}{
		{"what is within them is granted", Options{}, asked, asked},
		{"a length", Options{}, with(func(p *wire.Params) { p.Length = 1472 }), with(func(p *wire.Params) { p.Length = 1472 })},
		{"a length above the limit", Options{}, with(func(p *wire.Params) { p.Length = 1473 }), with(func(p *wire.Params) { p.Length = 1472 })},
		{"an endless test", Options{}, with(func(p *wire.Params) { p.Duration = wire.Endless }), with(func(p *wire.Params) { p.Duration = time.Hour })},
		{"an interval below 10 ms", Options{}, with(func(p *wire.Params) { p.Interval = 1 }), asked},
		{"an interval above a quarter of the timeout", Options{}, with(func(p *wire.Params) { p.Interval = 20 * time.Second }),
			with(func(p *wire.Params) { p.Interval = 15 * time.Second })},
		{"another version", Options{}, with(func(p *wire.Params) { p.Version = 2 }), asked},
		{"the random fill", Options{}, with(func(p *wire.Params) { p.Fill = "rand" }), with(func(p *wire.Params) { p.Fill = "rand" })},
		{"another fill", Options{}, with(func(p *wire.Params) { p.Fill = "pattern:00" }), asked},
		{"a DS byte is granted as it is", Options{}, with(func(p *wire.Params) { p.DS = 0x2e }), with(func(p *wire.Params) { p.DS = 0x2e })},
		{"all limits at once", small,
			with(func(p *wire.Params) { p.Duration, p.Length, p.DS, p.Fill = time.Second, 200, 0xb8, "none" }),
			with(func(p *wire.Params) {
				p.Duration, p.Interval, p.Length = 500*time.Millisecond, 20*time.Millisecond, 100
			})},
		{"other stamps and clocks are the client's to choose", Options{},
			with(func(p *wire.Params) { p.Stats, p.Stamps, p.Clock = 1, wire.MidpointStamp, wire.MonotonicClock }),
			with(func(p *wire.Params) { p.Stats, p.Stamps, p.Clock = 1, wire.MidpointStamp, wire.MonotonicClock })},
		{"no stamps and no clock", Options{}, with(func(p *wire.Params) { p.Stamps, p.Clock = 0, 0 }), with(func(p *wire.Params) { p.Stamps, p.Clock = 0, 0 })},
	} {
		if got := newBench(t, c.o).mustOpen(client, c.asked).Params; got != c.want {
			t.Errorf("%s: granted %+v, want %+v", c.claim, got, c.want)
		}
	}
}

func TestAStackThatCannotMarkSaysSo(t *testing.T) {
	b := newBench(t, Options{})
	p := asked
	p.DS = 0xb8
	reply, _ := b.handle(wire.Open{Flags: wire.FlagOpen, Params: p}.AppendTo(nil), host.Datagram{From: client, At: b.clock.now}, false, nil)
	if o, err := wire.ParseOpen(reply); err != nil || o.Params.DS != 0 {
		t.Errorf("granted %+v, %v, want DS byte 0", o.Params, err)
	}
}

func TestRepliesHaveTheMarkAskedForWithoutItsECNBits(t *testing.T) {
	for _, c := range []struct {
		ds   uint8
		want dscp.CodePoint
	}{{0, 0}, {0xb8, 46}, {0x2e, 11}, {0x03, 0}, {0xff, 63}} {
		b := newBench(t, Options{})
		p := asked
		p.DS = c.ds
		if reply, mark := b.ask(client, b.request(b.mustOpen(client, p), 0)); reply == nil || mark != c.want {
			t.Errorf("DS byte %#x: mark %v, want %v", c.ds, mark, c.want)
		}
	}
}

func TestAnOpenRequestSentAgainGetsTheSameSession(t *testing.T) {
	b := newBench(t, Options{})
	first := b.mustOpen(client, asked)
	b.pass(time.Second)
	if again := b.mustOpen(client, asked); again != first {
		t.Errorf("sent again: %+v, want %+v", again, first)
	}
	changed := asked
	changed.Length = 100
	if o := b.mustOpen(client, changed); o.Token == first.Token {
		t.Error("other parameters got the same session")
	}
	if o := b.mustOpen(other, asked); o.Token == first.Token {
		t.Error("another port got the same session")
	}
	if _, ok := b.echo(client, first, 0); !ok {
		t.Error("the first session does not live any more")
	}
	if o, ok := b.open(client, asked); ok {
		t.Errorf("in the midst of the session, an open request that came twice is answered with %+v: that ends a stock client's test", o)
	}
	b.pass(time.Second)
	second := b.mustOpen(client, asked)
	if second.Token == first.Token {
		t.Error("after the session, an open request got the same one")
	}
	if _, ok := b.echo(client, first, 1); !ok {
		t.Error("an open request, which anybody can forge, ended the session")
	}
	if _, ok := b.echo(client, second, 0); !ok {
		t.Error("the second session does not live")
	}
	if _, ok := b.echo(client, first, 2); ok {
		t.Error("a client has two sessions")
	}
}

func TestAnAddressHasSoManySessionsAndNoMore(t *testing.T) {
	b := newBench(t, Options{MaxSessionsPerAddress: 2})
	for _, c := range []struct {
		from string
		want bool
	}{
		{"192.0.2.1:1", true}, {"192.0.2.1:2", true}, {"192.0.2.1:3", false}, {"192.0.2.1:2", true}, {"192.0.2.2:3", true},
		{"[2001:db8::1]:1", true}, {"[2001:db8::2]:1", true}, {"[2001:db8::3]:1", false}, {"[2001:db8:0:1::1]:1", true},
	} {
		if _, ok := b.open(netip.MustParseAddrPort(c.from), asked); ok != c.want {
			t.Errorf("%s: opened %v, want %v", c.from, ok, c.want)
		}
	}
	b.pass(unprovenTimeout + sweepInterval)
	if b.mustOpen(netip.MustParseAddrPort("192.0.2.1:4"), asked); len(b.held) != 1 {
		t.Errorf("addresses with sessions: %v, want the last one alone", b.held)
	}
}

func TestNoTestOpensNoSession(t *testing.T) {
	b := newBench(t, Options{})
	reply, _ := b.ask(client, wire.Open{Flags: wire.FlagOpen | wire.FlagClose, Params: asked}.AppendTo(nil))
	o, err := wire.ParseOpen(reply)
	if want := (wire.Open{Flags: 7, Params: asked}); err != nil || o != want || len(b.sessions) != 0 {
		t.Errorf("%+v, %v, %d sessions, want %+v and none", o, err, len(b.sessions), want)
	}
}

// Each takes the other for a client, until it sees a reply, which is not answered.
func TestTwoServersDoNotAnswerEachOther(t *testing.T) {
	for _, first := range []string{"an open request", "an echo request"} {
		servers := [2]*bench{newBench(t, Options{}), newBench(t, Options{})}
		address := [2]netip.AddrPort{client, other}
		// Somebody forges what seems to come from the other server.
		b := wire.Open{Flags: wire.FlagOpen, Params: asked}.AppendTo(nil)
		if first == "an echo request" {
			b = servers[0].request(servers[0].mustOpen(address[1], asked), 0)
		}
		packets := 0
		for at := 0; b != nil && packets < 10; at = 1 - at {
			reply, _ := servers[at].ask(address[1-at], b)
			b = slices.Clone(reply)
			if reply != nil {
				packets++
			}
		}
		if packets != 1 {
			t.Errorf("%s makes two servers send %d packets, want one", first, packets)
		}
	}
}

func TestWhatFailsACheckIsNotAnswered(t *testing.T) {
	noClock := asked
	noClock.Clock = 0
	for _, c := range []struct {
		claim string
		key   string
		make  func(b *bench, o wire.Open) []byte
		from  netip.AddrPort
	}{
		{"an echo reply", "", func(b *bench, o wire.Open) []byte { return flag(b.request(o, 0), 2) }, client},
		{"a last echo reply", "", func(b *bench, o wire.Open) []byte { return flag(b.request(o, 0), 6) }, client},
		{"an open reply", "", func(b *bench, o wire.Open) []byte { return o.AppendTo(nil) }, client},
		{"a signed reply", "swordfish", func(b *bench, o wire.Open) []byte { return b.sign(o.AppendTo(nil)) }, client},
		{"wrong magic", "", func(b *bench, o wire.Open) []byte { r := b.request(o, 0); r[0]++; return r }, client},
		{"an unknown flag", "", func(b *bench, o wire.Open) []byte { return flag(b.request(o, 0), 16) }, client},
		{"nothing", "", func(*bench, wire.Open) []byte { return nil }, client},
		{"an HMAC that is not wanted", "", func(b *bench, o wire.Open) []byte {
			d := wire.Open{Flags: wire.FlagOpen | wire.FlagHMAC, Params: asked}.AppendTo(nil)
			wire.NewAuthenticator(hmacmd5.New([]byte("swordfish"))).Sign(d)
			return d
		}, client},
		{"an open request without its HMAC", "swordfish", func(*bench, wire.Open) []byte {
			return wire.Open{Flags: wire.FlagOpen, Params: asked}.AppendTo(nil)
		}, client},
		{"a wrong HMAC", "swordfish", func(b *bench, o wire.Open) []byte { r := b.request(o, 0); r[25] ^= 1; return r }, client},
		{"stamps by no clock", "", func(*bench, wire.Open) []byte {
			return wire.Open{Flags: wire.FlagOpen, Params: noClock}.AppendTo(nil)
		}, client},
		{"parameters out of range", "", func(*bench, wire.Open) []byte { return []byte("\x14\xa7\x5b\x01\x05\x08") }, client},
		{"an open request whose answer would be much longer", "", func(*bench, wire.Open) []byte { return []byte("\x14\xa7\x5b\x01") }, client},
		{"an unknown token", "", func(b *bench, o wire.Open) []byte { o.Token++; return b.request(o, 0) }, client},
		{"another client's token", "", func(b *bench, o wire.Open) []byte { return b.request(o, 0) }, other},
		{"another client's close request", "", func(_ *bench, o wire.Open) []byte {
			return wire.Close{Flags: wire.FlagClose, Token: o.Token}.AppendTo(nil)
		}, other},
		{"a close request", "", func(_ *bench, o wire.Open) []byte {
			return wire.Close{Flags: wire.FlagClose, Token: o.Token + 1}.AppendTo(nil)
		}, client},
		{"an echo request one byte short", "", func(b *bench, o wire.Open) []byte { r := b.request(o, 0); return r[:len(r)-1] }, client},
		{"an echo request without a sequence", "", func(b *bench, o wire.Open) []byte { return b.request(o, 0)[:14] }, client},
		{"an echo request above the greatest length", "", func(b *bench, o wire.Open) []byte { return append(b.request(o, 0), make([]byte, 1472)...) }, client},
		{"the sequence number that is none", "", func(b *bench, o wire.Open) []byte { return b.request(o, 1<<32-1) }, client},
	} {
		b := newBench(t, Options{HMAC: hmacmd5.New([]byte(c.key))})
		o := b.mustOpen(client, asked)
		if reply, _ := b.ask(c.from, c.make(b, o)); reply != nil {
			t.Errorf("%s is answered: %x", c.claim, reply)
		}
		if e, ok := b.echo(client, o, 0); !ok || e.Count != 1 {
			t.Errorf("after %s, an echo request got %+v, %v, want the first answer", c.claim, e, ok)
		}
	}
}

func flag(b []byte, f byte) []byte {
	b[3] |= f
	return b
}

func TestAnswersAreNoLongerThanAllowed(t *testing.T) {
	b := newBench(t, Options{})
	for _, p := range []wire.Params{asked, {Version: 1, Duration: 1, Interval: 1, Clock: 3, Fill: "x"}, {Version: 2, Interval: 1}, {Version: 1, Interval: 1 << 62}} {
		request := wire.Open{Flags: wire.FlagOpen, Params: p}.AppendTo(nil)
		reply, _ := b.ask(client, request)
		if reply == nil || len(reply) > len(request)+12 {
			t.Errorf("%+v: an answer of %d bytes to %d, want at most 12 more", p, len(reply), len(request))
		}
		if p == asked && len(reply) != len(request)+8 {
			t.Errorf("%+v: an answer of %d bytes to %d, want 8 more", p, len(reply), len(request))
		}
	}
}

func TestEchoRequestsAreLimitedToABurstAndARate(t *testing.T) {
	b := newBench(t, Options{Burst: 5})
	o := b.mustOpen(client, asked)
	answers := func(n int, gap time.Duration) int {
		got := 0
		for seq := range n {
			if _, ok := b.echo(client, o, uint32(seq)); ok {
				got++
			}
			b.pass(gap)
		}
		return got
	}
	for _, c := range []struct {
		claim string
		n     int
		gap   time.Duration
		want  int
	}{
		{"of 20 at once the burst is answered", 20, 0, 5},
		{"at the least interval each is", 100, 10 * time.Millisecond, 100},
		{"at half of it every second one is, after the burst", 100, 5 * time.Millisecond, 55},
	} {
		b.pass(time.Second)
		if got := answers(c.n, c.gap); got < c.want-1 || got > c.want {
			t.Errorf("%s: %d of %d, want %d", c.claim, got, c.n, c.want)
		}
	}
}

func TestWhatAStalledPathLetsLooseIsAnswered(t *testing.T) {
	b := newBench(t, Options{})
	o := b.mustOpen(client, asked)
	for seq := range uint32(100) { // a second of the fastest series
		if _, ok := b.echo(client, o, seq); !ok {
			t.Fatalf("request %d of 100 that came at once got no answer", seq)
		}
	}
}

func TestSessionsAreLimited(t *testing.T) {
	b := newBench(t, Options{MaxSessions: 3})
	port := func(n int) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), uint16(n)) }
	var sessions []wire.Open
	for n := range 3 {
		sessions = append(sessions, b.mustOpen(port(n), asked))
	}
	if _, ok := b.open(port(3), asked); ok {
		t.Error("a fourth session was opened, want 3")
	}
	if again := b.mustOpen(port(0), asked); again != sessions[0] {
		t.Error("at the limit, an open request sent again got no answer")
	}
	b.ask(port(1), wire.Close{Flags: wire.FlagClose, Token: sessions[1].Token}.AppendTo(nil))
	if _, ok := b.echo(port(1), sessions[1], 0); ok {
		t.Error("a closed session answers")
	}
	b.mustOpen(port(3), asked)
}

func TestOpenRequestsAreLimited(t *testing.T) {
	b := newBench(t, Options{OpensPerSecond: 10})
	flood := func(n int, gap time.Duration) int {
		got := 0
		for range n {
			if _, ok := b.open(client, asked); ok {
				got++
			}
			b.pass(gap)
		}
		return got
	}
	if got := flood(100, 0); got != 10 {
		t.Errorf("%d of 100 at once answered, want 10", got)
	}
	if got := flood(100, 10*time.Millisecond); got < 9 || got > 10 {
		t.Errorf("%d of 100 in a second answered, want 10", got)
	}
}

func TestStaleSessionsAreForgotten(t *testing.T) {
	for _, c := range []struct {
		claim  string
		proven bool
		idle   time.Duration
		lives  bool
	}{
		{"without an echo request it is kept for 15 s", false, 15 * time.Second, true},
		{"and no longer", false, 15*time.Second + 1, false},
		{"with one it is kept for the timeout and 5 s", true, 65 * time.Second, true},
		{"and no longer", true, 65*time.Second + 1, false},
	} {
		b := newBench(t, Options{})
		o := b.mustOpen(client, asked)
		want := uint32(1)
		if c.proven {
			b.echo(client, o, 0)
			want = 2
		}
		b.pass(c.idle)
		if e, ok := b.echo(client, o, 1); ok != c.lives || ok && e.Count != want {
			t.Errorf("%s: after %v, %+v, %v, want %v", c.claim, c.idle, e, ok, c.lives)
		}
	}
}

func TestForgottenSessionsMakeRoom(t *testing.T) {
	b := newBench(t, Options{MaxSessions: 1})
	b.mustOpen(client, asked)
	b.pass(16 * time.Second)
	b.mustOpen(other, asked)
	if len(b.sessions) != 1 || len(b.unproven) != 1 {
		t.Errorf("%d sessions, %d of them unproven, want 1 and 1", len(b.sessions), len(b.unproven))
	}
}

func TestAnOverlongSessionEndsWithTheCloseFlag(t *testing.T) {
	for _, c := range []struct {
		claim    string
		duration time.Duration
		end      time.Duration
	}{
		{"what the client asked for", 500 * time.Millisecond, 2500 * time.Millisecond},
		{"what the server allows", wire.Endless, 12 * time.Second},
		{"what the server allows, where the client names none", 0, 12 * time.Second},
	} {
		b := newBench(t, Options{MaxDuration: 10 * time.Second})
		p := asked
		p.Duration = c.duration
		o := b.mustOpen(client, p)
		b.pass(3 * time.Second) // before the first echo request it does not run
		b.echo(client, o, 0)
		b.pass(c.end)
		if e, ok := b.echo(client, o, 1); !ok || e.Flags != wire.FlagReply {
			t.Errorf("%s: at its end flags %d, %v, want a reply", c.claim, e.Flags, ok)
		}
		b.pass(time.Second)
		if e, ok := b.echo(client, o, 2); !ok || e.Flags != wire.FlagReply|wire.FlagClose || e.Count != 3 {
			t.Errorf("%s: after its end %+v, %v, want the last reply", c.claim, e, ok)
		}
		if _, ok := b.echo(client, o, 3); ok {
			t.Errorf("%s: it goes on after the last reply", c.claim)
		}
	}
}

func TestStampsAreTheServersOwn(t *testing.T) {
	b := newBench(t, Options{})
	p := asked
	o := b.mustOpen(client, p)
	request := b.request(o, 0)
	arrived := b.clock.now
	b.pass(400 * time.Microsecond) // it waited in the socket
	reply, _ := b.handle(request, host.Datagram{From: client, At: arrived}, true, make([]byte, 0, 100))
	e, _, err := wire.ParseEcho(reply, p.Fields())
	if err != nil || e.Receive.Wall != arrived.UnixNano() || e.Send.Wall != b.clock.now.UnixNano() || e.Send.Mono-e.Receive.Mono != 400_000 ||
		e.Receive.Mono <= 0 {
		t.Errorf("%+v, %v, want stamps 400 us apart", e, err)
	}
	p.Stamps = wire.MidpointStamp
	o = b.mustOpen(other, p)
	reply, _ = b.handle(b.request(o, 0), host.Datagram{From: other, At: arrived}, true, make([]byte, 0, 100))
	if e, _, err = wire.ParseEcho(reply, p.Fields()); err != nil || e.Midpoint.Wall != arrived.UnixNano()+200_000 {
		t.Errorf("%+v, %v, want a stamp after 200 us", e, err)
	}
	if got := b.stamp(time.Unix(0, 0)); got.Wall != 1 {
		t.Errorf("wall clock 0 is sent as %d, want 1, as 0 means absent", got.Wall)
	}
	if got := b.stamp(b.origin); got.Mono != 1 {
		t.Errorf("monotonic clock 0 is sent as %d, want 1", got.Mono)
	}
}

func TestPayloadIsTheFillerOrRandom(t *testing.T) {
	b := newBench(t, Options{})
	payload := func(fill string, port uint16) []byte {
		p := asked
		p.Length, p.Fill = 80, fill
		from := netip.AddrPortFrom(client.Addr(), port)
		reply, _ := b.ask(from, b.request(b.mustOpen(from, p), 0))
		return reply[60:]
	}
	if got := payload("", 1); string(got) != "irttirttirttirttirtt" {
		t.Errorf("filled with %q", got)
	}
	one, two := payload("rand", 2), payload("rand", 3)
	if bytes.Equal(one, two) || bytes.Equal(one, make([]byte, 20)) {
		t.Errorf("random fills %x and %x", one, two)
	}
}

func TestAReplySaysWithWhichMarkItsRequestCameIn(t *testing.T) {
	b := newBench(t, Options{})
	p := asked
	p.Length, p.Fill = 64, wire.FillDS
	request := wire.Open{Flags: wire.FlagOpen, Params: p}.AppendTo(nil)
	open := func(d host.Datagram) wire.Open {
		d.At = b.clock.now
		reply, _ := b.handle(request, d, true, make([]byte, 0, 65507))
		o, err := wire.ParseOpen(reply)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	blind := netip.AddrPortFrom(client.Addr(), 7)
	if o := open(host.Datagram{From: blind}); o.Params.Fill != "" {
		t.Errorf("a socket that does not tell marks grants the fill %q", o.Params.Fill)
	}
	o := open(host.Datagram{From: client, HasDS: true})
	if o.Params.Fill != wire.FillDS {
		t.Fatalf("granted the fill %q", o.Params.Fill)
	}
	for seq, c := range []host.Datagram{{DS: 0xb8, HasDS: true}, {DS: 3, HasDS: true}, {HasDS: true}, {}} {
		c.From, c.At = client, b.clock.now
		reply, _ := b.handle(b.request(o, uint32(seq)), c, true, make([]byte, 0, 65507))
		_, payload, err := wire.ParseEcho(reply, p.Fields())
		ds, told := wire.Mark(payload)
		if err != nil || ds != c.DS || told != c.HasDS || len(reply) != 64 {
			t.Errorf("a request with %#02x (told %v): a reply of %d bytes says %#02x (%v, %v)", c.DS, c.HasDS, len(reply), ds, told, err)
		}
	}
}

func TestWindowsOfReorderedRequests(t *testing.T) {
	for _, c := range []struct {
		claim string
		seqs  []uint32
		want  []uint64
	}{
		{"in order", []uint32{0, 1, 2}, []uint64{1, 0b11, 0b111}},
		{"a late one keeps the memory", []uint32{0, 1, 3, 2, 4}, []uint64{1, 0b11, 0b1101, 0b111, 0b11111}},
		{"a duplicate changes nothing", []uint32{0, 1, 1, 0, 2}, []uint64{1, 0b11, 0b11, 1, 0b111}},
		{"a gap", []uint32{5, 7}, []uint64{1, 0b101}},
		{"the window's end", []uint32{0, 63, 64}, []uint64{1, 1<<63 | 1, 0b11}},
		{"a jump over all", []uint32{0, 70, 71}, []uint64{1, 1, 0b11}},
		{"64 late", []uint32{0, 1, 66, 2}, []uint64{1, 0b11, 1, 0b111}},
		{"too late to tell", []uint32{0, 1, 200, 2, 201}, []uint64{1, 0b11, 1, 0, 0b11}},
	} {
		var s session
		for i, seq := range c.seqs {
			if got := s.received(seq); got != c.want[i] || s.count != uint32(i+1) {
				t.Errorf("%s: window of %d is %b, count %d, want %b and %d", c.claim, seq, got, s.count, c.want[i], i+1)
			}
		}
	}
}

// TestWindowsAreTrue compares with a server that remembers everything: a window is all true, or it is 0.
func TestWindowsAreTrue(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var s session
		came, highest, first := make(map[uint32]bool), uint32(0), true
		for n := range uint32(300) {
			seq := n + r.Uint32N(8) - min(n, r.Uint32N(160)*(r.Uint32N(4)/3))
			came[seq] = true
			if first || seq > highest {
				highest, first = seq, false
			}
			want := uint64(0)
			for k := range min(seq+1, 64) {
				if came[seq-k] {
					want |= 1 << k
				}
			}
			if highest-seq > 64 {
				want = 0
			}
			if got := s.received(seq); got != want {
				t.Fatalf("window of %d, %d below the highest, is %b, want %b", seq, highest-seq, got, want)
			}
		}
	}
}

func TestTheLogIsLimitedAndSaysWhatItLeftOut(t *testing.T) {
	var lines []string
	b := newBench(t, Options{Log: func(s string) { lines = append(lines, s) }})
	for range 1000 {
		b.ask(client, []byte("what is this?"))
	}
	if len(lines) != linesAtOnce {
		t.Fatalf("%d lines of 1000, want %d", len(lines), linesAtOnce)
	}
	if want := "irtt: datagram from 192.0.2.1:40000 ignored: irtt: wrong magic at byte 0"; lines[0] != want {
		t.Errorf("line %q, want %q", lines[0], want)
	}
	b.pass(100 * time.Millisecond)
	o := b.mustOpen(client, asked)
	if want := "irtt: 192.0.2.1:40000 opened a session: 1m0s every 10ms, 60 bytes, DS byte 0x00 (980 lines before it left out)"; lines[len(lines)-1] != want {
		t.Errorf("line %q, want %q", lines[len(lines)-1], want)
	}
	b.echo(client, o, 0)
	b.pass(100 * time.Millisecond)
	b.ask(client, wire.Close{Flags: wire.FlagClose, Token: o.Token}.AppendTo(nil))
	if want := "irtt: session of 192.0.2.1:40000 closed by the client; 1 echo requests"; lines[len(lines)-1] != want {
		t.Errorf("line %q, want %q", lines[len(lines)-1], want)
	}
}

func TestASourceOfTokensThatFailsOpensNothing(t *testing.T) {
	for _, c := range []struct {
		claim  string
		random io.Reader
	}{
		{"it ends after the seed", bytes.NewReader(make([]byte, 32))},
		{"it gives only zeros", zeros{}},
	} {
		b := newBench(t, Options{Random: c.random})
		if o, ok := b.open(client, asked); ok {
			t.Errorf("%s: %+v, want no session", c.claim, o)
		}
	}
	if _, err := newService(&stillClock{}, Options{Random: bytes.NewReader(nil), OpensPerSecond: 1}); err == nil {
		t.Error("a server without a seed runs")
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

var captureLine = regexp.MustCompile(`(?m)^([CS]) \d+\.\d{6} ([0-9a-f]+)`)

// TestCapturedClientsGetWhatTheStockServerSaid replays the datagrams of stock clients: the replies are those of the stock server in all but
// their stamps.
func TestCapturedClientsGetWhatTheStockServerSaid(t *testing.T) {
	for _, name := range []string{"session-0.9.0", "session-hmac-0.9.0", "session-0.9.2", "session-hmac-0.9.2", "dscp-0.9.2", "no-test-0.9.0",
		"receive-mono-count-0.9.0", "send-wall-0.9.0", "midpoint-wall-window-0.9.0", "midpoint-mono-0.9.0", "no-fields-length40-0.9.0", "version-2-0.9.0"} {
		text, err := os.ReadFile("../../internal/wire/irtt/testdata/captures/" + name + ".hex")
		if err != nil {
			t.Fatal(err)
		}
		o := Options{}
		if strings.Contains(name, "hmac") {
			o.HMAC = hmacmd5.New([]byte("swordfish"))
		}
		var answers [][]byte // the stock server's
		var requests [][]byte
		for _, m := range captureLine.FindAllSubmatch(text, -1) {
			d, err := hex.DecodeString(string(m[2]))
			if err != nil {
				t.Fatal(err)
			}
			if m[1][0] == 'C' {
				requests = append(requests, d)
			} else {
				answers = append(answers, d)
			}
		}
		open, err := wire.ParseOpen(answers[0])
		if err != nil {
			t.Fatal(err)
		}
		o.Random = io.MultiReader(bytes.NewReader(make([]byte, 32)), bytes.NewReader(binary.LittleEndian.AppendUint64(nil, uint64(open.Token))))
		b := newBench(t, o)
		var got [][]byte
		for _, r := range requests {
			b.pass(10 * time.Millisecond)
			if reply, _ := b.ask(client, r); reply != nil {
				got = append(got, reply)
			}
		}
		compareAnswers(t, name, got, answers, open.Params)
	}
}

func compareAnswers(t *testing.T, name string, got, want [][]byte, p wire.Params) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d answers, want %d", name, len(got), len(want))
		return
	}
	skipped := false // captures of long sessions are cut in the middle, and then count and window go on from there
	for i := range got {
		if got[i][3]&byte(wire.FlagOpen) != 0 {
			if i != 0 || !bytes.Equal(got[i], want[i]) {
				t.Errorf("%s, answer %d: %x, want %x", name, i, got[i], want[i])
			}
			continue
		}
		g, payload, err1 := wire.ParseEcho(got[i], p.Fields())
		w, wantPayload, err2 := wire.ParseEcho(want[i], p.Fields())
		skipped = skipped || int(w.Seq) != i-1
		g.Receive, g.Midpoint, g.Send = w.Receive, w.Midpoint, w.Send
		if skipped {
			g.Count, g.Window = w.Count, w.Window
		}
		if err1 != nil || err2 != nil || g != w || !bytes.Equal(payload, wantPayload) {
			t.Errorf("%s, answer %d: %+v %x %v, want %+v %x %v", name, i, g, payload, err1, w, wantPayload, err2)
		}
	}
}

func TestEchoesAllocateNothing(t *testing.T) {
	for _, c := range []struct{ key, fill string }{{"", ""}, {"swordfish", ""}, {"", "rand"}} {
		b := newBench(t, Options{HMAC: hmacmd5.New([]byte(c.key)), Log: func(string) {}})
		p := asked
		p.Length, p.Fill, p.Duration = 172, c.fill, time.Hour
		o := b.mustOpen(client, p)
		request, out, seq := b.request(o, 0), make([]byte, 0, 1472), uint32(0)
		d := host.Datagram{From: client}
		n := testing.AllocsPerRun(1000, func() {
			seq++
			b.pass(10 * time.Millisecond)
			d.At = b.clock.now
			binary.LittleEndian.PutUint32(request[wire.HeaderSize(b.hmac)+8:], seq)
			if b.auth != nil {
				b.auth.Sign(request)
			}
			if reply, _ := b.handle(request, d, true, out); reply == nil {
				t.Fatal("no reply")
			}
		})
		if n != 0 {
			t.Errorf("key %q, fill %q: %v allocations per echo, want 0", c.key, c.fill, n)
		}
	}
}

func BenchmarkEcho(b *testing.B) {
	v := newBench(b, Options{})
	p := asked
	p.Duration = wire.Endless
	v.o.MaxDuration = wire.Endless - overtime
	request, out := v.request(v.mustOpen(client, p), 0), make([]byte, 0, 1472)
	b.ReportAllocs()
	for b.Loop() {
		v.pass(10 * time.Millisecond)
		if reply, _ := v.handle(request, host.Datagram{From: client, At: v.clock.now}, true, out); reply == nil {
			b.Fatal("no reply")
		}
	}
}

// FuzzHandle feeds a server with one session whatever comes from the network, from the session's client and from another address: an answer goes only to
// what passed every check, is no longer than allowed, and is never answered itself.
func FuzzHandle(f *testing.F) {
	files, _ := os.ReadDir("../../internal/wire/irtt/testdata/captures")
	for _, file := range files {
		text, err := os.ReadFile("../../internal/wire/irtt/testdata/captures/" + file.Name())
		if err != nil {
			f.Fatal(err)
		}
		for i, m := range captureLine.FindAllSubmatch(text, 6) {
			d, _ := hex.DecodeString(string(m[2]))
			f.Add(i%2 == 0, strings.Contains(file.Name(), "hmac"), d)
		}
	}
	seed := newBench(f, Options{Random: sevens{}})
	f.Add(true, false, seed.request(seed.mustOpen(client, asked), 3))
	f.Fuzz(func(t *testing.T, own, signed bool, datagram []byte) {
		o := Options{Random: sevens{}}
		if signed {
			o.HMAC = hmacmd5.New([]byte("swordfish"))
		}
		b := newBench(t, o)
		b.mustOpen(client, asked)
		from := other
		if own {
			from = client
		}
		reply, _ := b.ask(from, slices.Clone(datagram))
		if len(b.sessions) > 2 {
			t.Errorf("%x: %d sessions", datagram, len(b.sessions))
		}
		if reply == nil {
			return
		}
		flags, err := wire.ParseHeader(datagram)
		if err != nil || flags&wire.FlagReply != 0 || signed != (flags&wire.FlagHMAC != 0) || signed && !b.key.Verify(datagram) || signed && !b.key.Verify(reply) {
			t.Errorf("%x, signed %v, is answered: %x", datagram, signed, reply)
		}
		growth := 0
		if flags&wire.FlagOpen != 0 {
			growth = maxGrowth
		} else if !own {
			t.Errorf("%x, with another client's token, is answered: %x", datagram, reply)
		}
		if len(reply) > len(datagram)+growth {
			t.Errorf("%x of %d bytes is answered with %d", datagram, len(datagram), len(reply))
		}
		if again, _ := b.ask(from, reply); again != nil {
			t.Errorf("the answer %x is answered with %x", reply, again)
		}
	})
}

type sevens struct{}

func (sevens) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 7
	}
	return len(b), nil
}
