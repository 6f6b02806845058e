package icmp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

const ms = time.Millisecond

func TestEchoOfBothFamiliesAndSockets(t *testing.T) {
	for _, c := range []struct {
		name           string
		target         netip.Addr
		request, reply uint8
		hasID          bool
	}{
		{"IPv4, unprivileged", target4, 8, 0, true},
		{"IPv4, raw", target4, 8, 0, false},
		{"IPv6, unprivileged", target6, 128, 129, true},
		{"IPv6, raw", target6, 128, 129, false},
		{"IPv4 in IPv6 form", netip.MustParseAddr("::ffff:192.0.2.9"), 8, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{id: 4711, hasID: c.hasID}
				w.peer = func(b []byte) []packet {
					if len(b) != MessageSize || b[0] != c.request || b[1] != 0 {
						t.Errorf("request % x, want %d bytes of type %d", b, MessageSize, c.request)
					}
					if id := binary.BigEndian.Uint16(b[4:]); c.hasID && id != 4711 {
						t.Errorf("identifier %d, want the socket's own", id)
					}
					// The request itself comes by on a raw socket to the own host; it is no reply.
					return []packet{{b: b}, {delay: 30 * ms, b: echo(b, nil)}}
				}
				outcomes, tally := run(t, dial(t, w, c.target, probe.Options{}), probe.Options{}, 20)
				if want := (probe.Tally{Waking: probe.Waking{N: 20}}); outcomes[probe.Received] != 20 || fmt.Sprint(tally) != fmt.Sprint(want) {
					t.Errorf("outcomes %v, tally %+v; want 20 received, each read as it came, and zeros", outcomes, tally)
				}
				if w.to != c.target.Unmap() {
					t.Errorf("dialled %v, want %v", w.to, c.target.Unmap())
				}
			})
		})
	}
}

func TestTheHeadersSequenceNumberMayWrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{peer: func(b []byte) []packet { return []packet{{delay: 80 * ms, b: echo(b, nil)}} }}
		outcomes, tally := run(t, dial(t, w, target4, probe.Options{}), probe.Options{Interval: ms}, 70_000)
		if outcomes[probe.Received] != 70_000 || tally.Duplicates+tally.Stray+tally.Reordered != 0 {
			t.Errorf("outcomes %v, tally %+v; want 70000 received and zeros", outcomes, tally)
		}
	})
}

func TestAlteredRepliesAreNeverAMeasurement(t *testing.T) {
	for _, c := range []struct {
		name  string
		alter func(b []byte) []byte
		tally probe.Tally
	}{
		{"first 16 bytes of the data all ones", func(b []byte) []byte { return overwrite(b, 8, 16, 0xff) }, probe.Tally{Corrupt: 1}},
		{"first 16 bytes of the data zero", func(b []byte) []byte { return overwrite(b, 8, 16, 0) }, probe.Tally{Corrupt: 1}},
		{"token altered", func(b []byte) []byte { b[9] ^= 1; return b }, probe.Tally{Corrupt: 1}},
		{"number altered", func(b []byte) []byte { b[16] ^= 1; b[23] ^= 1; return b }, probe.Tally{Corrupt: 1}},
		{"filler altered", func(b []byte) []byte { b[MessageSize-1] ^= 1; return b }, probe.Tally{Corrupt: 1}},
		{"header's number altered", func(b []byte) []byte { b[7] ^= 1; return b }, probe.Tally{Corrupt: 1}},
		{"identifier altered", func(b []byte) []byte { b[5] ^= 1; return b }, probe.Tally{Corrupt: 1}},
		{"code altered", func(b []byte) []byte { b[1] = 1; return b }, probe.Tally{Corrupt: 1}},
		{"cut short", func(b []byte) []byte { return b[:MessageSize-1] }, probe.Tally{Corrupt: 1}},
		{"one byte longer", func(b []byte) []byte { return append(b, 0) }, probe.Tally{Corrupt: 1}},
		{"much longer than the buffer", func(b []byte) []byte { return append(b, make([]byte, 2000)...) }, probe.Tally{Corrupt: 1}},
		{"cut to its header", func(b []byte) []byte { return b[:8] }, probe.Tally{Stray: 1}},
		{"empty", func(b []byte) []byte { return nil }, probe.Tally{Stray: 1}},
		{"somebody else's", func(b []byte) []byte { return overwrite(b, headerSize, MessageSize-headerSize, 0x33) }, probe.Tally{Stray: 1}},
		{"another run's, in step with ours", func(b []byte) []byte {
			m, _ := parse(b)
			m.token++
			return m.AppendTo(nil)
		}, probe.Tally{Stray: 1}},
		{"a number never sent", func(b []byte) []byte {
			m, _ := parse(b)
			m.seq += 1 << 40
			return m.AppendTo(nil)
		}, probe.Tally{Stray: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{peer: func(b []byte) []packet { return []packet{{delay: 5 * ms, b: echo(b, c.alter)}} }}
				outcomes, tally := run(t, dial(t, w, target4, probe.Options{}), probe.Options{}, 1)
				if outcomes[probe.Lost] != 1 || fmt.Sprintf("%+v", tally) != fmt.Sprintf("%+v", c.tally) {
					t.Errorf("outcomes %v, tally %+v; want 1 lost, %+v", outcomes, tally, c.tally)
				}
			})
		})
	}
}

