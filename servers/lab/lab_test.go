package lab

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/servers/lab/link"
)

const ms = time.Millisecond

// within runs f beside a running lab, and ends the lab.
func within(t testing.TB, c Config, f func(ctx context.Context, l *Lab)) {
	t.Helper()
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return l.Run(ctx) })
	defer func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
		l.Close()
	}()
	f(ctx, l)
}

// serve accepts connections on both families; the first byte of each says which way its data go.
func serve(ctx context.Context, t testing.TB, l *Lab, g *sync.WaitGroup) (port uint16) {
	for _, a := range []string{"0.0.0.0:9000", "[::]:9000"} {
		ln, err := l.Server().ListenTCP(ctx, netip.MustParseAddrPort(a), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				g.Go(func() {
					defer context.AfterFunc(ctx, func() { c.Close() })() // the link may have lost the reset that ends it
					serveOne(c)
				})
			}
		})
		context.AfterFunc(ctx, func() { ln.Close() })
	}
	return 9000
}

func serveOne(c net.Conn) {
	defer c.Close()
	var way [1]byte
	if _, err := io.ReadFull(c, way[:]); err != nil {
		return
	}
	buf := make([]byte, 64<<10)
	for {
		var err error
		if load.Direction(way[0]) == load.Download {
			_, err = c.Write(buf)
		} else {
			_, err = c.Read(buf)
		}
		if err != nil {
			return
		}
	}
}

// flowStats is what a test's flow saw.
type flowStats struct {
	direction load.Direction
	bytes     uint64 // received, or acknowledged
	steady    uint64 // of these, before the steady part
	retrans   uint64
	mss       int
}

// bulk runs one flow until end, and counts what it carries after steady.
func bulk(ctx context.Context, l *Lab, to netip.AddrPort, d load.Direction, steady, end time.Time) (flowStats, error) {
	s := flowStats{direction: d}
	h := l.Client()
	conn, err := h.DialTCP(ctx, to, host.Options{})
	if err != nil {
		return s, err
	}
	c := conn.(*Conn)
	c.SetLinger(0) // the test is over with it
	defer c.Close()
	if _, err := c.Write([]byte{byte(d)}); err != nil {
		return s, err
	}
	buf := make([]byte, 64<<10)
	c.SetDeadline(end)
	if d == load.Download {
		for {
			n, err := c.Read(buf)
			s.bytes += uint64(n)
			if h.Now().Before(steady) {
				s.steady = s.bytes
			}
			if err != nil {
				break
			}
		}
	} else {
		mark := h.AfterFunc(steady.Sub(h.Now()), func() {
			if info, err := h.TCPInfo(c); err == nil {
				s.steady = info.BytesAcked
			}
		})
		defer mark.Stop()
		for {
			if _, err := c.Write(buf); err != nil {
				break
			}
		}
		info, _ := h.TCPInfo(c)
		s.bytes, s.retrans, s.mss = info.BytesAcked, info.Retransmits, info.SendMSS
	}
	return s, nil
}

// ping sends echo requests every interval from now until end, and returns their round-trip times; a lost one has none.
func ping(ctx context.Context, t testing.TB, h *Host, to netip.Addr, interval time.Duration, end time.Time) []time.Duration {
	t.Helper()
	c, err := h.DialEcho(ctx, to, host.Options{})
	if err != nil {
		t.Error(err)
		return nil
	}
	defer c.Close()
	n := int(end.Sub(h.Now()) / interval)
	var mu sync.Mutex // guards sent: the race detector knows nothing of the link between the two
	sent := make([]time.Time, n)
	var rtts []time.Duration
	var g sync.WaitGroup
	g.Go(func() {
		buf := make([]byte, 1500)
		c.SetReadDeadline(end.Add(time.Second))
		for {
			d, err := c.Receive(buf)
			if err != nil {
				return
			}
			seq := int(buf[6])<<8 | int(buf[7])
			if d.Stamp != host.LinkStamp || seq >= n {
				t.Errorf("reply %d with stamp %v", seq, d.Stamp)
				continue
			}
			mu.Lock()
			rtts = append(rtts, d.At.Sub(sent[seq]))
			mu.Unlock()
		}
	})
	start := h.Now()
	request := echoRequest(to)
	for i := range n {
		if err := h.SleepUntil(ctx, start.Add(time.Duration(i)*interval)); err != nil {
			break
		}
		request[6], request[7] = byte(i>>8), byte(i)
		at, err := c.Send(request, netip.AddrPort{})
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		sent[i] = at // the reply takes longer than this
		mu.Unlock()
	}
	g.Wait()
	return rtts
}

