package netperf

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	wire "bufferbloat/internal/wire/netperf"
)

// capture returns the bytes of a captured stream.
func capture(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "internal", "wire", "netperf", "testdata", "captures", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var stream []byte
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		b, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		stream = append(stream, b...)
	}
	return stream
}

// memory is a network that carries 250 kB/s with a round trip of 20 ms.
func memory() *memnet.Net {
	return &memnet.Net{Delay: 10 * time.Millisecond, BytesPerS: 250_000, Buffer: 100_000}
}

// serve runs a server until the test ends and returns its address and the lines that it has logged, to be called when it is idle.
func serve(t *testing.T, h host.Host, o Options) (netip.AddrPort, func() []string) {
	t.Helper()
	ready := make(chan []netip.AddrPort, 1)
	var mu sync.Mutex
	var lines []string
	o.Ready = func(at []netip.AddrPort) { ready <- at }
	o.Log = func(line string) { mu.Lock(); lines = append(lines, line); mu.Unlock() }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- (&Server{Options: o}).Serve(ctx, h, netip.MustParseAddrPort("127.0.0.1:0")) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	select {
	case at := <-ready:
		return at[0], func() []string { mu.Lock(); defer mu.Unlock(); return slices.Clone(lines) }
	case err := <-done:
		t.Fatalf("Serve returned %v", err)
		panic("not reached")
	}
}

// peer is a raw client.
type peer struct {
	*testing.T
	host host.Host
	conn net.Conn
}

func dial(t *testing.T, h host.Host, at netip.AddrPort) *peer {
	t.Helper()
	conn, err := h.DialTCP(context.Background(), at, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &peer{T: t, host: h, conn: conn}
}

// send writes b.
func (p *peer) send(b []byte) *peer {
	p.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.Fatal(err)
	}
	return p
}

// record reads one record, within a time.
func (p *peer) record(within time.Duration) []byte {
	p.Helper()
	_ = p.conn.SetReadDeadline(p.host.Now().Add(within))
	b := make([]byte, wire.Size)
	if n, err := io.ReadFull(p.conn, b); err != nil {
		p.Fatalf("%d bytes of an answer, then %v", n, err)
	}
	return b
}

// closed reports whether the server ends the connection within a time, in an orderly way and without another byte.
func (p *peer) closed(within time.Duration) bool {
	_ = p.conn.SetReadDeadline(p.host.Now().Add(within))
	n, err := p.conn.Read(make([]byte, 1))
	return n == 0 && errors.Is(err, io.EOF)
}

// data asks for a test and opens its data connection.
func (p *peer) data(r wire.Request, at netip.AddrPort) (net.Conn, wire.Response) {
	p.Helper()
	response, err := wire.ParseResponse(p.send(r.AppendTo(nil)).record(time.Second))
	if err != nil || response.Error != 0 {
		p.Fatalf("response %+v, %v", response, err)
	}
	conn, err := p.host.DialTCP(context.Background(), netip.AddrPortFrom(at.Addr(), response.DataPort), host.Options{})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close() })
	return conn, response
}

// results reads the results.
func (p *peer) results(within time.Duration) wire.Results {
	p.Helper()
	r, err := wire.ParseResults(p.record(within), wire.Layout27)
	if err != nil || r.Error != 0 {
		p.Fatalf("results %+v, %v", r, err)
	}
	return r
}

func closeWrite(c net.Conn) { _ = c.(interface{ CloseWrite() error }).CloseWrite() }

// bubble runs f in fake time, with a server on the memory network.
func bubble(t *testing.T, o Options, f func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := memory()
		at, lines := serve(t, h, o)
		f(t, h, at, lines)
	})
}

