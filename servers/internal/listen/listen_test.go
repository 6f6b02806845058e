package listen

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
)

var at = netip.MustParseAddrPort("127.0.0.1:5000")

func TestTheWantOfDescriptorsIsToldOnceAMinuteAndOutlasted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &memnet.Net{BytesPerS: 1e6, Buffer: 1e5, Descriptors: 3}
		var lines []string
		var open []net.Conn
		a := Acceptor{Clock: h, Start: func(c net.Conn) { open = append(open, c) }, Trouble: func(line string) { lines = append(lines, line) }}
		stop := run(t, h, a)
		for range 5 {
			if _, err := h.DialTCP(t.Context(), at, host.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10*time.Minute + time.Second)
		synctest.Wait()
		if len(open) != 2 {
			t.Errorf("%d connections are open, and with the listener 3 can be", len(open))
		}
		if len(lines) != 11 || !strings.Contains(lines[0], "(1 times") {
			t.Errorf("told %d times in ten minutes, want 11: %q", len(lines), lines)
		}
		for _, c := range open[:2] {
			c.Close()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(open) != 4 {
			t.Errorf("%d connections were taken once there was room, want 4", len(open))
		}
		if err := stop(); err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
}

func TestRoomThatCanBeMadeIsUsedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &memnet.Net{BytesPerS: 1e6, Buffer: 1e5, Descriptors: 3}
		var open []net.Conn
		a := Acceptor{Clock: h, Start: func(c net.Conn) { open = append(open, c) },
			Trouble: func(line string) { t.Errorf("told of %q", line) },
			MakeRoom: func() bool {
				open[len(open)-2].Close()
				return true
			}}
		stop := run(t, h, a)
		begin := h.Now()
		for range 50 {
			if _, err := h.DialTCP(t.Context(), at, host.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(open) != 50 || h.Now() != begin {
			t.Errorf("%d connections were taken in %v, want 50 at once", len(open), h.Now().Sub(begin))
		}
		if err := stop(); err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
}

// run serves at an address until stop is called.
func run(t *testing.T, h *memnet.Net, a Acceptor) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan []netip.AddrPort, 1), make(chan error, 1)
	go func() {
		done <- Serve(ctx, "a server", []netip.AddrPort{at}, func(at []netip.AddrPort) { ready <- at }, func(ctx context.Context, at netip.AddrPort) (Opened, error) {
			l, err := h.ListenTCP(ctx, at, host.Options{})
			if err != nil {
				return Opened{}, err
			}
			return Opened{At: at, Close: l.Close, Loops: []func(context.Context) error{func(ctx context.Context) error { return a.Accept(ctx, l) }}}, nil
		})
	}()
	if got := <-ready; len(got) != 1 || got[0] != at {
		t.Errorf("it listens at %v", got)
	}
	return func() error { cancel(); return <-done }
}

func TestAnAddressThatCannotBeHadEndsAllAtOnce(t *testing.T) {
	closed, broken := 0, errors.New("broken")
	open := func(err, loop error) func(context.Context, netip.AddrPort) (Opened, error) {
		return func(context.Context, netip.AddrPort) (Opened, error) {
			if err != nil && closed == 0 {
				closed-- // the first one can be had
				return Opened{Close: func() error { closed = 9; return nil }}, nil
			}
			return Opened{Close: func() error { return nil }, Loops: []func(context.Context) error{func(context.Context) error { return loop }}}, err
		}
	}
	for _, tt := range []struct {
		name      string
		at        []netip.AddrPort
		err, loop error
		want      string
	}{
		{"no address", nil, nil, nil, "x: no address to listen at"},
		{"one that is in use", []netip.AddrPort{at, at}, syscall.EADDRINUSE, nil, "another server is running there"},
		{"one that breaks", []netip.AddrPort{at}, nil, broken, "x: broken"},
	} {
		closed = 0
		err := Serve(t.Context(), "x", tt.at, nil, open(tt.err, tt.loop))
		if err == nil || !strings.Contains(err.Error(), tt.want) || tt.err != nil && closed != 9 {
			t.Errorf("%s: got %v, want %q; closed %d", tt.name, err, tt.want, closed)
		}
	}
}
