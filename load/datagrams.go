package load

import "time"

// Datagrams is what is known of a UDP flow's datagrams. The sender's numbers are of the end that sends, all others of the one that receives.
type Datagrams struct {
	Size int // bytes of payload in each

	// Sent is how many left the sender. Unsent is how many its own full queue refused, and Skipped how many it left out because it was
	// so late that they would have become a burst: neither was lost on the path. Lateness is the most that one left behind its time.
	Sent, Unsent, Skipped uint64
	Lateness              time.Duration
	HasSender             bool

	// Received counts different datagrams, Lost those that are missing below the highest sequence number, Reordered those behind one that
	// was sent later (RFC 4737). Duplicate counts what came once more. A stock iperf3 server does not tell the last two.
	Received, Lost       uint64
	Reordered, Duplicate uint64
	HasOrder             bool // Reordered and Duplicate are known
	HasReceiver          bool
	// AfterEnd is how many datagrams were sent after the highest that came: lost, or still under way when the receiver stopped counting.
	AfterEnd uint64

	RTPJitter time.Duration // RFC 3550, section 6.4.1
	// DelayChange is the longest time that a datagram was under way, less the shortest: the growth of the queue, and what the two ends'
	// clocks drift apart. LastDelay is the same of the last one that came.
	DelayChange, LastDelay time.Duration
	HasDelay               bool
	Intervals              []Interval // how they came over time; nil where unknown
}

// Interval is a stretch of a UDP flow, counted by its receiver.
type Interval struct {
	From, To                         time.Duration // since the flow's begin, on the receiver's clock
	Bytes                            uint64
	Received, Lost                   uint64
	Reordered, Duplicate             uint64
	RTPJitter, LeastDelay, MostDelay time.Duration // delay less the shortest of the flow; valid with HasDelay
	HasOrder, HasDelay               bool
}
