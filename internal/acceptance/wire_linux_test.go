package acceptance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
	"bufferbloat/servers/lab/kernel"
)

// wireTolerance is how far apart the flows of the two programs begin and end at most, where nothing else on the machine stands in their way: in make
// bench, which runs both with real-time scheduling. Otherwise the eleven programs that flent runs take up to seconds to start on a busy machine, and only
// the first flow of each is compared, more loosely.
const (
	wireTolerance = 100 * time.Millisecond
	busyTolerance = 2 * time.Second
)

// TestOurRRULAndFlentsAreTheSameOnTheWire runs both through links of the same kind and compares what a capture at the client sees: per bulk
// flow its direction, the marks of both ends and when data flowed; per UDP probe its mark.
func TestOurRRULAndFlentsAreTheSameOnTheWire(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"flent", "irtt", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			facility.Missing(t, program, err.Error())
		}
	}
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "netperf")); err != nil {
		t.Fatal(err)
	}
	strict := os.Getenv(accuracyVariable) != ""
	ours, theirs, host := newWire(t, binary), newWire(t, binary), kernel.ServerIPv4.String()
	ours.start(t, nil, binary, "rrul", "-H", host, "--length", "3", "--step", "0.2", "-4", "-o", filepath.Join(dir, "ours.bloat.json.gz"))
	if strict {
		<-ours.ended // or each stands in the other's way
	}
	log := filepath.Join(dir, "flent.log")
	theirs.start(t, []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "MPLCONFIGDIR=" + dir, "LC_ALL=C.UTF-8", "MPLBACKEND=Agg"},
		"flent", "rrul", "-4", "-H", host, "--length", "3", "-D", dir, "-L", log)
	a, b := ours.end(t), theirs.end(t)
	said, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	overdue := bytes.Count(said, []byte("Killed by timeout")) // ten seconds beyond their length
	if missed := a.missed + b.missed; !strict && (missed > 0 || overdue > 0) {
		t.Skipf("the captures missed %d packets, and flent ended %d programs before their time: this machine is too busy to compare them", missed, overdue)
	}
	compareFlows(t, a, b, strict)
	if got, want := a.probes, b.probes; !maps.Equal(got, want) {
		t.Errorf("marks of UDP probes: ours %v, flent's %v", got, want)
	}
}

// bulk is one data connection as the capture saw it. Times count from the first echo request.
type bulk struct {
	up, down         byte // DS bytes
	upload           bool
	bytes            [2]int // of payload from the client and from the server
	first, last      time.Duration
	changedUpOrDown  bool // its marks were not the same on all packets with data
	seenUp, seenDown bool
}

// wireView is what a capture saw.
type wireView struct {
	flows  []*bulk
	probes map[byte]int // DS byte of UDP probes, and how many sockets sent with it
	missed uint32       // packets that the capture had no room for
}

// compareFlows matches the flows by direction and marks, and compares their times where that is wanted.
func compareFlows(t *testing.T, a, b wireView, times bool) {
	t.Helper()
	key := func(f *bulk) string {
		return fmt.Sprintf("upload %v, marks %#02x up and %#02x down", f.upload, f.up, f.down)
	}
	sort := func(fs []*bulk) map[string][]*bulk {
		m := map[string][]*bulk{}
		for _, f := range fs {
			if f.changedUpOrDown {
				t.Errorf("a flow changed its marks: %+v", f)
			}
			m[key(f)] = append(m[key(f)], f)
		}
		return m
	}
	ours, theirs := sort(a.flows), sort(b.flows)
	if len(a.flows) != 8 || len(b.flows) != 8 {
		t.Errorf("%d flows of ours and %d of flent's, want 8", len(a.flows), len(b.flows))
	}
	for k := range theirs {
		if len(ours[k]) != len(theirs[k]) {
			t.Errorf("%s: %d of ours, %d of flent's", k, len(ours[k]), len(theirs[k]))
			continue
		}
		for i, f := range ours[k] {
			g := theirs[k][i]
			t.Logf("%s: ours from %v to %v, flent's from %v to %v", k, f.first, f.last, g.first, g.last)
			if times && ((f.first-g.first).Abs() > wireTolerance || (f.last-g.last).Abs() > wireTolerance) {
				t.Errorf("%s: ours from %v to %v, flent's from %v to %v, more than %v apart", k, f.first, f.last, g.first, g.last, wireTolerance)
			}
		}
	}
	if len(a.flows) > 0 && len(b.flows) > 0 && (a.flows[0].first-b.flows[0].first).Abs() > busyTolerance {
		t.Errorf("the first of our flows begins at %v, the first of flent's at %v", a.flows[0].first, b.flows[0].first)
	}
	for k := range ours {
		if len(theirs[k]) == 0 {
			t.Errorf("%s: %d of ours, none of flent's", k, len(ours[k]))
		}
	}
}

