package kernel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/host"
	"bufferbloat/servers/lab/link"
	"bufferbloat/servers/lab/link/queue"
)

// The test binary is all parts of a lab, as this variable says.
const (
	partVariable = "BLOAT_TEST_PART"
	linkVariable = "BLOAT_TEST_LINK"

	insidePart  = "inside"  // runs one test, inside a lab that the test builds
	linkPart    = "link"    // forwards
	holderPart  = "holder"  // enters a lab and waits there
	sleeperPart = "sleeper" // is inside of it
)

func TestMain(m *testing.M) {
	part := os.Getenv(partVariable)
	var err error
	switch part {
	case "", insidePart:
		os.Exit(m.Run())
	case linkPart:
		err = Forward(context.Background(), testLinks)
	case holderPart:
		err = hold()
	case sleeperPart:
		err = sleepInside()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, part, err)
		os.Exit(1)
	}
}

func again(part string, args ...string) Program {
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, partVariable+"=") })
	// Under the race detector a process would otherwise sleep for a second before it exits.
	return Program{Args: append([]string{os.Args[0]}, args...), Env: append(env, partVariable+"="+part, "GORACE=atexit_sleep_ms=0")}
}

// testLink is the same link in both directions.
type testLink struct {
	Rate       bitrate.Bitrate
	Delay      time.Duration
	Buffer     int  // bytes of a FIFO; 0 means 1.5 MB
	FairQueue  bool // fq_codel instead
	Mark       bool // mark every packet that may be
	Duplicate  float64
	Corruption float64
	RealTime   bool // of the lab, not of its link
}

func testLinks(drop func(link.Packet, link.Reason), clone func(any) any) (down, up *link.Link, err error) {
	var c testLink
	if err := json.Unmarshal([]byte(os.Getenv(linkVariable)), &c); err != nil {
		return nil, nil, err
	}
	var both [2]*link.Link
	for i := range both {
		discipline := queue.BFIFO{Limit: c.Buffer}.New
		if c.FairQueue {
			discipline = queue.FQCoDel{}.New
		}
		if c.Mark {
			discipline = marking(discipline)
		}
		o := link.Options{Rate: c.Rate, Delay: c.Delay, Framing: link.Framing{Overhead: 14}, Queue: discipline, Drop: drop, Clone: clone}
		o.Effects.Duplicate, o.Effects.Corrupt = c.Duplicate, c.Corruption
		if both[i], err = link.New(o); err != nil {
			return nil, nil, err
		}
	}
	return both[0], both[1], nil
}

// marking is a queue that marks every packet with an ECT code point.
func marking(d link.Discipline) link.Discipline {
	return func(e link.Env) (link.Queue, error) {
		q, err := d(e)
		return marker{q, e.Mark}, err
	}
}

type marker struct {
	link.Queue
	mark func()
}

func (m marker) Enqueue(p link.Packet, now time.Duration) {
	if p.ECT() {
		p.Marked = true
		m.mark()
	}
	m.Queue.Enqueue(p, now)
}

