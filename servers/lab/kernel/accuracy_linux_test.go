package kernel

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
)

// accuracyVariable set to anything runs the comparisons that print the tables of docs/lab-carrier.md.
const accuracyVariable = "BLOAT_ACCURACY"

func needAccuracy(t *testing.T) {
	t.Helper()
	if os.Getenv(accuracyVariable) == "" {
		t.Skipf("set %s=1 (make bench) for the tables, which take some minutes", accuracyVariable)
	}
}

// rateTolerance is how far the achieved rate may be from the asked one.
const rateTolerance = 0.005

func TestAccuracyOfTheRate128k(t *testing.T) { accuracyOfRate(t, 128*bitrate.Kbit, 20*time.Second) }
func TestAccuracyOfTheRate1M(t *testing.T)   { accuracyOfRate(t, bitrate.Mbit, 8*time.Second) }
func TestAccuracyOfTheRate10M(t *testing.T)  { accuracyOfRate(t, 10*bitrate.Mbit, 5*time.Second) }
func TestAccuracyOfTheRate100M(t *testing.T) { accuracyOfRate(t, 100*bitrate.Mbit, 5*time.Second) }
func TestAccuracyOfTheRate500M(t *testing.T) { accuracyOfRate(t, 500*bitrate.Mbit, 5*time.Second) }
func TestAccuracyOfTheRate1G(t *testing.T)   { accuracyOfRate(t, bitrate.Gbit, 5*time.Second) }

// accuracyOfRate floods the link with full-size datagrams and measures at the receiver's device what comes through. The queue is so deep that
// the sender may be held up for a while by other work on the machine.
func accuracyOfRate(t *testing.T, rate bitrate.Bitrate, length time.Duration) {
	needAccuracy(t)
	offered, depth := rate*12/10, 0.4
	if rate <= 10*bitrate.Mbit {
		offered, depth = rate*3, 1.5
	}
	buffer := max(int(float64(rate)/8*depth), 5*(mtu+14))
	inLab(t, testLink{Rate: rate, Buffer: buffer}, func(t *testing.T, l *Lab) {
		server := inServer{host.NewKernel(), l}
		sink, err := server.ListenUDP(t.Context(), netip.AddrPortFrom(ServerIPv4, 0), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close()
		ctx, cancel := context.WithCancel(t.Context())
		flooding := make(chan error)
		go func() { flooding <- flood(ctx, sink.LocalAddr(), offered) }()
		defer func() {
			cancel()
			if err := <-flooding; err != nil {
				t.Error(err)
			}
		}()
		const warmUp = time.Second // the queue fills
		var got bitrate.Bitrate
		if rate <= bitrate.Mbit {
			got = rateOfArrivals(t, sink, warmUp, length)
		} else {
			time.Sleep(warmUp)
			got = rateOfDevice(t, l, length)
		}
		cancel()
		s := checkSane(t, l)
		off := float64(got)/float64(rate) - 1
		fmt.Printf("| %v | %.4f Mbit/s | %+.3f %% | %v | %d |\n", rate, got.Mbps(), off*100, &s.Lateness, s.Outside.Total())
		if math.Abs(off) > rateTolerance {
			t.Errorf("%v came through a link of %v: off by %+.2f %%, want at most %.1f %%", got, rate, off*100, rateTolerance*100)
		}
	})
}

// flood sends full-size datagrams at a rate until ctx is done, in batches on a schedule.
func flood(ctx context.Context, to netip.AddrPort, rate bitrate.Bitrate) error {
	conn, err := net.Dial("udp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	const payload, batch = mtu - 28, 16
	cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, payload) })
	if err := errors.Join(err, cerr); err != nil {
		return err
	}
	hurryBelow() // the one who is to keep the link busy must not wait for others
	b := make([]byte, payload*batch)
	start := time.Now()
	for sent := 0; ctx.Err() == nil; {
		due := int(time.Since(start).Seconds() * float64(rate) / float64(mtu+14) / 8)
		for sent < due {
			n := min(batch, due-sent)
			sent += n
			if _, err := conn.Write(b[:n*payload]); err != nil && ctx.Err() == nil && !errors.Is(err, syscall.ENOBUFS) {
				return err
			}
		}
		// Not the runtime's sleep: to end that takes another thread, and that one has to wait for its turn.
		pause := unix.NsecToTimespec(200_000)
		_ = unix.Nanosleep(&pause, nil)
	}
	return nil
}

// hurryBelow gives the calling goroutine a thread of its own with real-time scheduling, below the forwarder's, where that is permitted.
func hurryBelow() {
	runtime.LockOSThread()
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: 5}, 0)
}

