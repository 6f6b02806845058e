package bufferbloat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/load"
)

// spacing is the lead of plans that begin with their load, where it is the time between the starts of flows.
func spacing() Parameter { return withHelp(leadParameter, "time between the starts of flows") }

// streams are the parameters of numbered flows, n of them by default.
func streams(direction load.Direction, n int) []Parameter {
	return []Parameter{
		{Name: direction.String() + "_streams", Type: Count, Default: fmt.Sprint(n), Help: "flows"},
		{Name: "markings", Type: Marks, Help: "marks of the flows"},
		{Name: "cc_algos", Type: Words, Help: "congestion control of the flows"},
		{Name: "stream_delays", Type: Durations, Help: "how much later than the first moment each flow begins"},
		{Name: "send_sizes", Type: Counts, Help: "bytes of the flows' writes"},
	}
}

// tcpPlans are the plain TCP tests.
func tcpPlans() []Definition {
	single := func(directions ...load.Direction) func(*draft) {
		return func(d *draft) {
			for _, direction := range directions {
				d.flow(direction, direction.String(), FlowPlan{})
			}
			d.icmp()
		}
	}
	list := []Definition{
		define("tcp_download", "1 flow down", single(load.Download)),
		define("tcp_upload", "1 flow up", single(load.Upload)),
		define("tcp_bidirectional", "1 flow each way", single(load.Download, load.Upload)),
		define("tcp_1down", "1 flow down", single(load.Download)),
		define("tcp_1up", "1 flow up", func(d *draft) {
			d.flow(load.Upload, "upload", FlowPlan{DSCP: get[dscp.CodePoint](d.Values, "marking")})
			d.icmp()
		}, Parameter{Name: "marking", Type: Mark, Help: "mark of the flow"}),
		define("tcp_1up_noping", "1 flow up and no probe", func(d *draft) {
			d.through = true
			d.flow(load.Upload, "upload", FlowPlan{})
		}),
		define("tcp_nup", "Any number of flows up", numbered(load.Upload), streams(load.Upload, 4)...),
		define("tcp_ndown", "Any number of flows down", numbered(load.Download), streams(load.Download, 4)...),
	}
	for _, n := range []int{2, 4, 6, 8, 12} {
		list = append(list,
			define(fmt.Sprintf("tcp_%dup", n), fmt.Sprintf("%d flows up", n), numbered(load.Upload), streams(load.Upload, n)...),
			define(fmt.Sprintf("tcp_%ddown", n), fmt.Sprintf("%d flows down", n), numbered(load.Download), streams(load.Download, n)...))
	}
	return append(list,
		define("tcp_upload_prio", "2 flows up, and a ping that asks for priority by the old TOS bits", func(d *draft) {
			d.flow(load.Upload, "upload", FlowPlan{})
			d.flow(load.Upload, "upload2", FlowPlan{})
			d.icmp()
			d.probe(ICMP, "ICMP PRIO", ProbePlan{DSCP: prio})
		}),
		define("tcp_2up_delay", "2 flows up, the second one later", func(d *draft) {
			d.through = true
			d.flow(load.Upload, "TCP stream 1", FlowPlan{Length: d.length + d.lead})
			d.flow(load.Upload, "TCP stream 2", FlowPlan{Start: d.lead, Length: d.length})
		}, spacing()),
		iteratedBidirectional())
}

// numbered is a plan of as many flows as its parameter says.
func numbered(direction load.Direction) func(*draft) {
	return func(d *draft) {
		marks := get[[]dscp.CodePoint](d.Values, "markings")
		for i := range min(get[int](d.Values, direction.String()+"_streams"), MaxFlows+1) {
			d.flow(direction, fmt.Sprintf("%v::%d", direction, i+1), FlowPlan{DSCP: nth(marks, i),
				CongestionControl: nth(get[[]string](d.Values, "cc_algos"), i), Start: nth(get[[]time.Duration](d.Values, "stream_delays"), i),
				Size: nth(get[[]int](d.Values, "send_sizes"), i)})
		}
		d.icmp()
	}
}

