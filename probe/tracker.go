package probe

import (
	"maps"
	"slices"
	"time"
)

const (
	minWindow     = 2 * time.Second
	windowFactor  = 3
	maxRejectedBy = 8
	// stampSlack is how far a stamp may lie ahead of the clock: a kernel's stamp is taken on the wall clock and brought to the
	// monotonic one, which is not exact.
	stampSlack = time.Millisecond
)

// Tracker decides what became of each probe. It has no clock, no socket and no goroutine: all it knows of time is what its
// methods are told. It is not safe for concurrent use.
//
// It remembers each probe until Patience after it was sent, answered or not, so that it knows a duplicate from a reply; its
// memory is bounded by Patience / interval x 24 bytes, and it allocates only while that grows.
type Tracker struct {
	start    time.Time
	deadline time.Duration
	record   func(Sample)
	tally    Tally

	ring       []slot // len is a power of two; probe n, for base <= n < next, is ring[n & (len-1)]
	base, next uint64
	open       int // slots that wait for a reply

	slowest  time.Duration // the longest that a reply took so far
	furthest uint64        // the highest Seq that was answered; valid with heard
	heard    bool

	marks, upMarks marks // of the replies, and of what they say of their probes
}

// slot is one remembered probe. Its times are offsets from the start.
type slot struct {
	due, sent time.Duration
	state     slotState
	verdict   verdict
}

type slotState uint8

const (
	waiting  slotState = iota + 1 // no reply so far
	answered                      // had its reply
	ended                         // given up without one
	unsent
)

type verdict uint8

const (
	noVerdict verdict = iota
	notReached
	reached
)

// NewTracker returns a Tracker of a series whose samples are offsets from start. A reply that takes longer than deadline is
// Late. The Tracker calls record once for every probe, when its fate is sealed, from within the method that sealed it: an
// answered probe before an older one that still waits.
func NewTracker(start time.Time, deadline time.Duration, record func(Sample)) *Tracker {
	return &Tracker{start: start, deadline: deadline, record: record, ring: make([]slot, 64)}
}

// Next returns the sequence number that the next Sent or Unsent must have.
func (t *Tracker) Next() uint64 { return t.next }

// Open returns how many probes wait for a reply.
func (t *Tracker) Open() int { return t.open }

// Tally returns the counts so far. The copy is the caller's.
func (t *Tracker) Tally() Tally {
	c := t.tally
	c.RejectedBy = slices.Clone(c.RejectedBy)
	c.Marks, c.UpMarks = t.marks.list(), t.upMarks.list()
	return c
}

// marks counts packets by their DS byte; nil while none was told.
type marks map[uint8]uint64

func (m *marks) count(ds uint8, told bool) {
	if !told {
		return
	}
	if *m == nil {
		*m = make(marks, 1)
	}
	(*m)[ds]++
}

func (m marks) list() (all []Mark) {
	for _, ds := range slices.Sorted(maps.Keys(m)) {
		all = append(all, Mark{ds, m[ds]})
	}
	return all
}

// Window is how long a probe must have been listened for before silence means loss: 3 times the longest that a reply took so far,
// at least 2 s and at most Patience. While no reply has come at all nothing is known of the path, and it is the deadline, if
// that is longer than 2 s: a path of 3 s loses nothing in a series of 1 s.
func (t *Tracker) Window() time.Duration {
	if !t.heard {
		return max(minWindow, t.deadline)
	}
	return min(max(minWindow, windowFactor*t.slowest), Patience)
}

// Sent says that the next probe, which was due at due, left at at. It also does what Expire does.
func (t *Tracker) Sent(due, at time.Time) {
	t.Expire(at)
	*t.push() = slot{due: due.Sub(t.start), sent: at.Sub(t.start), state: waiting}
	t.open++
}

// Unsent says that the next probe, which was due at due, was not sent, because of err.
func (t *Tracker) Unsent(due time.Time, err error) {
	t.noteError(err)
	t.pushUnsent(due)
}

// SenderLate says that the next probe, which was due at due, was not sent, because the program woke too late for it.
func (t *Tracker) SenderLate(due time.Time) {
	t.tally.SenderLate++
	t.pushUnsent(due)
}

func (t *Tracker) pushUnsent(due time.Time) {
	seq, d := t.next, due.Sub(t.start)
	t.expire(d)
	*t.push() = slot{due: d, sent: d, state: unsent}
	t.record(Sample{Seq: seq, Due: d, Sent: d, Outcome: Unsent})
}

// ReceiveError counts an error of the receiving socket that told of no probe.
func (t *Tracker) ReceiveError(err error) {
	t.tally.ReceiveErrors++
	t.noteError(err)
}

// Reply takes in what a Transport heard; now is the time at which it is handed in. A reply that arrived before its probe was
// sent, or after now, makes the probe Invalid. RTT is the time from send to arrival less Processing; a Processing that is
// negative or longer than that time is not believed: it is counted in Tally.Corrupt, and the RTT is then the whole time.
func (t *Tracker) Reply(r Reply, now time.Time) {
	switch r.Kind {
	case Answer:
		if t.answer(r, now) {
			for _, v := range r.Verdicts {
				t.judge(v)
			}
		}
	case Rejected:
		t.reject(r)
	case NotSent:
		t.takeBack(r)
	case Stray:
		t.tally.Stray++
	default:
		t.tally.Corrupt++
	}
}

