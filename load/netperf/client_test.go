package netperf

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load"
)

// fast is a network that is no limit to what these tests do.
func fast() *memnet.Net {
	return &memnet.Net{Delay: 5 * time.Millisecond, BytesPerS: 1 << 20, Buffer: 256 << 10}
}

func TestCheckTellsTheGenerations(t *testing.T) {
	own := func(ctl net.Conn, _ func() (net.Listener, uint16)) {
		defer ctl.Close()
		if _, err := request(ctl); err == nil {
			_, _ = ctl.Write(wire.SysInfo{System: wire.OurName, Release: "1.2"}.AppendTo(nil))
		}
	}
	unknown := func(ctl net.Conn, _ func() (net.Listener, uint16)) {
		defer ctl.Close()
		if _, err := request(ctl); err == nil {
			_, _ = ctl.Write(capture(t, "unsupported-test.s2c")[0])
		}
	}
	for _, c := range []struct {
		name       string
		server     script
		passphrase string
		want       string
		layout     wire.Layout
	}{
		{"2.7", netserver(t, "omni-tcp-stream.s2c", "", 0), "", "netserver 2.7", wire.Layout27},
		{"2.6", netserver(t, "v260-both-tcp-maerts.s2c", "", 1), "", "netserver 2.6", wire.Layout22},
		{"2.7 with a passphrase", netserver(t, "passphrase-good.s2c", "opensesame", 0), "opensesame", "netserver 2.7", wire.Layout27},
		{"2.7 with a passphrase that it does not want", netserver(t, "passphrase-not-needed.s2c", "", 0), "opensesame", "netserver 2.7",
			wire.Layout27},
		{"our own", own, "", "bufferbloat 1.2", wire.Layout27},
		{"one that does not know the question", unknown, "", "netserver", wire.UnknownLayout},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := fast()
				at := play(t, h, c.server)
				got, err := (&Client{Host: h, Addr: at, Passphrase: c.passphrase}).Check(t.Context())
				if err != nil || got.Name != c.want || got.Layout != c.layout || got.Addr != at {
					t.Errorf("got %+v, %v, want %s", got, err, c.want)
				}
				if got.Setup != 10*time.Millisecond || got.Answer < 10*time.Millisecond || got.Answer > 15*time.Millisecond {
					t.Errorf("setup %v, answer %v, want one round trip of 10ms each", got.Setup, got.Answer)
				}
			})
		})
	}
}

func TestCheckFailsWithinSecondsAndSaysWhy(t *testing.T) {
	answer := func(b []byte, stay bool) script {
		return func(ctl net.Conn, _ func() (net.Listener, uint16)) {
			_, _ = request(ctl)
			_, _ = ctl.Write(b)
			if !stay {
				_ = ctl.Close()
			}
		}
	}
	for _, c := range []struct {
		name       string
		server     script
		passphrase string
		is         error
		text       string
		within     time.Duration
	}{
		{"a port that accepts and stays silent", answer(nil, true), "", ErrSilent, "accepted the connection", 6 * time.Second},
		{"a passphrase that is missing", netserver(t, "passphrase-missing.s2c", "opensesame", 0), "", ErrPassphrase,
			"if this server wants a passphrase, give it", time.Second},
		{"a passphrase that is wrong", netserver(t, "passphrase-bad.s2c", "opensesame", 0), "wrong", ErrPassphrase,
			"check the passphrase", time.Second},
		{"a server that says 403", answer(wire.TypePassphrase.AppendTo(nil, 403), true), "wrong", ErrPassphrase, "(403)", 3 * time.Second},
		{"a server of 256 bytes", answer(make([]byte, 256), true), "", ErrTooOld, "256 bytes", 3 * time.Second},
		{"a server of 256 bytes that closes", answer(make([]byte, 512), false), "", ErrTooOld, "update it", 3 * time.Second},
		{"another service", answer([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), false), "", ErrNotNetserver, "is the port right?", time.Second},
		{"another service with long answers", answer(bytes.Repeat([]byte("\x00\x00\x00\x00lo"), 200)[:656], true), "", nil, "refuses",
			3 * time.Second},
		{"another service with long answers in text", answer(bytes.Repeat([]byte("HTTP/1.1 400 Bad Request\r\n"), 26), true), "",
			ErrNotNetserver, `it answers in text, "HTTP/1.1"; is the port right?`, 3 * time.Second},
		{"zeros", answer(make([]byte, 656), true), "", ErrNotNetserver, "type 0", 3 * time.Second},
		{"a busy server", answer(wire.TypeOmniResponse.AppendTo(nil, 16), true), "", nil, "busy (16)", 3 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := fast()
				at := play(t, h, c.server)
				begin := time.Now()
				_, err := (&Client{Host: h, Server: "host.example", Addr: at, Passphrase: c.passphrase}).Check(t.Context())
				if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
					t.Fatalf("got %v, want %q in it", err, c.text)
				}
				if !strings.Contains(err.Error(), "netperf server host.example (127.0.0.1 port ") {
					t.Errorf("%v does not name the server", err)
				}
				if d := time.Since(begin); d > c.within {
					t.Errorf("took %v, want at most %v", d, c.within)
				}
			})
		})
	}
}