func overwrite(b []byte, from, n int, with byte) []byte {
	for i := range n {
		b[from+i] = with
	}
	return b
}

func TestTwoRunsWithOneIdentifierCountTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Both see the replies to both, as raw sockets behind one address do.
		var all []*fakeConn
		w := &wire{id: 1, hasID: true}
		w.peer = func(b []byte) []packet {
			for _, c := range all {
				time.AfterFunc(7*ms, func() { c.arrive(packet{b: echo(b, nil)}) })
			}
			return nil
		}
		a, b := dial(t, w, target4, probe.Options{}), dial(t, w, target4, probe.Options{})
		all = []*fakeConn{a.conn.(*fakeConn), b.conn.(*fakeConn)}
		done := make(chan bool)
		for _, tr := range []*Transport{a, b} {
			go func() {
				outcomes, tally := run(t, tr, probe.Options{}, 50)
				if outcomes[probe.Received] != 50 || tally.Duplicates != 0 || tally.Stray < 49 {
					t.Errorf("outcomes %v, tally %+v; want 50 received, no duplicates, the other's 50 stray", outcomes, tally)
				}
				done <- true
			}()
		}
		<-done
		<-done
	})
}

func TestARefusalIsMatchedToItsProbe(t *testing.T) {
	router := netip.MustParseAddr("192.0.2.1")
	for _, c := range []struct {
		name  string
		quote func(request []byte) []byte
		lost  int // within the series of 3, at once
		stray uint64
	}{
		{"all of it quoted", func(b []byte) []byte { return b }, 3, 0},
		{"only the header quoted", func(b []byte) []byte { return b[:8] }, 3, 0},
		{"quoted up to the token", func(b []byte) []byte { return b[:16] }, 3, 0},
		{"nothing quoted", func(b []byte) []byte { return nil }, 0, 3},
		{"another identifier", func(b []byte) []byte { b[4] ^= 1; return b }, 0, 3},
		{"another token", func(b []byte) []byte { b[8] ^= 1; return b }, 0, 3},
		{"a reply quoted", func(b []byte) []byte { b[0] = 0; return b }, 0, 3},
		{"a number to come", func(b []byte) []byte { b[6] = 0x80; return b[:8] }, 0, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &host.RejectedError{By: router, Err: syscall.EHOSTUNREACH}
				w := &wire{peer: func(b []byte) []packet { return []packet{{delay: 2 * ms, b: c.quote(b), rejected: e}} }}
				start := time.Now()
				outcomes, tally := run(t, dial(t, w, target4, probe.Options{}), probe.Options{}, 3)
				if outcomes[probe.Lost] != 3 || tally.Rejected != uint64(c.lost) || tally.Stray != c.stray {
					t.Errorf("outcomes %v, tally %+v; want 3 lost, %d of them rejected, %d stray", outcomes, tally, c.lost, c.stray)
				}
				if atOnce := time.Since(start) == 202*ms; atOnce != (c.lost == 3) {
					t.Errorf("took %v: a refused probe ends at once, any other does not", time.Since(start))
				}
				if c.lost > 0 && (len(tally.RejectedBy) != 1 || tally.RejectedBy[0] != router || tally.FirstError != e.Error()) {
					t.Errorf("tally %+v, want it rejected by %v: %v", tally, router, e)
				}
			})
		})
	}
}

