package link

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Effects are what the medium does to packets after their transmission, at random. Shares are of packets, from 0 to 1. What is random is
// a function of Options.Seed alone, and of one effect alone: to change one leaves what the others do as it was.
type Effects struct {
	Loss      Loss
	Duplicate float64 // of the packets arrive twice
	Corrupt   float64 // of the packets arrive with Packet.Corrupted set
	Reorder   Reorder
	Jitter    Jitter
}

// Loss is a two-state Markov chain that moves once per packet (Gilbert-Elliott). In the good state a packet is lost with probability Good,
// in the bad state with Bad. With GoodToBad 0 the chain stays in the good state, and the loss is independent, with probability Good.
type Loss struct {
	Good, Bad            float64
	GoodToBad, BadToGood float64
}

// Mean returns the share of packets that are lost in the long run.
func (l Loss) Mean() float64 {
	if l.GoodToBad == 0 {
		return l.Good
	}
	bad := l.GoodToBad / (l.GoodToBad + l.BadToGood)
	return (1-bad)*l.Good + bad*l.Bad
}

// Reorder holds packets back until others have overtaken them. A packet that is overtaken is one reordered packet in the sense of RFC
// 4737, with Distance the reordering extent, and those that overtake it are none, so that Share is what a receiver that counts by the RFC
// sees, as long as enough packets follow.
type Reorder struct {
	Share    float64       // at most 0.5
	Distance int           // packets that overtake it, at most 100; 0 means 1
	Wait     time.Duration // after which it is let go if fewer came; 0 means 50 ms
}

// Jitter is a delay of each packet beyond Options.Delay. Without MayReorder a packet waits for the one before it; with packets closer
// than Spread the delay then becomes nearly constant, near its maximum.
type Jitter struct {
	Spread       time.Duration // 0 means none
	Distribution Distribution
	MayReorder   bool
}

// Distribution is that of a Jitter.
type Distribution uint8

// The distributions.
const (
	Uniform     Distribution = iota // from 0 to Spread
	Normal                          // of mean Spread/2 and standard deviation Spread/6, cut to 0 to Spread
	Exponential                     // of mean Spread, cut at ten times that
)

// MaxDistance bounds how far a packet is overtaken.
const (
	MaxDistance   = 100
	defaultWait   = 50 * time.Millisecond
	maxReordering = 0.5
)

// check fills in the defaults.
func (e Effects) check() (Effects, error) {
	for _, s := range []struct {
		name  string
		value float64
		most  float64
	}{{"loss", e.Loss.Good, 1}, {"loss in bursts", e.Loss.Bad, 1}, {"chance that a burst of loss begins", e.Loss.GoodToBad, 1},
		{"chance that a burst of loss ends", e.Loss.BadToGood, 1}, {"duplication", e.Duplicate, 1}, {"corruption", e.Corrupt, 1},
		{"reordering", e.Reorder.Share, maxReordering}} {
		if !(s.value >= 0 && s.value <= s.most) {
			return e, fmt.Errorf("link %s %v: want a share from 0 to %v", s.name, s.value, s.most)
		}
	}
	if e.Reorder.Distance == 0 {
		e.Reorder.Distance = 1
	}
	if e.Reorder.Wait == 0 {
		e.Reorder.Wait = defaultWait
	}
	switch {
	case e.Loss.GoodToBad > 0 && e.Loss.BadToGood == 0:
		return e, fmt.Errorf("link loss in bursts that never end: want a chance above 0 that one ends")
	case e.Reorder.Distance < 1 || e.Reorder.Distance > MaxDistance:
		return e, fmt.Errorf("link reordering by %d packets: want 1 to %d", e.Reorder.Distance, MaxDistance)
	case e.Reorder.Wait < 0 || e.Reorder.Wait > MaxDelay:
		return e, fmt.Errorf("link reordering that waits %v: want up to %v", e.Reorder.Wait, MaxDelay)
	case e.Jitter.Spread < 0 || e.Jitter.Spread > MaxDelay:
		return e, fmt.Errorf("link jitter of %v: want 0 to %v", e.Jitter.Spread, MaxDelay)
	case e.Jitter.Distribution > Exponential:
		return e, fmt.Errorf("link jitter distribution %d: want uniform, normal or exponential", e.Jitter.Distribution)
	}
	return e, nil
}

