package bufferbloat

import (
	"testing"
	"time"

	"bufferbloat/load"
)

func TestDatagramsOfWhichNoneCameAreMissedInTheirOwnTime(t *testing.T) {
	start := time.Unix(1_000_000_000, 0)
	for name, c := range map[string]struct{ first, want time.Duration }{
		"none came":              {0, 11 * time.Second},
		"the first one was late": {10200 * time.Millisecond, 11200 * time.Millisecond},
	} {
		r := &run{start: start, rec: newRecorder(start, nil)}
		res := load.Result{Datagrams: &load.Datagrams{Size: 1200, Intervals: []load.Interval{{To: time.Second}}}}
		if c.first > 0 {
			res.First = start.Add(c.first)
		}
		r.keepDatagrams(&openFlow{plan: &FlowPlan{Name: "UDP"}, due: start.Add(10 * time.Second)}, &res)
		rec, err := r.rec.finish()
		q := rec.other("UDP::udp_received")
		if err != nil || q == nil || len(q.At) != 1 || q.At[0] != c.want {
			t.Errorf("%s: got %+v, %v, want a value at %v", name, q, err, c.want)
		}
	}
}
