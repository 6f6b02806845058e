package netperf

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/servers/internal/bounds"
)

// oldData asks for a test with a captured request and opens its data connection.
func (p *peer) oldData(name string, test wire.Test, at netip.AddrPort) net.Conn {
	p.Helper()
	response, err := wire.ParseLegacyResponse(p.send(capture(p.T, name+".c2s")).record(time.Second), test)
	if err != nil || response.Error != 0 || response.DataPort == 0 {
		p.Fatalf("response %+v, %v", response, err)
	}
	conn, err := p.host.DialTCP(p.Context(), netip.AddrPortFrom(at.Addr(), response.DataPort), host.Options{})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (p *peer) oldResults(test wire.Test, within time.Duration) wire.LegacyResults {
	p.Helper()
	r, err := wire.ParseLegacyResults(p.record(within), test)
	if err != nil || r.Error != 0 {
		p.Fatalf("results %+v, %v", r, err)
	}
	return r
}

func TestTheStreamsOfANetperfWithoutOmniTests(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		data := p.oldData("legacy-tcp-stream", wire.TCPStream, at)
		time.Sleep(9 * time.Second) // its length may be bytes, so it is no time
		_, _ = data.Write(make([]byte, 50_001))
		closeWrite(data)
		if b, err := io.ReadAll(data); len(b) != 0 || err != nil {
			t.Errorf("the upload ends with %d bytes, %v", len(b), err)
		}
		if got := p.oldResults(wire.TCPStream, time.Second); got.Bytes != 50_001 || got.Calls == 0 {
			t.Errorf("upload: results %+v", got)
		}
		begin := time.Now()
		data = p.oldData("legacy-tcp-maerts", wire.TCPMaerts, at)
		n, err := io.Copy(io.Discard, data) // this client reads to the end, and gives up 4 s after its length
		if d := time.Since(begin); err != nil || n < 200_000 || d > 2*time.Second {
			t.Errorf("download: %d bytes, %v in %v", n, err, d)
		}
		_ = p.conn.SetReadDeadline(time.Now().Add(time.Second))
		if k, _ := p.conn.Read(make([]byte, 1)); k != 0 {
			t.Error("download: the results came before the client had ended its side")
		}
		closeWrite(data)
		if got := p.oldResults(wire.TCPMaerts, time.Second); got.Bytes != uint64(n) || got.ElapsedSeconds < 1 || got.ElapsedSeconds > 1.5 {
			t.Errorf("download: results %+v, %d bytes read", got, n)
		}
	})
}

func TestOldTransactionsEndHalfASecondAfterTheirLength(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		begin := time.Now()
		data := p.oldData("legacy-tcp-rr", wire.TCPRR, at)
		for range 3 {
			_, _ = data.Write([]byte{1})
			if _, err := io.ReadFull(data, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		got := p.oldResults(wire.TCPRR, 10*time.Second)
		if d := time.Since(begin); got.Units != 3 || got.Bytes != 6 || d < 1500*time.Millisecond || d > 1600*time.Millisecond {
			t.Errorf("results %+v after %v", got, d)
		}
	})
}

func TestEveryTransactionOnAConnectionOfItsOwn(t *testing.T) {
	connect := func(t *testing.T, h *memnet.Net, to netip.AddrPort, say int) []byte {
		c, err := h.DialTCP(t.Context(), to, host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write(make([]byte, say))
		_ = c.SetReadDeadline(time.Now().Add(8 * time.Second))
		b, err := io.ReadAll(c)
		if err != nil {
			t.Errorf("the server does not close: %v", err)
		}
		return b
	}
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		r := wire.Omni(wire.TCPCRR, wire.IPv4, 8)
		r.RequestSize, r.ResponseSize = 100, 200
		begin := time.Now()
		response, err := wire.ParseResponse(p.send(r.AppendTo(nil)).record(time.Second))
		if err != nil || response.Error != 0 || response.RecvSize != 100 || response.SendSize != 200 {
			t.Fatalf("response %+v, %v", response, err)
		}
		to := netip.AddrPortFrom(at.Addr(), response.DataPort)
		for i, say := range []int{100, 100, 0, 100} { // one says nothing and is no end
			if b := connect(t, h, to, say); len(b) != 2*say {
				t.Errorf("connection %d: %d bytes, want %d", i, len(b), 2*say)
			}
		}
		got := p.results(10 * time.Second)
		if d := time.Since(begin); got.Transactions != 3 || got.RxBytes != 300 || got.TxBytes != 600 || d < 8500*time.Millisecond || d > 9*time.Second {
			t.Errorf("results %+v after %v, want them half a second after the length", got, d)
		}
		r.Length = -2
		response, _ = wire.ParseResponse(p.send(r.AppendTo(nil)).record(time.Second))
		to = netip.AddrPortFrom(at.Addr(), response.DataPort)
		connect(t, h, to, 100)
		connect(t, h, to, 100)
		if got := p.results(time.Second); got.Transactions != 2 {
			t.Errorf("counted: results %+v", got)
		}
		r.Direction, r.Length = 0, 1
		response, _ = wire.ParseResponse(p.send(r.AppendTo(nil)).record(time.Second))
		if b := connect(t, h, netip.AddrPortFrom(at.Addr(), response.DataPort), 0); len(b) != 0 {
			t.Errorf("only connected, and read %d bytes", len(b))
		}
		if got := p.results(3 * time.Second); got.Transactions != 1 {
			t.Errorf("only connected: results %+v", got)
		}
		p.oldConnections(at)
	})
}

