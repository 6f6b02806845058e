// Package bufferbloat measures what a link's queue does under load: a Plan says which flows and probes run when, Run turns a Plan
// and a path into a Recording, and package report turns Recordings into statements.
package bufferbloat

import (
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/load"
)

// Plan says which flows and probes run when. It is data: it can be printed, compared, stored and checked before anything is sent.
type Plan struct {
	Name     string      `json:"name"`               // "speedtest"
	Workload string      `json:"workload,omitempty"` // versioned name of what the plan imitates: "rrul2013/1"
	Server   Server      `json:"server"`             // of all flows and probes that name no other
	Others   []Server    `json:"servers,omitempty"`  // further servers, each with a Name
	Phases   []PhasePlan `json:"phases"`
	Probes   []ProbePlan `json:"probes"` // they run through all phases, where they say nothing else
}

// Server is the other end, and how to get there. The passphrase is not part of a plan, because plans are stored: see RunOptions.
type Server struct {
	Name        string     `json:"name,omitempty"`      // what flows and probes call it; "" for the plan's own
	Host        string     `json:"host"`                // a name or an address
	Family      int        `json:"family,omitempty"`    // 4 or 6; 0 takes what works
	NetperfPort uint16     `json:"netperf_port"`        // control port
	DataPort    uint16     `json:"data_port,omitempty"` // the server's port for data; 0 lets it choose
	IRTTPort    uint16     `json:"irtt_port"`
	IPerf3Port  uint16     `json:"iperf3_port,omitempty"`
	Source      netip.Addr `json:"source,omitzero"`     // local address for what is sent, where a flow or probe names no other
	Interface   string     `json:"interface,omitempty"` // network device for the same
}

// PhasePlan is one stretch of a plan. A phase begins when the one before it is over.
type PhasePlan struct {
	Name string    `json:"name"`
	Kind PhaseKind `json:"kind"`
	// Length is how long it lasts; a Drain lasts longer by the highest RTT of a packet in the load before it, up to 10 s more.
	Length time.Duration `json:"length_ns"`
	// Skip is what statistics leave out at the beginning of a Load phase: a burst that a link permits for a while.
	Skip  time.Duration `json:"skip_ns,omitempty"`
	Flows []FlowPlan    `json:"flows,omitempty"` // only in a Load phase
}

// FlowPlan is one bulk flow. It runs through its phase, where it says nothing else.
type FlowPlan struct {
	Name      string         `json:"name"`
	Direction load.Direction `json:"direction"`
	DSCP      dscp.CodePoint `json:"dscp"`               // asked of both ends
	Protocol  Protocol       `json:"protocol,omitempty"` // "" is netperf
	Server    string         `json:"server,omitempty"`   // Server.Name; "" is the plan's own
	Family    int            `json:"family,omitempty"`   // 4 or 6; 0 is the server's
	Group     string         `json:"group,omitempty"`    // flows whose rates are summed and compared with each other: "Torrent"
	// Start is when it begins, after its phase's begin; Length is how long it runs, 0 to its phase's end.
	Start             time.Duration   `json:"start_ns,omitempty"`
	Length            time.Duration   `json:"length_ns,omitempty"`
	CongestionControl string          `json:"congestion_control,omitempty"` // of the sender; "" is its default
	Rate              bitrate.Bitrate `json:"rate_bps,omitempty"`           // a UDP flow's rate, a TCP flow's pacing; 0 is unlimited
	Bytes             uint64          `json:"bytes,omitempty"`              // payload after which it ends; 0 is unlimited
	Size              int             `json:"size_bytes,omitempty"`         // of a write or of a datagram's payload; 0 is the protocol's own
	URL               string          `json:"url,omitempty"`                // of an HTTP flow
	Source            netip.Addr      `json:"source,omitzero"`              // local address that it is sent from; the zero Addr is the server's
	Interface         string          `json:"interface,omitempty"`          // network device that it goes through; "" is the server's
	Optional          bool            `json:"optional,omitempty"`           // left out with a note where its server has no address of its family
	// Above is the rate that the flows of its direction without one must carry together for it to begin: as soon as they do in the first half of the
	// phase, or not at all, with a note. 0 begins it at its time.
	Above bitrate.Bitrate `json:"above_bps,omitempty"`
}

