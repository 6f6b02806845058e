package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

const ms = time.Millisecond

// bubble is the clock of a synctest bubble: the time package itself.
type bubble struct{}

func (bubble) Now() time.Time { return time.Now() }

func (bubble) SleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (bubble) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(d, f) }

// handshake is what a fake host makes of a connection attempt.
type handshake struct {
	takes   time.Duration
	err     error
	info    host.TCPInfo
	infoErr error
}

// fakeHost makes of attempt n what do says.
type fakeHost struct {
	bubble
	host.Network
	do       func(n int) handshake
	n        atomic.Int64
	open     atomic.Int64 // connections not closed with linger 0
	inFlight atomic.Int64
	most     atomic.Int64
	options  atomic.Pointer[host.Options]
}

type fakeConn struct {
	net.Conn
	host   *fakeHost
	h      handshake
	linger int
}

func (c *fakeConn) SetLinger(s int) error { c.linger = s; return nil }
func (c *fakeConn) Close() error {
	if c.linger == 0 {
		c.host.open.Add(-1)
	}
	return nil
}

func (f *fakeHost) DialTCP(ctx context.Context, _ netip.AddrPort, o host.Options) (net.Conn, error) {
	f.options.Store(&o)
	f.most.Store(max(f.most.Load(), f.inFlight.Add(1)))
	defer f.inFlight.Add(-1)
	h := f.do(int(f.n.Add(1)) - 1)
	if err := f.SleepUntil(ctx, time.Now().Add(h.takes)); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if h.err != nil {
		return nil, fmt.Errorf("connect: %w", h.err)
	}
	f.open.Add(1)
	return &fakeConn{host: f, h: h, linger: -1}, nil
}

func (f *fakeHost) TCPInfo(c net.Conn) (host.TCPInfo, error) {
	h := c.(*fakeConn).h
	return h.info, h.infoErr
}

var target = netip.MustParseAddrPort("192.0.2.9:12865")

func dial(t *testing.T, h host.Host, o probe.Options) *Transport {
	t.Helper()
	tr, err := Dial(h, target, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// run probes count times and returns the samples in the order of their fates.
func run(t *testing.T, h host.Host, tr *Transport, o probe.Options, count uint64) ([]probe.Sample, probe.Tally) {
	t.Helper()
	var samples []probe.Sample
	tally, err := probe.Run(t.Context(), t.Context(), h, tr, o, h.Now(), count, func(s probe.Sample) { samples = append(samples, s) })
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	return samples, tally
}

func TestWhatAHandshakeSays(t *testing.T) {
	none := host.TCPInfo{HasRetransmits: true}
	again := func(rtt time.Duration) host.TCPInfo {
		return host.TCPInfo{HasRetransmits: true, Retransmits: 1, RTT: rtt}
	}
	router := netip.MustParseAddr("192.0.2.1")
	unknown := errors.ErrUnsupported
	for _, c := range []struct {
		name string
		h    handshake
		want probe.Outcome
		rtt  time.Duration
	}{
		{"established", handshake{takes: 40 * ms, info: none}, probe.Received, 40 * ms},
		{"established slowly, nothing sent again", handshake{takes: 2500 * ms, info: none}, probe.Received, 2500 * ms},
		{"established slowly, the first SYN was answered", handshake{takes: 1500 * ms, info: again(1499 * ms)}, probe.Received, 1500 * ms},
		{"the first SYN was lost", handshake{takes: 1040 * ms, info: again(40 * ms)}, probe.Lost, 0},
		{"the first SYN was lost on a slow path", handshake{takes: 3900 * ms, info: again(900 * ms)}, probe.Lost, 0},
		{"sent again, and the stack has no RTT", handshake{takes: 1040 * ms, info: again(0)}, probe.Invalid, 0},
		{"no TCP_INFO, in the first second", handshake{takes: 999 * ms, infoErr: unknown}, probe.Received, 999 * ms},
		{"no TCP_INFO, after it", handshake{takes: 1000 * ms, infoErr: unknown}, probe.Invalid, 0},
		{"TCP_INFO without retransmissions, after it", handshake{takes: 1000 * ms}, probe.Invalid, 0},
		{"refused", handshake{takes: 40 * ms, err: syscall.ECONNREFUSED}, probe.Received, 40 * ms},
		{"refused after a second", handshake{takes: 1040 * ms, err: syscall.ECONNREFUSED}, probe.Invalid, 0},
		{"reset", handshake{takes: 40 * ms, err: syscall.ECONNRESET}, probe.Received, 40 * ms},
		{"ICMP error", handshake{takes: 40 * ms, err: &host.RejectedError{By: router, Err: syscall.ECONNREFUSED}}, probe.Lost, 0},
		{"no route to host", handshake{takes: 40 * ms, err: syscall.EHOSTUNREACH}, probe.Lost, 0},
		{"silence", handshake{takes: time.Hour}, probe.Lost, 0},
		{"the stack gave up", handshake{takes: 9 * time.Second, err: syscall.ETIMEDOUT}, probe.Lost, 0},
		{"no descriptor left", handshake{err: syscall.EMFILE}, probe.Unsent, 0},
		{"no such source address", handshake{err: syscall.EADDRNOTAVAIL}, probe.Unsent, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &fakeHost{do: func(int) handshake { return c.h }}
				tr := dial(t, h, probe.Options{})
				samples, tally := run(t, h, tr, probe.Options{}, 1)
				if len(samples) != 1 || samples[0].Outcome != c.want || samples[0].RTT != c.rtt {
					t.Errorf("samples %+v, want one: %v, %v", samples, c.want, c.rtt)
				}
				if n := h.open.Load(); n != 0 {
					t.Errorf("%d connections left open", n)
				}
				if got, want := tr.Refused() == 1, c.h.err != nil && c.want == probe.Received; got != want {
					t.Errorf("refused %d, want it counted if and only if it was the answer", tr.Refused())
				}
				if got, want := len(tr.Remarks()), int(tr.Refused()); got != want {
					t.Errorf("%d remarks, want %d", got, want)
				}
				if c.name == "ICMP error" && (tally.Rejected != 1 || tally.RejectedBy[0] != router) {
					t.Errorf("tally %+v, want it rejected by %v", tally, router)
				}
				if c.want == probe.Unsent && !strings.Contains(tally.FirstError, c.h.err.Error()) {
					t.Errorf("first error %q, want %v", tally.FirstError, c.h.err)
				}
			})
		})
	}
}

func TestProbesAreInFlightTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{do: func(int) handshake { return handshake{takes: 700 * ms, info: host.TCPInfo{HasRetransmits: true}} }}
		samples, _ := run(t, h, dial(t, h, probe.Options{}), probe.Options{Interval: 10 * ms}, 200)
		for _, s := range samples {
			if s.Outcome != probe.Received || s.RTT != 700*ms || s.Lateness() != 0 {
				t.Fatalf("sample %+v, want received after 700ms, sent when due", s)
			}
		}
		if got := h.most.Load(); len(samples) != 200 || got < 70 || got > 71 {
			t.Errorf("%d samples, at most %d in flight; want 200, and 70 in 700ms", len(samples), got)
		}
	})
}

func TestASilentTargetIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{do: func(int) handshake { return handshake{takes: time.Hour} }}
		samples, tally := run(t, h, dial(t, h, probe.Options{}), probe.Options{Interval: 10 * ms}, 2000)
		got := map[probe.Outcome]int{}
		for _, s := range samples {
			got[s.Outcome]++
		}
		if got[probe.Lost] != 2*MaxInFlight || got[probe.Unsent] != 2000-2*MaxInFlight || h.most.Load() != MaxInFlight {
			t.Errorf("outcomes %v, at most %d in flight; want %d lost in 2 deadlines, the others unsent", got, h.most.Load(), 2*MaxInFlight)
		}
		if want := "256 TCP handshakes wait for an answer: too many are under way; probe at a longer interval"; tally.FirstError != want {
			t.Errorf("first error %q, want %q", tally.FirstError, want)
		}
	})
}

func TestAnInterruptEndsAllAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{do: func(int) handshake { return handshake{takes: time.Hour} }}
		ctx, cancel := context.WithTimeout(t.Context(), 950*ms)
		defer cancel()
		n := 0
		start := time.Now()
		_, err := probe.Run(ctx, ctx, h, dial(t, h, probe.Options{}), probe.Options{}, start, 0, func(s probe.Sample) {
			if n++; s.Outcome != probe.Unfinished {
				t.Errorf("sample %+v, want unfinished", s)
			}
		})
		if took := time.Since(start); err != nil || n != 10 || took != 950*ms || h.inFlight.Load() != 0 {
			t.Errorf("error %v, %d samples after %v, %d attempts left; want 10 after 950ms, none", err, n, took, h.inFlight.Load())
		}
	})
}

func TestOptionsReachTheSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := probe.Options{Socket: host.Options{DSCP: dscp.EF, Interface: "eth9"}}
		h := &fakeHost{do: func(int) handshake { return handshake{} }}
		run(t, h, dial(t, h, o), o, 1)
		if got := *h.options.Load(); got != o.Socket {
			t.Errorf("options %+v, want %+v", got, o.Socket)
		}
	})
}

func TestErrorsOfDial(t *testing.T) {
	for _, c := range []struct {
		target netip.AddrPort
		o      probe.Options
	}{{netip.AddrPort{}, probe.Options{}}, {netip.AddrPortFrom(target.Addr(), 0), probe.Options{}}, {target, probe.Options{Interval: -1}}} {
		if _, err := Dial(&fakeHost{}, c.target, c.o); err == nil {
			t.Errorf("target %v, options %+v: no error", c.target, c.o)
		}
	}
}

func TestAClosedTransportRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := dial(t, &fakeHost{do: func(int) handshake { return handshake{} }}, probe.Options{})
		if err := tr.Wake(time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := tr.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Receive after a wake in the past: %v, want os.ErrDeadlineExceeded", err)
		}
		tr.Close()
		tr.Close()
		_, sendErr := tr.Send(0)
		_, receiveErr := tr.Receive()
		for _, err := range []error{sendErr, receiveErr, tr.Wake(time.Now())} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("error %v, want net.ErrClosed", err)
			}
		}
	})
}

func TestLoopback(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	open := l.Addr().(*net.TCPAddr).AddrPort()
	for _, name := range []string{"listening", "refused"} {
		t.Run(name, func(t *testing.T) {
			if name == "refused" {
				l.Close()
			}
			k := host.NewKernel()
			tr, err := Dial(k, open, probe.Options{})
			if err != nil {
				t.Fatal(err)
			}
			samples, tally := run(t, k, tr, probe.Options{Interval: ms}, 40)
			received := 0
			for _, s := range samples {
				if s.Outcome == probe.Received && s.RTT > 0 && s.RTT < time.Second {
					received++
				}
			}
			// A starved machine may have us wake too late for some.
			if received+int(tally.SenderLate) != 40 || received == 0 {
				t.Errorf("%d received, tally %+v; want 40", received, tally)
			}
			want := uint64(0)
			if name == "refused" {
				want = uint64(received)
			}
			if got := tr.Refused(); got != want {
				t.Errorf("refused %d, want %d", got, want)
			}
		})
	}
}
