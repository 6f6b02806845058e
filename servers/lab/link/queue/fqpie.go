package queue

import (
	"math/rand/v2"
	"time"

	"bufferbloat/servers/lab/link"
)

// FQPIE serves flows as FQCoDel does, by deficit round robin with new flows first (RFC 8290, 4.2), and has a controller of PIE (RFC
// 8033) for each (Linux's fq_pie, after FreeBSD's). What is not of the two RFCs is Linux's: the limits, a full queue that refuses what
// arrives, and no marks unless asked for.
type FQPIE struct {
	Flows    int           // queues that the flows are hashed to; 0 means 1024
	Quantum  int           // bytes that a flow may send per round; 0 means 1514
	Limit    int           // packets in all; 0 means 10240
	Memory   int           // bytes of Packet.Wire in all; 0 means 32 MiB
	Target   time.Duration // delay to hold; 0 means 15 ms
	Update   time.Duration // of the probabilities; 0 means 15 ms
	Burst    time.Duration // for so long after a flow was calm nothing of it is dropped; 0 means 150 ms
	Alpha    float64       // per second of delay above target; 0 means 0.125
	Beta     float64       // per second of growth of the delay; 0 means 1.25
	MarkUpTo float64       // probability above which also what could be marked is dropped; 0 means 0.1
	ECN      bool          // mark what can be marked instead of dropping it
	ByteMode bool          // drop small packets less often, in proportion to their size
}

func (o *FQPIE) describe() (string, []parameter) {
	p := append([]parameter{packets("limit", &o.Limit, 10240, 1, maxPackets)}, flowParameters(&o.Flows, &o.Quantum)...)
	p = append(p, size("memory_limit", &o.Memory, defaultMemory, 1, maxMemory), flag("ecn", "noecn", &o.ECN),
		ratio("ecn_prob", &o.MarkUpTo, pieMarkUpTo, 1e-6, 1))
	return "fq_pie", append(p, pieParameters(&o.Target, &o.Update, &o.Burst, &o.Alpha, &o.Beta, &o.ByteMode)...)
}

// Check implements Discipline.
func (o FQPIE) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o FQPIE) String() string { return write(o) }

// Capacity implements Discipline.
func (o FQPIE) Capacity(wire int) int { o, _ = complete(o); return o.Memory }

// New implements Discipline.
func (o FQPIE) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	q := &fqPIE{core: newCore(e), o: o, flows: make([]pieFlow, o.Flows), rounds: newRounds(o.Flows, o.Quantum), random: newRandom(e.Seed, 12)}
	p := pieOptions{o.Target, o.Update, o.Burst, o.Alpha, o.Beta, o.MarkUpTo, o.ByteMode}
	for i := range q.flows {
		q.flows[i].pie = newPIE(p)
	}
	return q, nil
}

type fqPIE struct {
	core
	o      FQPIE
	flows  []pieFlow
	rounds rounds
	random *rand.Rand
	over   uint64
	memory uint64
	early  uint64
}

type pieFlow struct {
	line chain
	pie  pie
}

func (q *fqPIE) Enqueue(p link.Packet, now time.Duration) {
	i := spread(p.Flow, q.env.Seed, len(q.flows))
	f := &q.flows[i]
	f.pie.advance(now, f.line.n == 0)
	switch memory := q.Bytes()+p.Wire > q.o.Memory; {
	case memory || q.Len() >= q.o.Limit:
		if memory {
			q.memory++
		} else {
			q.over++
		}
		q.refuse(p, link.Tail)
		return
	case f.pie.congested(p.Wire, f.line.bytes, q.random):
		q.early++
		var ok bool
		if p, ok = q.signal(p, q.o.ECN && f.pie.prob <= f.pie.markUpTo); !ok {
			return
		}
	}
	q.push(&f.line, p)
	q.rounds.activate(i)
}

func (q *fqPIE) Dequeue(now time.Duration) (link.Packet, bool) {
	for {
		i, ok := q.rounds.pick()
		if !ok {
			return link.Packet{}, false
		}
		f := &q.flows[i]
		f.pie.advance(now, f.line.n == 0)
		p, ok := q.pop(&f.line)
		if !ok {
			q.rounds.empty()
			continue
		}
		f.pie.departed(now-p.Entered, f.line.n == 0)
		q.rounds.charge(i, p.Wire)
		return p, true
	}
}

// Report implements link.Reporter.
func (q *fqPIE) Report() link.Report {
	fresh, old := q.rounds.sizes()
	return link.Report{Kind: "fq_pie", Extra: []link.Counter{number("dropped_early", q.early), number("overlimit", q.over),
		number("overmemory", q.memory), number("new_flow_count", q.rounds.newFlows), number("new_flows_len", fresh),
		number("old_flows_len", old), number("memory_used", q.Bytes())}}
}
