package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"bufferbloat/servers/lab/link"
)

// RED is a FIFO under random early detection (Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance", 1993): a
// packet is dropped with a probability that grows with the average of the queue's length, from 0 at Min to Probability at Max, and such
// that the drops lie evenly apart. Above Max, "gentle" RED (Floyd, 2000) goes on to 1 at twice Max, the default here; without it every packet
// is dropped.
//
// Weight 0.002 is the paper's; the probability of 2%, the average packet of 1000 bytes and marks instead of drops as an option are
// tc's. Min, Max and Limit, which tc wants to be told, are here 30, 90 and 400 kB unless set. Above Max all is dropped, also what could be
// marked.
type RED struct {
	Limit       int     // bytes; 0 means 400000
	Min, Max    int     // bytes of the average queue; 0 means 30000 and three times Min
	Average     int     // bytes of a packet, for the time that an idle link would have taken for it; 0 means 1000
	Probability float64 // at Max; 0 means 0.02
	Weight      float64 // of the present length in the average; 0 means 0.002
	NotGentle   bool
	ECN         bool // mark what can be marked instead of dropping it
}

func (o *RED) describe() (string, []parameter) {
	return "red", []parameter{size("limit", &o.Limit, 400000, 1, MaxFIFO), size("min", &o.Min, 30000, 1, MaxFIFO/4),
		{name: "max", read: size("max", &o.Max, 90000, 1, MaxFIFO/2).read, check: func() error {
			if err := size("max", &o.Max, 3*o.Min, 1, MaxFIFO).check(); err != nil {
				return err
			}
			if o.Max <= o.Min || o.Max > MaxFIFO/2 {
				return fmt.Errorf("max %d: want more than min (%d), up to %d", o.Max, o.Min, MaxFIFO/2)
			}
			return nil
		}, write: size("max", &o.Max, 0, 1, MaxFIFO).write},
		size("avpkt", &o.Average, 1000, 1, 1<<16), ratio("probability", &o.Probability, 0.02, 1e-6, 1),
		ratio("weight", &o.Weight, 0.002, 1e-6, 1), flag("nogentle", "gentle", &o.NotGentle), flag("ecn", "noecn", &o.ECN)}
}

// Check implements Discipline.
func (o RED) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o RED) String() string { return write(o) }

// Capacity implements Discipline.
func (o RED) Capacity(wire int) int { o, _ = complete(o); return o.Limit }

// New implements Discipline.
func (o RED) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	q := &redQueue{core: newCore(e), o: o, random: newRandom(e.Seed, 13)}
	if e.Rate != 0 {
		q.packet = e.Rate.Duration(o.Average)
	}
	return q, nil
}

type redQueue struct {
	core
	o       RED
	line    chain
	random  *rand.Rand
	packet  time.Duration // that an average packet takes; 0 where the rate is unlimited
	average float64
	count   int           // packets since the last drop
	idle    time.Duration // since when the queue is empty
	early   uint64        // drops and marks between Min and Max
	forced  uint64        // drops above Max
	over    uint64        // packets that met a full queue
}

// observe brings the average up to date for a packet that arrives now.
func (q *redQueue) observe(now time.Duration) {
	if q.line.n > 0 || q.packet == 0 {
		q.average += q.o.Weight * (float64(q.line.bytes) - q.average)
		return
	}
	// As if so many small packets had found an empty queue.
	q.average *= math.Pow(1-q.o.Weight, float64(now-q.idle)/float64(q.packet))
}

// decide returns whether the packet is to be dropped, and whether a mark would do.
func (q *redQueue) decide() (drop, mark bool) {
	least, most := float64(q.o.Min), float64(q.o.Max)
	var p float64
	switch a := q.average; {
	case a < least:
		q.count = 0
		return false, false
	case a < most:
		p = q.o.Probability * (a - least) / (most - least)
	case !q.o.NotGentle && a < 2*most:
		p = q.o.Probability + (1-q.o.Probability)*(a-most)/most
	default:
		q.count = 0
		return true, false
	}
	// The gap between drops is uniform from 1 to 1/p (section 7 of the paper).
	if rest := 1 - float64(q.count)*p; rest > 0 && q.random.Float64() >= p/rest {
		q.count++
		return false, false
	}
	q.count = 0
	return true, q.average < most
}

func (q *redQueue) Enqueue(p link.Packet, now time.Duration) {
	q.observe(now)
	if q.Bytes()+p.Wire > q.o.Limit {
		q.over++
		q.refuse(p, link.Tail)
		return
	}
	if drop, mark := q.decide(); drop {
		q.overlimits++
		if mark {
			q.early++
		} else {
			q.forced++
		}
		var ok bool
		if p, ok = q.signal(p, mark && q.o.ECN); !ok {
			return
		}
	}
	q.push(&q.line, p)
}

func (q *redQueue) Dequeue(now time.Duration) (link.Packet, bool) {
	p, ok := q.pop(&q.line)
	if ok && q.line.n == 0 {
		q.idle = now
	}
	return p, ok
}

// Report implements link.Reporter.
func (q *redQueue) Report() link.Report {
	return link.Report{Kind: "red", Overlimits: q.overlimits, Extra: []link.Counter{number("early", q.early),
		number("pdrop", q.over), number("other", q.forced), number("average_bytes", q.average)}}
}
