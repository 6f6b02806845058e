package bufferbloat

import (
	"fmt"
	"time"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/load"
)

// The marks that the plans use, beside those of package dscp.
const (
	cs2  dscp.CodePoint = 16
	cs3  dscp.CodePoint = 24
	cs4  dscp.CodePoint = 32
	cs6  dscp.CodePoint = 48
	cs7  dscp.CodePoint = 56
	prio dscp.CodePoint = 4 // a TOS byte of 0x10, the old "minimise delay"
)

// class is a label and its mark.
type class struct {
	label string
	mark  dscp.CodePoint
}

// RRUL is the definition of the name rrul, for a program that carries out no other of the catalogue.
func RRUL() Definition {
	return define("rrul", "Real-time response under load: 4 flows each way in 4 classes, probes in 3", rrul)
}

// rrulPlans are the tests of real-time response under load.
func rrulPlans() []Definition {
	return []Definition{
		RRUL(),
		define("rrul_be", "RRUL with best effort alone", rrulBE),
		define("rrul_be_nflows", "RRUL with best effort alone and any number of flows", rrulNFlows,
			Parameter{Name: "upload_streams", Type: Count, Default: "4", Help: "flows up"},
			Parameter{Name: "download_streams", Type: Count, Default: "4", Help: "flows down"}),
		define("rrul_be_iperf", "RRUL with best effort alone, its uploads by iperf3", rrulIPerf),
		define("rrul_var", "RRUL with streams of your choice: each up, down and a probe in the same class", rrulVar,
			Parameter{Name: "bidir_streams", Type: Count, Default: "4", Help: "streams, each with a flow up, one down and a probe"},
			Parameter{Name: "labels", Type: Words, Help: "names of the streams"},
			Parameter{Name: "markings", Type: Marks, Help: "marks of the streams"},
			Parameter{Name: "cc_algos", Type: Words, Help: "congestion control of the streams"},
			Parameter{Name: "stream_delays", Type: Durations, Help: "how much later than the first moment each stream begins"},
			Parameter{Name: "send_sizes", Type: Counts, Help: "bytes of the streams' writes"}),
		define("rrul_noclassification", "RRUL with marks on its probes alone", func(d *draft) { d.fourBE(); d.classProbes() }),
		define("rrul_torrent", "Torrent-like traffic: 6 background flows each way beside 1 of best effort", rrulTorrent,
			Parameter{Name: "torrent_cc", Type: Word, Default: "ledbat", Help: "congestion control of the background flows"}),
		define("rrul_icmp", "RRUL with best effort alone and no probe but ICMP", func(d *draft) { d.fourBE(); d.icmp() }),
		define("rrul_up", "RRUL up alone", func(d *draft) {
			for _, c := range rrulClasses() {
				d.up(" "+c.label, c.mark)
			}
			d.classProbes()
		}),
		define("rrul_cs8", "RRUL with a flow and a probe in each of the 8 class selectors", rrulCS8),
		define("rrul_prio", "RRUL with best effort alone, and probes that ask for priority by the old TOS bits", func(d *draft) {
			d.fourBE()
			d.udp("BE1", 0)
			d.icmp()
			d.udp("PRIO", prio)
			d.probe(ICMP, "ICMP PRIO", ProbePlan{DSCP: prio})
		}),
		define("rrul46", "RRUL with two classes over IPv4 and two over IPv6", rrul46),
		define("rrul46compete", "IPv4 against IPv6 in the same classes, up flows staggered", rrul46compete),
		define("rrul_100_up", "100 flows up against 1 down", rrulMany(100, 1)),
		define("rrul_50_up", "50 flows up against 1 down", rrulMany(50, 1)),
		define("rrul_50_down", "50 flows down against 1 up", rrulMany(1, 50)),
		define("tcp_upload_1000", "1000 flows up", rrulMany(1000, 0)),
		define("dslreports_8dn", "8 flows down, as the test of dslreports has it, with request and response over TCP", func(d *draft) {
			for i := range 8 {
				d.down(fmt.Sprintf(" BE::%d", i+1), 0)
			}
			for i := range 3 {
				d.probe(TCPRR, fmt.Sprintf("TCP BE%d", i+1), ProbePlan{})
			}
			d.icmp()
		}),
	}
}

