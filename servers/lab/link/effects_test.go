package link

import (
	"math"
	"testing"
	"time"

	"bufferbloat/internal/bitrate"
)

// through sends n packets of 1000 bytes, numbered in Handle, every gap over a link of 80 Mbit/s and 20 ms.
func through(t *testing.T, o Options, n int, gap time.Duration) ([]arrival, Stats) {
	t.Helper()
	o.Rate, o.Delay, o.Queue = 80*bitrate.Mbit, 20*ms, tailDrop(1<<20)
	l := newLink(t, o)
	packets := flood(Packet{Size: 1000}, n, 0, gap)
	for i := range packets {
		packets[i].p.Handle = i
	}
	return run(l, packets, time.Hour), l.Stats()
}

func TestLossIsWithinItsBinomialInterval(t *testing.T) {
	const n = 40000
	for name, tt := range map[string]struct {
		loss Loss
		want float64
	}{
		"none": {Loss{}, 0}, "1%": {Loss{Good: 0.01}, 0.01}, "30%": {Loss{Good: 0.3}, 0.3}, "all": {Loss{Good: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, s := through(t, Options{Effects: Effects{Loss: tt.loss}, Seed: 5}, n, ms/2)
			share := float64(s.Drops[Lost].Packets) / n
			if sigma := math.Sqrt(tt.want * (1 - tt.want) / n); math.Abs(share-tt.want) > 3*sigma || len(got)+int(s.Drops[Lost].Packets) != n {
				t.Errorf("%.5f are lost, want %.5f +- %.5f", share, tt.want, 3*sigma)
			}
			if tt.loss.Mean() != tt.want {
				t.Errorf("the mean says %v, want %v", tt.loss.Mean(), tt.want)
			}
		})
	}
}

func TestGilbertElliottLosesInBursts(t *testing.T) {
	const n = 200000
	loss := Loss{Good: 0.001, Bad: 0.5, GoodToBad: 0.01, BadToGood: 0.2}
	want := 0.001*0.2/0.21 + 0.5*0.01/0.21
	if got := loss.Mean(); math.Abs(got-want) > 1e-12 {
		t.Fatalf("mean %v, want %v", got, want)
	}
	got, _ := through(t, Options{Effects: Effects{Loss: loss}, Seed: 6}, n, ms/2)
	if share := 1 - float64(len(got))/n; math.Abs(share/want-1) > 0.1 {
		t.Errorf("%.5f are lost, want %.5f to 10%%, three standard deviations of so many bursts", share, want)
	}
	// After a loss, the chain is nearly always in the bad state, and stays there with 0.8: the next is lost with about 0.4.
	lost, pairs, next := 0, 0, 0
	for _, a := range got {
		n := a.p.Handle.(int)
		lost += n - next
		pairs += max(n-next-1, 0)
		next = n + 1
	}
	if p := float64(pairs) / float64(lost); p < 0.33 || p > 0.45 {
		t.Errorf("after a loss the next packet is lost with %.3f, want about 0.39", p)
	}
}

func TestDuplicatesArriveTwice(t *testing.T) {
	const n = 50000
	copies := 0
	clone := func(h any) any { copies++; return h }
	got, s := through(t, Options{Effects: Effects{Duplicate: 0.02}, Clone: clone}, n, ms)
	seen := map[any]int{}
	for _, a := range got {
		seen[a.p.Handle]++
	}
	twice := 0
	for _, c := range seen {
		if c == 2 {
			twice++
		}
	}
	if math.Abs(float64(twice)/n-0.02) > 0.002 || len(seen) != n || twice != copies || uint64(twice) != s.Duplicated.Packets {
		t.Errorf("%d of %d packets arrived, %d twice, %d counted, want 2%%", len(seen), n, twice, s.Duplicated.Packets)
	}
}

