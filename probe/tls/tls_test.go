package tls

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/probe"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/web"
)

const ms = time.Millisecond

func TestHandshakes(t *testing.T) {
	l, err := lab.New(lab.Config{Virtual: true, Down: lab.Unlimited, Up: lab.Unlimited})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, stop := context.WithCancel(t.Context())
	serving, stopServing := context.WithCancel(ctx)
	var driver, servers errgroup.Group
	driver.Go(func() error { return l.Run(ctx) })
	secure, roots, err := web.SelfSigned(l.Server(), "lab", "2001:db8::2")
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	w := web.Server{Options: web.Options{TLS: secure, Ready: func([]netip.AddrPort) { close(ready) }}}
	servers.Go(func() error {
		return w.Serve(serving, l.Server(), netip.MustParseAddrPort("0.0.0.0:443"), netip.MustParseAddrPort("[::]:443"))
	})
	<-ready
	h := l.Client()
	for _, c := range []struct{ at, name string }{{"192.0.2.2:443", "lab"}, {"[2001:db8::2]:443", "2001:db8::2"}} {
		tr, err := Dial(ctx, h, netip.MustParseAddrPort(c.at), probe.Options{}, Options{Name: c.name, Roots: roots})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		tally, err := probe.Run(ctx, ctx, h, tr, probe.Options{Interval: 10 * ms}, h.Now(), 20, func(s probe.Sample) {
			if n++; s.Outcome != probe.Received || s.RTT < 80*ms || s.RTT > 82*ms {
				t.Errorf("sample %+v, want two round trips of 40 ms", s)
			}
		})
		if err != nil || n != 20 || tally.FirstError != "" {
			t.Errorf("%d samples, %+v, %v", n, tally, err)
		}
	}
	for _, c := range []struct{ at, name, want string }{
		{"192.0.2.2:443", "bal", "not bal"},
		{"192.0.2.2:444", "lab", "connection refused"},
		{"192.0.2.2:0", "lab", "want an address, a port"},
	} {
		if _, err := Dial(ctx, h, netip.MustParseAddrPort(c.at), probe.Options{}, Options{Name: c.name, Roots: roots}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	stopServing()
	if err := servers.Wait(); err != nil {
		t.Error(err)
	}
	stop()
	if err := driver.Wait(); err != nil {
		t.Error(err)
	}
}
