package pump

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
)

// connected returns both ends of a TCP connection over loopback.
func connected(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); d.Close() })
	return c.(*net.TCPConn), d.(*net.TCPConn)
}

// soon bounds what a test waits for.
func soon() time.Time { return time.Now().Add(10 * time.Second) }

func option(t testing.TB, c syscall.Conn, level, name int) (value int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), level, name) }), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestEveryDiscardedByteIsCountedWhateverEndsTheStream(t *testing.T) {
	k := host.NewKernel()
	reset := func(c *net.TCPConn) { _ = c.SetLinger(0); c.Close() }
	for _, c := range []struct {
		name   string
		writes []int
		pause  time.Duration // before the end
		end    func(c *net.TCPConn)
		want   End
		err    error
	}{
		{"data and the end at once", []int{1, 1448, 100_000}, 0, func(c *net.TCPConn) { c.Close() }, Closed, nil},
		{"the end alone", []int{70_001}, 30 * time.Millisecond, func(c *net.TCPConn) { c.CloseWrite() }, Closed, nil},
		{"nothing at all", nil, 0, func(c *net.TCPConn) { c.Close() }, Closed, nil},
		{"a reset behind what was read", []int{50_000}, 30 * time.Millisecond, reset, Broken, syscall.ECONNRESET},
	} {
		t.Run(c.name, func(t *testing.T) {
			ours, theirs := connected(t)
			total := 0
			begin := time.Now()
			var wrote time.Time
			var feeder sync.WaitGroup
			feeder.Go(func() {
				for _, n := range c.writes {
					k, _ := theirs.Write(make([]byte, n))
					total += k
				}
				wrote = time.Now()
				time.Sleep(c.pause)
				c.end(theirs)
			})
			var n Counter
			got, err := Receive(t.Context(), k, ours, &n, Options{Until: soon()})
			ended := time.Now()
			feeder.Wait()
			if got.End != c.want || !errors.Is(err, c.err) || got.Bytes != uint64(total) || n.Bytes() != got.Bytes {
				t.Errorf("got %+v, %v, counter %d; want %v after %d bytes, %v", got, err, n.Bytes(), c.want, total, c.err)
			}
			if total == 0 {
				return
			}
			if got.First.Before(begin) || got.Last.Before(got.First) || got.Last.After(ended) || c.pause > 0 && ended.Sub(got.Last) < c.pause/2 {
				t.Errorf("first after %v, last after %v, written by %v, ended after %v", got.First.Sub(begin), got.Last.Sub(begin), wrote.Sub(begin), ended.Sub(begin))
			}
		})
	}
}

func TestWhatIsBeyondALimitIsLeftToBeRead(t *testing.T) {
	ours, theirs := connected(t)
	control := []byte("and what follows is for somebody who reads it")
	go func() { _, _ = theirs.Write(append(make([]byte, 300_000), control...)); theirs.Close() }()
	var n Counter
	got, err := Receive(t.Context(), host.NewKernel(), ours, &n, Options{Until: soon(), Limit: 300_000})
	if err != nil || got.End != Full || got.Bytes != 300_000 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if rest, err := io.ReadAll(ours); err != nil || !bytes.Equal(rest, control) {
		t.Errorf("then %q, %v; want %q", rest, err, control)
	}
}

// reader is a connection whose Read does more than read.
type reading struct {
	net.Conn
	seen bytes.Buffer
}

func (r *reading) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.seen.Write(b[:n])
	return n, err
}

func TestAConnectionThatLooksAtItsBytesIsReadByItsOwnRead(t *testing.T) {
	ours, theirs := connected(t)
	r := &reading{Conn: ours}
	go func() { _, _ = theirs.Write([]byte("content")); theirs.Close() }()
	var n Counter
	got, err := Receive(t.Context(), host.NewKernel(), r, &n, Options{Until: soon()})
	if err != nil || got.Bytes != 7 || r.seen.String() != "content" {
		t.Errorf("got %+v, %v; it saw %q", got, err, r.seen.String())
	}
}

func TestOnlyTCPIsDiscarded(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if newSocket(c) != nil {
		t.Error("a local socket is taken for TCP")
	}
	ours, _ := connected(t)
	if newSocket(ours) == nil {
		t.Error("TCP is not known as such")
	}
}