// Protocol says what a bulk flow speaks.
type Protocol string

// The protocols.
const (
	Netperf   Protocol = "netperf"
	IPerf3    Protocol = "iperf3"
	IPerf3UDP Protocol = "iperf3-udp" // datagrams at a given rate
	HTTP      Protocol = "http"       // GET or POST of a URL
	HTTP2     Protocol = "http2"      // the same by HTTP/2, of an https URL
)

// ProbePlan is one series of probes.
type ProbePlan struct {
	Name     string         `json:"name"`
	Kind     ProbeKind      `json:"kind"`
	Target   string         `json:"target,omitempty"` // host; "" is the server's
	Server   string         `json:"server,omitempty"` // Server.Name; "" is the plan's own
	Family   int            `json:"family,omitempty"` // 4 or 6; 0 is the server's
	Interval time.Duration  `json:"interval_ns"`
	DSCP     dscp.CodePoint `json:"dscp"`
	ECN      host.ECN       `json:"ecn,omitempty"` // of datagrams: 0 is Not-ECT, 1 ECT(1), 2 ECT(0)
	Primary  bool           `json:"primary"`       // the series that a speedtest table shows
	Optional bool           `json:"optional"`      // left out with a note where it can't run
	// Start is when it begins, after the run's begin; Length is how long it sends, 0 to the plan's end.
	Start  time.Duration `json:"start_ns,omitempty"`
	Length time.Duration `json:"length_ns,omitempty"`
	Size   int           `json:"size_bytes,omitempty"` // of a datagram's payload; 0 is the kind's own
	URL    string        `json:"url,omitempty"`        // what an HTTP probe fetches
	Query  string        `json:"query,omitempty"`      // the name that a DNS probe looks up
	// Source and Interface are the local address and the network device that it is sent from; where they are not set, the server's.
	Source    netip.Addr `json:"source,omitzero"`
	Interface string     `json:"interface,omitempty"`
}

// ProbeKind says how a probe asks for a reply.
type ProbeKind string

// The kinds of probe.
const (
	Auto          ProbeKind = "auto"           // ICMP if it is permitted and answered, else irtt, else TCP; the recording says which and why
	ICMP          ProbeKind = "icmp"           // echo request
	ICMPTimestamp ProbeKind = "icmp_timestamp" // timestamp request (RFC 792), which tells the directions apart
	UDP           ProbeKind = "udp"            // irtt, or udp_rr where no irtt server answers; the recording says which and why
	IRTT          ProbeKind = "irtt"           // the irtt protocol, which needs a server, and tells the direction of loss
	TCP           ProbeKind = "tcp"            // TCP handshake with the server's control port
	Connect       ProbeKind = "connect"        // a new TCP connection, to where URL says or to the server's control port
	TLS           ProbeKind = "tls"            // TCP and TLS handshake
	DNS           ProbeKind = "dns"            // lookup of Query
	Fetch         ProbeKind = "http"           // one object over HTTP: URL
	Page          ProbeKind = "page"           // a whole page, with all that is in it: URL
	TCPRR         ProbeKind = "tcp_rr"         // request and response over one TCP connection, by the netperf protocol
	UDPRR         ProbeKind = "udp_rr"         // request and response over UDP, by the netperf protocol
	ClosedTCPRR   ProbeKind = "tcp_rr_closed"  // netperf's TCP_RR itself: each request leaves when the response to the one before has come
	ClosedUDPRR   ProbeKind = "udp_rr_closed"  // netperf's UDP_RR itself
	Route         ProbeKind = "path"           // the routers on the way, each with its delay
)

// kinds are all kinds, in the order in which they are told.
var kinds = []ProbeKind{Auto, ICMP, ICMPTimestamp, UDP, IRTT, TCP, Connect, TLS, DNS, Fetch, Page, TCPRR, UDPRR, ClosedTCPRR, ClosedUDPRR, Route}

