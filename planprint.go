package bufferbloat

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"bufferbloat/internal/host"
)

// String lists the plan's servers, phases, flows and probes with their marks, start and end, a line each. Times are those of the run, as planned.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan %s", quoteOdd(p.Name))
	if p.Workload != "" {
		fmt.Fprintf(&b, " (workload %s)", quoteOdd(p.Workload))
	}
	fmt.Fprintf(&b, ": server %s, %v\n", p.Server.text(p.usesIPerf3()), p.Length())
	for i := range p.Others {
		fmt.Fprintf(&b, "  server %s: %s\n", quoteOdd(p.Others[i].Name), p.Others[i].text(p.usesIPerf3()))
	}
	name := p.nameWidth()
	var at time.Duration
	for i := range p.Phases {
		ph := &p.Phases[i]
		skip := ""
		if ph.Skip > 0 {
			skip = fmt.Sprintf(", counted from %v on", at+ph.Skip)
		}
		fmt.Fprintf(&b, "  %8v to %8v  %s%s\n", at, at+ph.Length, quoteOdd(ph.Name), skip)
		for j := 0; j < len(ph.Flows); {
			f := &ph.Flows[j]
			start, end := at+f.Start, at+ph.Length
			if f.Length > 0 {
				end = start + f.Length
			}
			n := Alike(ph.Flows[j:])
			if n < many {
				n = 1
			}
			fmt.Fprintf(&b, "  %8v to %8v    flow  %-*s  %s\n", start, end, name, quoteOdd(f.Name), f.text())
			if n > 1 {
				fmt.Fprintf(&b, "  %8s    %8s          to %-*s  the same, %d flows in all\n", "", "", max(name-3, 0), quoteOdd(ph.Flows[j+n-1].Name), n)
			}
			j += n
		}
		at += ph.Length
	}
	for i := range p.Probes {
		pr := &p.Probes[i]
		end := at
		if pr.Length > 0 {
			end = pr.Start + pr.Length
		}
		fmt.Fprintf(&b, "  %8v to %8v    probe %-*s  %s\n", pr.Start, end, name, quoteOdd(pr.Name), p.probeText(pr))
	}
	return b.String()
}

// Text is a line for people: who the server is, and where; or why it can't be used.
func (p *Path) Text() string {
	name := quoteOdd(p.Host)
	if p.Name != "" {
		name += " (server " + quoteOdd(p.Name) + ")"
	}
	if p.Error != "" {
		return fmt.Sprintf("%s can't be used: %s", name, p.Error)
	}
	out := fmt.Sprintf("%s is %s, %s", name, p.Address, p.Family)
	if p.Server != "" {
		out += ", " + quoteOdd(p.Server)
	}
	if p.Setup > 0 {
		out += fmt.Sprintf(", TCP handshake in %v", p.Setup.Round(10*time.Microsecond))
	}
	return out
}

// many is how many flows that are alike are told in one place, because a line each would hide the plan.
const many = 13

// Alike returns how many of the first of flows are the same but for the number at the end of their names, which counts them; 1 where no two are.
func Alike(flows []FlowPlan) int {
	stem, number, ok := numberedName(flows[0].Name)
	if !ok {
		return 1
	}
	n := 1
	for ; n < len(flows); n++ {
		want := flows[0]
		if want.Name = fmt.Sprint(stem, number+n); flows[n] != want {
			break
		}
	}
	return n
}

// numberedName splits a name into what is before its number and the number.
func numberedName(name string) (stem string, n int, ok bool) {
	stem = strings.TrimRight(name, "0123456789")
	n, err := strconv.Atoi(name[len(stem):])
	return stem, n, err == nil && stem+strconv.Itoa(n) == name
}

// nameWidth is the width of the column of names.
func (p *Plan) nameWidth() (n int) {
	const most = 32
	for i := range p.Phases {
		for j := range p.Phases[i].Flows {
			n = max(n, len(quoteOdd(p.Phases[i].Flows[j].Name)))
		}
	}
	for i := range p.Probes {
		n = max(n, len(quoteOdd(p.Probes[i].Name)))
	}
	return min(n, most)
}

