package bufferbloat

import (
	"cmp"
	"slices"
	"time"
)

// window returns the time that statistics of a phase look at. In a load phase it begins when every flow has carried data and ends when the
// first of them is told to stop, so that neither the ramp nor the drain is in it. Flows that failed have no say, unless all of them failed.
//
// Where the plan has flows begin and end at different times, that is the window only as long as it is half of the load or more. Otherwise the load
// is what counts, and not that all flows are in it: the window begins when those flows have carried data that were to begin first, and ends when the
// first of those is told to stop that were to end last.
//
// Where there is no such time, since of many flows the last begins after the first has ended, it is the time in which three quarters of
// them ran, and ragged is true. What the plan has statistics skip at the load's beginning is not in the window. It is empty where no flow
// carried data.
func (r *Recording) window(p Phase) (from, to time.Duration, ragged bool) {
	if p.Kind != Load {
		return p.Start, p.End, false
	}
	planned := r.plannedPhase(p.Name)
	from, to, ragged = r.loadWindow(p, planned)
	if planned != nil && from < to {
		from = min(max(from, p.Start+planned.Skip), to)
	}
	return from, to, ragged
}

// apart says how long, of the window of a load whose flows do not all run together by plan, none of them ran; and false where they do.
func (r *Recording) apart(p Phase) (none time.Duration, apart bool) {
	planned := r.plannedPhase(p.Name)
	if planned == nil || !planned.staggered() {
		return 0, false
	}
	from, to, ragged := r.window(p)
	var spans []span
	for i := range r.Flows {
		f := &r.Flows[i]
		if first, stop, ok := f.span(); ok && f.Phase == p.Name {
			spans = append(spans, span{f.Name, max(first, from), min(stop, to)})
			apart = apart || first > from || stop < to
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	at := from
	for _, s := range spans {
		none += max(0, s.first-at)
		at = max(at, s.stop)
	}
	return none + max(0, to-at), apart && !ragged && from < to
}

// plannedPhase returns the plan of a phase, or nil where there is none.
func (r *Recording) plannedPhase(name string) *PhasePlan {
	for i := range r.Plan.Phases {
		if r.Plan.Phases[i].Name == name {
			return &r.Plan.Phases[i]
		}
	}
	return nil
}

func (r *Recording) loadWindow(p Phase, planned *PhasePlan) (from, to time.Duration, ragged bool) {
	for _, failed := range []bool{false, true} {
		var spans []span
		for i := range r.Flows {
			f := &r.Flows[i]
			if f.Phase != p.Name || (f.Error != "") != failed {
				continue
			}
			if first, stop, ok := f.span(); ok {
				spans = append(spans, span{f.Name, first, min(stop, p.End)})
			}
		}
		if len(spans) == 0 {
			continue
		}
		from, to = overlap(spans)
		if planned != nil && planned.staggered() && 2*(to-from) < planned.Length {
			if begin, end := planned.stood(spans); begin < end {
				return begin, end, false
			}
		}
		if from < to {
			return from, to, false
		}
		if from, to = mostOf(spans); from < to {
			return from, to, true
		}
	}
	return p.Start, p.Start, false
}

// span is when a flow carried data, until it was told to stop.
type span struct {
	name        string
	first, stop time.Duration
}

// overlap returns the time in which all ran; to is before from where there is none.
func overlap(spans []span) (from, to time.Duration) {
	from, to = spans[0].first, spans[0].stop
	for _, s := range spans[1:] {
		from, to = max(from, s.first), min(to, s.stop)
	}
	return from, to
}

// mostOf returns the time in which three quarters ran.
func mostOf(spans []span) (from, to time.Duration) {
	var begun, stopped []time.Duration
	for _, s := range spans {
		begun, stopped = append(begun, s.first), append(stopped, s.stop)
	}
	slices.Sort(begun)
	slices.Sort(stopped)
	n := len(spans)
	return begun[(3*n-1)/4], stopped[n/4]
}

// staggered reports whether the flows of a phase are to begin or end at different times.
func (ph *PhasePlan) staggered() bool {
	for i := range ph.Flows {
		a, b := &ph.Flows[0], &ph.Flows[i]
		if b.Bytes > 0 || a.Start != b.Start || a.lasts(ph.Length) != b.lasts(ph.Length) {
			return true
		}
	}
	return false
}

// stood returns the time in which a load of staggered flows stood: from when those carried data that were to begin first, until the first of those was
// told to stop that were to end last. A flow of a number of bytes ends when it does, and is left out where there are others.
func (ph *PhasePlan) stood(spans []span) (from, to time.Duration) {
	var early, late []span
	first, last := time.Duration(-1), time.Duration(-1)
	byName := map[string]*FlowPlan{}
	sized := 0
	for i := range ph.Flows {
		byName[ph.Flows[i].Name] = &ph.Flows[i]
	}
	for _, s := range spans {
		if f := byName[s.name]; f != nil && f.Bytes > 0 {
			sized++
		}
	}
	for _, s := range spans {
		f := byName[s.name]
		if f == nil {
			continue
		}
		if first < 0 || f.Start < first {
			first, early = f.Start, early[:0]
		}
		if f.Start == first {
			early = append(early, s)
		}
		if f.Bytes > 0 && sized < len(spans) {
			continue
		}
		end := f.Start + f.lasts(ph.Length)
		if end > last {
			last, late = end, late[:0]
		}
		if end == last {
			late = append(late, s)
		}
	}
	if len(early) == 0 || len(late) == 0 {
		return 0, 0
	}
	from, _ = overlap(early)
	_, to = overlap(late)
	if sized == len(spans) { // then it stood until the last of them was done
		for _, s := range spans {
			to = max(to, s.stop)
		}
	}
	return from, to
}

// span returns when the flow's data began and when it was told to stop, or false where it carried none.
func (f *Flow) span() (first, stopped time.Duration, ok bool) {
	if f.Result.Flowed {
		return f.Result.First, f.Result.Stopped, true
	}
	begin, end, ok := f.Ends()
	return begin.At, end.At, ok
}