func TestAShortQuotationMeansTheLatestProbeWithThatNumber(t *testing.T) {
	tr := dial(t, &wire{id: 7, hasID: true}, target4, probe.Options{})
	for _, c := range []struct {
		last uint64
		low  uint16
		want uint64
	}{
		{5, 5, 5}, {5, 0, 0}, {65536, 0, 65536}, {65536, 65535, 65535}, {200_000, 3390, 200_000 - 2}, {200_000, 3393, 200_000 - 65535},
	} {
		tr.last.Store(c.last)
		quote := message{kind: 8, id: 7, seq: uint64(c.low), token: tr.token}.AppendTo(nil)[:8]
		if r := tr.rejected(quote, &host.RejectedError{}); r.Kind != probe.Rejected || r.Seq != c.want {
			t.Errorf("number %d with %d sent: kind %v, probe %d; want rejected, %d", c.low, c.last, r.Kind, r.Seq, c.want)
		}
	}
}

func TestOptionsReachTheSocket(t *testing.T) {
	o := probe.Options{Socket: host.Options{DSCP: dscp.EF, Interface: "eth9", Source: netip.MustParseAddr("192.0.2.7")}}
	w := &wire{}
	dial(t, w, target4, o)
	want := o.Socket
	want.StampSends = true
	if w.options != want {
		t.Errorf("options %+v, want %+v", w.options, want)
	}
}

func TestErrorsOfDial(t *testing.T) {
	w := &wire{err: fmt.Errorf("open: %w", os.ErrPermission)}
	if _, err := Dial(t.Context(), w, target4, probe.Options{}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("error %v, want one that wraps os.ErrPermission", err)
	}
	if _, err := Dial(t.Context(), w, netip.Addr{}, probe.Options{}); err == nil || errors.Is(err, os.ErrPermission) {
		t.Errorf("no target: error %v, want one of its own", err)
	}
}

func TestIdentifierAndTokenAreRandomOnRawSockets(t *testing.T) {
	ids, tokens := map[uint16]bool{}, map[uint64]bool{}
	for range 100 {
		tr := dial(t, &wire{}, target4, probe.Options{})
		ids[tr.id], tokens[tr.token] = true, true
	}
	if len(ids) < 90 || len(tokens) != 100 {
		t.Errorf("%d identifiers, %d tokens of 100; want (nearly) all different", len(ids), len(tokens))
	}
}

// FuzzParse: what parses, encodes back to the same bytes but for the checksum, which is the stack's; what does not, tells where; and
// Receive's decision about any bytes does not panic, and is Answer only for what parses.
func FuzzParse(f *testing.F) {
	const token = 0x0123456789abcdef
	good := message{kind: 0, id: 77, seq: 70_000, token: token}.AppendTo(nil)
	f.Add(good)
	f.Add(good[:17])
	f.Add(overwrite(append([]byte(nil), good...), 8, 16, 0xff))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		tr := &Transport{id: 77, token: token, request: 8, reply: 0}
		tr.last.Store(100_000)
		kind, seq := tr.classify(b, false)
		tr.rejected(b, &host.RejectedError{})
		m, err := parse(b)
		if err != nil {
			var pe *parseError
			if !errors.As(err, &pe) || pe.offset > max(len(b), headerSize+fillerAt) || pe.Error() == "" {
				t.Errorf("% x: error %#v, want a *parseError inside the message", b, err)
			}
			if kind == probe.Answer {
				t.Errorf("% x does not parse (%v) and is an answer to %d", b, err, seq)
			}
			return
		}
		want := append([]byte(nil), b...)
		want[2], want[3] = 0, 0
		if got := m.AppendTo(nil); string(got) != string(want) {
			t.Errorf("% x parses to %+v, encodes to % x", b, m, got)
		}
		if own := m.token == token && m.id == 77; own != (kind == probe.Answer) {
			t.Errorf("% x: kind %v, want an answer if and only if token and identifier are ours", b, kind)
		}
	})
}

