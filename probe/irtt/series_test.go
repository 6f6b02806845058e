package irtt

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/internal/wire/irtt/hmacmd5"
	"bufferbloat/probe"
	"bufferbloat/servers/irtt"
)

// serve runs our server on the fake network until the test's end. Its clock is ahead of the bubble's by ahead.
func (n *fakeNet) serve(t *testing.T, o irtt.Options, ahead time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	o.Ready = func([]netip.AddrPort) { close(ready) }
	var running sync.WaitGroup
	running.Go(func() {
		s := irtt.Server{Options: o}
		if err := s.Serve(ctx, &fakeHost{net: n, ahead: ahead}, serverAt); err != nil {
			t.Errorf("server: %v", err)
		}
	})
	<-ready
	t.Cleanup(func() { cancel(); running.Wait() })
}

// series runs count probes, 10 ms apart, and returns their samples in order.
func series(t *testing.T, h host.Host, o Options, count uint64) ([]probe.Sample, probe.Tally) {
	t.Helper()
	po := probe.Options{Interval: 10 * time.Millisecond}
	tr, err := Dial(t.Context(), h, serverAt, po, o)
	if err != nil {
		t.Fatal(err)
	}
	samples := make([]probe.Sample, count)
	tally, err := probe.Run(t.Context(), t.Context(), h, tr, po, h.Now(), count, func(s probe.Sample) { samples[s.Seq] = s })
	if err != nil {
		t.Fatal(err)
	}
	return samples, tally
}

// fates is what a test of losses does to each echo, by direction and sequence number: when its copies arrive.
type fates func(up bool, seq int) []time.Duration

func (f fates) path(p packet) []time.Duration {
	if seq := p.echo(); seq >= 0 {
		return f(p.up, seq)
	}
	return []time.Duration{pathDelay}
}

var (
	arrives = []time.Duration{pathDelay}
	lost    = []time.Duration(nil)
)

// except is a path that does special things to some packets; the others arrive.
func except(special map[string][]time.Duration) fates {
	return func(up bool, seq int) []time.Duration {
		if d, ok := special[label(up, seq)]; ok {
			return d
		}
		return arrives
	}
}

func label(up bool, seq int) string {
	if up {
		return "request " + string(rune('A'+seq))
	}
	return "reply " + string(rune('A'+seq))
}

// every returns a path that loses each n-th packet of one direction.
func every(n int, upstream bool) fates {
	return func(up bool, seq int) []time.Duration {
		if up == upstream && seq%n == n-1 {
			return lost
		}
		return arrives
	}
}

// stockWindow rewrites our server's windows to what the stock server would send.
func stockWindow() func(p packet) []byte {
	last, window := uint32(0), uint64(0)
	return func(p packet) []byte {
		if p.up || p.echo() < 0 {
			return p.b
		}
		switch seq := uint32(p.echo()); {
		case window == 0, seq < last:
			last, window = seq, 1
		case seq > last:
			window = window<<(seq-last) | 1
			last = seq
		}
		b := slices.Clone(p.b)
		binary.LittleEndian.PutUint64(b[20:], window)
		return b
	}
}