func TestCheckOfNothingListeningAndOfABlackHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fast()
		at := netip.MustParseAddrPort("127.0.0.1:12865")
		_, err := (&Client{Host: h, Addr: at}).Check(t.Context())
		if !errors.Is(err, ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "is netserver running") {
			t.Errorf("nothing listening: got %v", err)
		}
		h.Blackholed = func(netip.AddrPort) bool { return true }
		begin := time.Now()
		_, err = (&Client{Host: h, Addr: at}).Check(t.Context())
		if !errors.Is(err, ErrUnreachable) || time.Since(begin) != connectTimeout || !strings.Contains(err.Error(), "firewall") {
			t.Errorf("black hole: got %v after %v", err, time.Since(begin))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		interrupted := errors.New("interrupted")
		time.AfterFunc(time.Second, func() { cancel(interrupted) })
		begin = time.Now()
		if _, err = (&Client{Host: h, Addr: at}).Check(ctx); !errors.Is(err, interrupted) || time.Since(begin) != time.Second {
			t.Errorf("interrupt: got %v after %v", err, time.Since(begin))
		}
	})
}

func TestPassphraseAndRequestsAreNetperfsBytes(t *testing.T) {
	for _, c := range []struct {
		capture    string
		passphrase string
		o          FlowOptions
	}{
		{"omni-tcp-stream.c2s", "", FlowOptions{Direction: load.Upload}},
		{"omni-tcp-maerts.c2s", "", FlowOptions{Direction: load.Download}},
		{"speedtest-netperf-download.c2s", "", FlowOptions{Direction: load.Download}},
		{"passphrase-good.c2s", "opensesame", FlowOptions{Direction: load.Upload}},
		{"omni-tcp-stream-cpu.c2s", "", FlowOptions{Direction: load.Upload, ServerCPU: true}},
		{"flent-download.c2s", "", FlowOptions{Direction: load.Download, ServerDSCP: 8, ServerCongestionControl: "cubic"}},
		{"flent-upload.c2s", "", FlowOptions{Direction: load.Upload, ServerDSCP: 8, ServerCongestionControl: "cubic"}},
	} {
		t.Run(c.capture, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := fast()
				got := make(chan []byte, 1)
				at := play(t, h, func(ctl net.Conn, _ func() (net.Listener, uint16)) {
					b, _ := io.ReadAll(ctl)
					got <- b
				})
				c.o.Length = time.Second
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := (&Client{Host: h, Addr: at, Passphrase: c.passphrase}).NewFlow(c.o).Open(ctx); err == nil {
					t.Error("a server that does not answer was opened")
				}
				want := bytes.Join(capture(t, c.capture), nil)
				b := <-got
				if len(b) != len(want) {
					t.Fatalf("sent %d bytes, want %d", len(b), len(want))
				}
				omni := len(b) - wire.Size
				copy(want[omni+64:omni+68], b[omni+64:])       // the length is a bound for the server here
				copy(want[omni+136:omni+140], make([]byte, 4)) // flent names the server's own address, which we leave to it
				if !bytes.Equal(b, want) {
					t.Errorf("sent\n%x, want\n%x", b, want)
				}
			})
		})
	}
}

func TestTheServerIsAskedForMoreTimeThanTheFlowTakes(t *testing.T) {
	for _, c := range []struct {
		o    FlowOptions
		want int32
	}{
		{FlowOptions{Direction: load.Download, Length: 10 * time.Second}, 34},
		{FlowOptions{Direction: load.Download, Length: 9500 * time.Millisecond, Wait: time.Second}, 13},
		{FlowOptions{Direction: load.Upload, Length: 10 * time.Second}, 62},
		{FlowOptions{Direction: load.Upload, Length: 1 << 62}, 1<<31 - 1},
	} {
		c2 := &Client{Addr: netip.MustParseAddrPort("[2001:db8::1]:12865")}
		if r := c2.NewFlow(c.o).request(); r.Length != c.want || r.Family != wire.IPv6 {
			t.Errorf("%+v: got %d s, family %d, want %d s", c.o, r.Length, r.Family, c.want)
		}
	}
}

