package http

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/http"
	"bufferbloat/load"
	"bufferbloat/servers/web"
)

// answering is a server on loopback, whose connections answer each request by answer until that returns false. It returns the address.
func answering(t *testing.T, answer func(w io.Writer, q wire.Request, body io.Reader) bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				r := bufio.NewReader(c)
				for {
					q, err := wire.ReadRequest(r)
					if err != nil || !answer(c, q, io.LimitReader(r, q.Length)) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); group.Wait() })
	return l.Addr().String()
}

// object answers with so many bytes.
func object(w io.Writer, q wire.Request, bytes int64, closing bool) bool {
	p := wire.Response{Status: 200, Reason: "OK", Length: bytes, Close: closing}
	b := p.AppendTo(nil, "")
	if q.Method != "HEAD" {
		b = append(b, make([]byte, bytes)...)
	}
	_, err := w.Write(b)
	return err == nil && !closing
}

func status(w io.Writer, code int, location string) bool {
	p := wire.Response{Status: code, Reason: "As it is", Location: location}
	_, err := w.Write(p.AppendTo(nil, ""))
	return err == nil
}

func run(t *testing.T, url string, o FlowOptions) (load.Result, error) {
	t.Helper()
	if o.Direction == 0 {
		o.Direction = load.Download
	}
	if o.Length == 0 {
		o.Length = 10 * time.Second
	}
	f := (&Client{Host: host.NewKernel(), URL: mustURL(url)}).NewFlow(o)
	if err := f.Open(t.Context()); err != nil {
		return load.Result{}, err
	}
	return f.Run(t.Context())
}

// oldObject answers with 50 000 bytes as Python's http.server does, which speaks HTTP/1.0, ends each connection and knows no ranges.
func oldObject(w io.Writer, q wire.Request, length string) bool {
	b := []byte("HTTP/1.0 200 OK\r\nServer: SimpleHTTP/0.6 Python/3.13\r\nContent-type: application/octet-stream\r\n" + length + "\r\n")
	if q.Method != "HEAD" {
		b = append(b, make([]byte, 50_000)...)
	}
	_, _ = w.Write(b)
	return false
}

func TestAnObjectIsFetchedAgainOnTheSameConnection(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer  func(w io.Writer, q wire.Request) bool
		warning string
	}{
		"with a length": {func(w io.Writer, q wire.Request) bool { return object(w, q, 50_000, false) }, ""},
		"in chunks": {func(w io.Writer, q wire.Request) bool {
			p := wire.Response{Status: 200, Reason: "OK", Chunked: true}
			b := p.AppendTo(nil, "")
			if q.Method != "HEAD" {
				for range 5 {
					b = append(fmt.Appendf(b, "%x\r\n", 10_000), make([]byte, 10_000)...)
					b = append(b, "\r\n"...)
				}
				b = append(b, "0\r\n\r\n"...)
			}
			_, err := w.Write(b)
			return err == nil
		}, ""},
		"of a server that closes after each": {func(w io.Writer, q wire.Request) bool { return object(w, q, 50_000, true) }, "the server ended its connections: there were 20"},
		"by HTTP/1.0":                        {func(w io.Writer, q wire.Request) bool { return oldObject(w, q, "Content-Length: 50000\r\n") }, "the server ended its connections"},
		"by HTTP/1.0 without a length":       {func(w io.Writer, q wire.Request) bool { return oldObject(w, q, "") }, "the server ended its connections"},
		"that ends with its connection": {func(w io.Writer, q wire.Request) bool {
			if q.Method == "HEAD" {
				return object(w, q, 50_000, false)
			}
			_, _ = w.Write(append([]byte("HTTP/1.1 200 OK\r\n\r\n"), make([]byte, 50_000)...))
			return false
		}, "the server ended its connections"},
		"of a server that knows no HEAD": {func(w io.Writer, q wire.Request) bool {
			if q.Method == "HEAD" {
				return status(w, 405, "")
			}
			return object(w, q, 50_000, false)
		}, ""},
	} {
		at := answering(t, func(w io.Writer, q wire.Request, _ io.Reader) bool { return tt.answer(w, q) })
		r, err := run(t, "http://"+at+"/object?x=1", FlowOptions{Bytes: 1_000_000})
		if err != nil || r.Bytes != 1_000_000 || r.CountedBy != load.CountedByReads || r.First.IsZero() || r.Last.Before(r.First) {
			t.Errorf("%s: %+v, %v, want a million bytes by our reads", name, r, err)
		}
		if tt.warning == "" && strings.Contains(r.Warning, "connections") || !strings.Contains(r.Warning, tt.warning) {
			t.Errorf("%s: warning %q, want %q", name, r.Warning, tt.warning)
		}
	}
}

