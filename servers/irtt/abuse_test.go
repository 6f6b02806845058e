package irtt

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	wire "bufferbloat/internal/wire/irtt"
)

// TestTheNextRealClientIsServedWithinASecond sends what strangers may send, each from an address and port of its own, and has a real client come
// right after. Time is the test's own.
func TestTheNextRealClientIsServedWithinASecond(t *testing.T) {
	stranger := func(n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(n)}), uint16(1024+n))
	}
	hello := wire.Open{Flags: wire.FlagOpen, Params: asked}.AppendTo(nil)
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, datagram := range map[string]func(b *bench, n int) []byte{
		"stray datagrams": func(*bench, int) []byte { return []byte{0} },
		"HTTP":            func(*bench, int) []byte { return []byte("GET / HTTP/1.1\r\n\r\n") },
		"TLS": func(*bench, int) []byte {
			return []byte("\x16\xfe\xff\x00\x00\x00\x00\x00\x00\x00\x00\x00\x28" + strings.Repeat("x", 40))
		},
		"half greetings": func(_ *bench, n int) []byte { return hello[:n%len(hello)] },
		"oversize ones":  func(*bench, int) []byte { return append(hello[:len(hello):len(hello)], make([]byte, 60_000)...) },
		"absurd numbers": func(_ *bench, n int) []byte {
			d := append([]byte(nil), hello...)
			for i := 4; i < len(d); i++ {
				d[i] = byte(rnd.Uint32())
			}
			return d
		},
		"echoes of no session": func(b *bench, n int) []byte {
			return b.request(wire.Open{Token: wire.Token(n + 1), Params: asked}, uint32(n))
		},
		"clients that say hello and no more": func(b *bench, n int) []byte { return hello },
		"clients killed in the middle": func(b *bench, n int) []byte {
			b.pass(25 * time.Millisecond)
			if o, ok := b.open(stranger(n), asked); ok {
				b.echo(stranger(n), o, 0)
			}
			return nil
		},
	} {
		lines := 0
		b := newBench(t, Options{Log: func(string) { lines++ }})
		begin, sent, answered := b.clock.now, 0, 0
		for n := range 200 {
			d := datagram(b, n)
			reply, _ := b.ask(stranger(n), d)
			sent, answered = sent+len(d), answered+len(reply)
			if most := len(d) + 12; len(reply) > most {
				t.Errorf("%s: %d bytes are answered with %d", name, len(d), len(reply))
			}
		}
		left := b.clock.now
		for {
			o, ok := b.open(client, asked)
			if ok {
				if _, ok = b.echo(client, o, 0); ok {
					break
				}
			}
			b.pass(100 * time.Millisecond) // in which a client asks again
			if b.clock.now.Sub(left) > time.Second {
				t.Errorf("%s: a real client is not served within a second", name)
				break
			}
		}
		b.pass(2 * time.Minute)
		b.mustOpen(client, asked)
		if len(b.sessions) != 1 {
			t.Errorf("%s: %d sessions are kept two minutes later", name, len(b.sessions))
		}
		if most := 64 + int(b.clock.now.Sub(begin)/(100*time.Millisecond)); lines > most {
			t.Errorf("%s: %d lines of log, want at most %d", name, lines, most)
		}
	}
}
