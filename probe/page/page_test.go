package page

import (
	"context"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/servers/dns"
	"bufferbloat/servers/lab"
	"bufferbloat/servers/lab/link"
	"bufferbloat/servers/web"
)

const ms = time.Millisecond

// within runs f on the client of a lab in virtual time, whose server has a resolver and a web server.
func within(t *testing.T, c lab.Config, f func(ctx context.Context, h host.Host)) {
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
	ready := make(chan struct{}, 2)
	tell := func([]netip.AddrPort) { ready <- struct{}{} }
	d, w := dns.Server{Options: dns.Options{Ready: tell}}, web.Server{Options: web.Options{Ready: tell}}
	servers.Go(func() error { return d.Serve(serving, l.Server(), netip.MustParseAddrPort("0.0.0.0:53")) })
	servers.Go(func() error { return w.Serve(serving, l.Server(), netip.MustParseAddrPort("0.0.0.0:80")) })
	<-ready
	<-ready
	f(driving, l.Client())
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

var (
	server   = netip.MustParseAddrPort("192.0.2.2:80")
	resolver = netip.MustParseAddrPort("192.0.2.2:53")
	base     = &url.URL{Scheme: "http", Host: "lab", Path: "/"}
)

func series(ctx context.Context, t *testing.T, h host.Host, tr *Transport, o probe.Options, count int) ([]probe.Sample, probe.Tally) {
	t.Helper()
	samples := make([]probe.Sample, count)
	tally, err := probe.Run(ctx, ctx, h, tr, o, h.Now(), uint64(count), func(s probe.Sample) { samples[s.Seq] = s })
	if err != nil {
		t.Fatal(err)
	}
	return samples, tally
}

func TestAPageTakesItsRoundTrips(t *testing.T) {
	within(t, lab.Config{Down: lab.Unlimited, Up: lab.Unlimited}, func(ctx context.Context, h host.Host) {
		for _, c := range []struct {
			name   string
			p      Profile
			rounds int
		}{
			{"a look-up, a connection and a request", Profile{LookUps: 1, Parallel: 1, Paths: []string{"/"}}, 3},
			{"an address", Profile{Parallel: 1, Paths: []string{"/"}}, 2},
			{"two objects at once after the document", Profile{LookUps: 2, Parallel: 2, Paths: []string{"/", "/", "/"}}, 6},
			{"two objects one after the other", Profile{LookUps: 1, Parallel: 1, Paths: []string{"/", "/", "/"}}, 7},
		} {
			tr, err := Dial(ctx, h, server, base, probe.Options{}, Options{Profile: &c.p, Resolver: resolver, Names: []string{"a.lab", "b.lab"}})
			if err != nil {
				t.Fatal(err)
			}
			samples, _ := series(ctx, t, h, tr, probe.Options{Interval: time.Second}, 2)
			for _, s := range samples {
				if want := time.Duration(c.rounds) * 40 * ms; s.Outcome != probe.Received || s.RTT < want || s.RTT > want+ms {
					t.Errorf("%s: %+v, want %d round trips of 40 ms", c.name, s, c.rounds)
				}
			}
		}
	})
}

func TestTheDefaultPage(t *testing.T) {
	within(t, lab.Config{}, func(ctx context.Context, h host.Host) {
		tr, err := Dial(ctx, h, server, base, probe.Options{}, Options{Resolver: resolver, Names: []string{"lab"}})
		if err != nil {
			t.Fatal(err)
		}
		samples, _ := series(ctx, t, h, tr, probe.Options{Interval: 2 * time.Second}, 2)
		// 196 kB at 20 Mbit/s take 78 ms; the rounds are at least: look-up, document in 2 flights, look-ups, and 3 turns of 12 connections.
		if s := samples[1]; s.Outcome != probe.Received || s.RTT < 360*ms || s.RTT > 700*ms {
			t.Errorf("got %+v", s)
		}
	})
}

func TestALostLookUpIsRepeated(t *testing.T) {
	// The link loses each packet up with a chance of 1 in 5.
	within(t, lab.Config{Down: lab.Unlimited, Up: lab.Unlimited, EffectsUp: link.Effects{Loss: link.Loss{Good: 0.2}}, Seed: 3}, func(ctx context.Context, h host.Host) {
		p := Profile{LookUps: 5, Parallel: 1, Paths: []string{"/"}}
		tr, err := Dial(ctx, h, server, base, probe.Options{Deadline: 30 * time.Second}, Options{Profile: &p, Resolver: resolver, Names: []string{"lab"}})
		if err != nil {
			t.Fatal(err)
		}
		slow := 0
		samples, tally := series(ctx, t, h, tr, probe.Options{Interval: time.Second, Deadline: 30 * time.Second}, 8)
		for _, s := range samples {
			if s.Outcome == probe.Received && s.RTT > time.Second {
				slow++
			}
		}
		if slow == 0 {
			t.Errorf("no page took more than a second: %+v, %+v", samples, tally)
		}
	})
}

// counting is a Host that counts what is opened at the same time.
type counting struct {
	host.Host
	dials atomic.Int64
}

func (c *counting) DialUDP(ctx context.Context, to netip.AddrPort, o host.Options) (host.PacketConn, error) {
	c.dials.Add(1)
	return c.Host.DialUDP(ctx, to, o)
}

func TestPagesThatCannotBeLoaded(t *testing.T) {
	within(t, lab.Config{}, func(ctx context.Context, h host.Host) {
		o := Options{Resolver: resolver, Names: []string{"lab"}}
		with := func(change func(*Profile, *Options)) Options {
			p, o := Profile{Name: "x", LookUps: 1, Parallel: 1, Paths: []string{"/"}}, o
			change(&p, &o)
			o.Profile = &p
			return o
		}
		for name, c := range map[string]struct {
			at   netip.AddrPort
			o    Options
			want string
		}{
			"a name that is not there":    {server, with(func(_ *Profile, o *Options) { o.Names = []string{"a.nx"} }), "look up a.nx at 192.0.2.2:53: the resolver says that there is no such name"},
			"an object that is not there": {server, with(func(p *Profile, _ *Options) { p.Paths = []string{"/", "/none"} }), "/none: HTTP status 404"},
			"no server":                   {netip.MustParseAddrPort("192.0.2.2:81"), with(func(*Profile, *Options) {}), "connection refused"},
			"no resolver":                 {server, with(func(_ *Profile, o *Options) { o.Resolver = netip.AddrPort{} }), "want a resolver"},
			"no objects":                  {server, with(func(p *Profile, _ *Options) { p.Paths = nil }), "page profile"},
		} {
			_, err := Dial(ctx, h, c.at, base, probe.Options{}, c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}
		silent := &counting{Host: h}
		begun := h.Now()
		_, err := Dial(ctx, silent, server, base, probe.Options{}, with(func(_ *Profile, o *Options) { o.Resolver = netip.MustParseAddrPort("192.0.2.9:53") }))
		if took := h.Now().Sub(begun); err == nil || !strings.Contains(err.Error(), "no answer") || silent.dials.Load() != 3 || took < 7*time.Second || took > 11*time.Second {
			t.Errorf("a silent resolver: %v after %v and %d queries, want 3 in 7 s", err, took, silent.dials.Load())
		}
	})
}
