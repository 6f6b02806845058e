package irtt

import (
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/internal/wire/irtt/hmacmd5"
	"bufferbloat/probe"
)

const testToken wire.Token = 0x1122334455667788

// opener answers open requests: change may alter the reply, or refuse it by false.
func opener(change func(o *wire.Open) bool) func(b []byte) [][]byte {
	return func(b []byte) [][]byte {
		o, err := wire.ParseOpen(b)
		if err != nil {
			return nil
		}
		o.Flags |= wire.FlagReply
		o.Token = testToken
		if !change(&o) {
			return nil
		}
		return [][]byte{o.AppendTo(nil)}
	}
}

// requests returns when the client sent datagrams with the given flags, counted from start.
func requests(n *fakeNet, flags wire.Flags, start time.Time) []time.Duration {
	var at []time.Duration
	for _, p := range n.log() {
		if p.up && p.flags() == flags {
			at = append(at, p.at.Sub(start))
		}
	}
	return at
}

func TestASilentServerIsAskedOnScheduleAndGivenUp(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		claim string
		o     Options
		limit time.Duration // of the context
		opens []time.Duration
		end   time.Duration
		err   error
	}{
		{"2 s by default", Options{}, time.Hour, []time.Duration{0, 250 * ms, 500 * ms, 1000 * ms}, 2 * time.Second, ErrNoAnswer},
		{"as the caller says", Options{Opens: []time.Duration{0, time.Second, 3 * time.Second}, OpenWait: 7 * time.Second}, time.Hour,
			[]time.Duration{0, time.Second, 3 * time.Second}, 7 * time.Second, ErrNoAnswer},
		{"a first request that waits", Options{Opens: []time.Duration{100 * ms}}, time.Hour, []time.Duration{100 * ms}, 1100 * ms, ErrNoAnswer},
		{"the context ends it sooner", Options{}, 600 * ms, []time.Duration{0, 250 * ms, 500 * ms}, 600 * ms, context.DeadlineExceeded},
		{"even before the first request", Options{Opens: []time.Duration{time.Second}}, 600 * ms, nil, 600 * ms, context.DeadlineExceeded},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				start := time.Now()
				ctx, cancel := host.WithTimeout(t.Context(), client, c.limit)
				defer cancel()
				_, err := Dial(ctx, client, serverAt, probe.Options{}, c.o)
				if took := time.Since(start); !errors.Is(err, c.err) || took != c.end {
					t.Errorf("after %v: %v, want %v after %v", took, err, c.err, c.end)
				}
				if err != nil && !strings.Contains(err.Error(), serverAt.String()) {
					t.Errorf("the error does not name the server: %v", err)
				}
				if got := requests(client.net, wire.FlagOpen, start); !slices.Equal(got, c.opens) {
					t.Errorf("open requests at %v, want %v", got, c.opens)
				}
				if len(client.net.conns) != 0 {
					t.Error("the socket was left open")
				}
			})
		})
	}
}

func TestALostOpenRequestIsSentAgain(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		start, n := time.Now(), 0
		client.net.answer(t, opener(func(*wire.Open) bool { n++; return n == 3 }))
		tr, err := Dial(t.Context(), client, serverAt, probe.Options{}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		if took, want := time.Since(start), 500*time.Millisecond+2*pathDelay; took != want {
			t.Errorf("opened after %v, want %v", took, want)
		}
		for _, p := range client.net.log() {
			if p.up && string(p.b) != string(client.net.log()[0].b) {
				t.Errorf("open request %x sent again as %x", client.net.log()[0].b, p.b)
			}
		}
	})
}

func TestARefusedPortEndsTheWaitAtOnce(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		start := time.Now()
		client.net.path = func(p packet) []time.Duration {
			for _, c := range client.net.conns {
				time.AfterFunc(pathDelay, func() { c.reject(p.b, syscall.ECONNREFUSED) })
			}
			return nil
		}
		_, err := Dial(t.Context(), client, serverAt, probe.Options{}, Options{})
		if took := time.Since(start); !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, ErrNoAnswer) || took != pathDelay {
			t.Errorf("after %v: %v, want connection refused after %v", took, err, pathDelay)
		}
	})
}

func TestAnUnreachableHostIsWaitedForAndNamed(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		start := time.Now()
		client.net.path = func(p packet) []time.Duration {
			for _, c := range client.net.conns {
				time.AfterFunc(pathDelay, func() { c.reject(p.b, syscall.EHOSTUNREACH) })
			}
			return nil
		}
		_, err := Dial(t.Context(), client, serverAt, probe.Options{}, Options{})
		if took := time.Since(start); !errors.Is(err, syscall.EHOSTUNREACH) || !errors.Is(err, ErrNoAnswer) || took != 2*time.Second {
			t.Errorf("after %v: %v, want host unreachable after 2 s", took, err)
		}
	})
}

