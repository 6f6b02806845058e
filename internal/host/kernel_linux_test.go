package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

// loopbacks returns the loopback addresses that this machine has.
func loopbacks(t *testing.T) []netip.Addr {
	t.Helper()
	addrs := []netip.Addr{loopback4}
	if c, err := net.ListenPacket("udp6", "[::1]:0"); err == nil {
		c.Close()
		addrs = append(addrs, loopback6)
	}
	return addrs
}

func listenUDP(t *testing.T, k *Kernel, at netip.Addr, o Options) *packetConn {
	t.Helper()
	c, err := k.ListenUDP(t.Context(), netip.AddrPortFrom(at, 0), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*packetConn)
}

func dialUDP(t *testing.T, k *Kernel, to netip.AddrPort, o Options) *packetConn {
	t.Helper()
	c, err := k.DialUDP(t.Context(), to, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*packetConn)
}

// soon bounds what a test waits for.
func soon() time.Time { return time.Now().Add(5 * time.Second) }

func receive(t *testing.T, c PacketConn, b []byte) Datagram {
	t.Helper()
	if err := c.SetReadDeadline(soon()); err != nil {
		t.Fatal(err)
	}
	d, err := c.Receive(b)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTheKernelStampsWhatArrives(t *testing.T) {
	k := NewKernel()
	for _, at := range loopbacks(t) {
		t.Run(at.String(), func(t *testing.T) {
			server := listenUDP(t, k, at, Options{})
			client := dialUDP(t, k, server.LocalAddr(), Options{DSCP: 46})
			b := make([]byte, 100)
			// The kernel begins to stamp a moment after the first socket has asked for it.
			for end := soon(); ; {
				before := k.Now()
				sent, err := client.Send([]byte("probe"), netip.AddrPort{})
				if err != nil {
					t.Fatal(err)
				}
				d := receive(t, server, b)
				after := k.Now()
				if before.After(sent) || sent.After(d.At) || d.At.After(after) {
					t.Errorf("sent at %v, arrived at %v, read at %v by the %v stamp", sent.Sub(before), d.At.Sub(before), after.Sub(before), d.Stamp)
				}
				if d.N != 5 || string(b[:5]) != "probe" || d.Truncated || d.Rejected != nil || d.From != client.LocalAddr() {
					t.Errorf("got %+v, %q from %v", d, b[:d.N], client.LocalAddr())
				}
				if !d.HasDS || d.DS != 46<<2 || d.To != at {
					t.Errorf("DS %#x (%v) to %v; want %#x to %v", d.DS, d.HasDS, d.To, 46<<2, at)
				}
				if d.Stamp == KernelStamp {
					return
				}
				if k.Now().After(end) {
					t.Fatal("no kernel stamp in 5 s")
				}
			}
		})
	}
}

func TestAnAnswerComesFromTheAddressThatWasAsked(t *testing.T) {
	k := NewKernel()
	server := listenUDP(t, k, netip.IPv4Unspecified(), Options{})
	client := listenUDP(t, k, loopback4, Options{})
	asked := netip.MustParseAddrPort(fmt.Sprintf("127.0.0.2:%d", server.LocalAddr().Port()))
	if _, err := client.Send([]byte("?"), asked); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	d := receive(t, server, b)
	if d.To != asked.Addr() {
		t.Fatalf("sent to %v; want %v", d.To, asked.Addr())
	}
	if _, err := server.SendFrom([]byte("!"), d.To, d.From); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, client, b); d.From != asked {
		t.Errorf("answer from %v; want %v", d.From, asked)
	}
	if _, err := server.SendMarked([]byte("!"), d.To, d.From, 8); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, client, b); d.From != asked || d.DS != 8<<2 {
		t.Errorf("marked answer from %v with %#x; want %v with 0x20", d.From, d.DS, asked)
	}
	if _, err := server.SendFrom([]byte("!"), loopback6, d.From); err == nil {
		t.Error("an IPv6 source on an IPv4 socket: no error")
	}
	if _, err := server.Send([]byte("!"), netip.AddrPortFrom(loopback6, 9)); err == nil {
		t.Error("an IPv6 destination on an IPv4 socket: no error")
	}
	if _, err := server.SendMarked([]byte("!"), d.To, d.From, 64); err == nil {
		t.Error("mark 64: no error")
	}
	mapped := netip.AddrPortFrom(netip.MustParseAddr("::ffff:127.0.0.1"), d.From.Port())
	if _, err := server.Send([]byte("m"), mapped); err != nil {
		t.Errorf("to an IPv4 address in IPv6 form: %v", err)
	}
}

