package netperf

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load"
)

// dribble is a link on which a flow lasts.
func dribble() *memnet.Net {
	return &memnet.Net{Delay: 20 * time.Millisecond, BytesPerS: 250_000, Buffer: 100_000}
}

// near reports whether got is within a share of want.
func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

// rate is the goodput of a result in bytes per second.
func rate(r load.Result) float64 { return float64(r.Bytes) / r.Duration().Seconds() }

func TestFlowsAgainstReplayedServersReportGoodputAndTheServersFigures(t *testing.T) {
	for _, c := range []struct {
		name        string
		captured    string
		skip        int
		passphrase  string
		direction   load.Direction
		counted     load.Counter
		retransmits uint64
		congestion  string
	}{
		{"2.7.1 upload", "omni-tcp-stream.s2c", 0, "", load.Upload, load.CountedByServer, 0, "cubic"},
		{"2.7.1 download", "omni-tcp-maerts.s2c", 0, "", load.Download, load.CountedByReads, 8, "bbr"},
		{"2.6.0 download", "v260-both-tcp-maerts.s2c", 1, "", load.Download, load.CountedByReads, 9, "bbr"},
		{"2.7.1 upload with a passphrase", "passphrase-good.s2c", 0, "opensesame", load.Upload, load.CountedByServer, 0, "cubic"},
		{"2.7.1 upload with a passphrase not needed", "passphrase-not-needed.s2c", 0, "", load.Upload, load.CountedByServer, 0, "cubic"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := dribble()
				at := play(t, h, netserver(t, c.captured, c.passphrase, c.skip))
				client := &Client{Host: h, Addr: at, Passphrase: c.passphrase}
				info, err := client.Check(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				f := client.NewFlow(FlowOptions{Direction: c.direction, Length: 5 * time.Second, Server: info})
				if err := f.Open(t.Context()); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				got, err := f.Run(t.Context())
				if err != nil || got.Warning != "" {
					t.Fatalf("got %+v, %v", got, err)
				}
				if got.CountedBy != c.counted || !got.HasServerBytes || !got.HasRetransmits || got.Retransmits != c.retransmits ||
					got.CongestionControl != c.congestion || got.HasRemoteDS {
					t.Errorf("got %+v", got)
				}
				if got.Stopped.Sub(begin) != 5*time.Second {
					t.Errorf("stopped after %v", got.Stopped.Sub(begin))
				}
				if !near(rate(got), float64(h.BytesPerS), 0.02) {
					t.Errorf("%.0f B/s over %v, want the link's %d", rate(got), got.Duration(), h.BytesPerS)
				}
				if n, ok := f.Delivered(); !ok || n != got.Bytes {
					t.Errorf("%d delivered in the end, result %d", n, got.Bytes)
				}
			})
		})
	}
}

func TestAnUploadsTimeIncludesTheQueueAndItsBytesDoNotExceedWhatTheServerHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// 6 s of queue, and an answer that takes as long: report of tests that never complete on saturated slow uplinks.
		h := &memnet.Net{Delay: 50 * time.Millisecond, BytesPerS: 50_000, Buffer: 300_000}
		at := play(t, h, netserver(t, "omni-tcp-stream.s2c", "", 0))
		f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 10 * time.Second})
		begin := time.Now()
		got, err := f.Run(t.Context())
		if err != nil || got.Warning != "" || got.CountedBy != load.CountedByServer {
			t.Fatalf("got %+v, %v", got, err)
		}
		if !near(rate(got), 50_000, 0.01) {
			t.Errorf("%.0f B/s, want 50000", rate(got))
		}
		if d := got.Last.Sub(begin); d < 15*time.Second || d > 17*time.Second {
			t.Errorf("the last byte arrived after %v, want after the queue of 6 s", d)
		}
	})
}

func TestARoundTripOfFiveSecondsIsNoError(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		synctest.Test(t, func(t *testing.T) {
			h := &memnet.Net{Delay: 2500 * time.Millisecond, BytesPerS: 100_000, Buffer: 2_000_000}
			at := play(t, h, netserver(t, "omni-tcp-stream.s2c", "", 0))
			client := &Client{Host: h, Addr: at}
			info, err := client.Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			f := client.NewFlow(FlowOptions{Direction: direction, Length: 30 * time.Second, Server: info})
			got, err := f.Run(t.Context())
			if err != nil || got.Warning != "" || !near(rate(got), 100_000, 0.02) {
				t.Errorf("%v: got %+v, %v, %.0f B/s", direction, got, err, rate(got))
			}
		})
	}
}

