package iperf3

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/memnet"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
)

var port = netip.MustParseAddrPort("127.0.0.1:5201")

// script is what a server does, in memory, whose listener and control connection are its own.
type script struct {
	*testing.T
	net  *memnet.Net
	l    net.Listener
	ctl  net.Conn
	p    wire.Params
	data []net.Conn
	cook wire.Cookie
}

// against runs f with a client of a server that does as serve says, once, in fake time.
func against(t *testing.T, n *memnet.Net, serve func(s *script), f func(ctx context.Context, c *Client)) {
	synctest.Test(t, func(t *testing.T) {
		if n == nil {
			n = &memnet.Net{Delay: 10 * time.Millisecond, BytesPerS: 250_000, Buffer: 100_000}
		}
		l, err := n.ListenTCP(t.Context(), port, host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		serving.Go(func() {
			s := &script{T: t, net: n, l: l}
			defer func() {
				for _, c := range append(s.data, s.ctl) {
					if c != nil {
						_ = c.Close()
					}
				}
			}()
			if s.ctl, err = l.Accept(); err == nil {
				serve(s)
			}
		})
		f(t.Context(), &Client{Host: n, Addr: port, BusyWait: -1})
		_ = l.Close()
		serving.Wait()
	})
}

func (s *script) send(b ...byte) { _, _ = s.ctl.Write(b) }

func (s *script) state(w wire.State) { s.send(w.Byte()) }

func (s *script) read(n int) []byte {
	b := make([]byte, n)
	_, _ = io.ReadFull(s.ctl, b)
	return b
}

// greet takes the cookie and the parameters.
func (s *script) greet() bool {
	copy(s.cook[:], s.read(wire.CookieSize))
	s.state(wire.ParamExchange)
	b, err := wire.ReadMessage(s.ctl, wire.MaxParams)
	if err != nil {
		return false
	}
	s.p, err = wire.ParseParams(b)
	return err == nil
}

// begin is greet, and what follows until the test runs.
func (s *script) begin() bool {
	if !s.greet() {
		return false
	}
	s.state(wire.CreateStreams)
	client, server := s.p.Sends()
	for range client + server {
		c, err := s.l.Accept()
		if err != nil {
			return false
		}
		s.data = append(s.data, c)
		if _, err := io.CopyN(io.Discard, c, wire.CookieSize); err != nil {
			return false
		}
	}
	s.send(wire.TestStart.Byte(), wire.TestRunning.Byte())
	return true
}

// upload is begin, and reads until the client ends the test. It returns what came.
func (s *script) upload() (uint64, bool) {
	if !s.begin() {
		return 0, false
	}
	var n pump.Counter
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	for _, c := range s.data {
		reading.Go(func() { _, _ = pump.Receive(ctx, s.net, c, &n, pump.Options{}) })
	}
	ended := wire.State(int8(s.read(1)[0])) == wire.TestEnd
	cancel()
	reading.Wait()
	return n.Bytes(), ended
}

// finish exchanges results, ours with so many bytes of the first stream counted until the end.
func (s *script) finish(n uint64, end time.Duration) {
	s.state(wire.ExchangeResults)
	if _, err := wire.ReadMessage(s.ctl, wire.MaxResults); err != nil {
		return
	}
	r := wire.Results{Retransmits: -1, Streams: []wire.StreamResult{{ID: 1, Bytes: n, Retransmits: -1, End: end}}}
	s.send(r.AppendTo(nil)...)
	s.state(wire.DisplayResults)
	s.read(1)
}

func one(c *Client, d load.Direction) *Flow {
	o := TestOptions{Length: 2 * time.Second}
	if d == load.Upload {
		o.Uploads = 1
	} else {
		o.Downloads = 1
	}
	return c.NewTest(o).Flows(d)[0]
}

func TestWhatIsNoTestIsSaidToBeNone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		serve func(s *script)
		want  error
		text  string
	}{
		{"busy", func(s *script) { s.state(wire.AccessDenied); s.read(38) }, ErrBusy, "5200 to 5209"},
		{"closed at once", func(s *script) {}, ErrBusy, "try again later"},
		{"a web server", func(s *script) { s.send([]byte("HTTP/1.1 400 Bad Request\r\n")...); s.read(38) }, ErrNotIPerf3, "0x48"},
		{"silent", func(s *script) { s.read(37); time.Sleep(time.Minute) }, ErrSilent, "10s"},
		{"another state", func(s *script) { s.state(wire.TestEnd); s.read(38) }, ErrNotIPerf3, "test end"},
		{"refused without a word", func(s *script) { s.greet() }, ErrRefused, "user name"},
		{"refused with a number", func(s *script) { s.greet(); s.send(wire.AppendError(nil, wire.DurationLimit, 0)...) }, wire.DurationLimit, "error 37"},
		{"refused with half a number", func(s *script) { s.greet(); s.send(wire.AppendError(nil, wire.NotAuthorised, 0)[:5]...) }, wire.NotAuthorised, "error 142"},
		{"no answer to the parameters", func(s *script) { s.greet(); time.Sleep(time.Minute) }, ErrSilent, "parameters"},
		{"gone before the start", func(s *script) {
			s.greet()
			s.state(wire.CreateStreams)
			s.data = append(s.data, must(s.l.Accept()))
			_, _ = io.CopyN(io.Discard, s.data[0], wire.CookieSize)
		}, ErrRefused, "once the streams stood"},
		{"an error at the start", func(s *script) {
			s.greet()
			s.state(wire.CreateStreams)
			s.data = append(s.data, must(s.l.Accept()))
			s.send(wire.AppendError(nil, 134, 2)...)
		}, wire.ErrorCode(134), "congestion control"},
		{"no start", func(s *script) {
			s.greet()
			s.state(wire.CreateStreams)
			s.data = append(s.data, must(s.l.Accept()))
			time.Sleep(time.Minute)
		}, ErrSilent, "30s"},
		{"gone in the middle", func(s *script) { s.begin(); time.Sleep(time.Second) }, ErrServerGone, ""},
		{"interrupted in the middle", func(s *script) { s.begin(); time.Sleep(time.Second); s.state(wire.ServerTerminate) }, nil, "server terminates"},
		{"an error in the middle", func(s *script) { s.begin(); time.Sleep(time.Second); s.send(wire.AppendError(nil, wire.NoData, 0)...) }, wire.NoData, "no data"},
		{"an error in place of the results", func(s *script) {
			s.begin()
			_, _ = s.data[0].Write(make([]byte, 1000))
			s.read(1)
			s.state(wire.ExchangeResults)
			_, _ = wire.ReadMessage(s.ctl, wire.MaxResults)
			s.send(wire.AppendError(nil, wire.NoResults, 0)...)
		}, wire.NoResults, "results"},
		{"no data", func(s *script) { s.begin(); s.read(1); s.finish(0, 2*time.Second) }, ErrNoData, "download"},
	} {
		against(t, nil, tt.serve, func(ctx context.Context, c *Client) {
			_, err := one(c, load.Download).Run(ctx)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "127.0.0.1") {
				t.Errorf("%s: got %v, want %v, with %q", tt.name, err, tt.want, tt.text)
			}
		})
	}
}