func TestMarksPerPacketLeaveTheSocketsOwnAlone(t *testing.T) {
	k := NewKernel()
	for _, at := range loopbacks(t) {
		server := listenUDP(t, k, at, Options{})
		client := listenUDP(t, k, at, Options{DSCP: 10})
		b := make([]byte, 10)
		for _, want := range []uint8{46, 0, 63} {
			if _, err := client.SendMarked(nil, netip.Addr{}, server.LocalAddr(), dscp.CodePoint(want)); err != nil {
				t.Fatal(err)
			}
			if d := receive(t, server, b); d.DS != want<<2 || d.N != 0 {
				t.Errorf("%v: got DS %#x with %d bytes; want %#x with none", at, d.DS, d.N, want<<2)
			}
		}
		if _, err := client.Send([]byte("x"), server.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if d := receive(t, server, b); d.DS != 10<<2 {
			t.Errorf("%v: the socket's own mark is %#x; want 0x28", at, d.DS)
		}
	}
}

func TestAClosedPortRejectsWithThePacketInQuestion(t *testing.T) {
	k := NewKernel()
	for _, at := range loopbacks(t) {
		gone := listenUDP(t, k, at, Options{})
		to := gone.LocalAddr()
		gone.Close()
		for name, c := range map[string]*packetConn{"connected": dialUDP(t, k, to, Options{}), "unconnected": listenUDP(t, k, at, Options{})} {
			t.Run(at.String()+" "+name, func(t *testing.T) {
				b := make([]byte, 100)
				// A send after the error must not be taken for one that failed: five go out, and five come back.
				for i := range 5 {
					if _, err := c.Send(fmt.Appendf(nil, "probe %d", i), to); err != nil {
						t.Fatalf("send %d: %v", i, err)
					}
				}
				for i := range 5 {
					d := receive(t, c, b)
					if d.Rejected == nil || !errors.Is(d.Rejected, syscall.ECONNREFUSED) || d.Rejected.By != at {
						t.Fatalf("got %+v", d)
					}
					if got, want := string(b[:d.N]), fmt.Sprintf("probe %d", i); got != want || d.From.IsValid() {
						t.Errorf("quotes %q from %v; want %q", got, d.From, want)
					}
				}
				if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				if d, err := c.Receive(b); err != os.ErrDeadlineExceeded {
					t.Errorf("after all of them: %+v, %v; want os.ErrDeadlineExceeded", d, err)
				}
			})
		}
	}
}

func TestReceiveEndsAtItsDeadlineAndAtClose(t *testing.T) {
	k := NewKernel()
	ping, pingErr := k.DialEcho(t.Context(), loopback4, Options{})
	conns := map[string]PacketConn{"listening": listenUDP(t, k, loopback4, Options{}),
		"connected": dialUDP(t, k, netip.AddrPortFrom(loopback4, 9), Options{})}
	if pingErr == nil {
		conns["echo"] = ping
	}
	for name, c := range conns {
		t.Run(name, func(t *testing.T) {
			b := make([]byte, 10)
			// A raw echo socket hears every ICMP packet of the host, so what others send meanwhile is passed over.
			waiting := func() chan error {
				got := make(chan error, 1)
				go func() {
					for {
						if _, err := c.Receive(b); err != nil {
							got <- err
							return
						}
					}
				}()
				return got
			}
			set := func(at time.Time) {
				if err := c.SetReadDeadline(at); err != nil {
					t.Fatal(err)
				}
			}
			set(time.Unix(1, 0))
			if _, err := c.Receive(b); err != os.ErrDeadlineExceeded {
				t.Errorf("past deadline: %v", err)
			}
			set(time.Time{})
			got := waiting()
			set(time.Unix(1, 0))
			if err := <-got; err != os.ErrDeadlineExceeded {
				t.Errorf("deadline while waiting: %v", err)
			}
			set(time.Now().Add(10 * time.Millisecond))
			if err := <-waiting(); err != os.ErrDeadlineExceeded {
				t.Errorf("deadline to come: %v", err)
			}
			set(time.Time{})
			got = waiting()
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if err := <-got; !errors.Is(err, net.ErrClosed) {
				t.Errorf("close while waiting: %v", err)
			}
			if _, err := c.Receive(b); !errors.Is(err, net.ErrClosed) {
				t.Errorf("receive after close: %v", err)
			}
			if _, err := c.Send(make([]byte, 8), netip.AddrPortFrom(loopback4, 9)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("send after close: %v", err)
			}
			if err := c.Close(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("second close: %v", err)
			}
		})
	}
}

func TestAShortBufferIsTold(t *testing.T) {
	k := NewKernel()
	server := listenUDP(t, k, loopback4, Options{})
	client := dialUDP(t, k, server.LocalAddr(), Options{})
	for _, text := range []string{"0123456789", "", "0123"} {
		if _, err := client.Send([]byte(text), netip.AddrPort{}); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4)
		want := text[:min(4, len(text))]
		if d := receive(t, server, b); string(b[:d.N]) != want || d.Truncated != (len(text) > 4) {
			t.Errorf("%q: got %q, truncated %v", text, b[:d.N], d.Truncated)
		}
	}
}

