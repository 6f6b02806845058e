package bufferbloat

import (
	"fmt"
	"strings"

	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// MarkWay is what became of a series' marks on one way.
type MarkWay struct {
	Way  string `json:"way"`  // "up" to the server, "down" from it, or "both" where nobody tells them apart
	DSCP string `json:"dscp"` // as sent
	ECN  string `json:"ecn"`  // as sent
	// N is the number of packets that tell. Preserved, Bleached and Altered ones are those whose code point came as sent, as CS0 in place of another, and as
	// any other; they add up to N.
	N         uint64 `json:"n"`
	Preserved uint64 `json:"preserved"`
	Bleached  uint64 `json:"bleached"`
	Altered   uint64 `json:"altered"`
	// ECNCleared ones were sent as ECT and came as Not-ECT; CE ones met a queue that marks in place of dropping.
	ECNCleared uint64 `json:"ecn_cleared"`
	CE         uint64 `json:"ce"`

	others []string // code points that they came as, other than the one sent
}

// The ways.
const (
	WayUp   = "up"
	WayDown = "down"
	WayBoth = "both"
)

// MarkWays returns what became of the marks of a series on the ways that are told, nil where none is. A host that answers an echo repeats the whole byte, so
// that replies tell of both ways together. An irtt or netperf server sets the mark itself that it was asked for, and no ECN, so that replies tell of the
// way down; a server that is this program's too says with which byte each probe came in.
func (s *ProbeSeries) MarkWays() (ways []MarkWay) {
	sent, err := dscp.Parse(s.DSCP)
	if err != nil {
		return nil
	}
	ecn := s.ECN
	if ecn == "" {
		ecn = host.NotECT.String()
	}
	add := func(way, ecn string, marks []probe.Mark) {
		if len(marks) > 0 {
			ways = append(ways, newMarkWay(way, sent, ecn, marks))
		}
	}
	switch ProbeKind(s.Kind) {
	case ICMP, ICMPTimestamp:
		add(WayBoth, ecn, s.Tally.Marks)
	case IRTT:
		add(WayUp, ecn, s.Tally.UpMarks)
		add(WayDown, host.NotECT.String(), s.Tally.Marks)
	case UDPRR:
		add(WayDown, host.NotECT.String(), s.Tally.Marks)
	}
	return ways
}

func newMarkWay(way string, sent dscp.CodePoint, ecn string, marks []probe.Mark) MarkWay {
	w := MarkWay{Way: way, DSCP: sent.String(), ECN: ecn}
	for _, m := range marks {
		w.N += m.Count
		switch p := dscp.FromByte(m.DS); {
		case p == sent:
			w.Preserved += m.Count
		case p == dscp.CS0:
			w.Bleached += m.Count
			w.others = addOnce(w.others, p.String())
		default:
			w.Altered += m.Count
			w.others = addOnce(w.others, p.String())
		}
		switch {
		case host.ECNOf(m.DS) == host.CE:
			w.CE += m.Count
		case host.ECNOf(m.DS) == host.NotECT && ecn != host.NotECT.String():
			w.ECNCleared += m.Count
		}
	}
	return w
}

// judgeMarks says which probes and replies did not come with the mark that they were sent with, and which met a queue that marks in place of dropping.
func (r *Recording) judgeMarks() (found []Finding) {
	for i := range r.Probes {
		s := &r.Probes[i]
		for _, w := range s.MarkWays() {
			found = append(found, w.judge(s.Name)...)
		}
	}
	return found
}

// judge is what a way gives to know about the series of a name.
func (w *MarkWay) judge(name string) (found []Finding) {
	what, where, queue := "replies", "the way up, the way down or the host that answers", "the way"
	switch w.Way {
	case WayUp:
		what, where, queue = "probes that reached the server", "the way up", "the way up"
	case WayDown:
		where, queue = "the way down", "the way down"
	}
	find := func(code string, severity Severity, format string, args ...any) {
		found = append(found, Finding{Code: code, Severity: severity, Text: name + " probes: " + fmt.Sprintf(format, args...)})
	}
	if n := w.Bleached + w.Altered; n > 0 {
		code, severity := "mark_altered", Weakens
		if w.Bleached == w.N {
			code = "mark_bleached"
		}
		if w.DSCP == dscp.CS0.String() {
			severity = Note // a mark that was not asked for changes what is measured only where it is acted on
		}
		doubt := ""
		if w.Way == WayDown {
			doubt = ", or the server does not set it"
		}
		find(code, severity, "sent as %s, and %d of %d %s came as %s: %s changes it%s", w.DSCP, n, w.N, what, strings.Join(w.others, ", "), where, doubt)
	}
	if w.CE > 0 {
		find("mark_ce", Note, "%d of %d %s carried CE: a queue on %s marks instead of dropping", w.CE, w.N, what, queue)
	}
	if w.ECNCleared > 0 {
		find("ecn_cleared", Note, "sent as %s, and %d of %d %s came as Not-ECT: %s clears it", w.ECN, w.ECNCleared, w.N, what, where)
	}
	return found
}
