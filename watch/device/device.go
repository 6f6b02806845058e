// Package device reads what a network device is and counts: what may stand in the way of a measurement between the queue and the wire.
package device

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"bufferbloat/internal/bitrate"
	"bufferbloat/watch/rtnl"
)

// Link is a device as rtnetlink(7) tells it: its name, what it is, and its counters since it was made.
type Link struct {
	Index          int
	Name           string
	Address        string // of the link layer: "02:00:00:00:02:01"
	Kind           string // "veth", "bridge"; "" for a real device
	MTU            int    // bytes
	TxQueueLength  int    // packets, of the queue disciplines that ask for it
	RxBytes        uint64 // with the header of the link layer, as are the sent ones
	TxBytes        uint64
	RxPackets      uint64
	TxPackets      uint64
	RxDropped      uint64
	TxDropped      uint64
	RxErrors       uint64
	TxErrors       uint64
	countersMissed bool
}

// The numbers of linux/rtnetlink.h and linux/if_link.h.
const (
	infoSize = 16 // struct ifinfomsg

	iflaAddress, iflaName, iflaMTU, iflaTxQueueLength, iflaLinkInfo, iflaStats64 = 1, 3, 4, 13, 18, 23
	infoKind                                                                     = 1
)

// ParseLink reads the body of a message about a device.
func ParseLink(b []byte) (Link, error) {
	if len(b) < infoSize {
		return Link{}, &rtnl.MalformedError{Offset: 0, What: fmt.Sprintf("a message about a device of %d bytes", len(b))}
	}
	l := Link{Index: int(int32(binary.NativeEndian.Uint32(b[4:]))), countersMissed: true}
	err := rtnl.Attrs(b[infoSize:], func(kind uint16, value []byte) error {
		n, _ := rtnl.Uint32(value)
		switch kind {
		case iflaAddress:
			l.Address = net.HardwareAddr(value).String()
		case iflaName:
			l.Name = rtnl.String(value)
		case iflaMTU:
			l.MTU = int(min(n, 1<<31-1))
		case iflaTxQueueLength:
			l.TxQueueLength = int(min(n, 1<<31-1))
		case iflaStats64:
			l.count(value)
		case iflaLinkInfo:
			return rtnl.Attrs(value, func(kind uint16, value []byte) error {
				if kind == infoKind {
					l.Kind = rtnl.String(value)
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && l.countersMissed {
		err = &rtnl.MalformedError{Offset: infoSize, What: "a device without counters"}
	}
	return l, err
}

// count reads struct rtnl_link_stats64.
func (l *Link) count(b []byte) {
	into := []*uint64{&l.RxPackets, &l.TxPackets, &l.RxBytes, &l.TxBytes, &l.RxErrors, &l.TxErrors, &l.RxDropped, &l.TxDropped}
	if len(b) < 8*len(into) {
		return
	}
	for i, n := range into {
		*n = binary.NativeEndian.Uint64(b[8*i:])
	}
	l.countersMissed = false
}

// ReadLink reads a device of the calling thread's network namespace.
func ReadLink(index int) (Link, error) {
	l, err := readLink(index)
	if err != nil {
		return l, fmt.Errorf("counters of a network device: %w", err)
	}
	return l, nil
}

// Egress returns the index of the device that packets to an address leave through, by the routes and rules of the calling thread's network namespace. They
// leave from an address, which rules may look at, or the zero Addr; and through the device of a name, or "" where the routes choose.
func Egress(to, from netip.Addr, through string) (int, error) {
	if through != "" {
		d, err := net.InterfaceByName(through)
		if err != nil {
			return 0, fmt.Errorf("device %q: %w", through, err)
		}
		return d.Index, nil
	}
	index, err := egress(to.Unmap().WithZone(""), from.Unmap().WithZone(""))
	if err != nil {
		return 0, fmt.Errorf("the route to %v: %w", to, err)
	}
	return index, nil
}

// Facts are what a device's driver and the kernel say of it. What they do not say has a reason in Missing.
type Facts struct {
	Driver  string
	Speed   bitrate.Bitrate // 0 where it is not known
	Virtual bool            // no hardware behind it
	// Offloads are those that are on, of "tso", "gso", "gro" and "lro": they make one packet of many.
	Offloads []string
	// PauseRx and PauseTx say that pause frames hold the device up, or that it sends them.
	PauseRx, PauseTx bool
	// Coalesce is the time for which the device may wait with an interrupt for what it received, in microseconds.
	Coalesce int
	BQL      []BQL             // of its transmit queues
	Missing  map[string]string // why not, by what: "speed", "offloads", "pause frames", "byte queue limits", "interrupts"
}

// BQL is the byte queue limit of one transmit queue.
type BQL struct{ Limit, Highest, InFlight int }

// ReadFacts reads them of a device of the calling thread's network namespace.
func ReadFacts(l Link) Facts {
	f := Facts{Missing: map[string]string{}}
	readFacts(l, &f)
	return f
}

// ReadBQL reads the byte queue limits of a device alone.
func ReadBQL(l Link) ([]BQL, error) { return readBQL(l) }

// Wireless is the state of a Wi-Fi device as /proc/net/wireless has it.
type Wireless struct {
	Quality, Signal, Noise float64 // Signal and Noise are in dBm where they are below 0
	Retries, Missed        uint64  // frames that were given up after too many tries; beacons that did not come
}

// ReadWireless reads it of the device with this name, false where it is no Wi-Fi device that the kernel tells about.
func ReadWireless(name string) (Wireless, bool) { return readWireless(name) }

// parseWireless reads the line of one device.
func parseWireless(text, name string) (w Wireless, ok bool) {
	for line := range strings.Lines(text) {
		device, rest, found := strings.Cut(line, ":")
		if !found || strings.TrimSpace(device) != name {
			continue
		}
		f := strings.Fields(rest) // status, link, level, noise, nwid, crypt, frag, retry, misc, beacon
		if len(f) < 10 {
			return Wireless{}, false
		}
		var errs [5]error
		number := func(s string) (float64, error) { return strconv.ParseFloat(strings.TrimSuffix(s, "."), 64) }
		w.Quality, errs[0] = number(f[1])
		w.Signal, errs[1] = number(f[2])
		w.Noise, errs[2] = number(f[3])
		w.Retries, errs[3] = strconv.ParseUint(f[7], 10, 64)
		w.Missed, errs[4] = strconv.ParseUint(f[9], 10, 64)
		for _, err := range errs {
			if err != nil {
				return Wireless{}, false
			}
		}
		return w, true
	}
	return Wireless{}, false
}
