package irtt

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	wire "bufferbloat/internal/wire/irtt"
	"bufferbloat/probe"
	"bufferbloat/servers/irtt"
)

// otherAt is the address that the client has later.
var otherAt = netip.MustParseAddr("192.0.2.7")

// lasting is a series that something happens to.
type lasting struct {
	samples []probe.Sample
	tally   probe.Tally
	remarks []probe.Remark
}

// last sends a probe each 100 ms for so many seconds and counts that each has one outcome.
func last(t *testing.T, h *fakeHost, seconds int) lasting {
	t.Helper()
	po := probe.Options{Interval: 100 * time.Millisecond}
	tr, err := Dial(t.Context(), h, serverAt, po, Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := lasting{samples: make([]probe.Sample, 10*seconds)}
	l.tally, err = probe.Run(t.Context(), t.Context(), h, tr, po, h.Now(), uint64(len(l.samples)), func(s probe.Sample) {
		if l.samples[s.Seq].Outcome != 0 {
			t.Errorf("probe %d is %v and %v", s.Seq, l.samples[s.Seq].Outcome, s.Outcome)
		}
		l.samples[s.Seq] = s
	})
	if err != nil {
		t.Fatal(err)
	}
	l.remarks = tr.Remarks()
	return l
}

// expect checks the outcomes in the order of the probes: the first of each n is that of its first probe.
func (l *lasting) expect(t *testing.T, want ...span) {
	t.Helper()
	var got []span
	for _, s := range l.samples {
		if len(got) == 0 || got[len(got)-1].outcome != s.Outcome {
			got = append(got, span{outcome: s.Outcome})
		}
		got[len(got)-1].n++
	}
	if !slices.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
}

// span is so many probes in a row with one outcome.
type span struct {
	n       int
	outcome probe.Outcome
}

// opens returns how many sessions were asked for.
func opens(n *fakeNet, start time.Time) int { return len(requests(n, wire.FlagOpen, start)) }

func TestASeriesGoesOnFromAnotherAddress(t *testing.T) {
	for _, c := range []struct {
		claim   string
		without time.Duration // between the two addresses
		next    netip.Addr
		want    []span
		remark  string // a part of it, "" for none
	}{
		{"that is there at once", 0, otherAt, []span{{20, probe.Received}, {1, probe.Unsent}, {79, probe.Received}}, "from 192.0.2.7"},
		{"after a time without any", 3 * time.Second, otherAt, []span{{20, probe.Received}, {38, probe.Unsent}, {42, probe.Received}}, "the one before was lost"},
		{"or from its own, over the session that it has", 3 * time.Second, clientAt, []span{{20, probe.Received}, {30, probe.Unsent}, {50, probe.Received}}, ""},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				client.net.serve(t, irtt.Options{}, 0)
				start := time.Now()
				client.at = func() netip.Addr {
					switch gone := start.Add(2 * time.Second); {
					case time.Now().Before(gone):
						return clientAt
					case time.Now().Before(gone.Add(c.without)):
						return netip.Addr{}
					}
					return c.next
				}
				l := last(t, client, 10)
				l.expect(t, c.want...)
				if l.tally.Stray+l.tally.Corrupt+l.tally.Duplicates+l.tally.ReceiveErrors+l.tally.TooLate != 0 {
					t.Errorf("tally %+v", l.tally)
				}
				if c.remark == "" && l.remarks != nil || c.remark != "" && (len(l.remarks) != 1 || !strings.Contains(l.remarks[0].Text, c.remark)) {
					t.Errorf("remarks %v, want %q", l.remarks, c.remark)
				}
			})
		})
	}
}

// A router on the way has given the client another address: what the old socket sends reaches the server and is nobody's there.
func TestASeriesGoesOnBehindARouterThatForgotItsPort(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.serve(t, irtt.Options{}, 0)
		start, first := time.Now(), uint16(0)
		client.net.path = func(p packet) []time.Duration {
			if first == 0 {
				first = p.port
			}
			if p.port == first && p.at.Sub(start) >= 2*time.Second {
				return nil
			}
			return arrives
		}
		l := last(t, client, 20)
		// 10 s after the first that was lost, another session is opened; it is there with the next probe.
		l.expect(t, span{20, probe.Received}, span{102, probe.Lost}, span{78, probe.Received})
		if len(l.remarks) != 1 || !strings.Contains(l.remarks[0].Text, "nothing came back for 10s") {
			t.Errorf("remarks %v, want that nothing came back", l.remarks)
		}
	})
}

// Losses behind the change have their direction, and those before it none: the new session's server never heard of them.
func TestLossesAfterAnotherSessionHaveTheirDirection(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.serve(t, irtt.Options{}, 0)
		start := time.Now()
		client.at = func() netip.Addr {
			if time.Since(start) < 2*time.Second {
				return clientAt
			}
			return otherAt
		}
		client.net.path = fates(func(up bool, seq int) []time.Duration {
			if seq == 17 || up && seq == 30 || !up && seq == 40 {
				return lost
			}
			return arrives
		}).path
		l := last(t, client, 6)
		l.expect(t, span{17, probe.Received}, span{1, probe.LostUp}, span{2, probe.Received}, span{1, probe.Unsent}, span{9, probe.Received}, span{1, probe.LostUp},
			span{9, probe.Received}, span{1, probe.LostDown}, span{19, probe.Received})
	})
}

