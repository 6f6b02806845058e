package qdisc

import (
	"encoding/binary"
	"fmt"

	"bufferbloat/watch/rtnl"
)

// field is one member of a kernel's structure of 32-bit words.
type field struct {
	word  int
	name  string
	unit  string
	scale float64 // to the unit; 0 is 1
}

// micro turns the kernel's microseconds into nanoseconds.
const micro = 1000

// layout returns the members of interest of a kind's structure, and the least number of words that it must have. Structures only ever grow at
// their end, where the comment says nothing else.
func layout(kind string, class bool) (fields []field, words int) {
	switch {
	case class && kind == "htb": // struct tc_htb_xstats
		return []field{{0, "lended", "", 0}, {1, "borrowed", "", 0}}, 5
	case class:
		return nil, 0
	}
	switch kind {
	case "fq_codel": // struct tc_fq_codel_xstats; its first word says that this is not about a class
		return []field{{1, "maxpacket", "bytes", 0}, {2, "drop_overlimit", "", 0}, {3, "ecn_mark", "", 0}, {4, "new_flow_count", "", 0}, {5, "new_flows_len", "", 0},
			{6, "old_flows_len", "", 0}, {7, "ce_mark", "", 0}, {8, "memory_used", "bytes", 0}, {9, "drop_overmemory", "", 0}}, 7
	case "codel": // struct tc_codel_xstats
		return []field{{1, "count", "", 0}, {3, "ldelay_ns", "ns", micro}, {5, "drop_overlimit", "", 0}, {6, "ecn_mark", "", 0}, {7, "dropping", "", 0},
			{8, "ce_mark", "", 0}}, 8
	case "fq_pie": // struct tc_fq_pie_xstats
		return []field{{1, "dropped_early", "", 0}, {2, "drop_overlimit", "", 0}, {3, "drop_overmemory", "", 0}, {4, "ecn_mark", "", 0}, {5, "new_flow_count", "", 0},
			{6, "new_flows_len", "", 0}, {7, "old_flows_len", "", 0}, {8, "memory_used", "bytes", 0}}, 9
	case "red": // struct tc_red_xstats
		return []field{{0, "early", "", 0}, {1, "pdrop", "", 0}, {2, "other", "", 0}, {3, "ecn_mark", "", 0}}, 4
	case "choke": // struct tc_choke_xstats
		return []field{{0, "early", "", 0}, {1, "pdrop", "", 0}, {2, "other", "", 0}, {3, "ecn_mark", "", 0}, {4, "matched", "", 0}}, 5
	case "fq": // struct tc_fq_qd_stats, which begins with eight numbers of 64 bits
		return []field{{16, "flows", "", 0}, {17, "inactive_flows", "", 0}, {18, "throttled_flows", "", 0}}, 20
	}
	return nil, 0
}

// more reads the counters that only this kind has.
func (q *Queue) more(app []byte) ([]Counter, error) {
	if len(app) == 0 {
		return nil, nil
	}
	switch {
	case q.Class:
	case q.Kind == "cake":
		return cake(app)
	case q.Kind == "pie":
		return pie(app), nil
	}
	fields, least := layout(q.Kind, q.Class)
	words := numbers(app)
	if len(words) < least {
		return nil, nil
	}
	if q.Kind == "fq_codel" && words[0] != 0 {
		return nil, nil
	}
	var out []Counter
	for _, f := range fields {
		if f.word < len(words) {
			out = append(out, Counter{f.name, f.unit, float64(words[f.word]) * max(f.scale, 1)})
		}
	}
	return out, nil
}

// The sizes of struct tc_pie_xstats: with a probability of 32 bits, until Linux 4.20, and of 64 bits.
const oldPIE, newPIE = 32, 40

// pie reads the statistics of PIE. Between Linux 5.0 and 5.5 the longer structure lacked the word that says whether the rate is being
// estimated; where what stands there is no truth value, it is that one, and what is behind it is left out.
func pie(b []byte) (out []Counter) {
	words := numbers(b)
	counters := func(w []uint32) {
		for i, name := range []string{"packets_in", "dropped_early", "overlimit", "maxq", "ecn_mark"} {
			out = append(out, Counter{Name: name, Value: float64(w[i])})
		}
	}
	switch {
	case len(b) == oldPIE:
		out = append(out, Counter{"prob", "", float64(words[0]) / (1 << 32)}, Counter{"delay_ns", "ns", float64(words[1]) * micro})
		counters(words[3:])
	case len(b) >= newPIE:
		p := binary.NativeEndian.Uint64(b)
		out = append(out, Counter{"prob", "", float64(p) / (1 << 64)}, Counter{"delay_ns", "ns", float64(words[2]) * micro})
		if words[4] <= 1 {
			counters(words[5:])
		}
	}
	return out
}

// The attributes of cake's statistics, and those of its tins (linux/pkt_sched.h).
const (
	cakeCapacity, cakeMemoryUsed, cakeTins = 2, 4, 10

	maxTins = 8
)

// tinFields are the attributes of a tin: those of 64 bits end in 64 there.
func tinFields() map[uint16]field {
	return map[uint16]field{
		3: {2, "sent_bytes", "bytes", 0}, 4: {1, "drops", "", 0}, 6: {1, "ack_drop", "", 0}, 8: {1, "marks", "", 0},
		10: {1, "backlog_packets", "packets", 0}, 11: {1, "backlog", "bytes", 0},
		18: {1, "pk_delay_ns", "ns", micro}, 19: {1, "av_delay_ns", "ns", micro}, 20: {1, "sp_delay_ns", "ns", micro},
		21: {1, "sp_flows", "", 0}, 22: {1, "bk_flows", "", 0}, 23: {1, "un_flows", "", 0},
	}
}

// cake reads the statistics of cake: of the whole, and of each tin, by number, since the kernel does not name them.
func cake(b []byte) (out []Counter, err error) {
	fields := tinFields()
	order := []uint16{3, 4, 6, 8, 10, 11, 18, 19, 20, 21, 22, 23}
	tins := 0
	err = rtnl.Attrs(b, func(kind uint16, value []byte) error {
		switch kind {
		case cakeCapacity:
			if n, ok := rtnl.Uint64(value); ok {
				out = append(out, Counter{"capacity_estimate_bps", "bit/s", float64(n) * 8})
			}
		case cakeMemoryUsed:
			if n, ok := rtnl.Uint32(value); ok {
				out = append(out, Counter{"memory_used", "bytes", float64(n)})
			}
		case cakeTins:
			return rtnl.Attrs(value, func(_ uint16, tin []byte) error {
				if tins == maxTins {
					return &rtnl.MalformedError{Offset: 0, What: fmt.Sprintf("more than %d tins", maxTins)}
				}
				got := map[uint16]float64{}
				err := rtnl.Attrs(tin, func(kind uint16, value []byte) error {
					if f, ok := fields[kind]; ok {
						if n, ok := numberOf(f.word, value); ok {
							got[kind] = n * max(f.scale, 1)
						}
					}
					return nil
				})
				for _, kind := range order {
					if v, ok := got[kind]; ok {
						out = append(out, Counter{fmt.Sprintf("tin%d_%s", tins, fields[kind].name), fields[kind].unit, v})
					}
				}
				tins++
				return err
			})
		}
		return nil
	})
	return out, err
}

// numberOf reads a number of so many words.
func numberOf(words int, value []byte) (float64, bool) {
	if words == 2 {
		n, ok := rtnl.Uint64(value)
		return float64(n), ok
	}
	n, ok := rtnl.Uint32(value)
	return float64(n), ok
}