func TestOpenTurnsTheServersErrorsIntoSentences(t *testing.T) {
	response := capture(t, "omni-tcp-stream.s2c")[0]
	for _, c := range []struct {
		name   string
		answer []byte
		is     error
		text   string
	}{
		{"998", capture(t, "unsupported-test.s2c")[0], nil, "does not support this test (998)"},
		{"403", wire.TypePassphrase.AppendTo(nil, 403), ErrPassphrase, "passphrase missing or wrong (403)"},
		{"98", wire.TypeOmniResponse.AppendTo(nil, 98), nil, "address already in use (98)"},
		{"1", wire.TypeOmniResponse.AppendTo(nil, 1), nil, "does not permit"},
		{"port 0", withPort(response, 0), nil, "could not bind its data address"},
		{"no answer", nil, ErrPassphrase, "closed the connection"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := fast()
			at := play(t, h, func(ctl net.Conn, _ func() (net.Listener, uint16)) {
				defer ctl.Close()
				_, _ = request(ctl)
				_, _ = ctl.Write(c.answer)
			})
			f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: time.Second})
			result, err := f.Run(t.Context())
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: got %v, want %q in it", c.name, err, c.text)
			}
			if result != (load.Result{}) {
				t.Errorf("%s: a refused flow has the result %+v", c.name, result)
			}
		})
	}
}

func TestOpenBlamesAClosedConnectionOnThePassphraseOnlyIfCheckDidNotPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fast()
		at := play(t, h, func(ctl net.Conn, _ func() (net.Listener, uint16)) { _ = ctl.Close() })
		o := FlowOptions{Direction: load.Upload, Length: time.Second, Server: ServerInfo{Name: "netserver 2.7"}}
		err := (&Client{Host: h, Addr: at}).NewFlow(o).Open(t.Context())
		if !errors.Is(err, ErrClosed) || errors.Is(err, ErrPassphrase) || !strings.Contains(err.Error(), "fewer streams") {
			t.Errorf("got %v", err)
		}
	})
}

func TestADataPortThatIsClosedIsNamedWithinTenSeconds(t *testing.T) {
	response := capture(t, "omni-tcp-stream.s2c")[0]
	for name, break_ := range map[string]func(*memnet.Net){
		"refused":    func(h *memnet.Net) { h.Refuse = portError(36141, syscall.ECONNREFUSED) },
		"prohibited": func(h *memnet.Net) { h.Refuse = portError(36141, syscall.EHOSTUNREACH) },
		"blackholed": func(h *memnet.Net) { h.Blackholed = func(to netip.AddrPort) bool { return to.Port() == 36141 } },
	} {
		synctest.Test(t, func(t *testing.T) {
			h := fast()
			break_(h)
			at := play(t, h, func(ctl net.Conn, _ func() (net.Listener, uint16)) {
				_, _ = request(ctl)
				_, _ = ctl.Write(response)
			})
			begin := time.Now()
			f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: time.Second})
			result, err := f.Run(t.Context())
			var data *DataError
			if !errors.As(err, &data) || data.At != netip.MustParseAddrPort("127.0.0.1:36141") || result != (load.Result{}) {
				t.Errorf("%s: got %+v, %v", name, result, err)
			}
			for _, want := range []string{"data connection to 127.0.0.1 port 36141", "control connection works", "fixed data port"} {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q is not in %v", name, want, err)
				}
			}
			if d := time.Since(begin); d > 10*time.Second {
				t.Errorf("%s: took %v", name, d)
			}
			if got, ok := f.Delivered(); ok || got != 0 {
				t.Errorf("%s: %d bytes delivered", name, got)
			}
		})
	}
}

func portError(port uint16, err error) func(netip.AddrPort) error {
	return func(to netip.AddrPort) error {
		if to.Port() == port {
			return err
		}
		return nil
	}
}

func TestACongestionControlThatThisHostHasNotIsNoDataPortProblem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fast()
		h.Refuse = portError(36141, errors.ErrUnsupported)
		at := play(t, h, func(ctl net.Conn, _ func() (net.Listener, uint16)) {
			_, _ = request(ctl)
			_, _ = ctl.Write(capture(t, "omni-tcp-stream.s2c")[0])
		})
		_, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: time.Second}).Run(t.Context())
		var data *DataError
		if !errors.Is(err, errors.ErrUnsupported) || errors.As(err, &data) {
			t.Errorf("got %v", err)
		}
	})
}

func TestAFlowWithoutDirectionOrLengthIsRefused(t *testing.T) {
	for _, o := range []FlowOptions{{}, {Direction: load.Upload}, {Length: time.Second}, {Direction: load.Upload, Length: -1}} {
		if err := (&Client{Host: host.Host(fast())}).NewFlow(o).Open(t.Context()); err == nil {
			t.Errorf("%+v was opened", o)
		}
	}
}
