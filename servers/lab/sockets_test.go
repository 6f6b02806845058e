package lab

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
)

var anyPort = netip.AddrPort{} // to a connected socket

func TestDatagramsTellWhereTheyCameFromAndHowTheyWereMarked(t *testing.T) {
	for _, server := range []netip.Addr{serverIPv4, serverIPv6} {
		t.Run(server.String(), func(t *testing.T) {
			within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
				all := netip.IPv4Unspecified()
				if server.Is6() {
					all = netip.IPv6Unspecified()
				}
				in, err := l.Server().ListenUDP(ctx, netip.AddrPortFrom(all, 2112), host.Options{DSCP: 10})
				if err != nil {
					t.Fatal(err)
				}
				defer in.Close()
				out, err := l.Client().DialUDP(ctx, netip.AddrPortFrom(server, 2112), host.Options{DSCP: 46})
				if err != nil {
					t.Fatal(err)
				}
				defer out.Close()
				sent, err := out.Send([]byte("question"), anyPort)
				if err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 100)
				d, err := in.Receive(b)
				if err != nil {
					t.Fatal(err)
				}
				want := host.Datagram{N: 8, From: out.LocalAddr(), To: server, At: d.At, Stamp: host.LinkStamp, DS: 46 << 2, HasDS: true}
				if d != want || string(b[:d.N]) != "question" {
					t.Errorf("received %+v %q, want %+v", d, b[:d.N], want)
				}
				if way := d.At.Sub(sent); way < 20*ms || way > 21*ms {
					t.Errorf("one way took %v, want 20 ms and a transmission", way)
				}
				if _, err := in.SendFrom([]byte("an answer"), d.To, d.From); err != nil {
					t.Fatal(err)
				}
				if d, err = out.Receive(b[:2]); err != nil || d.N != 2 || !d.Truncated || d.From.Addr() != server || d.DS != 10<<2 {
					t.Errorf("received %+v, %v; want 2 bytes, truncated, marked with 10", d, err)
				}
				for _, mark := range []uint8{46, 0, 8, 10} { // the last is the socket's own, after others
					send := func() error {
						_, err := in.(host.Marker).SendMarked(nil, server, out.LocalAddr(), dscp.CodePoint(mark))
						return err
					}
					if mark == 10 {
						send = func() error { _, err := in.Send(nil, out.LocalAddr()); return err }
					}
					if err := send(); err != nil {
						t.Fatal(err)
					}
					if got, err := out.Receive(b); err != nil || got.DS != mark<<2 {
						t.Errorf("received %+v, %v; want the mark %d", got, err, mark)
					}
				}
				if _, err := in.SendFrom(nil, netip.MustParseAddr("192.0.2.77"), out.LocalAddr()); !errors.Is(err, syscall.EADDRNOTAVAIL) {
					t.Errorf("sending from a stranger's address: %v, want EADDRNOTAVAIL", err)
				}
			})
		})
	}
}

func TestARefusedDatagramComesBack(t *testing.T) {
	for _, server := range []netip.Addr{serverIPv4, serverIPv6} {
		within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
			out, err := l.Client().DialUDP(ctx, netip.AddrPortFrom(server, 9), host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			for _, word := range []string{"first", "second"} {
				if _, err := out.Send([]byte(word), anyPort); err != nil {
					t.Fatal(err)
				}
			}
			for _, word := range []string{"first", "second"} {
				b := make([]byte, 100)
				d, err := out.Receive(b)
				if err != nil || d.Rejected == nil || d.Rejected.By != server || !errors.Is(d.Rejected, syscall.ECONNREFUSED) || string(b[:d.N]) != word {
					t.Errorf("received %+v %q, %v; want %q refused by %v", d, b[:d.N], err, word, server)
				}
			}
		})
	}
}

func TestEchoAnswersCarryTheSocketsIdentifier(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		c, err := l.Client().DialEcho(ctx, serverIPv4, host.Options{DSCP: 46})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		request := echoRequest(serverIPv4)
		copy(request[8:], "payload")
		if _, err := c.Send(request, anyPort); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 200)
		d, err := c.Receive(b)
		id, ok := c.Identifier()
		if err != nil || !ok || d.N != 64 || b[0] != 0 || uint16(b[4])<<8|uint16(b[5]) != id || !bytes.Equal(b[8:15], []byte("payload")) {
			t.Errorf("reply %+v % x (%v), want an echo reply for identifier %d", d, b[:16], err, id)
		}
		if d.From != netip.AddrPortFrom(serverIPv4, 0) || d.To != clientIPv4 {
			t.Errorf("reply from %v to %v", d.From, d.To)
		}
	})
}

