package queue

import (
	"math"
	"slices"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// drive offers a queue a packet every in, and takes one every out, from time 0 on. After each departure it calls left.
func drive(q link.Queue, p link.Packet, in, out, until time.Duration, left func(p link.Packet, now time.Duration)) {
	enter, leave := time.Duration(0), out
	for enter < until || leave < until {
		if enter <= leave {
			p.Entered = enter
			q.Enqueue(p, enter)
			enter += in
			continue
		}
		if got, ok := q.Dequeue(leave); ok && left != nil {
			left(got, leave)
		}
		leave += out
	}
}

func TestCoDelFollowsItsControlLawExactly(t *testing.T) {
	for name, text := range map[string]string{"codel": "codel limit 10000p", "fq_codel": "fq_codel"} {
		t.Run(name, func(t *testing.T) {
			var drops []time.Duration
			now := time.Duration(0)
			q, err := must(t, text).New(link.Env{Drop: func(link.Packet, link.Reason) { drops = append(drops, now) }, Mark: func() {}})
			if err != nil {
				t.Fatal(err)
			}
			// 1.25 packets in and one out per millisecond: the law's reaction is too slow to ever catch up. A drop happens at the first
			// departure, whole milliseconds, at which it is due.
			var above time.Duration
			p := link.Packet{Size: 1000, Wire: 1000}
			next := time.Duration(0)
			for out := ms; out < 4*time.Second; out += ms {
				for ; next <= out; next += 800 * time.Microsecond {
					p.Entered = next
					q.Enqueue(p, next)
				}
				now = out
				got, _ := q.Dequeue(now)
				if above == 0 && now-got.Entered >= 5*ms {
					above = now
				}
			}
			due := above + 100*ms
			for n, got := range drops[:60] {
				want := (due + ms - 1) / ms * ms
				if got != want {
					t.Fatalf("drop %d at %v, want %v: interval/sqrt(n) after the one before, at the next departure", n+1, got, want)
				}
				if n == 0 {
					due = got
				}
				due += time.Duration(float64(100*ms) / math.Sqrt(float64(n+1)))
			}
		})
	}
}

func TestCoDelGoesOnWhereItLeftOffIfThatWasNotLongAgo(t *testing.T) {
	for name, tt := range map[string]struct {
		pause time.Duration
		count int
	}{"within 16 intervals the count is what it grew by": {200 * ms, 9}, "later it begins anew": {1700 * ms, 1}} {
		t.Run(name, func(t *testing.T) {
			c := codel{target: 5 * ms, interval: 100 * ms}
			c.begin(time.Second) // count 1
			c.count = 10         // nine more drops
			c.dropNext = 2 * time.Second
			c.dropping = false
			c.begin(c.dropNext + tt.pause)
			if c.count != tt.count || c.lastCount != tt.count {
				t.Errorf("count %d and last count %d, want %d", c.count, c.lastCount, tt.count)
			}
			if want := 2*time.Second + tt.pause + time.Duration(float64(100*ms)/math.Sqrt(float64(tt.count))); c.dropNext != want {
				t.Errorf("next drop at %v, want %v", c.dropNext, want)
			}
		})
	}
}

func TestAQMsMarkWhatCanBeMarked(t *testing.T) {
	for _, tt := range []struct {
		text  string
		ds    uint8
		marks bool
	}{
		{"codel ecn", 2, true}, {"codel ecn", 1, true}, {"codel ecn", 0xb8, false}, {"codel", 2, false},
		{"fq_codel", 2, true}, {"fq_codel noecn", 2, false}, {"fq_codel", 0, false},
		{"pie", 2, false}, {"fq_pie", 2, false},
		{"red ecn limit 10m max 900k min 30k probability 0.5", 2, true}, {"red limit 10m max 900k min 30k probability 0.5", 2, false},
		{"cake", 2, true}, {"cake", 0, false}, {"codel_policer rate 7mbit limit 10s", 2, true},
		{"codel_policer rate 7mbit limit 10s noecn", 2, false},
	} {
		l := newLink(t, 8*bitrate.Mbit, must(t, tt.text), nil)
		marked := uint64(0)
		for _, a := range run(l, flood(link.Packet{DS: tt.ds, Size: 1000}, 3150, 0, 952381*time.Nanosecond), time.Minute) {
			if a.p.Marked {
				marked++
			}
		}
		s := l.Stats()
		if got := s.Marked > 0; got != tt.marks || s.Marked != marked {
			t.Errorf("%s, DS %#x: %d marks counted and %d delivered, want some: %v", tt.text, tt.ds, s.Marked, marked, tt.marks)
		}
		if got := s.Drops[link.AQM].Packets == 0; got != tt.marks {
			t.Errorf("%s, DS %#x: %d drops by the AQM, want none: %v", tt.text, tt.ds, s.Drops[link.AQM].Packets, tt.marks)
		}
	}
}

func TestPIEMarksUpToTenPercentAndDropsAbove(t *testing.T) {
	for _, text := range []string{"pie ecn limit 5000p", "fq_pie ecn"} {
		queue, c := bare(t, must(t, text), 0)
		prob := func() float64 {
			if q, ok := queue.(*fqPIE); ok {
				return q.flows[spread(0, q.env.Seed, len(q.flows))].pie.prob
			}
			return queue.(*pieQueue).pie.prob
		}
		before := tally{}
		drive(queue, link.Packet{Size: 1000, Wire: 1000, DS: 2}, 900*time.Microsecond, ms, 10*time.Second, func(link.Packet, time.Duration) {
			if p := prob(); c.marks > before.marks && p > 0.13 || c.drops[link.AQM] > before.drops[link.AQM] && p < 0.07 {
				t.Fatalf("%s: at a probability of %.3f: %d marks, %d drops", text, p, c.marks, c.drops[link.AQM])
			}
			before = *c
		})
		if c.marks == 0 || c.drops[link.AQM] == 0 {
			t.Errorf("%s: %d marks and %d drops by the AQM, want both", text, c.marks, c.drops[link.AQM])
		}
	}
}

func TestAThresholdMarksWhateverWaitedLonger(t *testing.T) {
	for _, text := range []string{"codel ce_threshold 3ms", "fq_codel ce_threshold 3ms"} {
		l := newLink(t, 8*bitrate.Mbit, must(t, text), nil)
		got := run(l, flood(link.Packet{Size: 1000, DS: 1}, 20, 0, 0), time.Second)
		for i, a := range got {
			// Packet i begins its transmission i milliseconds after all came.
			if want := i > 3; a.p.Marked != want {
				t.Errorf("%s: packet that waited %d ms is marked: %v, want %v", text, i, a.p.Marked, want)
			}
		}
	}
}

func TestPIEMovesItsProbabilityByTheRFC(t *testing.T) {
	// One update, from a known state: 0.125 per second above the target of 15 ms, 1.25 per second of growth, damped as the table says.
	for name, tt := range map[string]struct {
		prob       float64
		old, delay time.Duration
		want       float64
	}{
		"below a millionth: 1/2048":            {0.0000005, 15 * ms, 35 * ms, 0.0000005 + 0.0275/2048},
		"below a hundred thousandth: 1/512":    {0.000005, 15 * ms, 35 * ms, 0.000005 + 0.0275/512},
		"below 0.01%: 1/128":                   {0.00005, 15 * ms, 35 * ms, 0.00005 + 0.0275/128},
		"below 0.1%: 1/32":                     {0.0005, 15 * ms, 35 * ms, 0.0005 + 0.0275/32},
		"below 1%: 1/8":                        {0.005, 15 * ms, 35 * ms, 0.005 + 0.0275/8},
		"below 10%: 1/2":                       {0.05, 15 * ms, 35 * ms, 0.05 + 0.0275/2},
		"from 10% on undamped, but 2% at most": {0.1, 15 * ms, 35 * ms, 0.12},
		"from 10% on undamped":                 {0.3, 15 * ms, 20 * ms, 0.3 + 0.006875},
		"down as well":                         {0.3, 35 * ms, 15 * ms, 0.3 - 0.025},
		"above 250 ms 2% more":                 {0.2, 251 * ms, 251 * ms, 0.2 + 0.02 + 0.02},
		"never below 0":                        {0.0001, 200 * ms, ms, 0},
		"never above 1":                        {0.99, 300 * ms, 400 * ms, 1},
		"an empty queue decays":                {0.5, 0, 0, (0.5 - 0.001875) * 63 / 64},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPIE(pieOptions{target: 15 * ms, update: 15 * ms, maxBurst: 150 * ms, alpha: 0.125, beta: 1.25})
			s.prob, s.old, s.delay = tt.prob, tt.old, tt.delay
			s.tune()
			if math.Abs(s.prob-tt.want) > 1e-12 {
				t.Errorf("probability %.9f after %v, %.9f before it, want %.9f", s.prob, tt.delay, tt.prob, tt.want)
			}
			if s.old != tt.delay {
				t.Errorf("the delay that the next update compares with is %v, want %v", s.old, tt.delay)
			}
		})
	}
}