// dice are the random sources of a link, one per effect.
type dice struct {
	loss, duplicate, corrupt, reorder, jitter *rand.Rand
	bad                                       bool // the state of Loss
}

func newDice(seed uint64) dice {
	source := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
	return dice{loss: source(1), duplicate: source(2), corrupt: source(3), reorder: source(4), jitter: source(5)}
}

// happens draws from r only where the answer is open.
func happens(r *rand.Rand, p float64) bool { return p > 0 && r.Float64() < p }

// lost moves the chain, and says whether the packet is lost.
func (d *dice) lost(l Loss) bool {
	p := l.Good
	if l.GoodToBad > 0 {
		if d.bad {
			d.bad = !happens(d.loss, l.BadToGood)
		} else {
			d.bad = happens(d.loss, l.GoodToBad)
		}
		if d.bad {
			p = l.Bad
		}
	}
	return happens(d.loss, p)
}

// delay returns the extra delay of one packet.
func (d *dice) delay(j Jitter) time.Duration {
	if j.Spread == 0 {
		return 0
	}
	spread := float64(j.Spread)
	switch j.Distribution {
	case Normal:
		return time.Duration(math.Round(min(max(spread/2+d.jitter.NormFloat64()*spread/6, 0), spread)))
	case Exponential:
		return time.Duration(math.Round(min(d.jitter.ExpFloat64(), 10) * spread))
	}
	return time.Duration(math.Round(d.jitter.Float64() * spread))
}

// held is a packet that waits to be overtaken.
type held struct {
	p    Packet
	left int           // packets that have yet to overtake it
	at   time.Duration // when it would have arrived
	by   time.Duration // when it arrives at the latest
}

// depart puts a packet whose transmission ended at now on its way.
func (l *Link) depart(p Packet, now time.Duration) {
	e := &l.o.Effects
	if l.dice.lost(l.state.lossOver(e.Loss)) {
		l.drop(p, Lost)
		return
	}
	if happens(l.dice.corrupt, e.Corrupt) {
		p.Corrupted = true
		l.stats.Corrupted++
	}
	if happens(l.dice.duplicate, e.Duplicate) {
		twin := p
		twin.Handle = l.o.Clone(p.Handle)
		l.stats.Duplicated.add(p.Wire)
		l.enter(twin, now)
	}
	l.enter(p, now)
}

// enter puts a packet into the delay line, or holds it back.
func (l *Link) enter(p Packet, now time.Duration) {
	e := &l.o.Effects
	at := now + l.state.delay + l.dice.delay(e.Jitter)
	if !e.Jitter.MayReorder {
		l.latest = max(l.latest, at)
		at = l.latest
	}
	if happens(l.dice.reorder, e.Reorder.Share) {
		l.held = append(l.held, held{p, e.Reorder.Distance, at, at + e.Reorder.Wait})
		l.stats.Held++
		return
	}
	l.line.push(arrival{p, at})
	if len(l.held) == 0 {
		return
	}
	for i := range l.held {
		h := &l.held[i]
		if h.left--; h.left == 0 {
			h.by = max(at, h.at) // behind the packet that has just entered
		}
	}
	l.release(-1)
}

// release moves what has been overtaken, and what need not wait beyond until, into the delay line.
func (l *Link) release(until time.Duration) {
	kept := l.held[:0]
	for _, h := range l.held {
		if h.left == 0 || h.by <= until {
			l.line.push(arrival{h.p, h.by})
		} else {
			kept = append(kept, h)
		}
	}
	clear(l.held[len(kept):]) // the rest must not keep the packets' owners alive
	l.held = kept
}

// releases returns when the next held packet is let go for want of others; false where none is held.
func (l *Link) releases() (time.Duration, bool) {
	if len(l.held) == 0 {
		return 0, false
	}
	by := l.held[0].by
	for _, h := range l.held[1:] {
		by = min(by, h.by)
	}
	return by, true
}