func TestInvalidAnswersAreIgnoredAndReported(t *testing.T) {
	signed := func(b []byte, key string) []byte {
		wire.NewAuthenticator(hmacmd5.New([]byte(key))).Sign(b)
		return b
	}
	reply := wire.Open{Flags: wire.FlagOpen | wire.FlagReply, Token: testToken, Params: wire.Params{Version: 1}}
	signedReply := reply
	signedReply.Flags |= wire.FlagHMAC
	for _, c := range []struct {
		claim   string
		key     string
		b       []byte
		counted bool // as one that failed a check
	}{
		{"wrong magic", "", []byte("\x14\xa7\x5c\x03more than a token"), true},
		{"nothing", "", nil, true},
		{"a flag above 8", "", []byte("\x14\xa7\x5b\x13more than a token"), true},
		{"our own request come back", "", wire.Open{Flags: wire.FlagOpen, Params: reply.Params}.AppendTo(nil), true},
		{"an open reply cut off", "", reply.AppendTo(nil)[:9], true},
		{"an echo reply", "", (&wire.Echo{Flags: wire.FlagReply, Token: 1}).AppendTo(nil, 0), false},
		{"no HMAC", "swordfish", reply.AppendTo(nil), true},
		{"another key's HMAC", "swordfish", signed(signedReply.AppendTo(nil), "wrong"), true},
		{"an HMAC that is not wanted", "", signed(signedReply.AppendTo(nil), "swordfish"), true},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				client.net.answer(t, func([]byte) [][]byte { return [][]byte{c.b} })
				_, err := Dial(t.Context(), client, serverAt, probe.Options{}, Options{HMAC: hmacmd5.New([]byte(c.key))})
				if !errors.Is(err, ErrNoAnswer) {
					t.Fatalf("%v, want %v", err, ErrNoAnswer)
				}
				if got := strings.Contains(err.Error(), "4 datagrams that failed a check"); got != c.counted {
					t.Errorf("%v, want the 4 datagrams named: %v", err, c.counted)
				}
			})
		})
	}
}

func TestWhatTheServerChangesIsAnError(t *testing.T) {
	for _, c := range []struct {
		claim     string
		o         Options
		dscp      dscp.CodePoint
		change    func(p *wire.Params)
		parameter string // of the RestrictedError, "" for no error
		interval  time.Duration
		duration  time.Duration
		warning   string
	}{
		{claim: "nothing", change: func(*wire.Params) {}},
		{claim: "a raised interval tells the server's minimum", change: func(p *wire.Params) { p.Interval *= 2 }, parameter: "interval",
			interval: 200 * time.Millisecond},
		{claim: "a lowered interval", change: func(p *wire.Params) { p.Interval /= 2 }, parameter: "interval", interval: 50 * time.Millisecond},
		{claim: "no interval", change: func(p *wire.Params) { p.Interval = 0 }, parameter: "interval"},
		{claim: "a lowered duration", o: Options{Duration: time.Minute}, change: func(p *wire.Params) { p.Duration = time.Second },
			parameter: "duration", duration: time.Second},
		{claim: "a raised duration", o: Options{Duration: time.Minute}, change: func(p *wire.Params) { p.Duration = time.Hour },
			parameter: "duration", duration: time.Hour},
		{claim: "a limit where no duration was named is no restriction, but to be known", change: func(p *wire.Params) { p.Duration = time.Hour },
			warning: "the irtt server ends the session after 1h0m0s"},
		{claim: "no duration", change: func(p *wire.Params) { p.Duration = 0 }, parameter: "duration"},
		{claim: "a lowered length", o: Options{Length: 1000}, change: func(p *wire.Params) { p.Length = 100 }, parameter: "length"},
		{claim: "a raised length", change: func(p *wire.Params) { p.Length = 100 }, parameter: "length"},
		{claim: "another clock", change: func(p *wire.Params) { p.Clock = wire.WallClock }, parameter: "clock"},
		{claim: "a mark that was not asked for", change: func(p *wire.Params) { p.DS = 4 }, parameter: "DSCP"},
		{claim: "a fill of its own", change: func(p *wire.Params) { p.Fill = "pattern:69727474" }},
		{claim: "no room for the mark", dscp: 46, change: func(p *wire.Params) { p.Length = 0 }},
		{claim: "another fill than the mark", dscp: 46, change: func(p *wire.Params) { p.Fill = "pattern:69727474" }},
		{claim: "one stamp for two", change: func(p *wire.Params) { p.Stamps = wire.MidpointStamp },
			warning: "the irtt server gives only one time stamp per probe: RTT includes its own processing time"},
		{claim: "no stamps and no clock", change: func(p *wire.Params) { p.Stamps, p.Clock = wire.NoStamps, 0 },
			warning: "the irtt server gives no time stamps: RTT includes its own processing time, and there are no one-way delays"},
		{claim: "no statistics", change: func(p *wire.Params) { p.Stats = 0 },
			warning: "the irtt server does not tell which probes reached it: losses have no direction"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				client.net.answer(t, opener(func(o *wire.Open) bool { c.change(&o.Params); return true }))
				tr, err := Dial(t.Context(), client, serverAt, probe.Options{Socket: host.Options{DSCP: c.dscp}}, c.o)
				if c.parameter == "" {
					if err != nil {
						t.Fatal(err)
					}
					if tr.Warning() != c.warning {
						t.Errorf("warning %q, want %q", tr.Warning(), c.warning)
					}
					tr.Close()
				}
				var restricted *RestrictedError
				if c.parameter != "" && (!errors.As(err, &restricted) || restricted.Parameter != c.parameter ||
					restricted.Interval != c.interval || restricted.Duration != c.duration) {
					t.Errorf("%v, want an error about %s with interval %v and duration %v", err, c.parameter, c.interval, c.duration)
				}
				checkClosed(t, client.net, testToken)
			})
		})
	}
}