func TestWaitingEnds(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		h := l.Client()
		ln, err := l.Server().ListenTCP(ctx, netip.MustParseAddrPort("0.0.0.0:80"), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := h.DialTCP(ctx, netip.AddrPortFrom(serverIPv4, 80), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		udp, err := h.ListenUDP(ctx, netip.MustParseAddrPort("0.0.0.0:0"), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		for name, c := range map[string]struct {
			wait  func() error
			bound func(time.Time) error
			close func() error
		}{
			"a read":    {func() error { _, err := conn.Read(b); return err }, conn.SetReadDeadline, conn.Close},
			"an accept": {func() error { ln.Accept(); _, err := ln.Accept(); return err }, ln.(*Listener).SetDeadline, ln.Close},
			"a receive": {func() error { _, err := udp.Receive(b); return err }, udp.SetReadDeadline, udp.Close},
		} {
			start := h.Now()
			c.bound(start.Add(70 * ms))
			if err := c.wait(); !errors.Is(err, os.ErrDeadlineExceeded) || h.Now().Sub(start) != 70*ms {
				t.Errorf("%s ended after %v with %v, want the deadline at 70 ms", name, h.Now().Sub(start), err)
			}
			c.bound(time.Time{})
			h.AfterFunc(30*ms, func() { c.bound(h.Now()) })
			if err := c.wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s whose deadline was set while it waited ended with %v", name, err)
			}
			c.bound(time.Time{})
			h.AfterFunc(30*ms, func() { c.close() })
			if err := c.wait(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s on what was closed ended with %v, want net.ErrClosed", name, err)
			}
			if err := c.close(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("closing again: %v, want net.ErrClosed", err)
			}
			if err := c.bound(h.Now()); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a deadline on what is closed: %v, want net.ErrClosed", err)
			}
		}
	})
}

func TestAWriteThatFindsNoRoomEndsAtItsDeadline(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		ln, err := l.Server().ListenTCP(ctx, netip.MustParseAddrPort("0.0.0.0:80"), host.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		h := l.Client()
		conn, err := h.DialTCP(ctx, netip.AddrPortFrom(serverIPv4, 80), host.Options{SendBuffer: 10000})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetWriteDeadline(h.Now().Add(100 * ms))
		n, err := conn.Write(make([]byte, 10<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || n == 0 || n == 10<<20 {
			t.Errorf("wrote %d bytes and %v, want some and the deadline", n, err)
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("%v is no timeout to package net", err)
		}
	})
}

func TestDialsThatCannotSucceedSayWhy(t *testing.T) {
	within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
		h := l.Client()
		dial := func(ctx context.Context, to string, o host.Options) error {
			c, err := h.DialTCP(ctx, netip.MustParseAddrPort(to), o)
			if err == nil {
				c.Close()
			}
			return err
		}
		short, cancel := host.WithTimeout(ctx, h, 5*time.Second)
		defer cancel()
		for name, c := range map[string]struct {
			got, want error
		}{
			"nothing listens":     {dial(ctx, "192.0.2.2:1", host.Options{}), syscall.ECONNREFUSED},
			"nobody answers":      {dial(short, "192.0.2.99:1", host.Options{}), context.DeadlineExceeded},
			"no route":            {dial(ctx, "203.0.113.1:1", host.Options{}), syscall.ENETUNREACH},
			"an interface":        {dial(ctx, "192.0.2.2:1", host.Options{Interface: "eth0"}), errors.ErrUnsupported},
			"Reno":                {dial(ctx, "192.0.2.2:1", host.Options{CongestionControl: "reno"}), errors.ErrUnsupported},
			"a stranger's source": {dial(ctx, "192.0.2.2:1", host.Options{Source: netip.MustParseAddr("192.0.2.50")}), syscall.EADDRNOTAVAIL},
		} {
			if !errors.Is(c.got, c.want) {
				t.Errorf("%s: %v, want %v", name, c.got, c.want)
			}
		}
		if err := dial(ctx, "192.0.2.2:1", host.Options{Source: clientIPv4, CongestionControl: "cubic"}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("with its own source and cubic by name: %v", err)
		}
		if n := len(h.nic.flows) + len(l.Server().nic.flows); n != 0 {
			t.Errorf("%d connections are still on the books", n)
		}
	})
}