func TestDeliveredGrowsWhileAFlowRunsAndNeverFalls(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		synctest.Test(t, func(t *testing.T) {
			h := dribble()
			at := play(t, h, netserver(t, "omni-tcp-stream.s2c", "", 0))
			f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: direction, Length: 5 * time.Second})
			if n, ok := f.Delivered(); ok || n != 0 {
				t.Errorf("%v: %d, %v before the flow is open", direction, n, ok)
			}
			var sampler sync.WaitGroup
			sampler.Go(func() {
				time.Sleep(time.Second)
				last, _ := f.Delivered()
				for range 38 {
					time.Sleep(100 * time.Millisecond)
					n, ok := f.Delivered()
					if d := float64(n - last); !ok || !near(d, 25_000, 0.7) {
						t.Errorf("%v: %.0f bytes in 100 ms, %v, want about 25000", direction, d, ok)
					}
					last = n
				}
			})
			if _, err := f.Run(t.Context()); err != nil {
				t.Error(err)
			}
			sampler.Wait()
		})
	}
}

// until plays a server that lets a flow run for a while and then calls end. The server takes or supplies data as asked.
func until(t *testing.T, d time.Duration, end func(ctl, data net.Conn)) script {
	response := capture(t, "omni-tcp-stream.s2c")[0]
	return func(ctl net.Conn, listen func() (net.Listener, uint16)) {
		b, err := request(ctl)
		if err != nil {
			return
		}
		l, port := listen()
		_, _ = ctl.Write(withPort(response, port))
		data, err := l.Accept()
		if err != nil {
			return
		}
		_ = l.Close()
		var moving sync.WaitGroup
		moving.Go(func() {
			if r, _ := wire.ParseRequest(b); r.Direction == wire.ServerReceives {
				_, _ = io.Copy(io.Discard, data)
				return
			}
			for err == nil {
				_, err = data.Write(make([]byte, 4096))
			}
		})
		time.Sleep(d)
		end(ctl, data)
		moving.Wait()
	}
}

func TestAServerThatDiesInMidTestLeavesAPartialResultAndAnError(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		for name, kill := range map[string]func(ctl, data net.Conn){
			"all its sockets closed": func(ctl, data net.Conn) { _ = ctl.Close(); _ = data.Close() },
			"the data reset": func(ctl, data net.Conn) {
				_ = data.(interface{ SetLinger(int) error }).SetLinger(0)
				_, _ = data.Close(), ctl.Close()
			},
			"only the control connection closed": func(ctl, data net.Conn) {
				_ = ctl.Close()
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				h := dribble()
				at := play(t, h, until(t, 3*time.Second, kill))
				f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: direction, Length: 10 * time.Second})
				begin := time.Now()
				got, err := f.Run(t.Context())
				if !errors.Is(err, ErrServerGone) {
					t.Errorf("%v, %s: got %v", direction, name, err)
				}
				if !near(float64(got.Bytes), 750_000, 0.1) || !near(rate(got), 250_000, 0.1) {
					t.Errorf("%v, %s: got %+v, want about 3 s of data", direction, name, got)
				}
				if d := time.Since(begin); d > 5*time.Second {
					t.Errorf("%v, %s: took %v, want at most 2 s from the death", direction, name, d)
				}
			})
		}
	}
}

func TestAnInterruptEndsAFlowWithinASecondWithWhatItHad(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		for _, at := range []time.Duration{0, 10 * time.Millisecond, 70 * time.Millisecond, 3 * time.Second, 5100 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				h := dribble()
				closed := make(chan time.Time, 1)
				server := play(t, h, func(ctl net.Conn, listen func() (net.Listener, uint16)) {
					_, _ = io.Copy(io.Discard, io.TeeReader(ctl, writerFunc(func(b []byte) {
						l, port := listen()
						_, _ = ctl.Write(withPort(capture(t, "omni-tcp-stream.s2c")[0], port))
						go func() {
							if data, err := l.Accept(); err == nil {
								go func() { _, _ = io.Copy(io.Discard, data) }()
								for err == nil {
									_, err = data.Write(make([]byte, 4096))
								}
							}
						}()
					})))
					closed <- time.Now()
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				interrupted := errors.New("interrupted")
				begin := time.Now()
				time.AfterFunc(at, func() { cancel(interrupted) })
				f := (&Client{Host: h, Addr: server}).NewFlow(FlowOptions{Direction: direction, Length: 5 * time.Second})
				got, err := f.Run(ctx)
				if direction == load.Download && at > 5*time.Second {
					interrupted = nil // the flow was over, and only its results were still awaited
				}
				if d := time.Since(begin); !errors.Is(err, interrupted) || d > at+time.Second {
					t.Errorf("%v at %v: got %v after %v", direction, at, err, d)
				}
				if at >= 3*time.Second {
					if want := 250_000 * min(at, 5*time.Second).Seconds(); !near(float64(got.Bytes), want, 0.15) {
						t.Errorf("%v at %v: %d bytes, want about %.0f", direction, at, got.Bytes, want)
					}
					if gone := (<-closed).Sub(begin); gone > at+time.Second {
						t.Errorf("%v at %v: the server's control connection ended after %v", direction, at, gone)
					}
				}
			})
		}
	}
}