func must(c net.Conn, _ error) net.Conn { return c }

func TestABusyServerIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &memnet.Net{Delay: time.Millisecond, BytesPerS: 1e6, Buffer: 1e5}
		l, err := n.ListenTCP(t.Context(), port, host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var serving sync.WaitGroup
		serving.Go(func() {
			for i := 0; ; i++ {
				c, err := l.Accept()
				if err != nil {
					return
				}
				state := wire.AccessDenied
				if i == 3 {
					state = wire.ParamExchange
				}
				_, _ = c.Write([]byte{state.Byte()})
				_, _ = io.Copy(io.Discard, c) // a reset would overtake it
				_ = c.Close()
			}
		})
		began := time.Now()
		c := &Client{Host: n, Addr: port}
		if _, err := c.Check(t.Context()); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("got %v after %v, want that it is taken the fourth time", err, time.Since(began))
		}
		c.BusyWait = 3 * time.Second
		if _, err := c.Check(t.Context()); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "asked for") {
			t.Errorf("busy all the time: got %v, want ErrBusy and how long", err)
		}
		_ = l.Close()
		serving.Wait()
	})
}

func TestADownloadNeedsNoResults(t *testing.T) {
	against(t, nil, func(s *script) {
		s.begin()
		for i := 0; i < 40; i++ {
			_, _ = s.data[0].Write(make([]byte, 5000))
			time.Sleep(50 * time.Millisecond)
		}
	}, func(ctx context.Context, c *Client) {
		r, err := one(c, load.Download).Run(ctx)
		// The server went away with the last byte, before the test's end was told.
		if err != nil && !errors.Is(err, ErrServerGone) || r.Bytes < 190_000 || r.CountedBy != load.CountedByReads {
			t.Errorf("got %+v, %v", r, err)
		}
	})
	against(t, nil, func(s *script) {
		s.begin()
		go func() { _, _ = pump.Send(context.Background(), s.net, s.data[0], new(pump.Counter), pump.Options{}) }()
		s.read(1)
	}, func(ctx context.Context, c *Client) {
		r, err := one(c, load.Download).Run(ctx)
		if err != nil || r.Bytes < 450_000 || r.CountedBy != load.CountedByReads || !strings.Contains(r.Warning, "no results") {
			t.Errorf("without results: got %+v, %v", r, err)
		}
	})
}