// rateOfArrivals returns the rate, as the link counts it, by the kernel's stamps of the datagrams: where they are so few that the time
// between two of them matters.
func rateOfArrivals(t *testing.T, sink host.PacketConn, warmUp, length time.Duration) bitrate.Bitrate {
	t.Helper()
	b := make([]byte, mtu)
	if err := sink.SetReadDeadline(time.Now().Add(warmUp + length + 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	var first, last time.Time
	start := time.Now()
	count := 0
	for {
		d, err := sink.Receive(b)
		if err != nil {
			t.Fatal(err)
		}
		if first.IsZero() {
			if d.At.Sub(start) > warmUp {
				first = d.At
			}
			continue
		}
		count++
		if last = d.At; last.Sub(first) >= length {
			return bitrate.Of(uint64(count)*(mtu+14), last.Sub(first))
		}
	}
}

// rateOfDevice returns the rate by the counters of the server's device: of what no socket may have had room for as well.
func rateOfDevice(t *testing.T, l *Lab, length time.Duration) bitrate.Bitrate {
	t.Helper()
	read := func() (n uint64, at time.Time) {
		err := l.server.do(func() error {
			b, err := os.ReadFile("/proc/thread-self/net/dev")
			at = time.Now()
			if _, line, ok := strings.Cut(string(b), Device+":"); ok {
				n, _ = strconv.ParseUint(strings.Fields(line)[0], 10, 64)
			}
			return err
		})
		if err != nil || n == 0 {
			t.Fatal("no counter of the device", err)
		}
		return n, at
	}
	before, from := read()
	time.Sleep(length)
	after, to := read()
	return bitrate.Of(after-before, to.Sub(from))
}

func TestAccuracyOfTheDelay20us(t *testing.T)  { accuracyOfDelay(t, 20*time.Microsecond, false) }
func TestAccuracyOfTheDelay1ms(t *testing.T)   { accuracyOfDelay(t, time.Millisecond, false) }
func TestAccuracyOfTheDelay300ms(t *testing.T) { accuracyOfDelay(t, 300*time.Millisecond, false) }

func TestAccuracyOfTheDelayBusy20us(t *testing.T)  { accuracyOfDelay(t, 20*time.Microsecond, true) }
func TestAccuracyOfTheDelayBusy1ms(t *testing.T)   { accuracyOfDelay(t, time.Millisecond, true) }
func TestAccuracyOfTheDelayBusy300ms(t *testing.T) { accuracyOfDelay(t, 300*time.Millisecond, true) }

// resultVariable names the file in which a test inside a lab leaves what it measured for the one outside.
const resultVariable = "BLOAT_TEST_RESULT"

// train is what came of a train of pings through a lab, beyond twice the delay that was asked of each direction.
type train struct {
	RealTime         bool
	Min, Median, P99 time.Duration
	Late             string
}

// accuracyOfDelay compares round-trip times with what was asked: trains of pings through a lab with the delay, each beside one through a lab whose link
// is but the wire on which the carrier's own delay is measured, in turn. The rest at the 99th percentile, beyond the wire's median of the same
// minute, is to be at most 100 us idle and 1 ms busy; what it is depends on what else the machine does, so it is printed. Busy means an endless
// loop per CPU beside.
func accuracyOfDelay(t *testing.T, delay time.Duration, busy bool) {
	needAccuracy(t)
	const rounds = 3
	file := filepath.Join(t.TempDir(), "result")
	if os.Getenv(partVariable) == "" {
		t.Setenv(resultVariable, file)
	}
	for i := range rounds {
		var both [2]train
		for j, d := range []time.Duration{wireDelay, delay} {
			ran := t.Run(fmt.Sprintf("%d-%d", i, j), func(t *testing.T) {
				inLab(t, testLink{Delay: d}, func(t *testing.T, l *Lab) { leave(t, pingTrain(t, l, d, busy)) })
			})
			if text, err := os.ReadFile(file); ran && err == nil { // inside nobody reads
				if err := json.Unmarshal(text, &both[j]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if os.Getenv(partVariable) == insidePart || t.Failed() || t.Skipped() {
			continue
		}
		wire, lab := both[0], both[1]
		load := map[bool]string{false: "as it was", true: "busy"}[busy]
		fmt.Printf("| %v | %s | %v | %v | %v | %v | %v | %v | %v | %s |\n", delay, load, lab.RealTime, us(wire.Median), us(wire.P99), us(lab.Min), us(lab.Median),
			us(lab.P99), us(lab.P99-wire.Median), lab.Late)
	}
}

// leave writes what was measured for the test outside.
func leave(t *testing.T, r train) {
	t.Helper()
	text, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(os.Getenv(resultVariable), text, 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

func pingTrain(t *testing.T, l *Lab, delay time.Duration, busy bool) train {
	t.Helper()
	if busy {
		for range runtime.NumCPU() {
			p, err := l.StartServer(Program{Path: "/bin/sh", Args: []string{"sh", "-c", "while :; do :; done"}}, nil, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer p.WaitOrKill(0)
		}
	}
	rtts := pings(t, 400, 2*delay+2*time.Second)
	slices.Sort(rtts)
	at := func(p float64) time.Duration { return rtts[int(p*float64(len(rtts)-1))] - 2*delay }
	s := checkSane(t, l)
	return train{RealTime: l.Facts().RealTime, Min: at(0), Median: at(0.5), P99: at(0.99), Late: s.Lateness.String()}
}

func us(d time.Duration) string { return fmt.Sprintf("%.0f us", float64(d)/1000) }

// pings sends pings every 5 ms, whatever comes back, and returns the round-trip times of those that were answered.
func pings(t *testing.T, n int, patience time.Duration) []time.Duration {
	t.Helper()
	h := host.NewKernel()
	conn, err := h.DialEcho(t.Context(), ServerIPv4, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sent := make([]time.Time, n)
	var rtts []time.Duration
	done := make(chan error, 1)
	if err := conn.SetReadDeadline(time.Now().Add(time.Duration(n)*5*time.Millisecond + patience)); err != nil {
		t.Fatal(err)
	}
	arrived := make([]time.Time, n)
	go func() {
		b := make([]byte, 128)
		for range n {
			d, err := conn.Receive(b)
			if err != nil {
				done <- err
				return
			}
			if i := int(binary.BigEndian.Uint16(b[6:])); i < n {
				arrived[i] = d.At
			}
		}
		done <- nil
	}()
	hurryBelow()
	defer runtime.UnlockOSThread()
	start := time.Now()
	request := make([]byte, 64)
	for i := range n {
		time.Sleep(time.Until(start.Add(time.Duration(i) * 5 * time.Millisecond)))
		request[0] = 8
		binary.BigEndian.PutUint16(request[6:], uint16(i))
		if sent[i], err = conn.Send(request, netip.AddrPort{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("not all pings were answered: %v", err)
	}
	for i := range n {
		if !arrived[i].IsZero() {
			rtts = append(rtts, arrived[i].Sub(sent[i]))
		}
	}
	return rtts
}

func TestAccuracyThroughput(t *testing.T)          { throughput(t, false) }
func TestAccuracyThroughputFairQueue(t *testing.T) { throughput(t, true) }

// throughput runs iperf3 through an unlimited link, and through a veth pair without any, in turn.
func throughput(t *testing.T, fair bool) {
	needAccuracy(t)
	if _, err := exec.LookPath("iperf3"); err != nil {
		facility.Missing(t, "iperf3", err.Error())
	}
	// The queue is in use only where there is a rate.
	inLab(t, testLink{Rate: 100 * bitrate.Gbit, Buffer: 64 << 20, FairQueue: fair}, func(t *testing.T, l *Lab) {
		direct := plainPair(t, l)
		iperf, err := l.StartServer(Program{Path: "/bin/sh", Args: []string{"sh", "-c", "exec iperf3 -s >/dev/null 2>&1"}, Env: os.Environ()}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer iperf.WaitOrKill(0)
		queue := map[bool]string{false: "FIFO", true: "fq_codel"}[fair]
		for _, flows := range []int{1, 4} {
			for range 3 {
				through, plain := iperfRate(t, l, ServerIPv4, flows), iperfRate(t, l, direct, flows)
				s := checkSane(t, l)
				fmt.Printf("| %s | %d | %.0f Mbit/s | %.0f Mbit/s | %d |\n", queue, flows, through.Mbps(), plain.Mbps(), s.Outside.Total())
			}
		}
	})
}

// plainPair joins both ends directly, and returns the server's address there.
func plainPair(t *testing.T, l *Lab) netip.Addr {
	t.Helper()
	own, other := netip.MustParsePrefix("203.0.113.1/24"), netip.MustParsePrefix("203.0.113.2/24")
	err := l.client.do(func() error {
		return addVeth(end{"plain", [6]byte{2, 0, 0, 0, 4, 1}}, end{"plain", [6]byte{2, 0, 0, 0, 4, 2}}, l.server.fd)
	})
	for in, a := range map[namespace]netip.Prefix{l.client: own, l.server: other} {
		if err == nil {
			err = in.do(func() error {
				device, err := net.InterfaceByName("plain")
				if err == nil {
					err = errors.Join(setUp(device.Index), addAddress(device.Index, a))
				}
				return err
			})
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // the devices open
	return other.Addr()
}

// iperfRate runs iperf3 to an address of the server, with cubic.
func iperfRate(t *testing.T, l *Lab, to netip.Addr, flows int) bitrate.Bitrate {
	t.Helper()
	path, err := exec.LookPath("iperf3")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"iperf3", "-c", to.String(), "-J", "-t", "4", "-O", "1", "-C", "cubic", "-P", strconv.Itoa(flows)}
	for try := 0; ; try++ {
		got, err := iperf(l, Program{Path: path, Args: args, Env: os.Environ()})
		if err == nil {
			return got
		}
		if try == 20 {
			t.Fatalf("iperf3: %v", err)
		}
		time.Sleep(100 * time.Millisecond) // its server is not there yet, or still busy with the last one
	}
}

func iperf(l *Lab, program Program) (bitrate.Bitrate, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	p, err := l.StartClient(program, nil, w, nil)
	w.Close()
	if err != nil {
		return 0, err
	}
	var result struct {
		Error string
		End   struct {
			Received struct {
				BPS float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	err = json.NewDecoder(r).Decode(&result)
	<-p.Ended()
	if err == nil && result.Error != "" {
		err = errors.New(result.Error)
	}
	return bitrate.Bitrate(result.End.Received.BPS), err
}
