package bufferbloat

import (
	"fmt"
	"slices"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
)

// SlowRate is that of a line on which each of many streams has so little that its share comes in lumps, and their first bursts alone fill the queue: below it
// a line is slow.
const SlowRate = 4 * bitrate.Mbit

const (
	slowStreams   = 2                      // that a line below SlowRate has
	slowPayload   = SlowRate * 7 / 8       // what streams carry of such a line at least: the rest are headers, or the frames of what lies below
	leastRateTime = 500 * time.Millisecond // that a rate is taken over
	minTrial      = 5 * time.Second        // that the first flows have to show theirs, where half of the load is not shorter
	slowStart     = 16                     // round trips after which it is over, with its losses
	standing      = 4                      // packets in a queue that is no burst's
	farAway       = time.Second            // from this round trip on a stream that begins late would be in slow start to its end
)

// spareStreams has the flows of each direction beyond the first slowStreams begin only where these carry slowPayload together. It leaves a load in both directions
// at once as it is: what its probes meet may be the other direction's queue, and so tells of no line that it is full.
func (p *Plan) spareStreams() {
	for i := range p.Phases {
		flows := p.Phases[i].Flows
		if bothWays(flows) {
			continue
		}
		for j := min(slowStreams, len(flows)); j < len(flows); j++ {
			flows[j].Above = slowPayload
		}
	}
}

func bothWays(flows []FlowPlan) bool {
	return slices.ContainsFunc(flows, func(f FlowPlan) bool { return f.Direction != flows[0].Direction })
}

// shortener is a loader that can be told, before it runs, to run for so much less than it was made for.
type shortener interface{ Shorten(by time.Duration) }

// reserve is the flows of a load that wait for what the others carry.
type reserve struct {
	flows []openFlow // all of the load
	held  []int      // those that wait, by their places
	given []int      // those that were given up
	both  bool       // the load has both directions: what the probes meet may be the other's queue
	far   bool       // round trips are so long that who comes late is of no use
	sure  bool       // slow start is over by the end of the trial
	until time.Duration
	idle  map[load.Direction]time.Duration // the last reading at which the others had carried nothing, since the load began
}

// newReserve looks which flows of a load are to wait. They do for half of it at most. The round trip is the lowest of a probe, where there is one: a handshake
// may have taken seconds because one of its packets was lost.
func newReserve(ph *PhasePlan, flows []openFlow, lowest time.Duration) *reserve {
	v := &reserve{flows: flows, both: bothWays(ph.Flows), idle: map[load.Direction]time.Duration{}}
	var rtt time.Duration
	for i := range flows {
		if flows[i].plan.Above > 0 {
			v.held = append(v.held, i)
		}
		rtt = max(rtt, flows[i].peer.info.Setup)
	}
	if lowest > 0 {
		rtt = lowest
	}
	v.until = min(max(minTrial, slowStart*rtt), ph.Length/2)
	v.far, v.sure = rtt >= farAway, v.until >= slowStart*rtt
	return v
}

// due returns the flows that are to begin now, at so long after the load's begin, and has them wait no more: those that the others' rate calls for, and
// all of them where one of the others failed or is over, which leaves nothing to go by. The rate is that of all the time since data flows: what a lost packet held
// up comes at once when it has been sent again, and would look like a fast line.
//
// At the end of the trial they begin, too, unless full says that such a rate fills the line: then it may be the streams that are slow. With both
// directions at once full can't tell which of them it is.
func (v *reserve) due(at time.Duration, over bool, full func(bitrate.Bitrate) bool) (begin []*openFlow) {
	if len(v.held) == 0 {
		return nil
	}
	carried := map[load.Direction]uint64{}
	for i := range v.flows {
		if f := &v.flows[i]; f.plan.Above == 0 {
			carried[f.plan.Direction] += f.moved()
		}
	}
	var held []int
	for _, i := range v.held {
		f := &v.flows[i]
		d := f.plan.Direction
		if carried[d] == 0 {
			v.idle[d] = at
		}
		rate := bitrate.Of(carried[d], max(leastRateTime, at-v.idle[d]))
		if over || rate >= f.plan.Above || at >= v.until && !v.far && !(v.sure && !v.both && full(rate)) {
			begin = append(begin, f)
		} else {
			held = append(held, i)
		}
	}
	v.held = held
	return begin
}

// moved is how much a flow has carried so far: what arrived, or where the stack does not tell that, what was sent.
func (f *openFlow) moved() uint64 {
	if n, ok := f.loader.Delivered(); ok {
		return n
	}
	if s, ok := f.loader.(interface{ Sent() uint64 }); ok {
		return s.Sent()
	}
	return 0
}