// inLab runs the rest of the test inside a lab with this link: outside it starts the test once more, inside, and waits for it.
func inLab(t *testing.T, c testLink, inside func(t *testing.T, l *Lab)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if os.Getenv(partVariable) == insidePart {
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		outside, err := OpenOutside()
		if err != nil {
			t.Fatal(err)
		}
		forwarder := again(linkPart)
		forwarder.Env = append(forwarder.Env, linkVariable+"="+string(text))
		l, err := Build(ctx, BuildOptions{Forwarder: forwarder, Hosts: []string{"lab"}, RealTime: c.RealTime || os.Getenv("BLOAT_ACCURACY") != ""})
		if rerr := outside.Report(l, err); err != nil || rerr != nil {
			t.Fatal(err, rerr)
		}
		defer l.Close()
		t.Logf("%+v", l.Facts())
		inside(t, l)
		return
	}
	in, err := Enter(ctx, again(insidePart, "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.timeout=100s", "-test.v="+strconv.FormatBool(testing.Verbose())))
	if missing := (*MissingError)(nil); errors.As(err, &missing) {
		facility.Missing(t, string(missing.Facility), missing.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	if status, err := in.Wait(); err != nil || status != 0 {
		t.Errorf("inside the lab the test ended with status %d, %v", status, err)
	}
}

// inServer is the server's end as a Host: its sockets are opened there.
type inServer struct {
	*host.Kernel
	l *Lab
}

func (h inServer) ListenTCP(ctx context.Context, at netip.AddrPort, o host.Options) (n net.Listener, err error) {
	ierr := h.l.server.do(func() error { n, err = h.Kernel.ListenTCP(ctx, at, o); return nil })
	return n, errors.Join(err, ierr)
}

func (h inServer) ListenUDP(ctx context.Context, at netip.AddrPort, o host.Options) (c host.PacketConn, err error) {
	ierr := h.l.server.do(func() error { c, err = h.Kernel.ListenUDP(ctx, at, o); return nil })
	return c, errors.Join(err, ierr)
}

func TestThePathIsTheLinkAndNothingElse(t *testing.T) {
	inLab(t, testLink{Delay: 5 * time.Millisecond}, func(t *testing.T, l *Lab) {
		h := host.NewKernel()
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			conn, err := h.DialEcho(t.Context(), to, host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			request := make([]byte, 64)
			if request[0] = 8; to.Is6() {
				request[0] = 128
			}
			sent, err := conn.Send(request, netip.AddrPort{})
			if err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			d, err := conn.Receive(request)
			if err != nil {
				t.Errorf("%v does not answer: %v", to, err)
				continue
			}
			if rtt := d.At.Sub(sent); rtt < 10*time.Millisecond {
				t.Errorf("%v answers in %v, which is less than the link's delay of twice 5 ms", to, rtt)
			}
		}
		if _, err := h.DialTCP(t.Context(), netip.MustParseAddrPort("198.51.100.1:80"), host.Options{}); !errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("another network: got %v, want that it is unreachable", err)
		}
		addrs, err := h.Resolve(t.Context(), "lab", host.IPv4)
		if err != nil || addrs[0] != ServerIPv4 {
			t.Errorf("the name lab: %v, %v", addrs, err)
		}
		checkSane(t, l)
		if cost := l.Facts().Cost; !cost.Known() || cost.Median <= 0 || cost.Median > cost.P90 {
			t.Errorf("the carrier's own delay is %+v", cost)
		}
	})
}

// Of two such labs at once on two CPUs each could keep one for ever: one thread of the runtime spun there for what another one held, which had
// no turn. The labs wait for each other as much as there are CPUs.
func TestRealTimeLabsAtOnceAreAllBuilt(t *testing.T) {
	for i := range 6 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			inLab(t, testLink{Delay: time.Millisecond, RealTime: true}, func(t *testing.T, l *Lab) {
				if !l.Facts().RealTime {
					t.Skip("real-time scheduling is not permitted here")
				}
				tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", l.forwarder.process.Pid))
				if err != nil {
					t.Fatal(err)
				}
				for _, task := range tasks {
					tid, _ := strconv.Atoi(task.Name())
					if a, err := unix.SchedGetAttr(tid, 0); err != nil || a.Policy != unix.SCHED_RR {
						t.Errorf("thread %d of the forwarder has policy %+v, %v; want SCHED_RR, under which equals take turns", tid, a, err)
					}
				}
				checkSane(t, l)
			})
		})
	}
}

// checkSane checks what holds for every lab at rest.
func checkSane(t *testing.T, l *Lab) Stats {
	t.Helper()
	s, err := l.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]link.Stats{"down": s.Down, "up": s.Up} {
		if in, out := d.In.Packets+d.Duplicated.Packets, d.Out.Packets+d.Dropped().Packets+d.Backlog.Packets; in != out {
			t.Errorf("%s: %d packets in, and %d out, dropped or inside: %+v", name, in, out, d)
		}
	}
	if s.Outside.Foreign > 0 || s.Outside.Unsent > 0 {
		t.Errorf("packets were lost outside the link: %+v", s.Outside)
	}
	return s
}

// transfer sends size bytes through a TCP connection to the server's end and back again, and returns an error where they are not the same.
func transfer(ctx context.Context, l *Lab, to netip.Addr, size int) error {
	server := inServer{host.NewKernel(), l}
	listener, err := server.ListenTCP(ctx, netip.AddrPortFrom(to, 0), host.Options{})
	if err != nil {
		return err
	}
	defer listener.Close()
	echoed := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			_, err = io.Copy(conn, conn)
		}
		echoed <- err
	}()
	conn, err := server.DialTCP(ctx, netip.MustParseAddrPort(listener.Addr().String()), host.Options{})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(50 * time.Second)); err != nil {
		return err
	}
	sent, received := sha256.New(), sha256.New()
	sending := make(chan error, 1)
	go func() {
		b := make([]byte, 256<<10)
		for n := 0; n < size; n += len(b) {
			b[n%len(b)] = byte(n >> 18)
			sent.Write(b)
			if _, err := conn.Write(b); err != nil {
				sending <- err
				return
			}
		}
		sending <- conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	n, err := io.Copy(received, conn)
	if err := errors.Join(err, <-sending, <-echoed); err != nil {
		return err
	}
	if n < int64(size) || !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		return fmt.Errorf("%d bytes came back, and they are not those that were sent", n)
	}
	return nil
}

