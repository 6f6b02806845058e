// Package qdisc reads the counters of a network device's queue disciplines, as "tc -s qdisc" and "tc -s class" show them.
package qdisc

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"bufferbloat/watch/rtnl"
)

// Queue is one queue discipline of a device, or one class of one.
type Queue struct {
	Kind   string // "fq_codel"
	Class  bool
	Device int // its index
	Handle Handle
	Parent Handle

	Bytes, Packets uint64 // that were sent
	// These are the kernel's 32-bit counters, which begin again at 0 after their highest value.
	Backlog    uint64 // bytes
	Length     uint64 // packets
	Drops      uint64
	Requeues   uint64
	Overlimits uint64
	More       []Counter // what only this kind has
	Options    Options
}

// Counter is one number of a kind of queue, named as tc(8) names it.
type Counter struct {
	Name  string
	Unit  string // "bytes", "ns", "" for a plain number
	Value float64
}

// Options are parameters that bear on delay; 0 where they are not known.
type Options struct {
	Limit   int // packets
	Quantum int // bytes
}

// Handle names a queue discipline or a class on its device, major and minor number.
type Handle uint32

// Root is the parent of a device's own queue discipline, Ingress and Clsact those of what comes in.
const (
	Root    Handle = 0xffffffff
	Ingress Handle = 0xfffffff1
)

// String is the handle as tc(8) writes it.
func (h Handle) String() string {
	switch {
	case h == Root:
		return "root"
	case h == Ingress:
		return "ingress"
	case h&0xffff == 0:
		return strconv.FormatUint(uint64(h>>16), 16) + ":"
	}
	return strconv.FormatUint(uint64(h>>16), 16) + ":" + strconv.FormatUint(uint64(h&0xffff), 16)
}

// Name is what to call the queue among those of its device: "fq_codel", "fq_codel parent 1:10", "htb class 1:10".
func (q *Queue) Name() string {
	switch {
	case q.Class:
		return q.Kind + " class " + q.Handle.String()
	case q.Parent == Root:
		return q.Kind
	}
	return q.Kind + " parent " + q.Parent.String()
}

// The numbers of linux/rtnetlink.h, linux/gen_stats.h and linux/pkt_sched.h.
const (
	headerSize = 20 // struct tcmsg

	tcaKind, tcaOptions, tcaStats2 = 1, 2, 7

	statsBasic, statsQueue, statsApp, statsPackets = 1, 3, 4, 8
)

// Parse reads the body of a message about a queue discipline or a class. Counters that the kernel did not send stay 0; More holds what is
// known of the kind, and nothing where the kernel's structure is of another size than those that are known.
func Parse(b []byte, class bool) (Queue, error) {
	q := Queue{Class: class}
	if len(b) < headerSize {
		return q, &rtnl.MalformedError{Offset: 0, What: fmt.Sprintf("a message about a queue of %d bytes", len(b))}
	}
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	q.Device, q.Handle, q.Parent = int(int32(word(4))), Handle(word(8)), Handle(word(12))
	var options, app []byte
	err := rtnl.Attrs(b[headerSize:], func(kind uint16, value []byte) error {
		switch kind {
		case tcaKind:
			q.Kind = rtnl.String(value)
		case tcaOptions:
			options = value
		case tcaStats2:
			return rtnl.Attrs(value, func(kind uint16, value []byte) error {
				if kind == statsApp {
					app = value
				}
				q.stats(kind, value)
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return q, err
	}
	if q.Kind == "" {
		return q, &rtnl.MalformedError{Offset: headerSize, What: "a queue of no kind"}
	}
	if q.More, err = q.more(app); err != nil {
		return q, fmt.Errorf("counters of %s: %w", q.Kind, err)
	}
	q.options(options)
	return q, nil
}

// stats reads the counters that all kinds have.
func (q *Queue) stats(kind uint16, value []byte) {
	words := numbers(value)
	switch kind {
	case statsBasic:
		if bytes, ok := rtnl.Uint64(value); ok && len(words) >= 3 {
			q.Bytes = bytes
			q.Packets = max(q.Packets, uint64(words[2])) // the longer count, where it is there, may come first
		}
	case statsPackets:
		if n, ok := rtnl.Uint64(value); ok {
			q.Packets = n
		}
	case statsQueue:
		if len(words) >= 5 {
			q.Length, q.Backlog, q.Drops = uint64(words[0]), uint64(words[1]), uint64(words[2])
			q.Requeues, q.Overlimits = uint64(words[3]), uint64(words[4])
		}
	}
}

// numbers are the 32-bit words of a structure.
func numbers(b []byte) []uint32 {
	words := make([]uint32, len(b)/4)
	for i := range words {
		words[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return words
}

// options reads the parameters of the kinds that the checks of a lab look at.
func (q *Queue) options(b []byte) {
	if q.Class {
		return
	}
	switch q.Kind {
	case "netem": // struct tc_netem_qopt, and attributes behind it
		if w := numbers(b); len(w) >= 2 {
			q.Options.Limit = bounded(w[1])
		}
	case "pfifo", "pfifo_head_drop":
		if w := numbers(b); len(w) >= 1 {
			q.Options.Limit = bounded(w[0])
		}
	case "fq_codel":
		q.Options.Limit, q.Options.Quantum = attribute(b, 2), attribute(b, 6)
	case "codel", "pie", "fq_pie":
		limits := map[string]uint16{"codel": 2, "pie": 2, "fq_pie": 1}
		q.Options.Limit = attribute(b, limits[q.Kind])
	}
}

// attribute returns the number in the attribute of this type, 0 where there is none.
func attribute(b []byte, kind uint16) (n int) {
	_ = rtnl.Attrs(b, func(k uint16, value []byte) error {
		if v, ok := rtnl.Uint32(value); ok && k == kind {
			n = bounded(v)
		}
		return nil
	})
	return n
}

// bounded keeps a number of the kernel's within what an int holds on every machine.
func bounded(n uint32) int { return int(min(n, 1<<31-1)) }

// classful are the kinds whose classes are worth a line of their own.
var classful = []string{"htb", "hfsc", "drr", "qfq", "ets"}

// Read returns the queue disciplines of a device, its own first, and the classes of those that have some, in the calling thread's network
// namespace. The error wraps errors.ErrUnsupported where the system has no queue disciplines.
func Read(device int) ([]Queue, error) {
	all, err := read(device, false)
	if err != nil {
		return nil, fmt.Errorf("queue disciplines: %w", err)
	}
	if slices.ContainsFunc(all, func(q Queue) bool { return slices.Contains(classful, q.Kind) }) {
		classes, err := read(device, true)
		if err != nil {
			return nil, fmt.Errorf("classes of queue disciplines: %w", err)
		}
		for _, c := range classes {
			if slices.Contains(classful, c.Kind) {
				all = append(all, c)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Queue) int { return rank(&a) - rank(&b) })
	return all, nil
}

// rank brings the device's own discipline to the front, and classes to the end.
func rank(q *Queue) int {
	switch {
	case q.Class:
		return 2
	case q.Parent == Root:
		return 0
	}
	return 1
}