func TestWhatRefusesIsNoMeasurement(t *testing.T) {
	t.Parallel()
	var loop string
	loop = answering(t, func(w io.Writer, _ wire.Request, _ io.Reader) bool { return status(w, 302, "http://"+loop+"/again") })
	is := func(code int) string {
		return "http://" + answering(t, func(w io.Writer, _ wire.Request, _ io.Reader) bool { return status(w, code, "") }) + "/"
	}
	good := answering(t, func(w io.Writer, q wire.Request, body io.Reader) bool {
		if _, err := io.Copy(io.Discard, body); q.Method == "POST" {
			return err == nil && status(w, 201, "")
		}
		return object(w, q, 1_000_000, false)
	})
	moved := func(code int, to string) string {
		return "http://" + answering(t, func(w io.Writer, _ wire.Request, _ io.Reader) bool { return status(w, code, to) }) + "/"
	}
	closing := answering(t, func(io.Writer, wire.Request, io.Reader) bool { return false })
	text := answering(t, func(w io.Writer, _ wire.Request, _ io.Reader) bool {
		_, _ = io.WriteString(w, "220 mail.example ESMTP\r\n")
		return false
	})
	short := answering(t, func(w io.Writer, q wire.Request, _ io.Reader) bool {
		if q.Method == "HEAD" {
			return object(w, q, 1_000_000, false)
		}
		_, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nhello")
		return false
	})
	old := "http://" + answering(t, func(w io.Writer, _ wire.Request, _ io.Reader) bool {
		_, _ = io.WriteString(w, "HTTP/1.0 501 Unsupported method ('POST')\r\nConnection: close\r\nContent-Length: 5\r\n\r\nsorry")
		return false
	}) + "/"
	empty := answering(t, func(w io.Writer, q wire.Request, _ io.Reader) bool { return object(w, q, 0, false) })
	for name, tt := range map[string]struct {
		url  string
		up   bool
		want string // in the error; "" for none
	}{
		"not found":                       {is(404), false, "answers 404"},
		"forbidden":                       {is(403), false, "lets nobody in"},
		"another success":                 {is(204), false, "answers 204"},
		"a server that is busy":           {is(503), true, "enough of us"},
		"a server without uploads":        {is(405), true, "name a URL that takes uploads"},
		"one of HTTP/1.0 without them":    {old, true, "name a URL that takes uploads"},
		"a redirection":                   {moved(301, "http://"+good+"/object"), false, ""},
		"a redirection of an upload":      {moved(302, "http://"+good+"/object"), true, "no place for uploads"},
		"one that keeps the method":       {moved(308, "http://"+good+"/object"), true, ""},
		"redirections without end":        {"http://" + loop + "/", false, "more than 5 redirections"},
		"a redirection to something else": {moved(302, "ftp://127.0.0.1/x"), false, "want http:// or https://"},
		"nobody there":                    {"http://127.0.0.1:1/", false, "does a web server listen there"},
		"a connection that is closed":     {"http://" + closing + "/", false, "EOF"},
		"something else than HTTP":        {"http://" + text + "/", false, "does not speak this version of HTTP"},
		"an object that breaks off":       {"http://" + short + "/", false, "the server closed the connection"},
		"an empty object":                 {"http://" + empty + "/", false, "is empty"},
		"a user in the URL":               {"http://me:secret@127.0.0.1/", false, "no user"},
	} {
		o := FlowOptions{Bytes: 100_000}
		if tt.up {
			o.Direction = load.Upload
		}
		_, err := run(t, tt.url, o)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: %v, want an error with %q", name, err, tt.want)
		}
	}
}

func TestAnUploadGrowsAndShrinksItsBodies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		most    int64
		warning string
	}{{1 << 40, ""}, {5 << 20, "no body of 16777216 bytes"}, {600_000, "no body of 1048576 bytes"}} {
		var got, answered int64
		var mu sync.Mutex
		at := answering(t, func(w io.Writer, q wire.Request, body io.Reader) bool {
			if q.Length > tt.most {
				status(w, 413, "")
				_, _ = io.CopyN(io.Discard, body, 1<<16)
				return false
			}
			n, err := io.Copy(io.Discard, body)
			mu.Lock()
			defer mu.Unlock()
			if got += n; err != nil || n < q.Length {
				return false
			}
			answered += n
			return status(w, 200, "")
		})
		r, err := run(t, "http://"+at+"/up", FlowOptions{Direction: load.Upload, Bytes: 40 << 20})
		mu.Lock()
		if err != nil || r.CountedBy != load.CountedByAcks || r.Bytes < uint64(answered) || !strings.Contains(r.Warning, tt.warning) {
			t.Errorf("bodies up to %d: %d bytes by %v, warning %q, %v; the server read %d, want as many", tt.most, r.Bytes, r.CountedBy, r.Warning, err, got)
		}
		mu.Unlock()
	}
}