func TestCorruptPacketsAreFlagged(t *testing.T) {
	const n = 50000
	got, s := through(t, Options{Effects: Effects{Corrupt: 0.02}}, n, ms)
	bad := 0
	for _, a := range got {
		if a.p.Corrupted {
			bad++
		}
	}
	if math.Abs(float64(bad)/n-0.02) > 0.002 || uint64(bad) != s.Corrupted {
		t.Errorf("%d of %d packets are damaged, %d counted, want 2%%", bad, n, s.Corrupted)
	}
}

// reordered counts by RFC 4737: a packet is reordered if one that was sent after it has arrived before it. The extent is how many places
// before it the first such packet arrived.
func reordered(got []arrival) (n, longest int) {
	expected := -1
	for i, a := range got {
		s := a.p.Handle.(int)
		if s >= expected {
			expected = s + 1
			continue
		}
		n++
		for j := max(0, i-10*MaxDistance); j < i; j++ { // far enough back for all that is tested here
			if got[j].p.Handle.(int) > s {
				longest = max(longest, i-j)
				break
			}
		}
	}
	return n, longest
}

func TestReorderingIsWhatRFC4737Counts(t *testing.T) {
	const n = 50000
	for _, distance := range []int{1, 3, 20} {
		got, s := through(t, Options{Effects: Effects{Reorder: Reorder{Share: 0.01, Distance: distance, Wait: time.Second}}}, n, ms)
		count, extent := reordered(got)
		if math.Abs(float64(count)/n-0.01) > 0.0015 || len(got) != n || uint64(count) > s.Held || uint64(count)+2 < s.Held {
			t.Errorf("distance %d: %d of %d packets are reordered, %d were held back; want 1%% and all of them", distance, count, n, s.Held)
		}
		// Others that are held back meanwhile do not overtake, but may be let go before it.
		if extent < distance || extent > distance+5 {
			t.Errorf("reordering extent up to %d packets, want %d", extent, distance)
		}
	}
}

func TestAHeldPacketIsLetGoWhenNothingOvertakesIt(t *testing.T) {
	o := Options{Effects: Effects{Reorder: Reorder{Share: 0.5, Wait: 30 * ms}}, Rate: 80 * bitrate.Mbit, Delay: 20 * ms, Queue: tailDrop(1 << 20)}
	l := newLink(t, o)
	for range 20 { // one at a time
		now := l.now + time.Second
		l.Advance(now, nil)
		l.Send(Packet{Size: 1000}, now)
		var at time.Duration
		for next, ok := l.NextDelivery(); ok; next, ok = l.NextDelivery() {
			l.Advance(next, func(_ Packet, a time.Duration) { at = a })
		}
		if d := at - now - ms/10; d != 20*ms && d != 50*ms {
			t.Fatalf("delay %v, want 20 ms, or 50 ms for a packet that waited in vain", d)
		}
	}
	if h := l.stats.Held; h < 4 || h > 16 {
		t.Errorf("%d of 20 packets were held, want about half", h)
	}
}

func TestJitterHasItsDistribution(t *testing.T) {
	const n = 40000
	for name, tt := range map[string]struct {
		d                 Distribution
		mean, sigma, most float64 // in units of Spread
	}{
		"uniform": {Uniform, 0.5, 1 / math.Sqrt(12), 1}, "normal": {Normal, 0.5, 1. / 6, 1}, "exponential": {Exponential, 1, 1, 10},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := through(t, Options{Effects: Effects{Jitter: Jitter{5 * ms, tt.d, true}}}, n, ms)
			sum, squares, most := 0.0, 0.0, 0.0
			for _, a := range got {
				x := float64(a.at-a.p.Entered-20*ms-ms/10) / float64(5*ms)
				sum += x
				squares += x * x
				most = max(most, x)
				if x < 0 {
					t.Fatal("a packet came too early")
				}
			}
			mean := sum / n
			sigma := math.Sqrt(squares/n - mean*mean)
			if math.Abs(mean-tt.mean) > 0.02 || math.Abs(sigma-tt.sigma) > 0.02 || most > tt.most {
				t.Errorf("mean %.3f, deviation %.3f, at most %.3f; want %.3f, %.3f, %.0f", mean, sigma, most, tt.mean, tt.sigma, tt.most)
			}
			if count, _ := reordered(got); count < n/10 {
				t.Errorf("%d packets reordered by jitter of five times their spacing, want many", count)
			}
		})
	}
}

