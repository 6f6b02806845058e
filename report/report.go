// Package report turns a Recording into statements, and the statements into text, tables, CSV and JSON.
//
// New computes all figures at once; the Write methods print them. Nothing here opens a socket or reads a clock, and equal recordings give
// equal output to the byte. A figure that could not be measured is absent with its reason and never 0; what weakens or voids a figure
// stands among the findings. All quantiles follow stat.Rule.
package report

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
	"bufferbloat/report/stat"
)

// Result is what one recording says. Its times are offsets from the run's start.
type Result struct {
	Version   string    // of the program that recorded
	Started   time.Time // wall clock
	Length    time.Duration
	Stopped   string // why the run ended before its plan did, "" where it did not
	Truncated bool   // the recording was cut off
	// Signal is the number of the signal that ended the program, for Status to say; 0 for none. New does not know it: the program sets it.
	Signal int
	File   string  // where it was read, for people; New does not know it: the program sets it
	Source *Source // where the result was read, nil where this program measured: otherwise Plan, Path and Client have no more than it tells
	Plan   bufferbloat.Plan
	Path   bufferbloat.Path
	Paths  []bufferbloat.Path // to further servers, and to further families of one
	Client bufferbloat.HostFacts

	Phases     []Phase // in the order of the plan
	Series     []Series
	Induced    []Induced    // one for each load phase, for the primary series
	Others     []Other      // what else its source measured
	PageScores []PageScore  // one for each load phase and series of pages
	RRUL       []RRULScore  // one for each load phase of an RRUL workload
	Hops       []Hop        // for each load phase, the routers that were probed and the server, nearest first
	Loops      []ClosedLoop // for each phase and closed loop of requests and responses
	Directions []Direction  // for each load phase, the series that tell the directions apart
	Clocks     []Clocks     // of each series with one-way delays: how the two hosts' clocks compare
	Grades     []Grade      // by the schemes that the program asked for; New gives none
	Findings   []bufferbloat.Finding
	// Improved compares the run with an earlier one; nil where the program did not ask for it.
	Improved *Improved

	read  *read  // what a document said that the fields do not hold; nil where the result was computed
	noCPU string // why this host's CPU use is not known, "" where it is
}

// Phase is one stretch of the run with its figures. They come from its own time alone.
type Phase struct {
	Name    string
	Kind    bufferbloat.PhaseKind
	Reached bool // false: the run ended before it began, and there is nothing but a name and a kind
	Untimed bool // the source does not say when: Start, End, From and To mean nothing
	Start   time.Duration
	End     time.Duration
	// From and To bound the samples that count here: sent at or after From and before To.
	From, To time.Duration
	// UnderLoad says that the load stood from From to To. Where it is false in a load phase, the latency is that of a path without load, or at times without.
	UnderLoad bool
	Latency   []Latency // one for each series, the primary first; none in a drain
	Goodput   []Goodput // one for each direction in which flows were planned
	Total     *Total    // of both directions; nil where one of them has no rate, and where another program measured
	Voice     []Voice   // one for each series like a call's; none in a drain
	CPU       CPU

	noLoad string // why a load that flowed gives no latency, "" where streamsApart is why
}

// streamsApart is why streams that flowed give no latency under load.
const streamsApart = "the streams never all carried data at once"

// flowed reports whether any stream of the phase carried data.
func (p *Phase) flowed() bool {
	return slices.ContainsFunc(p.Goodput, func(g Goodput) bool { return g.Flowed > 0 })
}

// whyNoLoad says why there is no latency under the load of a phase.
func (p *Phase) whyNoLoad() string {
	if p.flowed() {
		return cmp.Or(p.noLoad, streamsApart)
	}
	return "there was no load"
}

// Primary returns the latency of the primary series, or nil where there is no series.
func (p *Phase) Primary() *Latency {
	if len(p.Latency) == 0 {
		return nil
	}
	return &p.Latency[0]
}

// Count says what became of the probes of one series. Sent is the sum of what follows it; Unsent ones are not part of it.
type Count struct {
	Due, Unsent int // Due = Sent + Unsent
	Sent        int
	Received    int // in time
	Late        int // after the deadline; their times count like those received
	Lost        int // direction unknown
	LostUp      int // they did not reach the server
	LostDown    int // the server answered
	Unfinished  int // no answer yet when listening ended: neither answered nor lost
	Invalid     int // answered, with a time that cannot be true
}

// Answered returns the number of probes with a round-trip time.
func (c Count) Answered() int { return c.Received + c.Late }

// AllLost returns the number of lost probes in whatever direction.
func (c Count) AllLost() int { return c.Lost + c.LostUp + c.LostDown }

func (c *Count) add(o probe.Outcome) {
	c.Due++
	if o == probe.Unsent {
		c.Unsent++
		return
	}
	c.Sent++
	switch o {
	case probe.Received:
		c.Received++
	case probe.Late:
		c.Late++
	case probe.Lost:
		c.Lost++
	case probe.LostUp:
		c.LostUp++
	case probe.LostDown:
		c.LostDown++
	case probe.Unfinished:
		c.Unfinished++
	default:
		c.Invalid++
	}
}