func TestResetAndEndOfFileArriveAtThePeer(t *testing.T) {
	for name, c := range map[string]struct {
		abort bool
		want  error
	}{"closed": {false, io.EOF}, "aborted": {true, syscall.ECONNRESET}} {
		within(t, Config{Virtual: true}, func(ctx context.Context, l *Lab) {
			ln, err := l.Server().ListenTCP(ctx, netip.MustParseAddrPort("[::]:80"), host.Options{DSCP: 8})
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			conn, err := l.Client().DialTCP(ctx, netip.AddrPortFrom(serverIPv6, 80), host.Options{})
			if err != nil {
				t.Fatal(err)
			}
			peer, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			if info, err := l.Server().TCPInfo(peer); err != nil || info.DS != 8<<2 {
				t.Errorf("an accepted connection sends %#x (%v), want the listener's mark", info.DS, err)
			}
			if _, err := l.Client().TCPInfo(peer); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("info of another host's connection: %v", err)
			}
			if peer.RemoteAddr().String() != conn.LocalAddr().String() || peer.LocalAddr().String() != "[2001:db8::2]:80" {
				t.Errorf("peer is %v - %v, client %v", peer.LocalAddr(), peer.RemoteAddr(), conn.LocalAddr())
			}
			if c.abort {
				conn.(*Conn).SetLinger(0)
			}
			conn.Close()
			if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, c.want) {
				t.Errorf("%s: the peer reads %v, want %v", name, err, c.want)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	l, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := l.Client()
	for name, c := range map[string]struct {
		family host.Family
		want   int
	}{"lab": {host.AnyFamily, 2}, "192.0.2.2": {host.IPv4, 1}, "2001:db8::2": {host.AnyFamily, 1}, "192.0.2.3": {host.IPv6, 0},
		"example.org": {host.AnyFamily, 0}, "": {host.AnyFamily, 0}, "-f": {host.AnyFamily, 0}} {
		got, err := h.Resolve(t.Context(), name, c.family)
		var dns *net.DNSError
		if len(got) != c.want || (err == nil) != (c.want > 0) || err != nil && (!errors.As(err, &dns) || !dns.IsNotFound) {
			t.Errorf("%q resolves to %v, %v; want %d addresses", name, got, err, c.want)
		}
	}
	if got, err := h.Resolve(t.Context(), Name, host.IPv6); err != nil || len(got) != 1 || got[0] != serverIPv6 {
		t.Errorf("IPv6 address of the lab is %v, %v", got, err)
	}
}

func TestAMarkedPacketCarriesCE(t *testing.T) {
	v4 := make([]byte, 40)
	header.IPv4(v4).Encode(&header.IPv4Fields{TOS: 0xb8 | 2, TotalLength: 40, TTL: 64, Protocol: 17})
	header.IPv4(v4).SetChecksum(^header.IPv4(v4).CalculateChecksum())
	markCE(v4, header.IPv4ProtocolNumber)
	if tos, _ := header.IPv4(v4).TOS(); tos != 0xb8|3 || !header.IPv4(v4).IsChecksumValid() {
		t.Errorf("DS byte %#x, checksum valid %v", tos, header.IPv4(v4).IsChecksumValid())
	}
	v6 := make([]byte, 60)
	header.IPv6(v6).Encode(&header.IPv6Fields{TrafficClass: 1, FlowLabel: 77, PayloadLength: 20, TransportProtocol: 17})
	markCE(v6, header.IPv6ProtocolNumber)
	if tos, label := header.IPv6(v6).TOS(); tos != 3 || label != 77 {
		t.Errorf("DS byte %#x, flow label %d", tos, label)
	}
	markCE(nil, header.IPv4ProtocolNumber) // must not panic
}
