package queue

import (
	"time"

	"bufferbloat/servers/lab/link"
)

// FQCoDel is the FlowQueue-CoDel scheduler and AQM of RFC 8290: flows are served in turn, those that send less than their share first,
// and CoDel controls each flow's queue. When the limit is passed, the head of the longest flow is dropped, up to half its bytes or 64
// packets at once, as Linux does; the limits, and the threshold for CE, are Linux's too.
//
// CoDel's rule that a queue of one packet is left alone looks at the flow's own backlog, as RFC 8290 has it; Linux looks at the
// backlog of all flows together, and so drops also from flows that hold a single packet.
type FQCoDel struct {
	Flows       int           // queues that the flows are hashed to; 0 means 1024
	Quantum     int           // bytes that a flow may send per round; 0 means 1514
	Target      time.Duration // sojourn time to hold; 0 means 5 ms
	Interval    time.Duration // at least a round-trip time of the flows; 0 means 100 ms
	CEThreshold time.Duration // mark whatever waited longer, besides; 0 means never
	Limit       int           // packets in all; 0 means 10240
	Memory      int           // bytes of Packet.Wire in all; 0 means 32 MiB
	DropBatch   int           // packets dropped at most at one overflow; 0 means 64
	NoECN       bool          // drop also what could be marked
}

// What the disciplines with hashed flows have in common.
const (
	defaultFlows, maxFlows    = 1024, 1 << 16
	defaultMemory, maxMemory  = 32 << 20, 1 << 30
	defaultQuantum, maxQuanta = frame, 1 << 20
)

func flowParameters(flows, quantum *int) []parameter {
	return []parameter{count("flows", flows, defaultFlows, 1, maxFlows), size("quantum", quantum, defaultQuantum, 1, maxQuanta)}
}

func (o *FQCoDel) describe() (string, []parameter) {
	p := append([]parameter{packets("limit", &o.Limit, 10240, 1, maxPackets)}, flowParameters(&o.Flows, &o.Quantum)...)
	p = append(p, codelParameters(&o.Target, &o.Interval, &o.CEThreshold)...)
	return "fq_codel", append(p, size("memory_limit", &o.Memory, defaultMemory, 1, maxMemory),
		count("drop_batch", &o.DropBatch, 64, 1, 1<<16), flag("noecn", "ecn", &o.NoECN))
}

// Check implements Discipline.
func (o FQCoDel) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o FQCoDel) String() string { return write(o) }

// Capacity implements Discipline.
func (o FQCoDel) Capacity(wire int) int { o, _ = complete(o); return o.Memory }

// New implements Discipline.
func (o FQCoDel) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	q := &fqCoDel{core: newCore(e), o: o, flows: make([]codelFlow, o.Flows), rounds: newRounds(o.Flows, o.Quantum)}
	for i := range q.flows {
		q.flows[i] = codelFlow{q: q, codel: codel{target: o.Target, interval: o.Interval, maxPacket: o.Quantum}}
	}
	return q, nil
}

type fqCoDel struct {
	core
	o      FQCoDel
	flows  []codelFlow
	rounds rounds
	over   uint64 // drops from the longest flow
	memory uint64 // of these, because of the bytes
	ce     uint64 // marks above the threshold
}

// codelFlow is one flow's queue.
type codelFlow struct {
	q     *fqCoDel
	line  chain
	codel codel
}

func (q *fqCoDel) Enqueue(p link.Packet, _ time.Duration) {
	i := spread(p.Flow, q.env.Seed, len(q.flows))
	q.push(&q.flows[i].line, p)
	q.rounds.activate(i)
	for q.Len() > q.o.Limit || q.Bytes() > q.o.Memory {
		q.relieve()
	}
}

// relieve drops from the head of the flow with the most bytes.
func (q *fqCoDel) relieve() {
	longest := &q.flows[0].line
	for i := range q.flows {
		if q.flows[i].line.bytes > longest.bytes {
			longest = &q.flows[i].line
		}
	}
	memory := q.Bytes() > q.o.Memory
	for enough, n := longest.bytes/2, 0; n < q.o.DropBatch && (n == 0 || longest.bytes > enough); n++ {
		p, ok := q.pop(longest)
		if !ok {
			return
		}
		q.over++
		if memory {
			q.memory++
		}
		q.env.Drop(p, link.Overflow)
	}
}

func (q *fqCoDel) Dequeue(now time.Duration) (link.Packet, bool) {
	for {
		i, ok := q.rounds.pick()
		if !ok {
			return link.Packet{}, false
		}
		f := &q.flows[i]
		p, ok := f.codel.dequeue(f, now)
		if !ok {
			q.rounds.empty()
			continue
		}
		q.rounds.charge(i, p.Wire)
		if exceeds(p, q.o.CEThreshold, now) {
			q.ce++
			p = q.mark(p)
		}
		return p, true
	}
}

func (f *codelFlow) take() (link.Packet, bool)                   { return f.q.pop(&f.line) }
func (f *codelFlow) left() int                                   { return f.line.bytes }
func (f *codelFlow) congested(p link.Packet) (link.Packet, bool) { return f.q.signal(p, !f.q.o.NoECN) }

// Report implements link.Reporter.
func (q *fqCoDel) Report() link.Report {
	fresh, old := q.rounds.sizes()
	return link.Report{Kind: "fq_codel", Extra: []link.Counter{number("drop_overlimit", q.over), number("drop_overmemory", q.memory),
		number("new_flow_count", q.rounds.newFlows), number("new_flows_len", fresh), number("old_flows_len", old),
		number("ce_mark", q.ce), number("memory_used", q.Bytes())}}
}