// answer reports whether r concerns a probe that was sent.
func (t *Tracker) answer(r Reply, now time.Time) bool {
	if r.Seq >= t.next {
		t.tally.Stray++
		return false
	}
	t.marks.count(r.DS, r.HasDS)
	t.upMarks.count(r.UpDS, r.HasUpDS)
	if r.Seq < t.base {
		t.tally.TooLate++
		return true
	}
	s := t.slot(r.Seq)
	switch s.state {
	case unsent:
		t.tally.Stray++
		return false
	case answered:
		t.tally.Duplicates++
		return true
	case ended:
		t.tally.TooLate++
		return true
	}
	t.first(s, r, now)
	return true
}

// first takes in the first reply to the waiting probe in s.
func (t *Tracker) first(s *slot, r Reply, now time.Time) {
	took := r.At.Sub(t.start.Add(s.sent)) // saturates, where a difference of offsets could overflow
	possible := took >= 0 && !r.At.After(now.Add(stampSlack))
	if possible && took >= Patience {
		t.giveUp(s, r.Seq)
		t.tally.TooLate++
		return
	}
	if t.heard && r.Seq < t.furthest {
		t.tally.Reordered++
	} else {
		t.furthest, t.heard = r.Seq, true
	}
	sample := Sample{Seq: r.Seq, Due: s.due, Sent: s.sent, Outcome: Invalid, Stamp: r.Stamp}
	if possible {
		t.slowest = max(t.slowest, took)
		sample.Outcome = Received
		if took > t.deadline {
			sample.Outcome = Late
		}
		sample.RTT = took
		if r.Processing < 0 || r.Processing > took {
			t.tally.Corrupt++
		} else {
			sample.RTT -= r.Processing
		}
		if r.HasOneWay {
			sample.Up, sample.Down, sample.HasOneWay = r.Up, r.Down, true
		}
	}
	s.state = answered
	t.open--
	t.record(sample)
}

// judge keeps the peer's word on a probe that still waits. That it was reached is not taken back: a peer that reports while
// packets are reordered says "not reached" first.
func (t *Tracker) judge(v Verdict) {
	s := t.find(v.Seq)
	if s == nil || s.state != waiting {
		return
	}
	if v.Reached {
		s.verdict = reached
	} else if s.verdict == noVerdict {
		s.verdict = notReached
	}
}

// reject ends a waiting probe. What is said of a probe whose fate is sealed changes nothing.
func (t *Tracker) reject(r Reply) {
	if r.Seq >= t.next {
		t.tally.Stray++
		return
	}
	s := t.find(r.Seq)
	if s == nil || s.state != waiting {
		return
	}
	t.tally.Rejected++
	t.noteError(r.Err)
	if r.Err != nil && t.tally.FirstRefusal == "" {
		t.tally.FirstRefusal = r.Err.Error()
	}
	if r.By.IsValid() && len(t.tally.RejectedBy) < maxRejectedBy && !slices.Contains(t.tally.RejectedBy, r.By) {
		t.tally.RejectedBy = append(t.tally.RejectedBy, r.By)
	}
	s.verdict = noVerdict // whoever refused it, both directions are open questions
	t.giveUp(s, r.Seq)
}

// takeBack makes a waiting probe Unsent.
func (t *Tracker) takeBack(r Reply) {
	s := t.find(r.Seq)
	if s == nil || s.state != waiting {
		return
	}
	t.noteError(r.Err)
	s.state = unsent
	t.open--
	t.record(Sample{Seq: r.Seq, Due: s.due, Sent: s.due, Outcome: Unsent})
}

// Expire gives up the probes that were sent Patience or longer before now. Sent does it too; call it where nothing is sent.
func (t *Tracker) Expire(now time.Time) {
	t.expire(now.Sub(t.start))
}

func (t *Tracker) expire(now time.Duration) {
	for t.base < t.next {
		s := t.slot(t.base)
		if now-s.sent < Patience {
			return
		}
		if s.state == waiting {
			t.giveUp(s, t.base)
		}
		t.base++
	}
}

// Close ends the series at now: a probe that still waits is lost if it has been listened for as long as Window, otherwise
// Unfinished. Nothing is recorded after it.
func (t *Tracker) Close(now time.Time) {
	at, window := now.Sub(t.start), t.Window()
	for ; t.base < t.next; t.base++ {
		s := t.slot(t.base)
		if s.state != waiting {
			continue
		}
		if at-s.sent >= window {
			t.giveUp(s, t.base)
			continue
		}
		s.state = ended
		t.open--
		t.record(Sample{Seq: t.base, Due: s.due, Sent: s.sent, Outcome: Unfinished})
	}
}

// giveUp records the waiting probe in s as lost.
func (t *Tracker) giveUp(s *slot, seq uint64) {
	o := Lost
	switch s.verdict {
	case reached:
		o = LostDown
	case notReached:
		o = LostUp
	}
	s.state = ended
	t.open--
	t.record(Sample{Seq: seq, Due: s.due, Sent: s.sent, Outcome: o})
}

func (t *Tracker) noteError(err error) {
	if err != nil && t.tally.FirstError == "" {
		t.tally.FirstError = err.Error()
	}
}

// find returns the slot of probe seq, or nil if it is forgotten or not yet sent.
func (t *Tracker) find(seq uint64) *slot {
	if seq < t.base || seq >= t.next {
		return nil
	}
	return t.slot(seq)
}

func (t *Tracker) slot(seq uint64) *slot { return &t.ring[seq&uint64(len(t.ring)-1)] }

// push returns the slot of the next probe.
func (t *Tracker) push() *slot {
	if t.next-t.base == uint64(len(t.ring)) {
		grown := make([]slot, 2*len(t.ring))
		for n := t.base; n < t.next; n++ {
			grown[n&uint64(len(grown)-1)] = *t.slot(n)
		}
		t.ring = grown
	}
	t.next++
	return t.slot(t.next - 1)
}
