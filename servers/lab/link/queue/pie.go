package queue

import (
	"math/rand/v2"
	"time"

	"bufferbloat/servers/lab/link"
)

// PIE is a FIFO under the AQM of RFC 8033: each arriving packet is dropped with a probability that a proportional-integral controller
// of the queueing delay moves every update.
//
// From the RFC come the controller with its automatic tuning and the step of at most 2% at 10% and above (4.2), the decay when the queue
// is empty (here by 1/64, as Linux has it, where the pseudocode has 2%), the burst allowance (4.4), the safeguards of 4.1, the
// de-randomization (5.4: 0.85 and 8.5) and target 15 ms, update 15 ms, burst 150 ms, alpha 0.125, beta 1.25. From Linux come the limit of
// 1000 packets, 2% more above a delay of 250 ms, marks only up to a probability of 10% (the RFC's mark_ecnth), and scaling by the size of
// the packet as an option.
//
// The delay is the time that the last packet spent in the queue (5.2, time stamps), not an estimate from the departure rate, and PIE is
// active from the start: the RFC's option to sleep until the queue is a third full is left out.
type PIE struct {
	Limit    int           // packets; 0 means 1000
	Target   time.Duration // delay to hold; 0 means 15 ms
	Update   time.Duration // of the probability; 0 means 15 ms
	Burst    time.Duration // for so long after the queue was calm nothing is dropped; 0 means 150 ms
	Alpha    float64       // per second of delay above target; 0 means 0.125
	Beta     float64       // per second of growth of the delay; 0 means 1.25
	ECN      bool          // mark what can be marked instead of dropping it
	ByteMode bool          // drop small packets less often, in proportion to their size
}

func (o *PIE) describe() (string, []parameter) {
	return "pie", append([]parameter{packets("limit", &o.Limit, 1000, 1, maxPackets), flag("ecn", "noecn", &o.ECN)},
		pieParameters(&o.Target, &o.Update, &o.Burst, &o.Alpha, &o.Beta, &o.ByteMode)...)
}

func pieParameters(target, update, burst *time.Duration, alpha, beta *float64, bytes *bool) []parameter {
	return []parameter{span("target", target, 15*time.Millisecond, time.Microsecond, time.Minute),
		span("tupdate", update, 15*time.Millisecond, 100*time.Microsecond, time.Minute),
		span("burst", burst, 150*time.Millisecond, time.Microsecond, time.Minute),
		ratio("alpha", alpha, 0.125, 1e-6, 1000), ratio("beta", beta, 1.25, 1e-6, 1000), flag("bytemode", "nobytemode", bytes)}
}

// Check implements Discipline.
func (o PIE) Check() error { _, err := complete(o); return err }

// String implements Discipline.
func (o PIE) String() string { return write(o) }

// Capacity implements Discipline.
func (o PIE) Capacity(wire int) int { o, _ = complete(o); return ofPackets(o.Limit, wire) }

// New implements Discipline.
func (o PIE) New(e link.Env) (link.Queue, error) {
	o, err := complete(o)
	if err != nil {
		return nil, err
	}
	p := pieOptions{o.Target, o.Update, o.Burst, o.Alpha, o.Beta, pieMarkUpTo, o.ByteMode}
	return &pieQueue{core: newCore(e), o: o, pie: newPIE(p), random: newRandom(e.Seed, 11)}, nil
}

// pieMarkUpTo is the probability above which PIE drops also what could be marked.
const pieMarkUpTo = 0.1

type pieQueue struct {
	core
	o      PIE
	line   chain
	pie    pie
	random *rand.Rand
	over   uint64 // packets that met a full queue
	early  uint64 // drops and marks by the controller
}

func (q *pieQueue) Enqueue(p link.Packet, now time.Duration) {
	q.pie.advance(now, q.line.n == 0)
	if q.Len() >= q.o.Limit {
		q.over++
		q.refuse(p, link.Tail)
		return
	}
	if q.pie.congested(p.Wire, q.line.bytes, q.random) {
		q.early++
		var ok bool
		if p, ok = q.signal(p, q.o.ECN && q.pie.prob <= q.pie.markUpTo); !ok {
			return
		}
	}
	q.push(&q.line, p)
}