// echoRequest is 64 bytes of ICMP, as ping's.
func echoRequest(to netip.Addr) []byte {
	b := make([]byte, 64)
	b[0] = 8
	if to.Is6() {
		b[0] = 128
	}
	return b
}

func median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Clone(d)
	slices.Sort(d)
	return d[len(d)/2]
}

// outcome is what a loaded run saw.
type outcome struct {
	flows []flowStats
	rtts  []time.Duration // in the steady part
	stats Stats
	span  time.Duration // of the steady part
}

func (o outcome) goodput(d load.Direction) bitrate.Bitrate {
	sum := uint64(0)
	for _, f := range o.flows {
		if f.direction == d {
			sum += f.bytes - f.steady
		}
	}
	return bitrate.Of(sum, o.span)
}

// loaded runs flows for warm+span and pings in the span.
func loaded(t testing.TB, c Config, server netip.Addr, down, up int, warm, span time.Duration) outcome {
	t.Helper()
	o := outcome{flows: make([]flowStats, down+up), span: span}
	within(t, c, func(ctx context.Context, l *Lab) {
		ctx, cancel := context.WithCancel(ctx)
		var servers, g sync.WaitGroup
		to := netip.AddrPortFrom(server, serve(ctx, t, l, &servers))
		start := l.Client().Now()
		steady, end := start.Add(warm), start.Add(warm+span)
		for i := range down + up {
			d := load.Download
			if i >= down {
				d = load.Upload
			}
			g.Go(func() {
				// One after the other: of goroutines that begin together, the scheduler may let any be first.
				err := l.Client().SleepUntil(ctx, start.Add(time.Duration(i)*ms))
				if err != nil {
					t.Error(err)
				}
				if o.flows[i], err = bulk(ctx, l, to, d, steady, end); err != nil {
					t.Errorf("flow %d: %v", i, err)
				}
			})
		}
		if err := l.Client().SleepUntil(ctx, steady); err != nil {
			t.Error(err)
		}
		o.rtts = ping(ctx, t, l.Client(), server, 100*ms, end)
		g.Wait()
		o.stats = l.Stats()
		cancel()
		servers.Wait()
	})
	return o
}

func TestAnIdlePingTakesThePropagationAndItsTransmission(t *testing.T) {
	for _, to := range []netip.Addr{serverIPv4, serverIPv6} {
		t.Run(to.String(), func(t *testing.T) {
			within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
				h := l.Client()
				rtts := ping(ctx, t, h, to, 100*ms, h.Now().Add(2*time.Second))
				wire := 20 + 64 + 14
				if to.Is6() {
					wire += 20
				}
				want := 40*ms + (20 * bitrate.Mbit).Duration(wire) + (4 * bitrate.Mbit).Duration(wire)
				if len(rtts) != 20 {
					t.Errorf("%d of 20 replies", len(rtts))
				}
				for i, rtt := range rtts {
					if rtt != want {
						t.Errorf("reply %d took %v, want %v; the first must not wait for an address", i, rtt, want)
					}
				}
			})
		})
	}
}

// payload is the goodput that Linux's TCP reaches on a link of this rate: 1448 of 1514 bytes.
func payload(rate bitrate.Bitrate) float64 { return float64(rate) * 1448 / 1514 }