// checkClosed checks that the client sent one close request for each of the tokens and no other.
func checkClosed(t *testing.T, n *fakeNet, want ...wire.Token) {
	t.Helper()
	var got []wire.Token
	for _, p := range n.log() {
		if c, err := wire.ParseClose(p.b); err == nil && p.up {
			got = append(got, c.Token)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("closed %x, want %x", got, want)
	}
}

func TestARefusalOpensNothing(t *testing.T) {
	for _, c := range []struct {
		claim  string
		change func(o *wire.Open)
		err    string
		closed []wire.Token
	}{
		{"another version", func(o *wire.Open) { o.Params.Version = 2 }, "version 2, want 1", []wire.Token{testToken}},
		{"token 0", func(o *wire.Open) { o.Token = 0 }, "token 0", nil},
		{"the close flag", func(o *wire.Open) { o.Flags |= wire.FlagClose }, "close flag", nil},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				client.net.answer(t, opener(func(o *wire.Open) bool { c.change(o); return true }))
				_, err := Dial(t.Context(), client, serverAt, probe.Options{}, Options{})
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %q", err, c.err)
				}
				if want := c.closed == nil; errors.Is(err, ErrRefused) != want {
					t.Errorf("%v is ErrRefused: %v, want %v", err, !want, want)
				}
				checkClosed(t, client.net, c.closed...)
			})
		})
	}
}

func TestALateSecondOpenReplyIsClosedAndEndsNothing(t *testing.T) {
	for _, c := range []struct {
		claim  string
		second wire.Token
		closed []wire.Token
	}{
		{"another session", testToken + 1, []wire.Token{testToken, testToken + 1}},
		{"the same session", testToken, []wire.Token{testToken}},
		{"no session", 0, []wire.Token{testToken}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				opens := 0
				open := opener(func(o *wire.Open) bool {
					if opens++; opens == 2 {
						o.Token = c.second
					}
					return true
				})
				client.net.answer(t, func(b []byte) [][]byte {
					if b[3] == 0 {
						e, _, _ := wire.ParseEcho(b, 0)
						e.Flags = wire.FlagReply
						return [][]byte{append((&e).AppendTo(nil, 0), make([]byte, 44)...)}
					}
					return open(b)
				})
				client.net.path = func(p packet) []time.Duration {
					if p.flags()&wire.FlagOpen != 0 {
						return []time.Duration{150 * time.Millisecond}
					}
					return []time.Duration{pathDelay}
				}
				samples, tally := series(t, client, Options{}, 30)
				for _, s := range samples {
					if s.Outcome != probe.Received {
						t.Errorf("probe %d is %v, want received", s.Seq, s.Outcome)
					}
				}
				if tally.Corrupt+tally.Stray+tally.ReceiveErrors != 0 {
					t.Errorf("tally %+v, want nothing in it", tally)
				}
				if opens != 2 {
					t.Errorf("%d open requests reached the server, want 2", opens)
				}
				checkClosed(t, client.net, c.closed...)
			})
		})
	}
}

func TestOptionsOutOfRangeAreNamed(t *testing.T) {
	for _, c := range []struct {
		po   probe.Options
		o    Options
		want string
	}{
		{probe.Options{Interval: -1}, Options{}, "interval"},
		{probe.Options{}, Options{Length: -1}, "length -1"},
		{probe.Options{}, Options{Length: 65508}, "length 65508"},
		{probe.Options{}, Options{Duration: -time.Second}, "duration -1s"},
		{probe.Options{}, Options{Opens: []time.Duration{}}, "open requests []"},
		{probe.Options{}, Options{Opens: []time.Duration{1, 0}}, "ascending"},
		{probe.Options{}, Options{Opens: []time.Duration{-1}}, "ascending"},
		{probe.Options{}, Options{OpenWait: time.Millisecond}, "open wait 1ms"},
	} {
		if _, err := Dial(t.Context(), nil, serverAt, c.po, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v, %+v: %v, want an error about %q", c.po, c.o, err, c.want)
		}
	}
}
