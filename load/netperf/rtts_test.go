package netperf

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestALongQueueWeighsByTheTimeThatItLasted(t *testing.T) {
	// Half of ten seconds the round trip takes 10 ms, half 100 ms: 500 transactions and 50.
	var r RTTs
	for range 500 {
		r.add(10*ms, 10*ms)
	}
	for range 50 {
		r.add(100*ms, 100*ms)
	}
	for _, c := range []struct {
		q            float64
		count, times time.Duration
	}{{0.25, 10 * ms, 10 * ms}, {0.6, 10 * ms, 100 * ms}, {0.9, 10 * ms, 100 * ms}, {0.95, 100 * ms, 100 * ms}} {
		got, ok := r.Quantile(c.q)
		if !ok || !about(got, c.count) {
			t.Errorf("%v by count: got %v, %v, want %v", c.q, got, ok, c.count)
		}
		if got, ok = r.TimeQuantile(c.q); !ok || !about(got, c.times) {
			t.Errorf("%v by time: got %v, %v, want %v", c.q, got, ok, c.times)
		}
	}
	if mean, ok := r.Mean(); !ok || !about(mean, (500*10+50*100)*ms/550) {
		t.Errorf("mean %v, %v", mean, ok)
	}
}

func about(got, want time.Duration) bool { return math.Abs(float64(got-want)) <= float64(want)/50+1 }

func TestTimeWithoutAnAnswerCountsAsLongerThanAny(t *testing.T) {
	var r RTTs
	r.add(10*ms, 8000*ms)
	r.lose(2000 * ms)
	if got := r.TimeLost(); got != 0.2 {
		t.Errorf("lost %v of the time, want 0.2", got)
	}
	if _, ok := r.TimeQuantile(0.79); !ok {
		t.Error("0.79 lies in the time with answers")
	}
	if got, ok := r.TimeQuantile(0.81); ok {
		t.Errorf("0.81 lies in the time without answers, and is %v", got)
	}
}

func TestNothingIsNoTime(t *testing.T) {
	var r RTTs
	for name, f := range map[string]func() (time.Duration, bool){
		"mean": r.Mean, "deviation": r.Deviation, "median": func() (time.Duration, bool) { return r.Quantile(0.5) },
		"median by time": func() (time.Duration, bool) { return r.TimeQuantile(0.5) },
	} {
		if got, ok := f(); ok {
			t.Errorf("%s of nothing is %v", name, got)
		}
	}
	r.add(7, 7)
	if got, ok := r.Quantile(0.5); !ok || got != 7 {
		t.Errorf("median of one is %v, %v", got, ok)
	}
	if _, ok := r.Deviation(); ok {
		t.Error("one has a deviation")
	}
	if _, ok := r.Quantile(math.NaN()); ok {
		t.Error("NaN is a quantile")
	}
}

func TestQuantilesAreTrueToAHundredth(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var r RTTs
	var all []time.Duration
	for range 20000 {
		d := time.Duration(math.Exp(rnd.Float64()*12) * 1000) // 1 us to 160 ms
		all = append(all, d)
		r.add(d, d)
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.1, 0.5, 0.9, 0.99, 1} {
		want := all[min(len(all)-1, int(q*float64(len(all))))]
		if got, ok := r.Quantile(q); !ok || math.Abs(float64(got-want)) > 0.02*float64(want) {
			t.Errorf("%v: got %v, want %v", q, got, want)
		}
	}
	if r.Min() != all[0] || r.Max() != all[len(all)-1] {
		t.Errorf("from %v to %v, want %v to %v", r.Min(), r.Max(), all[0], all[len(all)-1])
	}
}

func TestTheDeviationStandsALargeOffset(t *testing.T) {
	var r RTTs
	for _, d := range []time.Duration{1, 2, 3, 4} {
		r.add(time.Hour+d*ms, 1)
	}
	want := 1290994 * time.Nanosecond
	if got, ok := r.Deviation(); !ok || (got-want).Abs() > time.Microsecond {
		t.Errorf("got %v, %v, want %v", got, ok, want)
	}
}

func TestEveryTimeLiesInItsBucket(t *testing.T) {
	for v := time.Duration(1); v > 0 && v < 1<<44; v = v*9/8 + 1 {
		i := bucketOf(v)
		if from, to := bounds(i); float64(v) < from || float64(v) >= to {
			t.Fatalf("%v is in bucket %d, from %v to %v", v, i, from, to)
		}
	}
	for _, v := range []time.Duration{-5, 0, 1<<63 - 1} {
		if i := bucketOf(v); i < 0 || i >= buckets {
			t.Errorf("%v is in bucket %d of %d", v, i, buckets)
		}
	}
}

func TestCountingATransactionAllocatesNothing(t *testing.T) {
	x := &Transactions{o: TransactionOptions{Burst: 4}}
	now := time.Now()
	x.sent(now)
	if n := testing.AllocsPerRun(1000, func() { now = now.Add(ms); x.sent(now); x.came(now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
