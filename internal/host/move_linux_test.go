package host

import (
	"net/netip"
	"strings"
	"testing"

	"bufferbloat/internal/testnet"
)

// An ICMP socket goes on from another address of the host, be it after a time without any. Others, and those with a source of their own, say what is
// the matter.
func TestAnEchoGoesOnFromTheAddressThatReplacesItsOwn(t *testing.T) {
	for _, f := range []Family{IPv4, IPv6} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			goesOnFromAnotherAddress(t, f)
		})
	}
}

func goesOnFromAnotherAddress(t *testing.T, f Family) {
	n := testnet.New(t)
	server, client, router, bits := n.Server.IP, n.Client.IP, n.Router.IP, "/24"
	if f == IPv6 {
		server, client, router, bits = n.Server.IP6, n.Client.IP6, n.Router.IP6, "/64"
	}
	moving := map[string]PacketConn{}
	fixed := stampedConns(t, n, server)
	for _, name := range []string{"ping", "raw"} {
		moving[name] = fixed[name]
		delete(fixed, name)
	}
	for name, k := range echoKernels(t, n.Client) {
		moving[name+" with a device"] = dialEchoIn(t, n.Client, k, server, Options{Interface: n.ClientDevice.Name})
		fixed[name+" with a source"] = dialEchoIn(t, n.Client, k, server, Options{Source: client})
	}
	for _, conns := range []map[string]PacketConn{moving, fixed} {
		for name, c := range conns {
			if d, err := exchange(t, c, f, 2); err != nil || d.To.IsValid() && d.To != client {
				t.Fatalf("%s: %+v, %v; want an answer to %v", name, d, err, client)
			}
		}
	}
	n.Client.Do(t, "addr", "del", client.String()+bits, "dev", n.ClientDevice.Name)
	next := client.Next().Next().Next()
	for _, conns := range []map[string]PacketConn{moving, fixed} {
		for _, c := range conns {
			_, _ = c.Send(echoRequest(f, 1, 1, ""), netip.AddrPort{}) // may go out from an address of the link, or not at all
		}
	}
	add := []string{"addr", "add", next.String() + bits, "dev", n.ClientDevice.Name}
	if f == IPv6 {
		add = append(add, "nodad")
	}
	n.Client.Do(t, add...)
	n.Client.Do(t, "route", "replace", "default", "via", router.String())
	for name, c := range moving {
		d, err := exchange(t, c, f, 3)
		if err != nil || d.Rejected != nil || d.To != next {
			t.Errorf("%s: %+v, %v; want an answer to %v", name, d, err, next)
		}
	}
	for name, c := range fixed {
		if _, err := c.Send(echoRequest(f, 1, 1, ""), netip.AddrPort{}); err == nil || !strings.Contains(err.Error(), client.String()+" still an address of this host") {
			t.Errorf("%s: %v; want the address named that is gone", name, err)
		}
	}
}

// exchange sends an echo request of this sequence number and returns what comes back of it.
func exchange(t *testing.T, c PacketConn, f Family, seq uint16) (Datagram, error) {
	t.Helper()
	packet := echoRequest(f, 0x4321, seq, "payload")
	if echo, ok := c.(EchoConn); ok {
		if id, fixed := echo.Identifier(); fixed {
			packet[4], packet[5] = byte(id>>8), byte(id)
		}
	}
	if _, err := c.Send(packet, netip.AddrPort{}); err != nil {
		return Datagram{}, err
	}
	b := make([]byte, 100)
	for { // a raw socket hears what the others do
		if d := receive(t, c, b); string(b[4:8]) == string(packet[4:8]) {
			return d, nil
		}
	}
}
