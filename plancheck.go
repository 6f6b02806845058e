package bufferbloat

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load"
)

// PlanError is one thing that is wrong with a plan. An error of Check joins these.
type PlanError struct {
	Place Place
	Text  string
}

func (e *PlanError) Error() string { return e.Text }

// Place is a part of a plan by its numbers from 1: of a server other than the plan's own, of a phase or of a flow in it, or of a probe. The zero
// Place is the plan as a whole.
type Place struct{ Server, Phase, Flow, Probe int }

// Check says what is wrong with a plan, all of it at once, or returns nil.
func (p *Plan) Check() error {
	c := &checker{plan: p, seen: map[string]bool{}}
	if p.Server.Host == "" {
		c.bad("no server is named")
	}
	c.server("", p.Server)
	if len(p.Others) >= MaxServers {
		c.bad("%d servers: want at most %d", len(p.Others)+1, MaxServers)
	}
	for i, s := range p.Others {
		c.place = Place{Server: i + 1}
		c.once("server", s.Name)
		what := fmt.Sprintf("server %q: ", s.Name)
		if s.Host == "" {
			c.bad("%swant a host", what)
		}
		c.server(what, s)
	}
	c.place = Place{}
	if n := len(p.Phases); n == 0 {
		c.bad("no phase")
	} else if n > MaxPhases {
		c.bad("%d phases: want at most %d", n, MaxPhases)
	}
	for i := range p.Phases {
		c.place = Place{Phase: i + 1}
		c.phase(&p.Phases[i])
	}
	c.place = Place{}
	if n := len(p.Probes); n > MaxProbes {
		c.bad("%d probes: want at most %d", n, MaxProbes)
	}
	for i := range p.Probes {
		c.place = Place{Probe: i + 1}
		c.probe(&p.Probes[i])
	}
	c.place = Place{}
	if len(p.Probes) > 0 && !slices.ContainsFunc(p.Probes, func(pr ProbePlan) bool { return !pr.Kind.isClosedLoop() }) {
		c.bad("all probes are closed loops, which meet a long queue seldom: add one with a schedule, as of kind auto, or leave out all of them")
	}
	return errors.Join(c.errs...)
}

// checker collects what is wrong with a plan.
type checker struct {
	plan  *Plan
	place Place // that is looked at
	seen  map[string]bool
	errs  []error
}

func (c *checker) bad(format string, args ...any) {
	c.errs = append(c.errs, &PlanError{c.place, fmt.Sprintf(format, args...)})
}

// once complains of a name that is missing or was there before.
func (c *checker) once(what, name string) {
	if name == "" || c.seen[what+name] {
		c.bad("%s %q: want a name, and each name once", what, name)
	}
	c.seen[what+name] = true
}

func (c *checker) server(what string, s Server) {
	c.family(what, s.Family)
	c.way(strings.TrimSuffix(what, ": "), s.Source, s.Interface, s.Family)
	if s.NetperfPort == 0 || s.IRTTPort == 0 {
		c.bad("%sport 0: want 1 to 65535", what)
	}
}

func (c *checker) family(what string, f int) {
	if f != 0 && f != 4 && f != 6 {
		c.bad("%saddress family %d: want 4 or 6", what, f)
	}
}

// way complains of a local address or a device that nothing can be sent from. what may be "", for the plan.
func (c *checker) way(what string, source netip.Addr, device string, family int) {
	if what != "" {
		what += " "
	}
	switch {
	case !source.IsValid():
	case source.IsUnspecified() || source.IsMulticast():
		c.bad("%sfrom %v: want an address of this host", what, source)
	case family != 0 && int(host.FamilyOf(source)) != family:
		c.bad("%sfrom %v: want an IPv%d address", what, source, family)
	}
	const longest = 15 // of Linux's names (IFNAMSIZ less its end), and long enough elsewhere
	if len(device) > longest || strings.ContainsFunc(device, func(r rune) bool { return r <= ' ' || r == '/' || r >= 0x7f }) {
		c.bad("%sthrough %q: want the name of a network device, as in eth0", what, device)
	}
}

// serverOf returns the server that a flow or probe names, and complains where there is none.
func (c *checker) serverOf(what, name string) Server {
	s, ok := c.plan.ServerOf(name)
	if !ok {
		c.bad("%s to server %q, which the plan does not have", what, name)
	}
	return s
}

