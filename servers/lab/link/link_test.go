package link

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
)

const ms = time.Millisecond

// newLink returns a link, or fails the test.
func newLink(t testing.TB, o Options) *Link {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// run sends packets at their times and returns every arrival, in order. It moves in steps of the packets only, so that the link's own
// events run late, as under a real driver.
func run(l *Link, packets []arrival, until time.Duration) []arrival {
	var got []arrival
	deliver := func(p Packet, at time.Duration) { got = append(got, arrival{p, at}) }
	for _, a := range packets {
		l.Advance(a.at, deliver)
		l.Send(a.p, a.at)
	}
	l.Advance(until, deliver)
	return got
}

// flood is n packets of the same kind, every gap.
func flood(p Packet, n int, start, gap time.Duration) []arrival {
	var all []arrival
	for i := range n {
		all = append(all, arrival{p, start + time.Duration(i)*gap})
	}
	return all
}

// merge puts the packets in order of their times.
func merge(lists ...[]arrival) []arrival {
	var all []arrival
	for {
		best := -1
		for i, l := range lists {
			if len(l) > 0 && (best < 0 || l[0].at < lists[best][0].at) {
				best = i
			}
		}
		if best < 0 {
			return all
		}
		all = append(all, lists[best][0])
		lists[best] = lists[best][1:]
	}
}

func TestAnIdleLinkDelaysByTransmissionAndPropagation(t *testing.T) {
	l := newLink(t, Options{Rate: 20 * bitrate.Mbit, Delay: 20 * ms, Framing: Framing{Overhead: 14}, Queue: FIFO(100000)})
	got := run(l, []arrival{{Packet{Size: 1500}, 5 * ms}}, time.Second)
	want := 5*ms + 1514*8*50*time.Nanosecond + 20*ms
	if len(got) != 1 || got[0].at != want {
		t.Fatalf("arrivals %v, want one at %v", got, want)
	}
}

func TestTheRateIsExactOverAnyTime(t *testing.T) {
	// 7 Mbit/s and 1337 bytes divide into no whole number of nanoseconds.
	for _, rate := range []bitrate.Bitrate{bitrate.Kbit, 7 * bitrate.Mbit, 333333333, 10 * bitrate.Gbit} {
		t.Run(rate.String(), func(t *testing.T) {
			const n = 5000
			l := newLink(t, Options{Rate: rate, Queue: FIFO(MaxFIFO)})
			got := run(l, flood(Packet{Size: 1337}, n, 0, 0), 1<<62)
			bits := float64(n) * 1337 * 8
			want := bits / float64(rate) * 1e9
			if last := float64(got[n-1].at); len(got) != n || last > want || last < want-1-want*1e-15 {
				t.Errorf("packet %d left at %.0f ns, want %.0f ns rounded down", n, last, want)
			}
		})
	}
}

func TestALateDriverChangesNoArrival(t *testing.T) {
	packets := flood(Packet{Size: 1500}, 400, 0, 300*time.Microsecond)
	make := func() *Link {
		return newLink(t, Options{Rate: 20 * bitrate.Mbit, Delay: 10 * ms, Framing: Framing{Overhead: 14}, Queue: FIFO(50000)})
	}
	want := run(make(), packets, time.Minute)
	l := make()
	var got []arrival
	deliver := func(p Packet, at time.Duration) { got = append(got, arrival{p, at}) }
	for _, a := range packets {
		for next, ok := l.NextDelivery(); ok && next <= a.at; next, ok = l.NextDelivery() {
			l.Advance(next, deliver) // a punctual driver
		}
		l.Advance(a.at, deliver)
		l.Send(a.p, a.at)
	}
	l.Advance(time.Minute, deliver)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("a driver that runs every event at once, and one that comes only with the packets, saw different arrivals")
	}
}

func TestAFullFIFODelaysByItsBuffer(t *testing.T) {
	const limit, rate, wire = 262144, 20 * bitrate.Mbit, 1514
	l := newLink(t, Options{Rate: rate, Delay: 20 * ms, Framing: Framing{Overhead: 14}, Queue: FIFO(limit)})
	got := run(l, flood(Packet{Size: 1500}, 20000, 0, 500*time.Microsecond), 10*time.Second)
	var longest time.Duration
	for _, a := range got {
		longest = max(longest, a.at-a.p.Entered)
	}
	packet := rate.Duration(wire)
	theory := 20*ms + rate.Duration(limit)
	if longest < theory-packet || longest > theory+packet {
		t.Errorf("longest delay %v, want %v to within a packet (%v)", longest, theory, packet)
	}
	s := l.Stats()
	if s.Drops[Tail].Packets == 0 || s.In.Packets != s.Out.Packets+s.Dropped().Packets+s.Backlog.Packets {
		t.Errorf("counters do not add up: %+v", s)
	}
	if s.MaxQueued.Bytes > limit || s.MaxQueued.Bytes < limit-wire {
		t.Errorf("fullest queue %d bytes, want the limit of %d to within a packet", s.MaxQueued.Bytes, limit)
	}
}