func TestAnUploadIsWhatTheServerCounted(t *testing.T) {
	var sent uint64
	against(t, nil, func(s *script) {
		n, ended := s.upload()
		if !ended {
			t.Error("the test is not ended by the client")
		}
		sent = n
		s.finish(n, 2*time.Second)
	}, func(ctx context.Context, c *Client) {
		r, err := one(c, load.Upload).Run(ctx)
		if err != nil || r.CountedBy != load.CountedByServer || r.Bytes != sent || !r.HasServerBytes {
			t.Errorf("got %+v, %v; want %d bytes", r, err, sent)
		}
		if got := bitrate.Of(r.Bytes, r.Duration()); got < 1_950_000 || got > 2_050_000 {
			t.Errorf("%v, want 2Mbit", got)
		}
	})
}

func TestAServersCountThatCannotBeIsNotUsed(t *testing.T) {
	against(t, nil, func(s *script) {
		s.upload()
		s.finish(1<<40, 2*time.Second)
	}, func(ctx context.Context, c *Client) {
		r, err := one(c, load.Upload).Run(ctx)
		if err != nil || r.CountedBy != load.CountedByAcks || r.Bytes > 1e6 || !strings.Contains(r.Warning, "not used") {
			t.Errorf("got %+v, %v", r, err)
		}
	})
}

func TestResultsThatAreTooLongLeaveOurOwnHalf(t *testing.T) {
	against(t, nil, func(s *script) {
		s.upload()
		s.state(wire.ExchangeResults)
		if _, err := wire.ReadMessage(s.ctl, wire.MaxResults); err == nil {
			s.send(binary.BigEndian.AppendUint32(nil, wire.MaxResults+1)...)
			s.send(bytes.Repeat([]byte(" "), 100_000)...)
		}
	}, func(ctx context.Context, c *Client) {
		r, err := one(c, load.Upload).Run(ctx)
		if err != nil || r.CountedBy != load.CountedByAcks || r.Bytes < 400_000 || !strings.Contains(r.Warning, "no results") || !strings.Contains(r.Warning, "16777216") {
			t.Errorf("got %+v, %v", r, err)
		}
	})
}

func TestAnUploadWithoutResultsIsWhatWasAcknowledged(t *testing.T) {
	for _, silent := range []bool{false, true} {
		against(t, nil, func(s *script) {
			s.upload()
			if silent {
				time.Sleep(time.Minute)
			}
		}, func(ctx context.Context, c *Client) {
			began := time.Now()
			r, err := one(c, load.Upload).Run(ctx)
			if err != nil || r.CountedBy != load.CountedByAcks || r.Bytes < 400_000 || !strings.Contains(r.Warning, "no results") {
				t.Errorf("silent %v: got %+v, %v", silent, r, err)
			}
			if d := time.Since(began); d > 36*time.Second {
				t.Errorf("silent %v: it took %v", silent, d)
			}
		})
	}
}

func TestAPathOfSeconds(t *testing.T) {
	n := &memnet.Net{Delay: 3 * time.Second, BytesPerS: 250_000, Buffer: 2_000_000}
	var sent uint64
	against(t, n, func(s *script) {
		n, _ := s.upload()
		sent = n
		s.finish(n, 2*time.Second+6*time.Second)
	}, func(ctx context.Context, c *Client) {
		r, err := one(c, load.Upload).Run(ctx)
		if err != nil || r.CountedBy != load.CountedByServer || r.Bytes != sent || sent < 400_000 {
			t.Errorf("a round trip of six seconds: got %+v, %v; the server has %d", r, err, sent)
		}
	})
}

