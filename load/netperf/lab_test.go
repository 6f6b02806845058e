package netperf_test

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
	"bufferbloat/servers/lab"
	server "bufferbloat/servers/netperf"
)

// inLab runs f in virtual time with our server behind an emulated bottleneck.
func inLab(t *testing.T, f func(ctx context.Context, c *netperf.Client)) {
	t.Helper()
	l, err := lab.New(lab.Config{Virtual: true, Down: 4 * bitrate.Mbit, Up: 1 * bitrate.Mbit, RTT: 40 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return l.Run(ctx) })
	ready := make(chan []netip.AddrPort, 1)
	s := &server.Server{Options: server.Options{Version: "test", Ready: func(at []netip.AddrPort) { ready <- at }}}
	g.Go(func() error { return s.Serve(ctx, l.Server(), netip.MustParseAddrPort("0.0.0.0:12865")) })
	<-ready
	at, err := l.Client().Resolve(ctx, "lab", 4)
	if err != nil {
		t.Fatal(err)
	}
	f(ctx, &netperf.Client{Host: l.Client(), Addr: netip.AddrPortFrom(at[0], 12865)})
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// The upload fills the queue, some 250 ms of it, for half of the time. The transactions beside it see that half rarely.
func TestOnlyTheViewByTimeShowsAQueueThatStandsForHalfOfTheTime(t *testing.T) {
	inLab(t, func(ctx context.Context, c *netperf.Client) {
		for _, kind := range []netperf.TransactionKind{netperf.TCPRR, netperf.UDPRR} {
			var running sync.WaitGroup
			running.Go(func() {
				if c.Host.SleepUntil(ctx, c.Host.Now().Add(3*time.Second)) != nil {
					return
				}
				r, err := c.NewFlow(netperf.FlowOptions{Direction: load.Upload, Length: 3 * time.Second}).Run(ctx)
				if err != nil || r.Bytes < 200_000 {
					t.Errorf("upload: %+v, %v", r, err)
				}
			})
			got, err := c.NewTransactions(netperf.TransactionOptions{Kind: kind, Length: 6 * time.Second}).Run(ctx)
			running.Wait()
			if err != nil || got.Transactions < 50 {
				t.Errorf("%v: %+v, %v", kind, got, err)
				continue
			}
			count, _ := got.RTTs.Quantile(0.7)
			times, ok := got.RTTs.TimeQuantile(0.7)
			t.Logf("%v: %d, %d lost; 70%% by count %v, by time %v, %v", kind, got.Transactions, got.Lost, count, times, ok)
			if !ok || count > 60*time.Millisecond || times < 120*time.Millisecond {
				t.Errorf("%v: 70%% of the transactions within %v, 70%% of the time within %v; want the idle delay and that of the queue", kind, count, times)
			}
		}
	})
}

func TestConnectionsAndDatagramsThroughABottleneck(t *testing.T) {
	inLab(t, func(ctx context.Context, c *netperf.Client) {
		got, err := c.NewTransactions(netperf.TransactionOptions{Kind: netperf.TCPCRR, Length: 3 * time.Second, Wait: time.Millisecond}).Run(ctx)
		if err != nil || got.Transactions < 25 || got.Transactions > 38 || got.RTTs.Min() < 80*time.Millisecond || got.ServerTransactions < got.Transactions {
			t.Errorf("connections: %+v, %v; want one each 80 ms", got, err)
		}
		// Twice what the link carries: half of it arrives, but for what the queue holds.
		sent, err := c.SendDatagrams(ctx, netperf.DatagramOptions{Length: 3 * time.Second, Size: 1000, Rate: 2 * bitrate.Mbit})
		rate := bitrate.Of(sent.Bytes, 3*time.Second)
		if err != nil || sent.Sent < 740 || sent.Sent > 752 || rate < 900*bitrate.Kbit || rate > 1100*bitrate.Kbit {
			t.Errorf("datagrams: %+v, %v, %v", sent, rate, err)
		}
	})
}

// doubling is a host to which every datagram comes twice, the second time 3 ms later.
type doubling struct{ host.Host }

type doublingConn struct {
	host.PacketConn
	clock host.Clock
	again host.Datagram // the zero Datagram where none is to come
	bytes []byte
}

func (h doubling) DialUDP(ctx context.Context, to netip.AddrPort, o host.Options) (host.PacketConn, error) {
	conn, err := h.Host.DialUDP(ctx, to, o)
	return &doublingConn{PacketConn: conn, clock: h.Host}, err
}

func (c *doublingConn) Receive(b []byte) (host.Datagram, error) {
	if d := c.again; d.N > 0 {
		c.again = host.Datagram{}
		_ = c.clock.SleepUntil(context.Background(), d.At)
		copy(b, c.bytes)
		return d, nil
	}
	d, err := c.PacketConn.Receive(b)
	if err == nil {
		c.again, c.bytes = d, append([]byte(nil), b[:d.N]...)
		c.again.At = d.At.Add(3 * time.Millisecond)
	}
	return d, err
}

func TestOurServersResponsesThatComeTwiceAreKnownByTheirNumbers(t *testing.T) {
	inLab(t, func(ctx context.Context, c *netperf.Client) {
		c.Host = doubling{c.Host}
		for _, o := range []netperf.TransactionOptions{{}, {Burst: 5}, {RequestSize: 64, ResponseSize: 100, Burst: 2}} {
			o.Kind, o.Length, o.Count, o.Wait = netperf.UDPRR, time.Minute, 300, time.Millisecond
			got, err := c.NewTransactions(o).Run(ctx)
			if err != nil || got.Transactions != 300 || got.Lost > 0 || got.RTTs.Min() < 40*time.Millisecond || got.Duplicates < 290 {
				t.Errorf("%+v: %+v, %v; the shortest took %v on a path of 40 ms", o, got, err, got.RTTs.Min())
			}
		}
	})
}

func TestAnExchangeWaitsForTheResponseOfItsOwnRequest(t *testing.T) {
	inLab(t, func(ctx context.Context, c *netperf.Client) {
		c.Host = doubling{c.Host}
		x, err := c.OpenExchange(ctx, netperf.TransactionOptions{Kind: netperf.UDPRR, Length: 10 * time.Second, RequestSize: 8, ResponseSize: 8})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		for seq := range uint64(20) {
			sent, err := x.Send(seq)
			if err != nil {
				t.Fatal(err)
			}
			if a, err := x.Receive(); err != nil || a.Seq != seq || a.At.Sub(sent) < 40*time.Millisecond {
				t.Errorf("request %d: %+v after %v, %v", seq, a, a.At.Sub(sent), err)
			}
		}
	})
}

// stalling is a host that is held up for 200 ms when it has sent 100 datagrams.
type stalling struct {
	host.Host
	conn *stallingConn
}

type stallingConn struct {
	host.PacketConn
	clock host.Clock
	sent  []time.Time
}

func (s *stalling) DialUDP(ctx context.Context, to netip.AddrPort, o host.Options) (host.PacketConn, error) {
	conn, err := s.Host.DialUDP(ctx, to, o)
	s.conn = &stallingConn{PacketConn: conn, clock: s.Host}
	return s.conn, err
}

func (c *stallingConn) Send(b []byte, to netip.AddrPort) (time.Time, error) {
	at, err := c.PacketConn.Send(b, to)
	if len(b) > 0 {
		if c.sent = append(c.sent, at); len(c.sent) == 100 {
			_ = c.clock.SleepUntil(context.Background(), c.clock.Now().Add(200*time.Millisecond))
		}
	}
	return at, err
}

func TestDatagramsThatAHeldUpHostIsLateWithAreLeftOutAndCounted(t *testing.T) {
	inLab(t, func(ctx context.Context, c *netperf.Client) {
		s := &stalling{Host: c.Host}
		c.Host = s
		got, err := c.SendDatagrams(ctx, netperf.DatagramOptions{Length: time.Second, Size: 100, Rate: 400 * bitrate.Kbit}) // one each 2 ms
		if err != nil || got.Skipped < 90 || got.Skipped > 102 || got.Sent+got.Skipped != 500 || !strings.Contains(got.Warning, "left out") {
			t.Errorf("got %+v, %v; want some 100 of 500 left out", got, err)
		}
		for i := range s.conn.sent[15:] {
			if d := s.conn.sent[i+15].Sub(s.conn.sent[i]); d < 9*time.Millisecond {
				t.Fatalf("datagrams %d to %d within %v, want no burst of more than 20 ms worth", i, i+15, d)
			}
		}
	})
}
