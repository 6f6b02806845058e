package bufferbloat

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/load"
)

// Definition is a plan with parameters: one of the catalogue, or what a file declares.
type Definition struct {
	Name       string
	Help       string // one line
	Parameters []Parameter
	// Servers is how many servers it wants, and MostServers how many it takes; 0 is 1, and as many as it wants.
	Servers, MostServers int
	// Own are the servers that it names itself, the plan's own first. Those that are given take their places; where a host is "", one must be.
	Own []Server
	// Build makes the plan of the servers and parameters given.
	Build func(*Values) (Plan, error)
}

// Catalogue returns all definitions that come with the program, in the order in which they are listed. The plans with flent's names have flent's
// flows, marks, times and names of series (see docs/catalogue.md for the few differences).
func Catalogue() []Definition {
	return slices.Concat(ownPlans(), rrulPlans(), tcpPlans(), duelPlans(), fairnessPlans(), applicationPlans())
}

// Find returns the definition of a name, or false where the catalogue has none.
func Find(name string) (Definition, bool) {
	all := Catalogue()
	i := slices.IndexFunc(all, func(d Definition) bool { return d.Name == name })
	if i < 0 {
		return Definition{}, false
	}
	return all[i], true
}

// Parameter returns the parameter of a name, or false where d declares none.
func (d *Definition) Parameter(name string) (Parameter, bool) {
	i := slices.IndexFunc(d.Parameters, func(p Parameter) bool { return p.Name == name })
	if i < 0 {
		return Parameter{}, false
	}
	return d.Parameters[i], true
}

// Plan returns the plan for servers, the plan's own first, with the parameters in set and the others by default, checked. A server without a name
// gets its number for one, "2" or "3", and one without a port the protocol's own.
func (d *Definition) Plan(servers []Server, set map[string]string) (Plan, error) {
	v, err := d.values(set)
	if err != nil {
		return Plan{}, err
	}
	if v.servers, err = d.place(servers); err != nil {
		return Plan{}, err
	}
	p, err := d.Build(v)
	if err != nil {
		return Plan{}, err
	}
	if len(p.Others) == 0 {
		p.Others = nil // as in a plan that was stored
	}
	return p, p.Check()
}

// The ports of servers that name no other.
const (
	NetperfPort = 12865
	IRTTPort    = 2112
	IPerf3Port  = 5201
)

// place puts the servers that were given into the places that d has for them.
func (d *Definition) place(given []Server) ([]Server, error) {
	least := max(d.Servers, len(d.Own), 1)
	n, most := max(len(given), len(d.Own)), max(d.MostServers, least)
	if n < least || n > most {
		return nil, fmt.Errorf("%s with %d servers: want %s", d.Name, n, serverCount(least, most))
	}
	out := make([]Server, n)
	copy(out, d.Own)
	for i := range out {
		s := &out[i]
		if i < len(given) {
			s.replace(given[i])
		}
		if i > 0 && s.Name == "" {
			s.Name = fmt.Sprint(i + 1)
		}
		if s.Host == "" {
			return nil, fmt.Errorf("%s has no host for server %d: name it", d.Name, i+1)
		}
		s.NetperfPort, s.IRTTPort = cmp.Or(s.NetperfPort, NetperfPort), cmp.Or(s.IRTTPort, IRTTPort)
		s.IPerf3Port = cmp.Or(s.IPerf3Port, IPerf3Port)
	}
	return out, nil
}

// replace sets what g has.
func (s *Server) replace(g Server) {
	s.Name, s.Host, s.Family = cmp.Or(g.Name, s.Name), cmp.Or(g.Host, s.Host), cmp.Or(g.Family, s.Family)
	s.NetperfPort, s.DataPort = cmp.Or(g.NetperfPort, s.NetperfPort), cmp.Or(g.DataPort, s.DataPort)
	s.IRTTPort, s.IPerf3Port = cmp.Or(g.IRTTPort, s.IRTTPort), cmp.Or(g.IPerf3Port, s.IPerf3Port)
	s.Source, s.Interface = cmp.Or(g.Source, s.Source), cmp.Or(g.Interface, s.Interface)
}