func TestAStockClientsUploadIsCountedToTheByte(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
		p := dial(t, h, at)
		response, err := wire.ParseResponse(p.send(capture(t, "omni-tcp-stream.c2s")).record(time.Second))
		want := wire.Response{RecvBuffer: -1, RecvSize: 128 << 10, RecvRing: 1, SendBuffer: -1, SendSize: -1, SendRing: 1,
			Flags: wire.FlagNoDelay, DataPort: response.DataPort, Priority: -1, DS: -1}
		if err != nil || response != want || response.DataPort == 0 {
			t.Fatalf("response %+v, %v, want %+v", response, err, want)
		}
		data, err := h.DialTCP(t.Context(), netip.AddrPortFrom(at.Addr(), response.DataPort), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = data.Write(make([]byte, 300_001))
		closeWrite(data)
		if b, err := io.ReadAll(data); len(b) != 0 || err != nil {
			t.Errorf("the data connection ends with %d bytes, %v", len(b), err)
		}
		record := p.record(time.Second)
		got, err := wire.ParseResults(record, wire.Layout27)
		if err != nil || got.RxBytes != 300_001 || got.RxCalls == 0 || got.Retransmits != 0 || got.Congestion != "cubic" ||
			got.ElapsedSeconds < 1.2 || got.ElapsedSeconds > 1.4 {
			t.Errorf("results %+v, %v", got, err)
		}
		if again := got.AppendTo(nil, wire.Layout27); !bytes.Equal(again, record) {
			t.Errorf("results have more in them than is known to be valid: %x, want %x", record, again)
		}
		closeWrite(p.conn)
		if !p.closed(time.Second) {
			t.Error("the server does not close when the client does")
		}
		synctest.Wait()
		if l := lines(); len(l) != 2 || !strings.Contains(l[0], "begins an upload of at most 1s") ||
			!strings.Contains(l[1], "received 300001 bytes (1.98 Mbit/s)") || !strings.Contains(l[1], "closed") {
			t.Errorf("log %q", l)
		}
	})
}

func TestAnUploadMayDrainForEightSecondsBeyondItsLength(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		data, _ := p.data(wire.Omni(wire.TCPStream, wire.IPv4, 2), at)
		begin := time.Now()
		for time.Since(begin) < 20*time.Second {
			if _, err := data.Write(make([]byte, 1000)); err != nil {
				break
			}
		}
		if d := time.Since(begin); d < 9900*time.Millisecond || d > 10500*time.Millisecond {
			t.Errorf("the server took data for %v, want 10s", d)
		}
		if got := p.results(time.Second); got.RxBytes < 2_400_000 || got.ElapsedSeconds < 9.9 || got.ElapsedSeconds > 10.1 {
			t.Errorf("results %+v", got)
		}
	})
}

func TestAStaggeredStartHasItsFullTime(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		response, _ := wire.ParseResponse(p.send(wire.Omni(wire.TCPStream, wire.IPv4, 20).AppendTo(nil)).record(time.Second))
		time.Sleep(15 * time.Second)
		data, err := h.DialTCP(t.Context(), netip.AddrPortFrom(at.Addr(), response.DataPort), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		begin, sent := time.Now(), 0
		for time.Since(begin) < 20*time.Second {
			n, err := data.Write(make([]byte, 10_000))
			if sent += n; err != nil {
				t.Fatalf("after %v: %v", time.Since(begin), err)
			}
		}
		closeWrite(data)
		if got := p.results(10 * time.Second); got.RxBytes != uint64(sent) {
			t.Errorf("received %d of %d bytes", got.RxBytes, sent)
		}
	})
}

func TestADownloadLastsAQuarterOfASecondLongerThanItsLength(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		begin := time.Now()
		data, response := p.data(wire.Omni(wire.TCPMaerts, wire.IPv4, 3), at)
		n, err := io.Copy(io.Discard, data)
		got := p.results(time.Second)
		if err != nil || got.TxBytes != uint64(n) || got.TxCalls == 0 || response.SendSize <= 0 || response.RecvSize != -1 {
			t.Errorf("read %d bytes, %v; response %+v, results %+v", n, err, response, got)
		}
		if d := time.Since(begin); d < 3250*time.Millisecond || d > 3800*time.Millisecond {
			t.Errorf("took %v, want 3.25 s and the queue", d)
		}
	})
}