func TestAKernelThatCannotDiscardIsReadFrom(t *testing.T) {
	for _, errno := range []syscall.Errno{unix.EFAULT, unix.ENOSYS, unix.EPERM} {
		if err := error(&net.OpError{Op: "read", Err: os.NewSyscallError("recvfrom", errno)}); !lacksDiscard(err) {
			t.Errorf("%v is not taken for a call that is missing", err)
		}
	}
	for _, err := range []error{syscall.ECONNRESET, syscall.ETIMEDOUT, os.ErrDeadlineExceeded, net.ErrClosed} {
		if lacksDiscard(err) {
			t.Errorf("%v is taken for a call that is missing", err)
		}
	}
}

func TestTheTailOfAFastFlowThatStopsIsNotHeldBack(t *testing.T) {
	ours, theirs := connected(t)
	k := host.NewKernel()
	const tail = 1000
	var sent Counter
	var n Counter
	var feeder sync.WaitGroup
	feeder.Go(func() {
		defer theirs.CloseWrite()
		_, _ = Send(t.Context(), k, theirs, &sent, Options{Until: time.Now().Add(100 * time.Millisecond)})
		for n.Bytes() < sent.Bytes() && t.Context().Err() == nil {
			runtime.Gosched()
		}
		for range 3 {
			before := n.Bytes()
			begin := time.Now()
			_, _ = theirs.Write(make([]byte, tail))
			for n.Bytes() < before+tail && time.Since(begin) < 5*time.Second {
				time.Sleep(time.Millisecond)
			}
			if d := time.Since(begin); d > 4*time.Second {
				t.Errorf("%d bytes were not counted within %v", tail, d)
			}
		}
	})
	got, err := Receive(t.Context(), k, ours, &n, Options{Until: soon()})
	feeder.Wait()
	if err != nil || got.End != Closed || got.Bytes != sent.Bytes()+3*tail {
		t.Errorf("got %+v, %v; want %d bytes and %d", got, err, sent.Bytes(), 3*tail)
	}
	if at := option(t, ours, unix.SOL_SOCKET, unix.SO_RCVLOWAT); at != 1 {
		t.Errorf("the socket is left to wait for %d bytes", at)
	}
	if got.Calls > got.Bytes/leastBatch {
		t.Errorf("%d reads for %d bytes: it was woken for every segment", got.Calls, got.Bytes)
	}
}

func TestAFastFlowEndsAtOnceWithItsContext(t *testing.T) {
	k := host.NewKernel()
	cause := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	ours, theirs := connected(t)
	var group sync.WaitGroup
	for _, end := range []func() (Outcome, error){
		func() (Outcome, error) { return Receive(ctx, k, ours, new(Counter), Options{}) },
		func() (Outcome, error) { return Send(ctx, k, theirs, new(Counter), Options{}) },
	} {
		group.Go(func() {
			if got, err := end(); got.End != Stopped || !errors.Is(err, cause) || got.Bytes == 0 {
				t.Errorf("got %+v, %v; want stopped by its context", got, err)
			}
		})
	}
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	group.Wait()
}