// wireRun is one program in an emulated lab of its own, which has the lab server, and a capture beside it.
type wireRun struct {
	pid  string // of a process at the client's end
	cmd  *exec.Cmd
	out  bytes.Buffer
	stop chan struct{}
	view func() wireView

	ended chan struct{}
	err   error // of cmd, when it has ended
}

// newWire makes a lab whose queues keep flows apart. flent's netperf asks the server for each test after its first tests have begun: what it asks then is
// neither lost nor late by anything but the programs themselves. In a drop-tail queue of 50 ms that the first flows fill, the others' requests are
// lost and sent again, and begin 600 ms late.
func newWire(t *testing.T, binary string) *wireRun {
	t.Helper()
	cmd := undisturbed(exec.Command(binary, "lab", "--down", "20mbit", "--up", "20mbit", "--rtt", "2ms", "--qdisc", "fq_codel", "--real-time"))
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
		_, enter, ok := strings.Cut(lines.Text(), "lab: enter with: nsenter -t ")
		if !ok {
			continue
		}
		var rest sync.WaitGroup
		rest.Go(func() { _, _ = io.Copy(io.Discard, said) })
		t.Cleanup(func() {
			_ = cmd.Process.Signal(os.Interrupt)
			late := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
			rest.Wait()
			_ = cmd.Wait()
			late.Stop()
		})
		pid, flags, _ := strings.Cut(enter, " ")
		if strings.HasPrefix(flags, "-U") {
			facility.Missing(t, "netns", "entering a lab takes root")
		}
		return &wireRun{pid: pid, stop: make(chan struct{}), ended: make(chan struct{})}
	}
	_ = cmd.Wait()
	missingLab(t, strings.Join(all, "\n"))
	t.Fatalf("bloat lab says %q", all)
	return nil
}

// undisturbed has a command run before all that is no real-time program, where times are compared.
func undisturbed(cmd *exec.Cmd) *exec.Cmd {
	if path, err := exec.LookPath("chrt"); err == nil && os.Getenv(accuracyVariable) != "" {
		cmd.Args = append([]string{"chrt", "-r", "1", cmd.Path}, cmd.Args[1:]...)
		cmd.Path = path
	}
	return cmd
}

