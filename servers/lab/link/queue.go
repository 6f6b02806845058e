package link

import (
	"time"

	"bufferbloat/internal/bitrate"
)

// Queue holds packets until the serializer takes them, and decides which to take and which to give up. It is called with times that
// never decrease, by one goroutine.
type Queue interface {
	// Enqueue takes p at time now. It may drop p or others.
	Enqueue(p Packet, now time.Duration)
	// Dequeue returns the packet to transmit from now on, or false if there is none. It may drop others.
	Dequeue(now time.Duration) (Packet, bool)
	// Len is the number of packets held, Bytes the sum of their Packet.Wire.
	Len() int
	Bytes() int
}

// Shaper is a Queue that may hold packets back although the serializer is free.
type Shaper interface {
	Queue
	// Wake returns when to ask again, after Dequeue has returned false at time now; false where that takes another packet.
	Wake(now time.Duration) (time.Duration, bool)
}

// Reporter is a Queue that counts more than its link sees.
type Reporter interface {
	Queue
	// Report returns the discipline's name, and what it counted.
	Report() Report
}

// Report is what a queue says of itself. Where the meaning is that of a line of "tc -s qdisc", so is the name.
type Report struct {
	Kind       string
	Overlimits uint64    // how often a limit of the rate, or a threshold of the queue, held back, marked or dropped a packet
	Extra      []Counter // what only this discipline has
}

// Counter is a number with a name. Times are in nanoseconds and probabilities are shares; the name says so: "qdelay_ns", "prob".
type Counter struct {
	Name  string
	Value float64
}

// Discipline builds the queue of one link; it returns an error that names the parameter, its value and its range.
type Discipline func(Env) (Queue, error)

// Env is what a queue knows of its link, and what it tells it.
type Env struct {
	Drop func(p Packet, r Reason) // p is given up; every packet that Enqueue took is either returned by Dequeue or dropped, once
	Mark func()                   // a packet that is held, or returned next, has been Marked
	Rate bitrate.Bitrate          // of the serializer at the start; 0 means unlimited
	Seed uint64                   // of what is random in the queue
}

// Reason says why a packet was dropped.
type Reason uint8

// The reasons.
const (
	Tail     Reason = iota // the queue was full when it came
	AQM                    // the queue's algorithm wanted to signal congestion
	Overflow               // the queue was full, and the packet stood in its longest flow
	Policed                // it came at a higher rate than a policer lets pass
	Filtered               // a later acknowledgement of its flow, in the same queue, said all that it said
	Lost                   // the medium lost it, after it had been transmitted
	Closed                 // the link was torn down with the packet inside
	Reasons                // how many there are
)

func (r Reason) String() string {
	if r < Reasons {
		return [Reasons]string{"tail", "aqm", "overflow", "policed", "filtered", "lost", "closed"}[r]
	}
	return "reason?"
}

// ring is a first-in first-out buffer that grows by doubling and never shrinks.
type ring[T any] struct {
	buf   []T // length is a power of two, or 0
	start int
	n     int
}

func (r *ring[T]) len() int { return r.n }

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		bigger := make([]T, max(16, 2*len(r.buf)))
		for i := range r.n {
			bigger[i] = r.buf[(r.start+i)&(len(r.buf)-1)]
		}
		r.buf, r.start = bigger, 0
	}
	r.buf[(r.start+r.n)&(len(r.buf)-1)] = v
	r.n++
}

// head returns the oldest element in place, nil where there is none. The pointer is valid until the next push or pop.
func (r *ring[T]) head() *T {
	if r.n == 0 {
		return nil
	}
	return &r.buf[r.start]
}

// pop removes and returns the oldest element; there must be one.
func (r *ring[T]) pop() T {
	v := r.buf[r.start]
	var zero T
	r.buf[r.start] = zero // the buffer must not keep the packet's owner alive
	r.start = (r.start + 1) & (len(r.buf) - 1)
	r.n--
	return v
}