func TestByteCountedTestsEndAtOnce(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		data, _ := p.data(wire.Omni(wire.TCPMaerts, wire.IPv4, -100_001), at)
		if n, err := io.Copy(io.Discard, data); n != 100_001 || err != nil {
			t.Errorf("read %d bytes, %v", n, err)
		}
		if got := p.results(time.Second); got.TxBytes != 100_001 {
			t.Errorf("results %+v", got)
		}
		data, _ = p.data(wire.Omni(wire.TCPStream, wire.IPv4, -100_001), at) // the second test of one control connection
		_, _ = data.Write(make([]byte, 131_072))                             // whole blocks: more than announced
		closeWrite(data)
		if got := p.results(time.Second); got.RxBytes != 131_072 {
			t.Errorf("results %+v", got)
		}
	})
}

func TestTCPTransactions(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		r := wire.Omni(wire.TCPRR, wire.IPv4, 2)
		r.RequestSize, r.ResponseSize = 100, 2000
		data, response := p.data(r, at)
		if response.RecvSize != 100 || response.SendSize != 2000 {
			t.Errorf("response %+v", response)
		}
		_, _ = data.Write(make([]byte, 350)) // three coalesced requests and half of one
		if _, err := io.ReadFull(data, make([]byte, 6000)); err != nil {
			t.Fatal(err)
		}
		closeWrite(data)
		if b, err := io.ReadAll(data); len(b) != 0 || err != nil {
			t.Errorf("%d bytes more, %v", len(b), err)
		}
		if got := p.results(time.Second); got.Transactions != 3 || got.RxBytes != 300 || got.TxBytes != 6000 {
			t.Errorf("results %+v", got)
		}
		r.Length = -2
		data, _ = p.data(r, at)
		_, _ = data.Write(make([]byte, 200))
		if b, err := io.ReadAll(data); len(b) != 4000 || err != nil {
			t.Errorf("counted: %d bytes, %v", len(b), err)
		}
		if got := p.results(time.Second); got.Transactions != 2 {
			t.Errorf("counted: results %+v", got)
		}
		data, _ = p.data(wire.Omni(wire.TCPRR, wire.IPv4, 2), at)
		begin := time.Now()
		if got := p.results(10 * time.Second); got.Transactions != 0 || time.Since(begin) > 7*time.Second {
			t.Errorf("silent client: results %+v after %v, want them 4 s after the length", got, time.Since(begin))
		}
		_ = data.Close()
	})
}

func TestAuxiliaryMessages(t *testing.T) {
	bubble(t, Options{Version: "1.2"}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		if got := p.send(wire.TypeDebugOn.AppendTo(nil, -1)).record(time.Second); !bytes.Equal(got, wire.TypeDebugOK.AppendTo(nil, 0)) {
			t.Errorf("debug: %x", got)
		}
		cpu, err := wire.ParseCPUCalibration(p.send(capture(t, "cpu-calibrate.c2s")).record(time.Second))
		if err != nil || cpu.Rate != 100 || cpu.CPUs < 1 {
			t.Errorf("CPU: %+v, %v", cpu, err)
		}
		sys, err := wire.ParseSysInfo(p.send(wire.TypeSysInfo.AppendTo(nil, -1)).record(time.Second))
		if err != nil || sys != (wire.SysInfo{System: wire.OurName, Release: "1.2", Machine: "netperf", Version: "server"}) {
			t.Errorf("system information: %+v, %v", sys, err)
		}
		phrase, _ := wire.AppendPassphrase(nil, "not needed")
		for _, typ := range []wire.Type{4, 11, 9999, 300} {
			_, number, _ := wire.ParseType(p.send(append(phrase, typ.AppendTo(nil, -1)...)).record(time.Second))
			if number != 998 {
				t.Errorf("type %d behind a passphrase: error %d, want 998 and the connection kept", typ, number)
			}
		}
	})
}

