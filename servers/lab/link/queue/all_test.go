package queue

import (
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// examples are one of each discipline, small enough that every limit is met.
var examples = []string{
	"pfifo limit 40", "bfifo limit 20000", "pfifo_fast limit 20", "sfq limit 40 flows 3 depth 20 divisor 8 perturb 50ms",
	"sfq limit 40 headdrop", "drr flows 8 quantum 600 weights 1:3 leaf codel limit 20", "drr flows 4 leaf pie limit 20",
	"qfq flows 8 weights 1:2:40 maxpkt 2k leaf red limit 20k min 2k max 6k", "qfq flows 4 leaf pie limit 20 ecn",
	"red limit 20k min 3k max 9k weight 0.05 ecn", "codel limit 40 ecn ce_threshold 2ms", "pie limit 40 ecn burst 1ms", "pie limit 40 bytemode",
	"fq_codel limit 40 memory_limit 30000 flows 8 drop_batch 4", "fq_codel noecn quantum 300", "fq_pie limit 40 flows 8 ecn memory_limit 30000",
	"cake memlimit 20k", "cake bandwidth 3mbit diffserv4 framing pppoe-vcmux ack-filter memlimit 30k rtt 10ms",
	"cake besteffort flows ack-filter-aggressive rtt 5ms memlimit 20000", "tbf rate 2mbit burst 1600 leaf pfifo limit 30",
	"htb rate 2mbit burst 1 leaf fq_codel limit 30", "policer rate 2mbit burst 4000", "codel_policer rate 2mbit limit 20ms interval 10ms target 1ms",
	"policer rate 4mbit leaf htb rate 3mbit leaf drr flows 3 leaf pie",
}

// FuzzConservation sends packets of any size, flow, mark and spacing through every discipline with the parameters of the fuzzer's choice,
// and checks that each packet leaves exactly once, that flows keep their order, that the counts of what is held are true, and that a
// queue that is asked again when it said so gives up all that it holds.
func FuzzConservation(f *testing.F) {
	for _, text := range examples {
		f.Add(text, []byte("some packets of various sizes"), uint32(3000))
	}
	f.Add("cake", []byte{255, 255, 255, 0, 0, 0, 0, 0, 9, 9, 9}, uint32(1))
	f.Fuzz(func(t *testing.T, text string, in []byte, kbit uint32) {
		d, err := Parse(text)
		if err != nil || tooLarge(d) {
			return
		}
		conserve(t, d, in, bitrate.Bitrate(kbit%1e6)*bitrate.Kbit)
	})
}

// tooLarge reports whether a queue takes so long to build that the fuzzer would not get round to anything else.
func tooLarge(d Discipline) bool {
	text := d.String()
	for _, word := range []string{"flows ", "depth ", "divisor "} {
		for rest := text; ; {
			_, after, ok := strings.Cut(rest, word)
			if !ok {
				break
			}
			number, _, _ := strings.Cut(strings.TrimSuffix(after, "p"), " ")
			if len(strings.TrimSuffix(number, "p")) > 4 {
				return true
			}
			rest = after
		}
	}
	return false
}

// conserve feeds one packet per four bytes of in to a queue on a link, and empties it.
func conserve(t *testing.T, d Discipline, in []byte, rate bitrate.Bitrate) {
	seen := map[any]bool{}
	gone := func(p link.Packet) {
		if seen[p.Handle] {
			t.Fatalf("%v: packet %v left twice", d, p.Handle)
		}
		seen[p.Handle] = true
	}
	l, err := link.New(link.Options{Rate: rate, Queue: d.New, Drop: func(p link.Packet, _ link.Reason) { gone(p) }, Seed: 7,
		Framing: link.Framing{Overhead: 14}})
	if err != nil {
		return // a limit as time, on a link without a rate
	}
	type line struct {
		flow uint64
		ds   uint8
	}
	last := map[line]int{}
	deliver := func(p link.Packet, at time.Duration) {
		gone(p)
		key := line{p.Flow, p.DS}
		if n := p.Handle.(int); n < last[key] || at < p.Entered {
			t.Fatalf("%v: flow %d was reordered, or a packet arrived before it was sent", d, p.Flow)
		} else {
			last[key] = n
		}
	}
	now := time.Duration(0)
	for i := 0; i+4 <= len(in); i += 4 {
		now += time.Duration(in[i]) * 100 * time.Microsecond
		l.Advance(now, deliver)
		p := link.Packet{Handle: i / 4, Flow: uint64(in[i+1] % 11), From: uint32(in[i+1] % 3), To: uint32(in[i+1] % 2), Size: int(in[i+2]) * 8, DS: in[i+3]}
		if in[i+2] < 20 {
			p.PureACK, p.ACK = true, uint32(i)
		}
		l.Send(p, now)
		s := l.Stats()
		if s.In.Packets != s.Out.Packets+s.Dropped().Packets+s.Backlog.Packets || s.Queued.Bytes > s.Backlog.Bytes {
			t.Fatalf("%v: counters do not add up: %+v", d, s)
		}
		if q := l.QueueStats(); q.Sent.Packets+q.Dropped.Packets+q.Backlog.Packets != s.In.Packets {
			t.Fatalf("%v: counters of the queue do not add up: %+v", d, q)
		}
	}
	for next, ok := l.NextDelivery(); ok; next, ok = l.NextDelivery() {
		l.Advance(next, deliver)
	}
	if s := l.Stats(); s.Backlog != (link.Count{}) || s.In.Bytes != s.Out.Bytes+s.Dropped().Bytes || s.Queued != (link.Count{}) {
		t.Fatalf("%v: after the last delivery: %+v", d, s)
	}
	if len(seen) != len(in)/4 {
		t.Fatalf("%v: %d of %d packets left", d, len(seen), len(in)/4)
	}
}

func TestEveryDisciplineConservesPackets(t *testing.T) {
	rng := random()
	in := make([]byte, 16000)
	for i := range in {
		in[i] = byte(rng.Uint32())
		if i%4 == 0 {
			in[i] %= 20 // 1 ms between packets of 1000 bytes
		}
	}
	for _, text := range examples {
		t.Run(text, func(t *testing.T) {
			for _, rate := range []bitrate.Bitrate{0, 500 * bitrate.Kbit, 6 * bitrate.Mbit} {
				conserve(t, must(t, text), in, rate)
			}
		})
	}
}

func TestDrainAccountsForEveryPacket(t *testing.T) {
	for _, text := range examples {
		lost := 0
		l := newLink(t, bitrate.Mbit, must(t, text), func(link.Packet, link.Reason) { lost++ })
		arrived := len(run(l, flood(link.Packet{Size: 1000}, 100, 0, ms), 100*ms))
		l.Drain()
		if s := l.Stats(); arrived+lost != 100 || s.Backlog != (link.Count{}) {
			t.Errorf("%s: %d arrived and %d were given up of 100; %+v left inside", text, arrived, lost, s.Backlog)
		}
	}
}

func TestNoPacketCostsAnAllocation(t *testing.T) {
	for _, text := range examples {
		step := steady(newLink(t, 100*bitrate.Mbit, must(t, text), nil))
		for range 10000 {
			step()
		}
		if got := testing.AllocsPerRun(5000, step); got != 0 {
			t.Errorf("%s allocates %.1f times per packet", text, got)
		}
	}
}

// steady returns a function that sends one packet of 20 flows into l at 1.2 times 100 Mbit/s.
func steady(l *link.Link) func() {
	now, n := time.Duration(0), 0
	handle := new(int)
	flows := make([]uint64, 20)
	for i := range flows {
		flows[i] = flow(i)
	}
	deliver := func(link.Packet, time.Duration) {}
	return func() {
		now += 100 * time.Microsecond
		n = (n + 1) % 20
		l.Advance(now, deliver)
		l.Send(link.Packet{Handle: handle, Flow: flows[n], From: uint32(n % 3), To: 9, Size: 1500, DS: uint8(n) << 2}, now)
	}
}

func BenchmarkQueue(b *testing.B) {
	for _, text := range []string{"bfifo limit 256k", "pfifo", "pfifo_fast", "sfq", "sfq perturb 10s", "drr", "drr leaf pie", "qfq", "qfq leaf pie",
		"red", "codel", "pie", "fq_codel", "fq_pie", "cake", "cake bandwidth 95mbit", "tbf rate 95mbit", "htb rate 95mbit leaf fq_codel",
		"policer rate 95mbit", "codel_policer rate 95mbit"} {
		b.Run(strings.ReplaceAll(text, " ", "_"), func(b *testing.B) {
			step := steady(newLink(b, 100*bitrate.Mbit, must(b, text), nil))
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}