// iteratedBidirectional has a load phase for each of its rounds.
func iteratedBidirectional() Definition {
	d := define("iterated_bidirectional", "1 flow each way, several times", nil,
		Parameter{Name: "iterations", Type: Count, Default: "3", Help: "how many times"}, withDefault(lengthParameter, "10s"))
	d.Build = func(v *Values) (Plan, error) {
		b := newDraft("iterated_bidirectional", v)
		const most = 100
		n := get[int](v, "iterations")
		if n < 1 || n > most {
			return Plan{}, fmt.Errorf("iterated_bidirectional %d times: want 1 to %d", n, most)
		}
		for i := range n {
			b.both(fmt.Sprintf(" %d", i+1), FlowPlan{})
		}
		b.icmp()
		b.extra()
		p := Plan{Name: b.name, Server: v.servers[0], Probes: b.probes}
		for i := range n {
			p.Phases = append(p.Phases, PhasePlan{Name: fmt.Sprintf("load %d", i+1), Kind: Load, Length: b.length, Flows: b.flows[2*i : 2*i+2]},
				PhasePlan{Name: fmt.Sprintf("drain %d", i+1), Kind: Drain, Length: settle})
		}
		if b.lead > 0 {
			p.Phases = append([]PhasePlan{{Name: "lead", Kind: Idle, Length: b.lead}}, p.Phases...)
		}
		return p, nil
	}
	return d
}

// rival is one side of a duel: its label by flent's name, and its algorithm of congestion control, "" for the sender's default.
type rival struct{ label, cc string }

// algorithms is the parameter that puts others in the place of rivals.
func algorithms(rivals []rival) Parameter {
	var names []string
	for _, r := range rivals {
		names = append(names, r.cc)
	}
	return Parameter{Name: "algorithms", Type: Words, Default: strings.Join(names, ","), Help: "congestion control of each side; an empty one is the sender's default"}
}

// rivals are the sides as the parameter has them: one that is another than usual has its algorithm for a label.
func (d *draft) rivals(usual []rival) []rival {
	out := slices.Clone(usual)
	for i, cc := range get[[]string](d.Values, "algorithms") {
		switch {
		case i >= len(out):
			d.err = fmt.Errorf("%s: parameter algorithms: want at most %d", d.name, len(out))
		case cc != out[i].cc:
			out[i] = rival{cmp.Or(cc, "default"), cc}
		}
	}
	return out
}

// duelPlans set algorithms of congestion control against each other.
func duelPlans() []Definition {
	var list []Definition
	for _, x := range []struct {
		name, help  string
		first, side rival
	}{
		{"cubic_bbr", "CUBIC against BBR", rival{"Cubic", "cubic"}, rival{"BBR", "bbr"}},
		{"cubic_cdg", "CUBIC against CDG", rival{"Cubic", "cubic"}, rival{"CDG", "cdg"}},
		{"cubic_dctcp", "CUBIC against DCTCP", rival{"Cubic", "cubic"}, rival{"dctcp", "dctcp"}},
		{"cubic_reno", "CUBIC against Reno", rival{"Cubic", "cubic"}, rival{"Reno", "reno"}},
		{"cubic_ledbat", "The sender's default against LEDBAT", rival{"Cubic", ""}, rival{"Ledbat", "ledbat"}},
		{"cubic_westwood", "The sender's default against Westwood", rival{"Cubic", ""}, rival{"Westwood", "westwood"}},
	} {
		usual := []rival{x.first, x.side}
		list = append(list, define(x.name, x.help+", in two classes each way", func(d *draft) {
			for _, c := range []class{{"BE", dscp.CS0}, {"CS1", dscp.CS1}} {
				for _, r := range d.rivals(usual) {
					d.both(" "+r.label+" "+c.label, FlowPlan{DSCP: c.mark, CongestionControl: r.cc, Group: r.label})
				}
			}
			d.udp("BE", 0)
			d.udp("CS1", dscp.CS1)
			d.udp("CS6", cs6)
			d.icmp()
		}, algorithms(usual)))
	}
	for _, fourth := range []rival{{"CDG", "cdg"}, {"LEDBAT", "ledbat"}, {"LP", "lp"}} {
		usual := []rival{{"RENO", "reno"}, {"WESTWOOD", "westwood"}, {"CUBIC", "cubic"}, fourth}
		list = append(list, define("reno_cubic_westwood_"+fourth.cc, "Reno, CUBIC, Westwood and "+fourth.label+" together each way", func(d *draft) {
			for _, r := range d.rivals(usual) {
				d.both(" "+r.label, FlowPlan{CongestionControl: r.cc})
			}
			d.classProbes()
		}, algorithms(usual)))
	}
	pair := func(name, help string, usual ...rival) Definition {
		return define(name, help, func(d *draft) {
			for _, r := range d.rivals(usual) {
				d.flow(load.Upload, "TCP "+r.label, FlowPlan{CongestionControl: r.cc})
			}
			d.icmp()
		}, algorithms(usual))
	}
	cubic, ledbat := rival{"cubic", "cubic"}, rival{"ledbat", "ledbat"}
	list = append(list, pair("cubic_ledbat_1", "1 flow up by CUBIC and 1 by LEDBAT", cubic, ledbat),
		pair("ledbat_cubic_1", "1 flow up by LEDBAT and 1 by CUBIC", ledbat, cubic))
	return append(list, squares()...)
}

