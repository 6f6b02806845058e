package host

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	loopback4 = netip.MustParseAddr("127.0.0.1")
	loopback6 = netip.MustParseAddr("::1")
)

func TestSleepUntilWaitsExactlyAndOnlyAsLongAsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKernel()
		start := k.Now()
		for range 3 { // the second and third run on the timer of the first
			due := k.Now().Add(250 * time.Millisecond)
			if err := k.SleepUntil(t.Context(), due); err != nil || !k.Now().Equal(due) {
				t.Errorf("woke at %v with %v; want %v", k.Now().Sub(start), err, due.Sub(start))
			}
		}
		before := k.Now()
		if err := k.SleepUntil(t.Context(), before.Add(-time.Second)); err != nil || !k.Now().Equal(before) {
			t.Errorf("a past time: %v after %v; want at once", err, k.Now().Sub(before))
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		k.AfterFunc(time.Second, func() { cancel(cause) })
		if err := k.SleepUntil(ctx, before.Add(time.Hour)); err != cause || k.Now().Sub(before) != time.Second {
			t.Errorf("got %v after %v; want %v after 1s", err, k.Now().Sub(before), cause)
		}
		if err := k.SleepUntil(ctx, before); err != cause {
			t.Errorf("with a context that is done: %v; want its cause", err)
		}
	})
}

func TestWithTimeoutEndsOnTheHostsClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKernel()
		ctx, cancel := WithTimeout(t.Context(), k, time.Minute)
		defer cancel()
		start := k.Now()
		<-ctx.Done()
		if context.Cause(ctx) != context.DeadlineExceeded || k.Now().Sub(start) != time.Minute {
			t.Errorf("done after %v with %v", k.Now().Sub(start), context.Cause(ctx))
		}
	})
}

func TestSleepUntilDoesNotAllocate(t *testing.T) {
	k := NewKernel()
	ctx := t.Context()
	got := testing.AllocsPerRun(50, func() {
		if err := k.SleepUntil(ctx, k.Now().Add(time.Microsecond)); err != nil {
			t.Fatal(err)
		}
	})
	if got >= 1 && !raceDetector { // the race detector makes a Pool forget
		t.Errorf("%v allocations per sleep; want 0", got)
	}
}

// pair returns both ends of a TCP connection.
func pair(t *testing.T, k *Kernel, at netip.Addr, server, client Options) (dialed, accepted net.Conn) {
	t.Helper()
	l, err := k.ListenTCP(t.Context(), netip.AddrPortFrom(at, 0), server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	dialed, err = k.DialTCP(t.Context(), l.Addr().(*net.TCPAddr).AddrPort(), client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dialed.Close() })
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })
	return dialed, accepted
}

func TestAConnectionCarriesBytesBothWays(t *testing.T) {
	a, b := pair(t, NewKernel(), loopback4, Options{}, Options{Source: netip.MustParseAddr("127.0.0.1")})
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		if _, err := way[0].Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != "ping" {
			t.Errorf("read %q, %v", got, err)
		}
	}
}

func TestDialTCPSaysWhyItFailed(t *testing.T) {
	k := NewKernel()
	cause := errors.New("the plan is over")
	done, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	tests := []struct {
		name string
		ctx  context.Context
		to   string
		o    Options
		want string
		is   error
	}{
		{"a context that is done gives its cause", done, "127.0.0.1:9", Options{}, "connect to 127.0.0.1:9: the plan is over", cause},
		{"a source of the other family is refused", t.Context(), "127.0.0.1:9", Options{Source: loopback6}, "same family", nil},
		{"a mark above 63 is refused", t.Context(), "127.0.0.1:9", Options{DSCP: 64}, "0 to 63", nil},
		{"a negative buffer is refused", t.Context(), "127.0.0.1:9", Options{SendBuffer: -1}, "0 or more", nil},
		{"a closed port is named", t.Context(), "127.0.0.1:1", Options{}, "connect to 127.0.0.1:1: ", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := k.DialTCP(test.ctx, netip.MustParseAddrPort(test.to), test.o)
			if err == nil {
				c.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), test.want) || test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("got %q; want %q in it", err, test.want)
			}
		})
	}
	if _, err := k.DialTCP(t.Context(), netip.AddrPort{}, Options{}); err == nil {
		t.Error("no address: no error")
	}
}

func TestDatagramsHaveNoCongestionControl(t *testing.T) {
	_, err := NewKernel().DialUDP(t.Context(), netip.MustParseAddrPort("127.0.0.1:9"), Options{CongestionControl: "cubic"})
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v; want errors.ErrUnsupported", err)
	}
}

func TestAListenerNeverTakesTwoAddresses(t *testing.T) {
	k := NewKernel()
	_, err := k.ListenTCP(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), Options{Source: netip.MustParseAddr("127.0.0.2")})
	if err == nil || !strings.Contains(err.Error(), "cannot listen at one address and send from another") {
		t.Errorf("got %v", err)
	}
	l, err := k.ListenTCP(t.Context(), netip.MustParseAddrPort("0.0.0.0:0"), Options{Source: loopback4})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := l.Addr().(*net.TCPAddr).AddrPort().Addr(); got != loopback4 {
		t.Errorf("listens at %v; want the source", got)
	}
}

func TestOnlySocketsHaveTCPInfo(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, err := NewKernel().TCPInfo(a); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v; want errors.ErrUnsupported", err)
	}
}

func TestAHostWithoutAFamilySaysSo(t *testing.T) {
	at := netip.AddrPortFrom(loopback6, 12865)
	err := openError(t.Context(), "listen at", at, &net.OpError{Op: "listen", Err: syscall.EAFNOSUPPORT})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "listen at [::1]:12865: this host has no IPv6") {
		t.Errorf("got %v", err)
	}
}

func TestARejectionNamesItsSender(t *testing.T) {
	e := &RejectedError{Err: syscall.ECONNREFUSED}
	if got := e.Error(); got != syscall.ECONNREFUSED.Error() {
		t.Errorf("got %q", got)
	}
	e.By = loopback4
	if got, want := e.Error(), syscall.ECONNREFUSED.Error()+" (reported by 127.0.0.1)"; got != want || !errors.Is(e, syscall.ECONNREFUSED) {
		t.Errorf("got %q; want %q", got, want)
	}
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		NewKernel().Name(): "kernel", UserStamp.String(): "user", KernelStamp.String(): "kernel", LinkStamp.String(): "lab",
		AnyFamily.String(): "IPv4 or IPv6", IPv4.String(): "IPv4", IPv6.String(): "IPv6",
	} {
		if got != want {
			t.Errorf("got %q; want %q", got, want)
		}
	}
}