func TestAnUnlimitedRateDelaysOnlyByPropagation(t *testing.T) {
	l := newLink(t, Options{Delay: 3 * ms, Queue: FIFO(1600)}) // a queue of one packet must not fill up
	got := run(l, flood(Packet{Size: 1500}, 50, 0, 0), time.Second)
	if len(got) != 50 || got[49].at != 3*ms {
		t.Errorf("%d of 50 arrived, the last at %v, want all at %v", len(got), got[len(got)-1].at, 3*ms)
	}
}

func TestDrainAccountsForEveryPacket(t *testing.T) {
	dropped := 0
	l := newLink(t, Options{Rate: bitrate.Mbit, Delay: 50 * ms, Queue: FIFO(1 << 20), Drop: func(Packet, Reason) { dropped++ }})
	arrived := len(run(l, flood(Packet{Size: 1000}, 100, 0, ms), 100*ms))
	l.Drain()
	if s := l.Stats(); arrived+dropped != 100 || s.Backlog != (Count{}) {
		t.Errorf("%d arrived and %d were given up of 100; %+v left inside", arrived, dropped, s.Backlog)
	}
	if _, ok := l.NextDelivery(); ok {
		t.Error("an empty link announces a delivery")
	}
}

func TestParametersOutOfRangeAreNamed(t *testing.T) {
	for name, o := range map[string]Options{
		"link rate 999bit: want 0 (unlimited) or 1kbit to 1000Gbit":  {Rate: 999, Queue: FIFO(1)},
		"link delay -1ns: want 0 to 1m0s":                            {Delay: -1, Queue: FIFO(1)},
		"link overhead 1025 bytes: want 0 to 1024":                   {Framing: Framing{Overhead: 1025}, Queue: FIFO(1)},
		"link without a queue":                                       {},
		"fifo limit 0 bytes: want 1 to 1073741824":                   {Queue: FIFO(0)},
		"fq_codel flows -1: want 1 to 65536, or 0 for 1024":          {Queue: FQCoDel(FQCoDelOptions{Flows: -1})},
		"fq_codel quantum 1048577: want 1 to 1048576, or 0 for 1514": {Queue: FQCoDel(FQCoDelOptions{Quantum: 1<<20 + 1})},
		"fq_codel limit -5: want":                                    {Queue: FQCoDel(FQCoDelOptions{Limit: -5})},
		"fq_codel memory limit -1: want":                             {Queue: FQCoDel(FQCoDelOptions{Memory: -1})},
		"fq_codel target 1ns: want 1µs to 1m0s, or 0 for 5ms":        {Queue: FQCoDel(FQCoDelOptions{Target: 1})},
		"fq_codel interval 2m0s: want 1µs to 1m0s, or 0 for 100ms":   {Queue: FQCoDel(FQCoDelOptions{Interval: 2 * time.Minute})},
	} {
		if _, err := New(o); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("error %v, want %q", err, name)
		}
	}
}

func TestReasonsHaveNames(t *testing.T) {
	for r := range Reasons {
		if r.String() == "" {
			t.Errorf("reason %d has no name", r)
		}
	}
	if got := Reasons.String(); got != "reason?" {
		t.Errorf("String of no reason is %q", got)
	}
}

// disciplines are the queues that every property below holds for.
var disciplines = map[string]func() Discipline{
	"fifo":     func() Discipline { return FIFO(20000) },
	"fq_codel": func() Discipline { return FQCoDel(FQCoDelOptions{Limit: 40, Memory: 30000, Flows: 8, Seed: 3}) },
}

// FuzzConservation sends packets of any size, flow, mark and spacing, and checks that the link loses none of them from sight, keeps
// the order within a flow, and is never in debt.
func FuzzConservation(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint32(20000), uint8(10))
	f.Add([]byte{255, 255, 255, 0, 0, 0, 0, 0, 9, 9, 9}, uint32(1), uint8(0))
	f.Fuzz(func(t *testing.T, in []byte, kbit uint32, overhead uint8) {
		for name, discipline := range disciplines {
			seen := map[any]bool{}
			gone := func(p Packet) {
				if seen[p.Handle] {
					t.Fatalf("%s: packet %v left the link twice", name, p.Handle)
				}
				seen[p.Handle] = true
			}
			o := Options{Rate: bitrate.Bitrate(kbit%1e6) * bitrate.Kbit, Delay: time.Duration(overhead) * ms, Framing: Framing{Overhead: int(overhead)},
				Queue: discipline(), Drop: func(p Packet, _ Reason) { gone(p) }}
			conserve(t, name, newLink(t, o), in, gone)
			if len(seen) != len(in)/4 {
				t.Fatalf("%s: %d of %d packets left the link", name, len(seen), len(in)/4)
			}
		}
	})
}

