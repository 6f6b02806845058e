package bufferbloat

import (
	"time"

	"bufferbloat/watch"
)

// The quantities of a quota on this program's CPU time, and how often they are read: a kernel's periods are of 100 ms.
const (
	quotaLimit     = "cpu_quota::limit"
	quotaThrottled = "cpu_quota::throttled"
	quotaStep      = time.Second
)

// watchQuota watches what a control group's quota does to this program, or returns false where there is none.
func watchQuota() (Watch, bool) {
	group, err := watch.FindGroup()
	if err != nil {
		return Watch{}, false
	}
	last, err := group.Read()
	if err != nil {
		return Watch{}, false
	}
	w := Watch{Name: "this program's quota of CPU time", Every: quotaStep,
		Series: []WatchSeries{{quotaLimit, "CPUs"}, {quotaThrottled, "share of periods"}}}
	w.Read = func(values []float64) error {
		now, err := group.Read()
		if err != nil {
			return err
		}
		values[0], values[1] = now.CPUs, watch.ThrottledShare(last, now)
		last = now
		return nil
	}
	return w, true
}