func (q *pieQueue) Dequeue(now time.Duration) (link.Packet, bool) {
	q.pie.advance(now, q.line.n == 0)
	p, ok := q.pop(&q.line)
	if ok {
		q.pie.departed(now-p.Entered, q.line.n == 0)
	}
	return p, ok
}

// Report implements link.Reporter.
func (q *pieQueue) Report() link.Report {
	return link.Report{Kind: "pie", Extra: []link.Counter{number("prob", q.pie.prob), nanos("delay_ns", q.pie.delay),
		nanos("burst_ns", q.pie.burst), number("dropped_early", q.early), number("overlimit", q.over)}}
}

// pieOptions are the parameters of one controller or of many.
type pieOptions struct {
	target, update, maxBurst time.Duration
	alpha, beta              float64
	markUpTo                 float64
	byteMode                 bool
}

// pie is the state of the PIE algorithm over one queue.
type pie struct {
	pieOptions
	prob        float64       // of a drop
	accumulated float64       // of prob, since the last drop
	delay       time.Duration // of the last packet that left
	old         time.Duration // delay at the last update
	burst       time.Duration // of the allowance that is left
	next        time.Duration // of the update
}

func newPIE(o pieOptions) pie { return pie{pieOptions: o, burst: o.maxBurst, next: o.update} }

// advance makes the updates that were due until now. Between two calls nothing entered or left the queue, so that late is as good as
// punctual.
func (s *pie) advance(now time.Duration, empty bool) {
	for s.next <= now {
		if empty {
			s.delay = 0
		}
		if s.prob == 0 && s.delay == 0 && s.old == 0 { // a calm queue stays calm
			s.burst = s.maxBurst
			s.next += (now - s.next + s.update) / s.update * s.update
			return
		}
		s.tune()
		s.next += s.update
	}
}

// scales are the factors by which a small probability damps the controller (RFC 8033, 4.2: automatic tuning).
var scales = [...]struct{ below, by float64 }{
	{0.000001, 2048}, {0.00001, 512}, {0.0001, 128}, {0.001, 32}, {0.01, 8}, {0.1, 2},
}

// tune moves the probability (RFC 8033, 4.2).
func (s *pie) tune() {
	step := s.alpha*(s.delay-s.target).Seconds() + s.beta*(s.delay-s.old).Seconds()
	for _, scale := range scales {
		if s.prob < scale.below {
			step /= scale.by
			break
		}
	}
	if s.prob >= 0.1 && step > 0.02 {
		step = 0.02
	}
	if s.delay > 250*time.Millisecond {
		step += 0.02
	}
	s.prob = min(max(s.prob+step, 0), 1)
	if s.delay == 0 && s.old == 0 {
		s.prob *= 1 - 1./64
		if s.prob < 1e-12 {
			s.prob = 0 // else it would go on for ever
		}
	}
	s.burst = max(s.burst-s.update, 0)
	if s.prob == 0 && s.delay < s.target/2 && s.old < s.target/2 {
		s.burst = s.maxBurst
	}
	s.old = s.delay
}

// meanPacket is the RFC's MEAN_PKTSIZE, for a queue that is too short to be worth a drop.
const meanPacket = frame

// congested decides the fate of an arriving packet of this size before bytes of backlog (RFC 8033, 4.1 and 5.4).
func (s *pie) congested(size, bytes int, random *rand.Rand) bool {
	if s.burst > 0 || s.old < s.target/2 && s.prob < 0.2 || bytes <= 2*meanPacket {
		return false
	}
	prob := s.prob
	if s.byteMode {
		prob = min(prob*float64(size)/meanPacket, 1)
	}
	if s.prob == 0 {
		s.accumulated = 0
	}
	s.accumulated += prob
	if s.accumulated < 0.85 {
		return false
	}
	if s.accumulated < 8.5 && random.Float64() >= prob {
		return false
	}
	s.accumulated = 0
	return true
}

// departed notes the time that a packet spent in the queue, which it may have left empty.
func (s *pie) departed(sojourn time.Duration, empty bool) {
	s.delay = sojourn
	if empty {
		s.delay = 0
	}
}
