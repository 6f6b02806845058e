package qdisc

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"bufferbloat/watch/rtnl"
)

// words are 32-bit words as the kernel writes them.
func words(n ...uint32) (b []byte) {
	for _, w := range n {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return b
}

func long(n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n) }

// message is one about a queue of this kind on device 3, below 1:10, with all general counters and those of the kind.
func message(kind string, options, app []byte) []byte {
	stats := rtnl.AppendAttr(nil, statsBasic, append(long(5_000_000_000), words(42, 0)...))
	stats = rtnl.AppendAttr(stats, statsPackets, long(1<<32+42))
	stats = rtnl.AppendAttr(stats, statsQueue, words(7, 10_598, 3, 1, 99))
	if app != nil {
		stats = rtnl.AppendAttr(stats, statsApp, app)
	}
	b := words(0, 3, 0x80010000, 0x00010010, 0)
	b = rtnl.AppendAttr(b, tcaKind, append([]byte(kind), 0))
	b = rtnl.AppendAttr(b, tcaOptions, options)
	return rtnl.AppendAttr(b, tcaStats2, stats)
}

func TestTheCountersThatEveryKindHas(t *testing.T) {
	q, err := Parse(message("pfifo", words(1000), nil), false)
	want := Queue{Kind: "pfifo", Device: 3, Handle: 0x80010000, Parent: 0x00010010, Bytes: 5_000_000_000, Packets: 1<<32 + 42,
		Backlog: 10_598, Length: 7, Drops: 3, Requeues: 1, Overlimits: 99, Options: Options{Limit: 1000}}
	if err != nil || q.Name() != "pfifo parent 1:10" || q.Handle.String() != "8001:" {
		t.Errorf("got %+v, %v", q, err)
	}
	if q.More != nil {
		t.Errorf("got %v, want no more", q.More)
	}
	q.More, want.More = nil, nil
	if q.Kind != want.Kind || q.Bytes != want.Bytes || q.Packets != want.Packets || q.Backlog != want.Backlog || q.Length != want.Length ||
		q.Drops != want.Drops || q.Requeues != want.Requeues || q.Overlimits != want.Overlimits || q.Options != want.Options || q.Device != 3 {
		t.Errorf("got %+v\nwant %+v", q, want)
	}
}

func TestTheCountersOfEachKind(t *testing.T) {
	tin := func(n uint32) (b []byte) {
		for kind, v := range map[uint16]uint32{4: n, 8: n + 1, 10: n + 2, 11: n + 3, 18: n + 4, 21: n + 5, 22: n + 6} {
			b = rtnl.AppendAttr(b, kind, words(v))
		}
		return rtnl.AppendAttr(b, 3, long(uint64(n)<<32))
	}
	cake := rtnl.AppendAttr(nil, 2, long(2_500_000))
	cake = rtnl.AppendAttr(cake, 4, words(1234))
	cake = rtnl.AppendAttr(cake, 10, rtnl.AppendAttr(rtnl.AppendAttr(nil, 1, tin(10)), 2, tin(20)))
	for _, c := range []struct {
		kind    string
		app     []byte
		class   bool
		want    map[string]float64
		exactly int // how many there are
	}{
		{"fq_codel", words(0, 1514, 1, 2, 3, 4, 5, 6, 7, 8), false, map[string]float64{"maxpacket": 1514, "drop_overlimit": 1, "ecn_mark": 2, "new_flow_count": 3,
			"new_flows_len": 4, "old_flows_len": 5, "ce_mark": 6, "memory_used": 7, "drop_overmemory": 8}, 9},
		{"fq_codel", words(0, 1514, 1, 2, 3, 4, 5), false, map[string]float64{"ecn_mark": 2}, 6},                                               // Linux 3.5
		{"fq_codel", words(1, 1514, 1, 2, 3, 4, 5, 6, 7, 8), false, nil, 0},                                                                    // of a flow
		{"fq_codel", words(0, 1514), false, nil, 0},                                                                                            // of no known size
		{"codel", words(0, 1, 2, 3, 4, 5, 6, 7, 8), false, map[string]float64{"ldelay_ns": 3000, "ecn_mark": 6, "dropping": 7, "count": 1}, 6}, // microseconds
		{"pie", append(long(1<<63), words(15_000, 0, 0, 1, 2, 3, 4, 5)...), false, map[string]float64{"prob": 0.5, "delay_ns": 15e6, "packets_in": 1, "dropped_early": 2,
			"overlimit": 3, "maxq": 4, "ecn_mark": 5}, 7},
		{"pie", append(long(1<<62), words(15_000, 0, 77_777, 2, 3, 4, 5, 0)...), false, map[string]float64{"prob": 0.25, "delay_ns": 15e6}, 2}, // Linux 5.0 to 5.5
		{"pie", words(1<<31, 20_000, 0, 1, 2, 3, 4, 5), false, map[string]float64{"prob": 0.5, "delay_ns": 20e6, "ecn_mark": 5}, 7},            // before
		{"pie", words(1, 2, 3), false, nil, 0},
		{"fq_pie", words(0, 1, 2, 3, 4, 5, 6, 7, 8), false, map[string]float64{"dropped_early": 1, "ecn_mark": 4, "memory_used": 8}, 8},
		{"red", words(1, 2, 3, 4), false, map[string]float64{"early": 1, "pdrop": 2, "other": 3, "ecn_mark": 4}, 4},
		{"fq", append(make([]byte, 64), words(9, 8, 7, 6)...), false, map[string]float64{"flows": 9, "inactive_flows": 8, "throttled_flows": 7}, 3},
		{"htb", words(1, 2, 3, 4, 5), true, map[string]float64{"lended": 1, "borrowed": 2}, 2},
		{"cake", cake, false, map[string]float64{"capacity_estimate_bps": 20e6, "memory_used": 1234, "tin0_drops": 10, "tin0_marks": 11, "tin0_backlog_packets": 12,
			"tin0_backlog": 13, "tin0_pk_delay_ns": 14_000, "tin0_sp_flows": 15, "tin0_bk_flows": 16, "tin0_sent_bytes": 10 << 32, "tin1_drops": 20}, 18},
		{"sfq", words(1, 2), false, nil, 0},
	} {
		q, err := Parse(message(c.kind, nil, c.app), c.class)
		if err != nil || len(q.More) != c.exactly {
			t.Errorf("%s: got %+v, %v; want %d counters", c.kind, q.More, err, c.exactly)
		}
		for name, want := range c.want {
			i := slices.IndexFunc(q.More, func(m Counter) bool { return m.Name == name })
			if i < 0 || q.More[i].Value != want {
				t.Errorf("%s: %s is not %v: %+v", c.kind, name, want, q.More)
			}
		}
	}
}