func TestAClientThatAsksForSystemInformationGetsTheResultsOf26(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		both := capture(t, "v260-both-tcp-maerts.c2s")
		p.send(both[:wire.Size]).record(time.Second)
		r, err := wire.ParseRequest(both[wire.Size:])
		if err != nil {
			t.Fatal(err)
		}
		data, _ := p.data(r, at)
		_, _ = io.Copy(io.Discard, data)
		got, err := wire.ParseResults(p.record(time.Second), wire.Layout22)
		if err != nil || got.Congestion != "cubic" || got.Retransmits != 0 || got.TxBytes == 0 {
			t.Errorf("results %+v, %v", got, err)
		}
	})
}

func TestPassphrase(t *testing.T) {
	type answers []int32
	omni := capture(t, "omni-tcp-stream.c2s")
	for _, c := range []struct {
		name string
		send []byte
		want answers // error numbers
		stay bool
	}{
		{"the right one lets the request through", capture(t, "passphrase-good.c2s"), answers{0}, true},
		{"a wrong one gets 403 for each record", capture(t, "passphrase-bad.c2s"), answers{403, 403}, false},
		{"none gets 403", omni, answers{403}, false},
		{"a 2.6.0 client without one gets 403 for both its requests", capture(t, "v260-client-tcp-maerts.c2s"), answers{403, 403}, false},
		{"half a phrase is none", append([]byte("\x00\x00\x00\x06\xff\xff\xff\xffopen"), make([]byte, 644)...), answers{403}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Options{Passphrase: "opensesame"}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
				p := dial(t, h, at).send(c.send)
				begin := time.Now()
				for _, want := range c.want {
					if _, got, _ := wire.ParseType(p.record(2 * time.Second)); got != want {
						t.Errorf("error %d, want %d", got, want)
					}
				}
				if d := time.Since(begin); d > time.Second {
					t.Errorf("took %v, want at most 1s", d)
				}
				if !c.stay && !p.closed(3*time.Second) {
					t.Error("the connection is left open, or reset")
				}
			})
		})
	}
}

func TestRefusalsCarryTheirNumberAndCloseInOrder(t *testing.T) {
	base := wire.Omni(wire.TCPStream, wire.IPv4, 1)
	rr, udp := wire.Omni(wire.TCPRR, wire.IPv4, 1), wire.Omni(wire.UDPRR, wire.IPv4, 1)
	with := func(r wire.Request, f func(*wire.Request)) []byte { f(&r); return r.AppendTo(nil) }
	badPort := base.AppendTo(nil)
	binary.BigEndian.PutUint32(badPort[88:], 70000)
	for _, c := range []struct {
		name    string
		request []byte
		want    wire.ErrorNumber
	}{
		{"a protocol that netserver hangs on", with(base, func(r *wire.Request) { r.Protocol = 255 }), wire.NoProtocol},
		{"a socket type that does not go with TCP", with(base, func(r *wire.Request) { r.SocketType = wire.Datagram }), wire.NoProtocol},
		{"SCTP", with(base, func(r *wire.Request) { r.Protocol = 132 }), wire.NoProtocol},
		{"an unknown family", with(base, func(r *wire.Request) { r.Family = 7 }), wire.NoFamily},
		{"direction 0", with(base, func(r *wire.Request) { r.Direction = 0 }), wire.BadValue},
		{"direction 8", with(base, func(r *wire.Request) { r.Direction = 8 }), wire.BadValue},
		{"a day", with(base, func(r *wire.Request) { r.Length = 86400 }), wire.NotPermitted},
		{"a request of 2 MiB", with(rr, func(r *wire.Request) { r.RequestSize = 2 << 20 }), wire.BadValue},
		{"a response of 2 GiB", with(rr, func(r *wire.Request) { r.ResponseSize = 1<<31 - 1 }), wire.BadValue},
		{"a datagram of 65508", with(udp, func(r *wire.Request) { r.ResponseSize = 65508 }), wire.BadValue},
		{"datagrams from the server", with(udp, func(r *wire.Request) { r.Direction = wire.ServerSends }), wire.NotPermitted},
		{"an amplifier to an address of the other family", with(udp, func(r *wire.Request) { r.Family, r.ResponseSize = wire.IPv6, 60000 }),
			wire.NotPermitted},
		{"a port that is none", badPort, wire.BadValue},
		{"a socket that cannot be had", udp.AppendTo(nil), wire.NoAddress}, // this network has no datagrams
		{"answers of 64 KiB to requests of 10 bytes", with(udp, func(r *wire.Request) { r.RequestSize, r.ResponseSize = 10, 65507 }),
			wire.NotPermitted},
		{"answers to the other family", with(udp, func(r *wire.Request) { r.Family = wire.IPv6 }), wire.NotPermitted},
		{"connections without a protocol for them", with(udp, func(r *wire.Request) { r.Flags |= wire.FlagConnect }), wire.BadValue},
		{"a stream of connections", with(base, func(r *wire.Request) { r.Flags |= wire.FlagConnect }), wire.BadValue},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
				p := dial(t, h, at).send(c.request)
				typ, number, _ := wire.ParseType(p.record(time.Second))
				if typ != wire.TypeOmniResponse || wire.ErrorNumber(number) != c.want {
					t.Errorf("type %d, error %d, want 98, %d", typ, number, c.want)
				}
				if stays := !p.closed(time.Second); stays != (c.want == wire.UnknownTest) {
					t.Errorf("the connection stays: %v", stays)
				}
				if len(lines()) != 1 {
					t.Errorf("log %q", lines())
				}
			})
		})
	}
}