func TestAnInterruptedTestEndsAtOnceForAllItsFlows(t *testing.T) {
	var told wire.State
	against(t, nil, func(s *script) {
		if s.begin() {
			go func() { _, _ = pump.Send(context.Background(), s.net, s.data[0], new(pump.Counter), pump.Options{}) }()
			told = wire.State(int8(s.read(1)[0]))
		}
	}, func(ctx context.Context, c *Client) {
		cause := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(ctx)
		test := c.NewTest(TestOptions{Downloads: 3, Length: time.Hour})
		began := time.Now()
		time.AfterFunc(time.Second, func() { cancel(cause) })
		results, errs := runFlows(ctx, test)
		for i, err := range errs {
			if !errors.Is(err, cause) {
				t.Errorf("flow %d ends with %v", i, err)
			}
		}
		if d := time.Since(began); results[0].Bytes == 0 || d > 3*time.Second {
			t.Errorf("after %v: %+v", d, results[0])
		}
	})
	if told != wire.ClientTerminate {
		t.Errorf("the server is told %v", told)
	}
}

func TestADataConnectionThatCannotBeOpenedIsNamed(t *testing.T) {
	n := &memnet.Net{Delay: time.Millisecond, BytesPerS: 1e6, Buffer: 1e5}
	dials := 0
	n.Blackholed = func(netip.AddrPort) bool { dials++; return dials > 1 }
	against(t, n, func(s *script) { s.greet(); s.state(wire.CreateStreams); s.read(1) }, func(ctx context.Context, c *Client) {
		began := time.Now()
		_, err := one(c, load.Download).Run(ctx)
		var data *DataError
		if !errors.As(err, &data) || data.Stream != 1 || time.Since(began) > 11*time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
	})
}

func TestWhatNoServerCanDoIsSaidWithoutAsking(t *testing.T) {
	c := &Client{Host: &memnet.Net{}, Addr: port}
	for _, o := range []TestOptions{
		{}, {Downloads: 2, Uploads: 3, Length: time.Second}, {Downloads: 129, Length: time.Second}, {Downloads: 1}, {Uploads: 1, Length: time.Second, UDP: true},
		{Uploads: 1, Length: time.Second, Bytes: 1, Blocks: 1}, {Uploads: 1, Length: 25 * time.Hour}, {Uploads: 1, Length: time.Second, Omit: time.Millisecond},
		{Uploads: 1, Length: time.Second, UDP: true, Rate: 1, Size: 8}, {Uploads: 1, Length: time.Second, Size: 2 << 20}, {Uploads: -1, Downloads: 1, Length: 1},
	} {
		if err := c.NewTest(o).Open(t.Context()); err == nil || errors.Is(err, ErrUnreachable) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// captured is what the server said of a test between stock programs, as the messages that it is made of, and how the client's was asked for.
type captured struct {
	states  []wire.State
	results []byte
	params  wire.Params
}

var recordLine = regexp.MustCompile(`^ctl ([CS]) \d+\.\d{6} +([0-9a-f]+)(?: +#.*)?$`)

func readCapture(t *testing.T, name string) captured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "internal", "wire", "iperf3", "testdata", "captures", name))
	if err != nil {
		t.Fatal(err)
	}
	var client, server bytes.Buffer
	for line := range strings.Lines(string(text)) {
		if m := recordLine.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			b, _ := hex.DecodeString(m[2])
			if m[1] == "C" {
				client.Write(b)
			} else {
				server.Write(b)
			}
		}
	}
	var c captured
	client.Next(wire.CookieSize)
	b, err := wire.ReadMessage(&client, wire.MaxParams)
	if err != nil {
		t.Fatal(err)
	}
	if c.params, err = wire.ParseParams(b); err != nil {
		t.Fatal(err)
	}
	for server.Len() > 0 {
		b, _ := server.ReadByte()
		s := wire.State(int8(b))
		c.states = append(c.states, s)
		if s == wire.ExchangeResults {
			if c.results, err = wire.ReadMessage(&server, wire.MaxResults); err != nil {
				t.Fatal(err)
			}
		}
		if s == wire.ServerError {
			break
		}
	}
	return c
}