func serverCount(least, most int) string {
	switch {
	case most == 1:
		return "1 server"
	case least == most:
		return fmt.Sprintf("%d servers", least)
	}
	return fmt.Sprintf("%d to %d servers", least, most)
}

// values reads all parameters.
func (d *Definition) values(set map[string]string) (*Values, error) {
	v := &Values{text: map[string]string{}, value: map[string]any{}}
	var errs []error
	for _, p := range d.Parameters {
		text, given := set[p.Name]
		if !given {
			text = p.Default
		}
		value, err := p.parse(text)
		if err != nil {
			errs = append(errs, err)
		}
		v.text[p.Name], v.value[p.Name] = strings.TrimSpace(text), value
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if _, ok := d.Parameter(name); !ok {
			errs = append(errs, fmt.Errorf("%s has no parameter %q: want %s", d.Name, name, strings.Join(d.names(), ", ")))
		}
	}
	return v, errors.Join(errs...)
}

func (d *Definition) names() []string {
	var names []string
	for _, p := range d.Parameters {
		names = append(names, p.Name)
	}
	return names
}

// The parameters of nearly all plans.
var (
	lengthParameter = Parameter{Name: "length", Type: Duration, Default: "60s", Help: "how long the load lasts"}
	leadParameter   = Parameter{Name: "lead", Type: Duration, Default: "5s", Help: "idle time before the load, and after it"}
	stepParameter   = Parameter{Name: "step", Type: Duration, Default: "200ms", Help: "time between probes"}
)

// withDefault is p with another default.
func withDefault(p Parameter, text string) Parameter {
	p.Default = text
	return p
}

// withHelp is p with another help.
func withHelp(p Parameter, text string) Parameter {
	p.Help = text
	return p
}

// extras are the parameters that every plan of flows takes.
func extras() []Parameter {
	return []Parameter{
		{Name: "protocol", Type: Word, Default: string(Netperf), Choices: []string{string(Netperf), string(IPerf3), string(HTTP)}, Help: "what the TCP flows speak"},
		{Name: "cc", Type: Word, Help: "congestion control of the flows that name none; the sender's default"},
		{Name: "ping_hosts", Type: Words, Help: "further hosts to ping"},
		{Name: "ping_markings", Type: Marks, Help: "marks of those pings, in their order"},
		{Name: "voip", Type: YesNo, Default: "no", Help: "also a voice call to the server: 172 bytes every 20 ms"},
	}
}

// define makes a definition of flows and probes. Parameters of own replace the general ones of their names.
func define(name, help string, shape func(*draft), own ...Parameter) Definition {
	d := Definition{Name: name, Help: help}
	for _, p := range slices.Concat([]Parameter{lengthParameter, leadParameter, stepParameter}, own, extras()) {
		if i := slices.IndexFunc(d.Parameters, func(q Parameter) bool { return q.Name == p.Name }); i >= 0 {
			d.Parameters[i] = p
			continue
		}
		d.Parameters = append(d.Parameters, p)
	}
	d.Build = func(v *Values) (Plan, error) {
		b := newDraft(name, v)
		shape(b)
		p := b.plan()
		return p, b.err
	}
	return d
}

// servers is d for other numbers of servers.
func (d Definition) servers(least, most int) Definition {
	d.Servers, d.MostServers = least, most
	return d
}

// draft is a plan under way.
type draft struct {
	*Values
	name, workload     string
	length, lead, step time.Duration
	// through says that the load lasts from the beginning to the end, so that there is no lead and no tail.
	through  bool
	noTail   bool
	unloaded bool          // it has no flows
	skip     time.Duration // of the load, for statistics
	err      error
	flows    []FlowPlan
	probes   []ProbePlan
	taken    map[string]bool
}

func newDraft(name string, v *Values) *draft {
	return &draft{Values: v, name: name, length: get[time.Duration](v, "length"), lead: get[time.Duration](v, "lead"),
		step: get[time.Duration](v, "step"), taken: map[string]bool{}}
}

// unique returns name, with a number where it is taken.
func (d *draft) unique(name string) string {
	out := name
	for n := 2; d.taken[out]; n++ {
		out = fmt.Sprintf("%s (%d)", name, n)
	}
	d.taken[out] = true
	return out
}