// usesIPerf3 reports whether any flow speaks iperf3.
func (p *Plan) usesIPerf3() bool {
	for i := range p.Phases {
		for j := range p.Phases[i].Flows {
			if f := &p.Phases[i].Flows[j]; f.Protocol == IPerf3 || f.Protocol == IPerf3UDP {
				return true
			}
		}
	}
	return false
}

func (s *Server) text(iperf3 bool) string {
	out := quoteOdd(s.Host)
	if a, err := netip.ParseAddr(s.Host); err == nil && s.Family == 0 {
		out += fmt.Sprintf(", %v", host.FamilyOf(a))
	}
	out += fmt.Sprintf(", netperf port %d, irtt port %d", s.NetperfPort, s.IRTTPort)
	if iperf3 {
		out += fmt.Sprintf(", iperf3 port %d", s.IPerf3Port)
	}
	if s.DataPort != 0 {
		out += fmt.Sprintf(", data port %d", s.DataPort)
	}
	out += familyText(s.Family)
	return out + wayText(s.Source, s.Interface)
}

// wayText says from where something is sent.
func wayText(source netip.Addr, device string) (out string) {
	if source.IsValid() {
		out = fmt.Sprintf(", from %v", source)
	}
	if device != "" {
		out += ", through " + quoteOdd(device)
	}
	return out
}

func familyText(f int) string {
	if f == 0 {
		return ""
	}
	return fmt.Sprintf(", IPv%d", f)
}

func toServer(name string) string {
	if name == "" {
		return ""
	}
	return ", to server " + quoteOdd(name)
}

// text is all that a flow is but its name and its time.
func (f *FlowPlan) text() string {
	transport, protocol := "TCP", f.Protocol
	switch protocol {
	case "":
		protocol = Netperf
	case IPerf3UDP:
		transport, protocol = "UDP", IPerf3
	}
	out := fmt.Sprintf("%-8v %s, %s, %v", f.Direction, transport, protocol, f.DSCP)
	if f.CongestionControl != "" {
		out += ", " + f.CongestionControl
	}
	if f.Rate != 0 {
		out += fmt.Sprintf(", %v", f.Rate)
	}
	if f.Bytes != 0 {
		out += fmt.Sprintf(", %d bytes", f.Bytes)
	}
	if f.Size != 0 {
		out += fmt.Sprintf(", %d bytes each", f.Size)
	}
	if f.URL != "" {
		out += ", " + quoteOdd(f.URL)
	}
	out += toServer(f.Server) + familyText(f.Family) + wayText(f.Source, f.Interface)
	if f.Group != "" {
		out += ", group " + quoteOdd(f.Group)
	}
	if f.Optional {
		out += ", optional"
	}
	if f.Above > 0 {
		out += fmt.Sprintf(", if the others carry %v", f.Above)
	}
	return out
}

// probeText is all that a probe is but its name and its time.
func (p *Plan) probeText(pr *ProbePlan) string {
	target := pr.Target
	if target == "" {
		target = "server"
		if s, ok := p.ServerOf(pr.Server); ok {
			target = s.Host
		}
	}
	out := fmt.Sprintf("%s to %s every %v, %v", pr.Kind, quoteOdd(target), pr.Interval, pr.DSCP)
	if pr.ECN != 0 {
		out += fmt.Sprintf(", %v", pr.ECN)
	}
	if pr.Size != 0 {
		out += fmt.Sprintf(", %d bytes", pr.Size)
	}
	if pr.URL != "" {
		out += ", " + quoteOdd(pr.URL)
	}
	if pr.Query != "" {
		out += ", " + quoteOdd(pr.Query)
	}
	out += toServer(pr.Server) + familyText(pr.Family) + wayText(pr.Source, pr.Interface)
	if pr.Optional {
		out += ", optional"
	}
	return out
}