// oldConnections asks for a TCP_CRR in its old form and makes one transaction.
func (p *peer) oldConnections(at netip.AddrPort) {
	p.Helper()
	data := p.oldData("legacy-tcp-crr", wire.TCPCRR, at)
	_, _ = data.Write([]byte{1})
	if b, err := io.ReadAll(data); len(b) != 1 || err != nil {
		p.Errorf("old connections: %d bytes, %v", len(b), err)
	}
	if got := p.oldResults(wire.TCPCRR, 3*time.Second); got.Units != 1 {
		p.Errorf("old connections: results %+v", got)
	}
}

func TestWhatIsNoNetperfClientIsPutOutAtOnce(t *testing.T) {
	for name, hello := range map[string]string{
		"HTTP": "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "SSH": "SSH-2.0-x\r\n",
		"escape sequences": "\x1b[2J\x1b]0;x\a\n\n\n\n",
	} {
		bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
			if p := dial(t, h, at).send([]byte(hello)); !p.closed(time.Second) {
				t.Errorf("%s: the connection stays", name)
			}
			if l := lines(); len(l) != 1 || strings.ContainsAny(l[0], "\x1b\n\a") {
				t.Errorf("%s: log %q", name, l)
			}
		})
	}
}

func TestAClientOfThe256ByteProtocolFailsSoon(t *testing.T) {
	for _, name := range []string{"v245-both-tcp-stream.c2s", "v250-both-tcp-stream.c2s"} {
		bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, lines func() []string) {
			p := dial(t, h, at).send(capture(t, name)[:wire.OldSize])
			if !p.closed(time.Second) {
				t.Errorf("%s: the connection stays", name)
			}
			if l := lines(); len(l) != 1 || !strings.Contains(l[0], "2.5") {
				t.Errorf("%s: log %q", name, l)
			}
		})
		bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
			request := wire.TypeSysInfo.AppendTo(nil, -1)
			p := dial(t, h, at).send(request[:wire.OldSize]) // a record may come in two parts of that size
			time.Sleep(400 * time.Millisecond)
			p.send(request[wire.OldSize:]).record(time.Second)
		})
	}
}

func TestOneByteEach20msIsServedWithinItsMinuteOrNotAtAll(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		for _, b := range wire.TypeSysInfo.AppendTo(nil, -1) {
			p.send([]byte{b})
			time.Sleep(20 * time.Millisecond)
		}
		p.record(time.Second)
		begin := time.Now()
		for range 2 * wire.Size {
			if _, err := p.conn.Write([]byte{0}); err != nil {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		if d := time.Since(begin); d > betweenTests+time.Second {
			t.Errorf("a byte each 200 ms held the connection for %v", d)
		}
	})
}

func TestQuotasOfAnHourAreRefusalsThatStateThem(t *testing.T) {
	refusal := func(t *testing.T, h *memnet.Net, at netip.AddrPort, r wire.Request) wire.Refusal {
		got, err := wire.ParseRefusal(dial(t, h, at).send(r.AppendTo(nil)).record(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	upload := wire.Omni(wire.TCPStream, wire.IPv4, 10)
	bubble(t, Options{MaxTestsPerHour: 2}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		for range 2 {
			p := dial(t, h, at)
			data, _ := p.data(upload, at)
			closeWrite(data)
			p.results(time.Second)
		}
		if got := refusal(t, h, at, upload); got.Number != wire.NotPermitted || !strings.Contains(got.Reason, "2 tests") {
			t.Errorf("the third test: %+v", got)
		}
		time.Sleep(bounds.QuotaTime)
		if got := refusal(t, h, at, upload); got.Number != 0 {
			t.Errorf("an hour later: %+v", got)
		}
	})
	bubble(t, Options{MaxBytesPerHour: 100_000}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		p := dial(t, h, at)
		data, _ := p.data(wire.Omni(wire.TCPMaerts, wire.IPv4, 10), at)
		if n, _ := io.Copy(io.Discard, data); n != 100_000 {
			t.Errorf("the first test moved %d bytes, want it ended at 100000", n)
		}
		p.results(time.Second)
		if got := refusal(t, h, at, upload); got.Number != wire.NotPermitted || !strings.Contains(got.Reason, "100000") {
			t.Errorf("the second test: %+v", got)
		}
	})
	bubble(t, Options{MaxLength: time.Minute}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		long := upload
		long.Length = 86400
		if got := refusal(t, h, at, long); got.Number != wire.NotPermitted || !strings.Contains(got.Reason, "at most 1m0s") {
			t.Errorf("a day: %+v", got)
		}
	})
}