// reflector is an echo socket that answers each request once, without the fake's timers and channels.
type reflector struct {
	host.EchoConn
	b [MessageSize]byte
}

func (c *reflector) Send(b []byte, _ netip.AddrPort) (time.Time, error) {
	copy(c.b[:], b)
	c.b[0] = echoReply4
	return time.Time{}, nil
}

func (c *reflector) Receive(b []byte) (host.Datagram, error) {
	return host.Datagram{N: copy(b, c.b[:])}, nil
}

func TestSendAndReceiveAllocateNothing(t *testing.T) {
	tr := &Transport{conn: &reflector{}, request: 8, token: 5}
	var seq uint64
	if got := testing.AllocsPerRun(1000, func() { oneTrip(t, tr, seq); seq++ }); got != 0 {
		t.Errorf("%v allocations per probe, want 0", got)
	}
}

func BenchmarkSendReceive(b *testing.B) {
	tr := &Transport{conn: &reflector{}, request: 8, token: 5}
	b.ReportAllocs()
	for seq := uint64(0); b.Loop(); seq++ {
		oneTrip(b, tr, seq)
	}
}

func oneTrip(t testing.TB, tr *Transport, seq uint64) {
	if _, err := tr.Send(seq); err != nil {
		t.Fatal(err)
	}
	if r, err := tr.Receive(); err != nil || r.Kind != probe.Answer || r.Seq != seq {
		t.Fatalf("reply %+v, error %v; want an answer to %d", r, err, seq)
	}
}

// On the kernel's own stack, both kinds of socket where they are permitted, both families where they are there.
func TestLoopback(t *testing.T) {
	for _, target := range []string{"127.0.0.1", "::1"} {
		for kind, name := range map[host.EchoSocket]string{host.PingEchoSocket: "ping-socket", host.RawEchoSocket: "raw-icmp"} {
			t.Run(target+" "+name, func(t *testing.T) {
				k := &host.Kernel{Echo: kind}
				tr, err := Dial(context.Background(), k, netip.MustParseAddr(target), probe.Options{})
				switch {
				case errors.Is(err, os.ErrPermission):
					facility.Missing(t, name, err.Error())
				case errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.ENETUNREACH):
					facility.Missing(t, "loopback-"+host.FamilyOf(netip.MustParseAddr(target)).String(), err.Error())
				case err != nil:
					t.Fatal(err)
				}
				outcomes := map[probe.Outcome]int{}
				tally, err := probe.Run(t.Context(), t.Context(), k, tr, probe.Options{Interval: ms}, k.Now(), 50, func(s probe.Sample) {
					outcomes[s.Outcome]++
					if s.Outcome == probe.Received && (s.RTT <= 0 || s.RTT > time.Second) {
						t.Errorf("RTT %v on loopback", s.RTT)
					}
				})
				// A starved machine may have us wake too late for some.
				if got := outcomes[probe.Received] + int(tally.SenderLate); err != nil || got != 50 || outcomes[probe.Received] == 0 {
					t.Errorf("error %v, outcomes %v, tally %+v; want 50 received", err, outcomes, tally)
				}
				if tally.Duplicates+tally.Corrupt+tally.Reordered != 0 {
					t.Errorf("tally %+v, want no duplicates, nothing corrupt or reordered", tally)
				}
			})
		}
	}
}
