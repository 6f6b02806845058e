// Package kernel is a client and a server in network namespaces of their own, with an emulated bottleneck link between them.
//
// What runs at either end uses the kernel's own TCP and real sockets; it may be any program. Each end has a veth device; what it sends
// is read at the device's far end by a forwarder, goes through a link.Link per direction, and is written to the other end's device. The
// forwarder is a process of its own, so that neither the load nor the garbage collector of its neighbours stands in its way.
//
// Super-packets of segmentation offload are taken apart into the segments that would be on a wire before they enter a link, so that
// no queue ever holds lumps, and neighbours of one super-packet that leave a link at the same wake-up are handed over together.
//
// The processes, as one program that starts itself again (all in a process namespace of their own, so that nothing survives):
//
//	Enter    outside: starts the next, hands its signals on, and waits
//	Build    inside, at the client's end: makes the namespaces, the devices and the next
//	Forward  the link between the ends
//
// Packets enter a link at the time that the kernel stamped on them, and every event of the link has its own time, so a forwarder that the
// machine wakes late delivers late and changes nothing else; Stats says how late it was, and what the kernel lost outside the link.
package kernel

import (
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/servers/lab/link"
)

// The addresses of the two ends, from the ranges for documentation (RFC 5737, RFC 3849), and the largest IP packet of their devices.
var (
	ClientIPv4, ServerIPv4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	ClientIPv6, ServerIPv6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
)

const mtu = 1500

// Facility is something that the machine must have for a lab of this kind.
type Facility string

// The facilities.
const (
	Namespaces     Facility = "netns"         // network, process and mount namespaces, with privilege
	UserNamespaces Facility = "userns"        // the same without privilege, in a user namespace
	Veth           Facility = "veth"          // pairs of virtual Ethernet devices
	PacketSockets  Facility = "packet-socket" // AF_PACKET with headers for offloads
)

// MissingError says what the machine lacks, as a real try found out.
type MissingError struct {
	Facility Facility
	Err      error
	Hint     string // what the user can do; "" for nothing in particular
}

func (e *MissingError) Error() string {
	text := fmt.Sprintf("no %s here: %v", e.Facility, e.Err)
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

func (e *MissingError) Unwrap() error { return e.Err }

// Facts is what a lab found out about itself while it was built.
type Facts struct {
	Privilege string   // "root" or "an unprivileged user namespace"
	RealTime  bool     // the forwarder runs with real-time scheduling
	Names     bool     // the client's hosts file knows the ends by name
	Notes     []string // settings that the machine refused, one line each
	Cost      Cost
}

// Cost is the carrier's own share of the round-trip time, both directions together: what an echo request took through the devices and the
// forwarder beyond a link of unlimited rate and known delay, on the machine as it was then.
type Cost struct {
	Probes           int
	Min, Median, P90 time.Duration
}

// Known reports whether the cost was measured.
func (c Cost) Known() bool { return c.Probes > 0 }

// Stats is what the lab saw since its link began: the truth that a measurement through it can be checked against.
type Stats struct {
	Down, Up           link.Stats
	DownQueue, UpQueue link.QueueStats
	// Lateness is how long after its time each packet was delivered, by the forwarder's own fault.
	Lateness link.Lateness
	Outside  OutsideDrops
	Busy     time.Duration // CPU time of the forwarder
}

// OutsideDrops are packets that the kernel lost where the lab's link is not to blame. Where they are not zero, loss and throughput
// measured through the lab are not the link's alone.
type OutsideDrops struct {
	Unread  uint64 // at the forwarder's sockets, which were full
	Unsent  uint64 // refused by the kernel as they left the link
	Foreign uint64 // super-packets of a kind that the forwarder cannot take apart
	Devices uint64 // at the devices of the two ends
}

// Total is their sum.
func (o OutsideDrops) Total() uint64 { return o.Unread + o.Unsent + o.Foreign + o.Devices }