func TestEachLossHasItsDirection(t *testing.T) {
	const count = 50
	twice := []time.Duration{pathDelay, pathDelay + time.Millisecond}
	slow := []time.Duration{pathDelay + 25*time.Millisecond} // behind the next two
	for _, c := range []struct {
		claim string
		path  fates
		stock bool // the server's windows are the stock server's
		// How many probes have these outcomes; all others were received.
		up, down, unknown int
		tally             probe.Tally
	}{
		{claim: "nothing lost", path: except(nil)},
		{claim: "nothing lost, stock", path: except(nil), stock: true},
		{claim: "every fifth reply lost: the last one's direction is unknown", path: every(5, false), down: 9, unknown: 1},
		{claim: "every fifth reply lost, stock", path: every(5, false), stock: true, down: 9, unknown: 1},
		{claim: "every fifth request lost: the last one's direction is unknown", path: every(5, true), up: 9, unknown: 1},
		{claim: "every fifth request lost, stock", path: every(5, true), stock: true, up: 9, unknown: 1},
		{claim: "every third request and every fifth reply lost", path: func(up bool, seq int) []time.Duration {
			if up && seq%3 == 2 || !up && seq%5 == 4 {
				return lost
			}
			return arrives
		}, up: 16, down: 6, unknown: 1},
		{claim: "a late request is received", path: except(map[string][]time.Duration{"request K": slow}), tally: probe.Tally{Reordered: 1}},
		{claim: "a late request is received, stock", path: except(map[string][]time.Duration{"request K": slow}), stock: true,
			tally: probe.Tally{Reordered: 1}},
		{claim: "a late request whose reply is lost", path: except(map[string][]time.Duration{"request K": slow, "reply K": lost}), down: 1},
		{claim: "a late request whose reply is lost, stock", stock: true,
			path: except(map[string][]time.Duration{"request K": slow, "reply K": lost}), down: 1},
		{claim: "a reply lost that a late request overtakes in the window", down: 1, tally: probe.Tally{Reordered: 1},
			path: except(map[string][]time.Duration{"request K": slow, "reply M": lost})},
		{claim: "the same, stock: the window cannot be believed", stock: true, unknown: 1, tally: probe.Tally{Reordered: 1},
			path: except(map[string][]time.Duration{"request K": slow, "reply M": lost})},
		{claim: "a loss long after a late request, stock: it can be believed again", stock: true, up: 1, tally: probe.Tally{Reordered: 1},
			path: except(map[string][]time.Duration{"request K": slow, "request Z": lost})},
		{claim: "a request lost beside a late one", up: 1, tally: probe.Tally{Reordered: 1},
			path: except(map[string][]time.Duration{"request K": slow, "request M": lost})},
		{claim: "a late reply is received", path: except(map[string][]time.Duration{"reply K": slow}), tally: probe.Tally{Reordered: 1}},
		{claim: "a late reply tells nothing that a newer one knows better", down: 1, up: 1, tally: probe.Tally{Reordered: 1},
			path: except(map[string][]time.Duration{"reply K": slow, "request J": lost, "reply L": lost})},
		{claim: "a duplicated reply counts once", path: except(map[string][]time.Duration{"reply K": twice}), tally: probe.Tally{Duplicates: 1}},
		{claim: "a duplicated request counts once", path: except(map[string][]time.Duration{"request K": twice}), tally: probe.Tally{Duplicates: 1}},
		{claim: "both replies to a duplicated request lost", down: 1,
			path: except(map[string][]time.Duration{"request K": twice, "reply K": lost})},
		{claim: "all replies duplicated: the series is over with the last one", tally: probe.Tally{Duplicates: count - 1}, path: func(up bool, _ int) []time.Duration {
			if up {
				return arrives
			}
			return twice
		}},
		{claim: "all requests lost", path: every(1, true), unknown: count},
		{claim: "all replies lost", path: every(1, false), unknown: count},
		{claim: "a tail lost", path: func(_ bool, seq int) []time.Duration {
			if seq >= 40 {
				return lost
			}
			return arrives
		}, unknown: 10},
		{claim: "a burst of replies lost", down: 20, path: func(up bool, seq int) []time.Duration {
			if !up && seq >= 10 && seq < 30 {
				return lost
			}
			return arrives
		}},
		{claim: "the first requests lost", up: 3, path: func(up bool, seq int) []time.Duration {
			if up && seq < 3 {
				return lost
			}
			return arrives
		}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				client.net.path = c.path.path
				if c.stock {
					client.net.change = stockWindow()
				}
				client.net.serve(t, irtt.Options{}, 0)
				samples, tally := series(t, client, Options{}, count)
				got := make(map[probe.Outcome]int)
				for _, s := range samples {
					got[s.Outcome]++
				}
				want := map[probe.Outcome]int{probe.LostUp: c.up, probe.LostDown: c.down, probe.Lost: c.unknown,
					probe.Received: count - c.up - c.down - c.unknown}
				for _, o := range []probe.Outcome{probe.Received, probe.Lost, probe.LostUp, probe.LostDown} {
					if got[o] != want[o] {
						t.Errorf("%d %v, want %d", got[o], o, want[o])
					}
				}
				if tally.Duplicates != c.tally.Duplicates || tally.Reordered != c.tally.Reordered || tally.Corrupt+tally.Stray+tally.TooLate != 0 {
					t.Errorf("tally %+v, want %d duplicates, %d reordered and nothing else", tally, c.tally.Duplicates, c.tally.Reordered)
				}
			})
		})
	}
}