// pulse is a flow up for a while, counted in leads.
type pulse struct {
	rival
	start, length int // a length of 0 is the plan's, one of whole all the time
}

const whole = -1

// squares are square waves: flows that come and go.
func squares() []Definition {
	wave := func(name, help string, pulses ...pulse) Definition {
		var usual []rival
		for _, p := range pulses {
			usual = append(usual, p.rival)
		}
		return define(name, help, func(d *draft) {
			d.through = true
			for i, r := range d.rivals(usual) {
				p := pulses[i]
				f := FlowPlan{CongestionControl: r.cc, Start: time.Duration(p.start) * d.lead, Length: d.length}
				switch p.length {
				case 0:
				case whole:
					f.Length = max(d.length, 6*d.lead)
				default:
					f.Length = time.Duration(p.length) * d.lead
				}
				d.flow(load.Upload, "TCP "+r.label, f)
			}
		}, spacing(), algorithms(usual))
	}
	return []Definition{
		wave("tcp_2up_square", "1 flow up by CUBIC, and for short times a second by CUBIC, Reno and Westwood",
			pulse{rival{"cubic", "cubic"}, 0, whole}, pulse{rival{"cubic 2", "cubic"}, 1, 1}, pulse{rival{"reno", "reno"}, 3, 1},
			pulse{rival{"westwood", "westwood"}, 5, 1}),
		wave("tcp_2up_square_westwood", "1 flow up by Westwood, and for short times a second by CUBIC, Reno and Westwood",
			pulse{rival{"westwood baseline", "westwood"}, 0, whole}, pulse{rival{"cubic 2", "cubic"}, 1, 1}, pulse{rival{"reno", "reno"}, 3, 1},
			pulse{rival{"westwood", "westwood"}, 5, 1}),
		wave("tcp_4up_squarewave", "2 flows up by BBR and 2 by CUBIC, one after the other",
			pulse{rival{"bbr 1", "bbr"}, 0, 0}, pulse{rival{"cubic 2", "cubic"}, 1, 0}, pulse{rival{"bbr 4", "bbr"}, 3, 0}, pulse{rival{"cubic 3", "cubic"}, 5, 0}),
	}
}

