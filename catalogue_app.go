package bufferbloat

import (
	"fmt"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
	"bufferbloat/load"
)

// applicationPlans are calls, pages, floods, bursts and pings.
func applicationPlans() []Definition {
	idle := withHelp(lengthParameter, "how long it lasts")
	flood := []Parameter{
		{Name: "udp_bandwidths", Type: Rates, Help: "rates, by server; 100mbit"},
		{Name: "udp_pktsizes", Type: Counts, Help: "bytes of a datagram's payload, by server"},
	}
	pageParameters := []Parameter{
		{Name: "url", Type: Word, Help: "page to load; the server's own"},
		{Name: "http_interval", Type: Duration, Default: "1s", Help: "time between page loads"},
	}
	bursts := []Parameter{
		withHelp(leadParameter, "idle time before each burst"),
		{Name: "burst_length", Type: Duration, Default: "5s", Help: "how long a burst lasts"},
		{Name: "burst_psize", Type: Count, Default: "500", Help: "bytes of a datagram's payload"},
		{Name: "burst_rate", Type: Rate, Default: "100mbit", Help: "rate of a burst"},
		{Name: "burst_ports", Type: Count, Default: "1", Help: "flows that share a burst, each of a port of its own"},
	}
	return []Definition{
		define("voip", "A voice call, and no load", func(d *draft) { d.unloaded = true; d.call() }, idle),
		define("voip-1up", "A voice call beside 1 flow up", func(d *draft) {
			d.flow(load.Upload, "upload", FlowPlan{})
			d.call()
		}),
		define("voip-rrul", "A voice call beside rrul_be", func(d *draft) { rrulBE(d); d.voipOnce() }),
		define("udp_flood", "Datagrams up at a rate", func(d *draft) {
			d.flow(load.Upload, "UDP upload", FlowPlan{Protocol: IPerf3UDP, Rate: get[bitrate.Bitrate](d.Values, "udp_bandwidth"),
				Size: get[int](d.Values, "udp_pktsize")})
			d.icmp()
		}, Parameter{Name: "udp_bandwidth", Type: Rate, Default: "100mbit", Help: "rate"},
			Parameter{Name: "udp_pktsize", Type: Count, Help: "bytes of a datagram's payload; the protocol's own"}),
		define("udp_flood_var_up", "Datagrams up at a rate, to each of any number of servers", floods(false), flood...).servers(1, MaxServers),
		define("udp_flood_var_up_stagger", "Datagrams up at a rate, to one server more after each part of the time", floods(true), flood...).servers(1, MaxServers),
		define("bursts", "Bursts of datagrams up, and probes in 3 classes", func(d *draft) { d.classProbes(); d.bursts() }, bursts...),
		define("bursts_11e", "Bursts of datagrams up, and probes in the 4 classes of Wi-Fi", func(d *draft) {
			d.udp("VO", cs7)
			d.udp("VI", dscp.CS5)
			d.probe(UDP, "UDP BE", ProbePlan{Primary: true})
			d.udp("BK", dscp.CS1)
			d.bursts()
		}, bursts...),
		define("http", "Page loads, and no load beside", func(d *draft) { d.unloaded = true; d.pages() }, append(pageParameters[:2:2], idle)...),
		define("http-1up", "Page loads beside 1 flow up", func(d *draft) {
			d.flow(load.Upload, "upload", FlowPlan{})
			d.pages()
		}, pageParameters...),
		define("http-1down", "Page loads beside 1 flow down", func(d *draft) {
			d.flow(load.Download, "download", FlowPlan{})
			d.pages()
		}, pageParameters...),
		define("http-rrul", "Page loads beside rrul_be", func(d *draft) {
			d.fourBE()
			d.pages()
			d.probes[0].Primary = false
			d.beProbes()
		}, pageParameters...),
		define("ping", "ICMP and UDP, and no load", func(d *draft) {
			d.unloaded = true
			d.icmp()
			d.probe(UDP, "UDP", ProbePlan{})
		}, idle),
	}
}

// call adds the voice call that the tables show.
func (d *draft) call() {
	d.voipOnce()
	d.probes[len(d.probes)-1].Primary = true
}

// voipOnce adds the voice call, which the parameter of every plan then need not.
func (d *draft) voipOnce() {
	d.value["voip"] = false
	d.voip()
}

func (d *draft) pages() {
	d.probe(Page, "HTTP latency", ProbePlan{Interval: get[time.Duration](d.Values, "http_interval"), URL: get[string](d.Values, "url"), Primary: true})
}

const floodRate = 100 * bitrate.Mbit

// floods send datagrams to each server; staggered, they begin one after the other and end together.
func floods(staggered bool) func(*draft) {
	return func(d *draft) {
		rates, sizes := get[[]bitrate.Bitrate](d.Values, "udp_bandwidths"), get[[]int](d.Values, "udp_pktsizes")
		for i, s := range d.servers {
			f := FlowPlan{Protocol: IPerf3UDP, Server: s.Name, Rate: nth(rates, i), Size: nth(sizes, i)}
			if f.Rate == 0 {
				f.Rate = floodRate
			}
			if staggered {
				f.Start = (d.length / time.Duration(len(d.servers))).Truncate(time.Millisecond) * time.Duration(i)
			}
			d.flow(load.Upload, "UDP upload "+s.Host, f)
			d.probe(ICMP, "ICMP "+s.Host, ProbePlan{Server: s.Name, Primary: i == 0})
		}
	}
}

// bursts adds as many bursts as fit into the length, each after as much idle time, by as many flows as it has ports; after the last there is none.
func (d *draft) bursts() {
	each := get[time.Duration](d.Values, "burst_length")
	if d.lead <= 0 || each <= 0 || d.length < d.lead+each {
		d.err = fmt.Errorf("%s: no burst of %v fits into %v after a lead of %v", d.name, each, d.length, d.lead)
		return
	}
	ports := max(get[int](d.Values, "burst_ports"), 1)
	rate := get[bitrate.Bitrate](d.Values, "burst_rate") / bitrate.Bitrate(ports)
	for i := range int(min(d.length/(d.lead+each), MaxFlows)) {
		for port := range min(ports, MaxFlows+1-len(d.flows)) { // one too many is enough for the check to say so
			name := fmt.Sprintf("Burst %d", i)
			if ports > 1 {
				name += fmt.Sprintf("::%d", port+1)
			}
			d.flow(load.Upload, name, FlowPlan{Protocol: IPerf3UDP, Rate: rate, Size: get[int](d.Values, "burst_psize"),
				Start: time.Duration(i) * (d.lead + each), Length: each})
		}
	}
	d.length, d.noTail = d.length-d.lead, true
}
