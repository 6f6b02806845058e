package netperf

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
)

// capture returns the records of a captured stream.
func capture(t testing.TB, name string) [][]byte {
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
	var records [][]byte
	for size := wire.Size; len(stream) > 0; {
		n := min(size, len(stream))
		records, stream = append(records, stream[:n:n]), stream[n:]
	}
	return records
}

// script plays a server: what it does with a control connection. listen opens a data listener at a free port.
type script func(ctl net.Conn, listen func() (net.Listener, uint16))

// play runs a script for every control connection at an address of h, until the test ends. What a script leaves open is closed.
func play(t *testing.T, h host.Host, s script) netip.AddrPort {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l, err := h.ListenTCP(ctx, netip.MustParseAddrPort("127.0.0.1:0"), host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := []io.Closer{l}
	keep := func(c io.Closer) { mu.Lock(); open = append(open, c); mu.Unlock() }
	var running sync.WaitGroup
	running.Go(func() {
		for {
			ctl, err := l.Accept()
			if err != nil {
				return
			}
			keep(ctl)
			running.Go(func() {
				s(ctl, func() (net.Listener, uint16) {
					data, err := h.ListenTCP(ctx, netip.MustParseAddrPort("127.0.0.1:0"), host.Options{})
					if err != nil {
						panic(err)
					}
					keep(data)
					return data, netip.MustParseAddrPort(data.Addr().String()).Port()
				})
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
		for _, c := range open { // what was opened meanwhile
			_ = c.Close()
		}
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// request reads one record.
func request(ctl net.Conn) ([]byte, error) {
	b := make([]byte, wire.Size)
	_, err := io.ReadFull(ctl, b)
	return b, err
}

// withPort returns a captured response with another data port.
func withPort(response []byte, port uint16) []byte {
	b := append([]byte(nil), response...)
	binary.BigEndian.PutUint32(b[8+4*11:], uint32(port))
	return b
}

// withReceived returns captured results with another count of received bytes.
func withReceived(results []byte, n uint64) []byte {
	b := append([]byte(nil), results...)
	binary.BigEndian.PutUint64(b[8:], n)
	return b
}

// netserver plays a stock server of the captured generation: it takes an upload, or supplies a download until it is closed, and
// sends the captured records with the port and the received bytes of this test. Its passphrase works as the stock one's.
func netserver(t *testing.T, captured, passphrase string, skip int) script {
	records := capture(t, captured)[skip:]
	return func(ctl net.Conn, listen func() (net.Listener, uint16)) {
		defer ctl.Close()
		if passphrase != "" {
			b, err := request(ctl)
			if phrase, perr := wire.ParsePassphrase(b); err != nil || perr != nil || phrase != passphrase {
				return
			}
		}
		for {
			b, err := request(ctl)
			if err != nil {
				return
			}
			switch typ, _, _ := wire.ParseType(b); typ {
			case wire.TypePassphrase:
			case wire.TypeSysInfo:
				name := "v260-client-tcp-maerts.s2c"
				if skip > 0 {
					name = "v260-both-tcp-maerts.s2c"
				}
				_, _ = ctl.Write(capture(t, name)[0])
			case wire.TypeOmni:
				l, port := listen()
				if _, err := ctl.Write(withPort(records[0], port)); err != nil {
					return
				}
				data, err := l.Accept()
				if err != nil {
					return
				}
				_ = l.Close()
				results := records[1]
				if r, _ := wire.ParseRequest(b); r.Direction == wire.ServerReceives {
					n, _ := io.Copy(io.Discard, data)
					results = withReceived(results, uint64(n))
				} else {
					block := make([]byte, 16<<10)
					for err == nil {
						_, err = data.Write(block)
					}
				}
				_ = data.Close()
				_, _ = ctl.Write(results)
			}
		}
	}
}