func TestPIELetsABurstPass(t *testing.T) {
	s := newPIE(pieOptions{target: 15 * ms, update: 15 * ms, maxBurst: 150 * ms, alpha: 0.125, beta: 1.25})
	s.delay = 100 * ms
	for n := range 10 {
		if s.burst == 0 || s.congested(1500, 100000, random()) {
			t.Fatalf("after %d updates the allowance of 150 ms is used up", n)
		}
		s.tune()
	}
	if s.burst != 0 {
		t.Errorf("%v left of the burst after ten updates of 15 ms, want none", s.burst)
	}
	s.prob, s.delay, s.old = 0, 7*ms, 7*ms
	s.tune()
	if s.burst != 150*ms {
		t.Errorf("%v of burst after the queue was calm, want all", s.burst)
	}
}

func TestPIEDoesNotDropWhereItMustNot(t *testing.T) {
	base := newPIE(pieOptions{target: 15 * ms, update: 15 * ms, maxBurst: 150 * ms, alpha: 0.125, beta: 1.25})
	base.burst, base.prob, base.accumulated, base.old = 0, 1, 8.5, 20*ms
	for name, tt := range map[string]struct {
		change func(*pie)
		bytes  int
		want   bool
	}{
		"it drops else":                  {func(*pie) {}, 100000, true},
		"in a burst":                     {func(s *pie) { s.burst = 1 }, 100000, false},
		"at a low delay and probability": {func(s *pie) { s.old, s.prob = 7*ms, 0.19 }, 100000, false},
		"at a low delay and high probability it drops":     {func(s *pie) { s.old = 7 * ms }, 100000, true},
		"with two packets in the queue":                    {func(*pie) {}, 2 * meanPacket, false},
		"while the probabilities sum up to less than 0.85": {func(s *pie) { s.prob, s.accumulated = 0.5, 0.3 }, 100000, false},
		"where they sum up to 8.5 it drops for sure":       {func(s *pie) { s.prob = 1e-9 }, 100000, true},
	} {
		s := base
		tt.change(&s)
		if got := s.congested(1500, tt.bytes, random()); got != tt.want {
			t.Errorf("%s: drop %v, want %v", name, got, tt.want)
		}
	}
}

