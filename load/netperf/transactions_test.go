package netperf

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load"
)

// responder plays a stock server that answers the requests of one test: it sends the captured response with this test's port and sizes,
// answers as serve does, and sends the captured results with this test's count.
func responder(t *testing.T, captured string, serve func(l net.Listener, r wire.Request) int) script {
	records := capture(t, captured)
	return func(ctl net.Conn, listen func() (net.Listener, uint16)) {
		defer ctl.Close()
		b, err := request(ctl)
		if err != nil {
			return
		}
		r, err := wire.ParseRequest(b)
		if err != nil {
			return
		}
		l, port := listen()
		if _, err := ctl.Write(withPort(records[0], port)); err != nil {
			return
		}
		n := serve(l, r)
		results := append([]byte(nil), records[1]...)
		results[8+4*9+2], results[8+4*9+3] = byte(n>>8), byte(n)
		results[8+4*9], results[8+4*9+1] = 0, byte(n>>16)
		_, _ = ctl.Write(results)
		_, _ = io.Copy(io.Discard, ctl)
	}
}

// answers answers the requests of a connection until it ends, at most most of them.
func answers(c net.Conn, r wire.Request, most int) (n int) {
	request, response := make([]byte, r.RequestSize), make([]byte, r.ResponseSize)
	for n < most {
		if _, err := io.ReadFull(c, request); err != nil {
			return n
		}
		if _, err := c.Write(response); err != nil {
			return n
		}
		n++
	}
	return n
}

func TestTransactionsOnOneConnectionOfAStockServer(t *testing.T) {
	for name, c := range map[string]struct {
		o                 TransactionOptions
		captured          string
		least, most       uint64
		longest, shortest time.Duration
	}{
		"one after the other": {TransactionOptions{}, "omni-tcp-rr.s2c", 190, 200, 12 * ms, 10 * ms},
		"five at once":        {TransactionOptions{RequestSize: 100, ResponseSize: 200, Burst: 4}, "omni-tcp-rr-sizes-burst.s2c", 900, 1005, 14 * ms, 10 * ms},
		"a hundred":           {TransactionOptions{Count: 100}, "omni-tcp-rr-trans.s2c", 100, 100, 12 * ms, 10 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := fast()
			at := play(t, h, responder(t, c.captured, func(l net.Listener, r wire.Request) int {
				conn, err := l.Accept()
				if err != nil {
					return 0
				}
				defer conn.Close()
				most := 1 << 20
				if units, counted := r.Units(); counted {
					most = int(units)
				}
				return answers(conn, r, most)
			}))
			c.o.Kind, c.o.Length, c.o.Server = TCPRR, 2*time.Second, ServerInfo{Name: "netserver 2.7", Layout: wire.Layout27}
			x := (&Client{Host: h, Addr: at}).NewTransactions(c.o)
			got, err := x.Run(t.Context())
			if err != nil || got.Warning != "" || got.Transactions < c.least || got.Transactions > c.most || got.RTTs.N() != got.Transactions ||
				got.RTTs.Min() < c.shortest || got.RTTs.Max() > c.longest || got.ServerTransactions < got.Transactions {
				t.Errorf("%s: %d transactions, %d by the server, from %v to %v; %v %q", name, got.Transactions, got.ServerTransactions,
					got.RTTs.Min(), got.RTTs.Max(), err, got.Warning)
			}
		})
	}
}

func TestAStalledTransactionIsSaidToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fast()
		at := play(t, h, responder(t, "omni-tcp-rr.s2c", func(l net.Listener, r wire.Request) int {
			conn, err := l.Accept()
			if err != nil {
				return 0
			}
			defer conn.Close()
			n := answers(conn, r, 50)
			_, _ = io.Copy(io.Discard, conn) // and then says nothing more
			return n
		}))
		x := (&Client{Host: h, Addr: at}).NewTransactions(TransactionOptions{Kind: TCPRR, Length: 5 * time.Second})
		if err := x.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		type run struct {
			r   TransactionResult
			err error
		}
		done := make(chan run)
		go func() { r, err := x.Run(t.Context()); done <- run{r, err} }()
		time.Sleep(4 * time.Second)
		if i, ok := x.Sample(); !ok || i.Transactions != 50 || i.Longest < 3*time.Second {
			t.Errorf("an interval with a stall: %+v, %v", i, ok)
		}
		got := <-done
		if got.err != nil || got.r.Transactions != 50 || got.r.Waiting < 4*time.Second {
			t.Errorf("%+v, %v", got.r, got.err)
		}
	})
}

