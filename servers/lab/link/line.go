package link

import "time"

// arrival is a packet in the delay line.
type arrival struct {
	p  Packet
	at time.Duration
}

// line is a delay line: packets leave it as their times say, and those of one time as they entered.
type line struct {
	reorders bool          // packets may enter with an earlier time than one before them
	queue    ring[arrival] // where they do not
	heap     []entry       // else
	entered  uint64
}

type entry struct {
	arrival
	sequence uint64
}

func (e entry) before(o entry) bool { return e.at < o.at || e.at == o.at && e.sequence < o.sequence }

func (l *line) len() int { return l.queue.len() + len(l.heap) }

// next returns when the next packet arrives.
func (l *line) next() (time.Duration, bool) {
	if l.reorders {
		if len(l.heap) == 0 {
			return 0, false
		}
		return l.heap[0].at, true
	}
	if head := l.queue.head(); head != nil {
		return head.at, true
	}
	return 0, false
}

func (l *line) push(a arrival) {
	if !l.reorders {
		l.queue.push(a)
		return
	}
	l.entered++
	l.heap = append(l.heap, entry{a, l.entered})
	for i := len(l.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !l.heap[i].before(l.heap[up]) {
			break
		}
		l.heap[i], l.heap[up] = l.heap[up], l.heap[i]
		i = up
	}
}

// pop removes and returns the packet that arrives next; there must be one.
func (l *line) pop() arrival {
	if !l.reorders {
		return l.queue.pop()
	}
	first, last := l.heap[0], len(l.heap)-1
	l.heap[0] = l.heap[last]
	l.heap[last] = entry{}
	l.heap = l.heap[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down+1 < last && l.heap[down+1].before(l.heap[down]) {
			down++
		}
		if down >= last || !l.heap[down].before(l.heap[i]) {
			return first.arrival
		}
		l.heap[i], l.heap[down] = l.heap[down], l.heap[i]
		i = down
	}
}
