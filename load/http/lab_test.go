package http

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"math"
	nethttp "net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/web"
)

// within runs f on the client of a lab in virtual time, whose server has our web server with and without TLS.
func within(t *testing.T, c lab.Config, f func(ctx context.Context, h *lab.Host, roots *x509.CertPool)) {
	t.Helper()
	c.Virtual = true
	l, err := lab.New(c)
	if err != nil {
		t.Fatal(err)
	}
	driving, stopDriving := context.WithCancel(t.Context())
	serving, stopServing := context.WithCancel(t.Context())
	var driver, servers errgroup.Group
	driver.Go(func() error { return l.Run(driving) })
	ready := make(chan struct{}, 3)
	tell := func([]netip.AddrPort) { ready <- struct{}{} }
	config, roots, err := web.SelfSigned(l.Server(), "lab")
	if err != nil {
		t.Fatal(err)
	}
	plain, private := web.Server{Options: web.Options{Ready: tell}}, web.Server{Options: web.Options{Ready: tell, TLS: config}}
	servers.Go(func() error { return plain.Serve(serving, l.Server(), netip.MustParseAddrPort("0.0.0.0:80")) })
	servers.Go(func() error { return private.Serve(serving, l.Server(), netip.MustParseAddrPort("0.0.0.0:443")) })
	servers.Go(func() error { return serveHTTP2(serving, l.Server(), config, tell) })
	<-ready
	<-ready
	<-ready
	f(driving, l.Client(), roots)
	stopServing()
	if err := servers.Wait(); err != nil {
		t.Error(err)
	}
	stopDriving()
	if err := driver.Wait(); err != nil {
		t.Error(err)
	}
	l.Close()
}

func mustURL(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return u
}

// serveHTTP2 serves what our web server does over HTTP/2, by another implementation.
func serveHTTP2(ctx context.Context, h host.Host, config *tls.Config, ready func([]netip.AddrPort)) error {
	l, err := h.ListenTCP(ctx, netip.MustParseAddrPort("0.0.0.0:8443"), host.Options{})
	if err != nil {
		return err
	}
	ready(nil)
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	handler := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, q *nethttp.Request) {
		if q.Method == "POST" {
			_, _ = io.Copy(io.Discard, q.Body)
			return
		}
		for block := make([]byte, 64<<10); q.Method == "GET"; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	var group sync.WaitGroup
	defer group.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return nil
		}
		group.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			secure := tls.Server(c, config)
			if secure.Handshake() == nil {
				(&http2.Server{}).ServeConn(secure, &http2.ServeConnOpts{Handler: handler, BaseConfig: &nethttp.Server{ErrorLog: log.New(io.Discard, "", 0)}})
			}
		})
	}
}

