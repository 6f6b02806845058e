package bufferbloat

import (
	"testing"

	"bufferbloat/probe"
)

func TestHostsThatAnswerByICMPRepeatTheWholeByte(t *testing.T) {
	for _, kind := range []ProbeKind{ICMP, ICMPTimestamp} {
		s := ProbeSeries{Kind: string(kind), DSCP: "EF", Tally: probe.Tally{Marks: []probe.Mark{{DS: 0, Count: 1}, {DS: 0xb8, Count: 3}}}}
		ways := s.MarkWays()
		if len(ways) != 1 || ways[0].Way != WayBoth || ways[0].N != 4 || ways[0].Preserved != 3 || ways[0].Bleached != 1 {
			t.Errorf("%s: %+v, want one bleached of 4 on both ways", kind, ways)
		}
	}
}