// flow adds a flow. Its name is flent's without the "TCP " of the two directions: "upload BE" is the series "TCP upload BE".
func (d *draft) flow(direction load.Direction, name string, f FlowPlan) {
	f.Direction, f.Name = direction, d.unique(name)
	d.flows = append(d.flows, f)
}

// up and down add a flow with a mark, and both one in each direction.
func (d *draft) up(label string, mark dscp.CodePoint) {
	d.flow(load.Upload, "upload"+label, FlowPlan{DSCP: mark})
}

func (d *draft) down(label string, mark dscp.CodePoint) {
	d.flow(load.Download, "download"+label, FlowPlan{DSCP: mark})
}

func (d *draft) both(label string, f FlowPlan) {
	d.flow(load.Upload, "upload"+label, f)
	d.flow(load.Download, "download"+label, f)
}

// probe adds a probe; its interval is the step where it has none. Its name is flent's without "Ping (ms) ".
func (d *draft) probe(kind ProbeKind, name string, p ProbePlan) {
	p.Kind, p.Name = kind, d.unique(name)
	if p.Interval == 0 {
		p.Interval = d.step
	}
	d.probes = append(d.probes, p)
}

func (d *draft) udp(label string, mark dscp.CodePoint) {
	d.probe(UDP, "UDP "+label, ProbePlan{DSCP: mark})
}

// icmp adds the ping that the tables show.
func (d *draft) icmp() { d.probe(ICMP, "ICMP", ProbePlan{Primary: true}) }

// A voice call by G.711: 160 bytes of sound and 12 of RTP.
const (
	voiceSize     = 172
	voiceInterval = 20 * time.Millisecond
)

func (d *draft) voip() { d.probe(IRTT, "VoIP", ProbePlan{Interval: voiceInterval, Size: voiceSize}) }

// extra adds what the parameters of every plan ask for.
func (d *draft) extra() {
	if get[bool](d.Values, "voip") {
		d.voip()
	}
	marks := get[[]dscp.CodePoint](d.Values, "ping_markings")
	for i, host := range get[[]string](d.Values, "ping_hosts") {
		d.probe(ICMP, "ICMP "+host+" (extra)", ProbePlan{Target: host, DSCP: nth(marks, i)})
	}
	for i := range d.flows {
		f := &d.flows[i]
		if protocol := Protocol(get[string](d.Values, "protocol")); f.Protocol == "" && protocol != Netperf {
			f.Protocol = protocol
		}
		if f.CongestionControl == "" && f.Protocol != IPerf3UDP {
			f.CongestionControl = get[string](d.Values, "cc")
		}
	}
}

// settle is how long the queue has to empty before the tail counts as idle; the drain adds the highest RTT to it.
const settle = time.Second

// plan puts the flows and probes into phases: lead, load, drain, tail.
func (d *draft) plan() Plan {
	d.extra()
	p := Plan{Name: d.name, Workload: d.workload, Server: d.servers[0], Others: d.servers[1:], Probes: d.probes}
	if len(d.flows) == 0 && !d.unloaded && d.err == nil {
		d.err = fmt.Errorf("%s without a flow", d.name)
	}
	if len(d.flows) == 0 {
		p.Phases = []PhasePlan{{Name: "idle", Kind: Idle, Length: d.length}}
		return p
	}
	loaded := PhasePlan{Name: "load", Kind: Load, Length: d.length, Skip: d.skip, Flows: d.flows}
	for _, f := range d.flows {
		if f.Length > 0 {
			loaded.Length = max(loaded.Length, f.Start+f.Length)
		}
	}
	if d.through || d.lead == 0 {
		p.Phases = []PhasePlan{loaded}
		return p
	}
	p.Phases = []PhasePlan{{Name: "lead", Kind: Idle, Length: d.lead}, loaded}
	if !d.noTail {
		drain := min(settle, d.lead/2)
		p.Phases = append(p.Phases, PhasePlan{Name: "drain", Kind: Drain, Length: drain}, PhasePlan{Name: "tail", Kind: After, Length: d.lead - drain})
	}
	return p
}
