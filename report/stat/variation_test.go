package stat

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
)

func TestRTPJitterBeginsAtTheFirstPacketAndIgnoresAnOffset(t *testing.T) {
	want := []time.Duration{0, 125_000, 242_188, 352_051, 455_048}
	for _, offset := range []time.Duration{0, time.Hour, -time.Hour, 30 * 365 * 24 * time.Hour} {
		var j RTPJitter
		for i, transit := range msecs(1020, 1022, 1020, 1022, 1020) {
			if got := j.Add(transit + offset); got != want[i] {
				t.Errorf("offset %v, packet %d: %v, want %v", offset, i, got, want[i])
			}
		}
	}
	var j RTPJitter
	if j.Value() != 0 {
		t.Error("a variation of nothing")
	}
	if n := testing.AllocsPerRun(100, func() { j.Add(msec) }); n != 0 {
		t.Errorf("%v allocations for each packet", n)
	}
}

func delays(x ...float64) []Delay { // below 0: lost
	out := make([]Delay, len(x))
	for i, d := range msecs(x...) {
		if d >= 0 {
			out[i] = Delay{d, true}
		}
	}
	return out
}

func TestIPDV(t *testing.T) {
	for _, tt := range []struct {
		name string
		x    []Delay
		want []time.Duration
	}{
		{"nothing", nil, nil},
		{"one probe", delays(5), nil},
		{"signed differences of neighbours", delays(5, 7, 4), msecs(2, -3)},
		{"a lost probe breaks both its pairs", delays(5, -1, 4, 6), msecs(2)},
		{"losses at the ends", delays(-1, 4, 6, -1), msecs(2)},
		{"ties", delays(4, 4, 4), msecs(0, 0)},
		{"all lost", delays(-1, -1), nil},
	} {
		if got := IPDV(tt.x); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if got := PDV(msecs(42, 40, 45)); !slices.Equal(got, msecs(2, 0, 5)) {
		t.Errorf("PDV %v, want 2, 0, 5 ms", got)
	}
	if PDV(nil) != nil {
		t.Error("PDV of nothing")
	}
}

func TestRecovery(t *testing.T) {
	probes := func(from float64, x ...float64) []Timed {
		var out []Timed
		for i, d := range delays(x...) {
			out = append(out, Timed{time.Duration(from*1e6) + time.Duration(i)*100*msec, d})
		}
		return out
	}
	const end, ceiling = 1000 * msec, 45 * msec
	for _, tt := range []struct {
		name string
		x    []Timed
		want time.Duration
		ok   bool
	}{
		{"nothing was sent", nil, 0, false},
		{"back after the queue has drained", probes(900, 300, 300, 200, 100, 40, 41, 42), 300 * msec, true},
		{"back at once", probes(1000, 40, 40, 40), 0, true},
		{"a relapse starts it anew", probes(1000, 40, 40, 90, 40, 40, 40), 300 * msec, true},
		{"a loss is no recovery", probes(1000, 40, -1, 40, 40, 40), 200 * msec, true},
		{"never back", probes(1000, 300, 300, 300), 0, false},
		{"back too late to say that it stays", probes(1000, 300, 300, 40, 40), 0, false},
		{"samples of the load do not count", probes(0, 40, 40, 40), 0, false},
		{"the ceiling itself is within", probes(1000, 45, 45, 45), 0, true},
	} {
		if got, ok := Recovery(tt.x, end, ceiling, 200*msec); got != tt.want || ok != tt.ok {
			t.Errorf("%s: %v, %v, want %v, %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

// The wanted values were computed from the formulas by another program.
func TestVoice(t *testing.T) {
	for _, tt := range []struct {
		oneWay float64 // ms
		loss   float64
		r, mos float64
	}{
		{0, 0, 93.2, 4.409285824}, {20, 0, 92.72, 4.399802366464001}, {150, 0, 89.6, 4.329077248}, {177.3, 0, 88.9448, 4.312298470144416},
		{300, 0, 72.503, 3.712088177627311}, {20, 0.01, 89.08015325670497, 4.315817691997694}, {100, 0.05, 75.01926910299002, 3.822700993799875},
		{400, 0.2, 16.974396895787145, 1.1696491410389709}, {0, 1, 17.2607513988809, 1.1768624064914488}, {5000, 1, 0, 1},
	} {
		r, mos, err := Voice(msecs(tt.oneWay)[0], tt.loss)
		if err != nil || math.Abs(r-tt.r) > 1e-9 || math.Abs(mos-tt.mos) > 1e-9 {
			t.Errorf("%v ms, loss %v: R %v, MOS %v, %v, want %v, %v", tt.oneWay, tt.loss, r, mos, err, tt.r, tt.mos)
		}
	}
	for _, loss := range []float64{-0.1, 1.1, math.NaN()} {
		if _, _, err := Voice(0, loss); !errors.Is(err, ErrVoice) {
			t.Errorf("loss %v: %v", loss, err)
		}
	}
	if _, _, err := Voice(-1, 0); !errors.Is(err, ErrVoice) {
		t.Errorf("a negative delay: %v", err)
	}
	last := 5.0
	for d := time.Duration(0); d < 2*time.Second; d += 5 * msec { // worse delay, worse rating, and never below 1
		_, mos, _ := Voice(d, 0.02)
		if mos > last+1e-12 || mos < 1 {
			t.Fatalf("at %v the MOS is %v, before it %v", d, mos, last)
		}
		last = mos
	}
}
