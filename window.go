package bufferbloat

import (
	"slices"
	"time"
)

// window returns the time that statistics of a phase look at. In a load phase it begins when every flow has carried data and ends when the
// first of them is told to stop, so that neither the ramp nor the drain is in it. Where there is no such time, since of many flows
// the last begins after the first has ended, it is the time in which three quarters of them ran, and ragged is true. Flows that failed
// have no say, unless all of them failed. It is empty where no flow carried data.
func (r *Recording) window(p Phase) (from, to time.Duration, ragged bool) {
	if p.Kind != Load {
		return p.Start, p.End, false
	}
	for _, failed := range []bool{false, true} {
		var begun, stopped []time.Duration
		for _, f := range r.Flows {
			if f.Phase != p.Name || (f.Error != "") != failed {
				continue
			}
			if first, stop, ok := f.span(); ok {
				begun, stopped = append(begun, first), append(stopped, min(stop, p.End))
			}
		}
		n := len(begun)
		if n == 0 {
			continue
		}
		slices.Sort(begun)
		slices.Sort(stopped)
		if begun[n-1] < stopped[0] {
			return begun[n-1], stopped[0], false
		}
		if from, to := begun[(3*n-1)/4], stopped[n/4]; from < to {
			return from, to, true
		}
	}
	return p.Start, p.Start, false
}

// span returns when the flow's data began and when it was told to stop, or false where it carried none.
func (f *Flow) span() (first, stopped time.Duration, ok bool) {
	if f.Result.Flowed {
		return f.Result.First, f.Result.Stopped, true
	}
	if n := len(f.Points); n > 0 {
		return f.Points[0].At, f.Points[n-1].At, true
	}
	return 0, 0, false
}
