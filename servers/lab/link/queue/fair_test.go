package queue

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// fairQueues share the link between flows.
var fairQueues = []string{"sfq", "sfq perturb 1s divisor 65536", "drr", "drr leaf pie", "qfq", "qfq leaf pie", "fq_codel", "fq_pie", "cake", "cake bandwidth 19mbit"}

func TestFairQueuesAreFairWhateverTheFlowsSend(t *testing.T) {
	const flows = 8
	for _, text := range fairQueues {
		t.Run(text, func(t *testing.T) {
			rng := random()
			var lists [][]timed
			for f := range flows {
				size := 500 + 1000*f/(flows-1)
				each := time.Duration(float64(size*8) / 20e6 * float64(time.Second)) // every flow alone fills the link
				list := flood(link.Packet{Flow: flow(f), Size: size}, int(2*time.Second/each), 0, each)
				for i := range list {
					list[i].at += time.Duration(rng.Int64N(int64(each)))
				}
				lists = append(lists, list)
			}
			l := newLink(t, 20*bitrate.Mbit, must(t, text), nil)
			got := shareOf(run(l, merge(lists...), 2*time.Second), flows)
			if index := jain(got); index < 0.99 {
				t.Errorf("Jain's index %.4f over %v, want above 0.99", index, got)
			}
		})
	}
}

func TestASparseFlowWaitsLessThanARoundOfQuanta(t *testing.T) {
	const rate, flows = 20 * bitrate.Mbit, 8
	// A quantum of just a packet: what a flow of 1500-byte packets has left over of 1514 would let it send two of them in some rounds.
	for _, text := range []string{"sfq quantum 1500", "sfq quantum 1500 perturb 1s divisor 65536", "drr quantum 1500", "drr quantum 1500 leaf pie",
		"qfq", "qfq leaf pie", "fq_codel", "fq_pie", "cake", "cake bandwidth 19mbit"} {
		t.Run(text, func(t *testing.T) {
			var lists [][]timed
			for f := range flows {
				lists = append(lists, flood(link.Packet{Flow: flow(f), Size: 1500}, 2000, 0, 2400*time.Microsecond))
			}
			const probe = 999
			lists = append(lists, flood(link.Packet{Flow: flow(probe), Size: 84}, 450, 103*ms, 10*ms))
			l := newLink(t, rate, must(t, text), nil)
			var delays []time.Duration
			for _, a := range run(l, merge(lists...), 5*time.Second) {
				if a.p.Flow == flow(probe) {
					delays = append(delays, a.at-a.p.Entered)
				}
			}
			if len(delays) != 450 {
				t.Fatalf("%d of 450 probes arrived", len(delays))
			}
			// One quantum of each other flow, rounded up to packets, the packet in transmission, and the probe itself. Schedulers with new
			// flows first keep it to the packet in transmission and one that a shaper has let go.
			round := rate.Duration((flows + 2) * 1514)
			switch text {
			case "fq_codel", "fq_pie", "cake":
				round = rate.Duration(1514 + 84)
			case "cake bandwidth 19mbit":
				round = (19 * bitrate.Mbit).Duration(2*1514 + 84)
			}
			if got := slices.Max(delays); got > round {
				t.Errorf("longest delay of a sparse flow %v, want at most %v", got, round)
			}
		})
	}
}

func TestWeightsShareTheLink(t *testing.T) {
	const flows, classes = 3, 64
	// Flows that the hash puts into classes of weights 1, 2 and 4: 64 classes take the weights in turn, the last one weight 1.
	for _, text := range []string{"drr flows 64 weights 1:2:4 quantum 300", "qfq flows 64 weights 1:2:4"} {
		t.Run(text, func(t *testing.T) {
			sizes := []int{1500, 200, 700}
			var lists [][]timed
			var hashes []uint64
			for want := range flows {
				for n := 0; ; n++ {
					if spread(flow(n), 1, classes)%3 == want { // newLink's seed
						hashes = append(hashes, flow(n))
						break
					}
				}
			}
			for f, hash := range hashes {
				each := (20 * bitrate.Mbit).Duration(sizes[f])
				lists = append(lists, flood(link.Packet{Flow: hash, Size: sizes[f]}, int(5*time.Second/each), 0, each))
			}
			l := newLink(t, 20*bitrate.Mbit, must(t, text), nil)
			sums := map[uint64]float64{}
			all := 0.0
			for _, a := range run(l, merge(lists...), 5*time.Second) {
				if a.at > 100*ms {
					sums[a.p.Flow] += float64(a.p.Wire)
					all += float64(a.p.Wire)
				}
			}
			for f, hash := range hashes {
				if got, want := sums[hash]/all, float64(int(1)<<f)/7; math.Abs(got-want) > 0.002 {
					t.Errorf("the flow of weight %d has %.4f of the link, want %.4f", 1<<f, got, want)
				}
			}
		})
	}
}

