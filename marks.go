package bufferbloat

import (
	"fmt"
	"strings"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
)

// judgeMarks says which replies did not come with the mark that their probes were sent with, and which met a queue that marks in place of
// dropping. Only what came in is seen here: what a mark was when it reached the server, no protocol of ours tells.
func (r *Recording) judgeMarks() (found []Finding) {
	for i := range r.Probes {
		s := &r.Probes[i]
		sent, err := dscp.Parse(s.DSCP)
		if err != nil || len(s.Tally.Marks) == 0 {
			continue
		}
		var all, other, ce, cleared uint64
		var as []string
		for _, m := range s.Tally.Marks {
			all += m.Count
			switch host.ECNOf(m.DS) {
			case host.CE:
				ce += m.Count
			case host.NotECT:
				cleared += m.Count
			}
			if p := dscp.FromByte(m.DS); p != sent {
				other += m.Count
				as = addOnce(as, p.String())
			}
		}
		if other > 0 {
			found = append(found, altered(s, sent, as, other, all))
		}
		if ce > 0 {
			found = append(found, Finding{Code: "mark_ce", Severity: Note, Text: fmt.Sprintf(
				"%s probes: %d of %d replies carried CE: a queue on the way marks instead of dropping", s.Name, ce, all)})
		}
		// A host that answers an echo repeats the whole byte; an irtt server sets no ECN of its own.
		if s.Kind == string(ICMP) && s.ECN != "" && cleared > 0 {
			found = append(found, Finding{Code: "ecn_cleared", Severity: Note, Text: fmt.Sprintf(
				"%s probes: sent as %s, and %d of %d replies came as Not-ECT: the way up, the way down or the host that answers clears it", s.Name, s.ECN, cleared, all)})
		}
	}
	return found
}

// altered is the finding that other of all replies came as others than sent.
func altered(s *ProbeSeries, sent dscp.CodePoint, as []string, other, all uint64) Finding {
	f := Finding{Code: "mark_altered", Severity: Weakens}
	if other == all && len(as) == 1 && as[0] == dscp.CS0.String() {
		f.Code = "mark_bleached"
	}
	if sent == dscp.CS0 {
		f.Severity = Note // a mark that was not asked for changes what is measured only where it is acted on
	}
	where := "the way up, the way down or the host that answers changes it"
	if s.Kind == string(IRTT) {
		where = "the server was asked to send them with it, so the way down changes it, or the server does not set it"
	}
	f.Text = fmt.Sprintf("%s probes: sent as %v, and %d of %d replies came as %s: %s", s.Name, sent, other, all, strings.Join(as, ", "), where)
	return f
}
