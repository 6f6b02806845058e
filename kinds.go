package bufferbloat

import (
	"context"
	"net/netip"
	"net/url"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/load/netperf"
	"bufferbloat/probe"
	"bufferbloat/watch/wifi"
)

// Kinds are the ways to carry out flows and probes that Run does not have itself, so that a program links no more than it uses: package protocols
// has them. Run's own are netperf's flows, and probes by ICMP, irtt, TCP and netperf.
type Kinds struct {
	Flows  map[Protocol]FlowKind
	Probes map[ProbeKind]Prober
	// Closed returns a test of transactions, for probes that are closed loops; nil for none.
	Closed func(c *netperf.Client, o netperf.TransactionOptions) Transactions
	// Stations reads the stations of a Wi-Fi device by its index; nil where they are not to be watched.
	Stations func(index int) ([]wifi.Station, error)
}

// Transactions is a test whose requests wait for the response to the one before; *netperf.Transactions is one, and has the methods' contracts.
type Transactions interface {
	Open(ctx context.Context) error
	Run(ctx context.Context) (netperf.TransactionResult, error)
	Sample() (netperf.Interval, bool)
	Close()
}

// isWeb reports whether flows of a protocol go to web servers.
func (p Protocol) isWeb() bool { return p == HTTP || p == HTTP2 }

// Loader is what a run asks of a flow, whatever its protocol. One that can tell what this host's stack knows of its connection is a tcpTeller too.
type Loader interface {
	// Open agrees on the flow with the server, so that Run can start it without a further exchange.
	Open(ctx context.Context) error
	// Run carries data until the flow's time is up, and returns what arrived; beside an error, what arrived until then.
	Run(ctx context.Context) (load.Result, error)
	// Delivered returns the payload that has reached the receiver so far, or false while or where that is not known. It is safe to call
	// at any time.
	Delivered() (uint64, bool)
}

// FlowKind carries out the flows of a protocol. It is a ServerChecker, a FlowChecker or neither, too.
type FlowKind interface {
	// Loaders returns a loader for each of the flows, which are all of the protocol in one phase whose servers can be reached, in their order.
	Loaders(flows []AskedFlow) []AskedLoader
}

// AskedLoader is a flow that can be opened, or why there is none.
type AskedLoader struct {
	Loader Loader
	Err    error
}

// ServerChecker asks, before anything is measured, whether a server of the protocol is at an address.
type ServerChecker interface {
	CheckServer(ctx context.Context, s Site) (netperf.ServerInfo, error)
}

// FlowChecker asks, before anything is measured, whether a server takes a flow. It returns how long the connection took, and what is worth saying, or nil.
// Run asks once for each URL, server, direction and way out of this host.
type FlowChecker interface {
	CheckFlow(ctx context.Context, f AskedFlow) (setup time.Duration, note *Finding, err error)
}

// Site is the server of a flow or of a probe at the one address that was found for it, and this host.
type Site struct {
	Host    host.Host
	Server  Server
	Called  string     // the server's name as messages have it
	Family  int        // that was asked for; 0 is what works
	Addr    netip.Addr // zero where none can be used
	Socket  host.Options
	Version string // of this program
	HasCPU  bool   // this host's CPU use says something about the run
}

// AskedFlow is all that a loader needs to know of its flow.
type AskedFlow struct {
	Plan   *FlowPlan
	Site   Site
	Length time.Duration // from Run on; then it begins to end
	Wait   time.Duration // the longest time between Open and Run
	Many   bool          // it is one of so many that each must take little memory
}

// Prober makes a probe ready. It carries out a first transaction where it has one: what can't be had is an error here, and no series of losses. ctx
// ends after the time that this may take.
type Prober func(ctx context.Context, p AskedProbe, o probe.Options) (probe.Transport, error)

// AskedProbe is all that a prober needs to know of its series.
type AskedProbe struct {
	Plan     *ProbePlan
	Kind     ProbeKind
	Site     Site
	To       netip.AddrPort // where it goes
	URL      *url.URL       // what it asks for: the plan's, or the root of the server
	Resolver netip.AddrPort // whom it asks for names
}

// site tells of a peer, which is s as what goes there leaves this host.
func (r *run) site(p *peer, s Server) Site {
	return Site{Host: r.h, Server: s, Called: quoteOdd(s.Host), Family: p.family, Addr: p.addr, Socket: socket(s), Version: r.o.Version,
		HasCPU: r.o.NoCPU == ""}
}