func TestATestEndsWithItsControlConnection(t *testing.T) {
	for _, test := range []wire.Test{wire.TCPStream, wire.TCPMaerts, wire.TCPRR} {
		for name, leave := range map[string]func(ctl, data net.Conn){
			"killed, all its sockets closed": func(ctl, data net.Conn) { _, _ = ctl.Close(), data.Close() },
			"only the control connection":    func(ctl, _ net.Conn) { _ = ctl.Close() },
			"reset":                          func(ctl, _ net.Conn) { _ = ctl.(interface{ SetLinger(int) error }).SetLinger(0); _ = ctl.Close() },
		} {
			bubble(t, Options{MaxTests: 1}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
				p := dial(t, h, at)
				data, _ := p.data(wire.Omni(test, wire.IPv4, 100), at)
				time.Sleep(5 * time.Second)
				leave(p.conn, data)
				time.Sleep(time.Second)
				second := dial(t, h, at)
				second.data(wire.Omni(wire.TCPMaerts, wire.IPv4, 1), at)
				if l := lines(); len(l) < 2 || !strings.Contains(l[1], "ends") {
					t.Errorf("%d, %s: log %q", test, name, l)
				}
			})
		}
	}
}

func TestAClientThatVanishesWithoutAWordIsGivenUp(t *testing.T) {
	for test, after := range map[wire.Test]time.Duration{
		wire.TCPStream: 31 * time.Second, wire.TCPMaerts: 61 * time.Second, wire.TCPRR: 31 * time.Second,
	} {
		bubble(t, Options{MaxTests: 1}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
			p := dial(t, h, at)
			data, _ := p.data(wire.Omni(test, wire.IPv4, 3000), at)
			_, _ = data.Write(make([]byte, 1000))
			time.Sleep(after)
			if l := lines(); len(l) != 2 || !strings.Contains(l[1], "stalled") {
				t.Errorf("%d: log %q", test, l)
			}
		})
	}
}

func TestWithoutADataConnectionTheResultsAreZero(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		for _, c := range []struct {
			length int32
			after  time.Duration
		}{{3, 7 * time.Second}, {0, 30 * time.Second}} {
			p := dial(t, h, at).send(wire.Omni(wire.TCPStream, wire.IPv4, c.length).AppendTo(nil))
			p.record(time.Second)
			begin := time.Now()
			got := p.results(time.Minute)
			if d := time.Since(begin); got.RxBytes != 0 || got.ElapsedSeconds != 0 || d > c.after+time.Second/10 || d < c.after-time.Second/10 {
				t.Errorf("length %d: results %+v after %v, want them after %v", c.length, got, d, c.after)
			}
		}
	})
}

