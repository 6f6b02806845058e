package iperf3

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	wire "bufferbloat/internal/wire/iperf3"
)

func TestTheNextClientIsServedWithinASecondWhateverOthersDo(t *testing.T) {
	message := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	}
	for _, tt := range []struct {
		name string
		n    int
		do   func(t *testing.T, h *memnet.Net) net.Conn
	}{
		{"silent ones", 400, func(t *testing.T, h *memnet.Net) net.Conn { return dial(t, h, at).conn }},
		{"half a cookie", 300, func(t *testing.T, h *memnet.Net) net.Conn {
			p := dial(t, h, at)
			p.write(p.cookie[:20])
			return p.conn
		}},
		{"a cookie and no more", 300, func(t *testing.T, h *memnet.Net) net.Conn { return begin(t, h, at).conn }},
		{"an HTTP request", 50, func(t *testing.T, h *memnet.Net) net.Conn {
			p := dial(t, h, at)
			p.write([]byte("GET / HTTP/1.1\r\nHost: example.net\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n"))
			return p.conn
		}},
		{"a TLS hello", 50, func(t *testing.T, h *memnet.Net) net.Conn {
			p := dial(t, h, at)
			p.write(append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, bytes.Repeat([]byte{7}, 500)...))
			return p.conn
		}},
		{"a length of 4 GB", 50, func(t *testing.T, h *memnet.Net) net.Conn {
			p := begin(t, h, at)
			p.write([]byte{0x7f, 0xff, 0xff, 0xff, '{'})
			if code := p.refused(time.Second); code != wire.BadParams {
				t.Errorf("refused with %v", code)
			}
			return p.conn
		}},
		{"deep nesting", 50, func(t *testing.T, h *memnet.Net) net.Conn {
			p := begin(t, h, at)
			p.write(message(`{"a":` + strings.Repeat("[", 8000) + strings.Repeat("]", 8000/50)))
			if code := p.refused(time.Second); code != wire.BadParams {
				t.Errorf("refused with %v", code)
			}
			return p.conn
		}},
		{"one byte each 20 ms", 80, func(t *testing.T, h *memnet.Net) net.Conn {
			p := begin(t, h, at)
			go func() {
				for _, b := range append([]byte{0, 0, 0x1f, 0xff}, bytes.Repeat([]byte{' '}, 0x1fff)...) {
					if _, err := p.conn.Write([]byte{b}); err != nil {
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
			}()
			return p.conn
		}},
		{"absurd numbers", 100, func(t *testing.T, h *memnet.Net) net.Conn {
			p := begin(t, h, at)
			p.write(message(`{"tcp":1e308,"parallel":-9223372036854775808,"time":1e99,"num":18446744073709551615,"len":"x","omit":-1,"TOS":99999}`))
			if code := p.refused(time.Second); code != wire.BadParams && code != wire.BadStreams {
				t.Errorf("refused with %v", code)
			}
			return p.conn
		}},
		{"clients that die in the middle of a test", 200, func(t *testing.T, h *memnet.Net) net.Conn {
			p := begin(t, h, at)
			data := p.open(wire.Params{Parallel: 1, Time: time.Hour, Reverse: true}, at)
			_ = data[0].Close()
			_ = p.conn.Close()
			return p.conn
		}},
		{"tests whose streams do not come", 30, func(t *testing.T, h *memnet.Net) net.Conn {
			p := begin(t, h, at)
			p.write(wire.Params{Parallel: 3, Time: time.Second}.AppendTo(nil))
			p.expect(time.Second, wire.CreateStreams)
			return p.conn
		}},
		{"tests that end before they begin", 30, func(t *testing.T, h *memnet.Net) net.Conn {
			p := begin(t, h, at)
			p.write(append(wire.Params{Parallel: 3, Time: time.Second}.AppendTo(nil), wire.TestEnd.Byte()))
			return p.conn
		}},
	} {
		for _, descriptors := range []int{0, 64} {
			t.Run(fmt.Sprintf("%s, %d descriptors", tt.name, descriptors), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					lines, began := 0, time.Now()
					withDescriptors(t, descriptors, Options{Log: func(string) { lines++ }}, func(h *memnet.Net, v *service) {
						var open []net.Conn
						for range tt.n {
							open = append(open, tt.do(t, h))
						}
						real(t, h)
						v.mu.Lock()
						if len(v.half) > v.o.MaxIdle {
							t.Errorf("%d connections are open that have asked for nothing", len(v.half))
						}
						v.mu.Unlock()
						for _, c := range open {
							_ = c.Close()
						}
						time.Sleep(time.Second)
						real(t, h)
					})
					if most := 64 + 1 + int(time.Since(began)/(100*time.Millisecond)); lines > most {
						t.Errorf("%d lines of log in %v, want at most %d", lines, time.Since(began), most)
					}
				})
			})
		}
	}
}

func TestOneByteAtATimeIsNotWaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inMemory(t, Options{}, func(h *memnet.Net, v *service) {
			p := begin(t, h, at)
			began := h.Now()
			b := append([]byte{0, 0, 0x1f, 0xff}, bytes.Repeat([]byte{' '}, 0x1fff)...)
			for i := range b {
				time.Sleep(20 * time.Millisecond)
				if _, err := p.conn.Write(b[i : i+1]); err != nil {
					break
				}
			}
			if d := h.Now().Sub(began); d > paramsTimeout+time.Second {
				t.Errorf("the server took part in this for %v", d)
			}
			real(t, h)
		})
	})
}

func TestWhoSaysNothingIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inMemory(t, Options{}, func(h *memnet.Net, v *service) {
			if p := dial(t, h, at); !p.closed(cookieTimeout + time.Second) {
				t.Error("a silent connection is kept")
			}
			if p := begin(t, h, at); !p.closed(paramsTimeout + time.Second) {
				t.Error("a connection without parameters is kept")
			}
			p := begin(t, h, at)
			p.open(wire.Params{Parallel: 1, Time: time.Hour}, at)
			if code := p.refused(idleTimeout + 2*time.Second); code != wire.NoData {
				t.Errorf("an upload without data ends with %v", code)
			}
			p = begin(t, h, at)
			p.write(wire.Params{Parallel: 2, Time: time.Second}.AppendTo(nil))
			p.expect(time.Second, wire.CreateStreams)
			if code := p.refused(streamsTimeout + 2*time.Second); code != wire.StreamNotTaken {
				t.Errorf("a test without streams ends with %v", code)
			}
		})
	})
}

func TestATestThatItsClientDoesNotEndIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inMemory(t, Options{}, func(h *memnet.Net, v *service) {
			p := begin(t, h, at)
			data := p.open(wire.Params{Parallel: 1, Time: 2 * time.Second}, at)
			var feeder sync.WaitGroup
			feeder.Go(func() {
				for {
					if _, err := data[0].Write(make([]byte, 100)); err != nil {
						return
					}
					time.Sleep(time.Second)
				}
			})
			if code := p.refused(2*time.Second + lengthGrace + 2*time.Second); code != wire.PastItsTime {
				t.Errorf("it ends with %v", code)
			}
			_ = data[0].Close()
			feeder.Wait()
		})
	})
}

func TestATestWithoutAnEndOfItsOwnHasTheTimeOfTheLongest(t *testing.T) {
	for _, p := range []wire.Params{{Parallel: 1}, {Parallel: 1, Reverse: true}, {Parallel: 1, Bytes: 1 << 40}, {Parallel: 1, Omit: 10 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			var said []string
			inMemory(t, Options{MaxLength: time.Minute, Log: func(line string) { said = append(said, line) }}, func(h *memnet.Net, v *service) {
				c := begin(t, h, at)
				began := h.Now()
				data := c.open(p, at)
				go func() {
					for err := error(nil); err == nil; time.Sleep(time.Second) {
						if _, err = data[0].Write([]byte{1}); p.Reverse {
							_ = data[0].SetReadDeadline(h.Now().Add(time.Millisecond))
							_, _ = data[0].Read(make([]byte, 100_000))
						}
					}
				}()
				code := c.refused(2 * time.Minute)
				if d := h.Now().Sub(began); code != wire.DurationLimit || d < time.Minute || d > time.Minute+time.Second {
					t.Errorf("%+v: it ended with %v after %v", p, code, d)
				}
				_ = data[0].Close()
				time.Sleep(2 * time.Second)
			})
			if all := strings.Join(said, "\n"); !strings.Contains(all, "no end of its own, and 1m0s is the longest") {
				t.Errorf("the log says %q", all)
			}
		})
	}
}

// patient is a host that can wait precisely.
type patient struct{ *memnet.Net }

func (p patient) SleepPrecisely(ctx context.Context, t time.Time) error { return p.SleepUntil(ctx, t) }