func (c *checker) phase(ph *PhasePlan) {
	c.once("phase", ph.Name)
	if err := ph.check(); err != nil {
		c.bad("%v", err)
	}
	if ph.Skip < 0 || ph.Skip > 0 && (ph.Kind != Load || ph.Skip > ph.Length-MinLoad) {
		c.bad("%s without its first %v: want a load phase that lasts %v longer", ph.Name, ph.Skip, MinLoad)
	}
	for i := range ph.Flows {
		c.place.Flow = i + 1
		c.flow(&ph.Flows[i], ph)
	}
}

// span complains of a time that does not lie within its whole.
func (c *checker) span(what string, start, length time.Duration, whole string, end time.Duration) {
	switch {
	case start < 0 || length < 0:
		c.bad("%s from %v for %v: want no negative time", what, start, length)
	case start >= end && start > 0:
		c.bad("%s begins at %v, and %s is over at %v", what, start, whole, end)
	case length > end-start:
		c.bad("%s runs from %v for %v, and %s is over at %v", what, start, length, whole, end)
	}
}

func (c *checker) flow(f *FlowPlan, ph *PhasePlan) {
	c.once("flow", f.Name)
	what := fmt.Sprintf("flow %q", f.Name)
	if f.Direction != load.Download && f.Direction != load.Upload {
		c.bad("%s: want the direction download or upload", what)
	}
	if !f.DSCP.Valid() {
		c.bad("%s with DSCP %d: want 0 to 63", what, uint8(f.DSCP))
	}
	c.family(what+": ", f.Family)
	c.span(what, f.Start, f.Length, "its phase", ph.Length)
	if f.Rate < 0 || f.Above < 0 {
		c.bad("%s at %v, above %v: want a rate of 0 or more", what, f.Rate, f.Above)
	}
	if f.Above > 0 {
		c.held(what, f, ph)
	}
	if !plainWord(f.CongestionControl) {
		c.bad("%s with congestion control %q: want a name, as in cubic", what, f.CongestionControl)
	}
	s := c.serverOf(what, f.Server)
	c.way(what, f.Source, f.Interface, cmp.Or(f.Family, s.Family))
	c.protocol(what, f, s)
}

// held checks a flow that waits for what others carry.
func (c *checker) held(what string, f *FlowPlan, ph *PhasePlan) {
	if f.Start != 0 || f.Length != 0 || f.Bytes != 0 || f.Protocol != "" && f.Protocol != Netperf {
		c.bad("%s waits for the others' rate: want no start, length or number of bytes of its own, and the protocol netperf", what)
	}
	if !slices.ContainsFunc(ph.Flows, func(g FlowPlan) bool { return g.Direction == f.Direction && g.Above == 0 }) {
		c.bad("%s waits for the others' rate, and there are none in its direction", what)
	}
}

// plainWord reports whether s can be the name of an algorithm: as long as Linux allows (TCP_CA_NAME_MAX less its end), of plain characters.
func plainWord(s string) bool {
	return len(s) < 16 && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.')
	})
}

// protocol checks what the protocol of a flow asks for, and what it has no use for.
func (c *checker) protocol(what string, f *FlowPlan, s Server) {
	most := MaxWrite
	switch f.Protocol {
	case "", Netperf:
	case IPerf3, IPerf3UDP:
		if s.Host != "" && s.IPerf3Port == 0 {
			c.bad("%s: its server has no port for iperf3", what)
		}
	case HTTP, HTTP2:
		most = 0
	default:
		c.bad("%s of protocol %q: want %s, %s, %s, %s or %s", what, f.Protocol, Netperf, IPerf3, IPerf3UDP, HTTP, HTTP2)
		return
	}
	if f.Protocol == IPerf3UDP {
		most = MaxDatagram
		if f.Rate == 0 {
			c.bad("%s: datagrams want a rate", what)
		}
		if f.CongestionControl != "" {
			c.bad("%s: datagrams have no congestion control", what)
		}
	}
	switch {
	case most == 0 && f.Size != 0:
		c.bad("%s of %d bytes: HTTP has no size of its own", what, f.Size)
	case f.Size < 0 || f.Size > max(most, 0):
		c.bad("%s of %d bytes: want 1 to %d, or 0 for the protocol's own", what, f.Size, most)
	}
	if f.Protocol.isWeb() {
		c.url(what, f.URL)
		if f.Protocol == HTTP2 && !strings.HasPrefix(f.URL, "https:") {
			c.bad("%s with URL %q: HTTP/2 wants an https URL", what, f.URL)
		}
	} else if f.URL != "" {
		c.bad("%s has a URL, and is no HTTP flow", what)
	}
}