func TestALateUpdateOfPIEIsAsGoodAsAPunctualOne(t *testing.T) {
	state := func(step time.Duration) (all []float64) {
		q, _ := bare(t, PIE{Limit: 10000}, 0)
		p := link.Packet{Size: 1000, Wire: 1000}
		drive(q, p, 800*time.Microsecond, ms, 2*time.Second, nil)
		for now := 2 * time.Second; now < 4*time.Second; now += step { // nothing comes, and nothing leaves
			q.(*pieQueue).pie.advance(now, false)
		}
		q.(*pieQueue).pie.advance(4*time.Second, false)
		return append(all, q.(*pieQueue).pie.prob, float64(q.(*pieQueue).pie.next))
	}
	if a, b := state(ms), state(1700*ms); !slices.Equal(a, b) {
		t.Errorf("updates every millisecond lead to %v, rare ones to %v", a, b)
	}
}

func TestPIESettlesAtItsTargetUnderAFlood(t *testing.T) {
	for _, text := range []string{"pie limit 10000p", "fq_pie"} {
		t.Run(text, func(t *testing.T) {
			// 1.25 times the rate: the probability must come to 0.2 (RFC 8033: the arrival rate that is left is the link's).
			l := newLink(t, 12*bitrate.Mbit, must(t, text), nil)
			got := run(l, flood(link.Packet{Size: 1500}, 75000, 0, 800*time.Microsecond), 60*time.Second)
			var delays []float64
			for _, a := range got {
				if a.at > 20*time.Second {
					delays = append(delays, (a.at - ms - a.p.Entered).Seconds())
				}
			}
			slices.Sort(delays)
			if median := delays[len(delays)/2]; math.Abs(median-0.015) > 0.003 {
				t.Errorf("median sojourn time %.1f ms, want 15 +- 3", median*1000)
			}
			s := l.Stats()
			if share := float64(s.Drops[link.AQM].Packets) / float64(s.In.Packets); math.Abs(share-0.2) > 0.02 {
				t.Errorf("%.3f of the packets were dropped, want 0.2 +- 0.02", share)
			}
		})
	}
}

func TestPIEInByteModeSparesSmallPackets(t *testing.T) {
	l := newLink(t, 12*bitrate.Mbit, must(t, "pie limit 10000p bytemode"), nil)
	var drops [2]float64
	packets := merge(flood(link.Packet{Size: 1500}, 60000, 0, 900*time.Microsecond), flood(link.Packet{Size: 150}, 60000, 0, 900*time.Microsecond))
	got := run(l, packets, time.Minute)
	for _, a := range got {
		drops[min(a.p.Size/1500, 1)]++
	}
	small, large := 1-drops[0]/60000, 1-drops[1]/60000
	if large < 0.01 || small > large/5 {
		t.Errorf("%.4f of the small and %.4f of the large packets were lost, want about a tenth", small, large)
	}
}