func TestDRRKeepsWhatAClassHasNotUsed(t *testing.T) {
	queue, _ := bare(t, DRR{Flows: 1, Quantum: 600}, 0)
	q := queue.(*drr)
	for range 3 {
		q.Enqueue(link.Packet{Size: 500, Wire: 500}, 0)
	}
	// The deficit after each departure: 600-500, then with a second quantum 700-500, and with a third 800-500.
	for i, want := range []int{100, 200, 300} {
		if _, ok := q.Dequeue(0); !ok || q.turns[1].deficit != want {
			t.Errorf("deficit %d after packet %d, want %d", q.turns[1].deficit, i+1, want)
		}
	}
	q.Enqueue(link.Packet{Size: 500, Wire: 500}, 0)
	if got := q.turns[1].deficit; got != 600 {
		t.Errorf("a class that begins to send has a deficit of %d, want one quantum of 600", got)
	}
}

// QFQ promises that a class with packets is, at any time, no further behind its share than the packets in two slots of its group, and
// those of the others that are largest.
func TestQFQNeverLeavesAClassFarBehindItsShare(t *testing.T) {
	const classes = 64
	queue, _ := bare(t, QFQ{Flows: classes, Weights: "1:2:4:8:16:3:5:100", MaxPacket: 1500, Leaf: PFIFO{Limit: 100000}}, 0)
	q := queue.(*qfq)
	rng := random()
	served := make([]float64, classes)
	total, weight := 0.0, 0
	var hashes []uint64
	taken := map[int]bool{}
	for n := 0; len(hashes) < 24; n++ {
		if i := spread(flow(n), 1, classes); !taken[i] {
			taken[i] = true
			hashes = append(hashes, flow(n))
			weight += q.entries[i+1].weight
		}
	}
	for range 3000 {
		for _, h := range hashes {
			size := 60 + rng.IntN(1440)
			q.Enqueue(link.Packet{Flow: h, Size: size, Wire: size}, 0)
		}
	}
	for total < 1.5e6 { // no class runs dry
		p, ok := q.Dequeue(0)
		if !ok {
			t.Fatal("no packet, although every class has some")
		}
		served[spread(p.Flow, 1, classes)] += float64(p.Wire)
		total += float64(p.Wire)
		for i := range served {
			if !taken[i] {
				continue
			}
			w := float64(q.entries[i+1].weight)
			share := total * w / float64(weight)
			slot := float64(int64(1)<<q.entries[i+1].group) / qfqOne * w // bytes of the class in a slot
			if lag := share - served[i]; lag > 2*slot+1500*2 {
				t.Fatalf("class of weight %v is %.0f bytes behind its share of %.0f, want at most two slots of %.0f and two packets", w, lag, share, slot)
			}
			if lead := served[i] - share; lead > 2*slot+1500*2 {
				t.Fatalf("class of weight %v is %.0f bytes ahead of its share of %.0f", w, lead, share)
			}
		}
	}
}

func TestSFQDropsFromTheLongestFlow(t *testing.T) {
	for name, tt := range map[string]struct {
		o    SFQ
		want int // the number of the packet that goes
	}{"its last packet": {SFQ{Limit: 10}, 6}, "its first packet, if asked for": {SFQ{Limit: 10, HeadDrop: true}, 0}} {
		t.Run(name, func(t *testing.T) {
			q, c := bare(t, tt.o, 0)
			for i := range 7 {
				q.Enqueue(link.Packet{Handle: i, Flow: flow(1), Wire: 100}, 0)
			}
			for i := range 4 {
				q.Enqueue(link.Packet{Handle: 100 + i, Flow: flow(2), Wire: 1500}, 0)
			}
			if c.drops[link.Overflow] != 1 || c.last.Handle.(int) != tt.want {
				t.Errorf("drops %v, the last one packet %v; want one, packet %d", c.drops, c.last.Handle, tt.want)
			}
		})
	}
}

func TestSFQHasPlaceForSoManyFlowsOnly(t *testing.T) {
	q, c := bare(t, SFQ{Flows: 3, Divisor: 65536}, 0)
	for i := range 5 {
		q.Enqueue(link.Packet{Flow: flow(i), Wire: 100}, 0)
	}
	if q.Len() != 3 || c.drops[link.Tail] != 2 {
		t.Errorf("%d packets held and %v dropped, want 3 flows and 2 packets of others dropped", q.Len(), c.drops)
	}
	q, c = bare(t, SFQ{Depth: 2}, 0)
	for range 5 {
		q.Enqueue(link.Packet{Flow: flow(1), Wire: 100}, 0)
	}
	if q.Len() != 2 || c.drops[link.Tail] != 3 {
		t.Errorf("%d packets of one flow held and %v dropped, want the depth of 2", q.Len(), c.drops)
	}
}