func TestTransactionsOnAConnectionEachOfAStockServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fast()
		at := play(t, h, responder(t, "omni-tcp-crr.s2c", func(l net.Listener, r wire.Request) (n int) {
			go func() { time.Sleep(8 * time.Second); _ = l.Close() }() // its own timer, 4 s beyond the length
			for {
				conn, err := l.Accept()
				if err != nil {
					return n
				}
				n += answers(conn, r, 1)
				_ = conn.Close()
			}
		}))
		x := (&Client{Host: h, Addr: at}).NewTransactions(TransactionOptions{Kind: TCPCRR, Length: 2 * time.Second, Wait: time.Second})
		got, err := x.Run(t.Context())
		if err != nil || got.Transactions < 60 || got.Transactions > 100 || got.Lost != 0 || got.RTTs.Min() < 20*ms || !got.HasServerTransactions {
			t.Errorf("%d transactions, %d lost, at least %v; %v %q", got.Transactions, got.Lost, got.RTTs.Min(), err, got.Warning)
		}
	})
}

func TestATestOfTransactionsThatCannotBeIsAnError(t *testing.T) {
	refuse := func(number wire.ErrorNumber, reason string) script {
		return func(ctl net.Conn, _ func() (net.Listener, uint16)) {
			defer ctl.Close()
			if _, err := request(ctl); err == nil {
				_, _ = ctl.Write(wire.Refusal{Number: number, Reason: reason}.AppendTo(nil, wire.TypeOmniResponse))
			}
		}
	}
	for name, c := range map[string]struct {
		server script
		want   string
	}{
		"no such test":    {refuse(wire.UnknownTest, ""), "998"},
		"a stated limit":  {refuse(wire.NotPermitted, "a test of 2h0m0s, where this server allows at most 1h0m0s"), "at most 1h0m0s"},
		"escape sequence": {refuse(wire.NotPermitted, "\x1b[2J"), `\x1b[2J`},
		"killed": {responder(t, "omni-tcp-rr.s2c", func(l net.Listener, r wire.Request) int {
			conn, _ := l.Accept()
			_ = conn.(interface{ SetLinger(int) error }).SetLinger(0)
			_ = conn.Close()
			return 0
		}), "the data connection ended"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := fast()
			at := play(t, h, c.server)
			_, err := (&Client{Host: h, Addr: at}).NewTransactions(TransactionOptions{Kind: TCPRR, Length: 5 * time.Second}).Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%s: got %v", name, err)
			}
		})
	}
	if err := (&Client{Host: fast()}).NewTransactions(TransactionOptions{Kind: TCPCRR, Length: 1, Burst: 1}).Open(t.Context()); err == nil {
		t.Error("a burst of connections: no error")
	}
}

// udpServer plays a stock server of datagram transactions on the kernel's loopback: it answers each so many times as answers says, with bytes of its
// own, and those that it answers twice after turnaround.
func udpServer(t *testing.T, h host.Host, answers func(n int) int) netip.AddrPort {
	t.Helper()
	records := capture(t, "omni-udp-rr.s2c")
	return play(t, h, func(ctl net.Conn, _ func() (net.Listener, uint16)) {
		defer ctl.Close()
		b, err := request(ctl)
		if err != nil {
			return
		}
		r, err := wire.ParseRequest(b)
		if err != nil {
			return
		}
		conn, err := h.ListenUDP(context.Background(), netip.MustParseAddrPort("127.0.0.1:0"), host.Options{})
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = ctl.Write(withPort(records[0], conn.LocalAddr().Port()))
		_ = conn.SetReadDeadline(h.Now().Add(20 * time.Second))
		answered := 0
		for n := 0; ; n++ {
			d, err := conn.Receive(make([]byte, 100))
			if d.Rejected != nil { // the client's port is closed already
				continue
			}
			if err != nil || d.N == 0 {
				break
			}
			times := answers(n)
			if times > 1 {
				_ = h.SleepUntil(context.Background(), h.Now().Add(turnaround))
			}
			for range times {
				_, _ = conn.Send(make([]byte, r.ResponseSize), d.From)
			}
			answered += min(times, 1)
		}
		results := append([]byte(nil), records[1]...)
		copy(results[8+4*9:], []byte{0, 0, byte(answered >> 8), byte(answered)})
		_, _ = ctl.Write(results)
		_, _ = io.Copy(io.Discard, ctl)
	})
}

const turnaround = 5 * ms

// once answers each but those that drop names.
func once(drop func(n int) bool) func(n int) int {
	return func(n int) int {
		if drop(n) {
			return 0
		}
		return 1
	}
}

