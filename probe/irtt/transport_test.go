package irtt

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/internal/wire/irtt/hmacmd5"
	"bufferbloat/probe"
)

// sinkConn is a connected socket that sends to nowhere.
type sinkConn struct {
	host.PacketConn // only what is below is used
	err             error
	last            []byte
}

func (c *sinkConn) Send(b []byte, _ netip.AddrPort) (time.Time, error) {
	c.last = append(c.last[:0], b...)
	return time.Now(), c.err
}
func (c *sinkConn) Close() error { return nil }

var grantAll = wire.Params{Version: 1, Duration: wire.Endless, Interval: 100 * time.Millisecond, Stats: wire.CountStats | wire.WindowStats,
	Stamps: wire.BothStamps, Clock: wire.BothClocks}

// inSession returns a Transport in the middle of a session with these parameters.
func inSession(conn host.PacketConn, granted wire.Params, key string) *Transport {
	po, _ := probe.Options{}.WithDefaults()
	hmac := hmacmd5.New([]byte(key))
	t := newTransport(nil, serverAt, po, Options{HMAC: hmac}, grantAll)
	t.s = newSession(conn, serverAt, hmac, grantAll)
	t.s.begin(wire.Open{Token: testToken, Params: granted})
	return t
}

// reply returns a reply to probe seq by a server that holds it from receive to send, both on both clocks.
func reply(t *Transport, seq uint32, receive, send wire.Time) []byte {
	e := wire.Echo{Flags: wire.FlagReply | t.s.hmac, Token: t.s.token, Seq: seq, Count: seq + 1, Window: 1, Receive: receive, Midpoint: receive, Send: send}
	b := e.AppendTo(nil, t.s.fields)
	b = append(b, make([]byte, t.s.size-len(b))...)
	if t.s.signer != nil {
		t.s.signer.Sign(b)
	}
	return b
}

func TestWhatIsHeardIsSorted(t *testing.T) {
	now := time.Now()
	stamp := wire.Time{Wall: now.UnixNano(), Mono: 1}
	change := func(at int, value byte) func(b []byte) []byte {
		return func(b []byte) []byte { b[at] = value; return b }
	}
	same := func(b []byte) []byte { return b }
	const nothing probe.ReplyKind = 255
	for _, c := range []struct {
		claim  string
		key    string
		seq    uint32 // of the reply; 0 and 1 were sent
		change func(b []byte) []byte
		want   probe.ReplyKind
	}{
		{"the reply to a probe", "", 1, same, probe.Answer},
		{"a longer reply", "", 1, func(b []byte) []byte { return append(b, 1, 2, 3) }, probe.Answer},
		{"the last reply", "", 1, change(3, 6), probe.Answer},
		{"a signed reply", "swordfish", 1, same, probe.Answer},
		{"a reply to a probe that was not sent", "", 2, same, probe.Stray},
		{"another session's reply", "", 1, change(4, 0x99), probe.Stray},
		{"wrong magic", "", 1, change(0, 0x15), probe.Corrupt},
		{"an unknown flag", "", 1, change(3, 0x12), probe.Corrupt},
		{"no reply flag", "", 1, change(3, 0), probe.Corrupt},
		{"a close request", "", 1, change(3, 4), probe.Corrupt},
		{"a reply one byte short", "", 1, func(b []byte) []byte { return b[:len(b)-1] }, probe.Corrupt},
		{"nothing", "", 1, func(b []byte) []byte { return nil }, probe.Corrupt},
		{"an HMAC that is not wanted", "", 1, change(3, 10), probe.Corrupt},
		{"an HMAC missing", "swordfish", 1, change(3, 2), probe.Corrupt},
		{"a wrong HMAC", "swordfish", 1, change(30, 0xff), probe.Corrupt},
		{"an open reply", "", 1, func([]byte) []byte { return wire.Open{Flags: 3, Token: 1, Params: grantAll}.AppendTo(nil) }, nothing},
		{"an open reply cut off", "", 1, func([]byte) []byte { return wire.Open{Flags: 3, Token: 1, Params: grantAll}.AppendTo(nil)[:8] }, probe.Corrupt},
	} {
		tr := inSession(&sinkConn{}, grantAll, c.key)
		for seq := range uint64(2) {
			if _, err := tr.Send(seq); err != nil {
				t.Fatal(err)
			}
		}
		r, ok := tr.hear(tr.s, c.change(reply(tr, c.seq, stamp, stamp)), host.Datagram{At: time.Now()})
		if ok != (c.want != nothing) || ok && r.Kind != c.want {
			t.Errorf("%s: kind %d, told %v, want kind %d", c.claim, r.Kind, ok, c.want)
		}
		if ok && r.Kind == probe.Answer && r.Seq != uint64(c.seq) {
			t.Errorf("%s: it concerns probe %d, want %d", c.claim, r.Seq, c.seq)
		}
	}
}

