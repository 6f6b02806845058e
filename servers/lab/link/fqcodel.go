package link

import (
	"fmt"
	"time"
)

// FQCoDelOptions are the parameters of FQ-CoDel. A zero field takes the default of RFC 8290 and Linux.
type FQCoDelOptions struct {
	Flows    int           // queues that the flows are hashed to; 0 means 1024
	Quantum  int           // bytes that a flow may send per round; 0 means 1514
	Target   time.Duration // sojourn time to hold; 0 means 5 ms
	Interval time.Duration // at least a round-trip time of the flows; 0 means 100 ms
	Limit    int           // packets in all; 0 means 10240
	Memory   int           // bytes of Packet.Wire in all; 0 means 32 MiB
	NoECN    bool          // drop also what could be marked
	Seed     uint64        // of the hash
}

// The defaults of FQCoDelOptions.
const (
	fqFlows, fqQuantum, fqLimit, FQCoDelMemory = 1024, 1514, 10240, 32 << 20
	fqTarget, fqInterval                       = 5 * time.Millisecond, 100 * time.Millisecond
	fqBatch                                    = 64 // packets dropped at most at one overflow
)

// FQCoDel is the FlowQueue-CoDel scheduler and AQM of RFC 8290: flows are served in turn, those that send less than their share first,
// and CoDel controls each flow's queue. When the limit is passed, the head of the longest flow is dropped, up to half its bytes or 64
// packets at once, as Linux does.
//
// CoDel's rule that a queue of one packet is left alone looks at the flow's own backlog, as RFC 8290 has it; Linux looks at the
// backlog of all flows together, and so drops also from flows that hold a single packet.
func FQCoDel(o FQCoDelOptions) Discipline {
	return func(e Env) (Queue, error) {
		o, err := o.withDefaults()
		if err != nil {
			return nil, err
		}
		q := &fqCoDel{o: o, env: e, flows: make([]fqFlow, o.Flows), free: none}
		for i := range q.flows {
			q.flows[i] = fqFlow{q: q, head: none, tail: none, next: none,
				codel: codel{target: o.Target, interval: o.Interval, maxPacket: o.Quantum}}
		}
		q.fresh, q.old = fqList{none, none}, fqList{none, none}
		return q, nil
	}
}

func (o FQCoDelOptions) withDefaults() (FQCoDelOptions, error) {
	for _, f := range []struct {
		name      string
		value     *int
		otherwise int
		most      int
	}{{"flows", &o.Flows, fqFlows, 1 << 16}, {"quantum", &o.Quantum, fqQuantum, 1 << 20}, {"limit", &o.Limit, fqLimit, 1 << 20},
		{"memory limit", &o.Memory, FQCoDelMemory, 1 << 30}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 1 || *f.value > f.most {
			return o, fmt.Errorf("fq_codel %s %d: want 1 to %d, or 0 for %d", f.name, *f.value, f.most, f.otherwise)
		}
	}
	for _, f := range []struct {
		name      string
		value     *time.Duration
		otherwise time.Duration
	}{{"target", &o.Target, fqTarget}, {"interval", &o.Interval, fqInterval}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < time.Microsecond || *f.value > time.Minute {
			return o, fmt.Errorf("fq_codel %s %v: want %v to %v, or 0 for %v", f.name, *f.value, time.Microsecond, time.Minute, f.otherwise)
		}
	}
	return o, nil
}

// none ends a list of indices.
const none = int32(-1)

type fqCoDel struct {
	o     FQCoDelOptions
	env   Env
	flows []fqFlow
	fresh fqList // flows that have just begun to send
	old   fqList // flows that have used up a quantum
	len   int
	bytes int

	// Packets live in one slab and are chained by index, so that 1024 flows share the memory of the few that hold packets.
	slab []fqNode
	free int32
}

type fqNode struct {
	p    Packet
	next int32
}

// fqFlow is one flow's queue.
type fqFlow struct {
	q          *fqCoDel
	head, tail int32 // nodes
	bytes      int
	deficit    int
	next       int32 // flow, in the list that it stands in
	listed     bool
	codel      codel
}

// fqList is a list of flows.
type fqList struct{ head, tail int32 }

func (q *fqCoDel) append(l *fqList, i int32) {
	q.flows[i].next = none
	if l.head == none {
		l.head = i
	} else {
		q.flows[l.tail].next = i
	}
	l.tail = i
}

// remove takes the head off l.
func (q *fqCoDel) remove(l *fqList) int32 {
	i := l.head
	l.head = q.flows[i].next
	return i
}

func (q *fqCoDel) Enqueue(p Packet, _ time.Duration) {
	i := int32(mix(p.Flow^q.o.Seed) % uint64(len(q.flows)))
	f := &q.flows[i]
	f.push(p)
	if !f.listed {
		f.listed, f.deficit = true, q.o.Quantum
		q.append(&q.fresh, i)
	}
	for q.len > q.o.Limit || q.bytes > q.o.Memory {
		q.relieve()
	}
}

// relieve drops from the head of the flow with the most bytes.
func (q *fqCoDel) relieve() {
	longest := &q.flows[0]
	for i := range q.flows {
		if q.flows[i].bytes > longest.bytes {
			longest = &q.flows[i]
		}
	}
	for enough, n := longest.bytes/2, 0; n < fqBatch && (n == 0 || longest.bytes > enough); n++ {
		p, ok := longest.pop()
		if !ok {
			return
		}
		q.env.Drop(p, Overflow)
	}
}

func (q *fqCoDel) Dequeue(now time.Duration) (Packet, bool) {
	for {
		list := &q.fresh
		if list.head == none {
			list = &q.old
		}
		if list.head == none {
			return Packet{}, false
		}
		f := &q.flows[list.head]
		if f.deficit <= 0 {
			f.deficit += q.o.Quantum
			q.append(&q.old, q.remove(list))
			continue
		}
		p, ok := f.codel.dequeue(f, now)
		if ok {
			f.deficit -= p.Wire
			return p, true
		}
		i := q.remove(list)
		if list == &q.fresh && q.old.head != none {
			q.append(&q.old, i) // else a flow could stay new for ever by sending one packet at a time (RFC 8290, 4.2)
		} else {
			f.listed = false
		}
	}
}

func (q *fqCoDel) Len() int   { return q.len }
func (q *fqCoDel) Bytes() int { return q.bytes }

func (f *fqFlow) push(p Packet) {
	q := f.q
	i := q.free
	if i == none {
		q.slab = append(q.slab, fqNode{})
		i = int32(len(q.slab) - 1)
	} else {
		q.free = q.slab[i].next
	}
	q.slab[i] = fqNode{p, none}
	if f.head == none {
		f.head = i
	} else {
		q.slab[f.tail].next = i
	}
	f.tail = i
	f.bytes += p.Wire
	q.bytes += p.Wire
	q.len++
}

func (f *fqFlow) pop() (Packet, bool) {
	if f.head == none {
		return Packet{}, false
	}
	q, i := f.q, f.head
	n := &q.slab[i]
	p := n.p
	f.head = n.next
	n.p, n.next = Packet{}, q.free
	q.free = i
	f.bytes -= p.Wire
	q.bytes -= p.Wire
	q.len--
	return p, true
}

func (f *fqFlow) left() int { return f.bytes }

func (f *fqFlow) signal(p Packet) (Packet, bool) {
	if f.q.o.NoECN || !p.ECT() {
		f.q.env.Drop(p, AQM)
		return Packet{}, false
	}
	p.Marked = true
	f.q.env.Mark()
	return p, true
}
