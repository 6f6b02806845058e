package bufferbloat

import "time"

// window returns the time that statistics of a phase look at. In a load phase it begins when every flow has carried data and ends when the
// first of them is told to stop, so that neither the ramp nor the drain is in it; flows that failed have no say, unless all of
// them failed. It is empty where no flow carried data.
func (r *Recording) window(p Phase) (from, to time.Duration) {
	if p.Kind != Load {
		return p.Start, p.End
	}
	for _, failed := range []bool{false, true} {
		found := false
		for _, f := range r.Flows {
			if f.Phase != p.Name || (f.Error != "") != failed {
				continue
			}
			first, stopped, ok := f.span()
			if !ok {
				continue
			}
			if !found {
				from, to, found = first, stopped, true
			}
			from, to = max(from, first), min(to, stopped)
		}
		if to = min(to, p.End); found && from < to {
			return from, to
		}
	}
	return p.Start, p.Start
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
