package load

import "time"

// Datagrams is what is known of a UDP flow's datagrams. The sender's numbers are of the end that sends, all others of the one that receives.
type Datagrams struct {
	Size int `json:"size_bytes"` // payload of each

	// Sent is how many left the sender. Unsent is how many its own full queue refused, and Skipped how many it left out because it was
	// so late that they would have become a burst: neither was lost on the path. Lateness is the most that one left behind its time. The
	// last three are this host's, and known of uploads only.
	Sent      uint64        `json:"sent"`
	HasSender bool          `json:"has_sender"`
	Unsent    uint64        `json:"unsent,omitempty"`
	Skipped   uint64        `json:"skipped,omitempty"`
	Lateness  time.Duration `json:"lateness_ns,omitempty"`

	// Received counts different datagrams, Lost those that are missing below the highest sequence number, Reordered those behind one that
	// was sent later (RFC 4737). Duplicate counts what came once more. A stock iperf3 server does not tell the last two.
	Received    uint64 `json:"received"`
	Lost        uint64 `json:"lost"`
	HasReceiver bool   `json:"has_receiver"`
	Reordered   uint64 `json:"reordered"`
	Duplicate   uint64 `json:"duplicate"`
	HasOrder    bool   `json:"has_order"` // Reordered and Duplicate are known
	// AfterEnd is how many datagrams were sent after the highest that came: lost, or still under way when the receiver stopped counting.
	AfterEnd uint64 `json:"after_end"`

	RTPJitter time.Duration `json:"rtp_jitter_ns"` // RFC 3550, section 6.4.1
	// DelayChange is the longest time that a datagram was under way, less the shortest: the growth of the queue, and what the two ends'
	// clocks drift apart. LastDelay is the same of the last one that came.
	DelayChange time.Duration `json:"delay_change_ns"`
	LastDelay   time.Duration `json:"last_delay_ns"`
	HasDelay    bool          `json:"has_delay"`
	Intervals   []Interval    `json:"intervals,omitempty"` // how they came over time; nil where unknown
}

// Interval is a stretch of a UDP flow, counted by its receiver.
type Interval struct {
	From       time.Duration `json:"from_ns"` // since the flow's begin, on the receiver's clock
	To         time.Duration `json:"to_ns"`
	Bytes      uint64        `json:"bytes"`
	Received   uint64        `json:"received"`
	Lost       int64         `json:"lost"` // less than 0 where more of those missing before came after all
	Reordered  uint64        `json:"reordered"`
	Duplicate  uint64        `json:"duplicate"`
	HasOrder   bool          `json:"has_order"`
	RTPJitter  time.Duration `json:"rtp_jitter_ns"`
	LeastDelay time.Duration `json:"least_delay_ns"` // less the shortest of the flow; valid with HasDelay, as MostDelay
	MostDelay  time.Duration `json:"most_delay_ns"`
	HasDelay   bool          `json:"has_delay"`
}