// start begins to capture and to run a command at the client's end.
func (w *wireRun) start(t *testing.T, env []string, args ...string) {
	t.Helper()
	w.view = w.capture(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.cmd = undisturbed(exec.CommandContext(ctx, "nsenter", append([]string{"-t", w.pid, "-m", "-n", "-p"}, args...)...))
	w.cmd.WaitDelay = time.Second
	w.cmd.Env = append(os.Environ(), env...)
	w.cmd.Stdout, w.cmd.Stderr = &w.out, &w.out
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { w.err = w.cmd.Wait(); close(w.ended) }()
	t.Cleanup(func() { cancel(); <-w.ended })
}

// end waits for the command and returns what was on the wire.
func (w *wireRun) end(t *testing.T) wireView {
	t.Helper()
	<-w.ended
	err := w.err
	close(w.stop)
	view := w.view()
	if err != nil && w.cmd.ProcessState.ExitCode() != statusPartial {
		t.Errorf("%v: %v\n%s", w.cmd.Args, err, w.out.String())
	}
	return view
}

// capture reads what passes the client's device until w.stop is closed.
func (w *wireRun) capture(t *testing.T) func() wireView {
	t.Helper()
	fd := -1
	var err error
	testnet.InsideOf(t, w.pid, func() { fd, err = captureSocket() })
	if err != nil {
		facility.Missing(t, "packet-socket", err.Error())
	}
	s := &sniffer{client: kernel.ClientIPv4, flows: map[uint16]*bulk{}, probes: map[uint16]map[byte]int{}}
	var missed uint32
	var reader sync.WaitGroup
	reader.Go(func() {
		defer unix.Close(fd)
		b, oob := make([]byte, 128), make([]byte, 128)
		for {
			n, k, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_TRUNC)
			if err == nil {
				s.packet(b[:min(n, len(b))], stampOf(oob[:k]))
				continue
			}
			select {
			case <-w.stop:
				if c, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
					missed = c.Drops
				}
				return
			default:
			}
		}
	})
	return func() wireView {
		reader.Wait()
		v := s.result()
		v.missed = missed
		return v
	}
}

// captureSocket returns a socket that receives what passes the devices of this thread's namespace.
func captureSocket() (int, error) {
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return -1, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) // with less, packets may be missed on a busy machine
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// stampOf is the kernel's time stamp of a packet.
func stampOf(oob []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Time{}
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Time{}
}

// sniffer sorts packets by the client's port.
type sniffer struct {
	client netip.Addr
	zero   time.Time // of the first echo request
	flows  map[uint16]*bulk
	probes map[uint16]map[byte]int
}

func (s *sniffer) packet(b []byte, at time.Time) {
	if len(b) < 28 || b[0]>>4 != 4 {
		return
	}
	ds, length, header := b[1], int(binary.BigEndian.Uint16(b[2:])), int(b[0]&15)*4
	from := netip.AddrFrom4([4]byte(b[12:16])) == s.client
	if len(b) < header+8 {
		return
	}
	port, other := binary.BigEndian.Uint16(b[header:]), binary.BigEndian.Uint16(b[header+2:])
	if !from {
		port, other = other, port
	}
	switch p := b[header:]; b[9] {
	case unix.IPPROTO_ICMP:
		if from && p[0] == 8 && s.zero.IsZero() {
			s.zero = at
		}
	case unix.IPPROTO_UDP:
		if from && other == 2112 && !s.zero.IsZero() && at.Sub(s.zero) > 2*time.Second { // before that flent asks what the server can do
			if s.probes[port] == nil {
				s.probes[port] = map[byte]int{}
			}
			s.probes[port][ds]++
		}
	case unix.IPPROTO_TCP:
		if len(p) < 20 || other == 12865 {
			return
		}
		if payload := length - header - int(p[12]>>4)*4; payload > 0 {
			s.data(port, from, ds, payload, at)
		}
	}
}

// data counts a segment of a data connection.
func (s *sniffer) data(port uint16, from bool, ds byte, payload int, at time.Time) {
	f := s.flows[port]
	if f == nil {
		f = &bulk{first: at.Sub(s.zero)}
		s.flows[port] = f
	}
	f.last = at.Sub(s.zero)
	side, mark, seen := 1, &f.down, &f.seenDown
	if from {
		side, mark, seen = 0, &f.up, &f.seenUp
	}
	f.bytes[side] += payload
	if *seen && *mark != ds&^3 {
		f.changedUpOrDown = true
	}
	*mark, *seen = ds&^3, true
}

func (s *sniffer) result() wireView {
	v := wireView{probes: map[byte]int{}}
	for _, f := range s.flows {
		f.upload = f.bytes[0] > f.bytes[1]
		v.flows = append(v.flows, f)
	}
	slices.SortFunc(v.flows, func(a, b *bulk) int { return int(a.first - b.first) })
	for _, marks := range s.probes {
		most := byte(0)
		for ds, n := range marks {
			if n > marks[most] { // what opens and closes a session has no mark
				most = ds
			}
		}
		v.probes[most]++
	}
	return v
}
