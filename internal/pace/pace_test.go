package pace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	"bufferbloat/internal/pump"
)

func TestDatagramsLeaveOnASchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &memnet.Net{}
		began := clock.Now()
		var at []time.Duration
		got, err := SendDatagrams(t.Context(), clock, Datagrams{Size: 1250, Rate: bitrate.Mbit, Until: began.Add(100 * time.Millisecond)},
			func(seq uint64, now time.Time) error {
				if at = append(at, now.Sub(began)); seq != uint64(len(at)) {
					t.Errorf("number %d of datagram %d", seq, len(at))
				}
				time.Sleep(3 * time.Millisecond) // the cost of sending shifts none
				return nil
			})
		if err != nil || got.Sent != 10 || len(at) != 10 || at[9] != 90*time.Millisecond || got.Unsent+got.Skipped != 0 || got.Lateness != 0 {
			t.Errorf("got %+v, %v at %v", got, err, at)
		}
		if d := clock.Now().Sub(began); d != 100*time.Millisecond {
			t.Errorf("it ended after %v, want when its time was up", d)
		}
	})
}

// coarse is a clock that wakes its sleepers each millisecond, as the kernel's does, and precise is one that can do better.
type coarse struct{ host.Clock }

func (c coarse) SleepUntil(ctx context.Context, t time.Time) error {
	return c.Clock.SleepUntil(ctx, t.Add(time.Millisecond-1).Truncate(time.Millisecond))
}

type precise struct{ coarse }

func (c precise) SleepPrecisely(ctx context.Context, t time.Time) error {
	return c.Clock.SleepUntil(ctx, t)
}

func TestDatagramsLeaveAsEvenlyAsTheClockCanWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &memnet.Net{}
		// 1250 bytes at 40 Mbit/s are one each 250 us.
		gaps := func(c host.Clock) (most time.Duration, together int) {
			last := clock.Now()
			_, _ = SendDatagrams(t.Context(), c, Datagrams{Size: 1250, Rate: 40 * bitrate.Mbit, Until: last.Add(20 * time.Millisecond)}, func(seq uint64, now time.Time) error {
				if gap := now.Sub(last); seq > 1 {
					most = max(most, gap)
					if gap == 0 {
						together++
					}
				}
				last = now
				return nil
			})
			return most, together
		}
		if most, together := gaps(precise{coarse{clock}}); most != 250*time.Microsecond || together != 0 {
			t.Errorf("by a clock that can wait precisely they are up to %v apart, and %d left with the one before; want 250us and none", most, together)
		}
		if most, together := gaps(coarse{clock}); most != time.Millisecond || together < 50 {
			t.Errorf("by one that can't they are up to %v apart, and %d left with the one before: this test sees no bursts", most, together)
		}
	})
}

func TestABurstLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &memnet.Net{}
		began := clock.Now()
		var at []time.Duration
		_, _ = SendDatagrams(t.Context(), clock, Datagrams{Size: 1250, Rate: bitrate.Mbit, Burst: 5, Limit: 10, Until: began.Add(time.Second)},
			func(_ uint64, now time.Time) error { at = append(at, now.Sub(began)); return nil })
		if len(at) != 10 || at[4] != 0 || at[5] != 50*time.Millisecond || at[9] != 50*time.Millisecond {
			t.Errorf("got %v", at)
		}
	})
}

func TestWhatIsTooLateIsLeftOutAndNoNumberIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &memnet.Net{}
		began := clock.Now()
		var last uint64
		got, err := SendDatagrams(t.Context(), clock, Datagrams{Size: 125, Rate: bitrate.Mbit, Until: began.Add(200 * time.Millisecond)},
			func(seq uint64, now time.Time) error {
				if seq != last+1 {
					t.Errorf("%d follows %d", seq, last)
				}
				last = seq
				if seq == 50 {
					time.Sleep(100 * time.Millisecond) // the host is held up
				}
				return nil
			})
		if err != nil || got.Skipped < 95 || got.Skipped > 100 || got.Sent+got.Skipped != 200 || got.Lateness > maxBurst {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestAHostThatIsHeldUpBeyondTheEndLeavesOutNoMoreThanWasDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &memnet.Net{}
		got, err := SendDatagrams(t.Context(), clock, Datagrams{Size: 125, Rate: bitrate.Mbit, Until: clock.Now().Add(200 * time.Millisecond)},
			func(seq uint64, _ time.Time) error {
				if seq == 50 {
					time.Sleep(time.Second)
				}
				return nil
			})
		if err != nil || got.Sent != 50 || got.Skipped != 150 {
			t.Errorf("got %+v, %v; want 50 sent and 150 left out", got, err)
		}
	})
}

func TestAFullQueueIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &memnet.Net{}
		calls := 0
		got, err := SendDatagrams(t.Context(), clock, Datagrams{Size: 125, Rate: bitrate.Mbit, Until: clock.Now().Add(10 * time.Millisecond)},
			func(seq uint64, _ time.Time) error {
				if calls++; calls%2 == 0 {
					return fmt.Errorf("send: %w", host.ErrNoBuffer)
				}
				return nil
			})
		if err != nil || got.Sent != 5 || got.Unsent != 5 {
			t.Errorf("got %+v, %v", got, err)
		}
		broken := errors.New("broken")
		if got, err := SendDatagrams(t.Context(), clock, Datagrams{Size: 125, Rate: bitrate.Mbit, Until: clock.Now().Add(time.Second)},
			func(seq uint64, _ time.Time) error {
				if seq == 3 {
					return broken
				}
				return nil
			}); !errors.Is(err, broken) || got.Sent != 2 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestAnInterruptEndsBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &memnet.Net{}
		cause := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(900*time.Millisecond, func() { cancel(cause) })
		got, err := SendDatagrams(ctx, clock, Datagrams{Size: 125, Rate: bitrate.Kbit, Until: clock.Now().Add(time.Hour)}, func(uint64, time.Time) error { return nil })
		if !errors.Is(err, cause) || got.Sent != 1 {
			t.Errorf("datagrams: got %+v, %v", got, err)
		}
		ours, theirs := net.Pipe()
		defer ours.Close()
		defer theirs.Close()
		var n pump.Counter
		out, err := Send(ctx, clock, ours, &n, Blocks{Size: 100, Claim: func() bool { return true }})
		if !errors.Is(err, cause) || out.End != pump.Stopped {
			t.Errorf("blocks: got %+v, %v", out, err)
		}
	})
}

func TestBlocksAreClaimedOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &memnet.Net{}
		ours, theirs := net.Pipe()
		got := make(chan int64)
		go func() { n, _ := io.Copy(io.Discard, theirs); got <- n }()
		left := 5
		claim := func() bool { left--; return left >= 0 }
		began := clock.Now()
		var n pump.Counter
		out, err := Send(t.Context(), clock, ours, &n, Blocks{Size: 12_500, Rate: bitrate.Mbit, Claim: claim, Until: began.Add(time.Hour)})
		ours.Close()
		if total := <-got; err != nil || out.End != pump.Full || out.Bytes != 62_500 || total != 62_500 || n.Bytes() != 62_500 {
			t.Errorf("got %+v, %v; %d bytes came", out, err, total)
		}
		if d := clock.Now().Sub(began); d != 400*time.Millisecond {
			t.Errorf("the fifth block left after %v, want 400ms", d)
		}
	})
}

func TestSendingADatagramAllocatesNothing(t *testing.T) {
	k := host.NewKernel()
	n := testing.AllocsPerRun(5, func() {
		_, _ = SendDatagrams(context.Background(), k, Datagrams{Size: 1, Rate: bitrate.Gbit, Limit: 10_000, Until: k.Now().Add(time.Hour)},
			func(uint64, time.Time) error { return nil })
	})
	if n > 100 { // of ten thousand datagrams; a sleep now and then takes a timer
		t.Errorf("%v allocations for 10000 datagrams", n)
	}
}

// BenchmarkGaps sends datagrams over loopback and tells how far the gaps between them are from even, and which share left within 20 us of the one before, with
// the clock's precise wait and without.
func BenchmarkGaps(b *testing.B) {
	k := host.NewKernel()
	for _, rate := range []bitrate.Bitrate{bitrate.Mbit, 10 * bitrate.Mbit, 50 * bitrate.Mbit, 100 * bitrate.Mbit} {
		for name, clock := range map[string]host.Clock{"precise": k, "timers": struct{ host.Clock }{k}} {
			b.Run(fmt.Sprintf("%v/%s", rate, name), func(b *testing.B) { gaps(b, k, clock, Datagrams{Size: 1250, Rate: rate}) })
		}
	}
}

func gaps(b *testing.B, k *host.Kernel, clock host.Clock, d Datagrams) {
	sink, err := k.ListenUDP(b.Context(), netip.MustParseAddrPort("127.0.0.1:0"), host.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer sink.Close()
	conn, err := k.DialUDP(b.Context(), sink.LocalAddr(), host.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	even := time.Duration(float64(d.Size) * 8e9 / float64(d.Rate))
	payload := make([]byte, d.Size)
	var off []time.Duration
	together := 0
	for b.Loop() {
		var last time.Time
		d.Until = clock.Now().Add(2 * time.Second)
		_, err := SendDatagrams(b.Context(), clock, d, func(seq uint64, _ time.Time) error {
			at, err := conn.Send(payload, netip.AddrPort{})
			if gap := at.Sub(last); seq > 1 {
				off = append(off, (gap - even).Abs())
				if gap < 20*time.Microsecond {
					together++
				}
			}
			last = at
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(off)
	us := func(q float64) float64 { return float64(off[int(q*float64(len(off)-1))]) / 1e3 }
	b.ReportMetric(us(0.5), "us-off-p50")
	b.ReportMetric(us(0.99), "us-off-p99")
	b.ReportMetric(100*float64(together)/float64(len(off)), "%-together")
}

func BenchmarkSendDatagrams(b *testing.B) {
	b.ReportAllocs()
	k := host.NewKernel()
	for b.Loop() {
		_, _ = SendDatagrams(b.Context(), k, Datagrams{Size: 1, Rate: 1000 * bitrate.Gbit, Limit: 1000, Until: k.Now().Add(time.Hour)},
			func(uint64, time.Time) error { return nil })
	}
}
