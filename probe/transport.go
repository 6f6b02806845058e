package probe

import (
	"net/netip"
	"time"

	"bufferbloat/internal/host"
)

// Transport sends probes of one kind and hears their replies. One whose stack stamps what is sent has a method SendStamps() (stack, all uint64), for
// how many of its probes have that stamp. Send and Receive are called from one goroutine each, at the same time; Close makes a waiting Receive return.
// Run closes it.
type Transport interface {
	// Send sends probe seq and returns the stamp taken just before it left. An error means that nothing was sent. Run calls it
	// with 0, 1, 2, ... and leaves out those that it woke too late for.
	Send(seq uint64) (time.Time, error)
	// Receive waits for the next packet that concerns a probe. After Wake or Close it returns an error that wraps
	// os.ErrDeadlineExceeded or net.ErrClosed; any other error is counted and Receive is called again.
	Receive() (Reply, error)
	// Wake makes a waiting Receive, or the next one, return at t on the host's clock.
	Wake(t time.Time) error
	Close() error
}

// Reply is what a Transport heard.
type Reply struct {
	Kind  ReplyKind
	Seq   uint64    // the probe that it concerns; meaningless for Corrupt and Stray
	At    time.Time // Answer: when it arrived, on the host's clock; the zero Time where that cannot be told, and the probe is then Invalid
	Stamp host.Stamp
	// Processing is the time that the peer held the probe, as the peer tells it; 0 where it does not.
	Processing time.Duration
	// Up and Down are one-way delays by the two hosts' wall clocks, valid with HasOneWay.
	Up, Down  time.Duration
	HasOneWay bool
	// DS is the DS byte that an Answer carried when it came in, valid with HasDS.
	DS    uint8
	HasDS bool
	// UpDS is the DS byte that the probe itself came in with at the peer, as the peer tells it, valid with HasUpDS.
	UpDS    uint8
	HasUpDS bool
	// Verdicts tells of other probes: where the peer reports which ones reached it. Valid until the next Receive.
	Verdicts []Verdict
	By       netip.Addr // Rejected: who refused, the zero Addr where that is not known
	Err      error      // Rejected and NotSent: why
}

// Remark is what a Transport knows of its whole series beyond samples and tally. A Transport that may know something has a method
// Remarks() []Remark, for when the series is over.
type Remark struct {
	Code    string // stable, for programs: "tcp_refused"
	Weakens bool   // the figures stand, with less weight; false: good to know
	Text    string // one plain line for people, with its numbers
}

// Verdict is the peer's word on an earlier probe without a reply: whether it reached the peer. A probe whose reply comes
// after all is Received whatever a Verdict said.
type Verdict struct {
	Seq     uint64
	Reached bool
}

// ReplyKind sorts what a Transport hears.
type ReplyKind uint8

// The kinds.
const (
	Answer   ReplyKind = iota // a valid reply to probe Seq
	Rejected                  // an ICMP error about probe Seq
	Corrupt                   // looks like a reply of ours, and fails the check
	Stray                     // somebody else's, or to a probe never sent
	NotSent                   // probe Seq, which Send had taken, could not be sent after all
)