// url complains of a URL that can't be fetched; "" is the server's own.
func (c *checker) url(what, text string) {
	if text == "" {
		return
	}
	if u, err := url.Parse(text); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		c.bad("%s with URL %q: want http://HOST/... or https://HOST/...", what, text)
	}
}

func (c *checker) probe(pr *ProbePlan) {
	c.once("probe", pr.Name)
	what := fmt.Sprintf("probe %q", pr.Name)
	least := MinInterval
	if pr.Kind == ICMP || pr.Kind == IRTT {
		least = MinEchoInterval
	}
	if pr.Interval < least || pr.Interval > MaxInterval {
		c.bad("%s every %v: want %v to %v", what, pr.Interval, least, MaxInterval)
	}
	if !pr.DSCP.Valid() {
		c.bad("%s with DSCP %d: want 0 to 63", what, uint8(pr.DSCP))
	}
	c.family(what+": ", pr.Family)
	c.span(what, pr.Start, pr.Length, "the plan", c.plan.Length())
	s := c.serverOf(what, pr.Server)
	c.way(what, pr.Source, pr.Interface, cmp.Or(pr.Family, s.Family))
	if pr.Target != "" && pr.Server != "" {
		c.bad("%s goes to %q and to server %q: want one of them", what, pr.Target, pr.Server)
	}
	if pr.ECN > host.CE || pr.ECN > 0 && pr.Kind != UDP && pr.Kind != IRTT && pr.Kind != ICMP && pr.Kind != Route {
		c.bad("%s with ECN %d: want 0 to 3, and a kind of probe that is datagrams", what, uint8(pr.ECN))
	}
	c.kind(what, pr)
}

// kind checks what the kind of a probe has no use for.
func (c *checker) kind(what string, pr *ProbePlan) {
	sized, fetches, asks := false, false, false
	switch pr.Kind {
	case ICMP, UDP, IRTT, TCPRR, UDPRR, ClosedTCPRR, ClosedUDPRR:
		sized = true
	case Connect, TLS, Fetch, Page:
		fetches = true
	case DNS:
		asks = true
	}
	switch {
	case !slices.Contains(kinds, pr.Kind):
		c.bad("%s of kind %q: want %s", what, pr.Kind, kindNames())
		return
	case pr.Size < 0 || pr.Size > MaxDatagram:
		c.bad("%s of %d bytes: want 1 to %d, or 0 for the kind's own", what, pr.Size, MaxDatagram)
	case pr.Primary && pr.Kind.isClosedLoop():
		c.bad("%s is primary: it has no schedule, so take a probe that has one", what)
	case pr.Size > 0 && !sized:
		c.bad("%s of %d bytes: a probe of kind %s has no size", what, pr.Size, pr.Kind)
	}
	if fetches {
		c.url(what, pr.URL)
	} else if pr.URL != "" {
		c.bad("%s has a URL, and a probe of kind %s fetches nothing", what, pr.Kind)
	}
	if pr.Query != "" && !asks {
		c.bad("%s has a query, and a probe of kind %s looks up nothing", what, pr.Kind)
	}
}

func kindNames() string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

func (ph *PhasePlan) check() error {
	if ph.Kind == Load {
		if ph.Length < MinLoad || ph.Length > MaxLength {
			return fmt.Errorf("%s for %v: want %v to %v", ph.Name, ph.Length, MinLoad, MaxLength)
		}
		if n := len(ph.Flows); n < 1 || n > MaxFlows {
			return fmt.Errorf("%s with %d streams: want 1 to %d", ph.Name, n, MaxFlows)
		}
		return nil
	}
	switch ph.Kind {
	case Idle, Drain, After:
	default:
		return fmt.Errorf("%s of kind %q: want idle, load, drain or after", ph.Name, ph.Kind)
	}
	if ph.Length < 0 || ph.Length > MaxLength {
		return fmt.Errorf("%s for %v: want 0 s to %v", ph.Name, ph.Length, MaxLength)
	}
	if len(ph.Flows) > 0 {
		return fmt.Errorf("%s has flows, and is no load phase", ph.Name)
	}
	return nil
}
