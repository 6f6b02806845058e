package iperf3

import (
	"strings"
	"testing"
	"time"

	"bufferbloat/internal/pace"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
)

func TestAServersWordOfDatagramsThatCannotBeIsNotUsed(t *testing.T) {
	began := time.Unix(1_000_000_000, 0)
	for name, c := range map[string]struct {
		sent uint64
		word wire.StreamResult
		used bool
	}{
		"all":                             {10, wire.StreamResult{Bytes: 12_000, Packets: 10}, true},
		"a part":                          {10, wire.StreamResult{Bytes: 8400, Packets: 9, Errors: 2}, true},
		"none of what is missing at last": {10, wire.StreamResult{Bytes: 6000, Packets: 5}, true},
		"none, all lost":                  {10, wire.StreamResult{Packets: 10, Errors: 10}, true},
		"none, of none":                   {0, wire.StreamResult{}, true},
		"more datagrams than were sent":   {10, wire.StreamResult{Bytes: 12_000, Packets: 11}, false},
		"more bytes than were sent":       {10, wire.StreamResult{Bytes: 12_001, Packets: 10}, false},
		"bytes of nothing":                {0, wire.StreamResult{Bytes: 1200}, false},
		"more lost than there were":       {10, wire.StreamResult{Bytes: 1200, Packets: 3, Errors: 4}, false},
	} {
		r := &running{Test: &Test{o: TestOptions{UDP: true, Uploads: 1, Size: 1200}}, began: began, stopped: began.Add(time.Second), ended: began.Add(time.Second)}
		r.paced = []pace.Sent{{Sent: c.sent, First: began}}
		s := settling{running: r, Flow: &Flow{direction: load.Upload}, word: c.word, told: true}
		s.sentDatagrams()
		warned := strings.Contains(strings.Join(s.warnings, ""), "not used")
		if used := s.out.CountedBy == load.CountedByServer && s.out.Bytes == c.word.Bytes && s.out.Datagrams.HasReceiver; used != c.used || warned == c.used {
			t.Errorf("%s: got %+v, warnings %q; want it used: %v", name, s.out, s.warnings, c.used)
		}
		if flowed := s.out.Bytes > 0; s.out.First.IsZero() == flowed || s.out.Last.IsZero() == flowed {
			t.Errorf("%s: %d bytes came from %v to %v", name, s.out.Bytes, s.out.First, s.out.Last)
		}
	}
}