func TestJitterWithoutReorderingKeepsTheOrder(t *testing.T) {
	got, _ := through(t, Options{Effects: Effects{Jitter: Jitter{Spread: 5 * ms}}}, 20000, ms)
	if count, _ := reordered(got); count != 0 {
		t.Errorf("%d packets reordered", count)
	}
}

func TestOneEffectLeavesTheRandomnessOfTheOthersAlone(t *testing.T) {
	lost := func(e Effects) map[any]bool {
		got, _ := through(t, Options{Effects: e, Seed: 9, Clone: func(h any) any { return h }}, 5000, ms)
		seen := map[any]bool{}
		for _, a := range got {
			seen[a.p.Handle] = true
		}
		return seen
	}
	plain := lost(Effects{Loss: Loss{Good: 0.1}})
	with := lost(Effects{Loss: Loss{Good: 0.1}, Duplicate: 0.1, Corrupt: 0.1, Jitter: Jitter{Spread: ms, MayReorder: true}, Reorder: Reorder{Share: 0.1}})
	for i := range 5000 {
		if plain[i] != with[i] {
			t.Fatalf("packet %d arrived: %v without, %v with other effects", i, plain[i], with[i])
		}
	}
}

func TestFraming(t *testing.T) {
	for name, sizes := range map[string]map[int]int{
		"raw": {1500: 1500, 0: 0}, "qdisc": {1500: 1514}, "ethernet": {1500: 1538, 40: 84, 46: 84, 47: 85},
		"pppoe-vcmux": {100: 159, 1500: 32 * 53}, // 132 bytes are three cells; 1532 are 32
		"ipoa-vcmux":  {40: 53, 41: 106, 0: 53},  // 48 bytes are one cell, 49 are two
		"pppoe-ptm":   {1470: 1500 + 24, 34: 65, 35: 67},
		"docsis":      {1500: 1518, 40: 64},
	} {
		f, ok := FramingOf(name)
		if !ok {
			t.Fatalf("no framing %q", name)
		}
		for size, want := range sizes {
			if got := f.Wire(size); got != want {
				t.Errorf("%s: %d bytes take %d, want %d", name, size, got, want)
			}
		}
	}
	if _, ok := FramingOf("x"); ok || len(FramingNames()) != 16 {
		t.Errorf("unknown framing found, or names %q", FramingNames())
	}
}

func TestADeviceTakesPacketsUntilItHoldsMoreThanItsLimit(t *testing.T) {
	for limit, want := range map[int]uint64{0: 1, 1499: 1, 1500: 2, 4500: 4} { // packets out of the queue's reach
		l := newLink(t, Options{Rate: bitrate.Mbit, Queue: tailDrop(1 << 20), Device: limit})
		for range 10 {
			l.Send(Packet{Size: 1500}, 0)
		}
		if s := l.Stats(); s.Backlog.Packets-s.Queued.Packets != want {
			t.Errorf("limit %d: %d packets of 1500 bytes in the device, want %d", limit, s.Backlog.Packets-s.Queued.Packets, want)
		}
		l.Advance(12*ms, func(Packet, time.Duration) {})
		if s := l.Stats(); s.Out.Packets != 1 || s.Backlog.Packets-s.Queued.Packets != want {
			t.Errorf("limit %d: after one packet is sent, %d in the device, want %d again", limit, s.Backlog.Packets-s.Queued.Packets, want)
		}
	}
}