func TestOnlySoManyStreamsHoldAThreadWhileTheyWait(t *testing.T) {
	v, err := newService(Options{}, patient{&memnet.Net{}})
	if err != nil {
		t.Fatal(err)
	}
	var releases []func()
	for range 2 {
		for i := range 2 * mostPrecise {
			clock, release := v.senderClock()
			releases = append(releases, release)
			if _, precise := clock.(host.PreciseClock); precise != (i < mostPrecise) {
				t.Errorf("sender %d of %d waits precisely: %v", i, 2*mostPrecise, precise)
			}
		}
		for _, release := range releases {
			release()
		}
		releases = nil
	}
}

// A stock client whose streams are reset prints that, and not why.
func TestStreamsAreWholeUntilTheClientWasToldWhyItsTestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inMemory(t, Options{MaxLength: 5 * time.Second}, func(h *memnet.Net, v *service) {
			c := begin(t, h, at)
			data := c.open(wire.Params{Parallel: 1, Reverse: true, Rate: bitrate.Mbit}, at)
			_ = data[0].SetReadDeadline(h.Now().Add(time.Minute))
			if n, err := io.Copy(io.Discard, data[0]); err != nil || n < 500_000 {
				t.Errorf("after %d bytes the stream ends with %v", n, err)
			}
			if code := c.refused(time.Second); code != wire.DurationLimit {
				t.Errorf("the test ended with %v", code)
			}
			_ = c.conn.Close()
			_ = data[0].Close()
		})
	})
}

func TestCapsAreKeptAndSaid(t *testing.T) {
	o := Options{MaxStreams: 4, MaxLength: time.Minute, MaxRate: 10 * bitrate.Mbit}
	rate := bitrate.Mbit
	for _, tt := range []struct {
		name string
		p    wire.Params
		code wire.ErrorCode
		log  string
	}{
		{"as much as is allowed", wire.Params{Parallel: 4, Time: time.Minute, Rate: rate}, 0, ""},
		{"too many streams", wire.Params{Parallel: 5, Rate: rate}, wire.BadStreams, "1 to 4 are allowed"},
		{"no stream", wire.Params{Rate: rate}, wire.BadStreams, "1 to 4 are allowed"},
		{"too long", wire.Params{Parallel: 1, Time: 61 * time.Second, Rate: rate, ClientVersion: "3.21"}, wire.DurationLimit, "at most 1m0s"},
		{"too long, of an old client", wire.Params{Parallel: 1, Time: 61 * time.Second, Rate: rate, ClientVersion: "3.12"}, wire.BadDuration, "at most 1m0s"},
		{"too long with what it omits", wire.Params{Parallel: 1, Time: time.Minute, Omit: time.Second, Rate: rate}, wire.DurationLimit, "at most 1m0s"},
		{"a day", wire.Params{Parallel: 1, Time: 24 * time.Hour, Rate: rate}, wire.DurationLimit, "at most 1m0s"},
		{"too fast", wire.Params{Parallel: 1, Rate: 11 * rate}, wire.RateLimit, "at most 10Mbit"},
		{"too fast together", wire.Params{Parallel: 4, Rate: 3 * rate}, wire.RateLimit, "at most 10Mbit"},
		{"no rate", wire.Params{Parallel: 1}, wire.RateLimit, "at most 10Mbit"},
		{"absurdly fast", wire.Params{Parallel: 4, Rate: 1 << 61}, wire.RateLimit, "for each stream"},
		{"SCTP", wire.Params{Protocol: wire.SCTP, Parallel: 1, Rate: rate}, wire.BadParams, "SCTP"},
		{"a block of 2 MiB", wire.Params{Parallel: 1, Rate: rate, Size: 2 << 20}, wire.BadBlockSize, "at most 1048576"},
		{"a datagram of 8 bytes", wire.Params{Protocol: wire.UDP, Parallel: 1, Rate: rate, Size: 8}, wire.BadUDPBlockSize, "16 to 65507"},
		{"a buffer of 1 GiB", wire.Params{Parallel: 1, Rate: rate, Window: 1 << 30}, wire.BadWindow, "at most 16777216"},
		{"a DS byte of 256", wire.Params{Parallel: 1, Rate: rate, TOS: 256}, wire.BadTOS, "DS byte 256"},
		{"a burst of 2000", wire.Params{Parallel: 1, Rate: rate, Burst: 2000}, wire.BadBurst, "at most 1000"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var said []string
			o.Log = func(line string) { said = append(said, line) }
			inMemory(t, o, func(h *memnet.Net, v *service) {
				p := begin(t, h, at)
				p.write(tt.p.AppendTo(nil))
				if tt.code == 0 {
					p.expect(time.Second, wire.CreateStreams)
				} else if code := p.refused(time.Second); code != tt.code || !p.closed(time.Second) {
					t.Errorf("%s: refused with %v, want %v and the end", tt.name, code, tt.code)
				}
				_ = p.conn.Close()
			})
			if all := strings.Join(said, "\n"); !strings.Contains(all, tt.log) {
				t.Errorf("%s: the log says %q, want %q in it", tt.name, all, tt.log)
			}
		})
	}
}

func TestTooManyTestsAreBusyAndDisturbNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inMemory(t, Options{MaxTests: 2}, func(h *memnet.Net, v *service) {
			var running []*peer
			for range 2 {
				p := begin(t, h, at)
				p.open(wire.Params{Parallel: 1, Time: time.Minute, Reverse: true}, at)
				running = append(running, p)
			}
			p := begin(t, h, at)
			p.write(wire.Params{Parallel: 1, Time: time.Second}.AppendTo(nil))
			p.expect(time.Second, wire.AccessDenied)
			for _, p := range running {
				if r := p.end(1); r.Streams[0].Bytes == 0 {
					t.Errorf("a test that ran meanwhile sent nothing")
				}
			}
			time.Sleep(2 * time.Second)
			real(t, h)
		})
	})
}

func TestAnHoursQuotaIsKept(t *testing.T) {
	for _, o := range []Options{{MaxTestsPerHour: 3}, {MaxBytesPerHour: 3000}} {
		synctest.Test(t, func(t *testing.T) {
			inMemory(t, o, func(h *memnet.Net, v *service) {
				for range 3 {
					real(t, h) // 1000 bytes each
					time.Sleep(2 * time.Second)
				}
				p := begin(t, h, at)
				p.write(wire.Params{Parallel: 1, Time: time.Second}.AppendTo(nil))
				p.expect(time.Second, wire.AccessDenied)
				_ = p.conn.Close()
				time.Sleep(time.Hour)
				real(t, h)
			})
		})
	}
}

func TestADataConnectionTooManyDisturbsNoTest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inMemory(t, Options{}, func(h *memnet.Net, v *service) {
			p := begin(t, h, at)
			p.write(wire.Params{Parallel: 2, Time: time.Second}.AppendTo(nil))
			p.expect(time.Second, wire.CreateStreams)
			other := begin(t, h, at) // another client's, which comes between
			first := dial(t, h, at)
			first.write(p.cookie[:])
			second := dial(t, h, at)
			second.write(p.cookie[:])
			p.expect(time.Second, wire.TestStart, wire.TestRunning)
			third := dial(t, h, at)
			third.write(p.cookie[:])
			third.expect(time.Second, wire.ParamExchange) // it is a control connection like any other
			p.end(2)
			for _, c := range []*peer{other, first, second, third} {
				_ = c.conn.Close()
			}
		})
	})
}

func TestAnInterruptedServerSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p *peer
		var data []net.Conn
		inMemory(t, Options{}, func(h *memnet.Net, v *service) {
			p = begin(t, h, at)
			data = p.open(wire.Params{Parallel: 1, Time: time.Minute}, at)
			_, _ = data[0].Write(make([]byte, 100))
			time.Sleep(time.Second)
			go func() { time.Sleep(time.Second); _ = p.conn.(interface{ CloseWrite() error }).CloseWrite() }()
		})
		p.expect(time.Second, wire.ServerTerminate)
		_ = data[0].Close()
		_ = p.conn.Close()
	})
}

func TestAClientThatGivesUpIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inMemory(t, Options{MaxTests: 1}, func(h *memnet.Net, v *service) {
			p := begin(t, h, at)
			data := p.open(wire.Params{Parallel: 1, Time: time.Minute, Reverse: true}, at)
			p.write([]byte{wire.ClientTerminate.Byte()})
			if code := p.refused(time.Second); code != wire.ClientEnded {
				t.Errorf("answered with %v", code)
			}
			_ = p.conn.Close()
			_ = data[0].Close()
			time.Sleep(time.Second)
			real(t, h)
		})
	})
}