// What is merely slow, or was cut off for a time, keeps its session: no reply is lost to a change that was not needed.
func TestASlowPathKeepsItsSession(t *testing.T) {
	for _, c := range []struct {
		claim string
		delay func(at time.Duration) []time.Duration
		want  []span
	}{
		{"the round trip grows to 6 s", func(at time.Duration) []time.Duration {
			if at < 2*time.Second {
				return arrives
			}
			return []time.Duration{3 * time.Second}
		}, []span{{300, probe.Received}}},
		{"and to 14 s", func(at time.Duration) []time.Duration {
			if at < 2*time.Second {
				return arrives
			}
			return []time.Duration{7 * time.Second}
		}, []span{{20, probe.Received}, {280, probe.Late}}},
		{"nothing passes for 10.5 s", func(at time.Duration) []time.Duration {
			if at < 2*time.Second || at >= 12500*time.Millisecond {
				return arrives
			}
			return nil
		}, []span{{20, probe.Received}, {42, probe.Lost}, {63, probe.LostUp}, {175, probe.Received}}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				client.net.serve(t, irtt.Options{}, 0)
				start := time.Now()
				client.net.path = func(p packet) []time.Duration { return c.delay(p.at.Sub(start)) }
				l := last(t, client, 30)
				l.expect(t, c.want...)
				if l.remarks != nil || l.tally.Stray+l.tally.TooLate != 0 {
					t.Errorf("remarks %v, tally %+v", l.remarks, l.tally)
				}
			})
		})
	}
}

// A server that stays silent is asked less and less often, and closing ends that.
func TestASilentServerIsAskedLessAndLessOften(t *testing.T) {
	inFakeTime(t, func(t *testing.T, client *fakeHost) {
		client.net.serve(t, irtt.Options{}, 0)
		start := time.Now()
		client.net.path = func(p packet) []time.Duration {
			if p.at.Sub(start) >= 2*time.Second {
				return nil
			}
			return arrives
		}
		l := last(t, client, 300)
		if l.samples[25].Outcome != probe.Lost || l.samples[2999].Outcome != probe.Lost {
			t.Errorf("probes 25 and 2999: %v and %v, want lost", l.samples[25].Outcome, l.samples[2999].Outcome)
		}
		// Four requests each time; after those of the first minute at most one time in 12 s.
		if got := opens(client.net, start); got < 1+4*20 || got > 1+4*30 {
			t.Errorf("%d open requests in 5 minutes, want some 25 times 4", got)
		}
		if len(client.net.conns) != 1 { // the server's
			t.Errorf("%d sockets left", len(client.net.conns))
		}
	})
}

// A plan may begin to probe minutes after it has opened its sessions, which a server forgets meanwhile.
func TestASessionIsFreshWhenItsFirstProbeIsSent(t *testing.T) {
	for _, c := range []struct{ wait, delay time.Duration }{{0, pathDelay}, {9 * time.Second, pathDelay}, {14 * time.Second, pathDelay}, {10 * time.Minute, pathDelay},
		{14 * time.Second, 3 * time.Second}, {18 * time.Second, 3 * time.Second}, {2 * time.Minute, 3 * time.Second}} {
		t.Run(fmt.Sprint(c.wait, " ", c.delay), func(t *testing.T) {
			inFakeTime(t, func(t *testing.T, client *fakeHost) {
				client.net.serve(t, irtt.Options{}, 0)
				client.net.path = func(packet) []time.Duration { return []time.Duration{c.delay} }
				start := time.Now()
				po := probe.Options{Interval: 100 * time.Millisecond}
				tr, err := Dial(t.Context(), client, serverAt, po, Options{OpenWait: 10 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				l := lasting{samples: make([]probe.Sample, 300)}
				l.tally, err = probe.Run(t.Context(), t.Context(), client, tr, po, client.Now().Add(c.wait), uint64(len(l.samples)), func(s probe.Sample) { l.samples[s.Seq] = s })
				if err != nil {
					t.Fatal(err)
				}
				l.expect(t, span{len(l.samples), probe.Received})
				if got, want := opens(client.net, start), 1+int(c.wait/(freshness-time.Second)); c.delay == pathDelay && got > want || tr.Remarks() != nil {
					t.Errorf("%d sessions were opened, want at most %d; remarks %v", got, want, tr.Remarks())
				}
				if stack, all := tr.SendStamps(); stack != 0 || all != 0 {
					t.Errorf("%d of %d sends stamped by a stack that stamps none", stack, all)
				}
			})
		})
	}
}