func TestWhatTheStampsTell(t *testing.T) {
	const ms, us = time.Millisecond, time.Microsecond
	granted := func(s wire.Stamps, c wire.Clock) wire.Params {
		p := grantAll
		p.Stamps, p.Clock = s, c
		return p
	}
	for _, c := range []struct {
		claim      string
		granted    wire.Params
		wall, mono time.Duration // from the server's receive to its send stamp
		processing time.Duration
		up, down   time.Duration
		oneWay     bool
	}{
		{"both stamps by both clocks", granted(wire.BothStamps, wire.BothClocks), 50 * us, 50 * us, 50 * us, 10 * ms, 30*ms - 50*us, true},
		{"by the monotonic clock", granted(wire.BothStamps, wire.MonotonicClock), 50 * us, 50 * us, 50 * us, 0, 0, false},
		{"by the wall clock", granted(wire.BothStamps, wire.WallClock), 50 * us, 50 * us, 50 * us, 10 * ms, 30*ms - 50*us, true},
		{"a midpoint stamp serves for both", granted(wire.MidpointStamp, wire.BothClocks), 50 * us, 50 * us, 0, 10 * ms, 30 * ms, true},
		{"a receive stamp serves for both", granted(wire.ReceiveStamp, wire.BothClocks), 0, 0, 0, 10 * ms, 30 * ms, true},
		{"a send stamp serves for both", granted(wire.SendStamp, wire.BothClocks), 0, 0, 0, 10 * ms, 30 * ms, true},
		{"no stamps", granted(wire.NoStamps, 0), 0, 0, 0, 0, 0, false},
		{"the server's wall clock stepped", granted(wire.BothStamps, wire.BothClocks), -2 * time.Minute, 50 * us, 50 * us, 0, 0, false},
		{"the server's wall clock slewed", granted(wire.BothStamps, wire.BothClocks), 60 * us, 50 * us, 50 * us, 10 * ms, 30*ms - 60*us, true},
		{"a negative processing time is passed on as told", granted(wire.BothStamps, wire.BothClocks), -50 * us, -50 * us, -50 * us, 10 * ms, 30*ms + 50*us, true},
	} {
		tr := inSession(&sinkConn{}, c.granted, "")
		sent, err := tr.Send(0)
		if err != nil {
			t.Fatal(err)
		}
		receive := wire.Time{Wall: sent.Add(10 * ms).UnixNano(), Mono: 5e9}
		send := wire.Time{Wall: receive.Wall + int64(c.wall), Mono: receive.Mono + int64(c.mono)}
		r, ok := tr.hear(tr.s, reply(tr, 0, receive, send), host.Datagram{At: sent.Add(40 * ms)})
		if !ok || r.Kind != probe.Answer || r.Processing != c.processing || r.HasOneWay != c.oneWay || r.Up != c.up || r.Down != c.down {
			t.Errorf("%s: %+v, want processing %v, up %v, down %v: %v", c.claim, r, c.processing, c.up, c.down, c.oneWay)
		}
	}
}

func TestStampsOutOfThisWorldGiveNoOneWayDelay(t *testing.T) {
	now := time.Now()
	for _, wall := range []int64{0, -1, -1 << 63} {
		if up, down, ok := oneWay(now, now, &wire.Echo{Receive: wire.Time{Wall: wall}, Send: wire.Time{Wall: wall}}); ok {
			t.Errorf("wall stamp %d gives up %v, down %v", wall, up, down)
		}
	}
	if _, _, ok := oneWay(now, time.Time{}, &wire.Echo{Receive: wire.Time{Wall: 1}, Send: wire.Time{Wall: 1}}); ok {
		t.Error("a reply without an arrival time gives one-way delays")
	}
}