func rrulClasses() []class {
	return []class{{"BE", dscp.CS0}, {"BK", dscp.CS1}, {"CS5", dscp.CS5}, {"EF", dscp.EF}}
}

// classProbes are the four probes of RRUL.
func (d *draft) classProbes() {
	d.udp("EF", dscp.EF)
	d.udp("BK", dscp.CS1)
	d.udp("BE", 0)
	d.icmp()
}

// beProbes are the four probes of the plans of best effort alone.
func (d *draft) beProbes() {
	for i := range 3 {
		d.udp(fmt.Sprintf("BE%d", i+1), 0)
	}
	d.icmp()
}

// beLabel is the label of the i-th flow of best effort.
func beLabel(i int) string {
	if i == 0 {
		return " BE"
	}
	return fmt.Sprintf(" BE%d", i+1)
}

func (d *draft) fourBE() {
	for i := range 4 {
		d.both(beLabel(i), FlowPlan{})
	}
}

func rrul(d *draft) {
	for _, c := range rrulClasses() {
		d.both(" "+c.label, FlowPlan{DSCP: c.mark})
	}
	d.classProbes()
}

func rrulBE(d *draft) {
	d.fourBE()
	d.beProbes()
}

func rrulIPerf(d *draft) {
	for i := range 4 {
		d.flow(load.Upload, "upload"+beLabel(i), FlowPlan{Protocol: IPerf3})
		d.down(beLabel(i), 0)
	}
	d.beProbes()
}

func rrulNFlows(d *draft) {
	d.many(get[int](d.Values, "upload_streams"), get[int](d.Values, "download_streams"))
	d.udp("BE", 0)
	d.icmp()
}

// many adds numbered flows of best effort. What is beyond the limit of a plan by one is enough for the check to say so.
func (d *draft) many(up, down int) {
	for i := range min(up, MaxFlows+1) {
		d.up(fmt.Sprintf(" BE::%d", i+1), 0)
	}
	for i := range min(down, MaxFlows+1) {
		d.down(fmt.Sprintf(" BE::%d", i+1), 0)
	}
}

func rrulMany(up, down int) func(*draft) {
	return func(d *draft) {
		label := func(n, i int) string {
			if n == 1 {
				return " BE"
			}
			return fmt.Sprintf(" BE::%d", i+1)
		}
		for i := range up {
			d.up(label(up, i), 0)
		}
		for i := range down {
			d.down(label(down, i), 0)
		}
		d.beProbes()
	}
}

func rrulVar(d *draft) {
	d.probe(ICMP, "ICMP", ProbePlan{Primary: true})
	marks := get[[]dscp.CodePoint](d.Values, "markings")
	for i := range min(get[int](d.Values, "bidir_streams"), MaxFlows+1) {
		mark := nth(marks, i)
		label := nth(get[[]string](d.Values, "labels"), i)
		if label == "" {
			label = fmt.Sprintf("%d (%v)", i, mark)
		}
		d.both("::"+label, FlowPlan{DSCP: mark, CongestionControl: nth(get[[]string](d.Values, "cc_algos"), i),
			Start: nth(get[[]time.Duration](d.Values, "stream_delays"), i), Size: nth(get[[]int](d.Values, "send_sizes"), i)})
		d.udp(label, mark)
	}
}

func rrulTorrent(d *draft) {
	for i := range 6 {
		d.both(fmt.Sprintf(" Torrent::%d", i+1), FlowPlan{DSCP: dscp.CS1, CongestionControl: get[string](d.Values, "torrent_cc"), Group: "Torrent"})
	}
	d.both(" BE", FlowPlan{})
	d.classProbes()
}