func TestLimitsAreRefusalsAndAreGivenBack(t *testing.T) {
	busy := func(t *testing.T, h *memnet.Net, at netip.AddrPort, from string) bool {
		conn, err := h.DialTCP(t.Context(), at, host.Options{Source: netip.MustParseAddr(from)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		p := &peer{T: t, host: h, conn: conn}
		r, _ := wire.ParseResponse(p.send(wire.Omni(wire.TCPStream, wire.IPv4, 10).AppendTo(nil)).record(time.Second))
		if r.Error != 0 && r.Error != wire.Busy {
			t.Errorf("error %d", r.Error)
		}
		return r.Error == wire.Busy
	}
	bubble(t, Options{MaxTests: 3, MaxTestsPerAddress: 2}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		for i, c := range []struct {
			from string
			want bool
		}{{"192.0.2.1", false}, {"192.0.2.1", false}, {"192.0.2.1", true}, {"192.0.2.2", false}, {"192.0.2.3", true}} {
			if got := busy(t, h, at, c.from); got != c.want {
				t.Errorf("test %d, from %s: busy %v, want %v", i, c.from, got, c.want)
			}
		}
		time.Sleep(15 * time.Second) // none of them connects: they end after 14 s
		if busy(t, h, at, "192.0.2.1") {
			t.Error("the server is still busy when its tests are over")
		}
	})
}

func TestTheOldestIdleConnectionOfAnAddressMakesRoom(t *testing.T) {
	bubble(t, Options{MaxTests: 2, MaxTestsPerAddress: 1}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
		working := dial(t, h, at)
		data, _ := working.data(wire.Omni(wire.TCPStream, wire.IPv4, 100), at)
		var silent []*peer
		for range 8 {
			silent = append(silent, dial(t, h, at))
			time.Sleep(time.Millisecond)
		}
		for i, p := range silent {
			if put, want := p.closed(100*time.Millisecond), i < 5; put != want {
				t.Errorf("connection %d of 8, where one test runs and 4 connections are allowed: closed %v, want %v", i, put, want)
			}
		}
		closeWrite(data)
		working.results(time.Second)
		if l := lines(); !slices.ContainsFunc(l, func(s string) bool { return strings.Contains(s, "to make room") }) {
			t.Errorf("log %q", l)
		}
	})
}

func TestOnlyTheControlConnectionsAddressMayConnect(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at).send(wire.Omni(wire.TCPStream, wire.IPv4, 5).AppendTo(nil))
		r, _ := wire.ParseResponse(p.record(time.Second))
		to := netip.AddrPortFrom(at.Addr(), r.DataPort)
		stranger, err := h.DialTCP(t.Context(), to, host.Options{Source: netip.MustParseAddr("198.51.100.7")})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := stranger.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("the stranger reads %d, %v, want EOF", n, err)
		}
		data, err := h.DialTCP(t.Context(), to, host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = data.Write([]byte("12345"))
		closeWrite(data)
		if got := p.results(time.Second); got.RxBytes != 5 {
			t.Errorf("results %+v", got)
		}
	})
}

func TestDataPorts(t *testing.T) {
	port := func(t *testing.T, h *memnet.Net, at netip.AddrPort, want uint16) wire.Response {
		r := wire.Omni(wire.TCPStream, wire.IPv4, 60)
		r.DataPort = want
		p := dial(t, h, at).send(r.AppendTo(nil))
		response, _ := wire.ParseResponse(p.record(time.Second))
		return response
	}
	bubble(t, Options{DataPorts: PortRange{5000, 5001}}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		for i, c := range []struct {
			ask, want uint16
			err       wire.ErrorNumber
		}{{0, 5000, 0}, {30002, 30002, 0}, {30002, 5001, 0}, {80, 0, wire.Busy}, {0, 0, wire.Busy}} {
			if got := port(t, h, at, c.ask); got.DataPort != c.want || got.Error != c.err {
				t.Errorf("%d: asked for %d, got %d, error %d, want %d, %d", i, c.ask, got.DataPort, got.Error, c.want, c.err)
			}
		}
	})
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		if got := port(t, h, at, 30002); got.DataPort != 30002 {
			t.Errorf("asked for 30002, got %d", got.DataPort)
		}
		if got := port(t, h, at, 30002); got.DataPort < 40000 || got.Error != 0 {
			t.Errorf("asked for a port in use, got %d, error %d, want another", got.DataPort, got.Error)
		}
	})
}