// conserve feeds one packet per four bytes of in to l, and empties it.
func conserve(t *testing.T, name string, l *Link, in []byte, gone func(Packet)) {
	last := map[uint64]int{}
	latest := time.Duration(0)
	deliver := func(p Packet, at time.Duration) {
		gone(p)
		if at < latest || at < p.Entered {
			t.Fatalf("%s: arrival at %v after one at %v, sent at %v", name, at, latest, p.Entered)
		}
		latest = at
		if n := p.Handle.(int); n < last[p.Flow] {
			t.Fatalf("%s: flow %d was reordered", name, p.Flow)
		} else {
			last[p.Flow] = n
		}
	}
	now := time.Duration(0)
	for i := 0; i+4 <= len(in); i += 4 {
		now += time.Duration(in[i]) * 100 * time.Microsecond
		l.Advance(now, deliver)
		l.Send(Packet{Handle: i / 4, Flow: uint64(in[i+1] % 5), Size: int(in[i+2]) * 8, DS: in[i+3]}, now)
		s := l.Stats()
		if s.In.Packets != s.Out.Packets+s.Dropped().Packets+s.Backlog.Packets || s.Queued.Bytes > s.Backlog.Bytes {
			t.Fatalf("%s: counters do not add up: %+v", name, s)
		}
	}
	for next, ok := l.NextDelivery(); ok; next, ok = l.NextDelivery() {
		l.Advance(next, deliver)
	}
	if s := l.Stats(); s.Backlog != (Count{}) || s.In.Bytes != s.Out.Bytes+s.Dropped().Bytes {
		t.Fatalf("%s: after the last delivery: %+v", name, s)
	}
}

func TestNoPacketCostsAnAllocation(t *testing.T) {
	for name, discipline := range disciplines {
		l := newLink(t, Options{Rate: 100 * bitrate.Mbit, Delay: 10 * ms, Framing: Framing{Overhead: 14}, Queue: discipline()})
		step := steady(l)
		for range 10000 {
			step()
		}
		if got := testing.AllocsPerRun(10000, step); got != 0 {
			t.Errorf("%s allocates %.1f times per packet", name, got)
		}
	}
}

// steady returns a function that sends one packet of 20 flows into l at 1.2 times 100 Mbit/s.
func steady(l *Link) func() {
	now, flow := time.Duration(0), uint64(0)
	handle := new(int)
	deliver := func(Packet, time.Duration) {}
	return func() {
		now += 100 * time.Microsecond
		flow = (flow + 1) % 20
		l.Advance(now, deliver)
		l.Send(Packet{Handle: handle, Flow: flow, Size: 1500}, now)
	}
}

func BenchmarkLink(b *testing.B) {
	for name, discipline := range map[string]Discipline{"fifo": FIFO(256 << 10), "fq_codel": FQCoDel(FQCoDelOptions{})} {
		b.Run(name, func(b *testing.B) {
			step := steady(newLink(b, Options{Rate: 100 * bitrate.Mbit, Delay: 10 * ms, Framing: Framing{Overhead: 14}, Queue: discipline}))
			b.ReportAllocs()
			for b.Loop() {
				step()
			}
		})
	}
}

func BenchmarkFlowHash(b *testing.B) {
	f := testFlow(1)
	for b.Loop() {
		f.FromPort++
		sink ^= f.Hash()
	}
}

var sink uint64

func TestFlowHashSpreadsFlowsOverQueues(t *testing.T) {
	used := map[uint64]int{}
	for i := range 1024 {
		used[testFlow(uint16(i)).Hash()%1024]++
	}
	// Throwing 1024 balls into 1024 bins leaves 647 used, give or take 10.
	if len(used) < 600 || len(used) > 700 {
		t.Errorf("1024 flows use %d of 1024 queues, want about 647", len(used))
	}
	f := testFlow(7)
	f.From, f.To = f.To, f.From
	if f.Hash() == testFlow(7).Hash() {
		t.Error("the two directions of a flow have one hash")
	}
}

// random is a fixed source.
func random() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