func rrulCS8(d *draft) {
	classes := []class{{"CS0_BE", dscp.CS0}, {"CS1_BK", dscp.CS1}, {"CS2", cs2}, {"CS3", cs3}, {"CS4", cs4}, {"CS5", dscp.CS5}, {"CS6", cs6}, {"CS7", cs7}}
	for _, c := range classes {
		d.both(" "+c.label, FlowPlan{DSCP: c.mark})
	}
	for i := range classes {
		c := classes[len(classes)-1-i]
		d.udp(c.label, c.mark)
	}
	d.icmp()
}

func rrul46(d *draft) {
	for i, c := range rrulClasses() {
		family := 4
		if i >= 2 {
			family = 6
		}
		d.both(" "+c.label, FlowPlan{DSCP: c.mark, Family: family})
	}
	d.probe(UDP, "UDP BK", ProbePlan{DSCP: dscp.CS1, Family: 4})
	d.probe(UDP, "UDP BE", ProbePlan{Family: 4})
	d.probe(ICMP, "ICMP", ProbePlan{Family: 6, Primary: true})
	d.probe(UDP, "UDP6 BE", ProbePlan{Family: 6})
	d.probe(UDP, "UDP6 BK", ProbePlan{DSCP: dscp.CS1, Family: 6})
}

// rrul46compete has flows that all last as long, so that those that begin later end later.
func rrul46compete(d *draft) {
	for _, f := range []struct {
		label  string
		mark   dscp.CodePoint
		family int
		later  time.Duration
	}{{" BE", 0, 4, 2 * time.Second}, {" BK", dscp.CS1, 4, time.Second}, {" 6BE", 0, 6, 4 * time.Second}, {" 6BK", dscp.CS1, 6, 0}} {
		d.flow(load.Upload, "upload"+f.label, FlowPlan{DSCP: f.mark, Family: f.family, Start: f.later, Length: d.length})
		d.flow(load.Download, "download"+f.label, FlowPlan{DSCP: f.mark, Family: f.family, Length: d.length})
	}
	d.probe(UDP, "UDP 6EF", ProbePlan{DSCP: dscp.EF, Family: 6})
	d.probe(UDP, "UDP 6BK", ProbePlan{DSCP: dscp.CS1, Family: 6})
	d.probe(UDP, "UDP BE", ProbePlan{Family: 4})
	d.probe(UDP, "UDP 6BE", ProbePlan{Family: 6})
	d.probe(ICMP, "ICMP", ProbePlan{Family: 4, Primary: true})
	d.probe(ICMP, "ICMP6", ProbePlan{Family: 6})
}

// RRUL2013 is the workload of the plan rrul2013. Its number changes with what it sends.
const RRUL2013 = "rrul2013/1"

