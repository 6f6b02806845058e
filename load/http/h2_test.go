package http

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	nethttp "net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"bufferbloat/internal/host"
	wire2 "bufferbloat/internal/wire/http2"
	"bufferbloat/load"
	"bufferbloat/servers/web"
)

// stockHTTP2 is a server of HTTP/2 on loopback, of another implementation. It returns a client of it.
func stockHTTP2(t *testing.T, path string, handle nethttp.HandlerFunc) *Client {
	t.Helper()
	h := host.NewKernel()
	config, roots, err := web.SelfSigned(h, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				if s := tls.Server(c, config); s.Handshake() == nil {
					(&http2.Server{}).ServeConn(s, &http2.ServeConnOpts{Handler: handle, BaseConfig: &nethttp.Server{ErrorLog: log.New(io.Discard, "", 0)}})
				}
			})
		}
	})
	t.Cleanup(func() { stop(); l.Close(); group.Wait() })
	return &Client{Host: h, URL: mustURL(fmt.Sprintf("https://%v%s", l.Addr(), path)), Roots: roots, HTTP2: true}
}

func TestHTTP2MovesWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	var got int64
	var mu sync.Mutex
	c := stockHTTP2(t, "/moved?x=1", func(w nethttp.ResponseWriter, q *nethttp.Request) {
		switch {
		case q.URL.Path == "/moved":
			nethttp.Redirect(w, q, "/object", nethttp.StatusPermanentRedirect)
		case q.Method == "POST":
			n, _ := io.Copy(io.Discard, q.Body)
			mu.Lock()
			got += n
			mu.Unlock()
		case q.Method == "GET":
			for range 10 {
				_, _ = w.Write(make([]byte, 30_000))
			}
		}
	})
	const bytes = 20_000_000
	down, err := c.NewFlow(FlowOptions{Direction: load.Download, Length: 20 * time.Second, Bytes: bytes}).Run(t.Context())
	if err != nil || down.Bytes != bytes || down.CountedBy != load.CountedByReads || down.TLS == nil {
		t.Errorf("download: %+v, %v, want %d bytes", down, err, bytes)
	}
	up, err := c.NewFlow(FlowOptions{Direction: load.Upload, Length: 20 * time.Second, Bytes: bytes}).Run(t.Context())
	mu.Lock()
	defer mu.Unlock()
	if err != nil || up.Bytes != bytes || got != bytes || up.CountedBy != load.CountedByAcks {
		t.Errorf("upload: %+v, %v, and the server read %d, want %d bytes", up, err, got, bytes)
	}
}

func TestHTTP2Refusals(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handle nethttp.HandlerFunc
		up     bool
		want   string // in the error, or with "warning: " before it in the warning
	}{
		"not found": {func(w nethttp.ResponseWriter, _ *nethttp.Request) { w.WriteHeader(404) }, false, "answers 404"},
		"bodies that are too large": {func(w nethttp.ResponseWriter, q *nethttp.Request) {
			if q.ContentLength > 300_000 {
				w.WriteHeader(413)
				return
			}
			_, _ = io.Copy(io.Discard, q.Body)
		}, true, "warning: no body of 1048576 bytes"},
		"a stream that is broken off": {func(w nethttp.ResponseWriter, q *nethttp.Request) {
			if q.Method == "GET" {
				_, _ = w.Write(make([]byte, 50_000))
				panic(nethttp.ErrAbortHandler)
			}
		}, false, "broke off: internal error"},
		"an empty object": {func(nethttp.ResponseWriter, *nethttp.Request) {}, false, "is empty"},
		"uploads that are unwanted": {func(w nethttp.ResponseWriter, q *nethttp.Request) {
			if q.ContentLength > 0 {
				w.WriteHeader(403)
			}
		}, true, "answers 403"},
	} {
		o := FlowOptions{Direction: load.Download, Length: 10 * time.Second, Bytes: 2_000_000}
		if tt.up {
			o.Direction = load.Upload
		}
		r, err := stockHTTP2(t, "/", tt.handle).NewFlow(o).Run(t.Context())
		if want, ok := strings.CutPrefix(tt.want, "warning: "); ok {
			if err != nil || !strings.Contains(r.Warning, want) || r.Bytes < o.Bytes {
				t.Errorf("%s: %d bytes, warning %q, %v, want %q", name, r.Bytes, r.Warning, err, want)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, tt.want)
		}
	}
	f := (&Client{Host: host.NewKernel(), URL: mustURL("http://127.0.0.1/"), HTTP2: true}).NewFlow(FlowOptions{Direction: load.Download, Length: time.Second})
	if err := f.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "wants https://") {
		t.Errorf("without TLS: %v, want an error", err)
	}
}