func TestTheParametersThatBearOnDelay(t *testing.T) {
	fq := rtnl.AppendAttr(rtnl.AppendAttr(nil, 2, words(10_240)), 6, words(1514))
	for kind, c := range map[string]struct {
		options []byte
		want    Options
	}{
		"fq_codel": {fq, Options{10_240, 1514}},
		"netem":    {words(40_000, 1000, 0, 0, 0, 0), Options{Limit: 1000}},
		"pie":      {rtnl.AppendAttr(nil, 2, words(500)), Options{Limit: 500}},
		"cake":     {fq, Options{}},
		"pfifo":    {nil, Options{}},
	} {
		if q, err := Parse(message(kind, c.options, nil), false); err != nil || q.Options != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", kind, q.Options, err, c.want)
		}
	}
}

func TestAMessageThatIsCutOffIsAnError(t *testing.T) {
	whole := message("fq_codel", nil, words(0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
	for n := range headerSize + 9 {
		if _, err := Parse(whole[:n], false); err == nil {
			t.Errorf("%d bytes: no error", n)
		}
	}
	var bad *rtnl.MalformedError
	if _, err := Parse(words(0, 0, 0, 0, 0), false); !errors.As(err, &bad) || bad.Offset != headerSize {
		t.Errorf("no kind: got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message("fq_codel", nil, words(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)), false)
	f.Add(message("cake", nil, rtnl.AppendAttr(nil, 10, rtnl.AppendAttr(nil, 1, rtnl.AppendAttr(nil, 4, words(1))))), false)
	f.Add(message("pie", words(1, 2), append(long(1), words(1, 2, 3, 4, 5, 6, 7, 8)...)), false)
	f.Add(message("htb", nil, words(1, 2, 3, 4, 5)), true)
	f.Fuzz(func(t *testing.T, b []byte, class bool) {
		q, err := Parse(b, class)
		if err != nil {
			return
		}
		if q.Kind == "" || q.Name() == "" || q.Options.Limit < 0 || len(q.More) > 16*maxTins {
			t.Errorf("%x is %+v", b, q)
		}
		for _, m := range q.More {
			if math.IsNaN(m.Value) || m.Value < 0 || m.Name == "" {
				t.Errorf("%x has %+v", b, m)
			}
		}
	})
}