func TestAStepIsToldFromSlewing(t *testing.T) {
	for _, c := range []struct {
		claim      string
		wall, mono time.Duration
		want       bool
	}{
		{"equal", time.Second, time.Second, false},
		{"stamps a little apart", time.Second + 900*time.Microsecond, time.Second, false},
		{"500 ppm of 20 s", 20*time.Second + 10*time.Millisecond, 20 * time.Second, false},
		{"a step forward", 30*time.Millisecond + 2*time.Millisecond, 30 * time.Millisecond, true},
		{"a step back", 30*time.Millisecond - 120*time.Second, 30 * time.Millisecond, true},
		{"a step of 50 years", 50 * 365 * 24 * time.Hour, 30 * time.Millisecond, true},
	} {
		if got := stepped(c.wall, c.mono); got != c.want {
			t.Errorf("%s: %v, want %v", c.claim, got, c.want)
		}
	}
}

func TestRefusalsConcernTheProbeThatTheyQuote(t *testing.T) {
	for _, key := range []string{"", "swordfish"} {
		tr := inSession(&sinkConn{}, grantAll, key)
		if _, err := tr.Send(7); err != nil {
			t.Fatal(err)
		}
		request := bytes.Clone(tr.out[:tr.s.size])
		other := bytes.Clone(request)
		other[wire.HeaderSize(tr.s.hmac)] ^= 1
		size := wire.HeaderSize(tr.s.hmac) + 12
		refusal := &host.RejectedError{By: serverAt.Addr(), Err: syscall.ECONNREFUSED}
		for _, c := range []struct {
			claim  string
			quoted []byte
			ok     bool
		}{
			{"the whole request", request, true},
			{"as much as its sequence", request[:size], true},
			{"less than its sequence", request[:size-1], false},
			{"nothing", nil, false},
			{"another session's request", other, false},
			{"an open request", wire.Open{Flags: wire.FlagOpen, Params: grantAll}.AppendTo(nil), false},
		} {
			r, err := tr.s.rejected(c.quoted, refusal)
			if c.ok && (err != nil || r.Kind != probe.Rejected || r.Seq != 7 || r.By != serverAt.Addr() || !errors.Is(r.Err, syscall.ECONNREFUSED)) {
				t.Errorf("key %q, %s: %+v, %v, want probe 7 refused", key, c.claim, r, err)
			}
			var rejected *host.RejectedError
			if !c.ok && !errors.As(err, &rejected) {
				t.Errorf("key %q, %s: %+v, %v, want the refusal as an error", key, c.claim, r, err)
			}
		}
	}
}

func TestSendErrorsSayWhatToDo(t *testing.T) {
	for _, c := range []struct {
		claim string
		seq   uint64
		err   error
		want  string
	}{
		{"a probe too long for the path", 0, syscall.EMSGSIZE, "at most 1232 pass everywhere"},
		{"a full queue stays what it is", 0, host.ErrNoBuffer, host.ErrNoBuffer.Error()},
		{"the protocol's last number", 1<<32 - 1, nil, "counts to 4294967294"},
	} {
		tr := inSession(&sinkConn{err: c.err}, grantAll, "")
		_, err := tr.Send(c.seq)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %q", c.claim, err, c.want)
		}
	}
}

func TestCloseAndWakeEndAWaitingReceive(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.answer(t, opener(func(*wire.Open) bool { return true }))
		tr, err := Dial(t.Context(), client, serverAt, probe.Options{}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := tr.Wake(start.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := tr.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("woken after %v: %v, want %v after 1 s", time.Since(start), err, os.ErrDeadlineExceeded)
		}
		if err := tr.Wake(time.Time{}); err != nil {
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if _, err := tr.Receive(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("closed: %v, want %v", err, net.ErrClosed)
			}
		})
		time.Sleep(time.Second)
		for range 2 {
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		}
		waiting.Wait()
		checkClosed(t, client.net, testToken)
	})
}

