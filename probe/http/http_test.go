package http

import (
	"bufio"
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/http"
	"bufferbloat/probe"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/web"
)

const ms = time.Millisecond

// within runs f on the client of a lab in virtual time without a bottleneck, whose server has a web server with and without TLS.
func within(t *testing.T, f func(ctx context.Context, h *lab.Host, far *lab.Host, roots *x509.CertPool)) {
	t.Helper()
	l, err := lab.New(lab.Config{Virtual: true, Down: lab.Unlimited, Up: lab.Unlimited})
	if err != nil {
		t.Fatal(err)
	}
	driving, stopDriving := context.WithCancel(t.Context())
	serving, stopServing := context.WithCancel(t.Context())
	var driver, servers errgroup.Group
	driver.Go(func() error { return l.Run(driving) })
	ready := make(chan struct{}, 2)
	tell := func([]netip.AddrPort) { ready <- struct{}{} }
	secure, roots, err := web.SelfSigned(l.Server(), "lab")
	if err != nil {
		t.Fatal(err)
	}
	plain, tls := web.Server{Options: web.Options{Ready: tell}}, web.Server{Options: web.Options{Ready: tell, TLS: secure}}
	servers.Go(func() error { return plain.Serve(serving, l.Server(), netip.MustParseAddrPort("0.0.0.0:80")) })
	servers.Go(func() error { return tls.Serve(serving, l.Server(), netip.MustParseAddrPort("0.0.0.0:443")) })
	<-ready
	<-ready
	f(driving, l.Client(), l.Server(), roots)
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

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func series(ctx context.Context, t *testing.T, h host.Host, tr *Transport, o probe.Options, count int) ([]probe.Sample, probe.Tally) {
	t.Helper()
	samples := make([]probe.Sample, count)
	tally, err := probe.Run(ctx, ctx, h, tr, o, h.Now(), uint64(count), func(s probe.Sample) { samples[s.Seq] = s })
	if err != nil {
		t.Fatal(err)
	}
	return samples, tally
}

func TestAFetchTakesItsRoundTrips(t *testing.T) {
	within(t, func(ctx context.Context, h, _ *lab.Host, roots *x509.CertPool) {
		for _, c := range []struct {
			url    string
			port   uint16
			size   int64
			rounds int
		}{
			{"http://lab/", 80, 1000, 2},
			{"http://lab/bytes/0", 80, 0, 2},
			{"http://lab/bytes/12000", 80, 12000, 2}, // less than TCP's first window of ten segments
			{"http://lab/bytes/40000", 80, 40000, 3},
			{"https://lab/bytes/1000", 443, 1000, 3},
		} {
			at := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), c.port)
			tr, err := Dial(ctx, h, at, mustURL(t, c.url), probe.Options{}, Options{Roots: roots})
			if err != nil {
				t.Fatalf("%s: %v", c.url, err)
			}
			samples, tally := series(ctx, t, h, tr, probe.Options{Interval: 20 * ms}, 10)
			for _, s := range samples {
				if want := time.Duration(c.rounds) * 40 * ms; s.Outcome != probe.Received || s.RTT < want || s.RTT > want+2*ms || s.Lateness() != 0 {
					t.Errorf("%s: %+v, want %d round trips of 40 ms", c.url, s, c.rounds)
				}
			}
			if tr.Size() != c.size || tally.FirstError != "" {
				t.Errorf("%s: %d bytes, tally %+v", c.url, tr.Size(), tally)
			}
		}
	})
}

func TestWhatCannotBeFetchedIsAnErrorBeforeTheSeries(t *testing.T) {
	within(t, func(ctx context.Context, h, _ *lab.Host, roots *x509.CertPool) {
		for name, c := range map[string]struct {
			url, at string
			roots   *x509.CertPool
			want    string
		}{
			"an object that is not there":   {"http://lab/none", "192.0.2.2:80", nil, `/none: HTTP status 404 ("Not Found")`},
			"a port where nobody is":        {"http://lab/", "192.0.2.2:81", nil, "connection refused"},
			"a host that is not there":      {"http://lab/", "192.0.2.9:80", nil, "no answer in 3s"},
			"a certificate of somebody":     {"https://lab/", "192.0.2.2:443", x509.NewCertPool(), "TLS handshake with 192.0.2.2:443: tls: failed to verify certificate"},
			"a certificate of another name": {"https://bal/", "192.0.2.2:443", roots, "valid for lab, not bal"},
			"TLS where there is none":       {"https://lab/", "192.0.2.2:80", roots, "first record does not look like a TLS handshake"},
			"no TLS where there is some":    {"http://lab/", "192.0.2.2:443", roots, "EOF"},
			"another scheme":                {"ftp://lab/", "192.0.2.2:80", nil, "want http:// or https://"},
			"a password":                    {"http://u:secret@lab/", "192.0.2.2:80", nil, "and no user"},
			"an object too long":            {fmt.Sprintf("http://lab/bytes/%d", MaxObject+1), "192.0.2.2:80", nil, "the object has more than"},
		} {
			_, err := Dial(ctx, h, netip.MustParseAddrPort(c.at), mustURL(t, c.url), probe.Options{Deadline: 3 * time.Second}, Options{Roots: c.roots})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}
	})
}

// A server that fails once it has been measured.
func TestFailuresDoNotLookLikeMeasurements(t *testing.T) {
	within(t, func(ctx context.Context, h, far *lab.Host, _ *x509.CertPool) {
		l, err := far.ListenTCP(ctx, netip.MustParseAddrPort("192.0.2.2:8080"), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		texts := []string{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nno", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no",
			"HTTP/1.1 302 Found\r\nLocation: http://portal/\r\n\r\n", "", "silence", "nonsense\r\n"}
		var g errgroup.Group
		g.Go(func() error {
			var conns errgroup.Group
			for n := 0; ; n++ {
				c, err := l.Accept()
				if err != nil {
					return conns.Wait()
				}
				conns.Go(func() error {
					defer c.Close()
					r := bufio.NewReader(c)
					if _, err := wire.ReadRequest(r); err != nil {
						return nil
					}
					text := texts[n%len(texts)]
					if text == "silence" {
						_, _ = r.ReadByte() // until the client gives up
						return nil
					}
					_, err := c.Write([]byte(text))
					return err
				})
			}
		})
		tr, err := Dial(ctx, h, netip.MustParseAddrPort("192.0.2.2:8080"), mustURL(t, "http://lab:8080/"), probe.Options{Deadline: time.Second}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		samples, tally := series(ctx, t, h, tr, probe.Options{Interval: 100 * ms}, 7)
		var got []probe.Outcome
		for _, s := range samples {
			got = append(got, s.Outcome)
		}
		want := []probe.Outcome{probe.Lost, probe.Lost, probe.Lost, probe.Lost, probe.Lost, probe.Lost, probe.Received}
		if !slices.Equal(got, want) || tally.Rejected != 5 || tally.FirstError != `/: HTTP status 500 ("Oops")` {
			t.Errorf("outcomes %v, tally %+v; want %v, 5 rejections and one silence", got, tally, want)
		}
		l.Close()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}
