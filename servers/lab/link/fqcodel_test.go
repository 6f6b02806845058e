package link

import (
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
)

func testFlow(port uint16) Flow {
	return Flow{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), port, 5201, 6}
}

func TestCoDelDropsFirstAnIntervalAfterTheTargetIsPassedAndThenByItsLaw(t *testing.T) {
	var drops []time.Duration
	now := time.Duration(0)
	// Packets of 1000 bytes, one per millisecond out, 1.25 per millisecond in: too slow a reaction to ever catch up.
	l := newLink(t, Options{Rate: 8 * bitrate.Mbit, Queue: FQCoDel(FQCoDelOptions{}),
		Drop: func(Packet, Reason) { drops = append(drops, now) }})
	packets := flood(Packet{Size: 1000}, 4000, 0, 800*time.Microsecond)
	var above time.Duration // when a packet left the queue whose sojourn time was 5 ms or more, first
	for _, a := range packets {
		for next, ok := l.NextDelivery(); ok && next <= a.at; next, ok = l.NextDelivery() {
			now = next
			l.Advance(next, func(Packet, time.Duration) {})
			if above == 0 && l.busy && now-l.sending.Entered >= 5*ms {
				above = now
			}
		}
		now = a.at
		l.Send(a.p, a.at)
	}
	if len(drops) < 30 || above == 0 {
		t.Fatalf("%d drops, sojourn above target at %v", len(drops), above)
	}
	if got := drops[0] - above; got < 100*ms || got > 101*ms {
		t.Errorf("first drop %v after the sojourn time reached the target, want 100 ms to within a packet of 1 ms", got)
	}
	due := drops[0]
	for n := 1; n < 30; n++ {
		due += time.Duration(float64(100*ms) / math.Sqrt(float64(n)))
		if got := drops[n] - due; got < 0 || got > ms {
			t.Errorf("drop %d came %v after its time, want less than a packet of 1 ms", n+1, got)
		}
	}
}

func TestCoDelLeavesAShortQueueAlone(t *testing.T) {
	// Two packets at a time, 10 ms each: the second waits 10 ms, above target, and leaves nothing behind it.
	l := newLink(t, Options{Rate: 1200 * bitrate.Kbit, Queue: FQCoDel(FQCoDelOptions{})})
	packets := merge(flood(Packet{Size: 1500}, 500, 0, 20*ms), flood(Packet{Size: 1500}, 500, 0, 20*ms))
	run(l, packets, time.Minute)
	if got := l.Stats().Dropped(); got.Packets != 0 {
		t.Errorf("%d packets dropped from a queue that never held more than one", got.Packets)
	}
}

func TestFQCoDelMarksWhatCanBeMarked(t *testing.T) {
	for name, c := range map[string]struct {
		ds    uint8
		noECN bool
		marks bool
	}{
		"ECT(0) is marked": {2, false, true}, "ECT(1) is marked": {1, false, true}, "CE is marked": {3, false, true},
		"Not-ECT is dropped": {0xb8, false, false}, "ECT(0) is dropped without ECN": {2, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLink(t, Options{Rate: 8 * bitrate.Mbit, Queue: FQCoDel(FQCoDelOptions{NoECN: c.noECN})})
			marked := uint64(0)
			for _, a := range run(l, flood(Packet{Size: 1000, DS: c.ds}, 2000, 0, 800*time.Microsecond), time.Minute) {
				if a.p.Marked {
					marked++
				}
			}
			s := l.Stats()
			if got := s.Marked > 0; got != c.marks || s.Marked != marked {
				t.Errorf("%d marks counted and %d delivered, want some: %v", s.Marked, marked, c.marks)
			}
			if got := s.Drops[AQM].Packets == 0; got != c.marks {
				t.Errorf("%d packets dropped, want none: %v", s.Drops[AQM].Packets, c.marks)
			}
		})
	}
}

// jain is Jain's index of fairness: 1 where all are equal, 1/n where one has everything.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(x)) * squares)
}