// fairnessPlans load several servers at once, which are at different distances.
func fairnessPlans() []Definition {
	// fair is a plan of one stream a server, with labels and marks by their number.
	fair := func(up, down bool, classes ...class) func(*draft) {
		return func(d *draft) {
			for i, s := range d.servers {
				d.stream(s, classes[i].label, FlowPlan{DSCP: classes[i].mark}, up, down)
				d.probe(ICMP, fmt.Sprintf("ICMP%d %s", i+1, s.Host), ProbePlan{Server: s.Name, Primary: i == 0})
			}
		}
	}
	be := func(n int) (list []class) {
		for i := range n {
			list = append(list, class{fmt.Sprintf("BE%d", i+1), 0})
		}
		return list
	}
	own := []Parameter{
		{Name: "labels", Type: Words, Help: "names of the streams, by server"},
		{Name: "markings", Type: Marks, Help: "marks of the streams, by server"},
		{Name: "cc_algos", Type: Words, Help: "congestion control of the streams, by server"},
	}
	mixed := append(own[:len(own):len(own)], Parameter{Name: "data_directions", Type: Words, Help: "u, d or ud, by server; ud"})
	return []Definition{
		define("rtt_fair", "1 flow each way to each of 4 servers, two of them in the background class",
			fair(true, true, class{"BE1", 0}, class{"BE2", 0}, class{"BK1", dscp.CS1}, class{"BK2", dscp.CS1})).servers(4, 4),
		define("rtt_fair4be", "1 flow each way to each of 4 servers", fair(true, true, be(4)...)).servers(4, 4),
		define("rtt_fair6be", "1 flow each way to each of 6 servers", fair(true, true, be(6)...)).servers(6, 6),
		define("rtt_fair_up", "1 flow up to each of 4 servers", fair(true, false, be(4)...)).servers(4, 4),
		define("rtt_fair_var", "1 flow each way to each of any number of servers", fairVar(true, true), own...).servers(1, MaxServers),
		define("rtt_fair_var_up", "1 flow up to each of any number of servers", fairVar(true, false), own...).servers(1, MaxServers),
		define("rtt_fair_var_down", "1 flow down from each of any number of servers", fairVar(false, true), own...).servers(1, MaxServers),
		define("rtt_fair_var_mixed", "1 flow up, down or each way to each of any number of servers", fairVar(true, true), mixed...).servers(1, MaxServers),
		define("cisco_5tcpup", "1 flow up to each of 5 servers", cisco).servers(5, 5),
		define("cisco_5tcpup_2udpflood", "1 flow up to each of 5 servers beside datagrams at 6 Mbit/s", func(d *draft) {
			d.flow(load.Upload, "UDP upload", FlowPlan{Protocol: IPerf3UDP, Rate: 6 * bitrate.Mbit})
			cisco(d)
		}).servers(5, 5),
	}
}

func cisco(d *draft) {
	for i, s := range d.servers {
		d.stream(s, fmt.Sprintf("BE%d", i), FlowPlan{}, true, false)
		d.probe(ICMP, fmt.Sprintf("ICMP%d %s", i, s.Host), ProbePlan{Server: s.Name, Primary: i == 0})
	}
}

// stream adds the flows to one of several servers.
func (d *draft) stream(s Server, label string, f FlowPlan, up, down bool) {
	f.Server = s.Name
	label = " " + label + " " + s.Host
	if up {
		d.flow(load.Upload, "upload"+label, f)
	}
	if down {
		d.flow(load.Download, "download"+label, f)
	}
}

func fairVar(up, down bool) func(*draft) {
	return func(d *draft) {
		directions, _ := d.value["data_directions"].([]string)
		for i, s := range d.servers {
			label := nth(get[[]string](d.Values, "labels"), i)
			if label == "" {
				label = "BE"
			}
			f := FlowPlan{DSCP: nth(get[[]dscp.CodePoint](d.Values, "markings"), i), CongestionControl: nth(get[[]string](d.Values, "cc_algos"), i)}
			switch nth(directions, i) {
			case "u":
				d.stream(s, label, f, true, false)
			case "d":
				d.stream(s, label, f, false, true)
			default:
				d.stream(s, label, f, up, down)
			}
			d.probe(ICMP, "ICMP "+s.Host, ProbePlan{Server: s.Name, Primary: i == 0})
		}
	}
}
