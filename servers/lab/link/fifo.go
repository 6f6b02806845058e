package link

import (
	"fmt"
	"time"
)

// MaxFIFO is the largest limit of a FIFO, in bytes.
const MaxFIFO = 1 << 30

// FIFO is a first-in first-out queue of at most limit bytes of Packet.Wire, which drops what does not fit (Linux's bfifo). The packet
// in transmission is not in the queue, so that the longest delay is that of limit bytes and one packet.
func FIFO(limit int) Discipline {
	return func(e Env) (Queue, error) {
		if limit < 1 || limit > MaxFIFO {
			return nil, fmt.Errorf("fifo limit %d bytes: want 1 to %d", limit, MaxFIFO)
		}
		return &fifo{limit: limit, env: e}, nil
	}
}

type fifo struct {
	limit, bytes int
	env          Env
	packets      ring[Packet]
}

func (q *fifo) Enqueue(p Packet, _ time.Duration) {
	if q.bytes+p.Wire > q.limit {
		q.env.Drop(p, Tail)
		return
	}
	q.bytes += p.Wire
	q.packets.push(p)
}

func (q *fifo) Dequeue(time.Duration) (Packet, bool) {
	if q.packets.len() == 0 {
		return Packet{}, false
	}
	p := q.packets.pop()
	q.bytes -= p.Wire
	return p, true
}

func (q *fifo) Len() int   { return q.packets.len() }
func (q *fifo) Bytes() int { return q.bytes }