// writerFunc is called for every write.
type writerFunc func(b []byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

func TestAResetAfterTheResultsIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := dribble()
		records := capture(t, "omni-tcp-stream.s2c")
		at := play(t, h, func(ctl net.Conn, listen func() (net.Listener, uint16)) {
			_, _ = request(ctl)
			l, port := listen()
			_, _ = ctl.Write(withPort(records[0], port))
			data, _ := l.Accept()
			n, _ := io.Copy(io.Discard, data)
			_, _ = ctl.Write(withReceived(records[1], uint64(n)))
			time.Sleep(time.Second) // the results are through
			_ = data.(interface{ SetLinger(int) error }).SetLinger(0)
			_ = ctl.(interface{ SetLinger(int) error }).SetLinger(0)
			_, _ = data.Close(), ctl.Close()
		})
		got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 5 * time.Second}).Run(t.Context())
		if err != nil || got.CountedBy != load.CountedByServer || got.Warning != "" || !near(rate(got), 250_000, 0.05) {
			t.Errorf("got %+v, %v, %.0f B/s", got, err, rate(got))
		}
	})
}

func TestWhatDoesNotArriveInTimeIsNoFaultOfTheServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := dribble()
		records := capture(t, "omni-tcp-stream.s2c")
		at := play(t, h, func(ctl net.Conn, listen func() (net.Listener, uint16)) {
			_, _ = request(ctl)
			l, port := listen()
			_, _ = ctl.Write(withPort(records[0], port))
			data, _ := l.Accept()
			n, _ := io.CopyN(io.Discard, data, 500_000)
			time.Sleep(8 * time.Second) // the path stands still, beyond the end and the time to drain
			_, _ = ctl.Write(withReceived(records[1], uint64(n)))
			_, _ = data.Close(), ctl.Close()
		})
		got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 5 * time.Second}).Run(t.Context())
		if err != nil || got.Bytes != 600_000 || got.CountedBy != load.CountedByAcks || got.ServerBytes != 500_000 ||
			!near(rate(got), 250_000, 0.02) || !strings.Contains(got.Warning, "had not arrived") {
			t.Errorf("got %+v, %v; want the 600000 bytes that were acknowledged, and that the end had not arrived", got, err)
		}
		if !strings.Contains(got.Warning, "nothing was acknowledged in the last 2.") {
			t.Errorf("got the warning %q, want that the flow stood still", got.Warning)
		}
	})
}

func TestAServerThatNeverClosesDoesNotHoldUpTheClientNorItsFigure(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		synctest.Test(t, func(t *testing.T) {
			h := dribble()
			at := play(t, h, until(t, time.Hour, func(ctl, data net.Conn) { _, _ = ctl.Close(), data.Close() }))
			begin := time.Now()
			f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: direction, Length: 5 * time.Second})
			got, err := f.Run(t.Context())
			if err != nil || !near(rate(got), 250_000, 0.05) {
				t.Errorf("%v: got %+v, %v, %.0f B/s", direction, got, err, rate(got))
			}
			if d := time.Since(begin); d > 20*time.Second {
				t.Errorf("%v: took %v", direction, d)
			}
			if direction == load.Upload && (got.CountedBy != load.CountedByAcks || !strings.Contains(got.Warning, "sent no result")) {
				t.Errorf("%v: got %+v", direction, got)
			}
		})
	}
}

func TestResultsThatCannotBeTrueAreNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := dribble()
		records := capture(t, "omni-tcp-stream.s2c")
		at := play(t, h, until(t, 6*time.Second, func(ctl, data net.Conn) {
			_ = data.Close()
			_, _ = ctl.Write(withReceived(records[1], 1<<40))
		}))
		got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 5 * time.Second}).Run(t.Context())
		if err != nil || got.CountedBy != load.CountedByAcks || !strings.Contains(got.Warning, "not used") || got.HasServerBytes {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestAnErrorInPlaceOfTheResultsIsAnError(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		synctest.Test(t, func(t *testing.T) {
			h := dribble()
			at := play(t, h, until(t, time.Second, func(ctl, data net.Conn) {
				_, _ = ctl.Write(wire.TypeOmniResponse.AppendTo(nil, 105))
				time.Sleep(time.Second)
				_ = data.Close()
			}))
			got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: direction, Length: 5 * time.Second}).Run(t.Context())
			var refused *RefusedError
			if !errors.As(err, &refused) || refused.Number != 105 || got.Bytes == 0 {
				t.Errorf("%v: got %+v, %v", direction, got, err)
			}
		})
	}
}

func TestADataConnectionThatEndsEarlyIsAnErrorWhereMuchIsMissing(t *testing.T) {
	records := capture(t, "omni-tcp-stream.s2c")
	for _, c := range []struct {
		ends, length time.Duration
		whole        bool
	}{
		{2 * time.Second, 5 * time.Second, false},
		{3500 * time.Millisecond, 5 * time.Second, false},
		{4500 * time.Millisecond, 5 * time.Second, true},
		{37 * time.Second, 40 * time.Second, false},
		{38500 * time.Millisecond, 40 * time.Second, true}, // a twentieth of it is 2 s
	} {
		for _, direction := range []load.Direction{load.Download, load.Upload} {
			synctest.Test(t, func(t *testing.T) {
				h := dribble()
				at := play(t, h, until(t, c.ends, func(ctl, data net.Conn) {
					_ = data.Close()
					_, _ = ctl.Write(withReceived(records[1], 400_000))
					time.Sleep(time.Second)
				}))
				got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: direction, Length: c.length}).Run(t.Context())
				if c.whole && (err != nil || !strings.Contains(got.Warning, "the data connection ended ")) {
					t.Errorf("%v, %v of %v: got %+v, %v, want a warning", direction, c.ends, c.length, got, err)
				}
				if !c.whole && (!errors.Is(err, ErrCutShort) || !strings.Contains(err.Error(), "s before its time")) {
					t.Errorf("%v, %v of %v: got %+v, %v, want ErrCutShort", direction, c.ends, c.length, got, err)
				}
				if !near(rate(got), 250_000, 0.05) || got.Stopped.Sub(got.Connected) > c.ends+time.Second {
					t.Errorf("%v, %v of %v: %.0f B/s, stopped after %v", direction, c.ends, c.length, rate(got), got.Stopped.Sub(got.Connected))
				}
			})
		}
	}
}

// told is a network whose stack tells something else of a connection than memnet does.
type told struct {
	*memnet.Net
	change func(*host.TCPInfo)
}

func (n told) TCPInfo(c net.Conn) (host.TCPInfo, error) {
	info, err := n.Net.TCPInfo(c)
	n.change(&info)
	return info, err
}

// endless plays a server that takes an upload to its end, does not end its own side, and says what it received a while later.
func endless(t *testing.T, later time.Duration) script {
	records := capture(t, "omni-tcp-stream.s2c")
	return func(ctl net.Conn, listen func() (net.Listener, uint16)) {
		_, _ = request(ctl)
		l, port := listen()
		_, _ = ctl.Write(withPort(records[0], port))
		data, _ := l.Accept()
		n, _ := io.Copy(io.Discard, data)
		time.Sleep(later)
		_, _ = ctl.Write(withReceived(records[1], uint64(n)))
	}
}

func TestBytesAndTimeOfAnUploadWhoseEndDidNotArriveAreOfOneInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The way back dies for the data connection: all arrives at the server, and this end knows of 800000 bytes.
		h := told{dribble(), func(i *host.TCPInfo) { i.BytesAcked = min(i.BytesAcked, 800_000) }}
		at := play(t, h, endless(t, 0))
		got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 5 * time.Second}).Run(t.Context())
		if err != nil || got.Bytes != 800_000 || got.CountedBy != load.CountedByAcks || !got.HasServerBytes || got.ServerBytes < 1_200_000 {
			t.Errorf("got %+v, %v, want what was acknowledged, and the server's count beside it", got, err)
		}
		if r := rate(got); r > 250_000*1.02 || r < 250_000*0.95 {
			t.Errorf("%.0f B/s, want the link's 250000", r)
		}
	})
}

