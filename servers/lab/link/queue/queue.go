// Package queue is the queue disciplines that a link.Link can have: FIFOs, AQMs, fair queues, shapers and policers.
//
// Each is written from its own source, named in its comment: an RFC, a paper, or the behaviour that the manual pages of Linux's tc
// document. Constants that Linux or a paper has and the RFC has not are named as such. Parse reads any of them from text.
//
// Nothing here reads a clock or allocates per packet; memory grows with the most packets that were ever held.
package queue

import (
	"math/bits"
	"math/rand/v2"
	"time"

	"bufferbloat/servers/lab/link"
)

// Discipline is a queue discipline with its parameters. Its method New is a link.Discipline.
type Discipline interface {
	// New builds a queue. An error names the discipline, the parameter, its value and its range.
	New(link.Env) (link.Queue, error)
	// Check returns the error that New would return, as far as it does not depend on the link.
	Check() error
	// Capacity returns the most bytes that a valid discipline can hold, of packets of wire bytes each where its limit is one of packets.
	Capacity(wire int) int
	// String returns the discipline and all its parameters, defaults included, as Parse reads them.
	String() string
}

// ofPackets is the capacity of a queue of n packets.
func ofPackets(n, wire int) int { return min(n, MaxFIFO/max(wire, 1)) * wire }

// core is what all queues need: memory for packets, and an account of what is held.
type core struct {
	store
	env        link.Env
	packets    int
	held       int // bytes
	overlimits uint64
}

func newCore(e link.Env) core { return core{env: e, store: store{nodes: make([]node, 1)}} }

// Len implements link.Queue.
func (q *core) Len() int { return q.packets }

// Bytes implements link.Queue.
func (q *core) Bytes() int { return q.held }

func (q *core) push(c *chain, p link.Packet) {
	q.packets++
	q.held += p.Wire
	q.store.push(c, p)
}

// pop removes the packet at the head of c; false where there is none.
func (q *core) pop(c *chain) (link.Packet, bool) {
	if c.head == none {
		return link.Packet{}, false
	}
	return q.remove(c, c.head), true
}

// popTail removes the packet at the tail of c; there must be one.
func (q *core) popTail(c *chain) link.Packet { return q.remove(c, c.tail) }

func (q *core) remove(c *chain, i int32) link.Packet {
	p := q.store.remove(c, i)
	q.packets--
	q.held -= p.Wire
	return p
}

// refuse drops a packet that was never held.
func (q *core) refuse(p link.Packet, r link.Reason) { q.env.Drop(p, r) }

// signal tells p's sender of congestion: by a mark, and then it returns true and p is to be transmitted, or by giving it up.
func (q *core) signal(p link.Packet, ecn bool) (link.Packet, bool) {
	if !ecn || !p.ECT() {
		q.env.Drop(p, link.AQM)
		return link.Packet{}, false
	}
	return q.mark(p), true
}

// mark marks p, once.
func (q *core) mark(p link.Packet) link.Packet {
	if !p.Marked {
		p.Marked = true
		q.env.Mark()
	}
	return p
}

// none is the index of nothing: the first node of a store, and the first slot of a list, hold nothing.
const none = int32(0)

// store is the memory of many chains of packets, so that thousands of flows share the memory of the few that hold packets.
type store struct {
	nodes []node
	free  int32
}

type node struct {
	p          link.Packet
	next, prev int32
}

// chain is a doubly linked list of packets in a store. The zero value is empty.
type chain struct {
	head, tail int32
	n, bytes   int
}

func (s *store) push(c *chain, p link.Packet) {
	i := s.free
	if i == none {
		s.nodes = append(s.nodes, node{})
		i = int32(len(s.nodes) - 1)
	} else {
		s.free = s.nodes[i].next
	}
	s.nodes[i] = node{p, none, c.tail}
	if c.tail == none {
		c.head = i
	} else {
		s.nodes[c.tail].next = i
	}
	c.tail = i
	c.n++
	c.bytes += p.Wire
}

// remove takes node i out of c.
func (s *store) remove(c *chain, i int32) link.Packet {
	n := &s.nodes[i]
	p := n.p
	if n.prev == none {
		c.head = n.next
	} else {
		s.nodes[n.prev].next = n.next
	}
	if n.next == none {
		c.tail = n.prev
	} else {
		s.nodes[n.next].prev = n.prev
	}
	*n = node{next: s.free} // nothing may keep the packet's owner alive
	s.free = i
	c.n--
	c.bytes -= p.Wire
	return p
}

// spread maps a flow to one of n queues. Another seed maps the flows otherwise.
func spread(flow, seed uint64, n int) int {
	hi, _ := bits.Mul64(scramble(flow^scramble(seed)), uint64(n))
	return int(hi)
}

// scramble is a bijection in which every bit of x bears on every bit of the result (the finalizer of murmur3).
func scramble(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// newRandom returns a source for one use of a link's seed.
func newRandom(seed, use uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, use)) }

// nanos is a counter of time.
func nanos(name string, d time.Duration) link.Counter {
	return link.Counter{Name: name, Value: float64(d)}
}

func number[T int | uint64 | float64](name string, n T) link.Counter {
	return link.Counter{Name: name, Value: float64(n)}
}
