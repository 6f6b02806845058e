package web

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
)

// serve runs a server on loopback until the test's end.
func serve(t *testing.T, o Options) netip.AddrPort {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	at := make(chan netip.AddrPort, 1)
	o.Ready = func(list []netip.AddrPort) { at <- list[0] }
	var g errgroup.Group
	g.Go(func() error {
		s := Server{Options: o}
		return s.Serve(ctx, host.NewKernel(), netip.MustParseAddrPort("127.0.0.1:0"))
	})
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return <-at
}

// The standard library's client is a stranger to our wire package.
func TestAStockClientIsServed(t *testing.T) {
	config, roots, err := SelfSigned(host.NewKernel(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	for _, base := range []string{fmt.Sprintf("http://%v", serve(t, Options{})), fmt.Sprintf("https://%v", serve(t, Options{TLS: config}))} {
		for _, c := range []struct {
			method, path string
			status       int
			length       int64
		}{
			{"GET", "/", 200, 1000}, {"GET", "/bytes/0", 200, 0}, {"GET", "/bytes/1?x=y", 200, 1}, {"GET", "/bytes/1000000", 200, 1_000_000}, {"HEAD", "/bytes/77", 200, 77},
			{"GET", "/bytes/", 404, 0}, {"GET", "/bytes/-1", 404, 0}, {"GET", "/bytes/99999999999999999999", 404, 0}, {"GET", "/x", 404, 0}, {"DELETE", "/", 405, 0},
			{"POST", "/", 200, 0}, {"PUT", "/any", 200, 0},
		} {
			var body io.Reader
			if c.method == "POST" || c.method == "PUT" {
				body = bytes.NewReader(make([]byte, 100_000))
			}
			q, err := http.NewRequestWithContext(t.Context(), c.method, base+c.path, body)
			if err != nil {
				t.Fatal(err)
			}
			p, err := client.Do(q)
			if err != nil {
				t.Errorf("%s %s: %v", c.method, c.path, err)
				continue
			}
			n, err := io.Copy(io.Discard, p.Body)
			p.Body.Close()
			if c.method == "HEAD" {
				n = p.ContentLength
			}
			if err != nil || p.StatusCode != c.status || n != c.length {
				t.Errorf("%s %s: status %d with %d bytes, %v; want %d with %d", c.method, c.path, p.StatusCode, n, err, c.status, c.length)
			}
		}
	}
}

func TestWhoHasRestedLongestMakesRoomAndNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &memnet.Net{Delay: 10 * time.Millisecond, BytesPerS: 250_000, Buffer: 100_000}
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		s := Server{Options: Options{MaxConnections: 1, Ready: func([]netip.AddrPort) { close(ready) }}}
		go func() { done <- s.Serve(ctx, h, port) }()
		<-ready
		b := make([]byte, 1000)
		get := func(object string) net.Conn {
			c := dialMemory(t, h)
			_ = c.SetDeadline(h.Now().Add(time.Minute))
			fmt.Fprintf(c, "GET /bytes/%s HTTP/1.1\r\n\r\n", object)
			if n, err := c.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "HTTP/1.1 200 OK\r\n") {
				t.Errorf("%q, %v", b[:n], err)
			}
			synctest.Wait() // until the server has noted what it does next
			return c
		}
		rests := get("3")
		works := get("1000000000")
		if n, err := rests.Read(b); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection that rests is told %q, %v", b[:n], err)
		}
		third := dialMemory(t, h)
		_ = third.SetDeadline(h.Now().Add(time.Minute))
		if n, err := third.Read(b); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection too many is told %q, %v", b[:n], err)
		}
		if _, err := io.ReadFull(works, make([]byte, 1_000_000)); err != nil {
			t.Errorf("the connection that works reads %v", err)
		}
		for _, c := range []net.Conn{rests, works, third} {
			_ = c.Close()
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
}

func TestNonsenseIsAnsweredAndEnds(t *testing.T) {
	c, err := net.Dial("tcp", serve(t, Options{}).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprint(c, "nonsense\r\n\r\n")
	if got, _ := io.ReadAll(c); !strings.HasPrefix(string(got), "HTTP/1.1 400 Bad Request\r\n") {
		t.Errorf("nonsense is answered by %q", got)
	}
}

// starved is the kernel, whose listeners have no descriptor for a while, and whose clock waits for nothing.
type starved struct{ *host.Kernel }

func (h starved) SleepUntil(ctx context.Context, _ time.Time) error { return context.Cause(ctx) }

func (h starved) ListenTCP(ctx context.Context, at netip.AddrPort, o host.Options) (net.Listener, error) {
	l, err := h.Kernel.ListenTCP(ctx, at, o)
	return &failing{l, 1000}, err
}

type failing struct {
	net.Listener
	left int
}

func (l *failing) Accept() (net.Conn, error) {
	if l.left--; l.left >= 0 {
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept()
}

func TestAServerOutlastsTheWantOfDescriptors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	at := make(chan netip.AddrPort, 1)
	s := Server{Options: Options{Ready: func(list []netip.AddrPort) { at <- list[0] }}}
	var g errgroup.Group
	g.Go(func() error { return s.Serve(ctx, starved{host.NewKernel()}, netip.MustParseAddrPort("127.0.0.1:0")) })
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	if r, err := client.Get(fmt.Sprintf("http://%v/", <-at)); err != nil {
		t.Error(err)
	} else {
		r.Body.Close()
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