// TestGoodputIsThatOfTheLink loads an emulated link with four flows, and wants their goodput from the time that all of them run to the end within 1 % of theory.
func TestGoodputIsThatOfTheLink(t *testing.T) {
	if testing.Short() {
		t.Skip("virtual time is slow under the race detector")
	}
	for _, tt := range []struct {
		url       string
		direction load.Direction
		down, up  bitrate.Bitrate
	}{
		{"http://lab/bytes/1099511627776", load.Download, 20 * bitrate.Mbit, 4 * bitrate.Mbit},
		{"https://lab/bytes/1099511627776", load.Download, 20 * bitrate.Mbit, 4 * bitrate.Mbit},
		{"http://lab/", load.Upload, 20 * bitrate.Mbit, 4 * bitrate.Mbit},
		{"https://lab/", load.Upload, 20 * bitrate.Mbit, 4 * bitrate.Mbit},
		{"https://lab:8443/bytes/1099511627776", load.Download, 20 * bitrate.Mbit, 4 * bitrate.Mbit},
		{"https://lab:8443/", load.Upload, 20 * bitrate.Mbit, 4 * bitrate.Mbit},
		{"https://lab/bytes/1099511627776", load.Download, 512 * bitrate.Kbit, 512 * bitrate.Kbit},
		{"https://lab/", load.Upload, 512 * bitrate.Kbit, 512 * bitrate.Kbit},
		{"http://lab/", load.Upload, 512 * bitrate.Kbit, 512 * bitrate.Kbit},
	} {
		t.Run(fmt.Sprintf("%s %s at %v", tt.url[:min(len(tt.url), 16)], tt.direction, tt.down), func(t *testing.T) {
			// A queue that is never full, with what TCP may have under way: what is looked at is the counting, and no sawtooth.
			within(t, lab.Config{Down: tt.down, Up: tt.up, Buffer: 8 * time.Second}, func(ctx context.Context, h *lab.Host, roots *x509.CertPool) {
				c := &Client{Host: h, URL: mustURL(tt.url), Roots: roots, HTTP2: strings.Contains(tt.url, ":8443")}
				length, window := 16*time.Second, 64<<10
				if tt.down < bitrate.Mbit {
					length, window = 5*time.Minute, 32<<10 // TLS hands over records of 16 KiB, a quarter of a second of this link each
				}
				c.Socket = host.Options{SendBuffer: window, ReceiveBuffer: window}
				const flows, warm = 4, 4 * time.Second
				var group sync.WaitGroup
				var all []*Flow
				results := make([]load.Result, flows)
				for range flows {
					f := c.NewFlow(FlowOptions{Direction: tt.direction, Length: length, Body: 1 << 40})
					if err := f.Open(ctx); err != nil {
						t.Error(err)
						return
					}
					all = append(all, f)
				}
				for i, f := range all {
					group.Go(func() {
						var err error
						if results[i], err = f.Run(ctx); err != nil {
							t.Error(err)
						}
					})
				}
				sum := func() (n uint64) {
					for _, f := range all {
						bytes, ok := f.Delivered()
						if !ok {
							t.Error("what was delivered is not known")
						}
						n += bytes
					}
					return n
				}
				began := h.Now()
				if err := h.SleepUntil(ctx, began.Add(warm)); err != nil {
					t.Error(err)
				}
				before := sum()
				if err := h.SleepUntil(ctx, began.Add(length-time.Second)); err != nil {
					t.Error(err)
				}
				got := float64(sum()-before) * 8 / (length - time.Second - warm).Seconds()
				group.Wait()
				rate := tt.down
				if tt.direction == load.Upload {
					rate = tt.up
				}
				want := float64(rate) * 1448 / 1514
				if tt.url[:5] == "https" {
					want *= 16384. / 16406
				}
				t.Logf("%.0f bit/s, theory %.0f: %.4f", got, want, got/want)
				if math.Abs(got/want-1) > 0.01 {
					t.Errorf("goodput %.0f bit/s, want %.0f within 1 %%", got, want)
				}
				for _, r := range results {
					if r.Bytes == 0 || r.First.IsZero() || r.Last.Before(r.First) || r.Warning != "" || (r.TLS != nil) != (tt.url[:5] == "https") {
						t.Errorf("result %+v", r)
					}
				}
			})
		})
	}
}

// What the client says of an upload is never more than the server has read.
func TestAnUploadCountsNoMoreThanArrived(t *testing.T) {
	if testing.Short() {
		t.Skip("virtual time is slow under the race detector")
	}
	for _, scheme := range []string{"http", "https"} {
		within(t, lab.Config{Up: 2 * bitrate.Mbit}, func(ctx context.Context, h *lab.Host, roots *x509.CertPool) {
			const bytes = 3_000_000
			f := (&Client{Host: h, URL: mustURL(scheme + "://lab/"), Roots: roots}).NewFlow(FlowOptions{Direction: load.Upload, Length: time.Minute, Bytes: bytes})
			r, err := f.Run(ctx)
			if err != nil || r.Bytes != bytes || r.CountedBy != load.CountedByAcks {
				t.Errorf("%s: %d bytes by %v, %v, want %d, all of them answered", scheme, r.Bytes, r.CountedBy, err, bytes)
			}
			if got := r.Duration(); got < 12*time.Second || got > 15*time.Second {
				t.Errorf("%s: they took %v, want about 12.6 s and what the bodies waited for answers", scheme, got)
			}
		})
	}
}