func TestTCPFillsTheLinkAndItsQueue(t *testing.T) {
	for name, c := range map[string]struct {
		queue    string
		server   netip.Addr
		down, up int
	}{
		"1 download, fifo": {"fifo", serverIPv4, 1, 0}, "5 downloads, fifo": {"fifo", serverIPv4, 5, 0}, "5 uploads, fifo": {"fifo", serverIPv4, 0, 5},
		"5 downloads, fq_codel": {"fq_codel", serverIPv4, 5, 0}, "5 uploads, fq_codel": {"fq_codel", serverIPv4, 0, 5},
		"5 downloads, IPv6": {"fifo", serverIPv6, 5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			warm, span := 10*time.Second, 40*time.Second
			if raceDetector {
				warm, span = time.Second, time.Second
			}
			o := loaded(t, Config{Virtual: true, Queue: c.queue}, c.server, c.down, c.up, warm, span)
			direction, rate, other := load.Download, 20*bitrate.Mbit, 4*bitrate.Mbit
			if c.up > 0 {
				direction, rate, other = load.Upload, other, rate
			}
			share := float64(o.goodput(direction)) / payload(rate)
			ping := 20 + 64 + 14
			if c.server.Is6() {
				share *= 1448.0 / 1428 // the longer header
				ping += 20
			}
			full := 290*ms + other.Duration(ping)
			mid, longest := median(o.rtts), slices.Max(o.rtts)
			t.Logf("goodput %.3f Mbit/s, %.4f of the payload rate; %d RTTs, median %v, longest %v", o.goodput(direction).Mbps(), share, len(o.rtts), mid, longest)
			if raceDetector {
				return // so short a run says nothing of the queue
			}
			if share < 0.99 || share > 1 {
				t.Errorf("goodput %v is %.4f of what the link carries, want 0.99 to 1", o.goodput(direction), share)
			}
			if c.queue == "fq_codel" {
				if mid > 50*ms {
					t.Errorf("induced latency %v in the median, want under 10 ms", mid-40*ms)
				}
				return
			}
			if packet := rate.Duration(1514); longest > full+packet || longest < full-3*packet {
				t.Errorf("longest RTT %v, want %v to within three packets", longest, full)
			}
			// CUBIC falls to 0.7 of a full queue and spends most of its time on the plateau above 0.85.
			if got := float64(mid) / float64(full); got < 0.8 || got > 1 {
				t.Errorf("median RTT %v is %.2f of a full queue's, want 0.8 to 1", mid, got)
			}
		})
	}
}

func TestBothDirectionsAtOnce(t *testing.T) {
	for _, queue := range []string{"fifo", "fq_codel"} {
		t.Run(queue, func(t *testing.T) {
			warm, span := 10*time.Second, 30*time.Second
			if raceDetector {
				warm, span = time.Second, time.Second
			}
			o := loaded(t, Config{Virtual: true, Queue: queue}, serverIPv4, 5, 5, warm, span)
			up, down := o.goodput(load.Upload), o.goodput(load.Download)
			t.Logf("down %v, up %v, RTT %v to %v", down, up, median(o.rtts), slices.Max(o.rtts))
			if raceDetector {
				return
			}
			// The acknowledgements of the other direction take their share.
			if down < 16*bitrate.Mbit || up < 2500*bitrate.Kbit {
				t.Errorf("down %v and up %v, want more than 16 and 2.5 Mbit/s", down, up)
			}
			if most := map[string]time.Duration{"fifo": 541 * ms, "fq_codel": 60 * ms}[queue]; slices.Max(o.rtts) > most {
				t.Errorf("RTT up to %v, want at most %v", slices.Max(o.rtts), most)
			}
			if mid := median(o.rtts); queue == "fq_codel" && mid > 50*ms {
				t.Errorf("induced latency %v in the median, want under 10 ms", mid-40*ms)
			}
		})
	}
}

func TestVirtualTimeIsDeterministic(t *testing.T) {
	span, repeats := 8*time.Second, 3
	if raceDetector {
		span, repeats = 2*time.Second, 1
	}
	run := func() outcome {
		return loaded(t, Config{Virtual: true, Queue: "fq_codel", Seed: 7}, serverIPv4, 4, 4, 2*time.Second, span)
	}
	want := run()
	defer debug.SetGCPercent(debug.SetGCPercent(1)) // as if there were much garbage: it may come at no other time
	for range repeats {
		got := run()
		if got.stats != want.stats || !slices.Equal(got.flows, want.flows) || !slices.Equal(got.rtts, want.rtts) {
			t.Errorf("the same lab gave two results:\n%+v\n%+v", want.stats, got.stats)
		}
	}
}

