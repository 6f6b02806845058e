package pace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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

func BenchmarkSendDatagrams(b *testing.B) {
	b.ReportAllocs()
	k := host.NewKernel()
	for b.Loop() {
		_, _ = SendDatagrams(b.Context(), k, Datagrams{Size: 1, Rate: 1000 * bitrate.Gbit, Limit: 1000, Until: k.Now().Add(time.Hour)},
			func(uint64, time.Time) error { return nil })
	}
}
