package bufferbloat

import (
	"context"
	"sync"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// Progress says how far a run is, and what it has seen since the Progress before it. It is a copy: who gets it may keep it.
type Progress struct {
	Phase    string
	Kind     PhaseKind
	Elapsed  time.Duration // in this phase
	Length   time.Duration // of this phase, as planned
	Finished bool          // the phase is over

	At     time.Duration // on the run's time base
	Left   time.Duration // of the whole plan, as planned
	Flows  FlowsSoFar    // of this phase
	Rates  []RateSoFar   // one for each direction in which flows of this phase have carried data
	Delays []DelaySoFar  // one for each series of probes, in the plan's order
}

// FlowsSoFar counts the flows of a phase.
type FlowsSoFar struct {
	Planned int
	Begun   int // those that ended included
	Ended   int
	Failed  int // of those that ended
}

// RateSoFar is what the flows of one direction deliver, by their counters: they are read each 100 ms, those of many flows each second.
type RateSoFar struct {
	Direction load.Direction
	Bytes     uint64          // delivered in this phase
	Rate      bitrate.Bitrate // between the last readings and those before the Progress before, where there were none since that; valid with OK
	OK        bool
}

// DelaySoFar is what became of a series' probes since the Progress before. A probe counts once its fate is known, so lost ones do late.
type DelaySoFar struct {
	Series   string
	Kind     string
	Primary  bool
	Answered int
	Lost     int
	Mean     time.Duration // of those answered, like Highest and Last; valid where there are any
	Highest  time.Duration
	Last     time.Duration
}

// Event is something that happened in a run, for those who follow it live. One of its fields beside At is set.
type Event struct {
	At       time.Duration // on the run's time base
	Began    *Phase        // a phase began
	Ended    *Phase        // a phase is over; its window is known
	Flow     *Flow         // a flow begins, or was not begun where it has an Error
	FlowOver *Flow         // a flow ended, with its result; its counter's readings are left out
	Finding  *Finding
	Progress *Progress
}

// follow keeps those informed who follow a run. It is safe for concurrent use. What is told is told under one lock and what is counted under another, so that
// no probe waits for a slow terminal.
type follow struct {
	progress func(Progress) // nil for none
	event    func(Event)    // nil for none
	now      func() time.Duration
	plan     *Plan

	telling sync.Mutex // taken before mu
	phase   int        // index into the plan's phases
	began   time.Duration
	live    bool
	flows   FlowsSoFar

	mu     sync.Mutex
	rates  []rateNow
	asked  time.Duration // when they were told of last, or the phase began
	delays []delayNow
	series map[string]int
}

// rateNow is a direction's counter.
type rateNow struct {
	direction load.Direction
	bytes     uint64            // of all flows together
	last      map[string]uint64 // of each
	at        time.Duration     // of the last reading
	told      Point             // the bytes and time of the last reading that a Progress told of
}

type delayNow struct {
	DelaySoFar
	sum time.Duration
}

// follows reports whether anybody does.
func (f *follow) follows() bool { return f.progress != nil || f.event != nil }

// declare makes the series known, in their order.
func (f *follow) declare(s *ProbeSeries) {
	if f.series == nil {
		f.series = map[string]int{}
	}
	f.series[s.Name] = len(f.delays)
	f.delays = append(f.delays, delayNow{DelaySoFar: DelaySoFar{Series: s.Name, Kind: s.Kind, Primary: s.Primary}})
}

// sample takes in a probe's fate.
func (f *follow) sample(series string, s *probe.Sample) {
	if !f.follows() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i, ok := f.series[series]
	if !ok {
		return
	}
	d := &f.delays[i]
	switch {
	case s.Outcome.HasRTT():
		d.Answered++
		d.sum += s.RTT
		d.Last, d.Highest = s.RTT, max(d.Highest, s.RTT)
	case s.Outcome.IsLost():
		d.Lost++
	}
}

// point takes in a reading of a flow's counter.
func (f *follow) point(flow string, direction load.Direction, p Point) {
	if !f.follows() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.rates {
		r := &f.rates[i]
		if r.direction == direction {
			r.bytes += p.Bytes - r.last[flow]
			r.last[flow], r.at = p.Bytes, p.At
			return
		}
	}
	// Nothing had come in this direction by the Progress before, or it would have been read.
	f.rates = append(f.rates, rateNow{direction: direction, bytes: p.Bytes, last: map[string]uint64{flow: p.Bytes}, at: p.At, told: Point{At: f.asked}})
}

func (f *follow) begin(i int, p Phase) {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.phase, f.began, f.live = i, p.Start, true
	f.flows = FlowsSoFar{Planned: len(f.plan.Phases[i].Flows)}
	f.mu.Lock()
	f.rates = nil
	f.mu.Unlock()
	f.tell(Event{Began: &p})
	f.tellProgress(p.Start, false)
}

func (f *follow) finish(p Phase) {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.live = false
	f.tellProgress(p.End, true)
	f.tell(Event{Ended: &p})
}

func (f *follow) tick() {
	f.telling.Lock()
	defer f.telling.Unlock()
	if f.live {
		f.tellProgress(f.now(), false)
	}
}

// flow tells that a flow begins, or why it can't.
func (f *follow) flow(fl Flow) {
	f.telling.Lock()
	defer f.telling.Unlock()
	if fl.Error != "" {
		f.flows.Ended++
		f.flows.Failed++
	} else {
		f.flows.Begun++
	}
	f.tell(Event{Flow: &fl})
}

// flowOver tells that a flow that had begun has ended.
func (f *follow) flowOver(fl Flow) {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.flows.Ended++
	if fl.Error != "" {
		f.flows.Failed++
	}
	f.tell(Event{FlowOver: &fl})
}

func (f *follow) finding(found Finding) {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.tell(Event{Finding: &found})
}

// tell passes on an event. f.telling is held, as for tellProgress.
func (f *follow) tell(e Event) {
	if f.event != nil {
		e.At = f.now()
		f.event(e)
	}
}

// tellProgress tells how far the run is at the time at.
func (f *follow) tellProgress(at time.Duration, finished bool) {
	if !f.follows() {
		return
	}
	ph := &f.plan.Phases[f.phase]
	p := Progress{Phase: ph.Name, Kind: ph.Kind, Elapsed: at - f.began, Length: ph.Length, Finished: finished, At: at, Flows: f.flows}
	if !finished {
		p.Left = max(0, p.Length-p.Elapsed)
	}
	for _, later := range f.plan.Phases[f.phase+1:] {
		p.Left += later.Length
	}
	p.Rates, p.Delays = f.soFar(at)
	if f.progress != nil {
		f.progress(p)
	}
	f.tell(Event{Progress: &p})
}

// soFar returns what was counted by the time at since the last call, and begins anew.
func (f *follow) soFar(at time.Duration) (rates []RateSoFar, delays []DelaySoFar) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = at
	for i := range f.rates {
		r := &f.rates[i]
		now := RateSoFar{Direction: r.direction, Bytes: r.bytes}
		if d := r.at - r.told.At; d > 0 {
			now.Rate, now.OK = bitrate.Of(r.bytes-r.told.Bytes, d), true
			r.told = Point{r.at, r.bytes}
		}
		rates = append(rates, now)
	}
	for i := range f.delays {
		d := &f.delays[i]
		now := d.DelaySoFar
		if now.Answered > 0 {
			now.Mean = d.sum / time.Duration(now.Answered)
		}
		delays = append(delays, now)
		*d = delayNow{DelaySoFar: DelaySoFar{Series: now.Series, Kind: now.Kind, Primary: now.Primary}}
	}
	return rates, delays
}

// tell tells of the run's progress now and then, until ctx is done.
func (r *run) tell(ctx context.Context) {
	every := r.o.ProgressEvery
	if every <= 0 {
		every = time.Second
	}
	if !r.follow.follows() {
		return
	}
	for n := 1; r.h.SleepUntil(ctx, r.start.Add(time.Duration(n)*every)) == nil; n++ {
		r.follow.tick()
		n = max(n, int(r.now()/every))
	}
}
