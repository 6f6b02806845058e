package testnet

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/facility"
)

// FrameOverhead is what the kernel's queues count beyond the IP packet: the Ethernet header.
const FrameOverhead = 14

// Queue is a bottleneck: a token bucket (tbf) over a drop-tail queue that is limited in bytes (bfifo). Both count Ethernet headers.
type Queue struct {
	Rate bitrate.Bitrate
	// Limit is the queue's size in bytes, frames with their headers; Buffer gives it as the time that a full queue takes to drain.
	// Exactly one of them is set.
	Limit  int
	Buffer time.Duration
	// Burst is the bucket's size in bytes: what leaves at once after a pause, and so what a sleep that lasts too long may catch up with. 0
	// means 2 ms of the rate, at least two full frames.
	Burst int
}

// Bytes returns the queue's size.
func (q Queue) Bytes() int {
	if q.Limit > 0 {
		return q.Limit
	}
	return int(float64(q.Rate) / 8 * q.Buffer.Seconds())
}

func (q Queue) burst() int {
	if q.Burst > 0 {
		return q.Burst
	}
	return max(int(float64(q.Rate)/8*0.002), 2*1514)
}

// Payload returns the TCP payload that a link of this rate carries with full segments of 1448 bytes (MTU 1500, IPv4, time stamps), each
// in a frame of 1514.
func Payload(rate bitrate.Bitrate) bitrate.Bitrate {
	return bitrate.Bitrate(float64(rate) * 1448 / 1514)
}

// Shape puts a bottleneck in front of the device, in place of the one that was there.
func (d *Device) Shape(t testing.TB, q Queue) {
	t.Helper()
	need(t, "tbf", "tc")
	if (q.Limit > 0) == (q.Buffer > 0) {
		t.Fatalf("queue %+v: want one of Limit and Buffer", q)
	}
	limit := strconv.Itoa(q.Bytes())
	// tbf's own limit is that of the queue it makes itself, which bfifo then replaces.
	err := run("", "tc", "-n", d.Space.Name, "qdisc", "replace", "dev", d.Name, "root", "handle", "1:",
		"tbf", "rate", fmt.Sprintf("%dbit", int64(q.Rate)), "burst", strconv.Itoa(q.burst()), "limit", limit)
	if err != nil {
		facility.Missing(t, "tbf", err.Error())
	}
	err = run("", "tc", "-n", d.Space.Name, "qdisc", "replace", "dev", d.Name, "parent", "1:1", "handle", "10:", "bfifo", "limit", limit)
	if err != nil {
		facility.Missing(t, "bfifo", err.Error())
	}
}

// Unplug pulls the cable out of the device: it loses its carrier and keeps its addresses and routes. What was queued is lost.
func (d *Device) Unplug(t testing.TB) {
	t.Helper()
	d.peer.Space.Do(t, "link", "set", d.peer.Name, "down")
}

// Plug puts the cable back.
func (d *Device) Plug(t testing.TB) {
	t.Helper()
	d.peer.Space.Do(t, "link", "set", d.peer.Name, "up")
}

// SetMTU sets the largest IP packet, in bytes, of the device's link, at both its ends.
func (d *Device) SetMTU(t testing.TB, mtu int) {
	t.Helper()
	for _, end := range []*Device{d, d.peer} {
		end.Space.Do(t, "link", "set", end.Name, "mtu", strconv.Itoa(mtu))
	}
}

// Refusal is how the router treats packets that it does not forward.
type Refusal string

// The refusals.
const (
	Blackhole   Refusal = "blackhole"   // silently
	Unreachable Refusal = "unreachable" // with an ICMP error: host or no route
	Prohibit    Refusal = "prohibit"    // with an ICMP error: administratively prohibited
)

// Block is what the router shall not forward from the client to the server.
type Block struct {
	Protocol string // "tcp", "udp", or "icmp" for ICMP and ICMPv6
	// First and Last bound the blocked destination ports; Last 0 means First alone. Without both all ports are blocked. The kernel's
	// rules cannot name port 65535.
	First, Last uint16
	How         Refusal
}

// Block makes the router refuse packets of both families, from now on and also of connections that stand, until the returned function
// is called.
func (n *Net) Block(t testing.TB, b Block) (unblock func()) {
	t.Helper()
	rules := make([][]string, 0, 2)
	for _, family := range []string{"-4", "-6"} {
		protocol := b.Protocol
		if protocol == "icmp" && family == "-6" {
			protocol = "ipv6-icmp"
		}
		rule := []string{family, "rule", "add", "iif", n.Down.Name, "ipproto", protocol}
		if b.First > 0 {
			rule = append(rule, "dport", fmt.Sprintf("%d-%d", b.First, max(b.First, b.Last)))
		}
		rules = append(rules, append(rule, string(b.How)))
	}
	change := func(verb string) error {
		for _, rule := range rules {
			rule[2] = verb
			if err := run("", "ip", append([]string{"-n", n.Router.Name}, rule...)...); err != nil {
				return err
			}
		}
		return nil
	}
	if err := change("add"); err != nil {
		facility.Missing(t, "iprule", err.Error())
	}
	return func() {
		t.Helper()
		if err := change("del"); err != nil {
			t.Error(err)
		}
	}
}

// Refuse makes the router refuse all packets for the addresses in to, of either family.
func (n *Net) Refuse(t testing.TB, to netip.Prefix, how Refusal) {
	t.Helper()
	n.Router.Do(t, "route", "add", string(how), to.String())
}

// Counters are a device's totals since it was made; bytes include the Ethernet header.
type Counters struct {
	RxPackets, RxBytes, RxDropped uint64
	TxPackets, TxBytes, TxDropped uint64 // TxDropped without the queue's own
}

// Counters reads the device's totals.
func (d *Device) Counters(t testing.TB) Counters {
	t.Helper()
	type half struct{ Packets, Bytes, Dropped uint64 }
	var links []struct {
		Stats64 struct{ Rx, Tx half }
	}
	d.read(t, &links, "ip", "-n", d.Space.Name, "-j", "-s", "link", "show", "dev", d.Name)
	if len(links) != 1 {
		t.Fatalf("counters of %s: %d devices, want 1", d.Name, len(links))
	}
	rx, tx := links[0].Stats64.Rx, links[0].Stats64.Tx
	return Counters{rx.Packets, rx.Bytes, rx.Dropped, tx.Packets, tx.Bytes, tx.Dropped}
}

// QueueCounters are the totals of the queue that Shape made; bytes include the Ethernet header.
type QueueCounters struct {
	Packets, Bytes uint64 // sent on
	Drops          uint64 // turned away because the queue was full
	Backlog        uint64 // bytes that wait now
}

// QueueCounters reads the totals of the device's queue and fails the test where it has not been shaped.
func (d *Device) QueueCounters(t testing.TB) QueueCounters {
	t.Helper()
	var queues []struct {
		Kind string
		QueueCounters
	}
	d.read(t, &queues, "tc", "-n", d.Space.Name, "-j", "-s", "qdisc", "show", "dev", d.Name)
	for _, q := range queues {
		if q.Kind == "bfifo" {
			return q.QueueCounters
		}
	}
	t.Fatalf("%s has no bfifo: %+v", d.Name, queues)
	return QueueCounters{}
}

// read decodes a command's JSON output.
func (d *Device) read(t testing.TB, into any, name string, args ...string) {
	t.Helper()
	out, err := output(name, args...)
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("read the counters of %s: %v", d.Name, err)
	}
}