// Latency describes the round-trip times of one series in one phase. Its Summary counts answered probes and lost ones; where it is
// not OK there are no times.
type Latency struct {
	Series  string
	Kind    string // "icmp", "irtt", "tcp"
	Primary bool
	Count   Count
	stat.Summary
	NoLoss      string        // why the source does not tell what was lost, "" where it does
	Stated      *Stated       // nil where the figures were computed from samples; see Has
	MedianRange stat.Estimate // Median and P90 again, with intervals; valid where the Summary is OK and not Stated
	P90Range    stat.Estimate
	Ladder      []stat.Rung
}

// Goodput is what the flows of one phase delivered in one direction: the bytes that their receivers counted, over the time from the first
// flow's first data until the last flow's last, or until that flow was told to stop where data ended before: a link that died does not count as one
// that was fast until then.
type Goodput struct {
	Direction load.Direction
	OK        bool
	Why       string // why there is no rate, "" with OK
	Rate      bitrate.Bitrate
	Range     RateRange
	Bytes     uint64
	First     time.Duration
	Last      time.Duration // when the time ended that Rate is over
	Flowed    int           // flows that delivered data
	Whole     int           // those of them that ran to their end
	Planned   int           // 0 where the source does not say
	CountedBy load.Counter  // the weakest of the flows' counters
	// Fairness is Jain's index over the planned flows' bytes, valid with HasFairness (two flows or more).
	Fairness    float64
	HasFairness bool
	Flows       []Flow
	Detail      *Detail // nil where another program measured

	skipped time.Duration // of the load's beginning, which Rate leaves out
	waited  waited
}

// waited are the streams that had to wait for what the others carried, and began long after the load.
type waited struct {
	flows int
	above bitrate.Bitrate // what the others were to carry
	until time.Duration   // the first data of the last of them, since the load's begin
}

// Flow is one flow with its own rate over its own time.
type Flow struct {
	Name string
	bufferbloat.FlowResult
	Error string
	Whole bool // it delivered data and ran to its end
	OK    bool // Rate is valid
	Rate  bitrate.Bitrate

	Detail *FlowDetail // nil where another program measured

	end  time.Duration // of the time that Rate is over
	kept float64       // bytes after what the load skips, where it skips anything
}

// CutShort reports whether no flow of g ran to its end, so that its rate is not that of the test that was asked for.
func (g *Goodput) CutShort() bool { return g.Flowed > 0 && g.Whole == 0 }

// Series is one series of probes over the whole run, phases or not.
type Series struct {
	Name, Kind, Target, Address string
	Interval                    time.Duration
	DSCP                        string
	Primary                     bool
	Reason                      string // why this kind stands in for a better one
	Error                       string // why it ended early
	Count                       Count
	Uncounted                   bool // the source does not tell what became of the probes: Count and Tally mean nothing
	Tally                       probe.Tally
	LatenessP99, LatenessMax    time.Duration // of our own sends after their due times; valid with HasLateness
	HasLateness                 bool
	Resolution                  time.Duration         // the smallest difference that its stamps tell apart
	Stamps                      *Stamps               // nil where the source does not tell, and where there were no replies
	Void                        bool                  // our own lateness voids the series
	ECN                         string                // of what was sent, "" for Not-ECT
	Size                        int                   // of a datagram's payload as planned, 0 for the kind's own
	Hop                         int                   // how many hops away the router is, of a series of kind "path"
	Voice                       bool                  // its packets are like those of a call
	Marks                       []Mark                // that replies came in with; nil where that is not known
	MarkWays                    []bufferbloat.MarkWay // what became of its marks on the ways that are told
}

// seed makes the bootstrap's draws the same for the same recording.
const seed = 0x6275666665726273

// New computes all that rec says. It keeps no reference to the samples of rec and modifies nothing.
func New(rec *bufferbloat.Recording) *Result {
	r := &Result{Version: rec.Version, Started: rec.Started, Length: rec.Ended, Stopped: rec.Stopped, Truncated: rec.Truncated,
		Source: newSource(rec), Plan: rec.Plan, Path: rec.Path, Paths: rec.Paths, Client: rec.Client, Findings: slices.Clone(rec.Findings)}
	if !rec.CPU.Available {
		r.noCPU = cmp.Or(rec.CPU.Why, "not recorded")
	}
	var others sync.WaitGroup
	others.Go(func() { r.Others = newOthers(rec) })
	src := rand.NewPCG(seed, 0)
	var room room
	order := primaryFirst(rec.Probes)
	for i := range order {
		r.Series = append(r.Series, newSeries(order[i], &room))
	}
	for _, ph := range phases(rec) {
		r.measure(&ph, rec, order, src, &room)
		r.Phases = append(r.Phases, ph)
	}
	others.Wait()
	r.induce(src)
	r.PageScores, r.Hops, r.Directions = r.pageScores(rec), r.hops(rec), r.directions(rec)
	r.Clocks = clocks(rec)
	r.Loops = r.closedLoops(rec)
	r.RRUL = r.rrulScores()
	r.derive(rec)
	return r
}

