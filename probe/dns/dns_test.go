package dns

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	server "bufferbloat/servers/dns"
	"bufferbloat/servers/lab"
)

const ms = time.Millisecond

// within runs f on a lab's client in virtual time, 40 ms of round trip from its server.
func within(t *testing.T, f func(ctx context.Context, l *lab.Lab)) {
	t.Helper()
	l, err := lab.New(lab.Config{Virtual: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return l.Run(ctx) })
	defer func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		l.Close()
	}()
	f(ctx, l)
}

// serve runs the lab's resolver until the test's end.
func serve(ctx context.Context, t *testing.T, h host.Network, g *errgroup.Group) {
	t.Helper()
	ready := make(chan struct{})
	s := server.Server{Options: server.Options{Ready: func([]netip.AddrPort) { close(ready) }}}
	g.Go(func() error {
		return s.Serve(ctx, h, netip.MustParseAddrPort("0.0.0.0:53"), netip.MustParseAddrPort("[::]:53"))
	})
	<-ready
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

func TestLookUpsTakeARoundTrip(t *testing.T) {
	for _, resolver := range []string{"192.0.2.2:53", "[2001:db8::2]:53"} {
		within(t, func(ctx context.Context, l *lab.Lab) {
			ctx, stop := context.WithCancel(ctx)
			var g errgroup.Group
			serve(ctx, t, l.Server(), &g)
			at := netip.MustParseAddrPort(resolver)
			tr, err := Dial(ctx, l.Client(), at, probe.Options{}, Options{Name: "www.lab", IPv6: at.Addr().Is6()})
			if err != nil {
				t.Fatal(err)
			}
			samples, tally := series(ctx, t, l.Client(), tr, probe.Options{Interval: 10 * ms}, 50)
			for _, s := range samples {
				if s.Outcome != probe.Received || s.RTT < 40*ms || s.RTT > 41*ms || s.Stamp != host.LinkStamp {
					t.Errorf("sample %+v, want received after 40 ms", s)
				}
			}
			if tally.FirstError != "" || tally.Stray != 0 {
				t.Errorf("tally %+v", tally)
			}
			stop()
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatIsNoLookUpIsAnErrorBeforeTheSeries(t *testing.T) {
	within(t, func(ctx context.Context, l *lab.Lab) {
		ctx, stop := context.WithCancel(ctx)
		var g errgroup.Group
		serve(ctx, t, l.Server(), &g)
		for _, c := range []struct{ resolver, name, want string }{
			{"192.0.2.2:53", "x.nx", "look up x.nx at 192.0.2.2:53: the resolver says that there is no such name (NXDOMAIN)"},
			{"192.0.2.2:5353", "lab", "connection refused"},
			{"192.0.2.9:53", "lab", "no answer in 2s"},
			{"192.0.2.2:0", "lab", "no address and port of a resolver"},
			{"192.0.2.2:53", "a..b", "no name that DNS can carry"},
		} {
			_, err := Dial(ctx, l.Client(), netip.MustParseAddrPort(c.resolver), probe.Options{Deadline: 2 * time.Second}, Options{Name: c.name})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s at %s: %v, want %q", c.name, c.resolver, err, c.want)
			}
		}
		_, err := Dial(ctx, l.Client(), netip.MustParseAddrPort("[2001:db8::2]:53"), probe.Options{}, Options{Name: "lab"})
		if err == nil || !strings.Contains(err.Error(), "no address of that family") {
			t.Errorf("an A query over IPv6: %v", err)
		}
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// A resolver that fails later, answers in somebody else's name and loses queries.
func TestAnswersThatAreNoneDoNotLookLikeMeasurements(t *testing.T) {
	within(t, func(ctx context.Context, l *lab.Lab) {
		ctx, stop := context.WithCancel(ctx)
		var g errgroup.Group
		conn, err := l.Server().ListenUDP(ctx, netip.MustParseAddrPort("192.0.2.2:53"), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() error {
			b := make([]byte, 512)
			for n := 0; ; n++ {
				d, err := conn.Receive(b)
				if err != nil {
					return nil
				}
				var m dnsmessage.Message
				if err := m.Unpack(b[:d.N]); err != nil {
					return err
				}
				m.Response = true
				head := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET}
				m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{}}}
				switch n % 4 {
				case 1:
					continue // lost
				case 2:
					m.RCode, m.Answers = dnsmessage.RCodeServerFailure, nil
				case 3: // and then the right one
					m.ID++
					wrong, _ := m.Pack()
					conn.SendFrom(wrong, d.To, d.From)
					m.ID--
				}
				right, _ := m.Pack()
				if _, err := conn.SendFrom(right, d.To, d.From); err != nil {
					return err
				}
			}
		})
		tr, err := Dial(ctx, l.Client(), netip.MustParseAddrPort("192.0.2.2:53"), probe.Options{Deadline: time.Second}, Options{Name: "lab"})
		if err != nil {
			t.Fatal(err)
		}
		samples, tally := series(ctx, t, l.Client(), tr, probe.Options{Interval: 100 * ms}, 8)
		got := make([]probe.Outcome, len(samples))
		for i, s := range samples {
			got[i] = s.Outcome
		}
		// The first of the four went to the check in Dial.
		want := []probe.Outcome{probe.Lost, probe.Lost, probe.Received, probe.Received, probe.Lost, probe.Lost, probe.Received, probe.Received}
		if !slices.Equal(got, want) || tally.Rejected != 2 || tally.Stray != 2 || tally.FirstError != "the resolver failed (SERVFAIL)" {
			t.Errorf("outcomes %v, tally %+v; want %v", got, tally, want)
		}
		conn.Close()
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}
