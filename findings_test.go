package bufferbloat

import (
	"net/netip"
	"testing"

	"bufferbloat/probe"
)

func TestARefusalIsToldWithItsOwnReason(t *testing.T) {
	tally := probe.Tally{Rejected: 5, FirstError: "no buffer space", FirstRefusal: "connection refused"}
	for want, by := range map[string][]netip.Addr{
		"irtt probes: 5 were refused by 192.0.2.1: connection refused":                                                    {netip.MustParseAddr("192.0.2.1")},
		"irtt probes: 5 were answered otherwise than asked, or refused, and count as lost; the first: connection refused": nil,
	} {
		tally.RejectedBy = by
		r := Recording{Probes: []ProbeSeries{{Name: "irtt", Tally: tally}}}
		if found := r.judgeProbes(); len(found) != 1 || found[0].Text != want {
			t.Errorf("got %+v, want %q", found, want)
		}
	}
}