func TestALossBehindTheWindowHasNoDirection(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.path = fates(func(up bool, seq int) []time.Duration {
			if up && seq >= 10 && seq < 80 {
				return lost
			}
			return arrives
		}).path
		client.net.serve(t, irtt.Options{}, 0)
		samples, _ := series(t, client, Options{}, 100)
		for seq, s := range samples {
			want := probe.Received
			switch {
			case seq >= 10 && seq <= 16:
				want = probe.Lost // more than 63 before the next reply, which is 80's
			case seq >= 17 && seq < 80:
				want = probe.LostUp
			}
			if s.Outcome != want {
				t.Errorf("probe %d is %v, want %v", seq, s.Outcome, want)
			}
		}
	})
}

func TestDelaysAreExact(t *testing.T) {
	for _, c := range []struct {
		claim string
		ahead time.Duration // the server's clock
		o     Options
	}{
		{"clocks that agree", 0, Options{}},
		{"a server's clock behind gives a negative delay up", -250 * time.Millisecond, Options{}},
		{"a server's clock a year ahead", 365 * 24 * time.Hour, Options{}},
		{"with a key", 0, Options{HMAC: hmacmd5.New([]byte("swordfish"))}},
		{"a long probe", 0, Options{Length: MaxSafeLength}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				client.net.path = func(p packet) []time.Duration {
					if p.up {
						return []time.Duration{pathDelay}
					}
					return []time.Duration{3 * pathDelay}
				}
				client.net.serve(t, irtt.Options{HMAC: c.o.HMAC}, c.ahead)
				samples, tally := series(t, client, c.o, 20)
				for _, s := range samples {
					if s.Outcome != probe.Received || s.RTT != 4*pathDelay || !s.HasOneWay || s.Up != pathDelay+c.ahead ||
						s.Down != 3*pathDelay-c.ahead || s.Stamp != host.LinkStamp {
						t.Errorf("%+v, want received, RTT %v, up %v, down %v", s, 4*pathDelay, pathDelay+c.ahead, 3*pathDelay-c.ahead)
					}
				}
				if tally.Duplicates+tally.Reordered+tally.Corrupt+tally.Stray+tally.ReceiveErrors != 0 {
					t.Errorf("tally %+v, want nothing in it", tally)
				}
				checkSizes(t, client.net, c.o)
			})
		})
	}
}

// checkSizes checks that all echoes have the length asked for, and that just one close request was sent.
func checkSizes(t *testing.T, n *fakeNet, o Options) {
	t.Helper()
	want, closes := max(o.Length, 60), 0
	if o.HMAC != nil {
		want = max(o.Length, 76)
	}
	for _, p := range n.log() {
		switch p.flags() &^ (wire.FlagHMAC | wire.FlagReply) {
		case 0:
			if len(p.b) != want || len(p.b) > MaxSafeLength {
				t.Errorf("an echo of %d bytes, want %d", len(p.b), want)
			}
		case wire.FlagClose:
			closes++
		}
	}
	if closes != 1 {
		t.Errorf("%d close requests, want 1", closes)
	}
}

func TestAShortReplyIsCountedAndEndsNothing(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.change = func(p packet) []byte {
			if !p.up && p.echo() == 7 {
				return p.b[:len(p.b)-16]
			}
			return p.b
		}
		client.net.serve(t, irtt.Options{}, 0)
		samples, tally := series(t, client, Options{}, 50)
		for _, s := range samples {
			if want := s.Seq != 7; (s.Outcome == probe.Received) != want {
				t.Errorf("probe %d is %v", s.Seq, s.Outcome)
			}
		}
		if samples[7].Outcome != probe.LostDown || tally.Corrupt != 1 {
			t.Errorf("probe 7 is %v, %d corrupt, want lost down, as the server has it, and 1", samples[7].Outcome, tally.Corrupt)
		}
	})
}

