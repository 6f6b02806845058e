package icmp

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	probing "github.com/prometheus-community/pro-bing"

	"bufferbloat/internal/facility"
)

// These tests keep the package doc's claims about pro-bing true: where one fails, the library has changed and deserves another look.

func pinger(t *testing.T, target string) *probing.Pinger {
	t.Helper()
	p, err := probing.NewPinger(target)
	if err != nil {
		t.Fatal(err)
	}
	p.SetPrivileged(true)
	return p
}

func rawSocket(t *testing.T) net.PacketConn {
	t.Helper()
	c, err := net.ListenPacket("ip4:icmp", "127.0.0.1")
	if err != nil {
		facility.Missing(t, "raw-icmp", err.Error())
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The time of sending is read from the packet, by the wall clock: who alters it sets the RTT.
func TestProBingTakesTheSendTimeFromThePacket(t *testing.T) {
	conn := rawSocket(t)
	p := pinger(t, "127.0.0.1")
	p.Count, p.Timeout = 1, 2*time.Second
	before := time.Now().UnixNano()
	if err := p.Run(); err != nil {
		t.Fatal(err)
	}
	after := time.Now().UnixNano()
	b := make([]byte, 1500)
	if err := conn.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for {
		n, _, err := conn.ReadFrom(b)
		if err != nil {
			t.Fatalf("no echo request of this pinger on the wire: %v", err)
		}
		if n < 16 || b[0] != echoRequest4 || int(binary.BigEndian.Uint16(b[4:])) != p.ID() {
			continue
		}
		if stamp := int64(binary.BigEndian.Uint64(b[8:])); stamp < before || stamp > after {
			t.Errorf("the data begins with %d, want wall-clock nanoseconds in %d..%d", stamp, before, after)
		}
		return
	}
}

// Count ends the series by replies: where one is lost, only the timeout does.
func TestProBingNeverEndsByCountWhenOneIsLost(t *testing.T) {
	rawSocket(t)
	// The loopback network's broadcast address answers nobody, unless told otherwise.
	p := pinger(t, "127.255.255.255")
	p.Count, p.Interval, p.Timeout = 3, time.Millisecond, 300*time.Millisecond
	start := time.Now()
	if err := p.Run(); err != nil {
		t.Fatal(err)
	}
	s := p.Statistics()
	if s.PacketsRecv > 0 {
		facility.Missing(t, "silent-broadcast", "this host answers pings to its broadcast address")
	}
	if s.PacketsSent != 3 || time.Since(start) < p.Timeout {
		t.Errorf("%d sent, ended after %v; want 3, and the end not before the timeout of %v", s.PacketsSent, time.Since(start), p.Timeout)
	}
}
