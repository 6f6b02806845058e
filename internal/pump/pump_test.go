package pump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
)

// bubble is the clock of a synctest bubble.
type bubble struct{}

func (bubble) Now() time.Time { return time.Now() }

func (bubble) SleepUntil(ctx context.Context, t time.Time) error {
	select {
	case <-time.After(time.Until(t)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (bubble) AfterFunc(d time.Duration, f func()) host.Timer { return time.AfterFunc(d, f) }

// every writes k bytes to c at each multiple of d, n times, then calls end.
func every(c net.Conn, d time.Duration, k, n int, end func()) {
	for range n {
		time.Sleep(d)
		if _, err := c.Write(make([]byte, k)); err != nil {
			return
		}
	}
	end()
}

func TestReceiveStampsTheFirstAndTheLastByteAndNotTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		begin := time.Now()
		var feeder sync.WaitGroup
		defer feeder.Wait()
		feeder.Go(func() { every(theirs, time.Second, 1000, 3, func() { time.Sleep(5 * time.Second); theirs.Close() }) })
		var n Counter
		got, err := Receive(t.Context(), bubble{}, ours, &n, Options{Until: begin.Add(time.Minute)})
		want := Outcome{Bytes: 3000, Calls: 3, First: begin.Add(time.Second), Last: begin.Add(3 * time.Second), End: Closed}
		if err != nil || got != want || n.Bytes() != 3000 {
			t.Errorf("got %+v, %v, counter %d, want %+v", got, err, n.Bytes(), want)
		}
		if d := time.Since(begin); d != 8*time.Second {
			t.Errorf("returned after %v, want at the end of the stream, 8s", d)
		}
	})
}

func TestReceiveEndsAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		begin := time.Now()
		var feeder sync.WaitGroup
		defer feeder.Wait()
		feeder.Go(func() { every(theirs, time.Second, 10, 100, func() {}) })
		var n Counter
		got, err := Receive(t.Context(), bubble{}, ours, &n, Options{Until: begin.Add(2500 * time.Millisecond)})
		if err != nil || got.End != TimeUp || got.Bytes != 20 || time.Since(begin) != 2500*time.Millisecond {
			t.Errorf("got %+v, %v after %v", got, err, time.Since(begin))
		}
		if _, err := ours.Read(make([]byte, 10)); err != nil {
			t.Errorf("the deadline was left on the connection: %v", err)
		}
		theirs.Close()
	})
}

func TestReceiveIsStalledOneIdleTimeAfterTheLastByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		begin := time.Now()
		var feeder sync.WaitGroup
		defer feeder.Wait()
		feeder.Go(func() { every(theirs, 7*time.Second, 10, 3, func() {}) })
		var n Counter
		got, err := Receive(t.Context(), bubble{}, ours, &n, Options{Idle: 10 * time.Second})
		if err != nil || got.End != Stalled || got.Bytes != 30 || time.Since(begin) != 31*time.Second {
			t.Errorf("got %+v, %v after %v, want stalled after 31s", got, err, time.Since(begin))
		}
	})
}

func TestPumpsEndAtOnceWithTheCauseOfTheirContext(t *testing.T) {
	pumps := map[string]func(context.Context, host.Clock, net.Conn, *Counter, Options) (Outcome, error){
		"receive": Receive, "send": Send,
	}
	for name, pump := range pumps {
		for _, after := range []time.Duration{0, time.Second} {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				defer ours.Close()
				defer theirs.Close()
				cause := errors.New("interrupted")
				ctx, cancel := context.WithCancelCause(t.Context())
				if after == 0 {
					cancel(cause)
				} else {
					time.AfterFunc(after, func() { cancel(cause) })
				}
				begin := time.Now()
				var n Counter
				got, err := pump(ctx, bubble{}, ours, &n, Options{Idle: time.Hour})
				if !errors.Is(err, cause) || got.End != Stopped || time.Since(begin) != after {
					t.Errorf("%s: got %+v, %v after %v", name, got, err, time.Since(begin))
				}
			})
		}
	}
}

func TestSendCountsWhatTheStackTookOfABlockedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		begin := time.Now()
		go func() { time.Sleep(time.Second); _, _ = io.ReadFull(theirs, make([]byte, 1000)) }()
		var n Counter
		got, err := Send(t.Context(), bubble{}, ours, &n, Options{Until: begin.Add(3 * time.Second)})
		if err != nil || got.End != TimeUp || got.Bytes != 1000 || n.Bytes() != 1000 || !got.First.Equal(begin) {
			t.Errorf("got %+v, %v", got, err)
		}
		theirs.Close()
	})
}

func TestALimitIsKeptToTheByte(t *testing.T) {
	const limit = 3*chunk + 7
	for _, tc := range []struct {
		name        string
		pump, other func(context.Context, host.Clock, net.Conn, *Counter, Options) (Outcome, error)
	}{{"send", Send, Receive}, {"receive", Receive, Send}} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			var n, m Counter
			done := make(chan Outcome)
			go func() {
				out, _ := tc.other(t.Context(), bubble{}, theirs, &m, Options{})
				done <- out
			}()
			got, err := tc.pump(t.Context(), bubble{}, ours, &n, Options{Limit: limit})
			if err != nil || got.End != Full || got.Bytes != limit {
				t.Errorf("%s: got %+v, %v", tc.name, got, err)
			}
			ours.Close()
			<-done
		})
	}
}