// Limits of a plan.
const (
	MinInterval = 10 * time.Millisecond // of probes
	// MinEchoInterval is that of probes of kind ICMP and IRTT. A server may grant no less than MinInterval.
	MinEchoInterval = time.Millisecond

	MaxInterval = 10 * time.Second
	MinLoad     = time.Second
	MaxLength   = time.Hour
	MaxPhases   = 256
	MaxFlows    = 1000 // in a phase
	MaxProbes   = 1000
	MaxServers  = 100
	MaxWrite    = 1 << 20 // bytes of one write of a TCP flow
	MaxDatagram = 65507   // bytes of payload (RFC 768, over IPv4)
)

// SpeedtestOptions are the parameters of the speedtest plan. The zero value of a field means its default, except where it says otherwise.
type SpeedtestOptions struct {
	Server     Server
	PingHost   string        // whom to probe; "" is the server
	Idle       time.Duration // length of the idle baseline; 0 measures none
	Length     time.Duration // of the load, in each direction
	Streams    int           // in each direction
	Concurrent bool          // both directions at once instead of one after the other
	Interval   time.Duration // between probes
	DSCP       dscp.CodePoint
	Probe      ProbeKind
	// Spare has streams beyond the second in each direction begin only where the first two carry 4 Mbit/s.
	Spare bool
}

// Speedtest returns the plan of the speedtest.sh family: an idle baseline, then download and upload, one after the other or both at
// once, while probes sample the RTT all the time; and a short second baseline, to see whether the first still holds.
func Speedtest(o SpeedtestOptions) Plan {
	p := Plan{Name: "speedtest", Server: o.Server}
	if o.Idle > 0 {
		p.Phases = append(p.Phases, PhasePlan{Name: "idle", Kind: Idle, Length: o.Idle})
	}
	flows := func(d load.Direction) (list []FlowPlan) {
		for i := range o.Streams {
			list = append(list, FlowPlan{Name: fmt.Sprintf("%v %d", d, i+1), Direction: d, DSCP: o.DSCP})
		}
		return list
	}
	down, up := flows(load.Download), flows(load.Upload)
	drain := func(name string) PhasePlan { return PhasePlan{Name: name, Kind: Drain, Length: time.Second} }
	if o.Concurrent {
		p.Phases = append(p.Phases,
			PhasePlan{Name: "both", Kind: Load, Length: o.Length, Flows: append(down, up...)}, drain("drain"))
	} else {
		p.Phases = append(p.Phases,
			PhasePlan{Name: "download", Kind: Load, Length: o.Length, Flows: down}, drain("drain after download"),
			PhasePlan{Name: "upload", Kind: Load, Length: o.Length, Flows: up}, drain("drain after upload"))
	}
	if o.Idle > 0 {
		p.Phases = append(p.Phases, PhasePlan{Name: "after", Kind: After, Length: min(o.Idle, 3*time.Second)})
	}
	name := "ping"
	if o.Probe != Auto {
		name = string(o.Probe)
	}
	p.Probes = []ProbePlan{{Name: name, Kind: o.Probe, Target: o.PingHost, Interval: o.Interval, DSCP: o.DSCP, Primary: true}}
	if o.Probe == Auto {
		// A second opinion, and the direction of loss; seldom, because on a slow link the probes take a share that counts.
		p.Probes = append(p.Probes, ProbePlan{Name: "irtt", Kind: IRTT, Interval: min(4*o.Interval, MaxInterval), DSCP: o.DSCP, Optional: true})
	}
	if o.Spare {
		p.spareStreams()
	}
	return p
}

// Length is how long the plan takes as planned, without set-up and what drains add.
func (p *Plan) Length() (d time.Duration) {
	for _, ph := range p.Phases {
		d += ph.Length
	}
	return d
}

// ServerOf returns the server of a name, "" for the plan's own, or false where the plan has none of that name.
func (p *Plan) ServerOf(name string) (Server, bool) {
	if name == "" {
		return p.Server, true
	}
	for _, s := range p.Others {
		if s.Name == name {
			return s, true
		}
	}
	return Server{}, false
}

// quoteOdd returns s, quoted where it holds anything that could confuse a terminal.
func quoteOdd(s string) string {
	if q := fmt.Sprintf("%+q", s); q != `"`+s+`"` {
		return q
	}
	return s
}
