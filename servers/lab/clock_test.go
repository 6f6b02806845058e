package lab

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
)

func TestVirtualTimeMovesOnlyWhenAllWait(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		h := l.Client()
		h.SleepUntil(ctx, h.Now()) // until Run is in charge
		if got := h.Now(); !got.Equal(virtualEpoch) {
			t.Errorf("the clock begins at %v", got)
		}
		late := h.AfterFunc(time.Hour, func() {})
		defer late.Stop()
		for range 1000 {
			runtime.Gosched() // lets the driver run, which must leave the clock alone: this goroutine is runnable
		}
		if got := h.Now(); !got.Equal(virtualEpoch) {
			t.Errorf("the clock moved to %v while a goroutine was running", got)
		}
		wall := time.Now()
		if err := h.SleepUntil(ctx, virtualEpoch.Add(time.Hour-time.Second)); err != nil || !h.Now().Equal(virtualEpoch.Add(time.Hour-time.Second)) {
			t.Errorf("woken at %v, %v", h.Now(), err)
		}
		if took := time.Since(wall); took > 10*time.Second {
			t.Errorf("an hour of virtual time took %v", took)
		}
	})
}

func TestTimersFireInTheirOrderAndNotWhenStopped(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		h := l.Server()
		var mu sync.Mutex
		var fired []int
		note := func(n int) func() {
			return func() {
				mu.Lock()
				defer mu.Unlock()
				fired = append(fired, n)
			}
		}
		h.AfterFunc(30*ms, note(3))
		h.AfterFunc(10*ms, note(1))
		h.AfterFunc(30*ms, note(4)) // set later, for the same time
		stopped := h.AfterFunc(20*ms, note(2))
		h.AfterFunc(-time.Second, note(0))
		if !stopped.Stop() || stopped.Stop() {
			t.Error("a pending timer was not stopped once")
		}
		h.SleepUntil(ctx, h.Now().Add(time.Second))
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(fired, []int{0, 1, 3, 4}) {
			t.Errorf("fired %v, want 0 1 3 4", fired)
		}
	})
}

func TestASleepEndsWithItsContext(t *testing.T) {
	cause := errors.New("told to stop")
	for name, c := range map[string]Config{"real": {}, "virtual": {Virtual: true}} {
		within(t, c, func(ctx context.Context, l *Lab) {
			h := l.Client()
			inside, cancel := host.WithTimeout(ctx, h, 50*ms)
			defer cancel()
			if err := h.SleepUntil(inside, h.Now().Add(365*24*time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want the deadline on the lab's clock", name, err)
			}
			// With nothing pending, the driver waits; real time goes on outside, and can end it.
			outside, stop := context.WithCancelCause(ctx)
			time.AfterFunc(20*ms, func() { stop(cause) })
			c, err := h.DialEcho(ctx, serverIPv4, host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			context.AfterFunc(outside, func() { c.SetReadDeadline(h.Now()) })
			if _, err := c.Receive(make([]byte, 10)); err == nil {
				t.Errorf("%s: received from nobody", name)
			}
			if err := h.SleepUntil(outside, h.Now().Add(time.Hour)); err != cause {
				t.Errorf("%s: %v, want the cause", name, err)
			}
		})
	}
}

func TestAnIdleDriverWaits(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		idle := func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.armed == never && l.next() == never
		}
		for deadline := time.Now().Add(10 * time.Second); !idle(); time.Sleep(ms) {
			if time.Now().After(deadline) {
				t.Fatal("the driver of an idle lab does not rest")
			}
		}
		// And it wakes for new work.
		if err := l.Client().SleepUntil(ctx, l.Client().Now().Add(ms)); err != nil {
			t.Error(err)
		}
	})
}

func TestTheEndOfTheLabEndsWhatWaitsInIt(t *testing.T) {
	for name, c := range map[string]Config{"real": {}, "virtual": {Virtual: true}} {
		t.Run(name, func(t *testing.T) {
			l, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			var g sync.WaitGroup
			g.Go(func() {
				if err := l.Run(ctx); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
			h := l.Client()
			udp, err := h.ListenUDP(ctx, netip.MustParseAddrPort("[::]:0"), host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ln, err := h.ListenTCP(ctx, netip.MustParseAddrPort("[::]:0"), host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for what, wait := range map[string]func() error{
				"receive": func() error { _, err := udp.Receive(make([]byte, 1)); return err },
				"accept":  func() error { _, err := ln.Accept(); return err },
				"dial": func() error {
					_, err := h.DialTCP(ctx, netip.MustParseAddrPort("192.0.2.9:1"), host.Options{})
					return err
				},
				"sleep": func() error {
					if c.Virtual {
						return net.ErrClosed // in no time a year would be over
					}
					return h.SleepUntil(ctx, h.Now().Add(365*24*time.Hour))
				},
			} {
				g.Go(func() {
					if err := wait(); !errors.Is(err, net.ErrClosed) && !(c.Virtual && what == "dial") {
						t.Errorf("%s ended with %v, want net.ErrClosed", what, err)
					}
				})
			}
			time.AfterFunc(30*ms, func() { l.Close() })
			g.Wait()
			l.Close()
			if err := l.Run(ctx); err == nil {
				t.Error("a lab ran twice")
			}
			if _, err := h.DialUDP(ctx, netip.AddrPortFrom(serverIPv4, 1), host.Options{}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a socket of a lab that is over: %v", err)
			}
		})
	}
}

func TestARealLabKeepsItsDelays(t *testing.T) {
	within(t, Config{RTT: 10 * ms}, func(ctx context.Context, l *Lab) {
		h := l.Client()
		rtts := ping(ctx, t, h, serverIPv4, 10*ms, h.Now().Add(300*ms))
		least := 10*ms + (20 * bitrate.Mbit).Duration(98) + (4 * bitrate.Mbit).Duration(98)
		if len(rtts) < 29 || slices.Min(rtts) < least {
			t.Errorf("%d replies, the fastest in %v, want 29 or 30 and none under %v", len(rtts), slices.Min(rtts), least)
		}
		s := l.Stats()
		if s.Lateness.Packets != 2*uint64(len(rtts)) {
			t.Errorf("lateness of %d packets with %d replies, want twice as many", s.Lateness.Packets, len(rtts))
		}
		t.Logf("median RTT %v for 10.2352 ms; %v", median(rtts), &s.Lateness)
	})
}

func TestEveryWakerWakes(t *testing.T) {
	platform, err := newWaker()
	if err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]waker{"of the platform": platform, "portable": newSleeper()} {
		start := time.Now()
		w.arm(5 * ms)
		w.wait()
		if got := time.Since(start); got < 5*ms {
			t.Errorf("%s: woke after %v, armed for 5 ms", name, got)
		}
		w.arm(never)
		time.AfterFunc(5*ms, func() { w.arm(-1) })
		w.wait() // a driver that sleeps for ever can be woken from outside
		w.close()
	}
}