func TestREDDropsMoreTheLongerTheAverageQueueIs(t *testing.T) {
	for name, tt := range map[string]struct {
		o       RED
		average float64
		want    float64
	}{
		"nothing below the minimum":          {RED{}, 29999, 0},
		"half of the maximum in the middle":  {RED{Probability: 0.1}, 60000, 0.05},
		"gentle: halfway to 1":               {RED{Probability: 0.1}, 135000, 0.55},
		"all at twice the maximum":           {RED{Probability: 0.1}, 180000, 1},
		"all above the maximum, not gentle":  {RED{Probability: 0.1, NotGentle: true}, 90000, 1},
		"the default is 2% at the maximum":   {RED{}, 89999.999, 0.02},
		"a maximum of its own: 1/4 of 50% p": {RED{Min: 1000, Max: 5000, Probability: 0.5}, 2000, 0.125},
	} {
		t.Run(name, func(t *testing.T) {
			queue, _ := bare(t, tt.o, 0)
			q := queue.(*redQueue)
			drops := 0
			const n = 200000
			for range n {
				q.average = tt.average
				if drop, _ := q.decide(); drop {
					drops++
				}
			}
			// The gaps are uniform from 1 to 1/p, so that the mean rate is 2p/(1+p) (Floyd and Jacobson, 1993, section 7).
			want := 2 * tt.want / (1 + tt.want)
			if got := float64(drops) / n; math.Abs(got-want) > 0.003+want/30 {
				t.Errorf("%.4f are dropped, want %.4f", got, want)
			}
		})
	}
}

func TestREDSpreadsItsDrops(t *testing.T) {
	queue, _ := bare(t, RED{Probability: 0.1}, 0)
	q := queue.(*redQueue)
	gap, longest := 0, 0
	for range 100000 {
		q.average = 60000
		if drop, _ := q.decide(); drop {
			longest = max(longest, gap)
			gap = 0
		}
		gap++
	}
	if longest > 20 || longest < 15 {
		t.Errorf("longest gap between drops %d packets, want up to 1/p = 20", longest)
	}
}

func TestTheAverageOfREDFallsWhileTheLinkIsIdle(t *testing.T) {
	queue, _ := bare(t, RED{}, 8*bitrate.Mbit) // 1000 bytes are 1 ms
	q := queue.(*redQueue)
	q.average, q.idle = 50000, time.Second
	q.Enqueue(link.Packet{Wire: 1000}, 2*time.Second)
	if want := 50000 * math.Pow(0.998, 1000); math.Abs(q.average-want) > 1 {
		t.Errorf("average %.1f after an idle second of 1000 packets, want %.1f", q.average, want)
	}
}

func TestCobaltCountsDownByItsLaw(t *testing.T) {
	o := cobaltOptions{target: 5 * ms, interval: 100 * ms}
	c := cobalt{}
	now := time.Second
	drops := 0
	for range 1000 { // a second of 1 ms steps above target
		if drop, _ := c.judge(20*ms, 0, false, &o, now, random()); drop {
			drops++
		}
		now += ms
	}
	// The sum of interval/sqrt(n) over n drops is about 2 x interval x sqrt(n): 1 s is n = 25.
	if drops < 20 || drops > 32 {
		t.Errorf("%d drops in a second above the target, want about 25", drops)
	}
	high := c.count
	for range 1000 {
		if drop, _ := c.judge(ms, 0, false, &o, now, random()); drop {
			t.Fatal("a drop below the target")
		}
		now += ms
	}
	if c.count >= high/2 {
		t.Errorf("count %d a second after recovery, %d before it, want it to have fallen by the law", c.count, high)
	}
}

func TestBlueStepsInOnOverflow(t *testing.T) {
	o := cobaltOptions{target: 5 * ms, interval: 100 * ms}
	c := cobalt{}
	now := time.Second
	for range 10 {
		now += 6 * ms
		c.overflowed(&o, now)
		c.overflowed(&o, now+ms) // too soon to count
	}
	if c.chance != 10*blueUp {
		t.Errorf("chance %v after ten overflows, want %v", c.chance, 10*blueUp)
	}
	for range 160 {
		now += 6 * ms
		c.emptied(&o, now)
	}
	if c.chance != 0 {
		t.Errorf("chance %v after 160 empty moments of 1/4096 each, want 0", c.chance)
	}
}
