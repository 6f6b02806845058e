package report

import (
	"strconv"

	"bufferbloat"
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

// markColumns are the heads of the table of marks; from the fourth on they are numbers.
func markColumns() []string {
	return []string{"Marks of", "Way", "Sent as", "Packets", "Preserved", "Bleached", "Altered", "ECN cleared", "CE"}
}

// markRows returns a row for each way of each series that has a mark to lose, or whose packets have one that they were not sent with.
func (r *Result) markRows() (rows [][]string) {
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	plain := dscp.CS0.String()
	for i := range r.Series {
		s := &r.Series[i]
		for _, w := range s.MarkWays {
			if s.DSCP == plain && s.ECN == "" && w.Preserved == w.N && w.CE == 0 {
				continue
			}
			sent := w.DSCP
			if w.ECN != host.NotECT.String() {
				sent += ", " + w.ECN
			}
			way := map[string]string{bufferbloat.WayUp: "up", bufferbloat.WayDown: "down"}[w.Way]
			if way == "" {
				way = "up and down"
			}
			rows = append(rows, []string{printable(s.Name), way, printable(sent), count(w.N), count(w.Preserved), count(w.Bleached), count(w.Altered), count(w.ECNCleared),
				count(w.CE)})
		}
	}
	return rows
}
