package report

import (
	"bufferbloat/internal/dscp"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// Mark counts the replies of a series that came in with one DS byte.
type Mark struct {
	DS    uint8  `json:"ds"`
	DSCP  string `json:"dscp"`
	ECN   string `json:"ecn"`
	Count uint64 `json:"count"`
}

func newMarks(t *probe.Tally) (marks []Mark) {
	for _, m := range t.Marks {
		marks = append(marks, Mark{m.DS, dscp.FromByte(m.DS).String(), host.ECNOf(m.DS).String(), m.Count})
	}
	return marks
}