func TestACertificateOfNobodyIsAnErrorUnlessAllowed(t *testing.T) {
	t.Parallel()
	h := host.NewKernel()
	config, roots, err := web.SelfSigned(h, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ready := make(chan netip.AddrPort, 1)
	s := web.Server{Options: web.Options{TLS: config, Ready: func(at []netip.AddrPort) { ready <- at[0] }}}
	var group sync.WaitGroup
	group.Go(func() {
		if err := s.Serve(ctx, h, netip.MustParseAddrPort("127.0.0.1:0")); err != nil {
			t.Error(err)
		}
	})
	defer func() { stop(); group.Wait() }()
	url := mustURL(fmt.Sprintf("https://%v/bytes/1000000", <-ready))
	for name, tt := range map[string]struct {
		roots *x509.CertPool
		any   bool
		good  bool
	}{"unknown": {nil, false, false}, "known": {roots, false, true}, "any": {nil, true, true}} {
		c := &Client{Host: h, URL: url, Roots: tt.roots, AnyCertificate: tt.any}
		for _, direction := range []load.Direction{load.Download, load.Upload} {
			r, err := c.NewFlow(FlowOptions{Direction: direction, Length: 10 * time.Second, Bytes: 3_000_000}).Run(ctx)
			if !tt.good {
				if err == nil || !strings.Contains(err.Error(), "--ca FILE") || !strings.Contains(err.Error(), "--insecure") {
					t.Errorf("%s: %v, want an error that says what to do", name, err)
				}
				continue
			}
			if err != nil || r.Bytes != 3_000_000 || r.TLS == nil || r.TLS.Version != "TLS 1.3" || r.TLS.Handshake <= 0 || r.TLS.Busy <= 0 {
				t.Errorf("%s %v: %+v, TLS %+v, %v", name, direction, r, r.TLS, err)
			}
		}
	}
}

func TestAFlowEndsWithItsTimeAndItsContext(t *testing.T) {
	t.Parallel()
	at := answering(t, func(w io.Writer, q wire.Request, _ io.Reader) bool {
		if q.Method == "HEAD" {
			return object(w, q, 1_000_000, false)
		}
		_, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nhello")
		time.Sleep(3 * time.Second) // and then nothing: a path that died
		return false
	})
	began := time.Now()
	r, err := run(t, "http://"+at+"/", FlowOptions{Length: 300 * time.Millisecond})
	if took := time.Since(began); err != nil || r.Bytes != 5 || took > 2*time.Second {
		t.Errorf("%d bytes, %v after %v, want the 5 that came", r.Bytes, err, took)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no more")
	time.AfterFunc(200*time.Millisecond, func() { cancel(why) })
	began = time.Now()
	f := (&Client{Host: host.NewKernel(), URL: mustURL("http://" + at + "/")}).NewFlow(FlowOptions{Direction: load.Download, Length: time.Minute})
	r, err = f.Run(ctx)
	if took := time.Since(began); !errors.Is(err, why) || r.Bytes != 5 || took > 2*time.Second {
		t.Errorf("%d bytes, %v after %v, want the cause, and what came until then", r.Bytes, err, took)
	}
	if _, ok := f.TCPInfo(); ok {
		t.Error("the connection still stands")
	}
}

// A server of small objects has its connection wait; the flow must not look like the path's rate.
func TestSmallObjectsAreSaid(t *testing.T) {
	t.Parallel()
	at := answering(t, func(w io.Writer, q wire.Request, _ io.Reader) bool {
		time.Sleep(5 * time.Millisecond)
		return object(w, q, 1000, false)
	})
	r, err := run(t, "http://"+at+"/", FlowOptions{Length: 300 * time.Millisecond})
	if err != nil || !strings.Contains(r.Warning, "it waited for the next of") || !strings.Contains(r.Warning, "of 1000 bytes") {
		t.Errorf("%+v, %v, want a warning", r, err)
	}
}

// A body may come long after its head, as where the server's stack holds the second of two small writes back.
func TestSmallObjectsBehindTheirHeadsAreSaid(t *testing.T) {
	t.Parallel()
	at := answering(t, func(w io.Writer, q wire.Request, _ io.Reader) bool {
		if _, err := io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"); err != nil {
			return false
		}
		if q.Method == "HEAD" {
			return true
		}
		time.Sleep(20 * time.Millisecond)
		_, err := io.WriteString(w, "x")
		return err == nil
	})
	r, err := run(t, "http://"+at+"/", FlowOptions{Length: 300 * time.Millisecond})
	var share int
	if _, scan := fmt.Sscanf(r.Warning, "%d %% of the time it waited for the next of", &share); err != nil || scan != nil || share < 50 {
		t.Errorf("%+v, %v, want a warning that it waited most of the time", r, err)
	}
}
