package host

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/testnet"
)

// A ping socket goes on from another address of the host. Others, and those with a source of their own, say what is the matter.
func TestAnEchoGoesOnFromTheAddressThatReplacesItsOwn(t *testing.T) {
	n := testnet.New(t)
	conns := stampedConns(t, n, n.Server.IP)
	kept := map[string]PacketConn{}
	for name, k := range echoKernels(t, n.Client) {
		kept[name+" with a source"] = dialEchoIn(t, n.Client, k, n.Server.IP, Options{Source: n.Client.IP})
	}
	exchange := func(c PacketConn) (Datagram, error) {
		t.Helper()
		packet := echoRequest(IPv4, 0x4321, 5, "payload")
		if echo, ok := c.(EchoConn); ok {
			if id, fixed := echo.Identifier(); fixed {
				packet[4], packet[5] = byte(id>>8), byte(id)
			}
		}
		if _, err := c.Send(packet, netip.AddrPort{}); err != nil {
			return Datagram{}, err
		}
		b := make([]byte, 100)
		for { // a raw socket hears the replies to the others too
			if d := receive(t, c, b); d.Rejected != nil || string(b[4:6]) == string(packet[4:6]) {
				return d, nil
			}
		}
	}
	for name, c := range conns {
		if _, err := exchange(c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	next := n.Client.IP.Next().Next().Next()
	bits := "/24"
	n.Client.Do(t, "addr", "del", n.Client.IP.String()+bits, "dev", n.ClientDevice.Name)
	n.Client.Do(t, "addr", "add", next.String()+bits, "dev", n.ClientDevice.Name)
	n.Client.Do(t, "route", "replace", "default", "via", n.Router.IP.String())
	for name, c := range conns {
		d, err := exchange(c)
		if name != "ping" {
			if err == nil || !strings.Contains(err.Error(), n.Client.IP.String()+" still an address of this host") {
				t.Errorf("%s: %v; want the address named that is gone", name, err)
			}
			continue
		}
		if err != nil || d.Rejected != nil || d.To != next || time.Since(d.At) > time.Minute {
			t.Errorf("%s: %+v, %v; want an answer to %v", name, d, err, next)
		}
	}
	for name, c := range kept {
		if _, err := c.Send(echoRequest(IPv4, 1, 1, ""), netip.AddrPort{}); err == nil {
			t.Errorf("%s: sent from another address than was asked for", name)
		}
	}
}