// primaryFirst returns the series with the primary one first; the first of all stands in where none is marked.
func primaryFirst(all []bufferbloat.ProbeSeries) []*bufferbloat.ProbeSeries {
	var out []*bufferbloat.ProbeSeries
	for i := range all {
		out = append(out, &all[i])
	}
	slices.SortStableFunc(out, func(a, b *bufferbloat.ProbeSeries) int {
		switch {
		case a.Primary == b.Primary:
			return 0
		case a.Primary:
			return -1
		}
		return 1
	})
	return out
}

// phases returns the phases of the plan, reached or not, and then what the recording has beyond the plan.
func phases(rec *bufferbloat.Recording) []Phase {
	var out []Phase
	taken := make([]bool, len(rec.Phases))
	add := func(p bufferbloat.Phase) {
		out = append(out, Phase{Name: p.Name, Kind: p.Kind, Reached: true, Start: p.Start, End: p.End, From: p.From, To: p.To})
	}
	for _, planned := range rec.Plan.Phases {
		i := slices.IndexFunc(rec.Phases, func(p bufferbloat.Phase) bool { return p.Name == planned.Name })
		if i < 0 || taken[i] {
			out = append(out, Phase{Name: planned.Name, Kind: planned.Kind})
			continue
		}
		taken[i] = true
		add(rec.Phases[i])
	}
	for i, p := range rec.Phases {
		if !taken[i] {
			add(p)
		}
	}
	return out
}

// measure fills in the figures of one phase.
func (r *Result) measure(ph *Phase, rec *bufferbloat.Recording, order []*bufferbloat.ProbeSeries, src rand.Source, room *room) {
	if ph.Kind == bufferbloat.Load {
		ph.Goodput = goodputs(ph, rec)
	}
	defer ph.detail(rec)
	if !ph.Reached {
		ph.CPU.Why = "not reached"
		return
	}
	if ph.Kind == bufferbloat.Load {
		ph.UnderLoad = ph.flowed() && ph.To > ph.From
		if !ph.UnderLoad {
			ph.From, ph.To = ph.Start, ph.End
		} else if ph.noLoad = r.stoodStill(ph, rec, order); ph.noLoad != "" {
			ph.UnderLoad = false
		}
	}
	ph.CPU = cpuUse(&rec.CPU, ph.From, ph.To)
	ph.CPU.Hertz = coreHertz(rec, len(ph.CPU.Cores), ph.From, ph.To)
	if ph.Kind == bufferbloat.Drain {
		return
	}
	for _, s := range order {
		ph.Latency = append(ph.Latency, newLatency(s, ph.From, ph.To, src, room))
	}
	ph.Voice = voiceCalls(order, ph.From, ph.To)
}

// within reports whether a sample belongs to the time from..to. An unsent one belongs where it was due.
func within(s *probe.Sample, from, to time.Duration) bool {
	at := s.Sent
	if s.Outcome == probe.Unsent {
		at = s.Due
	}
	return at >= from && at < to
}

// outcome is what a sample counts as: a reply with a negative time is invalid whatever it says.
func outcome(s *probe.Sample) probe.Outcome {
	if s.Outcome.HasRTT() && s.RTT < 0 {
		return probe.Invalid
	}
	return s.Outcome
}

// room is space for the delays of a series, and for the same in order of size, which serves for one after the other: of a long recording, it is most
// of what is held.
type room struct {
	delays, sorted []time.Duration
}

// take returns an empty slice with space for n delays. It is valid until the next call.
func (r *room) take(n int) []time.Duration {
	if cap(r.delays) < n {
		r.delays = nil // so that the old one and the new one are not held at once
		r.delays = make([]time.Duration, 0, n)
	}
	return r.delays[:0]
}

// long is the number of samples from which a series is counted before space is taken for what a phase has of it.
const long = 100_000

// answered returns how many delays a phase has at most, so that a long series is held once and no more.
func answered(s *bufferbloat.ProbeSeries, from, to time.Duration) (n int) {
	if s.Len() < long {
		return s.Len()
	}
	for sample := range s.All() {
		if within(&sample, from, to) && outcome(&sample).HasRTT() {
			n++
		}
	}
	return n
}

func newLatency(s *bufferbloat.ProbeSeries, from, to time.Duration, src rand.Source, room *room) Latency {
	l := Latency{Series: s.Name, Kind: s.Kind, Primary: s.Primary, NoLoss: s.NoLoss}
	rtts := room.take(answered(s, from, to))
	for sample := range s.All() {
		if !within(&sample, from, to) {
			continue
		}
		o := outcome(&sample)
		if s.NoLoss != "" && o.IsLost() {
			continue
		}
		l.Count.add(o)
		if o.HasRTT() {
			rtts = append(rtts, sample.RTT)
		}
	}
	d := stat.Sort(rtts, slices.Grow(room.sorted, len(rtts)))
	room.sorted = d.Sorted()[:0]
	l.Summary = d.Summarize(l.Count.AllLost())
	if l.OK() {
		e, _ := d.Estimate(src, 0.5, 0.9) // it fails on no samples alone
		l.MedianRange, l.P90Range = e[0], e[1]
		l.Ladder = d.Ladder()
	}
	return l
}