func TestStreamsArriveWholeAndInSegments(t *testing.T) {
	inLab(t, testLink{Delay: time.Millisecond, Duplicate: 0.001, Corruption: 0.001}, func(t *testing.T, l *Lab) {
		const size = 16 << 20
		for _, to := range []netip.Addr{ServerIPv4, ServerIPv6} {
			if err := transfer(t.Context(), l, to, size); err != nil {
				t.Errorf("%v: %v", to, err)
			}
		}
		s := checkSane(t, l)
		if least := uint64(2 * size / 1448); s.Up.In.Packets < least {
			t.Errorf("%d packets for %d bytes, want at least %d: super-packets were not taken apart", s.Up.In.Packets, 2*size, least)
		}
		if biggest := s.Up.In.Bytes / s.Up.In.Packets; biggest > mtu+14 {
			t.Errorf("packets of %d bytes on average, want at most %d", biggest, mtu+14)
		}
		if s.Up.Duplicated.Packets == 0 || s.Up.Corrupted == 0 {
			t.Errorf("nothing was duplicated or damaged, and both were asked for: %+v", s.Up)
		}
	})
}

func TestFairQueueingKeepsStreamsWhole(t *testing.T) {
	inLab(t, testLink{Rate: 400 * bitrate.Mbit, Delay: time.Millisecond, FairQueue: true}, func(t *testing.T, l *Lab) {
		failures := make(chan error)
		for range 4 {
			go func() { failures <- transfer(t.Context(), l, ServerIPv4, 4<<20) }()
		}
		for range 4 {
			if err := <-failures; err != nil {
				t.Error(err)
			}
		}
		if s := checkSane(t, l); s.DownQueue.Kind == "" && s.Down.Out.Packets == 0 {
			t.Errorf("nothing was counted: %+v", s)
		}
	})
}

func TestMarksReachTheReceiver(t *testing.T) {
	inLab(t, testLink{Mark: true}, func(t *testing.T, l *Lab) {
		server := inServer{host.NewKernel(), l}
		for _, at := range []netip.Addr{ServerIPv4, ServerIPv6} {
			to, err := server.ListenUDP(t.Context(), netip.AddrPortFrom(at, 0), host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer to.Close()
			for _, ecn := range []int{0, 1, 2} {
				level, name := unix.IPPROTO_IP, unix.IP_TOS
				if at.Is6() {
					level, name = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
				}
				d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
					cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, name, ecn) })
					return errors.Join(err, cerr)
				}}
				from, err := d.Dial("udp", to.LocalAddr().String())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := from.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				from.Close()
				if err := to.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
					t.Fatal(err)
				}
				want := uint8(3)
				if ecn == 0 {
					want = 0
				}
				b := make([]byte, 16)
				if got, err := to.Receive(b); err != nil || !got.HasDS || got.DS != want || string(b[:got.N]) != "hello" {
					t.Errorf("ECN %d to %v: got %q with DS byte %#x, %v; want %#x", ecn, at, b[:got.N], got.DS, err, want)
				}
			}
		}
	})
}

func TestDatagramsOfOneCallArriveApart(t *testing.T) {
	inLab(t, testLink{}, func(t *testing.T, l *Lab) {
		server := inServer{host.NewKernel(), l}
		to, err := server.ListenUDP(t.Context(), netip.AddrPortFrom(ServerIPv4, 0), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		conn, err := net.Dial("udp", to.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		raw, err := conn.(*net.UDPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		const size, n = 1000, 20
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) })
		if err != nil || cerr != nil {
			facility.Missing(t, "udp-segment", fmt.Sprint(err, cerr))
		}
		all := make([]byte, size*n-1)
		for i := range all {
			all[i] = byte(i / size)
		}
		if _, err := conn.Write(all); err != nil {
			t.Fatal(err)
		}
		if err := to.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2*size)
		for i := range n {
			d, err := to.Receive(b)
			want := all[i*size : min((i+1)*size, len(all))]
			if err != nil || !bytes.Equal(b[:d.N], want) {
				t.Fatalf("datagram %d: got %d bytes, %v; want %d of value %d", i, d.N, err, len(want), i)
			}
		}
		if s := checkSane(t, l); s.Up.In.Packets < n {
			t.Errorf("%d packets entered the link, want %d", s.Up.In.Packets, n)
		}
	})
}