func TestFQCoDelIsFairWhateverTheFlowsSend(t *testing.T) {
	const flows = 8
	rng := random()
	var lists [][]arrival
	for f := range flows {
		size := 200 + 1300*f/(flows-1)
		each := time.Duration(float64(size*8) / 20e6 * float64(time.Second)) // every flow alone fills the link
		list := flood(Packet{Flow: testFlow(uint16(f)).Hash(), Size: size}, int(10*time.Second/each), 0, each)
		for i := range list {
			list[i].at += time.Duration(rng.Int64N(int64(each)))
		}
		lists = append(lists, list)
	}
	l := newLink(t, Options{Rate: 20 * bitrate.Mbit, Queue: FQCoDel(FQCoDelOptions{Seed: 1})})
	got := make([]float64, flows)
	for _, a := range run(l, merge(lists...), 10*time.Second) {
		for f := range flows {
			if a.p.Flow == testFlow(uint16(f)).Hash() {
				got[f] += float64(a.p.Wire)
			}
		}
	}
	if index := jain(got); index < 0.99 {
		t.Errorf("Jain's index %.4f over %v, want above 0.99", index, got)
	}
}

func TestFQCoDelLetsASparseFlowPass(t *testing.T) {
	const rate = 20 * bitrate.Mbit
	var lists [][]arrival
	for f := range 4 {
		lists = append(lists, flood(Packet{Flow: testFlow(uint16(f)).Hash(), Size: 1500}, 8000, 0, 1200*time.Microsecond))
	}
	probe := testFlow(999).Hash()
	lists = append(lists, flood(Packet{Flow: probe, Size: 84}, 900, 100*ms, 10*ms))
	l := newLink(t, Options{Rate: rate, Framing: Framing{Overhead: 14}, Queue: FQCoDel(FQCoDelOptions{})})
	var delays []time.Duration
	for _, a := range run(l, merge(lists...), 10*time.Second) {
		if a.p.Flow == probe {
			delays = append(delays, a.at-a.p.Entered)
		}
	}
	if len(delays) != 900 {
		t.Fatalf("%d of 900 probes arrived", len(delays))
	}
	// At worst the packet in transmission has just begun.
	want := rate.Duration(1514) + rate.Duration(98)
	if got := slices.Max(delays); got > want+time.Microsecond {
		t.Errorf("longest delay of a sparse flow %v, want at most %v", got, want)
	}
}

func TestFQCoDelDropsFromTheFattestFlow(t *testing.T) {
	for name, o := range map[string]FQCoDelOptions{"packets": {Limit: 100}, "bytes": {Memory: 100 * 1514}} {
		t.Run(name, func(t *testing.T) {
			thin := testFlow(1).Hash()
			var lost []Packet
			l := newLink(t, Options{Rate: bitrate.Kbit, Framing: Framing{Overhead: 14}, Queue: FQCoDel(o), Drop: func(p Packet, r Reason) {
				if r != Overflow {
					t.Errorf("dropped for %v, want overflow", r)
				}
				lost = append(lost, p)
			}})
			fat := flood(Packet{Flow: testFlow(2).Hash(), Size: 1500}, 101, 0, 0)
			run(l, append(flood(Packet{Flow: thin, Size: 1500}, 3, 0, 0), fat...), 0)
			// 1 packet is in transmission, 2 and 99 are queued: the next of the fat flow is one too many, and half of it goes.
			for _, p := range lost {
				if p.Flow == thin {
					t.Error("a packet of the thin flow was dropped")
				}
			}
			if len(lost) < 49 || len(lost) > 51 {
				t.Errorf("%d packets dropped at once, want half of the fat flow's 99", len(lost))
			}
		})
	}
}

func TestFQCoDelFindsTheSameQueuesWithTheSameSeed(t *testing.T) {
	collisions := func(seed uint64) (pairs []int) {
		q := &fqCoDel{o: FQCoDelOptions{Seed: seed}, flows: make([]fqFlow, 64)}
		for i := range 64 {
			pairs = append(pairs, int(mix(testFlow(uint16(i)).Hash()^q.o.Seed)%uint64(len(q.flows))))
		}
		return pairs
	}
	if !slices.Equal(collisions(1), collisions(1)) {
		t.Error("one seed, two assignments")
	}
	if slices.Equal(collisions(1), collisions(2)) {
		t.Error("two seeds, one assignment")
	}
}
