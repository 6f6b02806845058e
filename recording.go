package bufferbloat

import (
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// Recording is all that one run saw: its plan, its raw samples on one time base, and what weakens them. All its times are
// offsets from the run's start; Started is the one reading of the wall clock.
type Recording struct {
	Version string    // of the program that made it
	Started time.Time // wall clock, read once; names the run and times nothing
	Plan    Plan
	Path    Path   // to the plan's own server
	Paths   []Path // to further servers, and to further families of one server, in the plan's order
	Client  HostFacts

	Phases   []Phase
	Probes   []ProbeSeries
	Flows    []Flow
	CPU      CPUSeries
	Others   []Quantity
	Findings []Finding
	Source   *Source // nil where this program measured

	// Ended is the length of the run; 0 with Truncated where the file was cut off before its end.
	Ended     time.Duration
	Truncated bool
	// Stopped is why the run ended before its plan did, "" where it did not: "interrupted", "terminated".
	Stopped string

	packing bool   // what grows with the run's length is packed as it comes
	shelf   *shelf // where of what is packed goes what is too much for memory; nil for nowhere
	// Where flow and other look first, since entries of many come in turn; 0 in a recording that is finished.
	nextFlow, nextOther int
}

// Source says which other program measured what a Recording holds.
type Source struct {
	Program string   `json:"program"`          // "flent 2.1.1"
	Title   string   `json:"title,omitempty"`  // that its user gave the run
	Untold  []string `json:"untold,omitempty"` // what its file does not tell, a few words each: "due times of probes"
}

// Quantity is something measured over time that is neither a probe's round-trip time nor a flow's bytes: a queue's backlog, a
// congestion window.
type Quantity struct {
	Name string `json:"name"` // unique in the run; that of a flow ends with what it is, as in "upload 1::tcp_cwnd"
	Unit string `json:"unit,omitempty"`
	Flow string `json:"flow,omitempty"` // Flow.Name of the flow that it is about, "" where it is about none
	// Resampled says that the values are not what was measured, but interpolated to a grid of times.
	Resampled bool            `json:"resampled,omitempty"`
	At        []time.Duration `json:"at_ns"`
	Values    []float64       `json:"values"` // as many as times; finite
	packed    *packedValues   // in place of At and Values, in a recording that is packed
}

// Path is what stands between client and server, as the run found it.
type Path struct {
	Name    string        `json:"name,omitempty"`   // Server.Name, "" for the plan's own
	Host    string        `json:"host"`             // the server as the user named it
	Address string        `json:"address"`          // the address used for all flows and the probes of that target
	Family  string        `json:"family"`           // "IPv4" or "IPv6"
	Stack   string        `json:"stack"`            // "kernel", or the lab's name
	Lab     *LabLink      `json:"lab,omitempty"`    // the emulated link, nil on a real path
	Server  string        `json:"server,omitempty"` // what the server says it is, "" where it does not: "netserver 2.7"
	Setup   time.Duration `json:"setup_ns"`         // TCP handshake to the control port; 0 where nothing asked for one
	Error   string        `json:"error,omitempty"`  // why it could not be used, and has no address; "" where it could
}

// LabLink describes an emulated link: the truth that a run through it can be checked against.
type LabLink struct {
	Carrier    string          `json:"carrier"`  // "in process, real time" or "in process, virtual time"
	Down       bitrate.Bitrate `json:"down_bps"` // at the link layer, Overhead included
	Up         bitrate.Bitrate `json:"up_bps"`
	RTT        time.Duration   `json:"rtt_ns"`            // propagation, both ways together
	Queue      string          `json:"queue"`             // "fifo" or "fq_codel"
	BufferDown int             `json:"buffer_down_bytes"` // bytes of queue, each way
	BufferUp   int             `json:"buffer_up_bytes"`
	Overhead   int             `json:"overhead_bytes"`    // bytes that the link charges beyond the IP packet
	Counted    *LabCounts      `json:"counted,omitempty"` // by the link itself; nil where the recording does not say
}

// HostFacts is what bears on a result about the host that measured.
type HostFacts struct {
	OS                string `json:"os"`
	Arch              string `json:"arch"`
	Kernel            string `json:"kernel,omitempty"` // release, "" where unknown
	CPUs              int    `json:"cpus"`
	CongestionControl string `json:"congestion_control,omitempty"` // the stack's default, "" where unknown
	// Device is the network device that leads to the server; nil where it was not looked at, as on an emulated link.
	Device *DeviceFacts `json:"device,omitempty"`
}

// DeviceFacts is what bears on a result about a network device.
type DeviceFacts struct {
	Name     string          `json:"name"`
	Driver   string          `json:"driver,omitempty"`
	Kind     string          `json:"kind,omitempty"` // "veth", "bridge"; "" for a real device
	Virtual  bool            `json:"virtual"`        // no hardware behind it
	Speed    bitrate.Bitrate `json:"speed_bps,omitempty"`
	MTU      int             `json:"mtu_bytes"`
	TxQueue  int             `json:"txqueuelen_packets"`
	Offloads []string        `json:"offloads"` // of "tso", "gso", "gro" and "lro", those that are on
	PauseRx  bool            `json:"pause_rx"` // pause frames are obeyed,
	PauseTx  bool            `json:"pause_tx"` // and sent
	Queues   []string        `json:"queues"`   // queue disciplines, and classes of some, as "tc" names them
	// Missing says why not, by what: "speed", "offloads", "pause frames", "byte queue limits", "interrupts".
	Missing map[string]string `json:"missing,omitempty"`
}

// Phase is one stretch of the run.
type Phase struct {
	Name  string        `json:"name"` // "idle", "download", "upload", "both", "after"
	Kind  PhaseKind     `json:"kind"`
	Start time.Duration `json:"start_ns"` // as it happened
	End   time.Duration `json:"end_ns"`
	// From and To bound the time that statistics of the phase look at: in a load phase from when every flow carried data until the first
	// of them was told to stop, otherwise the whole of it. From == To where a load never stood.
	From time.Duration `json:"from_ns"`
	To   time.Duration `json:"to_ns"`
}

// PhaseKind says what a phase is for.
type PhaseKind string

// The kinds.
const (
	Idle  PhaseKind = "idle"  // baseline, before the load
	Load  PhaseKind = "load"  // flows run
	Drain PhaseKind = "drain" // after a load, until its queue is gone
	After PhaseKind = "after" // baseline again, after the load
)

// ProbeSeries is one probe's samples over the whole run, in the order of their sequence numbers.
type ProbeSeries struct {
	Name     string        `json:"name"`   // its Kind, or the plan's name for it where two series are of one kind; unique in the run
	Kind     string        `json:"kind"`   // "icmp", "irtt", "tcp"
	Target   string        `json:"target"` // host as named
	Address  string        `json:"address"`
	Interval time.Duration `json:"interval_ns"`
	DSCP     string        `json:"dscp"`
	Primary  bool          `json:"primary"`              // the series that the speedtest table shows
	Reason   string        `json:"reason,omitempty"`     // why this kind stands in for a better one: "ICMP is not permitted here"
	ECN      string        `json:"ecn,omitempty"`        // of what is sent, "" for Not-ECT
	Size     int           `json:"size_bytes,omitempty"` // of a datagram's payload as planned, 0 for the kind's own
	Hop      int           `json:"hop,omitempty"`        // of a series of kind "path": how many hops away the router is
	Voice    bool          `json:"voice,omitempty"`      // the packets are like those of a G.711 call
	// Unscheduled says that the source does not tell when its probes were due, nor who stamped the replies: Due is Sent, and there is no lateness.
	Unscheduled bool `json:"unscheduled,omitempty"`
	// NoLoss is why the source does not tell what it lost, "" where it does: then Samples are replies, and nothing is known of the others.
	NoLoss  string         `json:"no_loss,omitempty"`
	Samples []probe.Sample `json:"-"`
	packed  *packedSamples // in place of Samples, in a recording that is packed
	Tally   probe.Tally    `json:"-"`
	Error   string         `json:"-"` // why the series ended early, "" if it did not
}

// Flow is one bulk flow: its counter over time and its result.
type Flow struct {
	Name      string         `json:"name"`  // "download 1"; unique in the run
	Phase     string         `json:"phase"` // Phase.Name
	Direction load.Direction `json:"direction"`
	Group     string         `json:"group,omitempty"`   // as planned, "" for none
	Address   string         `json:"address,omitempty"` // of the server, "" where it was not reached
	Started   time.Duration  `json:"started_ns"`
	// Points are the delivered bytes so far, at the sampler's own times; the first is when the flow first carried data.
	Points []Point       `json:"-"`
	packed *packedPoints // in place of Points, in a recording that is packed
	Result FlowResult    `json:"-"`
	Error  string        `json:"-"` // "" if it ran to its end
}

// Point is a counter's reading.
type Point struct {
	At    time.Duration
	Bytes uint64
}

// FlowResult is load.Result with its times as offsets from the run's start.
type FlowResult struct {
	Due               time.Duration   `json:"due_ns,omitempty"` // when the plan wanted it to begin; 0 where it did not come to that
	Bytes             uint64          `json:"bytes"`
	CountedBy         load.Counter    `json:"counted_by"`
	Connected         time.Duration   `json:"connected_ns"` // this and the next three are zero with Flowed false
	First             time.Duration   `json:"first_ns"`
	Last              time.Duration   `json:"last_ns"`
	Stopped           time.Duration   `json:"stopped_ns"`
	Flowed            bool            `json:"flowed"`
	Retransmits       uint64          `json:"retransmits"`
	HasRetransmits    bool            `json:"has_retransmits"`
	CongestionControl string          `json:"congestion_control,omitempty"`
	RemoteDSCP        string          `json:"remote_dscp,omitempty"` // "" where the server does not say
	ServerBytes       uint64          `json:"server_bytes"`
	HasServerBytes    bool            `json:"has_server_bytes"`
	ServerCPU         float64         `json:"server_cpu"`
	HasServerCPU      bool            `json:"has_server_cpu"`
	ServerOwnCPU      float64         `json:"server_own_cpu,omitempty"` // of the server program alone, in CPUs
	HasServerOwnCPU   bool            `json:"has_server_own_cpu,omitempty"`
	Datagrams         *load.Datagrams `json:"datagrams,omitempty"` // of a UDP flow
	TLS               *load.TLS       `json:"tls,omitempty"`       // nil where the flow was not encrypted
	Warning           string          `json:"warning,omitempty"`
}

// CPUSeries is this host's CPU use over the run.
type CPUSeries struct {
	Available bool
	Why       string // why not, where not
	Samples   []CPUSample
}

// CPUSample is the CPU use since the sample before it. Shares are 0..1.
type CPUSample struct {
	At   time.Duration // end of the interval
	Busy []float64     // per CPU; everything but idle and iowait
	Own  float64       // this process, as a share of all CPUs together
}

// Finding is something that a reader must know before he believes the result.
type Finding struct {
	Code     string   `json:"code"` // stable, for programs: "cpu_client", "streams_missing", ...
	Severity Severity `json:"severity"`
	Phase    string   `json:"phase,omitempty"` // Phase.Name, "" where it concerns the run
	Text     string   `json:"text"`            // one plain line for people, with its numbers
}

// Severity says what a finding does to a result.
type Severity string

// The severities.
const (
	Note    Severity = "note"    // good to know
	Weakens Severity = "weakens" // the figures stand, with less weight
	Voids   Severity = "voids"   // the figures that it concerns do not stand
)