func TestPacketsDoNotAllocate(t *testing.T) {
	k := NewKernel()
	for _, at := range loopbacks(t) {
		server := listenUDP(t, k, at, Options{})
		client := dialUDP(t, k, server.LocalAddr(), Options{StampSends: true})
		b := make([]byte, 100)
		deadline := soon()
		got := testing.AllocsPerRun(200, func() {
			if _, err := client.Send(b, netip.AddrPort{}); err != nil {
				t.Fatal(err)
			}
			if err := server.SetReadDeadline(deadline); err != nil {
				t.Fatal(err)
			}
			d, err := server.Receive(b)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := server.SendMarked(b[:d.N], d.To, d.From, 46); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Receive(b); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 {
			t.Errorf("%v: %v allocations per round trip; want 0", at, got)
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	k := NewKernel()
	server, err := k.ListenUDP(b.Context(), netip.AddrPortFrom(loopback4, 0), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	client, err := k.DialUDP(b.Context(), server.LocalAddr(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	packet := make([]byte, 100)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Send(packet, netip.AddrPort{}); err != nil {
			b.Fatal(err)
		}
		d, err := server.Receive(packet)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := server.SendFrom(packet, d.To, d.From); err != nil {
			b.Fatal(err)
		}
		if _, err := client.Receive(packet); err != nil {
			b.Fatal(err)
		}
	}
}

func TestManyMaySendAndReceiveAtOnce(t *testing.T) {
	k := NewKernel()
	server := listenUDP(t, k, loopback4, Options{ReceiveBuffer: 1 << 20})
	client := dialUDP(t, k, server.LocalAddr(), Options{})
	const each = 50
	done := make(chan error)
	for range 2 {
		go func() {
			for range each {
				if _, err := client.Send([]byte("x"), netip.AddrPort{}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		go func() {
			b := make([]byte, 10)
			for range each {
				if _, err := server.Receive(b); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	if err := server.SetReadDeadline(soon()); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// option reads a socket option of anything that has a descriptor.
func option(t *testing.T, c any, level, name int) int {
	t.Helper()
	var value int
	var err error
	onSocket(t, c, func(fd int) { value, err = unix.GetsockoptInt(fd, level, name) })
	if err != nil {
		t.Fatalf("getsockopt %d, %d: %v", level, name, err)
	}
	return value
}

func onSocket(t *testing.T, c any, f func(fd int)) {
	t.Helper()
	raw, err := descriptor(c).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { f(int(fd)) }); err != nil {
		t.Fatal(err)
	}
}

func descriptor(c any) syscall.Conn {
	switch c := c.(type) {
	case *packetConn:
		return c.conn.(syscall.Conn)
	case *echoConn:
		return c.conn.(syscall.Conn)
	}
	return c.(syscall.Conn)
}

func TestOptionsReachTheSocket(t *testing.T) {
	k := NewKernel()
	o := Options{DSCP: 46, SendBuffer: 20_000, ReceiveBuffer: 30_000, Interface: "lo", ReusePort: true}
	for _, at := range loopbacks(t) {
		tcp := o
		tcp.CongestionControl = "reno"
		dialed, accepted := pair(t, k, at, tcp, tcp)
		sockets := map[string]any{"dialed": dialed, "accepted": accepted,
			"listening UDP": listenUDP(t, k, at, o), "connected UDP": dialUDP(t, k, netip.AddrPortFrom(at, 9), o)}
		if echo, err := k.DialEcho(t.Context(), at, o); err == nil {
			t.Cleanup(func() { echo.Close() })
			sockets["echo"] = echo
		}
		for name, c := range sockets {
			t.Run(at.String()+" "+name, func(t *testing.T) { checkOptionsOf(t, c, at, o) })
		}
		for name, c := range map[string]net.Conn{"dialed": dialed, "accepted": accepted} {
			info, err := k.TCPInfo(c)
			if err != nil || info.CongestionControl != "reno" || info.DS != 46<<2 || !info.HasDS || info.SendBuffer != 40_000 || info.ReceiveBuffer != 60_000 {
				t.Errorf("%v %s: TCPInfo %+v, %v", at, name, info, err)
			}
			if got := option(t, c, unix.SOL_SOCKET, unix.SO_PROTOCOL); got != unix.IPPROTO_TCP {
				t.Errorf("%v %s: protocol %d; want plain TCP, not MPTCP", at, name, got)
			}
		}
	}
}

func checkOptionsOf(t *testing.T, c any, at netip.Addr, o Options) {
	t.Helper()
	level, name := unix.IPPROTO_IP, unix.IP_TOS
	if at.Is6() {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_TCLASS
		if got := option(t, c, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); got != 1 {
			if _, echo := c.(*echoConn); !echo {
				t.Errorf("IPV6_V6ONLY is %d", got)
			}
		}
	}
	if got := option(t, c, level, name); got != int(o.DSCP)<<2 {
		t.Errorf("DS byte %#x; want %#x with the ECN bits zero", got, int(o.DSCP)<<2)
	}
	// The kernel doubles what is asked for.
	if got := option(t, c, unix.SOL_SOCKET, unix.SO_SNDBUF); got != 2*o.SendBuffer {
		t.Errorf("send buffer %d; want %d", got, 2*o.SendBuffer)
	}
	if got := option(t, c, unix.SOL_SOCKET, unix.SO_RCVBUF); got != 2*o.ReceiveBuffer {
		t.Errorf("receive buffer %d; want %d", got, 2*o.ReceiveBuffer)
	}
	if got := option(t, c, unix.SOL_SOCKET, unix.SO_REUSEPORT); got != 1 {
		t.Errorf("SO_REUSEPORT is %d", got)
	}
	onSocket(t, c, func(fd int) {
		if got, err := unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE); err != nil || got != o.Interface {
			t.Errorf("bound to device %q, %v; want %q", got, err, o.Interface)
		}
	})
}

func TestAnUnknownCongestionControlIsAnsweredWithTheKnownOnes(t *testing.T) {
	available, err := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		t.Skip(err)
	}
	k := NewKernel()
	o := Options{CongestionControl: "nosuch"}
	_, dialErr := k.DialTCP(t.Context(), netip.AddrPortFrom(loopback4, 9), o)
	_, listenErr := k.ListenTCP(t.Context(), netip.AddrPortFrom(loopback4, 0), o)
	for _, err := range []error{dialErr, listenErr} {
		if err == nil || !strings.Contains(err.Error(), `"nosuch"`) || !strings.Contains(err.Error(), strings.TrimSpace(string(available))) {
			t.Errorf("got %v; want the list %s", err, available)
		}
	}
}

func TestAnUnknownDeviceIsNamed(t *testing.T) {
	_, err := NewKernel().DialUDP(t.Context(), netip.AddrPortFrom(loopback4, 9), Options{Interface: "nosuch0"})
	if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), `"nosuch0"`) {
		t.Errorf("got %v", err)
	}
}

func TestBothFamiliesListenOnOnePort(t *testing.T) {
	n := testnet.New(t)
	for _, only := range []string{"0", "1"} {
		n.Client.Sysctl(t, "net/ipv6/bindv6only", only)
		n.Client.Inside(t, func() {
			k := NewKernel()
			l6, err := k.ListenTCP(t.Context(), netip.MustParseAddrPort("[::]:12865"), Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer l6.Close()
			l4, err := k.ListenTCP(t.Context(), netip.MustParseAddrPort("0.0.0.0:12865"), Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer l4.Close()
			for to, l := range map[string]net.Listener{"127.0.0.1:12865": l4, "[::1]:12865": l6} {
				c, err := k.DialTCP(t.Context(), netip.MustParseAddrPort(to), Options{})
				if err != nil {
					t.Errorf("bindv6only=%s: %v", only, err)
					continue
				}
				defer c.Close()
				accepted, err := l.Accept()
				if err != nil {
					t.Error(err)
					continue
				}
				accepted.Close()
			}
		})
	}
}

// echoRequest is an echo request with this identifier and sequence number.
func echoRequest(f Family, id, seq uint16, payload string) []byte {
	kind := byte(icmpEcho)
	if f == IPv6 {
		kind = icmp6Echo
	}
	return append([]byte{kind, 0, 0xde, 0xad, byte(id >> 8), byte(id), byte(seq >> 8), byte(seq)}, payload...)
}

// echoKernels opens the namespace to ping sockets and returns a Kernel for each kind.
func echoKernels(t *testing.T, s *testnet.Space) map[string]*Kernel {
	t.Helper()
	s.Sysctl(t, "net/ipv4/ping_group_range", "0 2147483647")
	ping, raw := NewKernel(), NewKernel()
	ping.Echo, raw.Echo = PingEchoSocket, RawEchoSocket
	return map[string]*Kernel{"unprivileged": ping, "raw": raw}
}

func dialEchoIn(t *testing.T, s *testnet.Space, k *Kernel, to netip.Addr, o Options) (c EchoConn) {
	t.Helper()
	var err error
	s.Inside(t, func() { c, err = k.DialEcho(t.Context(), to, o) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestEchoesComeBackThroughBothKindsOfSocket(t *testing.T) {
	n := testnet.New(t)
	for name, k := range echoKernels(t, n.Client) {
		for _, to := range []netip.Addr{n.Server.IP, n.Server.IP6, loopback4, loopback6} {
			t.Run(name+" "+to.String(), func(t *testing.T) {
				c := dialEchoIn(t, n.Client, k, to, Options{DSCP: 46})
				id, fixed := c.Identifier()
				if fixed != (name == "unprivileged") {
					t.Errorf("the identifier is fixed: %v", fixed)
				}
				if !fixed {
					id = 0x1234
				}
				b := make([]byte, 14)
				request := echoRequest(FamilyOf(to), id, 7, "payload")
				for i := range 2 {
					sent, err := c.Send(request, netip.AddrPort{})
					if err != nil {
						t.Fatal(err)
					}
					d := receive(t, c, b)
					want := echoRequest(FamilyOf(to), id, 7, "payload")
					if want[0] = icmpEchoReply; to.Is6() {
						want[0] = icmp6EchoReply
					}
					want[2], want[3] = b[2], b[3]
					if got := string(b[:d.N]); got != string(want[:14]) || !d.Truncated {
						t.Errorf("got %x; want %x, cut at 14 bytes (%v)", got, want[:14], d.Truncated)
					}
					if d.From != netip.AddrPortFrom(to, 0) || !d.To.IsValid() || d.To.Is6() != to.Is6() || !d.HasDS || d.DS != 46<<2 || d.At.Before(sent) {
						t.Errorf("echo %d: %+v", i, d)
					}
				}
				if request[2] != 0xde || request[3] != 0xad {
					t.Errorf("the request was changed: %x", request)
				}
				if c.LocalAddr().Port() != 0 || !c.LocalAddr().Addr().IsValid() {
					t.Errorf("local address %v", c.LocalAddr())
				}
			})
		}
	}
}

func TestARouterRejectsEachKindOfProbeInItsName(t *testing.T) {
	for how, o := range map[testnet.Refusal]Options{testnet.Unreachable: {}, testnet.Prohibit: {StampSends: true}} {
		// A Linux router refuses five packets of one host with an IPv4 error, and then one in a second: enough for four sockets.
		n := testnet.New(t)
		unlimitICMP(t, n)
		kernels := echoKernels(t, n.Client)
		n.Block(t, testnet.Block{Protocol: "icmp", How: how})
		n.Block(t, testnet.Block{Protocol: "udp", How: how})
		for _, to := range []netip.AddrPort{netip.AddrPortFrom(n.Server.IP, 2112), netip.AddrPortFrom(n.Server.IP6, 2112)} {
			router := n.Router.IP
			if to.Addr().Is6() {
				router = n.Router.IP6
			}
			for name, open := range map[string]func() (PacketConn, error){
				"connected": func() (PacketConn, error) { return NewKernel().DialUDP(t.Context(), to, o) },
				"unconnected": func() (PacketConn, error) {
					return NewKernel().ListenUDP(t.Context(), unspecified(to.Addr()), Options{})
				},
				"ping": func() (PacketConn, error) { return kernels["unprivileged"].DialEcho(t.Context(), to.Addr(), o) },
				"raw":  func() (PacketConn, error) { return kernels["raw"].DialEcho(t.Context(), to.Addr(), o) },
			} {
				t.Run(fmt.Sprint(how, " ", to.Addr(), " ", name), func(t *testing.T) {
					var c PacketConn
					var err error
					n.Client.Inside(t, func() { c, err = open() })
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					expectRejection(t, c, to, router)
				})
			}
		}
	}
}

// unlimitICMP lifts the limits on ICMP errors that a router lets one lift. icmp_ratelimit 0 would not do: it empties the
// bucket that refused routes have in common with it.
func unlimitICMP(t *testing.T, n *testnet.Net) {
	t.Helper()
	n.Router.Sysctl(t, "net/ipv4/icmp_ratemask", "0")
	n.Router.Sysctl(t, "net/ipv6/icmp/ratelimit", "0")
}

func unspecified(a netip.Addr) netip.AddrPort {
	if a.Is4() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
}

func expectRejection(t *testing.T, c PacketConn, to netip.AddrPort, router netip.Addr) {
	t.Helper()
	packet := echoRequest(FamilyOf(to.Addr()), 0x4321, 5, "payload")
	echo, isEcho := c.(EchoConn)
	if isEcho {
		if id, fixed := echo.Identifier(); fixed {
			packet[4], packet[5] = byte(id>>8), byte(id)
		}
	}
	if _, err := c.Send(packet, to); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	d := receive(t, c, b)
	if d.Rejected == nil || d.Rejected.By != router || d.Rejected.Err == nil {
		t.Fatalf("got %+v; want a rejection by %v", d, router)
	}
	got := b[:d.N]
	if isEcho && len(got) > 4 {
		packet[2], packet[3] = got[2], got[3] // the checksum
	}
	if string(got) != string(packet) {
		t.Errorf("quotes %x; want %x", got, packet)
	}
}

func TestAFullLocalQueueIsToldAndPasses(t *testing.T) {
	n := testnet.New(t)
	kernels := echoKernels(t, n.Client)
	tests := []struct {
		name  string
		o     Options
		queue int // bytes
		want  syscall.Errno
	}{
		{"the device's queue", Options{}, 6000, syscall.ENOBUFS},
		{"the device's queue, stamped", Options{StampSends: true}, 6000, syscall.ENOBUFS},
		{"the socket's buffer", Options{SendBuffer: 4000}, 100_000, syscall.EAGAIN},
	}
	for _, test := range tests {
		n.ClientDevice.Shape(t, testnet.Queue{Rate: 256_000, Limit: test.queue, Burst: 3100})
		awaitPath(t, n, kernels["raw"]) // until a neighbour is known, packets wait where no limit tells
		conns := map[string]PacketConn{}
		n.Client.Inside(t, func() {
			c, err := kernels["raw"].DialUDP(t.Context(), netip.AddrPortFrom(n.Server.IP, 2112), test.o)
			if err != nil {
				t.Error(err)
				return
			}
			conns["UDP"] = c
		})
		for name, k := range kernels {
			conns[name+" echo"] = dialEchoIn(t, n.Client, k, n.Server.IP, test.o)
		}
		for name, c := range conns {
			t.Run(test.name+" "+name, func(t *testing.T) {
				t.Cleanup(func() { c.Close() })
				want := test.want
				if name == "raw echo" {
					want = syscall.ENOBUFS // has no other word for either
				}
				fillAndDrain(t, c, want)
			})
		}
	}
}

// awaitPath returns once the server answers an echo of the client.
func awaitPath(t *testing.T, n *testnet.Net, k *Kernel) {
	t.Helper()
	c := dialEchoIn(t, n.Client, k, n.Server.IP, Options{})
	for end := soon(); time.Now().Before(end); {
		if _, err := c.Send(echoRequest(IPv4, 1, 1, ""), netip.AddrPort{}); err != nil && !errors.Is(err, ErrNoBuffer) {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Receive(make([]byte, 100)); err == nil {
			return
		}
	}
	t.Fatal("the server does not answer")
}

func fillAndDrain(t *testing.T, c PacketConn, want syscall.Errno) {
	t.Helper()
	packet := echoRequest(IPv4, 1, 1, strings.Repeat("x", 500))
	full := false
	for range 100 {
		at, err := c.Send(packet, netip.AddrPort{})
		if err == nil {
			continue
		}
		if full = errors.Is(err, ErrNoBuffer); !full || !errors.Is(err, want) || !at.IsZero() {
			t.Fatalf("got %v, %v; want ErrNoBuffer and %v", at, err, want)
		}
		break
	}
	if !full {
		t.Fatal("100 packets of 500 bytes fit in")
	}
	for end := soon(); ; {
		// What drains the queue is real time, and the reply that comes then, or the refusal, is what wakes us.
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Receive(make([]byte, 100)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		_, err := c.Send(packet[:100], netip.AddrPort{})
		if err == nil {
			return
		}
		if !errors.Is(err, ErrNoBuffer) || time.Now().After(end) {
			t.Fatalf("the queue drains, and Send gives %v", err)
		}
	}
}

func TestARejectionIsHeardWhileTheSendQueueIsFull(t *testing.T) {
	for _, stamped := range []bool{false, true} {
		t.Run(fmt.Sprint("stamped ", stamped), func(t *testing.T) { hearRejections(t, stamped) })
	}
}

func hearRejections(t *testing.T, stamped bool) {
	n := testnet.New(t)
	unlimitICMP(t, n)
	n.Block(t, testnet.Block{Protocol: "udp", How: testnet.Unreachable})
	awaitPath(t, n, NewKernel())
	n.ClientDevice.Shape(t, testnet.Queue{Rate: 64_000, Limit: 500_000, Burst: 600})
	var c PacketConn
	var err error
	n.Client.Inside(t, func() {
		c, err = NewKernel().DialUDP(t.Context(), netip.AddrPortFrom(n.Server.IP, 2112), Options{SendBuffer: 20_000, StampSends: stamped})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := make([]byte, 500)
	got := make(chan error, 1)
	go func() { // waits in the poller before the first error comes
		for range 3 { // fewer than the router sends without a pause
			if d, err := c.Receive(make([]byte, 500)); err != nil || d.Rejected == nil {
				got <- fmt.Errorf("got %+v, %v", d, err)
				return
			}
		}
		got <- nil
	}()
	for err = nil; err == nil; {
		_, err = c.Send(b, netip.AddrPort{})
	}
	if !errors.Is(err, ErrNoBuffer) {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(soon()); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestZonesSurviveTheWayThere(t *testing.T) {
	n := testnet.New(t)
	var link netip.Addr
	n.Router.Inside(t, func() {
		dev, err := net.InterfaceByName(n.Down.Name)
		if err != nil {
			t.Error(err)
			return
		}
		addrs, err := dev.Addrs()
		if err != nil {
			t.Error(err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsLinkLocalUnicast() {
				link = p.Addr()
			}
		}
	})
	if !link.IsValid() {
		t.Fatal("no link-local address on the router's device")
	}
	k := NewKernel()
	b := make([]byte, 100)
	var server, client PacketConn
	n.Router.Inside(t, func() {
		var err error
		if server, err = k.ListenUDP(t.Context(), netip.MustParseAddrPort("[::]:2112"), Options{}); err != nil {
			t.Error(err)
		}
	})
	to := netip.AddrPortFrom(link.WithZone(n.ClientDevice.Name), 2112)
	n.Client.Inside(t, func() {
		var err error
		client, err = k.ListenUDP(t.Context(), netip.MustParseAddrPort("[::]:0"), Options{})
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := client.Send([]byte("?"), to); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		return
	}
	defer server.Close()
	defer client.Close()
	n.Router.Inside(t, func() {
		d := receive(t, server, b)
		if d.To != link.WithZone(n.Down.Name) {
			t.Errorf("sent to %v; want %v%%%s", d.To, link, n.Down.Name)
		}
		if _, err := server.SendFrom([]byte("!"), d.To, d.From); err != nil {
			t.Error(err)
		}
	})
	n.Client.Inside(t, func() {
		if d := receive(t, client, b); d.From != to {
			t.Errorf("answer from %v; want %v", d.From, to)
		}
	})
	n.Client.Inside(t, func() {
		k := NewKernel()
		k.Echo = RawEchoSocket
		c, err := k.DialEcho(t.Context(), to.Addr(), Options{})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		if _, err := c.Send(echoRequest(IPv6, 1, 1, ""), netip.AddrPort{}); err != nil {
			t.Error(err)
		}
		if d := receive(t, c, b); d.From.Addr() != to.Addr() {
			t.Errorf("echo from %v; want %v", d.From, to)
		}
		if _, err := k.DialEcho(t.Context(), link.WithZone("nosuch0"), Options{}); err == nil {
			t.Error("a zone that is not there: no error")
		}
	})
}

// unprivileged calls f on a thread of its own without capabilities in the client's namespace.
func unprivileged(t *testing.T, s *testnet.Space, f func()) {
	t.Helper()
	s.Inside(t, func() {
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&h, &none[0]); err != nil {
			t.Errorf("drop the capabilities: %v", err)
			return
		}
		f()
	})
}

func TestWithoutPermissionTheErrorSaysWhatToDo(t *testing.T) {
	n := testnet.New(t)
	n.Client.Sysctl(t, "net/ipv4/ping_group_range", "1 0")
	unprivileged(t, n.Client, func() {
		for _, to := range []netip.Addr{loopback4, loopback6} {
			for _, kind := range []EchoSocket{AnyEchoSocket, PingEchoSocket, RawEchoSocket} {
				k := NewKernel()
				k.Echo = kind
				_, err := k.DialEcho(t.Context(), to, Options{})
				if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "net.ipv4.ping_group_range") ||
					!strings.Contains(err.Error(), "CAP_NET_RAW") || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v: got %v", to, err)
				}
			}
		}
	})
	n.Client.Sysctl(t, "net/ipv4/ping_group_range", "0 0")
	unprivileged(t, n.Client, func() {
		c, err := NewKernel().DialEcho(t.Context(), loopback4, Options{})
		if err != nil {
			t.Errorf("group 0 is let in, and: %v", err)
			return
		}
		c.Close()
	})
}

func TestWithoutPermissionCongestionControlListsWhatIsAllowed(t *testing.T) {
	n := testnet.New(t)
	read := func(name string) string {
		b, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
		if err != nil {
			t.Skip(err)
		}
		return strings.TrimSpace(string(b))
	}
	allowed := read("tcp_allowed_congestion_control")
	forbidden := slices.DeleteFunc(strings.Fields(read("tcp_available_congestion_control")), func(s string) bool {
		return slices.Contains(strings.Fields(allowed), s)
	})
	if len(forbidden) == 0 {
		facility.Missing(t, "restricted-cc", "every congestion control is allowed to everyone")
	}
	unprivileged(t, n.Client, func() {
		_, err := NewKernel().DialTCP(t.Context(), netip.AddrPortFrom(loopback4, 9), Options{CongestionControl: forbidden[0]})
		if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), allowed) {
			t.Errorf("got %v; want the list %q", err, allowed)
		}
	})
}

func TestAHostWithoutARouteSaysSoAtTheOpening(t *testing.T) {
	n := testnet.New(t)
	n.Client.Do(t, "route", "del", "default")
	n.Client.Do(t, "-6", "route", "del", "default")
	kernels := echoKernels(t, n.Client)
	n.Client.Inside(t, func() {
		for _, to := range []netip.Addr{n.Server.IP, n.Server.IP6} {
			for name, k := range kernels {
				if _, err := k.DialEcho(t.Context(), to, Options{}); !errors.Is(err, syscall.ENETUNREACH) {
					t.Errorf("%s echo: got %v", name, err)
				}
			}
			if _, err := NewKernel().DialUDP(t.Context(), netip.AddrPortFrom(to, 9), Options{}); !errors.Is(err, syscall.ENETUNREACH) {
				t.Errorf("UDP: got %v", err)
			}
		}
	})
}

func TestADialIsBoundedByItsContext(t *testing.T) {
	n := testnet.New(t)
	n.Block(t, testnet.Block{Protocol: "tcp", How: testnet.Blackhole})
	n.Client.Inside(t, func() {
		k := NewKernel()
		ctx, cancel := WithTimeout(t.Context(), k, 50*time.Millisecond)
		defer cancel()
		_, err := k.DialTCP(ctx, netip.AddrPortFrom(n.Server.IP, 12865), Options{})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "connect to 198.51.100.1:12865: ") {
			t.Errorf("got %v", err)
		}
	})
}

func TestAcknowledgedBytesArePayloadAlone(t *testing.T) {
	k := NewKernel()
	for _, at := range loopbacks(t) {
		dialed, accepted := pair(t, k, at, Options{}, Options{})
		expectAcked := func(c net.Conn, want uint64) {
			t.Helper()
			var info TCPInfo
			var err error
			for end := soon(); time.Now().Before(end); runtime.Gosched() { // until the acknowledgement is in
				if info, err = k.TCPInfo(c); err != nil || info.BytesAcked >= want {
					break
				}
			}
			if err != nil || !info.HasBytesAcked || info.BytesAcked != want {
				t.Errorf("%v: %d bytes acknowledged (%v), %v; want %d", at, info.BytesAcked, info.HasBytesAcked, err, want)
			}
			if info.RTT <= 0 || info.SendMSS <= 0 || info.CongestionWindow <= 0 || !info.HasRetransmits || info.MinRTT > time.Second {
				t.Errorf("%v: %+v", at, info)
			}
		}
		move := func(from, to net.Conn, n int) {
			t.Helper()
			if _, err := from.Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(to, make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		expectAcked(dialed, 0)
		expectAcked(accepted, 0)
		move(dialed, accepted, 1000)
		move(accepted, dialed, 500)
		expectAcked(dialed, 1000)
		expectAcked(accepted, 500)
		for _, way := range []struct {
			from, to net.Conn
			sent     uint64
		}{{dialed, accepted, 1000}, {accepted, dialed, 500}} {
			if err := way.from.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if _, err := way.to.Read(make([]byte, 1)); err != io.EOF {
				t.Fatalf("after the end: %v", err)
			}
			for end := soon(); time.Now().Before(end); runtime.Gosched() { // until the FIN is acknowledged
				if tcpState(t, way.from) != unix.BPF_TCP_FIN_WAIT1 && tcpState(t, way.from) != unix.BPF_TCP_LAST_ACK {
					break
				}
			}
			expectAcked(way.from, way.sent)
		}
		expectAcked(dialed, 1000)
	}
}

func tcpState(t *testing.T, c net.Conn) (state uint8) {
	t.Helper()
	onSocket(t, c, func(fd int) {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		state = info.State
	})
	return state
}

func TestAnOlderKernelsShortAnswerLeavesFieldsUnknown(t *testing.T) {
	raw := &unix.TCPInfo{Rtt: 1500, Snd_mss: 1448, Snd_cwnd: 10, Total_retrans: 3, Bytes_acked: 99, Notsent_bytes: 5, Min_rtt: 700,
		Rttvar: 40, Rcv_rtt: 9000, Pacing_rate: 1000, Delivery_rate: 1e6, Busy_time: 5e6, Rwnd_limited: 2, Sndbuf_limited: 3, Delivered_ce: 7}
	tests := []struct {
		name string
		size uintptr
		want TCPInfo
	}{
		{"all fields", unsafe.Sizeof(*raw), TCPInfo{BytesAcked: 99, HasBytesAcked: true, Retransmits: 3, HasRetransmits: true,
			Unsent: 5, HasUnsent: true, MinRTT: 700 * time.Microsecond, PacingRate: 8000, DeliveryRate: 8e6, Busy: 5 * time.Second,
			ReceiveWindowLimited: 2 * time.Microsecond, SendBufferLimited: 3 * time.Microsecond, HasBusy: true, DeliveredCE: 7, HasDeliveredCE: true}},
		{"without the marks", unsafe.Offsetof(raw.Delivered_ce), TCPInfo{BytesAcked: 99, HasBytesAcked: true, Retransmits: 3, HasRetransmits: true,
			Unsent: 5, HasUnsent: true, MinRTT: 700 * time.Microsecond, PacingRate: 8000, DeliveryRate: 8e6, Busy: 5 * time.Second,
			ReceiveWindowLimited: 2 * time.Microsecond, SendBufferLimited: 3 * time.Microsecond, HasBusy: true}},
		{"without the least RTT", unsafe.Offsetof(raw.Min_rtt), TCPInfo{BytesAcked: 99, HasBytesAcked: true, Retransmits: 3, HasRetransmits: true,
			Unsent: 5, HasUnsent: true, PacingRate: 8000}},
		{"without the unsent bytes", unsafe.Offsetof(raw.Notsent_bytes), TCPInfo{BytesAcked: 99, HasBytesAcked: true, Retransmits: 3, HasRetransmits: true,
			PacingRate: 8000}},
		{"half of the acknowledged bytes", unsafe.Offsetof(raw.Bytes_acked) + 4, TCPInfo{Retransmits: 3, HasRetransmits: true, PacingRate: 8000}},
		{"without retransmissions", unsafe.Offsetof(raw.Total_retrans), TCPInfo{}},
	}
	for _, test := range tests {
		want := test.want
		want.RTT, want.SendMSS, want.CongestionWindow = 1500*time.Microsecond, 1448, 10
		want.RTTVariance, want.ReceiveRTT = 40*time.Microsecond, 9*time.Millisecond
		if got := fromKernel(raw, test.size, false); got != want {
			t.Errorf("%s: got %+v; want %+v", test.name, got, want)
		}
	}
	if got := fromKernel(&unix.TCPInfo{Backoff: 5, Rto: 7_808_000}, unsafe.Sizeof(*raw), true); got.Backoff != 5 || got.NextRetry != 7808*time.Millisecond {
		t.Errorf("in backoff: got %+v", got)
	}
	if got := fromKernel(&unix.TCPInfo{Rto: 204_000}, unsafe.Sizeof(*raw), true); got.NextRetry != 0 {
		t.Errorf("without backoff: got %+v, want no time to the next retry", got)
	}
	if got := fromKernel(&unix.TCPInfo{Min_rtt: 1<<32 - 1}, unsafe.Sizeof(*raw), true); got.MinRTT != 0 || got.BytesAcked != 0 {
		t.Errorf("before the first sample: got %+v", got)
	}
	if got := fromKernel(&unix.TCPInfo{Pacing_rate: math.MaxUint64}, unsafe.Sizeof(*raw), true); got.PacingRate != 0 {
		t.Errorf("without a limit of pacing: got %v, want 0", got.PacingRate)
	}
}

func TestWhetherBothEndsAgreedOnECNIsTold(t *testing.T) {
	n := testnet.New(t)
	for _, want := range []bool{false, true} {
		setting := map[bool]string{false: "0", true: "1"}[want]
		if out, err := n.Client.Command("sh", "-c", "echo "+setting+" >/proc/sys/net/ipv4/tcp_ecn").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		k := NewKernel()
		var l net.Listener
		var err error
		n.Server.Inside(t, func() { l, err = k.ListenTCP(t.Context(), netip.AddrPortFrom(n.Server.IP, 0), Options{}) })
		if err != nil {
			t.Fatal(err)
		}
		var dialed net.Conn
		n.Client.Inside(t, func() { dialed, err = k.DialTCP(t.Context(), AddrPortOf(l.Addr()), Options{}) })
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for name, c := range map[string]net.Conn{"who dialed": dialed, "who was": accepted} {
			if info, err := k.TCPInfo(c); err != nil || info.ECN != want {
				t.Errorf("net.ipv4.tcp_ecn %s: %s has ECN %v, %v; want %v", setting, name, info.ECN, err, want)
			}
			_ = c.Close()
		}
		_ = l.Close()
	}
}

func TestTheSourceIsTheOneAskedFor(t *testing.T) {
	n := testnet.New(t)
	source := netip.MustParseAddr("127.0.0.3")
	o := Options{Source: source}
	for name, k := range echoKernels(t, n.Client) {
		c := dialEchoIn(t, n.Client, k, loopback4, o)
		if _, err := c.Send(echoRequest(IPv4, 1, 1, ""), netip.AddrPort{}); err != nil {
			t.Fatal(err)
		}
		if d := receive(t, c, make([]byte, 100)); d.To != source || c.LocalAddr().Addr() != source {
			t.Errorf("%s echo: the reply went to %v, and the socket is at %v; want %v", name, d.To, c.LocalAddr(), source)
		}
	}
	k := NewKernel()
	server := listenUDP(t, k, loopback4, Options{})
	client := dialUDP(t, k, server.LocalAddr(), o)
	if _, err := client.Send(nil, netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, server, nil); d.From != client.LocalAddr() || d.From.Addr() != source {
		t.Errorf("UDP from %v; want %v", d.From, source)
	}
	_, accepted := pair(t, k, loopback4, Options{}, o)
	if got := accepted.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); got != source {
		t.Errorf("TCP from %v; want %v", got, source)
	}
	foreign := Options{Source: netip.MustParseAddr("192.0.2.77")}
	n.Client.Inside(t, func() {
		for name, open := range map[string]func() error{
			"UDP":  func() error { _, err := k.DialUDP(t.Context(), netip.AddrPortFrom(loopback4, 9), foreign); return err },
			"TCP":  func() error { _, err := k.DialTCP(t.Context(), netip.AddrPortFrom(loopback4, 9), foreign); return err },
			"echo": func() error { _, err := k.DialEcho(t.Context(), loopback4, foreign); return err },
		} {
			if err := open(); !errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Errorf("%s from an address that is not ours: got %v", name, err)
			}
		}
	})
}