// TestLabWithoutPrivilege runs the same as TestStreams..., as a user who has none.
func TestLabWithoutPrivilege(t *testing.T) {
	if os.Geteuid() != 0 || os.Getenv(partVariable) == insidePart {
		inLab(t, testLink{Delay: time.Millisecond}, func(t *testing.T, l *Lab) {
			if err := transfer(t.Context(), l, ServerIPv4, 4<<20); err != nil {
				t.Error(err)
			}
			if f := l.Facts(); f.Privilege == asRoot || f.RealTime || len(f.Notes) > 0 || !f.Names {
				t.Errorf("the lab says %+v of itself", f)
			}
			checkSane(t, l)
		})
		return
	}
	const nobody = 65534
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestLabWithoutPrivilege$", "-test.v", "-test.timeout=100s")
	cmd.Args[0] = os.Args[0]
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if _, reason, skipped := strings.Cut(string(out), "no userns here: "); skipped {
		reason, _, _ = strings.Cut(reason, "\n")
		facility.Missing(t, "userns", reason)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestLabWithoutPrivilege") {
		t.Errorf("as user %d: %v\n%s", nobody, err, out)
	}
}

// hold enters a lab, prints the number of the process inside, and waits.
func hold() error {
	in, err := Enter(context.Background(), again(sleeperPart))
	if missing := (*MissingError)(nil); errors.As(err, &missing) {
		fmt.Println(missing.Facility, missing)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Println(in.PID)
	_, err = in.Wait()
	return err
}

// sleepInside starts a process that nobody but the end of the lab ends.
func sleepInside() error {
	outside, err := OpenOutside()
	if err != nil {
		return err
	}
	var c children
	_, err = c.start(Program{Path: "/bin/sleep", Args: []string{"sleep", "300"}}, nil)
	if err := errors.Join(err, outside.Report(&Lab{}, err)); err != nil {
		return err
	}
	outside.Signals(func(syscall.Signal) {})
	time.Sleep(5 * time.Minute) // the connection's end alone must not be what ends it
	return nil
}

func TestNothingSurvivesAKill(t *testing.T) {
	p := again(holderPart)
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Stderr = p.Args, p.Env, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var line string
	if _, err := fmt.Fscanln(out, &line); err != nil {
		t.Fatalf("the process outside prints %q: %v", line, err)
	}
	pid, err := strconv.Atoi(line)
	if err != nil {
		facility.Missing(t, line, "the lab could not be entered")
	}
	kids, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil || len(strings.Fields(string(kids))) != 1 {
		t.Logf("children of %d: %q, %v", pid, kids, err) // not every kernel tells
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, p := range append(strings.Fields(string(kids)), line) {
		for try := 0; ; try++ {
			if _, err := os.Stat("/proc/" + p + "/ns/net"); err != nil {
				break
			}
			if try == 200 {
				t.Fatalf("process %s still runs 5 s after the one outside was killed", p)
			}
			time.Sleep(25 * time.Millisecond) // nobody tells when a process of another parent is gone
		}
	}
}

func TestAMistakeInTheLinkReachesTheBuilder(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if os.Getenv(partVariable) == insidePart {
		outside, err := OpenOutside()
		if err != nil {
			t.Fatal(err)
		}
		forwarder := again(linkPart)
		forwarder.Env = append(forwarder.Env, linkVariable+`={"Rate":1}`)
		l, err := Build(ctx, BuildOptions{Forwarder: forwarder})
		if err := outside.Report(l, err); err != nil {
			t.Fatal(err)
		}
		return
	}
	in, err := Enter(ctx, again(insidePart, "-test.run=^"+t.Name()+"$"))
	if err == nil {
		in.Wait()
		t.Fatal("a link of 1 bit/s was built")
	}
	if missing := (*MissingError)(nil); errors.As(err, &missing) {
		facility.Missing(t, string(missing.Facility), missing.Error())
	}
	if !strings.Contains(err.Error(), "link rate 1bit: want") {
		t.Errorf("got the error %q, want the link's own words", err)
	}
}

func TestAStrayProcessIsNoPartOfALab(t *testing.T) {
	if _, err := OpenOutside(); err == nil {
		t.Error("this process was taken for one inside a lab")
	}
	if _, err := Build(t.Context(), BuildOptions{}); err == nil {
		t.Error("a lab was built around this process")
	}
}