func TestSocketOptionsAreAppliedOrSaidNotToBe(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		for _, c := range []struct {
			name string
			edit func(*wire.Request)
			want func(wire.Response) bool
		}{
			{"a mark is applied, its ECN bits are not", func(r *wire.Request) { r.DS = 0x21 },
				func(p wire.Response) bool { return p.DS == 0x20 }},
			{"an unknown congestion control is no error", func(r *wire.Request) { r.Congestion, r.DS = "nosuch", 0x20 },
				func(p wire.Response) bool { return p.Error == 0 && p.DS == 0x20 }},
			{"a byte that is none could not be set", func(r *wire.Request) { r.DS = 1000 },
				func(p wire.Response) bool { return p.DS == -2 }},
			{"buffers are clamped", func(r *wire.Request) { r.SendBuffer, r.RecvBuffer = 1<<31-1, 70000 },
				func(p wire.Response) bool { return p.SendBuffer == maxSockBuffer && p.RecvBuffer == 70000 }},
			{"a priority is not to be had", func(r *wire.Request) { r.Priority = 4 },
				func(p wire.Response) bool { return p.Priority == -3 }},
			{"a file of the server is not opened", func(r *wire.Request) { r.FillFile = "/etc/passwd" },
				func(p wire.Response) bool { return p.Error == 0 }},
			{"an address that is not this host's is no obstacle", func(r *wire.Request) {
				r.ServerAddr = wire.AddrFrom(netip.MustParseAddr("203.0.113.9"))
			}, func(p wire.Response) bool { return p.Error == 0 && p.DataPort != 0 }},
		} {
			r := wire.Omni(wire.TCPStream, wire.IPv4, 1)
			c.edit(&r)
			got, err := wire.ParseResponse(dial(t, h, at).send(r.AppendTo(nil)).record(time.Second))
			if err != nil || !c.want(got) {
				t.Errorf("%s: got %+v, %v", c.name, got, err)
			}
		}
	})
}

func TestConnectionsWithoutAWordAreNormalAndEnd(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
		p := dial(t, h, at)
		closeWrite(p.conn)
		if !p.closed(time.Second) {
			t.Error("a connection that says nothing and closes is not closed")
		}
		p = dial(t, h, at).send(make([]byte, 100)) // part of a record
		closeWrite(p.conn)
		if !p.closed(time.Second) {
			t.Error("a connection that ends inside a record is not closed")
		}
		p = dial(t, h, at)
		begin := time.Now()
		if !p.closed(2*time.Minute) || time.Since(begin) < betweenTests || time.Since(begin) > betweenTests+time.Second {
			t.Errorf("silence ended after %v, want %v", time.Since(begin), betweenTests)
		}
		if len(lines()) != 0 {
			t.Errorf("log %q", lines())
		}
	})
}

func TestServeEndsAtOnceWithEverythingThatItStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memory()
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan []netip.AddrPort, 1), make(chan error, 1)
		s := &Server{Options{Ready: func(at []netip.AddrPort) { ready <- at }}}
		go func() {
			done <- s.Serve(ctx, h, netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("[::1]:0"))
		}()
		at := <-ready
		if len(at) != 2 || at[0].Port() == 0 {
			t.Fatalf("listening at %v", at)
		}
		dial(t, h, at[0])
		dial(t, h, at[1]).send(wire.Omni(wire.TCPStream, wire.IPv6, 100).AppendTo(nil)).record(time.Second)
		for _, test := range []wire.Test{wire.TCPStream, wire.TCPMaerts, wire.TCPRR} {
			dial(t, h, at[0]).data(wire.Omni(test, wire.IPv4, 100), at[0])
		}
		time.Sleep(time.Second)
		begin := time.Now()
		cancel()
		if err := <-done; err != nil || time.Since(begin) > time.Second/10 {
			t.Errorf("Serve returned %v after %v", err, time.Since(begin))
		}
	})
}

