package acceptance

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/host"
	"bufferbloat/internal/testnet"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load/netperf"
	iperf3server "bufferbloat/servers/iperf3"
	netperfserver "bufferbloat/servers/netperf"
)

// within is a host all of whose sockets are those of a namespace.
type within struct{ inside }

func (w within) ListenTCP(ctx context.Context, at netip.AddrPort, o host.Options) (l net.Listener, err error) {
	w.space.Inside(w.t, func() { l, err = w.Host.ListenTCP(ctx, at, o) })
	return l, err
}

// A datagram is answered to whoever it says that it comes from, who may be anybody: only an address from which a control connection stands gets an
// answer. The kernel's own counts of datagrams are what is looked at, since no forger would see an answer.
func TestDatagramsWithForgedSourcesAreNotAnswered(t *testing.T) {
	t.Parallel()
	n := testnet.New(t)
	client, server := within{inside{host.NewKernel(), n.Client, t}}, within{inside{host.NewKernel(), n.Server, t}}
	np, ip := netip.AddrPortFrom(n.Server.IP, 12865), netip.AddrPortFrom(n.Server.IP, wire.Port)
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}, 2), make(chan error, 2)
	tell := func([]netip.AddrPort) { ready <- struct{}{} }
	go func() {
		ended <- (&netperfserver.Server{Options: netperfserver.Options{Ready: tell}}).Serve(ctx, server, np)
	}()
	go func() {
		ended <- (&iperf3server.Server{Options: iperf3server.Options{Ready: tell}}).Serve(ctx, server, ip)
	}()
	defer func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	<-ready
	<-ready

	const forged = 100
	x := (&netperf.Client{Host: client, Addr: np}).NewTransactions(netperf.TransactionOptions{Kind: netperf.UDPRR, Length: time.Minute, Count: 3,
		RequestSize: 100, ResponseSize: 100, Timeout: 30 * time.Second}) // a request that is repeated has one answer more
	if err := x.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	in, out := datagrams(t, n.Server)
	forge(t, n.Client, netip.AddrPortFrom(n.Server.IP, x.Response().DataPort), make([]byte, 100), forged)
	// What is answered behind them, on the same socket, tells that they were looked at.
	if got, err := x.Run(t.Context()); err != nil || got.Transactions != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	in, out = answered(t, n.Server, "netperf", in, out, forged, 3)

	conn, err := client.DialTCP(t.Context(), ip, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cookie := wire.NewCookie()
	hello := wire.Hello(cookie)
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = conn.Write(append(cookie[:], wire.Params{Protocol: wire.UDP, Parallel: 1, Time: 5 * time.Second, Size: 100, NamedStreams: true}.AppendTo(nil)...))
	expect(t, conn, wire.ParamExchange, wire.CreateStreams)
	forge(t, n.Client, ip, hello[:], forged)
	stream, err := client.DialUDP(t.Context(), ip, host.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Send(hello[:], netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	expect(t, conn, wire.TestStart)
	answered(t, n.Server, "iperf3", in, out, forged, 1)
}

// expect reads states of an iperf3 server.
func expect(t *testing.T, c net.Conn, states ...wire.State) {
	t.Helper()
	for _, want := range states {
		var b [1]byte
		if _, err := c.Read(b[:]); err != nil || wire.State(int8(b[0])) != want {
			t.Fatalf("the server says %v, %v; want %v", wire.State(int8(b[0])), err, want)
		}
	}
}

// answered compares what came to a host and left it since two counts with what was forged and what was asked by right. It returns the new counts.
func answered(t *testing.T, s *testnet.Space, who string, in, out, forged, right uint64) (uint64, uint64) {
	t.Helper()
	nowIn, nowOut := datagrams(t, s)
	if came := nowIn - in; came < forged+right {
		t.Errorf("%s: %d datagrams came, want the %d that were forged and %d", who, came, forged, right)
	}
	if left := nowOut - out; left != right {
		t.Errorf("%s: %d answers left for %d datagrams with forged sources and %d others", who, left, forged, right)
	}
	return nowIn, nowOut
}

// datagrams returns how many came to a host and left it so far.
func datagrams(t *testing.T, s *testnet.Space) (in, out uint64) {
	t.Helper()
	s.Inside(t, func() {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			t.Error(err)
			return
		}
		for line := range strings.Lines(string(text)) {
			var none, errors uint64
			if _, err := fmt.Sscanf(line, "Udp: %d %d %d %d", &in, &none, &errors, &out); err == nil {
				return
			}
		}
		t.Errorf("no counts of datagrams in %s", text)
	})
	return in, out
}

// forge sends so many datagrams in the name of a host that does not exist.
func forge(t *testing.T, from *testnet.Space, to netip.AddrPort, payload []byte, n int) {
	t.Helper()
	const headers = 28
	packet := make([]byte, headers, headers+len(payload))
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_UDP
	source, dst := [4]byte{203, 0, 113, 7}, to.Addr().As4()
	copy(packet[12:], source[:])
	copy(packet[16:], dst[:])
	binary.BigEndian.PutUint16(packet[20:], 40000)
	binary.BigEndian.PutUint16(packet[22:], to.Port())
	binary.BigEndian.PutUint16(packet[24:], uint16(8+len(payload)))
	packet = append(packet, payload...)
	from.Inside(t, func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		for range n {
			if err := unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: dst}); err != nil {
				t.Error(err)
				return
			}
		}
	})
}
