package link

import (
	"fmt"
	"math"
	"net/netip"
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

func TestAnIdleLinkDelaysByTransmissionAndPropagation(t *testing.T) {
	l := newLink(t, Options{Rate: 20 * bitrate.Mbit, Delay: 20 * ms, Framing: Framing{Overhead: 14}, Queue: tailDrop(100000)})
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
			l := newLink(t, Options{Rate: rate, Queue: tailDrop(1 << 30)})
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
		return newLink(t, Options{Rate: 20 * bitrate.Mbit, Delay: 10 * ms, Framing: Framing{Overhead: 14}, Queue: tailDrop(50000)})
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
	l := newLink(t, Options{Rate: rate, Delay: 20 * ms, Framing: Framing{Overhead: 14}, Queue: tailDrop(limit)})
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
	l := newLink(t, Options{Delay: 3 * ms, Queue: tailDrop(1600)}) // a queue of one packet must not fill up
	got := run(l, flood(Packet{Size: 1500}, 50, 0, 0), time.Second)
	if len(got) != 50 || got[49].at != 3*ms {
		t.Errorf("%d of 50 arrived, the last at %v, want all at %v", len(got), got[len(got)-1].at, 3*ms)
	}
}

func TestDrainAccountsForEveryPacket(t *testing.T) {
	dropped := 0
	l := newLink(t, Options{Rate: bitrate.Mbit, Delay: 50 * ms, Queue: tailDrop(1 << 20), Drop: func(Packet, Reason) { dropped++ }})
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
		"link rate 999bit: want 0 (unlimited) or 1kbit to 1000Gbit": {Rate: 999, Queue: tailDrop(1)},
		"link delay -1ns: want 0 to 1m0s":                           {Delay: -1, Queue: tailDrop(1)},
		"link overhead 1025 bytes: want 0 to 1024":                  {Framing: Framing{Overhead: 1025}, Queue: tailDrop(1)},
		"link without a queue":                                      {},
		"link minimum packet of 2049 bytes: want 0 to 2048":         {Framing: Framing{Min: 2049}, Queue: tailDrop(1)},
		"link device limit of -1 bytes: want 0 to 16777216":         {Device: -1, Queue: tailDrop(1)},
		"link loss 1.5: want a share from 0 to 1":                   {Effects: Effects{Loss: Loss{Good: 1.5}}, Queue: tailDrop(1)},
		"link loss in bursts NaN: want":                             {Effects: Effects{Loss: Loss{Bad: math.NaN()}}, Queue: tailDrop(1)},
		"link loss in bursts that never end":                        {Effects: Effects{Loss: Loss{GoodToBad: 0.1}}, Queue: tailDrop(1)},
		"link duplication 0.1: the carrier cannot copy packets":     {Effects: Effects{Duplicate: 0.1}, Queue: tailDrop(1)},
		"link corruption -1: want":                                  {Effects: Effects{Corrupt: -1}, Queue: tailDrop(1)},
		"link reordering 0.6: want a share from 0 to 0.5":           {Effects: Effects{Reorder: Reorder{Share: 0.6}}, Queue: tailDrop(1)},
		"link reordering by 101 packets: want 1 to 100":             {Effects: Effects{Reorder: Reorder{Distance: 101}}, Queue: tailDrop(1)},
		"link reordering that waits -1ns: want up to 1m0s":          {Effects: Effects{Reorder: Reorder{Wait: -1}}, Queue: tailDrop(1)},
		"link jitter of -1ns: want 0 to 1m0s":                       {Effects: Effects{Jitter: Jitter{Spread: -1}}, Queue: tailDrop(1)},
		"link jitter distribution 3: want uniform, normal":          {Effects: Effects{Jitter: Jitter{Distribution: 3}}, Queue: tailDrop(1)},
		"step 1 of the schedule: rate 1bit: want 1kbit to 1000Gbit": {Schedule: Schedule{Steps: []Step{{Sets: SetsRate, Rate: 1}}}, Queue: tailDrop(1)},
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

// FuzzConservation sends packets of any size and spacing through a link with any effects, device and schedule, and checks that it loses none
// of them from sight, and keeps their order where nothing may change it.
func FuzzConservation(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint32(20000), uint8(10), uint16(0), "")
	f.Add([]byte{255, 255, 255, 0, 0, 0, 0, 0, 9, 9, 9}, uint32(1), uint8(0), uint16(0xffff), "")
	f.Add([]byte("a few more packets than that"), uint32(700), uint8(3), uint16(0x1234), "0s rate 1mbit\n1ms outage for 3ms\n5ms delay 1ms\nrepeat 20ms")
	f.Fuzz(func(t *testing.T, in []byte, kbit uint32, overhead uint8, effects uint16, schedule string) {
		share := func(shift int) float64 { return float64(effects>>shift&7) / 16 }
		o := Options{Rate: bitrate.Bitrate(kbit%1e6) * bitrate.Kbit, Delay: time.Duration(overhead) * ms, Queue: tailDrop(20000), Seed: 3,
			Framing: Framing{int(overhead), int(overhead), Cells(overhead % 3)}, Device: int(effects) % 5000, Clone: func(h any) any { return h },
			Effects: Effects{Loss: Loss{Good: share(0)}, Duplicate: share(3), Corrupt: share(6),
				Reorder: Reorder{Share: share(9), Distance: 1 + int(effects)%4, Wait: time.Duration(overhead) * ms},
				Jitter:  Jitter{time.Duration(effects>>12) * ms, Distribution(effects % 3), effects%2 == 1}}}
		var err error
		if o.Schedule, err = ParseSchedule(schedule); err != nil {
			return
		}
		seen, dropped := map[any]int{}, 0
		o.Drop = func(p Packet, _ Reason) { seen[p.Handle]++; dropped++ }
		l := newLink(t, o)
		ordered := o.Effects.Reorder.Share == 0 && !o.Effects.Jitter.MayReorder
		conserve(t, l, in, ordered, func(p Packet) { seen[p.Handle]++ })
		copies := 0
		for _, n := range seen {
			copies += n - 1
		}
		if len(seen) != len(in)/2 || uint64(copies) != l.Stats().Duplicated.Packets {
			t.Fatalf("%d of %d packets left the link, and %d copies, %+v", len(seen), len(in)/2, copies, l.Stats())
		}
	})
}

// conserve feeds one packet per two bytes of in to l, and empties it.
func conserve(t *testing.T, l *Link, in []byte, ordered bool, gone func(Packet)) {
	latest, last := time.Duration(0), 0
	deliver := func(p Packet, at time.Duration) {
		gone(p)
		if n := p.Handle.(int); at < latest || at < p.Entered || ordered && n < last {
			t.Fatalf("packet %d, sent at %v, arrived at %v, after packet %d at %v", n, p.Entered, at, last, latest)
		}
		latest, last = at, p.Handle.(int)
	}
	now := time.Duration(0)
	balance := func() {
		s := l.Stats()
		if s.In.Packets+s.Duplicated.Packets != s.Out.Packets+s.Dropped().Packets+s.Backlog.Packets || s.Queued.Bytes > s.Backlog.Bytes {
			t.Fatalf("counters do not add up: %+v", s)
		}
	}
	for i := 0; i+2 <= len(in); i += 2 {
		now += time.Duration(in[i]) * 100 * time.Microsecond
		l.Advance(now, deliver)
		l.Send(Packet{Handle: i / 2, Size: int(in[i+1]) * 8}, now)
		balance()
	}
	steps := 0
	for next, ok := l.NextDelivery(); ok && steps < 10000; next, ok = l.NextDelivery() {
		if next <= now && steps > 0 {
			t.Fatalf("after Advance(%v) the next delivery is at %v", now, next)
		}
		now = max(now, next)
		l.Advance(now, deliver)
		steps++
	}
	balance()
	l.Drain() // a link may be stopped for ever
	if s := l.Stats(); s.Backlog != (Count{}) || s.In.Bytes+s.Duplicated.Bytes != s.Out.Bytes+s.Dropped().Bytes {
		t.Fatalf("after Drain: %+v", s)
	}
}

func TestNoPacketCostsAnAllocation(t *testing.T) {
	everything := Effects{Loss: Loss{0, 0.5, 0.01, 0.1}, Duplicate: 0.01, Corrupt: 0.01, Reorder: Reorder{Share: 0.02, Distance: 3},
		Jitter: Jitter{ms, Normal, true}}
	for name, o := range map[string]Options{
		"a plain link":        {},
		"effects":             {Effects: everything, Clone: func(h any) any { return h }},
		"a device and stalls": {Device: 4500, Schedule: Schedule{[]Step{{Sets: SetsOutage, For: ms}}, 100 * ms}},
	} {
		o.Rate, o.Delay, o.Queue = 100*bitrate.Mbit, 10*ms, tailDrop(256<<10)
		step := steady(newLink(t, o))
		for range 20000 {
			step()
		}
		if got := testing.AllocsPerRun(20000, step); got != 0 {
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
	step := steady(newLink(b, Options{Rate: 100 * bitrate.Mbit, Delay: 10 * ms, Framing: Framing{Overhead: 14}, Queue: tailDrop(256 << 10)}))
	b.ReportAllocs()
	for b.Loop() {
		step()
	}
}

func testFlow(port uint16) Flow {
	return Flow{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), port, 5201, 6}
}

// tailDrop is a FIFO of so many bytes; the disciplines that users have are in another package, which imports this one.
func tailDrop(limit int) Discipline {
	return func(e Env) (Queue, error) { return &fifo{limit: limit, env: e}, nil }
}

type fifo struct {
	limit, bytes int
	env          Env
	packets      ring[Packet]
}

func (q *fifo) Enqueue(p Packet, _ time.Duration) {
	if q.bytes+p.Wire > q.limit {
		q.env.Drop(p, Tail)
		return
	}
	q.bytes += p.Wire
	q.packets.push(p)
}

func (q *fifo) Dequeue(time.Duration) (Packet, bool) {
	if q.packets.len() == 0 {
		return Packet{}, false
	}
	p := q.packets.pop()
	q.bytes -= p.Wire
	return p, true
}

func (q *fifo) Len() int   { return q.packets.len() }
func (q *fifo) Bytes() int { return q.bytes }

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
	from, to := f.Hosts()
	f.From, f.To = f.To, f.From
	if a, b := f.Hosts(); a != to || b != from || a == b {
		t.Errorf("hosts %x and %x, the other way %x and %x", from, to, a, b)
	}
	if f.Hash() == testFlow(7).Hash() {
		t.Error("the two directions of a flow have one hash")
	}
}
