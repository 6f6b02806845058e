package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	"bufferbloat/probe"
)

// witness is the kernel's host, and keeps what it said of the last connection.
type witness struct {
	*host.Kernel
	space *testnet.Space // where it connects from, nil for here
	t     *testing.T

	mu   sync.Mutex
	info host.TCPInfo
	seen bool
}

func (w *witness) DialTCP(ctx context.Context, to netip.AddrPort, o host.Options) (conn net.Conn, err error) {
	if w.space == nil {
		return w.Kernel.DialTCP(ctx, to, o)
	}
	w.space.Inside(w.t, func() { conn, err = w.Kernel.DialTCP(ctx, to, o) })
	return conn, err
}

func (w *witness) TCPInfo(c net.Conn) (host.TCPInfo, error) {
	info, err := w.Kernel.TCPInfo(c)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.info, w.seen = info, err == nil
	return info, err
}

// What the package doc says of Linux: a SYN that was lost shows in TCP_INFO, and so does the answer's own RTT. The first SYN finds the
// listener's queue full and is dropped; the second, 1 s later, is answered within a millisecond.
func TestALostSYNIsNotAnRTTOfOneSecond(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*unix.SockaddrInet4).Port))
	filler, err := net.Dial("tcp4", to.String()) // a backlog of 0 holds one
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()

	w := &witness{Kernel: host.NewKernel(), t: t}
	tr, err := Dial(w, to, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	start := w.Now()
	if _, err := tr.Send(0); err != nil {
		t.Fatal(err)
	}
	// Make room before the second SYN, and not before the first: it was dropped in the call to connect.
	if err := tr.Wake(start.Add(500 * ms)); err != nil {
		t.Fatal(err)
	}
	if r, err := tr.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("reply %+v, error %v; want none while the queue is full", r, err)
	}
	accepted, _, err := unix.Accept(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(accepted)
	if err := tr.Wake(start.Add(1800 * ms)); err != nil {
		t.Fatal(err)
	}
	if r, err := tr.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reply %+v, error %v; want none to a probe whose SYN was lost", r, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen || !w.info.HasRetransmits || w.info.Retransmits == 0 || w.info.RTT <= 0 || w.info.RTT > 500*ms {
		t.Errorf("the kernel says (%v) %+v; want retransmissions, and the RTT of the second SYN", w.seen, w.info)
	}
}

// And the other way round: behind a queue of 1.4 s the SYN is sent again although the first one arrives, and is answered.
func TestAPathSlowerThanTheFirstTimeoutHasItsRTT(t *testing.T) {
	n := testnet.New(t)
	n.Up.Shape(t, testnet.Queue{Rate: 200_000, Limit: 60_000})
	var listener net.Listener
	var sink net.PacketConn
	var flood net.Conn
	n.Server.Inside(t, func() {
		var err error
		if listener, err = net.Listen("tcp4", n.Server.IP.String()+":0"); err != nil {
			t.Error(err)
			return
		}
		if sink, err = net.ListenPacket("udp4", listener.Addr().String()); err != nil {
			t.Error(err)
		}
	})
	if listener == nil || sink == nil {
		t.FailNow()
	}
	defer listener.Close()
	defer sink.Close()
	n.Client.Inside(t, func() {
		var err error
		if flood, err = net.Dial("udp4", sink.LocalAddr().String()); err != nil {
			t.Error(err)
		}
	})
	if flood == nil {
		t.FailNow()
	}
	defer flood.Close()

	w := &witness{Kernel: host.NewKernel(), space: n.Client, t: t}
	tr, err := Dial(w, listener.Addr().(*net.TCPAddr).AddrPort(), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	trip(t, w, tr, 0) // the neighbours get to know each other
	for range 36 {
		if _, err := flood.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	r, rtt := trip(t, w, tr, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.info.Retransmits == 0 {
		t.Fatalf("the SYN was not sent again in %v: %+v", rtt, w.info)
	}
	// 36 frames of 1042 bytes, of which two or three leave at once, at 25 kB a second.
	if r.Kind != probe.Answer || rtt < 1300*ms || rtt > 1900*ms {
		t.Errorf("reply %+v after %v, the kernel says %+v; want an answer after about 1.4s", r, rtt, w.info)
	}
}

// trip sends probe seq and waits for its reply.
func trip(t *testing.T, w *witness, tr *Transport, seq uint64) (probe.Reply, time.Duration) {
	t.Helper()
	at, err := tr.Send(seq)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Wake(at.Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		r, err := tr.Receive()
		if err != nil {
			t.Fatalf("probe %d: %v", seq, err)
		}
		if r.Seq == seq {
			return r, r.At.Sub(at)
		}
	}
}