func TestServeSaysWhatIsWrongWithItsOptionsOrAddresses(t *testing.T) {
	h := memory()
	taken, err := h.ListenTCP(t.Context(), netip.MustParseAddrPort("127.0.0.1:12865"), host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		o  Options
		at []netip.AddrPort
	}{
		"no address":             {},
		"a port in use":          {at: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1000"), netip.MustParseAddrPort("127.0.0.1:12865")}},
		"a range backwards":      {o: Options{DataPorts: PortRange{2000, 1000}}},
		"a range from port 0":    {o: Options{DataPorts: PortRange{0, 1000}}},
		"a negative limit":       {o: Options{MaxTests: -1}},
		"a passphrase too long":  {o: Options{Passphrase: strings.Repeat("x", 648)}},
		"a negative test length": {o: Options{MaxLength: -1}},
	} {
		if err := (&Server{c.o}).Serve(t.Context(), h, c.at...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := (&Server{}).Serve(t.Context(), h, netip.MustParseAddrPort("127.0.0.1:12865")); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port in use: got %v", err)
	}
}

func TestADownloadThatItsClientEndsLooksLikeNoFaultInTheLog(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
		p := dial(t, h, at)
		data, _ := p.data(wire.Omni(wire.TCPMaerts, wire.IPv4, 30), at)
		if _, err := io.ReadFull(data, make([]byte, 500_000)); err != nil {
			t.Fatal(err)
		}
		_ = data.Close()
		p.results(time.Second)
		synctest.Wait()
		if l := lines(); len(l) != 2 || !strings.HasSuffix(l[1], "; the client closed") {
			t.Errorf("log %q", l)
		}
	})
}

func TestATestWithoutAnEndOfItsOwnHasTheTimeOfTheLongest(t *testing.T) {
	const longest = time.Minute
	for _, test := range []wire.Test{wire.TCPStream, wire.TCPMaerts, wire.TCPRR} {
		bubble(t, Options{MaxLength: longest}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
			p := dial(t, h, at)
			begin := time.Now()
			data, _ := p.data(wire.Omni(test, wire.IPv4, 0), at)
			err := error(nil)
			for one := []byte{1}; err == nil && time.Since(begin) < 2*longest; {
				time.Sleep(time.Second)
				if test != wire.TCPMaerts {
					_, err = data.Write(one)
				}
				if n := map[wire.Test]int{wire.TCPMaerts: 100_000, wire.TCPRR: 1}[test]; err == nil {
					_, err = io.ReadFull(data, make([]byte, n))
				}
			}
			p.results(time.Second)
			if d := time.Since(begin); d < longest-time.Second || d > longest+3*time.Second {
				t.Errorf("test %d ended after %v, where the longest has %v; log %q", test, d, longest, lines())
			}
		})
	}
}

// The second and third request name the data port of the one before, which must be had again at once.
func TestSeveralTestsOnOneControlConnectionAsForAConfidenceInterval(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		stream := capture(t, "omni-tcp-stream-3-iterations.c2s")
		if len(stream) != 3*wire.Size {
			t.Fatalf("the capture has %d bytes", len(stream))
		}
		p := dial(t, h, at)
		port := uint16(0)
		for i := range 3 {
			r, err := wire.ParseRequest(stream[i*wire.Size:])
			if err != nil || (r.DataPort != 0) != (i > 0) {
				t.Fatalf("request %d: %+v, %v", i, r, err)
			}
			r.DataPort = port
			data, response := p.data(r, at)
			if port != 0 && response.DataPort != port {
				t.Errorf("test %d has data port %d, and asked for %d", i, response.DataPort, port)
			}
			port = response.DataPort
			_, _ = data.Write(make([]byte, 1000+i))
			closeWrite(data)
			if got := p.results(time.Second); got.RxBytes != uint64(1000+i) {
				t.Errorf("test %d: results %+v", i, got)
			}
		}
	})
}