func TestProbesAllocateNothing(t *testing.T) {
	for _, key := range []string{"", "swordfish"} {
		conn := &sinkConn{}
		tr := inSession(conn, grantAll, key)
		seq := uint32(0)
		stamp := wire.Time{Wall: time.Now().UnixNano(), Mono: 1}
		b := reply(tr, 0, stamp, stamp)
		n := testing.AllocsPerRun(1000, func() {
			sent, err := tr.Send(uint64(seq))
			if err != nil {
				t.Fatal(err)
			}
			// Every third reply is lost, so that there are verdicts.
			if seq%3 != 0 {
				e := wire.Echo{Flags: wire.FlagReply | tr.s.hmac, Token: tr.s.token, Seq: seq, Count: seq + 1, Window: 1<<64 - 1, Receive: stamp, Send: stamp}
				b = e.AppendTo(b[:0], tr.s.fields)
				if tr.s.checker != nil {
					tr.s.checker.Sign(b)
				}
				if r, ok := tr.hear(tr.s, b, host.Datagram{At: sent}); !ok || r.Kind != probe.Answer {
					t.Fatalf("%+v", r)
				}
			}
			seq++
		})
		if n != 0 {
			t.Errorf("key %q: %v allocations per probe, want 0", key, n)
		}
	}
}

func BenchmarkProbe(b *testing.B) {
	tr := inSession(&sinkConn{}, grantAll, "")
	stamp := wire.Time{Wall: time.Now().UnixNano(), Mono: 1}
	buf, seq := make([]byte, 0, 60), uint32(0)
	b.ReportAllocs()
	for b.Loop() {
		at, err := tr.Send(uint64(seq))
		if err != nil {
			b.Fatal(err)
		}
		e := wire.Echo{Flags: wire.FlagReply, Token: tr.s.token, Seq: seq, Count: seq + 1, Window: 1<<64 - 1, Receive: stamp, Send: stamp}
		tr.hear(tr.s, e.AppendTo(buf, tr.s.fields), host.Datagram{At: at})
		seq++
	}
}

// FuzzHear feeds a session whatever comes from the network: only a datagram with its token, its HMAC, its length and the number of a probe that
// was sent is an answer, and verdicts are about earlier probes.
func FuzzHear(f *testing.F) {
	stamp := wire.Time{Wall: 1796039469252096822, Mono: 1}
	for _, key := range []string{"", "swordfish"} {
		tr := inSession(&sinkConn{}, grantAll, key)
		f.Add(key != "", reply(tr, 3, stamp, stamp), reply(tr, 9, stamp, wire.Time{}))
		f.Add(key != "", wire.Open{Flags: 3 | tr.s.hmac, Token: 7, Params: grantAll}.AppendTo(nil), []byte{0x14})
	}
	f.Fuzz(func(t *testing.T, signed bool, first, second []byte) {
		key := ""
		if signed {
			key = "swordfish"
		}
		tr := inSession(&sinkConn{}, grantAll, key)
		const sent = 200
		for seq := range uint64(sent) {
			if _, err := tr.Send(seq); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range [][]byte{first, second} {
			r, ok := tr.hear(tr.s, b, host.Datagram{At: time.Now()})
			if !ok {
				continue
			}
			if r.Kind != probe.Answer && r.Kind != probe.Corrupt && r.Kind != probe.Stray {
				t.Errorf("%x: kind %d", b, r.Kind)
			}
			if r.Kind != probe.Answer {
				continue
			}
			e, _, err := wire.ParseEcho(b, tr.s.fields)
			if err != nil || e.Token != testToken || len(b) < tr.s.size || r.Seq != uint64(e.Seq) || r.Seq >= sent ||
				signed != wire.NewAuthenticator(hmacmd5.New([]byte("swordfish"))).Verify(b) {
				t.Errorf("%x is taken for an answer: %+v, %v", b, r, err)
			}
			for _, v := range r.Verdicts {
				if v.Seq >= r.Seq {
					t.Errorf("%x: a verdict on probe %d from the reply to %d", b, v.Seq, r.Seq)
				}
			}
		}
		tr.Close()
	})
}
