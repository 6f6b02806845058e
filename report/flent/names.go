package flent

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
)

// tests are flent's tests of which a plan may have the name: TCP flows by fixed names or by number, and probes.
var tests = []string{"rrul", "rrul_be", "rrul_be_nflows", "rrul_be_iperf", "rrul_var", "rrul_noclassification", "rrul_torrent", "rrul_icmp", "rrul_up", "rrul_cs8",
	"rrul_prio", "rrul46", "rrul46compete", "rrul_100_up", "rrul_50_up", "rrul_50_down", "tcp_upload_1000", "dslreports_8dn",
	"tcp_download", "tcp_upload", "tcp_bidirectional", "tcp_1down", "tcp_1up", "tcp_1up_noping", "tcp_nup", "tcp_ndown", "tcp_upload_prio",
	"tcp_2up", "tcp_4up", "tcp_6up", "tcp_8up", "tcp_12up", "tcp_2down", "tcp_4down", "tcp_6down", "tcp_8down", "tcp_12down",
	"tcp_2up_delay", "tcp_2up_square", "tcp_2up_square_westwood", "tcp_4up_squarewave",
	"cubic_bbr", "cubic_cdg", "cubic_dctcp", "cubic_ledbat", "cubic_ledbat_1", "cubic_reno", "cubic_westwood", "ledbat_cubic_1",
	"reno_cubic_westwood_cdg", "reno_cubic_westwood_ledbat", "reno_cubic_westwood_lp",
	"rtt_fair", "rtt_fair4be", "rtt_fair6be", "rtt_fair_up", "rtt_fair_var", "rtt_fair_var_up", "rtt_fair_var_down", "rtt_fair_var_mixed",
	"cisco_5tcpup", "cisco_5tcpup_2udpflood", "voip", "voip-1up", "voip-rrul", "http", "http-1up", "http-1down", "http-rrul", "ping",
	"udp_flood", "udp_flood_var_up", "udp_flood_var_up_stagger", "bursts", "bursts_11e"}

// single are those of them in which a numbered stream has the bare name of its direction.
var single = []string{"tcp_download", "tcp_upload", "tcp_bidirectional", "tcp_1down", "tcp_1up", "tcp_1up_noping"}

// names gives each series of the recording the name under which flent looks for it.
func (o *writer) names() {
	o.test = generic
	if s := o.rec.Source; slices.Contains(tests, o.rec.Plan.Name) || s != nil && strings.HasPrefix(s.Program, "flent") {
		o.test = o.rec.Plan.Name
	}
	taken := map[string]bool{}
	unique := func(name string) string {
		out := name
		for n := 2; taken[out]; n++ {
			out = fmt.Sprintf("%s (%d)", name, n)
		}
		taken[out] = true
		return out
	}
	for i := range o.rec.Probes {
		o.probes = append(o.probes, unique(o.probeName(&o.rec.Probes[i])))
	}
	count := map[load.Direction]int{}
	for i := range o.rec.Flows {
		f := &o.rec.Flows[i]
		count[f.Direction]++
		o.flows = append(o.flows, unique(o.flowName(f, count[f.Direction])))
	}
	for i := range o.rec.Others {
		o.others = append(o.others, unique(o.rec.Others[i].Name))
	}
	o.summing()
	o.sums = slices.DeleteFunc(o.sums, func(s sum) bool { return taken[s.name] }) // the recording has flent's own
}

func (o *writer) probeName(p *bufferbloat.ProbeSeries) string {
	if strings.HasPrefix(p.Name, pingPrefix) || p.Name == httpLatency || p.Name == voip {
		return p.Name
	}
	rest := legal(p.Name)
	switch {
	case p.Name == icmp || p.Name == "ping" && p.Kind == icmp:
		rest = "ICMP"
	case p.Name == irtt || p.Name == "ping" && p.Kind == irtt:
		rest = "UDP BE"
		if o.test == "rrul_be" || strings.HasPrefix(o.test, "rrul_100") || strings.HasPrefix(o.test, "rrul_50") {
			rest = "UDP BE1"
		}
		if o.test == "ping" {
			rest = "UDP"
		}
	case p.Name == "ping":
		rest = strings.ToUpper(p.Kind)
	}
	if o.test == "rrul_var" {
		return pingPrefix + "::" + rest
	}
	return pingPrefix + " " + rest
}

// numbered reports whether a flow has no name but its number: "upload 3".
func numbered(name string) bool {
	name = strings.TrimPrefix(name, "TCP ")
	rest, ok := strings.CutPrefix(name, "upload")
	if !ok {
		rest, ok = strings.CutPrefix(name, "download")
	}
	digits := strings.TrimLeft(rest, " :")
	return ok && digits != rest && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// flowName is the name of the n-th flow of its direction.
func (o *writer) flowName(f *bufferbloat.Flow, n int) string {
	name := f.Name
	if numbered(name) || o.test != o.rec.Plan.Name {
		switch {
		case slices.Contains(single, o.test) && n == 1:
			return "TCP " + f.Direction.String()
		case o.test == "rrul_be_nflows", strings.HasPrefix(o.test, "rrul_100"), strings.HasPrefix(o.test, "rrul_50"):
			return fmt.Sprintf("TCP %v BE::%d", f.Direction, n)
		case o.test == "rrul_be" || o.test == "rrul_icmp" || o.test == "rrul_noclassification":
			if n == 1 {
				return fmt.Sprintf("TCP %v BE", f.Direction)
			}
			return fmt.Sprintf("TCP %v BE%d", f.Direction, n)
		}
		return fmt.Sprintf("TCP %v::%d", f.Direction, n)
	}
	if strings.HasPrefix(name, "upload") || strings.HasPrefix(name, "download") {
		return "TCP " + name
	}
	return name
}

// summing decides which sums the file has: those of a direction with several flows, or of both directions.
func (o *writer) summing() {
	all := map[load.Direction][]int{}
	for i := range o.rec.Flows {
		if len(o.rec.Flows[i].Readings()) > 1 {
			d := o.rec.Flows[i].Direction
			all[d] = append(all[d], i)
		}
	}
	if slices.Contains(single, o.test) {
		return
	}
	total := math.NaN()
	for _, d := range []load.Direction{load.Upload, load.Download} {
		of := all[d]
		if len(of) == 0 {
			continue
		}
		mean := o.goodput(of)
		o.sums = append(o.sums, sum{fmt.Sprintf("TCP %v avg", d), of, true, mean / float64(len(of))}, sum{fmt.Sprintf("TCP %v sum", d), of, false, mean})
		if math.IsNaN(total) {
			total = 0
		}
		total += mean
	}
	// Directions that ran one after the other have no common total.
	if up, down := all[load.Upload], all[load.Download]; len(up) > 0 && len(down) > 0 && o.rec.Flows[up[0]].Phase == o.rec.Flows[down[0]].Phase {
		o.sums = append(o.sums, sum{"TCP totals", slices.Concat(up, down), false, total})
	}
}

// goodput is what the receivers of flows counted over the time that data flowed, in Mbit/s; NaN where one of them is not known.
func (o *writer) goodput(of []int) float64 {
	var bytes uint64
	first, last := o.rec.Flows[of[0]].Result.First, o.rec.Flows[of[0]].Result.Last
	for _, i := range of {
		r := &o.rec.Flows[i].Result
		if !counted(r) {
			return math.NaN()
		}
		bytes += r.Bytes
		first, last = min(first, r.First), max(last, r.Last)
	}
	if last <= first {
		return math.NaN()
	}
	return bitrate.Of(bytes, last-first).Mbps()
}
