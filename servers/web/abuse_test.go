package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
)

var port = netip.MustParseAddrPort("127.0.0.1:80")

// dialMemory returns nil where the server's queue is full.
func dialMemory(t *testing.T, h *memnet.Net) net.Conn {
	t.Helper()
	c, err := h.DialTCP(t.Context(), port, host.Options{})
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// real is a client as they should be. It fails unless it is served within a second.
func real(t *testing.T, h *memnet.Net, when string) {
	t.Helper()
	begin := h.Now()
	c := dialMemory(t, h)
	if c == nil {
		t.Errorf("%s: a real client is refused", when)
		return
	}
	defer c.Close()
	_ = c.SetDeadline(begin.Add(time.Minute))
	_, _ = io.WriteString(c, "GET /bytes/5 HTTP/1.1\r\nConnection: close\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200 OK\r\n") {
		t.Errorf("%s: a real client reads %q, %v", when, b, err)
	}
	if d := h.Now().Sub(begin); d > time.Second {
		t.Errorf("%s: a real client is served after %v", when, d)
	}
}

// In virtual time, whatever the machine does meanwhile.
func TestTheNextRealClientIsServedWithinASecond(t *testing.T) {
	for _, tt := range []struct {
		name    string
		n       int
		says    string
		by      time.Duration // for each byte; 0 says all at once
		byRight bool          // they hold what they have by right
	}{
		{"silent clients", 300, "", 0, false},
		{"half a request", 300, "GET /bytes/1000 HTTP/1.1\r\nHost:", 0, false},
		{"one byte each 20 ms", 80, "GET /bytes/1000 HTTP/1.1\r\nX: " + strings.Repeat("x", 4000), 20 * time.Millisecond, false},
		{"a TLS hello", 100, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x07", 500), 0, false},
		{"a netperf record", 100, "\x00\x00\x00\x61" + strings.Repeat("\xff", 652), 0, false},
		{"an endless head", 50, "GET / HTTP/1.1\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 90), 0, false},
		{"absurd lengths", 50, "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", 0, false},
		{"an object without an end", 50, "GET /bytes/9223372036854775807 HTTP/1.1\r\n\r\n", 0, false},
		{"downloads, killed", 150, "GET /bytes/1000000000 HTTP/1.1\r\n\r\n", 0, true},
		{"uploads, killed", 150, "POST / HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\nxxx", 0, true},
	} {
		for _, descriptors := range []int{0, 64} {
			t.Run(fmt.Sprintf("%s, %d descriptors", tt.name, descriptors), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := &memnet.Net{Delay: 10 * time.Millisecond, BytesPerS: 250_000, Buffer: 100_000, Descriptors: descriptors}
					ctx, cancel := context.WithCancel(t.Context())
					ready, done := make(chan struct{}), make(chan error, 1)
					s := Server{Options: Options{MaxConnections: 200, Ready: func([]netip.AddrPort) { close(ready) }}}
					go func() { done <- s.Serve(ctx, h, port) }()
					<-ready
					var open []net.Conn
					for range tt.n {
						c := dialMemory(t, h)
						if c == nil {
							continue
						}
						open = append(open, c)
						_ = c.SetWriteDeadline(h.Now().Add(100 * time.Millisecond)) // not all may be read
						if tt.by == 0 {
							_, _ = io.WriteString(c, tt.says)
							continue
						}
						_ = c.SetWriteDeadline(time.Time{})
						go dribble(c, tt.says, tt.by)
					}
					if descriptors == 0 || !tt.byRight {
						real(t, h, "meanwhile")
					}
					for _, c := range open {
						_ = c.(interface{ SetLinger(int) error }).SetLinger(0)
						_ = c.Close()
					}
					time.Sleep(50 * time.Millisecond)
					real(t, h, "afterwards")
					cancel()
					if err := <-done; err != nil {
						t.Errorf("Serve returned %v", err)
					}
					time.Sleep(time.Second) // until who dribbles has seen it
				})
			})
		}
	}
}

// dribble sends one byte after the other, until the connection is closed by either end.
func dribble(c net.Conn, text string, by time.Duration) {
	for _, b := range bytes.SplitAfter([]byte(text), nil) {
		if _, err := c.Write(b); err != nil {
			return
		}
		time.Sleep(by)
	}
}