func TestSocketTurnsAllocateNothing(t *testing.T) {
	ours, theirs := connected(t)
	a, b := newSocket(ours), newSocket(theirs)
	if got := testing.AllocsPerRun(100, func() {
		if k, err := b.write(1000, true); k != 1000 || err != nil {
			t.Fatal(k, err)
		}
		if k, err := a.discard(mostDiscarded); k != 1000 || err != nil {
			t.Fatal(k, err)
		}
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// stream returns n bytes of what a feed gives: the payload, as often as source has it, again and again. That holds where source has it in large pieces, so
// that a feed takes all of it each time.
func stream(t *testing.T, n int) []byte {
	t.Helper()
	f := newFeed()
	if f == nil {
		facility.Missing(t, "splice", "no pages can be given")
	}
	f.close()
	if round, err := unix.IoctlGetInt(source(), unix.TIOCINQ); err != nil || round != feedSize {
		t.Skipf("%d bytes of %d lie in the source, %v: this machine's memory is in small pieces", round, feedSize, err)
	}
	var once, all []byte
	for len(once) < feedSize {
		once = append(once, payload()...)
	}
	for len(all) < n {
		all = append(all, once[:feedSize]...)
	}
	return all[:n]
}

func TestWhatAFeedGivesIsThePayloadToTheByte(t *testing.T) {
	want := stream(t, 5*feedSize)
	ours, theirs := connected(t)
	s := newSocket(theirs)
	if s.openFeed() == 0 {
		t.Fatal("no feed, where there was one")
	}
	defer s.closeFeed()
	theirs.SetWriteDeadline(soon())
	var got []byte
	var group sync.WaitGroup
	group.Go(func() { got, _ = io.ReadAll(ours) })
	sent := 0
	for _, limit := range []int{5000, feedSize, feedSize - 848, 1, 65483, feedSize, 200_000} {
		k, err := s.write(limit, false)
		if err != nil || k < 1 || k > limit {
			t.Errorf("sent %d, %v; want 1 to %d", k, err, limit)
		}
		sent += k
	}
	if s.feed == nil {
		t.Error("this kernel takes no pages: nothing was tested")
	}
	theirs.CloseWrite()
	group.Wait()
	if len(got) != sent || !bytes.Equal(got, want[:sent]) {
		t.Errorf("%d bytes came of %d, or others than were sent", len(got), sent)
	}
}

func TestWhatIsToStayApartIsCopiedAlsoBesideAFeed(t *testing.T) {
	ours, theirs := connected(t)
	s := newSocket(theirs)
	if s.openFeed() == 0 {
		facility.Missing(t, "splice", "no pages can be given")
	}
	defer s.closeFeed()
	var got int64
	var group sync.WaitGroup
	group.Go(func() { got, _ = io.Copy(io.Discard, ours) })
	theirs.SetWriteDeadline(soon())
	var sent int64
	for i, apart := range []bool{true, false, true, false} { // a flow that falls and rises
		before := s.feed.pending
		k, err := s.write(5000, apart)
		if err != nil || s.feed == nil {
			t.Fatalf("write %d: sent %d, %v, with the feed %v", i, k, err, s.feed)
		}
		if copied := s.feed.pending == before; copied != apart {
			t.Errorf("write %d, apart %v: it was copied %v", i, apart, copied)
		}
		sent += int64(k)
	}
	theirs.CloseWrite()
	group.Wait()
	if got != sent {
		t.Errorf("%d bytes came of %d", got, sent)
	}
}

func TestAFastFlowCountsWhatItSentAndLeavesNoDescriptors(t *testing.T) {
	source() // it stays
	ours, theirs := connected(t)
	descriptors := func() int { list, _ := os.ReadDir("/proc/self/fd"); return len(list) }
	before := descriptors()
	var got int64
	var group sync.WaitGroup
	group.Go(func() { got, _ = io.Copy(io.Discard, ours) })
	var n Counter
	out, err := Send(t.Context(), host.NewKernel(), theirs, &n, Options{Until: time.Now().Add(150 * time.Millisecond)})
	theirs.CloseWrite()
	group.Wait()
	if err != nil || out.Bytes != uint64(got) || n.Bytes() != out.Bytes {
		t.Errorf("got %d bytes of %+v, %v, counter %d", got, out, err, n.Bytes())
	}
	if after := descriptors(); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

func TestAPeerThatIsGoneEndsAFeed(t *testing.T) {
	ours, theirs := connected(t)
	s := newSocket(theirs)
	if s.openFeed() == 0 {
		facility.Missing(t, "splice", "no pages can be given")
	}
	defer s.closeFeed()
	if k, err := s.write(5000, false); k != 5000 || err != nil {
		t.Fatalf("sent %d, %v; want 5000", k, err)
	}
	if s.feed == nil {
		t.Fatal("this kernel takes no pages: nothing was tested")
	}
	_ = ours.SetLinger(0)
	ours.Close()
	theirs.SetWriteDeadline(soon())
	for range 100 {
		if _, err := s.write(feedSize, false); err != nil {
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("got %v, want a reset", err)
			}
			return
		}
	}
	t.Error("a hundred writes to nobody, and no error")
}

func TestAPacedFlowKeepsItsRateOnTheKernelsStack(t *testing.T) {
	const rate, length = 20_000_000, time.Second
	ours, theirs := connected(t)
	k := host.NewKernel()
	var n Counter
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { _, _ = Receive(t.Context(), k, ours, &n, Options{Until: soon()}) })
	begin := time.Now()
	out, err := Send(t.Context(), k, theirs, new(Counter), Options{Rate: rate, Until: begin.Add(length)})
	theirs.CloseWrite()
	if want := float64(rate) / 8 * length.Seconds(); err != nil || float64(out.Bytes) > 1.02*want {
		t.Errorf("sent %d bytes in %v, %v; want at most %.0f", out.Bytes, time.Since(begin), err, want)
	} else if float64(out.Bytes) < 0.5*want { // on a machine that is this busy
		t.Errorf("sent %d bytes, want about %.0f", out.Bytes, want)
	}
	if got := option(t, theirs, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE); uint32(got) != ^uint32(0) {
		t.Errorf("the socket is left paced at %d bytes a second", got)
	}
}

// threads returns how many threads this process has.
func threads(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

func TestAThousandFlowsNeedNoThousandThreads(t *testing.T) {
	const flows = 1000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < 2*flows+100 {
		t.Skipf("%d descriptors are allowed here, want %d", limit.Cur, 2*flows+100)
	}
	k := host.NewKernel()
	before := threads(t)
	ctx, cancel := context.WithCancel(t.Context())
	counters := make([]Counter, flows)
	var group sync.WaitGroup
	for i := range flows {
		ours, theirs := connected(t)
		group.Go(func() { _, _ = Receive(ctx, k, ours, &counters[i], Options{}) })
		// At full speed they would overflow the kernel's queue of loopback packets, and time out.
		group.Go(func() { _, _ = Send(ctx, k, theirs, new(Counter), Options{Rate: 100_000}) })
	}
	most := 0
	for left := flows; left > 0 && ctx.Err() == nil; {
		most = max(most, threads(t))
		left = 0
		for i := range counters {
			if counters[i].Bytes() < 5_000 {
				left++
			}
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	group.Wait()
	if allowed := before + runtime.GOMAXPROCS(0) + 8; most > allowed {
		t.Errorf("%d threads for %d flows, %d before; want at most %d", most, flows, before, allowed)
	}
	t.Logf("%d threads, %d before", most, before)
}

// A slow link behind large buffers: what the sender has written and not sent would take seconds to cross it.
func TestASlowSendersBacklogIsSoonGone(t *testing.T) {
	t.Parallel()
	const flows, rate = 4, 512_000
	n := testnet.New(t)
	queue := testnet.Queue{Rate: rate, Buffer: 250 * time.Millisecond}
	n.Up.Shape(t, queue)
	n.Client.SetCongestionControl(t, "cubic", "reno")
	n.Client.Sysctl(t, "net/ipv4/tcp_wmem", "4096 4194304 4194304")
	k := host.NewKernel()
	at := netip.AddrPortFrom(n.Server.IP, 7)
	var l net.Listener
	n.Server.Inside(t, func() {
		var err error
		if l, err = k.ListenTCP(t.Context(), at, host.Options{}); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		return
	}
	defer l.Close()
	var group sync.WaitGroup
	defer group.Wait()
	for range flows {
		var c net.Conn
		n.Client.Inside(t, func() {
			var err error
			if c, err = k.DialTCP(t.Context(), at, host.Options{}); err != nil {
				t.Error(err)
			}
		})
		if t.Failed() {
			return
		}
		theirs, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer theirs.Close()
			_, _ = Receive(t.Context(), k, theirs, new(Counter), Options{Until: time.Now().Add(time.Minute)})
		})
		group.Go(func() {
			defer c.Close()
			until := time.Now().Add(3 * time.Second)
			out, err := Send(t.Context(), k, c, new(Counter), Options{Until: until})
			late := time.Since(until)
			info, ierr := k.TCPInfo(c)
			// A flow's share of the rate is 16 kB/s. The stack would hold 4 MiB; a look that came late to a dry queue has widened the limit to 64 KiB.
			const most = 8 * startBacklog
			if err != nil || ierr != nil || out.End != TimeUp || info.Unsent > most || late > 5*time.Second {
				t.Errorf("%+v, %v, %v late: %d bytes unsent (%v), want at most %d", out, err, late, info.Unsent, ierr, most)
			}
		})
	}
}