// rrul2013 is RRUL as its specification asks for it; docs/catalogue.md says where each requirement is met.
func rrul2013(d *draft) {
	d.workload = RRUL2013
	d.skip = get[time.Duration](d.Values, "boost")
	families := []int{4, 6}
	switch get[string](d.Values, "families") {
	case "4":
		families = []int{4, 4}
	case "6":
		families = []int{6, 6}
	}
	both := families[0] != families[1]
	// The second set begins later and in another class, which shows how long a start takes beside a load that stands.
	for _, set := range []struct {
		class
		later time.Duration
	}{{class{"BK", dscp.CS1}, 0}, {class{"BE", dscp.CS0}, time.Second}} {
		for _, family := range families {
			d.both(fmt.Sprintf(" %s IPv%d", set.label, family), FlowPlan{DSCP: set.mark, Family: family, Start: set.later, Optional: both})
		}
	}
	const call = 10 * time.Millisecond
	d.probe(IRTT, "VoIP BE", ProbePlan{Interval: call, Size: voiceSize, Primary: true})
	d.probe(IRTT, "VoIP BK", ProbePlan{Interval: call, Size: voiceSize, DSCP: dscp.CS1})
	d.probe(IRTT, "VoIP EF", ProbePlan{Interval: call, Size: voiceSize, DSCP: dscp.EF})
	for _, c := range []class{{"BE", dscp.CS0}, {"BK", dscp.CS1}, {"EF", dscp.EF}} {
		d.probe(TCPRR, "TCP RR "+c.label, ProbePlan{DSCP: c.mark, Optional: true})
		d.probe(UDPRR, "UDP RR "+c.label, ProbePlan{DSCP: c.mark, Optional: true})
	}
	if both {
		d.probe(UDP, "UDP IPv4", ProbePlan{Family: 4, Optional: true})
		d.probe(UDP, "UDP IPv6", ProbePlan{Family: 6, Optional: true})
	}
	d.probe(UDP, "UDP ECT(0)", ProbePlan{ECN: host.ECT0, Optional: true})
	d.probe(UDP, "UDP ECT(1)", ProbePlan{ECN: host.ECT1, Optional: true})
	d.probe(Page, "page", ProbePlan{Interval: get[time.Duration](d.Values, "page_interval"), URL: get[string](d.Values, "page"), Optional: true})
	d.probe(DNS, "DNS", ProbePlan{Interval: 2 * d.step, Target: get[string](d.Values, "resolver"), Query: get[string](d.Values, "name"), Optional: true})
	d.probe(Route, "path", ProbePlan{Interval: time.Second, Optional: true})
	d.probe(ICMP, "ICMP", ProbePlan{Optional: true})
}

// ownPlans are the plans that have no name of flent's.
func ownPlans() []Definition {
	return []Definition{
		speedtestDefinition(),
		define("rrul2013", "RRUL as its specification asks for it: voice, pages, DNS, request and response, both families, 3 classes", rrul2013,
			withDefault(leadParameter, "10s"), withDefault(stepParameter, "100ms"),
			Parameter{Name: "families", Type: Word, Default: "46", Choices: []string{"4", "6", "46"}, Help: "of the flows; of two, what the server has not is left out"},
			Parameter{Name: "boost", Type: Duration, Default: "10s", Help: "what statistics leave out at the load's beginning"},
			Parameter{Name: "page", Type: Word, Help: "URL of a page to load meanwhile; the server's own"},
			Parameter{Name: "page_interval", Type: Duration, Default: "1s", Help: "time between page loads"},
			Parameter{Name: "resolver", Type: Word, Help: "DNS server to ask; the server"},
			Parameter{Name: "name", Type: Word, Help: "name to look up"}),
	}
}

func speedtestDefinition() Definition {
	d := Definition{Name: "speedtest", Help: "Download, upload, and the latency meanwhile, as speedtest.sh has it"}
	d.Parameters = []Parameter{
		withHelp(withDefault(lengthParameter, "30s"), "how long the load lasts, in each direction"),
		withHelp(leadParameter, "length of the idle baseline before the load"),
		withDefault(stepParameter, "100ms"),
		{Name: "streams", Type: Count, Default: "5", Help: "flows in each direction"},
		{Name: "concurrent", Type: YesNo, Default: "no", Help: "both directions at once instead of one after the other"},
		{Name: "probe", Type: Word, Default: string(Auto), Choices: []string{string(Auto), string(ICMP), string(IRTT), string(TCP)}, Help: "kind of probe"},
		{Name: "mark", Type: Mark, Help: "mark of flows and probes"},
		{Name: "ping", Type: Word, Help: "host to probe; the server"},
	}
	d.Build = func(v *Values) (Plan, error) {
		return Speedtest(SpeedtestOptions{Server: v.servers[0], PingHost: get[string](v, "ping"), Idle: get[time.Duration](v, "lead"),
			Length: get[time.Duration](v, "length"), Streams: min(get[int](v, "streams"), MaxFlows+1), Concurrent: get[bool](v, "concurrent"),
			Interval: get[time.Duration](v, "step"), DSCP: get[dscp.CodePoint](v, "mark"), Probe: ProbeKind(get[string](v, "probe"))}), nil
	}
	return d
}