// TestOurClientAgainstWhatStockServersSaid plays the server's side of captures, byte for byte.
func TestOurClientAgainstWhatStockServersSaid(t *testing.T) {
	list, err := filepath.Glob(filepath.Join("..", "..", "internal", "wire", "iperf3", "testdata", "captures", "tcp-*.hex"))
	if err != nil || len(list) < 10 {
		t.Fatalf("%d captures, %v", len(list), err)
	}
	for _, path := range list {
		name := filepath.Base(path)
		c := readCapture(t, name)
		against(t, nil, func(s *script) { play(s, c) }, func(ctx context.Context, client *Client) {
			up, down := c.params.Sends()
			test := client.NewTest(TestOptions{Uploads: up, Downloads: down, Length: max(c.params.Time, time.Second), Omit: c.params.Omit, Size: c.params.Size,
				Rate: c.params.Rate})
			results, errs := runFlows(ctx, test)
			want, err := wire.ParseResults(c.results)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range results {
				if errs[i] != nil || r.Bytes == 0 || !r.HasServerBytes && !strings.Contains(r.Warning, "not used") {
					t.Errorf("%s: flow %d: %+v, %v", name, i, r, errs[i])
				}
				if s, ok := want.Stream(wire.StreamID(i)); !ok || r.HasServerBytes && r.ServerBytes != s.Bytes {
					t.Errorf("%s: flow %d: %d bytes by the server, which said %d", name, i, r.ServerBytes, s.Bytes)
				}
			}
		})
	}
}

// play does as the server of a capture did.
func play(s *script, c captured) {
	up, _ := c.params.Sends()
	if !s.begin() {
		return
	}
	if s.p.Parallel != c.params.Parallel || s.p.Reverse != c.params.Reverse || s.p.Bidirectional != c.params.Bidirectional {
		s.Errorf("asked for %+v, want %+v", s.p, c.params)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var moving sync.WaitGroup
	for i, conn := range s.data {
		var n pump.Counter
		if i < up {
			moving.Go(func() { _, _ = pump.Receive(ctx, s.net, conn, &n, pump.Options{}) })
		} else {
			moving.Go(func() { _, _ = pump.Send(ctx, s.net, conn, &n, pump.Options{Rate: bitrate.Mbit}) })
		}
	}
	if got := wire.State(int8(s.read(1)[0])); got != wire.TestEnd {
		s.Errorf("the client says %v", got)
	}
	cancel()
	moving.Wait()
	for _, state := range c.states[4:] { // after "parameters", "streams", "start" and "running"
		s.state(state)
		if state != wire.ExchangeResults {
			continue
		}
		b, err := wire.ReadMessage(s.ctl, wire.MaxResults)
		if err == nil {
			_, err = wire.ParseResults(b)
		}
		if err != nil {
			s.Errorf("the client's results: %v", err)
		}
		s.send(byte(len(c.results)>>24), byte(len(c.results)>>16), byte(len(c.results)>>8), byte(len(c.results)))
		s.send(c.results...)
	}
	if got := wire.State(int8(s.read(1)[0])); got != wire.Done {
		s.Errorf("the client ends with %v", got)
	}
}

// FuzzServer sends any bytes to a client, as all that a server says. The property: no panic, an end in time, and an error unless a test was run.
func FuzzServer(f *testing.F) {
	f.Add([]byte{9, 10, 1, 2, 13, 0, 0, 0, 2, '{', '}', 14}, true)
	f.Add(append([]byte{9, 10, 1, 2, 13}, append(wire.Results{Streams: []wire.StreamResult{{ID: 1, Bytes: 10}}}.AppendTo(nil), 14)...), true)
	f.Add([]byte{9, 10, 0xfe, 0, 0, 0, 1}, false)
	f.Add([]byte{0xff}, false)
	f.Fuzz(func(t *testing.T, b []byte, upload bool) {
		against(t, nil, func(s *script) {
			_, _ = s.ctl.Write(b)
			if conn, err := s.l.Accept(); err == nil {
				s.data = append(s.data, conn)
				_, _ = io.Copy(io.Discard, conn)
			}
			_, _ = io.Copy(io.Discard, s.ctl)
		}, func(ctx context.Context, c *Client) {
			d := load.Download
			if upload {
				d = load.Upload
			}
			began := time.Now()
			r, err := one(c, d).Run(ctx)
			if took := time.Since(began); took > 3*time.Minute {
				t.Errorf("%x: it took %v", b, took)
			}
			if err == nil && r.Bytes == 0 {
				t.Errorf("%x: no error, and nothing was measured", b)
			}
		})
	})
}