// A response that is taken for the next request's has that one answered in no time, and all that follow by the response to the one before.
func TestAResponseThatComesTwiceIsNotTakenForTheNextOnes(t *testing.T) {
	t.Parallel()
	h := host.NewKernel()
	at := udpServer(t, h, func(int) int { return 2 })
	got, err := (&Client{Host: h, Addr: at}).NewTransactions(TransactionOptions{Kind: UDPRR, Length: time.Minute, Count: 50, Timeout: 20 * time.Second}).Run(t.Context())
	if err != nil || got.Transactions != 50 || got.Lost > 0 || got.RTTs.Min() < turnaround || got.ServerTransactions != 50 || got.Duplicates < 40 {
		t.Errorf("%+v, %v; the shortest took %v, and the server %v for each", got, err, got.RTTs.Min(), turnaround)
	}
}

func TestWhatABurstOfAStockServerCannotTellIsSaid(t *testing.T) {
	t.Parallel()
	h := host.NewKernel()
	for _, burst := range []int{0, 3} {
		at := udpServer(t, h, func(int) int { return 1 })
		o := TransactionOptions{Kind: UDPRR, Length: time.Minute, Count: 50, Timeout: 20 * time.Second, Burst: burst}
		got, err := (&Client{Host: h, Addr: at}).NewTransactions(o).Run(t.Context())
		if err != nil || strings.Contains(got.Warning, "doubled") != (burst > 0) {
			t.Errorf("%d beside the one: warned of %q, %v", burst, got.Warning, err)
		}
	}
}

func TestALostDatagramCostsItsTimeoutAndTheTestGoesOn(t *testing.T) {
	t.Parallel()
	h := host.NewKernel()
	at := udpServer(t, h, once(func(n int) bool { return n%1000 == 999 }))
	o := TransactionOptions{Kind: UDPRR, Length: 10 * time.Second, Count: 2500, Timeout: 50 * ms}
	got, err := (&Client{Host: h, Addr: at}).NewTransactions(o).Run(t.Context())
	if err != nil || got.Transactions != 2500 || got.Lost < 2 || got.Lost > 10 || got.RTTs.TimeLost() <= 0 || got.ServerTransactions < 2500 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestDatagramsToAClosedPortAreAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	h := host.NewKernel()
	var port atomic.Int32
	at := play(t, h, func(ctl net.Conn, listen func() (net.Listener, uint16)) {
		defer ctl.Close()
		if _, err := request(ctl); err == nil {
			_, p := listen() // of TCP
			port.Store(int32(p))
			_, _ = ctl.Write(withPort(capture(t, "omni-udp-rr.s2c")[0], p))
			_, _ = io.Copy(io.Discard, ctl)
		}
	})
	_, err := (&Client{Host: h, Addr: at}).NewTransactions(TransactionOptions{Kind: UDPRR, Length: 3 * time.Second, Wait: ms}).Run(t.Context())
	var d *DataError
	if !errors.As(err, &d) || int32(d.At.Port()) != port.Load() {
		t.Errorf("got %v", err)
	}
}