// canned is a connection that says what was written down, and takes everything.
type canned struct {
	net.Conn
	said io.Reader
}

func (c *canned) Read(b []byte) (int, error)  { return c.said.Read(b) }
func (c *canned) Write(b []byte) (int, error) { return len(b), nil }

func FuzzHTTP2Answer(f *testing.F) {
	ok := wire2.Head{Length: 1, Type: wire2.Headers, Flags: wire2.EndHeaders, Stream: 1}
	head := append(ok.AppendTo(wire2.AppendSettings(nil, wire2.Setting{ID: wire2.InitialWindowSize, Value: 1 << 20})), 0x88) // :status 200
	f.Add(append(wire2.Head{Length: 3, Type: wire2.Data, Flags: wire2.EndStream, Stream: 1}.AppendTo(head), "abc"...))
	f.Add(append(wire2.Head{Length: 3, Type: wire2.Data, Flags: wire2.Padded, Stream: 1}.AppendTo(head), 1, 'a', 0))
	f.Add(wire2.Head{Length: 8, Type: wire2.GoAway}.AppendTo(head))
	f.Add(append(wire2.Head{Length: 4, Type: wire2.Reset, Stream: 1}.AppendTo(head), 0, 0, 0, 8))
	f.Fuzz(func(t *testing.T, said []byte) {
		l := &link{client: &Client{}, place: place{url: mustURL("https://a.example/"), target: "/"}, stream: &canned{said: bytes.NewReader(said)}}
		c, err := newH2(l)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.ask("GET", 0); err != nil {
			t.Fatal(err)
		}
		p, err := c.answer()
		if err != nil {
			return
		}
		if p.Status < 200 || p.Status > 599 {
			t.Errorf("%x: status %d", said, p.Status)
		}
		n, err := io.Copy(io.Discard, c)
		if n > int64(len(said)) || err == nil && !c.over {
			t.Errorf("%x: %d bytes of content, %v", said, n, err)
		}
		if err != nil && errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%x: %v passes for the end of the object", said, err)
		}
	})
}

func TestReadingAndCountingAllocateNothing(t *testing.T) {
	frame := append(wire2.Head{Length: 1000, Type: wire2.Data, Stream: 1}.AppendTo(nil), make([]byte, 1000)...)
	head := append(wire2.Head{Length: 1, Type: wire2.Headers, Flags: wire2.EndHeaders, Stream: 1}.AppendTo(nil), 0x88)
	l := &link{client: &Client{}, place: place{url: mustURL("https://a.example/"), target: "/"}, stream: &canned{said: io.MultiReader(bytes.NewReader(head), &endless2{frame: frame})}}
	c, err := newH2(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ask("GET", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.answer(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := c.Read(buf); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("a read of HTTP/2 allocates %v times", n)
	}
	m := &meter{Conn: &canned{}, clock: host.NewKernel()}
	if err := m.cork(together); err != nil {
		t.Fatal(err)
	}
	record := make([]byte, tlsRecord+22)
	for range 8 {
		_, _ = m.Write(record)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = m.Write(record) }); n > 0 {
		t.Errorf("a write below TLS allocates %v times", n)
	}
}

// endless2 says a frame again and again.
type endless2 struct {
	frame []byte
	at    int
}

func (e *endless2) Read(b []byte) (int, error) {
	n := copy(b, e.frame[e.at:])
	e.at = (e.at + n) % len(e.frame)
	return n, nil
}