func TestAllTestsTogetherAreHeldToTheRateAndSaySo(t *testing.T) {
	bubble(t, Options{MaxRate: 800_000}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		begin := time.Now()
		up, down := dial(t, h, at), dial(t, h, at)
		in, response := up.data(wire.Omni(wire.TCPStream, wire.IPv4, -1), at)
		if response.PaceBurst != 1 || response.PaceMicros != 1310720 { // 128 KiB at 100 kB/s
			t.Errorf("response %+v", response)
		}
		out, _ := down.data(wire.Omni(wire.TCPMaerts, wire.IPv4, 10), at)
		go func() {
			for time.Since(begin) < 10*time.Second {
				if _, err := in.Write(make([]byte, 10_000)); err != nil {
					return
				}
			}
			closeWrite(in)
		}()
		n, _ := io.Copy(io.Discard, out)
		if n < 950_000 || n > 1_100_000 {
			t.Errorf("%d bytes down in 10 s, want some 1 MB", n)
		}
		if got := up.results(10 * time.Second); got.RxBytes < 950_000 || got.RxBytes > 1_250_000 {
			t.Errorf("%d bytes up in 10 s and what was in flight, want some 1 MB", got.RxBytes)
		}
		down.results(time.Second)
		if r, _ := wire.ParseRefusal(up.send(wire.Omni(wire.UDPStream, wire.IPv4, 1).AppendTo(nil)).record(time.Second)); r.Number != wire.NotPermitted {
			t.Errorf("a stream of datagrams: %+v", r)
		}
	})
}

func TestWhoGuessesPassphrasesIsNotListenedToForAWhile(t *testing.T) {
	bubble(t, Options{Passphrase: "opensesame"}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		answer := func(name string) int32 {
			p := dial(t, h, at).send(capture(t, name))
			_, number, _ := wire.ParseType(p.record(2 * time.Second))
			_ = p.conn.Close()
			return number
		}
		for range bounds.MaxFailures {
			answer("passphrase-bad.c2s")
		}
		if got := answer("passphrase-good.c2s"); got != 403 {
			t.Errorf("the right phrase behind %d wrong ones: error %d, want 403", bounds.MaxFailures, got)
		}
		time.Sleep(bounds.GuessTime)
		if got := answer("passphrase-good.c2s"); got != 0 {
			t.Errorf("a minute later: error %d", got)
		}
	})
}

func TestTheServersCPUIsToldWhereItIsMeasured(t *testing.T) {
	busy, total := []time.Duration{0, 0}, []time.Duration{0, 0}
	cpu := func() ([]time.Duration, []time.Duration, error) { return slices.Clone(busy), slices.Clone(total), nil }
	bubble(t, Options{CPU: cpu}, func(t *testing.T, h *memnet.Net, at netip.AddrPort, _ func() []string) {
		for asked, want := range map[bool]wire.Results{false: {}, true: {CPUPercent: 50, CPUMethod: 8, CPUs: 2, BusiestCPU: 1, BusiestPercent: 80}} {
			p := dial(t, h, at)
			r := wire.Omni(wire.TCPStream, wire.IPv4, 10)
			if asked {
				r.Flags |= wire.FlagCPU
			}
			data, response := p.data(r, at)
			busy, total = []time.Duration{20 + busy[0], 80 + busy[1]}, []time.Duration{100 + total[0], 100 + total[1]}
			closeWrite(data)
			got := p.results(time.Second)
			told := wire.Results{CPUPercent: got.CPUPercent, CPUMethod: got.CPUMethod, CPUs: got.CPUs, BusiestCPU: got.BusiestCPU, BusiestPercent: got.BusiestPercent}
			if told != want || response.Flags&wire.FlagCPU != 0 != asked {
				t.Errorf("asked %v: got %+v, flags %x, want %+v", asked, told, response.Flags, want)
			}
		}
	})
}