func TestEveryPacketIsAccountedFor(t *testing.T) {
	within(t, Config{Virtual: true, BufferUp: 20000}, func(ctx context.Context, l *Lab) {
		in, err := l.Server().ListenUDP(ctx, netip.MustParseAddrPort("0.0.0.0:7"), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		out, err := l.Client().DialUDP(ctx, netip.AddrPortFrom(serverIPv4, 7), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		const n = 1000
		end := l.Server().Now().Add(3 * time.Second)
		in.SetReadDeadline(end)
		got := uint64(0)
		var g sync.WaitGroup
		g.Go(func() {
			for b := make([]byte, 2000); ; got++ {
				if _, err := in.Receive(b); err != nil {
					return
				}
			}
		})
		start := l.Client().Now()
		for i := range n { // 6 Mbit/s into 4
			l.Client().SleepUntil(ctx, start.Add(time.Duration(i)*2*ms))
			if _, err := out.Send(make([]byte, 1472), netip.AddrPort{}); err != nil {
				t.Fatal(err)
			}
		}
		g.Wait()
		s := l.Stats()
		if s.Up.In.Packets != n || s.Up.Out.Packets != got || s.Up.Dropped().Packets != n-got || s.SocketDrops != 0 {
			t.Errorf("%d sent and %d received; the link says %+v, the sockets lost %d", n, got, s.Up, s.SocketDrops)
		}
		if share := float64(got) / n; share < 0.66 || share > 0.68 {
			t.Errorf("%d of %d datagrams arrived at 1.5 times the rate, want two thirds and the buffer", got, n)
		}
	})
}

func TestBytesAckedIsWhatThePeerGot(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		ln, err := l.Server().ListenTCP(ctx, netip.MustParseAddrPort("0.0.0.0:80"), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		conn, err := l.Client().DialTCP(ctx, netip.AddrPortFrom(serverIPv4, 80), host.Options{DSCP: 46})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		peer, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		const n = 300001
		var read int64
		var g sync.WaitGroup
		g.Go(func() { read, _ = io.Copy(io.Discard, peer) })
		if _, err := conn.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		early, err := l.Client().TCPInfo(conn)
		if err != nil || !early.HasBytesAcked || early.BytesAcked >= n {
			t.Errorf("with data still queued: %+v, %v; want less than all acknowledged", early, err)
		}
		if err := conn.(*Conn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		g.Wait()
		l.Client().SleepUntil(ctx, l.Client().Now().Add(time.Second))
		info, err := l.Client().TCPInfo(conn)
		if err != nil || info.BytesAcked != n || read != n {
			t.Errorf("%d bytes acknowledged and %d read of %d (%v)", info.BytesAcked, read, n, err)
		}
		if info.CongestionControl != "cubic" || info.DS != 46<<2 || !info.HasDS || info.RTT < 40*ms || info.SendMSS < 1400 || !info.HasRetransmits {
			t.Errorf("unlikely state %+v", info)
		}
	})
}

func TestCloseLeavesNothingRunning(t *testing.T) {
	for name, c := range map[string]Config{"real": {}, "virtual": {Virtual: true}} {
		t.Run(name, func(t *testing.T) {
			before, procs := runtime.NumGoroutine(), runtime.GOMAXPROCS(0)
			within(t, c, func(ctx context.Context, l *Lab) {
				ctx, cancel := context.WithCancel(ctx)
				var servers sync.WaitGroup
				to := netip.AddrPortFrom(serverIPv4, serve(ctx, t, l, &servers))
				if _, err := bulk(ctx, l, to, load.Download, l.Client().Now(), l.Client().Now().Add(300*ms)); err != nil {
					t.Error(err)
				}
				cancel()
				servers.Wait()
			})
			got := runtime.NumGoroutine()
			for deadline := time.Now().Add(5 * time.Second); got > before && time.Now().Before(deadline); got = runtime.NumGoroutine() {
				time.Sleep(ms) // what has just been waited for may still be on its last line
			}
			if got > before {
				buf := make([]byte, 1<<16)
				t.Errorf("%d goroutines before and %d after:\n%s", before, got, buf[:runtime.Stack(buf, true)])
			}
			if got := runtime.GOMAXPROCS(0); got != procs {
				t.Errorf("GOMAXPROCS is %d after a lab, was %d", got, procs)
			}
		})
	}
}

func TestTheLabDescribesItself(t *testing.T) {
	const codel = "fq_codel limit 10240p flows 1024 quantum 1514 target 5ms interval 100ms ce_threshold 0s memory_limit 32m drop_batch 64 ecn"
	for name, c := range map[string]struct {
		config Config
		want   Description
	}{
		"defaults": {Config{}, Description{"in process, real time", 20 * bitrate.Mbit, 4 * bitrate.Mbit, 40 * ms, "fifo",
			"bfifo limit 625000", "bfifo limit 125000", 625000, 125000, 14}},
		"fq_codel in virtual time": {Config{Queue: "fq_codel", Virtual: true, RTT: 10 * ms, Overhead: -1},
			Description{"in process, virtual time", 20 * bitrate.Mbit, 4 * bitrate.Mbit, 10 * ms, "fq_codel", codel, codel, 32 << 20, 32 << 20, 0}},
		"bytes one way, time the other": {Config{Buffer: 100 * ms, BufferUp: 30000, RTT: -1},
			Description{"in process, real time", 20 * bitrate.Mbit, 4 * bitrate.Mbit, 0, "fifo",
				"bfifo limit 250000", "bfifo limit 30000", 250000, 30000, 14}},
		"a queue each way": {Config{Queue: "codel", QueueUp: "bfifo limit 100ms", BufferUp: 5000}, Description{"in process, real time", 20 * bitrate.Mbit,
			4 * bitrate.Mbit, 40 * ms, "codel down, bfifo limit 100ms up",
			"codel limit 1000p noecn target 5ms interval 100ms ce_threshold 0s", "bfifo limit 50000", 1514000, 50000, 14}},
		"no limit": {Config{Down: Unlimited, Up: Unlimited},
			Description{"in process, real time", 0, 0, 40 * ms, "fifo", "bfifo limit 64m", "bfifo limit 64m", 64 << 20, 64 << 20, 14}},
	} {
		l, err := New(c.config)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := l.Describe(); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		l.Close()
	}
}

func TestBadConfigsAreNamed(t *testing.T) {
	for want, c := range map[string]Config{
		`lab download: queue discipline "fq_cobel": want one of pfifo, bfifo,`: {Queue: "fq_cobel"},
		`lab upload: codel target "0s": want 1µs to 1m0s, as in 5ms`:           {QueueUp: "codel target 0s"},
		"download: link minimum packet of -1 bytes: want 0 to 2048":            {MinPacket: -1},
		"upload: link device limit of -1 bytes: want 0 to 16777216":            {DeviceUp: -1},
		"download: link loss 2: want a share from 0 to 1":                      {EffectsDown: link.Effects{Loss: link.Loss{Good: 2}}},
		"upload: schedule that repeats after 1ns":                              {ScheduleUp: link.Schedule{Repeat: 1}},
		"lab RTT 2m0s: want at most 1m0s":                                      {RTT: 2 * time.Minute},
		"lab buffer -1ns: want a time up to 1m0s":                              {Buffer: -1},
		"lab download rate 1bit: want 1kbit to 1000Gbit":                       {Down: 1},
		"lab upload rate -2bit: want 1kbit to 1000Gbit":                        {Up: -2},
		"lab upload buffer of 500 bytes: want 1514 (one packet) to 1073741824": {Buffer: ms},
		"lab download buffer of 7 bytes: want 1514":                            {BufferDown: 7},
		"download: link overhead 2000 bytes: want 0 to 1024":                   {Overhead: 2000},
	} {
		l, err := New(c)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// An emulated medium that harms packets harms no connection: what is lost, damaged, doubled, late or overtaken, TCP mends.
func TestEveryQueueAndEffectCarriesTCP(t *testing.T) {
	if testing.Short() {
		t.Skip("one run per queue in virtual time is too slow under the race detector")
	}
	effects := link.Effects{Loss: link.Loss{Good: 0.0005}, Duplicate: 0.01, Corrupt: 0.0005, Reorder: link.Reorder{Share: 0.005},
		Jitter: link.Jitter{Spread: ms}}
	schedule := link.Schedule{Steps: []link.Step{{At: 300 * ms, For: 100 * ms, Sets: link.SetsOutage}}, Repeat: time.Second}
	for _, c := range []Config{
		{Queue: "pfifo"}, {Queue: "pfifo_fast"}, {Queue: "sfq perturb 1s"}, {Queue: "drr leaf pie"}, {Queue: "qfq leaf codel"}, {Queue: "red"},
		{Queue: "codel"}, {Queue: "pie"}, {Queue: "fq_pie"}, {Queue: "cake"}, {Queue: "cake bandwidth 15mbit ack-filter", QueueUp: "cake bandwidth 3mbit ack-filter"},
		{Queue: "htb rate 3mbit leaf fq_codel"}, {Queue: "tbf rate 3mbit"}, {Queue: "policer rate 3mbit"}, {Queue: "codel_policer rate 3mbit"},
		{Queue: "fifo", DeviceDown: 4500, MinPacket: 64, Cells: link.ATM},
		{Queue: "fq_codel", EffectsDown: effects, EffectsUp: effects}, {Queue: "fifo", ScheduleDown: schedule, ScheduleUp: schedule},
	} {
		c.Virtual, c.Seed = true, 1
		got := loaded(t, c, serverIPv4, 2, 0, ms, 2*time.Second)
		total := uint64(0)
		for _, f := range got.flows {
			total += f.bytes
		}
		if total < 150000 {
			t.Errorf("%s down, %d effects: %d bytes in 2 s", c.Queue, got.stats.Down.Corrupted, total)
		}
	}
}

// BenchmarkUnlimited is what one flow carries when the link has no rate, in real time.
func BenchmarkUnlimited(b *testing.B) {
	within(b, Config{Down: Unlimited, Up: Unlimited, RTT: -1}, func(ctx context.Context, l *Lab) {
		ctx, cancel := context.WithCancel(ctx)
		var servers sync.WaitGroup
		to := netip.AddrPortFrom(serverIPv4, serve(ctx, b, l, &servers))
		c, err := l.Client().DialTCP(ctx, to, host.Options{})
		if err != nil {
			b.Fatal(err)
		}
		c.Write([]byte{byte(load.Download)})
		buf := make([]byte, 64<<10)
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
		c.(*Conn).SetLinger(0)
		c.Close()
		cancel()
		servers.Wait()
	})
}

func TestEverySecondSegmentIsAcknowledged(t *testing.T) {
	o := loaded(t, Config{Virtual: true}, serverIPv4, 1, 0, ms, 5*time.Second)
	if share := float64(o.stats.Up.In.Packets) / float64(o.stats.Down.Out.Packets); share < 0.48 || share > 0.56 {
		t.Errorf("%d packets up for %d down, want about half", o.stats.Up.In.Packets, o.stats.Down.Out.Packets)
	}
}

func TestALoneSegmentIsAcknowledgedAfterTheDelay(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		ln, err := l.Server().ListenTCP(ctx, netip.MustParseAddrPort("0.0.0.0:80"), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		h := l.Client()
		conn, err := h.DialTCP(ctx, netip.AddrPortFrom(serverIPv4, 80), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		acked := func(after time.Duration) uint64 {
			h.SleepUntil(ctx, h.Now().Add(after))
			info, err := h.TCPInfo(conn)
			if err != nil {
				t.Fatal(err)
			}
			return info.BytesAcked
		}
		for n := range uint64(quickAcks) {
			if _, err := conn.Write([]byte{0}); err != nil {
				t.Fatal(err)
			}
			if got := acked(45 * ms); got != n+1 {
				t.Errorf("byte %d: %d acknowledged after a round trip", n+1, got)
			}
			acked(100 * ms)
		}
		conn.Write([]byte{0})
		if early, late := acked(75*ms), acked(10*ms); early != quickAcks || late != quickAcks+1 {
			t.Errorf("of a lone byte, %d were acknowledged after 75 ms and %d after 85, want 0 and 1 with a delay of 40 ms",
				early-quickAcks, late-quickAcks)
		}
	})
}
