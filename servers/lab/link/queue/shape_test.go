package queue

import (
	"math"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// passed is what a queue let pass, and when.
type passed struct {
	at    time.Duration
	bytes int
}

// police offers a policer packets of random sizes, in bursts and pauses, and returns what passed.
func police(t *testing.T, d Discipline, mean time.Duration, n int) []passed {
	q, _ := bare(t, d, 0)
	rng := random()
	now := time.Duration(0)
	var got []passed
	for range n {
		if rng.IntN(50) == 0 {
			now += time.Duration(rng.Int64N(int64(100 * mean)))
		}
		now += time.Duration(rng.Int64N(int64(mean)))
		size := 60 + rng.IntN(1440)
		q.Enqueue(link.Packet{Size: size, Wire: size}, now)
		for p, ok := q.Dequeue(now); ok; p, ok = q.Dequeue(now) {
			got = append(got, passed{now, p.Wire})
		}
	}
	return got
}

// excess returns by how many bytes the fullest of all intervals, of whatever length, exceeds the rate.
func excess(got []passed, rate bitrate.Bitrate) float64 {
	// The sum of an interval less its allowance is largest where a running excess, cut at 0, is.
	most, running := 0.0, 0.0
	for i, g := range got {
		if i > 0 {
			running = max(running-(g.at-got[i-1].at).Seconds()*float64(rate)/8, 0)
		}
		running += float64(g.bytes)
		most = max(most, running)
	}
	return most
}

func TestAPolicerConformsAtEveryTimeScale(t *testing.T) {
	for _, tt := range []struct {
		text  string
		rate  bitrate.Bitrate
		burst float64
	}{
		{"policer rate 10mbit burst 15000", 10 * bitrate.Mbit, 15000},
		{"policer rate 7mbit burst 1514", 7 * bitrate.Mbit, 1514},
		{"policer rate 333kbit burst 64k", 333 * bitrate.Kbit, 65536},
		{"codel_policer rate 10mbit limit 20ms", 10 * bitrate.Mbit, 25000},
		{"tbf rate 10mbit burst 3000 leaf bfifo", 10 * bitrate.Mbit, 3000},
	} {
		got := police(t, must(t, tt.text), 400*time.Microsecond, 100000)
		over := excess(got, tt.rate)
		if over > tt.burst+1e-3 {
			t.Errorf("%s: %.3f bytes more than the rate in some interval, want at most the burst of %.0f", tt.text, over, tt.burst)
		}
		if over < tt.burst-1500 {
			t.Errorf("%s: at most %.0f bytes more than the rate, want the burst of %.0f to be usable", tt.text, over, tt.burst)
		}
	}
}

func TestAPolicerPassesItsRateAndItsBurst(t *testing.T) {
	// 20 Mbit/s offered for 10 s to a policer of 10 Mbit/s and 30000 bytes.
	l := newLink(t, bitrate.Gbit, must(t, "policer rate 10mbit burst 30000"), nil)
	got := run(l, flood(link.Packet{Size: 500}, 50000, 0, 200*time.Microsecond), time.Minute)
	want := 10e6/8*10 + 30000.
	if sum := float64(len(got) * 500); math.Abs(sum-want) > 1000 {
		t.Errorf("%.0f bytes passed, want %.0f", sum, want)
	}
	s := l.QueueStats()
	if s.Overlimits != s.Dropped.Packets || s.Kind != "policer leaf bfifo" {
		t.Errorf("counters %+v, want as many overlimits as drops", s)
	}
}

func TestACoDelPolicerDropsSparselyByTheControlLaw(t *testing.T) {
	var drops []time.Duration
	now := time.Duration(0)
	d := must(t, "codel_policer rate 8mbit limit 10s")
	q, err := d.New(link.Env{Drop: func(_ link.Packet, r link.Reason) {
		if r != link.AQM {
			t.Errorf("dropped for %v, want only sparse drops below the limit", r)
		}
		drops = append(drops, now)
	}, Mark: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	// 1.25 times the rate. The virtual queue grows by 0.25 ms per ms, and is 5 ms after 20 ms.
	for ; now < 3*time.Second; now += 800 * time.Microsecond {
		q.Enqueue(link.Packet{Size: 1000, Wire: 1000}, now)
		if _, ok := q.Dequeue(now); !ok && (len(drops) == 0 || drops[len(drops)-1] != now) {
			t.Fatal("a packet was held back")
		}
	}
	if first := drops[0]; first < 115*ms || first > 125*ms {
		t.Errorf("first drop at %v, want 100 ms after the virtual queue has grown to 5 ms, in 16 to 20 ms", first)
	}
	due := drops[0]
	for n := 1; n < 30; n++ {
		due += time.Duration(float64(100*ms) / math.Sqrt(float64(n)))
		if late := drops[n] - due; late < 0 || late > 800*time.Microsecond {
			t.Errorf("drop %d came %v after its time, want the first packet after it", n+1, late)
		}
	}
}

func TestACoDelPolicerLetsABurstPass(t *testing.T) {
	q, c := bare(t, must(t, "codel_policer rate 8mbit"), 0)
	for range 200 { // 200 kB at once are 200 ms of the rate
		q.Enqueue(link.Packet{Size: 1000, Wire: 1000}, time.Second)
	}
	if c.drops != [link.Reasons]int{} {
		t.Errorf("%v dropped of a burst below the limit, want none", c.drops)
	}
	for range 200 {
		q.Enqueue(link.Packet{Size: 1000, Wire: 1000}, time.Second)
	}
	if c.drops[link.Policed] != 150 {
		t.Errorf("%v dropped of 400 kB, want the 150 that exceed the limit of 250 ms", c.drops)
	}
}

func TestShapersHoldTheirRate(t *testing.T) {
	for text, rate := range map[string]bitrate.Bitrate{
		"tbf rate 10mbit burst 5000":                        10 * bitrate.Mbit,
		"htb rate 10mbit burst 5000":                        10 * bitrate.Mbit,
		"htb rate 7777kbit burst 1 leaf fq_codel":           7777 * bitrate.Kbit,
		"htb rate 20mbit leaf tbf rate 9mbit leaf fq_codel": 9 * bitrate.Mbit,
		"cake bandwidth 12345kbit":                          12345 * bitrate.Kbit,
		"cake bandwidth 600mbit besteffort":                 600 * bitrate.Mbit,
	} {
		t.Run(text, func(t *testing.T) {
			l := newLink(t, bitrate.Gbit, must(t, text), nil)
			each := rate.Duration(1250) // 1.2 times the rate
			got := run(l, flood(link.Packet{Size: 1500}, int(3*time.Second/each), 0, each), 3*time.Second)
			sum := 0.0
			for _, a := range got {
				if a.at > time.Second {
					sum += float64(a.p.Wire)
				}
			}
			if r := sum * 8 / 2 / float64(rate); math.Abs(r-1) > 0.0006 && math.Abs(sum*8/2-float64(rate)) > 1500*8 {
				t.Errorf("%.5f of the rate, want 1", r)
			}
			if l.QueueStats().Overlimits == 0 {
				t.Error("no overlimits, although the shaper held packets back")
			}
		})
	}
}

func TestAShaperLetsItsBurstGoAtOnce(t *testing.T) {
	for text, want := range map[string]int{"tbf rate 8mbit burst 5500": 5, "htb rate 8mbit burst 5500": 6} {
		q, _ := bare(t, must(t, text), 0)
		for range 20 {
			q.Enqueue(link.Packet{Size: 1000, Wire: 1000}, time.Second)
		}
		n := 0
		for _, ok := q.Dequeue(time.Second); ok; _, ok = q.Dequeue(time.Second) {
			n++
		}
		if n != want {
			t.Errorf("%s: %d packets of 1000 bytes at once, want %d", text, n, want)
		}
		at, ok := q.(link.Shaper).Wake(time.Second)
		if wait := at - time.Second; !ok || wait != 500*time.Microsecond {
			t.Errorf("%s: wakes after %v, want the time of 500 bytes", text, wait)
		}
	}
}

func TestCakeChargesTheFraming(t *testing.T) {
	// 100 bytes with PPPoE over ATM take 132 bytes of payload, three cells, 159 bytes.
	l := newLink(t, 100*bitrate.Mbit, must(t, "cake bandwidth 1mbit framing pppoe-vcmux"), nil)
	got := run(l, flood(link.Packet{Size: 100}, 2000, 0, 0), 10*time.Second)
	want := 1e6 / 8 / 159.
	n := 0
	for _, a := range got {
		if a.at > time.Second && a.at <= 2*time.Second {
			n++
		}
	}
	if math.Abs(float64(n)-want) > 1 {
		t.Errorf("%d packets in a second, want %.1f", n, want)
	}
}

// cakeFlows offers floods of so many flows per source host to a link, and returns the bytes that each host's flows received.
func cakeFlows(t *testing.T, text string, perHost []int) []float64 {
	var lists [][]timed
	n := 0
	for h, flows := range perHost {
		for range flows {
			p := link.Packet{Flow: flow(n), From: uint32(h + 1), To: 99, Size: 1000}
			lists = append(lists, flood(p, 2000, time.Duration(n)*10*time.Microsecond, 2*ms))
			n++
		}
	}
	l := newLink(t, 8*bitrate.Mbit, must(t, text), nil)
	sums := make([]float64, len(perHost))
	for _, a := range run(l, merge(lists...), 4*time.Second) {
		if a.at > time.Second {
			sums[a.p.From-1] += float64(a.p.Wire)
		}
	}
	return sums
}

func TestCakeSharesBetweenHosts(t *testing.T) {
	for text, want := range map[string]float64{ // the share of the host with one flow beside one with nine
		"cake dual-srchost": 0.5, "cake flows": 0.1,
		// All flows go to one host, whose load is ten, more than the source's: as far as triple-isolate can tell, they are that host's.
		"cake triple-isolate": 0.1, "cake dual-dsthost": 0.1,
	} {
		got := cakeFlows(t, text, []int{1, 9})
		if share := got[0] / (got[0] + got[1]); math.Abs(share-want) > 0.02 {
			t.Errorf("%s: the host with one flow has %.3f, want %.3f", text, share, want)
		}
	}
}

func TestCakeGivesEachFlowAQueueOfItsOwn(t *testing.T) {
	// 300 flows in 1024 plain queues would collide some 40 times; in sets of eight hardly ever.
	q, _ := bare(t, Cake{}, 0)
	for i := range 300 {
		q.Enqueue(link.Packet{Flow: flow(i), Size: 1000, Wire: 1000}, 0)
	}
	used := 0
	for i := range q.(*cake).tins[0].flows {
		if n := q.(*cake).tins[0].flows[i].line.n; n > 0 {
			used++
		}
	}
	if used < 299 {
		t.Errorf("300 flows use %d queues", used)
	}
	if got := extra(t, q, "besteffort_way_collisions"); got != float64(300-used) {
		t.Errorf("%v collisions counted, want %d", got, 300-used)
	}
}

func TestCakePutsCodePointsIntoTins(t *testing.T) {
	for text, want := range map[string]map[uint8]string{
		"cake": {0: "besteffort", 8: "bulk", 1: "bulk", 46: "voice", 44: "voice", 48: "voice", 56: "voice", 10: "besteffort", 34: "besteffort", 40: "besteffort"},
		"cake diffserv4": {0: "besteffort", 8: "bulk", 1: "bulk", 46: "voice", 40: "voice", 32: "voice", 48: "voice", 26: "video", 34: "video",
			24: "video", 10: "besteffort"},
		"cake besteffort": {0: "besteffort", 8: "besteffort", 46: "besteffort"},
	} {
		q, _ := bare(t, must(t, text), 0)
		for code, tin := range want {
			if got := q.(*cake).tins[q.(*cake).tinOf(code<<2|1)].name; got != tin {
				t.Errorf("%s: code point %d goes to %s, want %s", text, code, got, tin)
			}
		}
	}
}

func TestCakeTinsKeepToTheirSharesUnderLoad(t *testing.T) {
	for _, tt := range []struct {
		text string
		want [3]float64 // bulk, best effort and voice, all flooding
	}{
		// Voice and bulk have their quarter and their sixteenth, best effort the rest.
		{"cake bandwidth 8mbit", [3]float64{1. / 16, 1 - 1./16 - 1./4, 1. / 4}},
		{"cake", [3]float64{1. / 21, 16. / 21, 4. / 21}},
	} {
		var lists [][]timed
		for i, code := range []uint8{8, 0, 46} {
			lists = append(lists, flood(link.Packet{Flow: flow(i), DS: code << 2, Size: 1000}, 4000, 0, ms))
		}
		l := newLink(t, 8*bitrate.Mbit+100*bitrate.Kbit, must(t, tt.text), nil)
		got := shareOf(run(l, merge(lists...), 4*time.Second), 3)
		all := got[0] + got[1] + got[2]
		for i := range got {
			if share := got[i] / all; math.Abs(share-tt.want[i]) > 0.03 {
				t.Errorf("%s: tin %d has %.3f of the link, want %.3f", tt.text, i, share, tt.want[i])
			}
		}
	}
}

func TestCakeFiltersAcknowledgements(t *testing.T) {
	for _, tt := range []struct {
		text string
		left []uint32
	}{
		{"cake", []uint32{1, 2, 3, 4, 5, 6}}, {"cake ack-filter", []uint32{4, 5, 6}}, {"cake ack-filter-aggressive", []uint32{6}},
	} {
		q, c := bare(t, must(t, tt.text), 0)
		for ack := range uint32(6) {
			q.Enqueue(link.Packet{Flow: flow(1), Size: 52, Wire: 52, PureACK: true, ACK: ack + 1}, 0)
		}
		q.Enqueue(link.Packet{Flow: flow(1), Size: 64, Wire: 64, ACK: 6}, 0) // with SACK blocks, say: it stays, and drops none
		var left []uint32
		for p, ok := q.Dequeue(0); ok; p, ok = q.Dequeue(0) {
			if p.PureACK {
				left = append(left, p.ACK)
			}
		}
		if len(left) != len(tt.left) || left[0] != tt.left[0] || c.drops[link.Filtered] != 6-len(left) {
			t.Errorf("%s: acknowledgements %v are left and %d dropped, want %v left", tt.text, left, c.drops[link.Filtered], tt.left)
		}
	}
	q, c := bare(t, must(t, "cake ack-filter-aggressive"), 0)
	for _, ack := range []uint32{math.MaxUint32 - 1, math.MaxUint32, 3} { // across the wrap of sequence numbers
		q.Enqueue(link.Packet{Flow: flow(1), Wire: 52, PureACK: true, ACK: ack}, 0)
	}
	q.Enqueue(link.Packet{Flow: flow(1), Wire: 52, PureACK: true, ACK: 2}, 0) // an old one
	if q.Len() != 2 || c.drops[link.Filtered] != 2 {
		t.Errorf("%d acknowledgements held and %v dropped, want the newest and the one that came late", q.Len(), c.drops)
	}
}

func TestCakeDropsFromTheLongestQueueWhereMemoryEnds(t *testing.T) {
	q, c := bare(t, must(t, "cake memlimit 20000"), 0)
	q.Enqueue(link.Packet{Flow: flow(2), Wire: 1000}, 0)
	for range 30 {
		q.Enqueue(link.Packet{Flow: flow(1), Wire: 1000}, 0)
	}
	if c.drops[link.Overflow] != 11 || c.last.Flow != flow(1) || q.Bytes() != 20000 {
		t.Errorf("%v dropped and %d bytes held, want 11 of the long flow and 20000", c.drops, q.Bytes())
	}
}
