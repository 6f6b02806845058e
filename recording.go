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
	Schema  string    // "bloat/recording/1"
	Version string    // of the program that made it
	Started time.Time // wall clock, read once; names the run and times nothing
	Plan    Plan
	Path    Path
	Client  HostFacts

	Phases   []Phase
	Probes   []ProbeSeries
	Flows    []Flow
	CPU      CPUSeries
	Findings []Finding

	// Ended is the length of the run; 0 with Truncated where the file was cut off before its end.
	Ended     time.Duration
	Truncated bool
	// Stopped is why the run ended before its plan did, "" where it did not: "interrupted", "terminated".
	Stopped string
}

// Path is what stands between client and server, as the run found it.
type Path struct {
	Host    string        // the server as the user named it
	Address string        // the address used for all flows and the probes of that target
	Family  string        // "IPv4" or "IPv6"
	Stack   string        // "kernel", or the lab's name with its parameters
	Lab     *LabLink      // the emulated link, nil on a real path
	Server  string        // what the server says it is, "" where it does not: "netserver 2.7"
	Setup   time.Duration // TCP handshake to the control port
}

// LabLink describes an emulated link: the truth that a run through it can be checked against.
type LabLink struct {
	Carrier    string          // "in process, real time" or "in process, virtual time"
	Down, Up   bitrate.Bitrate // at the link layer, Overhead included
	RTT        time.Duration   // propagation, both ways together
	Queue      string          // "fifo" or "fq_codel"
	BufferDown int             // bytes of queue, each way
	BufferUp   int
	Overhead   int // bytes that the link charges beyond the IP packet
}

// HostFacts is what bears on a result about the host that measured.
type HostFacts struct {
	OS, Arch          string
	Kernel            string // release, "" where unknown
	CPUs              int
	CongestionControl string // the stack's default
}

// Phase is one stretch of the run.
type Phase struct {
	Name       string // "idle", "download", "upload", "both", "after"
	Kind       PhaseKind
	Start, End time.Duration // as it happened
	// From and To bound the time that statistics of the phase look at: in a load phase from when every flow carried data until the first
	// of them was told to stop, otherwise the whole of it. From == To where a load never stood.
	From, To time.Duration
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
	Name     string // "icmp", "irtt", "tcp"; unique in the run
	Kind     string // "icmp", "irtt", "tcp"
	Target   string // host as named
	Address  string
	Interval time.Duration
	DSCP     string
	Primary  bool   // the series that the speedtest table shows
	Reason   string // why this kind stands in for a better one, "" if it does not: "ICMP is not permitted here"
	Samples  []probe.Sample
	Tally    probe.Tally
	Error    string // why the series ended early, "" if it did not
}

// Flow is one bulk flow: its counter over time and its result.
type Flow struct {
	Name      string // "download 1"; unique in the run
	Phase     string // Phase.Name
	Direction load.Direction
	Started   time.Duration
	// Points are the delivered bytes so far, at the sampler's own times; the first is when the flow first carried data.
	Points []Point
	Result FlowResult
	Error  string // "" if it ran to its end
}

// Point is a counter's reading.
type Point struct {
	At    time.Duration
	Bytes uint64
}

// FlowResult is load.Result with its times as offsets from the run's start.
type FlowResult struct {
	Bytes                           uint64
	CountedBy                       load.Counter
	Connected, First, Last, Stopped time.Duration // zero with Flowed false
	Flowed                          bool
	Retransmits                     uint64
	HasRetransmits                  bool
	CongestionControl               string
	RemoteDSCP                      string // "" where the server does not say
	ServerBytes                     uint64
	HasServerBytes                  bool
	ServerCPU                       float64
	HasServerCPU                    bool
	Warning                         string
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
	Code     string // stable, for programs: "cpu_client", "streams_missing", ...
	Severity Severity
	Phase    string // Phase.Name, "" where it concerns the run
	Text     string // one plain line for people, with its numbers
}

// Severity says what a finding does to a result.
type Severity string

// The severities.
const (
	Note    Severity = "note"    // good to know
	Weakens Severity = "weakens" // the figures stand, with less weight
	Voids   Severity = "voids"   // the figures that it concerns do not stand
)
