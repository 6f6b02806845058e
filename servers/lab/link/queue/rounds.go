package queue

// rounds is deficit round robin over flows with a list of new flows that is served first (RFC 8290, section 4.2): a flow that has just
// begun to send goes ahead, until it has used up a quantum.
type rounds struct {
	quantum    int
	flows      []turn // of flow i in turn i+1
	fresh, old turns
	newFlows   uint64 // how many flows became new
}

type turn struct {
	deficit int
	next    int32 // index of a turn
	listed  bool
}

// turns is a list of turns.
type turns struct{ head, tail int32 }

func newRounds(flows, quantum int) rounds {
	return rounds{quantum: quantum, flows: make([]turn, flows+1)}
}

func (r *rounds) append(l *turns, i int32) {
	r.flows[i].next = none
	if l.head == none {
		l.head = i
	} else {
		r.flows[l.tail].next = i
	}
	l.tail = i
}

// remove takes the head off l.
func (r *rounds) remove(l *turns) int32 {
	i := l.head
	l.head = r.flows[i].next
	return i
}

// activate lets a flow that holds a packet take part.
func (r *rounds) activate(flow int) {
	t := &r.flows[flow+1]
	if !t.listed {
		t.listed, t.deficit = true, r.quantum
		r.append(&r.fresh, int32(flow+1))
		r.newFlows++
	}
}

// list is the list that is served.
func (r *rounds) list() *turns {
	if r.fresh.head != none {
		return &r.fresh
	}
	return &r.old
}

// pick returns the flow whose turn it is; false where none takes part.
func (r *rounds) pick() (flow int, ok bool) {
	for {
		l := r.list()
		if l.head == none {
			return 0, false
		}
		t := &r.flows[l.head]
		if t.deficit > 0 {
			return int(l.head - 1), true
		}
		t.deficit += r.quantum
		r.append(&r.old, r.remove(l))
	}
}

// charge lets the flow that pick returned pay for what it sent.
func (r *rounds) charge(flow, bytes int) { r.flows[flow+1].deficit -= bytes }

// empty is told that the flow that pick returned has nothing to send.
func (r *rounds) empty() {
	l := r.list()
	fresh := l == &r.fresh
	i := r.remove(l)
	if fresh && r.old.head != none {
		r.append(&r.old, i) // else a flow could stay new for ever by sending one packet at a time
	} else {
		r.flows[i].listed = false
	}
}

// sizes returns how many flows are in the two lists.
func (r *rounds) sizes() (fresh, old int) {
	for i := r.fresh.head; i != none; i = r.flows[i].next {
		fresh++
	}
	for i := r.old.head; i != none; i = r.flows[i].next {
		old++
	}
	return fresh, old
}
