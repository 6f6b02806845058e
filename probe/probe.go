// Package probe sends timed packets on a fixed schedule and records what became of each.
//
// The schedule is open-loop: probe n is due at start + n x interval whatever came back (methods that wait for a reply stop
// sampling exactly when the queue is long). A Transport, one per kind of probe in the sub-packages, knows how to send one probe
// and to recognise its reply; Run drives it; a Tracker, which has no clock and no socket, decides what became of each probe.
package probe

import (
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/host"
)

// Outcome is what became of a probe. Every probe that was due has exactly one.
type Outcome uint8

// The outcomes.
const (
	Received   Outcome = iota + 1 // a reply came within the deadline
	Late                          // a reply came after the deadline; its RTT is true and counts
	Lost                          // no reply came while we listened (see Run); the direction is not known, or it was refused
	LostUp                        // it did not reach the server
	LostDown                      // the server answered, and the answer did not arrive
	Unsent                        // it could not be sent: the local queue was full, or the link was down
	Unfinished                    // sent, but listening ended before its time was up: neither received nor lost
	Invalid                       // a reply came whose time cannot be true (a clock was stepped in between)
)

var outcomeNames = [...]string{"", "received", "late", "lost", "lost_up", "lost_down", "unsent", "unfinished", "invalid"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "outcome?"
}

// HasRTT reports whether a sample with this outcome carries a round-trip time.
func (o Outcome) HasRTT() bool { return o == Received || o == Late }

// IsLost reports whether the probe counts as lost, whatever the direction.
func (o Outcome) IsLost() bool { return o == Lost || o == LostUp || o == LostDown }

// Sample is one probe of a series. Its times are offsets from the run's start on one monotonic time base.
type Sample struct {
	Seq     uint64        // 0, 1, 2, ... in the order of the schedule
	Due     time.Duration // when the schedule wanted it sent
	Sent    time.Duration // the stamp beside the send call; equal to Due where Outcome is Unsent
	Outcome Outcome
	RTT     time.Duration // send to receive, less the peer's processing time where the protocol tells it; only with Outcome.HasRTT
	// Up and Down are one-way delays by the two hosts' clocks, signed, true only if those agree; their changes are
	// meaningful in any case. Valid with HasOneWay.
	Up, Down  time.Duration
	HasOneWay bool
	Stamp     host.Stamp // who stamped the reply
}

// Lateness is how long after its due time the probe left: our own fault, not the network's.
func (s Sample) Lateness() time.Duration { return s.Sent - s.Due }

// Tally counts what a series saw beside its samples.
type Tally struct {
	Duplicates    uint64       // replies to a probe that had one already; their RTT is not used
	Reordered     uint64       // first replies that came after the reply to a later probe
	Corrupt       uint64       // packets that claimed to be replies and failed the check, or whose claimed Processing cannot be true
	Stray         uint64       // replies to probes that we did not send
	TooLate       uint64       // replies to a probe that was given up: Patience had passed, or it had been refused
	Rejected      uint64       // probes that a router or the peer refused; each of them is Lost too
	RejectedBy    []netip.Addr // who refused, each address once, at most 8
	SenderLate    uint64       // probes that are Unsent because this program woke more than one interval after they were due
	ReceiveErrors uint64       // errors of the receiving socket that told of no probe
	FirstError    string       // the first error of a send, of a receive or of a refused probe, "" if none
	FirstRefusal  string       `json:",omitempty"` // the first error of a refused probe alone, "" if none
	StackSends    uint64       `json:",omitempty"` // probes whose Sent is the stack's own stamp: see host.Options.StampSends
	Waking        Waking       `json:",omitzero"`
	Marks         []Mark       // the DS bytes of the replies, each byte once, ascending; nil where the stack or the kind of probe does not tell
	UpMarks       []Mark       `json:",omitempty"` // the DS bytes that answered probes came in with at the peer, likewise; nil where it does not tell
}

// Mark counts the packets that carried one DS byte: code point and ECN.
type Mark struct {
	DS    uint8
	Count uint64
}

// Defaults and limits of Options.
const (
	DefaultInterval = 100 * time.Millisecond
	DefaultDeadline = 10 * time.Second
	// MinInterval bounds what a Tracker must remember: Patience / MinInterval probes.
	MinInterval = 100 * time.Microsecond
	// Patience is how long after its sending a probe is given up for lost at the latest. A reply after it counts in Tally.TooLate.
	Patience = 30 * time.Second
)

// Options are the settings that all kinds of probe share. The zero value is useful.
type Options struct {
	Interval time.Duration // between due times; 0 means DefaultInterval
	Deadline time.Duration // a reply after it is Late; 0 means DefaultDeadline
	Socket   host.Options  // mark, source address, device
}

// WithDefaults returns o with its zero fields filled in, or an error that names the field that is out of range.
func (o Options) WithDefaults() (Options, error) {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Interval < MinInterval {
		return o, fmt.Errorf("probe interval %v: want at least %v", o.Interval, MinInterval)
	}
	if o.Deadline < 0 || o.Deadline > Patience {
		return o, fmt.Errorf("probe deadline %v: want more than 0 and at most %v", o.Deadline, Patience)
	}
	return o, nil
}
