package host

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"bufferbloat/internal/facility"
	"bufferbloat/internal/testnet"
)

func TestARouterNamesItselfWhereTheTTLEnds(t *testing.T) {
	n := testnet.New(t)
	unlimitICMP(t, n)
	for name, k := range echoKernels(t, n.Client) {
		for _, to := range []struct{ server, router netip.Addr }{{n.Server.IP, n.Router.IP}, {n.Server.IP6, n.Router.IP6}} {
			t.Run(name+" "+to.server.String(), func(t *testing.T) {
				f := FamilyOf(to.server)
				one := dialEchoIn(t, n.Client, k, to.server, Options{TTL: 1})
				request := echoRequest(f, 7, 1, "01234567")
				sent, err := one.Send(request, netip.AddrPort{})
				if err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 100)
				d := receive(t, one, b)
				if d.Rejected == nil || !d.Rejected.Expired || d.Rejected.By != to.router || d.N < icmpHeader || d.At.Before(sent) {
					t.Errorf("got %+v (%v), want the router's word that the TTL ran out", d, d.Rejected)
				}
				two := dialEchoIn(t, n.Client, k, to.server, Options{TTL: 2})
				if _, err := two.Send(request, netip.AddrPort{}); err != nil {
					t.Fatal(err)
				}
				if d := receive(t, two, b); d.Rejected != nil {
					t.Errorf("with a TTL of 2: %v, want the server's reply", d.Rejected)
				}
			})
		}
	}
	n.Refuse(t, netip.PrefixFrom(n.Server.IP, 32), testnet.Unreachable)
	c := dialEchoIn(t, n.Client, NewKernel(), n.Server.IP, Options{})
	if _, err := c.Send(echoRequest(IPv4, 7, 1, "01234567"), netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, c, make([]byte, 100)); d.Rejected == nil || d.Rejected.Expired {
		t.Errorf("an unreachable server: %+v, want a rejection that is not about the TTL", d)
	}
}

func TestECNBitsAreSentWithTheCodePoint(t *testing.T) {
	k := NewKernel()
	for _, at := range loopbacks(t) {
		server := listenUDP(t, k, at, Options{})
		for _, ecn := range []ECN{NotECT, ECT0, ECT1, CE} {
			client := dialUDP(t, k, server.LocalAddr(), Options{DSCP: 46, ECN: ecn})
			if _, err := client.Send([]byte("x"), netip.AddrPort{}); err != nil {
				t.Fatal(err)
			}
			d := receive(t, server, make([]byte, 10))
			if got, want := d.DS, 46<<2|uint8(ecn); got != want || ECNOf(d.DS) != ecn {
				t.Errorf("%v: DS %#x, want %#x", ecn, got, want)
			}
		}
		if _, err := k.DialTCP(t.Context(), server.LocalAddr(), Options{ECN: ECT0}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("ECT(0) on a TCP socket: %v, want that this is not supported", err)
		}
	}
}

func TestAHostAnswersATimestampRequest(t *testing.T) {
	n := testnet.New(t)
	c, err := EchoConn(nil), error(nil)
	n.Client.Inside(t, func() { c, err = NewKernel().DialEcho(t.Context(), n.Server.IP, Options{ICMPTimestamp: true}) })
	if err != nil {
		facility.Missing(t, "raw-icmp", err.Error())
	}
	defer c.Close()
	if _, ok := c.Identifier(); ok {
		t.Error("the identifier is the stack's, want a raw socket's")
	}
	request := make([]byte, 20)
	request[0] = 13
	binary.BigEndian.PutUint16(request[4:], 0x1234)
	sinceMidnight := uint32(time.Now().UnixMilli() % (24 * time.Hour).Milliseconds())
	binary.BigEndian.PutUint32(request[8:], sinceMidnight)
	if _, err := c.Send(request, netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	d := receive(t, c, b)
	if d.N != 20 || b[0] != icmpTimestampReply || binary.BigEndian.Uint32(b[8:]) != sinceMidnight {
		t.Errorf("got %d bytes %x", d.N, b[:d.N])
	}
	n.Client.Inside(t, func() { _, err = NewKernel().DialEcho(t.Context(), n.Server.IP6, Options{ICMPTimestamp: true}) })
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("over IPv6: %v, want that this is not supported", err)
	}
}