func TestSFQPerturbsItsHash(t *testing.T) {
	// 64 flows in 16 buckets: those that share one now are apart after a change of the hash, most of them.
	together := func(q *sfq) map[string]bool {
		pairs := map[string]bool{}
		for i := range 64 {
			for j := range i {
				if spread(flow(i), q.key, q.o.Divisor) == spread(flow(j), q.key, q.o.Divisor) {
					pairs[fmt.Sprint(i, "-", j)] = true
				}
			}
		}
		return pairs
	}
	queue, c := bare(t, SFQ{Perturb: 10 * time.Second, Divisor: 16, Limit: 1000, Depth: 1000}, 0)
	q := queue.(*sfq)
	for i := range 640 {
		q.Enqueue(link.Packet{Handle: i, Flow: flow(i % 64), Wire: 100}, 0)
	}
	before := together(q)
	last := map[uint64]int{}
	count := 0
	for p, ok := q.Dequeue(10*time.Second - 1); ok; p, ok = q.Dequeue(10 * time.Second) {
		if n := p.Handle.(int); n < last[p.Flow] {
			t.Fatalf("packet %d after %d: the change of the hash reordered a flow", n, last[p.Flow])
		} else {
			last[p.Flow] = n
		}
		count++
	}
	if count != 640 || c.drops != [link.Reasons]int{} {
		t.Errorf("%d of 640 packets came out, %v were dropped", count, c.drops)
	}
	after := together(q)
	same := 0
	for p := range before {
		if after[p] {
			same++
		}
	}
	if q.changes != 1 || same > len(before)/4 {
		t.Errorf("%d changes of the hash; %d of %d pairs that shared a bucket still do", q.changes, same, len(before))
	}
}

func TestFQCoDelDropsFromTheFattestFlow(t *testing.T) {
	for name, o := range map[string]FQCoDel{"packets": {Limit: 100}, "bytes": {Memory: 100 * 1500}} {
		t.Run(name, func(t *testing.T) {
			thin := flow(1)
			var lost []link.Packet
			l := newLink(t, bitrate.Kbit, o, func(p link.Packet, r link.Reason) {
				if r != link.Overflow {
					t.Errorf("dropped for %v, want overflow", r)
				}
				lost = append(lost, p)
			})
			fat := flood(link.Packet{Flow: flow(2), Size: 1500}, 101, 0, 0)
			run(l, append(flood(link.Packet{Flow: thin, Size: 1500}, 3, 0, 0), fat...), 0)
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

func TestAFlowCannotStayNewByFallingEmpty(t *testing.T) {
	// A flow that sends a packet whenever its last one is gone has to let the others have their turn in between (RFC 8290, 4.2).
	for _, d := range []Discipline{FQCoDel{}, FQPIE{}} {
		q, _ := bare(t, d, 0)
		bulk := func() { q.Enqueue(link.Packet{Flow: flow(1), Wire: 1500}, 0) }
		for range 20 {
			bulk()
		}
		q.Enqueue(link.Packet{Flow: flow(2), Wire: 1500}, 0)
		var order []int
		for range 12 {
			p, _ := q.Dequeue(0)
			if p.Flow == flow(2) {
				order = append(order, 2)
				q.Enqueue(link.Packet{Flow: flow(2), Wire: 1500}, 0)
			} else {
				order = append(order, 1)
			}
		}
		n := 0
		for _, f := range order {
			if f == 2 {
				n++
			}
		}
		if n < 5 || n > 7 {
			t.Errorf("%T: order %v, want the two flows in turn", d, order)
		}
	}
}

func TestPFIFOFastPutsEachCodePointIntoTheBandThatLinuxPutsItInto(t *testing.T) {
	for want, bytes := range map[uint8][]uint8{
		0: {0x10, 0x90, 0xb0},                                     // minimum delay, AF42, VA
		1: {0x00, 0x02, 0x04, 0x20, 0xb8, 0xa0, 0xc0, 0x98, 0x18}, // CS0 and with ECT(0), LE, CS1, EF, CS5, CS6, AF43
		2: {0x08, 0x28, 0x48, 0x88, 0x02 | 0x08},                  // maximum throughput, AF11, AF21, AF41
	} {
		for _, ds := range bytes {
			if got := band(ds); got != want {
				t.Errorf("DS byte %#x goes to band %d, want %d", ds, got, want)
			}
		}
	}
	q, c := bare(t, PFIFOFast{Limit: 2}, 0)
	for i, ds := range []uint8{0x08, 0x00, 0x10, 0x08, 0x08, 0x00} {
		q.Enqueue(link.Packet{Handle: i, DS: ds, Wire: 100}, 0)
	}
	var order []int
	for p, ok := q.Dequeue(0); ok; p, ok = q.Dequeue(0) {
		order = append(order, p.Handle.(int))
	}
	if want := []int{2, 1, 5, 0, 3}; !slices.Equal(order, want) || c.drops[link.Tail] != 1 {
		t.Errorf("packets left in order %v with %v dropped, want %v: bands strictly, and the third of a band of two dropped", order, c.drops, want)
	}
}