// beginLate records and shortens a flow that begins at so long after its load, so that all flows end together.
func (r *run) beginLate(f *openFlow, at time.Duration) {
	if s, ok := f.loader.(shortener); ok {
		s.Shorten(at)
	}
	f.due = r.h.Now()
	f.recorded.Started = r.offset(f.due)
	r.rec.put(&entry{Flow: &f.recorded})
}

// fills reports whether a rate fills the line, by the probes that were sent from a time on: then a queue stands, and half of them wait for some packets of it at
// least. What nine of ten took before the first load is the path's own, with its jitter; and single bursts of a stream that losses hold back are no queue that
// stands. Where a fair queue keeps the probes' delay from that of the streams, it says false of a line that is full, and more streams than need be run.
func (r *run) fills(rate bitrate.Bitrate, from time.Duration) bool {
	const packet = 1500
	if rate <= 0 {
		return false
	}
	own, median, ok := r.rec.delays(from)
	return ok && median-own >= rate.Duration(standing*packet)
}

// lowestRTT returns the lowest of the series that the tables show, 0 where there is none.
func (r *recorder) lowestRTT() (lowest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.rec.Probes {
		if p := &r.rec.Probes[i]; p.Primary {
			for s := range p.All() {
				if s.Outcome.HasRTT() && (lowest == 0 || s.RTT < lowest) {
					lowest = s.RTT
				}
			}
		}
	}
	return lowest
}

// delays returns RTTs of the series that the tables show: what nine of ten of its probes took at most before the first load, or where there are none of these
// the lowest of all, and the median of those that were sent at or after from. It is false where there is none.
func (r *recorder) delays(from time.Duration) (own, median time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var loaded, low time.Duration
	if i := slices.IndexFunc(r.rec.Phases, func(p Phase) bool { return p.Kind == Load }); i >= 0 {
		loaded = r.rec.Phases[i].Start
	}
	var early, late []time.Duration
	for i := range r.rec.Probes {
		p := &r.rec.Probes[i]
		if !p.Primary {
			continue
		}
		for s := range p.All() {
			if !s.Outcome.HasRTT() {
				continue
			}
			if low == 0 || s.RTT < low {
				low = s.RTT
			}
			switch {
			case s.Sent >= from:
				late = append(late, s.RTT)
			case s.Sent < loaded:
				early = append(early, s.RTT)
			}
		}
	}
	if len(late) == 0 {
		return 0, 0, false
	}
	slices.Sort(late)
	if own = low; len(early) > 0 {
		slices.Sort(early)
		own = early[len(early)*9/10]
	}
	return own, late[len(late)/2], true
}

// giveUp closes the flows that still wait when the trial is over, and returns them.
func (v *reserve) giveUp(at time.Duration) []int {
	if at < v.until || len(v.held) == 0 {
		return nil
	}
	for _, i := range v.held {
		v.flows[i].close()
		v.flows[i].tcp = nil // it is none of those that are asked
	}
	v.given, v.held = v.held, nil
	return v.given
}

// sayHeld says which flows of a load were given up, and why, and where what the others carried later makes that doubtful.
func (r *run) sayHeld(v *reserve, phase string, length time.Duration) {
	all, left, above := map[load.Direction]int{}, map[load.Direction]int{}, bitrate.Bitrate(0)
	carried := map[load.Direction]uint64{}
	for _, i := range v.given {
		left[v.flows[i].plan.Direction]++
		above = v.flows[i].plan.Above
	}
	for i := range v.flows {
		d := v.flows[i].plan.Direction
		all[d]++
		if !slices.Contains(v.given, i) {
			carried[d] += v.flows[i].moved()
		}
	}
	for _, d := range []load.Direction{load.Download, load.Upload} {
		if left[d] > 0 {
			severity, why := Note, "a slow line by its queue, unless it is jitter that grew with the load"
			if v.far {
				why = "a slow line, or streams that round trips of seconds hold back"
			}
			if rate := bitrate.Of(carried[d], max(leastRateTime, length)); rate >= above {
				severity, why = Weakens, fmt.Sprintf("but %v in all the time: the line is no slow one, or became faster, and all streams together may carry more", rate)
			}
			r.find(Finding{"low_rate", severity, phase, fmt.Sprintf("%v: %d of %d streams ran, since these carried less than %v together in their first %v: %s; "+
				"writes follow the rate; all run where their number is given", d, all[d]-left[d], all[d], above, v.until.Round(time.Millisecond), why)})
		}
	}
}