func TestAnExchangeSendsWhenItIsToldWhateverHasComeBack(t *testing.T) {
	h := host.NewKernel()
	at := udpServer(t, h, once(func(n int) bool { return n == 1 }))
	x, err := (&Client{Host: h, Addr: at}).OpenExchange(t.Context(), TransactionOptions{Kind: UDPRR, Length: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for seq := range uint64(3) { // the second is lost
		if _, err := x.Send(10 + seq); err != nil {
			t.Fatal(err)
		}
	}
	got := map[uint64]bool{}
	_ = x.Wake(h.Now().Add(5 * time.Second))
	for range 2 {
		a, err := x.Receive()
		if err != nil || a.Err != nil || a.At.IsZero() {
			t.Fatalf("%+v, %v", a, err)
		}
		got[a.Seq] = true
	}
	if len(got) != 2 || !got[10] || !got[12] {
		t.Errorf("answers to %v, want 10 and 12", got)
	}
	_ = x.Wake(h.Now())
	if _, err := x.Receive(); !pumpDeadline(err) {
		t.Errorf("after Wake: %v", err)
	}
	_ = x.Close()
	if _, err := x.Receive(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := x.Send(1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A path may lose all for longer than it takes to send a hundred.
func TestAnExchangeGoesOnThroughASilence(t *testing.T) {
	h := host.NewKernel()
	const silent = 150
	at := udpServer(t, h, once(func(n int) bool { return n < silent }))
	x, err := (&Client{Host: h, Addr: at}).OpenExchange(t.Context(), TransactionOptions{Kind: UDPRR, Length: time.Minute, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for seq := range uint64(silent + 1) {
		if _, err := x.Send(seq); err != nil {
			t.Fatalf("request %d: %v", seq, err)
		}
	}
	_ = x.Wake(h.Now().Add(5 * time.Second))
	if a, err := x.Receive(); err != nil || a.Err != nil || a.Seq != silent {
		t.Errorf("%+v, %v; want the answer to request %d", a, err, silent)
	}
}

func pumpDeadline(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestAnExchangeOverOneConnectionAnswersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fast()
		at := play(t, h, responder(t, "omni-tcp-rr.s2c", func(l net.Listener, r wire.Request) int {
			conn, err := l.Accept()
			if err != nil {
				return 0
			}
			defer conn.Close()
			return answers(conn, r, 1<<20)
		}))
		x, err := (&Client{Host: h, Addr: at}).OpenExchange(t.Context(), TransactionOptions{Kind: TCPRR, Length: time.Minute, ResponseSize: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		sent := map[uint64]time.Time{}
		for seq := range uint64(5) {
			if sent[seq], err = x.Send(seq); err != nil {
				t.Fatal(err)
			}
			time.Sleep(ms)
		}
		for seq := range uint64(5) {
			a, err := x.Receive()
			if rtt := a.At.Sub(sent[a.Seq]); err != nil || a.Seq != seq || rtt < 10*ms || rtt > 12*ms {
				t.Errorf("answer %d: %+v after %v, %v", seq, a, rtt, err)
			}
		}
	})
}

func TestAnExchangeIsOverOnceARequestDidNotGoOutWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fast()
		over := make(chan struct{})
		at := play(t, h, responder(t, "omni-tcp-rr.s2c", func(l net.Listener, _ wire.Request) int {
			conn, err := l.Accept()
			if err != nil {
				return 0
			}
			defer conn.Close()
			<-over
			return 0
		}))
		defer close(over)
		o := TransactionOptions{Kind: TCPRR, Length: time.Minute, RequestSize: 16 << 20, Timeout: time.Second}
		x, err := (&Client{Host: h, Addr: at}).OpenExchange(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		if _, err := x.Send(0); err == nil {
			t.Fatal("16 MiB went out to who does not read")
		}
		_ = x.Wake(h.Now().Add(time.Second))
		if a, err := x.Receive(); err == nil || pumpDeadline(err) {
			t.Errorf("got %+v, %v; want the end of the connection", a, err)
		}
	})
}

func TestWhatTheServerIsCanBeAskedOnTheConnectionOfTheTest(t *testing.T) {
	for captured, c := range map[string]struct {
		skip   int
		name   string
		layout wire.Layout
		cc     string
	}{"omni-tcp-stream.s2c": {0, "netserver 2.7", wire.Layout27, "bbr"}, "v260-both-tcp-maerts.s2c": {1, "netserver 2.6", wire.Layout22, "bbr"}} {
		synctest.Test(t, func(t *testing.T) {
			h := fast()
			at := play(t, h, netserver(t, captured, "", c.skip))
			f := (&Client{Host: h, Addr: at, Ask: true}).NewFlow(FlowOptions{Direction: load.Download, Length: 2 * time.Second})
			got, err := f.Run(t.Context())
			if err != nil || f.Server().Name != c.name || f.Server().Layout != c.layout || got.CongestionControl != c.cc {
				t.Errorf("%s: %+v, %q, %v", captured, f.Server(), got.CongestionControl, err)
			}
		})
	}
}

func TestDataGoesToAnotherAddressWhereTheUserSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fast()
		var asked wire.Request
		at := play(t, h, func(ctl net.Conn, _ func() (net.Listener, uint16)) {
			defer ctl.Close()
			b, err := request(ctl)
			if err != nil {
				return
			}
			asked, _ = wire.ParseRequest(b)
			l, err := h.ListenTCP(context.Background(), netip.MustParseAddrPort("[2001:db8::7]:4000"), host.Options{})
			if err != nil {
				return
			}
			defer l.Close()
			_, _ = ctl.Write(withPort(capture(t, "omni-tcp-rr.s2c")[0], 4000))
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if from := conn.RemoteAddr().String(); !strings.HasPrefix(from, "[2001:db8::9]:") {
				t.Errorf("data comes from %s", from)
			}
			answers(conn, asked, 1<<20)
			_ = conn.Close()
			_, _ = ctl.Write(capture(t, "omni-tcp-rr.s2c")[1])
			_, _ = io.Copy(io.Discard, ctl)
		})
		data, source := netip.MustParseAddr("2001:db8::7"), netip.MustParseAddr("2001:db8::9")
		c := &Client{Host: h, Addr: at, DataAddr: data, DataSource: source}
		got, err := c.NewTransactions(TransactionOptions{Kind: TCPRR, Length: time.Second}).Run(t.Context())
		if err != nil || got.Transactions == 0 || asked.Family != wire.IPv6 || asked.ServerAddr != wire.AddrFrom(data) {
			t.Errorf("%+v, %v; the server was asked for %v", got, err, asked.ServerAddr)
		}
	})
}

func TestAnInterruptEndsTransactionsWithinASecond(t *testing.T) {
	for _, kind := range []TransactionKind{TCPRR, TCPCRR} {
		synctest.Test(t, func(t *testing.T) {
			h := fast()
			at := play(t, h, responder(t, "omni-tcp-rr.s2c", func(l net.Listener, r wire.Request) (n int) {
				for {
					conn, err := l.Accept()
					if err != nil {
						return n
					}
					n += answers(conn, r, 1<<20)
					_ = conn.Close()
					if kind == TCPRR {
						return n
					}
				}
			}))
			ctx, cancel := context.WithCancelCause(t.Context())
			gone := errors.New("interrupted")
			time.AfterFunc(3*time.Second, func() { cancel(gone) })
			begin := time.Now()
			got, err := (&Client{Host: h, Addr: at}).NewTransactions(TransactionOptions{Kind: kind, Length: time.Minute}).Run(ctx)
			if d := time.Since(begin); !errors.Is(err, gone) || d > 4*time.Second || kind == TCPRR && got.Transactions == 0 {
				t.Errorf("%v: %d transactions, %v after %v", kind, got.Transactions, err, d)
			}
		})
	}
	h := host.NewKernel()
	at := udpServer(t, h, once(func(int) bool { return false }))
	ctx, cancel := context.WithCancel(t.Context())
	x := (&Client{Host: h, Addr: at}).NewTransactions(TransactionOptions{Kind: UDPRR, Length: time.Minute})
	h.AfterFunc(200*ms, cancel)
	begin := time.Now()
	if _, err := x.Run(ctx); !errors.Is(err, context.Canceled) || time.Since(begin) > 10*time.Second {
		t.Errorf("%v: %v after %v", UDPRR, err, time.Since(begin))
	}
}

// unasked is a server that answers before it is asked.
func unasked(size int) func(net.Listener, wire.Request) int {
	return func(l net.Listener, r wire.Request) int {
		for {
			conn, err := l.Accept()
			if err != nil {
				return 0
			}
			_, _ = conn.Write(make([]byte, size))
			_, _ = io.Copy(io.Discard, conn)
			_ = conn.Close()
		}
	}
}

func TestBytesThatNobodyAskedForAreNoResponses(t *testing.T) {
	for name, c := range map[string]struct {
		o        TransactionOptions
		captured string
	}{
		"on one connection":     {TransactionOptions{Kind: TCPRR}, "omni-tcp-rr.s2c"},
		"long responses":        {TransactionOptions{Kind: TCPRR, ResponseSize: 200_000}, "omni-tcp-rr.s2c"},
		"several at once":       {TransactionOptions{Kind: TCPRR, Burst: 4}, "omni-tcp-rr.s2c"},
		"on a connection each":  {TransactionOptions{Kind: TCPCRR}, "omni-tcp-crr.s2c"},
		"with a number of them": {TransactionOptions{Kind: TCPRR, Count: 1000}, "omni-tcp-rr.s2c"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := fast()
			at := play(t, h, responder(t, c.captured, unasked(300_000)))
			c.o.Length = 2 * time.Second
			got, err := (&Client{Host: h, Addr: at}).NewTransactions(c.o).Run(t.Context())
			if !errors.Is(err, errSurplus) || got.Transactions > 5 {
				t.Errorf("%s: %d transactions, %v", name, got.Transactions, err)
			}
		})
	}
}

func TestTheServersRateIsSaidBesideTransactions(t *testing.T) {
	for _, c := range []struct {
		p    wire.Response
		want string
	}{
		{wire.Response{SendSize: 1}, ""},
		{wire.Response{SendSize: 1400, PaceBurst: 10, PaceMicros: 11_200}, "10.00 Mbit/s, and transactions wait for that too"},
	} {
		x := (&Client{Host: fast()}).NewTransactions(TransactionOptions{Kind: TCPRR, Length: time.Second})
		x.response, x.done = c.p, 1
		got, err := x.settle(t.Context(), time.Time{}, &outcome{}, nil)
		if err != nil || (c.want == "") != (got.Warning == "") || !strings.Contains(got.Warning, c.want) {
			t.Errorf("%+v: warned of %q, %v; want %q", c.p, got.Warning, err, c.want)
		}
	}
}