func TestTheServersEndOfASessionIsAnError(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.serve(t, irtt.Options{MaxDuration: 500 * time.Millisecond}, 0)
		tr, err := Dial(t.Context(), client, serverAt, probe.Options{Interval: 10 * time.Millisecond}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if tr.Warning() != "the irtt server ends the session after 500ms" {
			t.Errorf("warning %q, want that the session will end", tr.Warning())
		}
		answered := func(seq uint64) probe.Reply {
			t.Helper()
			if _, err := tr.Send(seq); err != nil {
				t.Fatalf("probe %d: %v", seq, err)
			}
			r, err := tr.Receive()
			if err != nil || r.Kind != probe.Answer || r.Seq != seq {
				t.Fatalf("probe %d: %+v, %v", seq, r, err)
			}
			return r
		}
		answered(0)
		time.Sleep(2470 * time.Millisecond) // and 20 ms for the answer: 10 ms short of the time and the server's grace
		answered(1)
		time.Sleep(time.Second)
		answered(2) // with the close flag
		if _, err := tr.Send(3); !errors.Is(err, ErrSessionEnded) {
			t.Errorf("send after the end: %v, want %v", err, ErrSessionEnded)
		}
		tr.Close()
		for _, p := range client.net.log() {
			if p.up && p.flags() == wire.FlagClose {
				t.Error("a session that the server has ended was closed again")
			}
		}
	})
}

func TestMarksGoBothWays(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.serve(t, irtt.Options{}, 0)
		po := probe.Options{Socket: host.Options{DSCP: 46}}
		tr, err := Dial(t.Context(), client, serverAt, po, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if _, err := tr.Send(0); err != nil {
			t.Fatal(err)
		}
		if r, err := tr.Receive(); err != nil || r.Kind != probe.Answer {
			t.Fatalf("%+v, %v, want an answer", r, err)
		}
		for _, p := range client.net.log() {
			if open := p.flags()&wire.FlagOpen != 0; (p.up || !open) && p.mark != 46 {
				t.Errorf("a datagram with flags %d, up %v, has DSCP %v, want EF", p.flags(), p.up, p.mark)
			}
			if o, err := wire.ParseOpen(p.b); err == nil && o.Params.DS != 0xb8 {
				t.Errorf("the handshake says DS byte %#x, want 0xb8", o.Params.DS)
			}
		}
	})
}

func TestAServerWithoutMarksIsNotUsedForMarkedProbes(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.serve(t, irtt.Options{NoDSCP: true}, 0)
		_, err := Dial(t.Context(), client, serverAt, probe.Options{Socket: host.Options{DSCP: 46}}, Options{})
		var restricted *RestrictedError
		if !errors.As(err, &restricted) || restricted.Parameter != "DSCP" {
			t.Errorf("%v, want a RestrictedError about DSCP", err)
		}
	})
}

// 70000 probes, a millisecond apart, with 250 of them under way all the time, also across the number that 16 bits hold. Each thousandth is lost on its way there,
// each thousandth on its way back, and the replies to 65535 and 65536 change places.
func TestSeventyThousandProbesPassSixteenBits(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.serve(t, irtt.Options{MinInterval: time.Millisecond}, 0)
		const ms = time.Millisecond
		client.net.path = fates(func(up bool, seq int) []time.Duration {
			switch {
			case up && seq%1000 == 300, !up && seq%1000 == 700:
				return lost
			case !up && seq == 65535:
				return []time.Duration{127 * ms}
			}
			return []time.Duration{125 * ms}
		}).path
		po := probe.Options{Interval: ms}
		tr, err := Dial(t.Context(), client, serverAt, po, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[probe.Outcome]int{}
		tally, err := probe.Run(t.Context(), t.Context(), client, tr, po, client.Now(), 70000, func(s probe.Sample) {
			got[s.Outcome]++
			if s.Outcome.HasRTT() && s.RTT != 250*ms && (s.Seq != 65535 || s.RTT != 252*ms) {
				t.Errorf("probe %d took %v, want 250 ms", s.Seq, s.RTT)
			}
		})
		if err != nil || got[probe.LostUp] != 70 || got[probe.LostDown] != 70 || got[probe.Received] != 70000-140 {
			t.Errorf("%v, outcomes %v; want 70 lost each way", err, got)
		}
		if tally.Reordered != 1 || tally.Duplicates+tally.Stray+tally.Corrupt+tally.TooLate != 0 {
			t.Errorf("tally %+v, want one reordered", tally)
		}
	})
}