func TestWithoutAcknowledgementsTheTimeOfTheServersCountIsThatOfItsArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := dribble()
		h.NoTCPInfo = true
		at := play(t, h, endless(t, time.Second))
		f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 5 * time.Second})
		got, err := f.Run(t.Context())
		if err != nil || got.CountedBy != load.CountedByServer || got.Bytes != got.ServerBytes || got.Bytes == 0 {
			t.Errorf("got %+v, %v", got, err)
		}
		if d := got.Last.Sub(got.Stopped); d < time.Second || d > 2*time.Second {
			t.Errorf("the last byte is said to have arrived %v after the end, want when the results came, a second and some after it", d)
		}
	})
}

func TestAQueueThatDrainsSlowlyIsWaitedForAsLongAsItDrains(t *testing.T) {
	for _, c := range []struct {
		queue   int // bytes, of which 50000 a second leave
		drained bool
	}{{300_000, true}, {2_000_000, false}} {
		synctest.Test(t, func(t *testing.T) {
			// The queue is in this host, so that the RTT does not tell of it.
			h := told{&memnet.Net{Delay: 50 * time.Millisecond, BytesPerS: 50_000, Buffer: c.queue}, func(i *host.TCPInfo) { i.RTT = i.MinRTT }}
			at := play(t, h, netserver(t, "omni-tcp-stream.s2c", "", 0))
			f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 10 * time.Second})
			got, err := f.Run(t.Context())
			if err != nil || (got.CountedBy == load.CountedByServer) != c.drained || (got.Warning == "") != c.drained {
				t.Errorf("a queue of %d: got %+v, %v", c.queue, got, err)
			}
			if d := got.Last.Sub(got.Stopped); !near(rate(got), 50_000, 0.02) || d > maxGrace+time.Second {
				t.Errorf("a queue of %d: %.0f B/s, drained for %v", c.queue, rate(got), d)
			}
		})
	}
}

func TestAFlowInWhichNothingArrivesIsNoMeasurement(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		synctest.Test(t, func(t *testing.T) {
			h := dribble()
			records := capture(t, "omni-tcp-stream.s2c")
			at := play(t, h, func(ctl net.Conn, listen func() (net.Listener, uint16)) {
				_, _ = request(ctl)
				l, port := listen()
				_, _ = ctl.Write(withPort(records[0], port))
				data, _ := l.Accept()
				time.Sleep(6 * time.Second)
				_ = data.Close()
				_, _ = ctl.Write(withReceived(records[1], 0))
				_ = ctl.Close()
			})
			got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: direction, Length: 5 * time.Second}).Run(t.Context())
			if !errors.Is(err, ErrNoData) || got.Bytes != 0 {
				t.Errorf("%v: got %+v, %v", direction, got, err)
			}
		})
	}
}

func TestAnUploadThatAFullQueueShutsOutSaysHowLongItsTCPWaits(t *testing.T) {
	const want = "TCP sent again 5 times in a row without an answer, and waits 7.808s to do so once more"
	for _, c := range []struct {
		name  string
		acked uint64 // at most
		holds func(load.Result, error) bool
	}{
		{"from the start", 0, func(_ load.Result, err error) bool {
			return errors.Is(err, ErrNoData) && strings.Contains(err.Error(), want)
		}},
		{"later", 500_000, func(r load.Result, err error) bool { return err == nil && strings.Contains(r.Warning, want) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := told{dribble(), func(i *host.TCPInfo) {
				i.BytesAcked, i.Backoff, i.NextRetry = min(i.BytesAcked, c.acked), 5, 7808*time.Millisecond
			}}
			records := capture(t, "omni-tcp-stream.s2c")
			at := play(t, h, func(ctl net.Conn, listen func() (net.Listener, uint16)) {
				_, _ = request(ctl)
				l, port := listen()
				_, _ = ctl.Write(withPort(records[0], port))
				data, _ := l.Accept()
				_, _ = io.CopyN(io.Discard, data, int64(c.acked))
				time.Sleep(30 * time.Second)
				_, _ = ctl.Write(withReceived(records[1], c.acked))
				_, _ = data.Close(), ctl.Close()
			})
			got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 5 * time.Second}).Run(t.Context())
			if !c.holds(got, err) {
				t.Errorf("%s: got %+v, %v; want %q", c.name, got, err, want)
			}
		})
	}
}

func TestADownloadThatDriesUpSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := capture(t, "omni-tcp-maerts.s2c")
		h := dribble()
		at := play(t, h, func(ctl net.Conn, listen func() (net.Listener, uint16)) {
			_, _ = request(ctl)
			l, port := listen()
			_, _ = ctl.Write(withPort(records[0], port))
			data, _ := l.Accept()
			_, _ = data.Write(make([]byte, 500_000)) // two seconds of it
			_, _ = io.Copy(io.Discard, data)
			_, _ = ctl.Write(records[1])
		})
		got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Download, Length: 10 * time.Second}).Run(t.Context())
		if err != nil || got.Bytes != 500_000 || !strings.Contains(got.Warning, "nothing arrived in the last 7.") {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestATransferTooShortForARateSaysSoAndIsNeverNegative(t *testing.T) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		for _, length := range []time.Duration{150 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				h := &memnet.Net{Delay: 30 * time.Millisecond, BytesPerS: 60_000_000, Buffer: 1_000_000}
				at := play(t, h, netserver(t, "omni-tcp-stream.s2c", "", 0))
				got, err := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: direction, Length: length}).Run(t.Context())
				if err != nil || !strings.Contains(got.Warning, "too short for a rate") {
					t.Errorf("%v of %v: got %+v, %v", direction, length, got, err)
				}
				if got.Last.Before(got.First) || got.Duration() < 0 || got.Connected.After(got.First) {
					t.Errorf("%v of %v: times out of order: %+v", direction, length, got)
				}
			})
		}
	}
}

func TestAStackWithoutTCPInfoStillHasTheServersFigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := dribble()
		h.NoTCPInfo = true
		at := play(t, h, netserver(t, "omni-tcp-stream.s2c", "", 0))
		f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: 5 * time.Second})
		got, err := f.Run(t.Context())
		if err != nil || got.CountedBy != load.CountedByServer || got.HasRetransmits || got.CongestionControl != "" || got.Warning != "" {
			t.Errorf("got %+v, %v", got, err)
		}
		if !near(rate(got), 250_000, 0.02) {
			t.Errorf("%.0f B/s", rate(got))
		}
		if n, ok := f.Delivered(); ok {
			t.Errorf("%d delivered, which this stack cannot know", n)
		}
	})
}

func TestTheServersCPUIsReportedOnlyWhereItMeasuresIt(t *testing.T) {
	for _, c := range []struct {
		captured string
		want     bool
	}{{"omni-tcp-stream-cpu.s2c", true}, {"omni-tcp-stream.s2c", false}} {
		synctest.Test(t, func(t *testing.T) {
			h := dribble()
			at := play(t, h, netserver(t, c.captured, "", 0))
			f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Upload, Length: time.Second, ServerCPU: true})
			got, err := f.Run(t.Context())
			if err != nil || got.HasServerCPU != c.want || c.want && !near(got.ServerCPU, 0.7815, 0.001) {
				t.Errorf("%s: got %+v, %v", c.captured, got, err)
			}
		})
	}
}

func TestTheServersMarkIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := dribble()
		at := play(t, h, netserver(t, "flent-download.s2c", "", 0))
		f := (&Client{Host: h, Addr: at}).NewFlow(FlowOptions{Direction: load.Download, Length: time.Second, ServerDSCP: 8})
		if got, err := f.Run(t.Context()); err != nil || !got.HasRemoteDS || got.RemoteDS != 0x20 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestAControlConnectionThatTheServerDropsWithErrorIsTold(t *testing.T) {
	if err := gone(syscall.ECONNRESET, io.EOF); !errors.Is(err, ErrServerGone) || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
	if err := gone(errControl, io.EOF); !errors.Is(err, ErrServerGone) || !errors.Is(err, io.EOF) || errors.Is(err, errControl) {
		t.Errorf("got %v", err)
	}
}

func TestAnImpossibleCountOfDatagramsIsNotUsed(t *testing.T) {
	for _, c := range []struct {
		out  DatagramResult
		want bool
	}{
		{DatagramResult{Size: 1000, Sent: 10, Received: 10, Bytes: 10_000, HasReceived: true}, true},
		{DatagramResult{Size: 1000, Sent: 10, Received: 11, Bytes: 11_000, HasReceived: true}, false},
		{DatagramResult{Size: 1000, Sent: 10, Received: 10, Bytes: 1 << 63, HasReceived: true}, false},
	} {
		out := c.out
		err := (&Client{}).judge(t.Context(), &out)
		if (err == nil) != c.want || out.HasReceived != c.want || !c.want && out.Bytes != 0 {
			t.Errorf("%+v: %+v, %v", c.out, out, err)
		}
	}
}