// A log in which a test that was broken off has no bytes hides the traffic of all who kill their clients.
func TestTheLogSaysWhatATestMovedThatWasBrokenOff(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(p *peer)
		want string
	}{
		{"given up", func(p *peer) { p.write([]byte{wire.ClientTerminate.Byte()}); p.refused(time.Second) }, "the client gave up"},
		{"gone", func(p *peer) { _ = p.conn.Close() }, "the client is gone"},
		{"silent", func(p *peer) { time.Sleep(32 * time.Second); p.refused(time.Second) }, "no data came or went for too long (30s)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log []string
				inMemory(t, Options{Log: func(line string) { log = append(log, line) }}, func(h *memnet.Net, v *service) {
					p := begin(t, h, at)
					data := p.open(wire.Params{Parallel: 1, Time: time.Second}, at)
					_, _ = data[0].Write(make([]byte, 1000))
					time.Sleep(time.Second)
					tt.end(p)
					_ = p.conn.Close()
					_ = data[0].Close()
					time.Sleep(time.Second)
				})
				last := log[len(log)-1]
				if len(log) != 2 || !strings.Contains(last, "received 1000 bytes") || !strings.HasSuffix(last, "; "+tt.want) {
					t.Errorf("the log is %q, want bytes and %q once", log, tt.want)
				}
			})
		})
	}
}

func TestStreamsKeepTheirOrderWhateverCookieComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inMemory(t, Options{}, func(h *memnet.Net, v *service) {
			p := begin(t, h, at)
			p.write(wire.Params{Parallel: 1, Bidirectional: true, Time: time.Second}.AppendTo(nil))
			p.expect(time.Second, wire.CreateStreams)
			up := dial(t, h, at)
			down := dial(t, h, at)
			time.Sleep(time.Second)
			down.write(p.cookie[:])
			time.Sleep(time.Second)
			up.write(p.cookie[:])
			p.expect(time.Second, wire.TestStart, wire.TestRunning)
			_ = down.conn.SetReadDeadline(h.Now().Add(time.Second))
			if n, err := down.conn.Read(make([]byte, 100)); n == 0 || err != nil {
				t.Errorf("the second connection, accepted second, does not send: %v", err)
			}
			up.write(make([]byte, 500))
			time.Sleep(100 * time.Millisecond)
			if r := p.end(2); r.Streams[0].Bytes != 500 || r.Streams[1].Bytes == 0 || r.Streams[1].ID != 3 {
				t.Errorf("results %+v", r.Streams)
			}
			_ = up.conn.Close()
			_ = down.conn.Close()
		})
	})
}

func TestBlocksOfADownloadAreCountedToTheByte(t *testing.T) {
	for _, p := range []wire.Params{
		{Parallel: 1, Reverse: true, Blocks: 5, Size: 16384}, {Parallel: 2, Reverse: true, Blocks: 5, Size: 16384},
		{Parallel: 1, Reverse: true, Bytes: 5*16384 - 1, Size: 16384}, {Parallel: 1, Reverse: true, Blocks: 5, Size: 16384, Rate: bitrate.Mbit},
	} {
		synctest.Test(t, func(t *testing.T) {
			inMemory(t, Options{}, func(h *memnet.Net, v *service) {
				c := begin(t, h, at)
				total := 0
				data := c.open(p, at)
				for {
					some := false
					for _, d := range data {
						_ = d.SetReadDeadline(h.Now().Add(time.Second))
						n, err := d.Read(make([]byte, 1<<20))
						total += n
						some = some || err == nil
					}
					if !some {
						break
					}
				}
				if r := c.end(len(data)); total != 5*16384 {
					t.Errorf("%+v: got %d bytes, want %d; results %+v", p, total, 5*16384, r.Streams)
				}
				for _, d := range data {
					_ = d.Close()
				}
			})
		})
	}
}

// FuzzSession sends any bytes to a server, as the whole of a control connection. The property: no panic, and nothing left a second after
// the connection's end.
func FuzzSession(f *testing.F) {
	cookie := wire.NewCookie()
	good := append(bytes.Clone(cookie[:]), wire.Params{Parallel: 1, Time: time.Second}.AppendTo(nil)...)
	f.Add(good)
	f.Add(append(bytes.Clone(good), 4))
	f.Add(append(append(bytes.Clone(good), 4), wire.Results{}.AppendTo(nil)...))
	f.Add([]byte(fmt.Sprintf("%37s\x00\x00\x00\x02{}", "x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 16<<10 {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			inMemory(t, Options{MaxLength: time.Minute}, func(h *memnet.Net, v *service) {
				p := dial(t, h, at)
				_, _ = p.conn.Write(b) // the server may have refused the first part already
				time.Sleep(5 * time.Second)
				_ = p.conn.Close()
				time.Sleep(2 * time.Second)
				v.mu.Lock()
				defer v.mu.Unlock()
				if all, _ := v.clients.InUse(); all.Tests != 0 || len(v.half) != 0 {
					t.Errorf("%d tests and %d connections after the end", all.Tests, len(v.half))
				}
			})
		})
	})
}