func TestABrokenConnectionIsAnErrorAndKeepsWhatWasMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.ReadFull(theirs, make([]byte, 500)); theirs.Close() }()
		var n Counter
		got, err := Send(t.Context(), bubble{}, ours, &n, Options{})
		if !errors.Is(err, io.ErrClosedPipe) || got.End != Broken || got.Bytes != 500 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestTheStacksVerdictThatThePeerIsGoneIsNoDeadlineOfOurs(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, true},
		{&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}, false},
		{syscall.ECONNRESET, false},
		{io.EOF, false},
	} {
		if got := IsDeadline(c.err); got != c.want {
			t.Errorf("%v: got %v, want %v", c.err, got, c.want)
		}
	}
}

// endless is a connection that always has n bytes to give or room for them, and ends after a number of calls.
type endless struct {
	net.Conn
	n, calls int
}

func (e *endless) Read(b []byte) (int, error) {
	if e.calls--; e.calls < 0 {
		return 0, io.EOF
	}
	return min(e.n, len(b)), nil
}

func (e *endless) Write(b []byte) (int, error) {
	if e.calls--; e.calls < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

func (e *endless) SetReadDeadline(time.Time) error  { return nil }
func (e *endless) SetWriteDeadline(time.Time) error { return nil }

func TestATurnAllocatesNothing(t *testing.T) {
	var n Counter
	per := func(turns int, pump func(context.Context, host.Clock, net.Conn, *Counter, Options) (Outcome, error)) float64 {
		return testing.AllocsPerRun(20, func() {
			_, _ = pump(t.Context(), bubble{}, &endless{n: 1448, calls: turns}, &n, Options{Idle: time.Minute})
		})
	}
	for name, pump := range map[string]func(context.Context, host.Clock, net.Conn, *Counter, Options) (Outcome, error){
		"receive": Receive, "send": Send,
	} {
		if few, many := per(10, pump), per(1000, pump); many > few {
			t.Errorf("%s: %v allocations in 10 turns, %v in 1000", name, few, many)
		}
	}
}

// BenchmarkReceive is the price of a turn without a system call: what the pump itself adds to a read, its clock reading
// included. A read of one segment from a kernel socket costs some microseconds.
func BenchmarkReceive(b *testing.B) {
	b.ReportAllocs()
	var n Counter
	b.SetBytes(1448)
	_, _ = Receive(b.Context(), bubble{}, &endless{n: 1448, calls: b.N}, &n, Options{})
}

// BenchmarkLoopback is the rate of a pump each way over kernel sockets, with writes of chunk and whatever the reads find.
func BenchmarkLoopback(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Skip(err)
	}
	defer l.Close()
	received := make(chan Outcome, 1)
	go func() {
		var n Counter
		c, err := l.Accept()
		if err != nil {
			received <- Outcome{}
			return
		}
		defer c.Close()
		out, _ := Receive(b.Context(), bubble{}, c, &n, Options{})
		received <- out
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(chunk)
	var n Counter
	_, err = Send(b.Context(), bubble{}, c, &n, Options{Limit: uint64(b.N) * chunk})
	c.Close()
	out := <-received
	if err != nil || out.Bytes != uint64(b.N)*chunk {
		b.Fatal(fmt.Errorf("received %+v, sent with %w", out, err))
	}
	b.ReportMetric(float64(out.Bytes)/float64(out.Calls), "B/read")
}

func TestSendKeepsItsRate(t *testing.T) {
	for _, c := range []struct {
		name   string
		o      Options
		stop   time.Duration // the peer stops reading for so long after a second
		lo, hi uint64        // bytes in 10 s
	}{
		{"1 Mbit/s in 10 s", Options{Rate: 1e6}, 0, 1_248_000, 1_252_000},
		{"less than a packet each 10 ms", Options{Rate: 8000}, 0, 8_500, 11_600},
		{"100 Mbit/s", Options{Rate: 1e8}, 0, 124_800_000, 125_200_000},
		{"what was held up is not made up for", Options{Rate: 1e6}, 5 * time.Second, 610_000, 645_000},
		{"writes of 100 bytes", Options{Rate: 1e6, Size: 100}, 0, 1_248_000, 1_252_000},
	} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer ours.Close()
			begin := time.Now()
			var reader sync.WaitGroup
			defer reader.Wait()
			most := 0
			reader.Go(func() {
				buf := make([]byte, chunk)
				for stopped := false; ; {
					k, err := theirs.Read(buf)
					if most = max(most, k); err != nil {
						return
					}
					if c.stop > 0 && !stopped && time.Since(begin) >= time.Second {
						stopped = true
						time.Sleep(c.stop)
					}
				}
			})
			var n Counter
			c.o.Until = begin.Add(10 * time.Second)
			got, err := Send(t.Context(), bubble{}, ours, &n, c.o)
			if err != nil || got.End != TimeUp || time.Since(begin) != 10*time.Second || got.Bytes < c.lo || got.Bytes > c.hi {
				t.Errorf("%s: got %+v, %v after %v; want %d to %d bytes in 10 s", c.name, got, err, time.Since(begin), c.lo, c.hi)
			}
			ours.Close()
			reader.Wait()
			if most > c.o.size() {
				t.Errorf("%s: wrote %d bytes at once, want at most %d", c.name, most, c.o.size())
			}
		})
	}
}

func TestAPacedSenderIsStoppedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer ours.Close()
		go io.Copy(io.Discard, theirs)
		ctx, cancel := context.WithCancelCause(t.Context())
		interrupted := errors.New("interrupted")
		time.AfterFunc(time.Second+1, func() { cancel(interrupted) })
		begin := time.Now()
		var n Counter
		got, err := Send(ctx, bubble{}, ours, &n, Options{Rate: 1000}) // a packet each 11.6 s
		if !errors.Is(err, interrupted) || got.End != Stopped || time.Since(begin) != time.Second+1 {
			t.Errorf("got %+v, %v after %v; want an interrupt after a second", got, err, time.Since(begin))
		}
	})
}
