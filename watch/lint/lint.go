// Package lint says what about a host's network device would falsify what is measured through it.
//
// The rules are those of the bufferbloat project's best practices for benchmarking, as far as a machine can check them: queues that stand where no
// queue discipline sees them, lumps of many packets in a shaper, parameters that are not for the rate.
package lint

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/watch/device"
	"bufferbloat/watch/qdisc"
)

// Host is what is looked at.
type Host struct {
	Link   device.Link
	Facts  device.Facts
	Queues []qdisc.Queue // of the device, as qdisc.Read returns them
	// Carried is the highest rate that the device was seen to send at, 0 where that is not known.
	Carried bitrate.Bitrate
	// Timer is the resolution of the kernel's timers, 0 where it is not known.
	Timer time.Duration
	// Sleep is how long a CPU may take to wake, 0 where it is not known.
	Sleep time.Duration
}

// Remark is one thing that is not as it should be.
type Remark struct {
	Code string // stable, for programs: "lint_offloads"
	Text string // with its numbers, and with what to do
}

const (
	fullPacket = 1514 // bytes

	// tooLong is the time for which a queue below the queue discipline may hold the link.
	tooLong = 2 * time.Millisecond
	// slow is the rate below which the order of single packets matters.
	slow = 100 * bitrate.Mbit
	// lateInterrupt is the time for which an interrupt may be put off.
	lateInterrupt = time.Millisecond
	// coarse is the resolution of timers without which a shaper sends in bursts.
	coarse = 100 * time.Microsecond
	// lateWaking is the time that a CPU may take to wake.
	lateWaking = 200 * time.Microsecond
	// manyPackets is the usual limit of fq_codel, and fewPackets what the best practices have for slow links.
	manyPackets, fewPackets = 10_240, 1000
)

// shapers are the disciplines that hold packets back by a clock.
var shapers = []string{"tbf", "htb", "hfsc", "netem"}

// Check returns all remarks, in a fixed order. A loopback device has none.
func Check(h Host) []Remark {
	var out []Remark
	remark := func(code, format string, args ...any) {
		out = append(out, Remark{"lint_" + code, fmt.Sprintf(format, args...)})
	}
	if h.Link.Name == "lo" {
		return nil
	}
	h.shaper(remark)
	h.netem(remark)
	h.hardware(remark)
	h.parameters(remark)
	return out
}

type report func(code, format string, args ...any)

// disciplines are those of what the device sends, without classes.
func (h *Host) disciplines() (out []qdisc.Queue) {
	for _, q := range h.Queues {
		if !q.Class && q.Parent != qdisc.Ingress && q.Kind != "ingress" && q.Kind != "clsact" {
			out = append(out, q)
		}
	}
	return out
}

func (h *Host) shaper(remark report) {
	all := h.disciplines()
	i := slices.IndexFunc(all, func(q qdisc.Queue) bool { return slices.Contains(shapers, q.Kind) })
	if i < 0 {
		return
	}
	lumps := slices.DeleteFunc(slices.Clone(h.Facts.Offloads), func(o string) bool { return o != "tso" && o != "gso" })
	if len(lumps) > 0 {
		remark("offloads", "%s has %s on above its %s: the queue holds lumps of up to 64 kB, which no link has; turn them off (ethtool -K %s tso off gso off gro off)",
			h.Link.Name, strings.Join(lumps, " and "), all[i].Kind, h.Link.Name)
	}
	if h.Timer > coarse {
		remark("timer", "the kernel's timers have a resolution of %v: %s sends in bursts of that length; high-resolution timers mend it", h.Timer, all[i].Kind)
	}
}

func (h *Host) netem(remark report) {
	all := h.disciplines()
	i := slices.IndexFunc(all, func(q qdisc.Queue) bool { return q.Kind == "netem" })
	if i < 0 {
		return
	}
	if len(all) > 1 {
		var others []string
		for j, q := range all {
			if j != i {
				others = append(others, q.Kind)
			}
		}
		remark("netem_stacked", "netem stands together with %s on %s: they falsify each other's queue; give the delay to another device or machine",
			strings.Join(others, ", "), h.Link.Name)
	}
	const usual = 1000
	if n := all[i].Options.Limit; n > 0 && n <= usual {
		remark("netem_limit", "netem on %s holds at most %d packets, those that are under way included: what is more is lost, as if a queue were full; raise its limit",
			h.Link.Name, n)
	}
}

func (h *Host) hardware(remark report) {
	if h.Facts.Virtual {
		return
	}
	limits, total := h.Facts.BQL, 0
	for _, b := range limits {
		total = max(total, b.Limit)
	}
	switch hold := h.Facts.Speed.Duration(total); {
	case len(limits) > 0 && total == 0:
		remark("bql", "the driver %s of %s sets no byte queue limits: what its transmit ring holds is a queue that no queue discipline sees", h.Facts.Driver, h.Link.Name)
	case h.Facts.Speed > 0 && hold > tooLong:
		remark("bql", "the byte queue limit of %s stands at %d bytes, which are %v at %v: a queue that no queue discipline sees", h.Link.Name, total,
			hold.Round(100*time.Microsecond), h.Facts.Speed)
	}
	if h.Facts.PauseRx {
		remark("pause", "%s obeys pause frames: who receives from it can stop it, and then the queue stands where neither sees it; turn them off (ethtool -A %s rx off tx off)",
			h.Link.Name, h.Link.Name)
	}
	if h.Sleep >= lateWaking {
		remark("sleep", "the CPUs may sleep so deeply that waking takes %v, which comes to delays while little is to do; keep them from it for a measurement in a lab (cpupower idle-set -D 0)",
			h.Sleep)
	}
	if d := time.Duration(h.Facts.Coalesce) * time.Microsecond; d >= lateInterrupt {
		remark("interrupts", "%s puts interrupts for received packets off by up to %v: that is part of every delay (ethtool -C %s rx-usecs)", h.Link.Name, d, h.Link.Name)
	}
}

func (h *Host) parameters(remark report) {
	all := h.disciplines()
	shaped := slices.ContainsFunc(all, func(q qdisc.Queue) bool { return slices.Contains(shapers, q.Kind) })
	for _, q := range all {
		if q.Kind == "fq_codel" && q.Options.Limit >= manyPackets && shaped && h.Carried > 0 && h.Carried < slow {
			remark("fq_codel_limit", "fq_codel on %s may hold %d packets, which are %v at %.3g Mbit/s: %d are enough for what it does not drop by itself", h.Link.Name, q.Options.Limit,
				h.Carried.Duration(q.Options.Limit*fullPacket).Round(100*time.Millisecond), h.Carried.Mbps(), fewPackets)
		}
		switch {
		case q.Kind == "pfifo_fast" && q.Parent == qdisc.Root && !h.Facts.Virtual && h.Facts.Speed > 0:
			if d := h.Facts.Speed.Duration(h.Link.TxQueueLength * fullPacket); d > 50*time.Millisecond {
				remark("txqueuelen", "the queue of %s takes %d packets, which are %v at %v (ip link set %s txqueuelen)", h.Link.Name, h.Link.TxQueueLength,
					d.Round(time.Millisecond), h.Facts.Speed, h.Link.Name)
			}
		case q.Kind == "fq_codel" && q.Options.Quantum >= fullPacket && shaped && h.Carried > 0 && h.Carried < slow:
			remark("fq_codel", "fq_codel on %s has a quantum of %d bytes at %.3g Mbit/s: with 300, small packets need not wait for a full one of each other flow",
				h.Link.Name, q.Options.Quantum, h.Carried.Mbps())
		}
	}
}
