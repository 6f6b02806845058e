package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"bufferbloat"
)

// Hop is what the load of one phase added to the delay of one router on the way, or of the server behind them.
type Hop struct {
	Phase   string `json:"phase"`
	Hop     int    `json:"hop"` // how many hops away; 0 is the server
	Address string `json:"address"`
	Reason  string `json:"reason,omitempty"` // why there are no figures, "" where there are
	// Idle and Loaded are the medians; Induced is their difference, and Step what that is above the hop before this one.
	Idle    *time.Duration `json:"idle_median_ns"`
	Loaded  *time.Duration `json:"loaded_median_ns"`
	Induced *time.Duration `json:"induced_median_ns"`
	Step    *time.Duration `json:"step_ns"`
	// Queue says that the largest step is the one to here, and that it is most of what the load added: the queue is between the hop before and
	// this one, in the one direction or the other.
	Queue bool `json:"queue,omitempty"`
}

// hopKind is bufferbloat's kind of a series of one router.
const hopKind = string(bufferbloat.Route)

// leastStep is what a step must be at least for a queue to be seen in it: routers answer a few milliseconds late when it suits them.
const leastStep = 10 * time.Millisecond

// hops returns the delays along the way in each load phase, nil where no router was probed.
func (r *Result) hops(rec *bufferbloat.Recording) (all []Hop) {
	var routers []*bufferbloat.ProbeSeries
	for i := range rec.Probes {
		if rec.Probes[i].Kind == hopKind {
			routers = append(routers, &rec.Probes[i])
		}
	}
	if len(routers) == 0 {
		return nil
	}
	slices.SortStableFunc(routers, func(a, b *bufferbloat.ProbeSeries) int { return cmp.Compare(a.Hop, b.Hop) })
	idle := slices.IndexFunc(r.Phases, func(p Phase) bool { return p.Kind == bufferbloat.Idle && p.Reached })
	for i := range r.Phases {
		p := &r.Phases[i]
		if p.Kind != bufferbloat.Load {
			continue
		}
		var way []Hop
		for _, s := range routers {
			way = append(way, r.newHop(p, idle, s.Name, s.Hop, s.Address))
		}
		if end := farEnd(rec, routers[0].Target); end != nil {
			way = append(way, r.newHop(p, idle, end.Name, 0, end.Address))
		}
		findQueue(way)
		all = append(all, way...)
	}
	return all
}

// farEnd returns the series that probes the target of the routers' path, the primary one before others, nil where there is none.
func farEnd(rec *bufferbloat.Recording, target string) *bufferbloat.ProbeSeries {
	for _, s := range primaryFirst(rec.Probes) {
		switch bufferbloat.ProbeKind(s.Kind) {
		case bufferbloat.ICMP, bufferbloat.IRTT, bufferbloat.UDPRR, bufferbloat.TCP:
			if s.Target == target {
				return s
			}
		}
	}
	return nil
}

func (r *Result) newHop(p *Phase, idle int, series string, hop int, address string) Hop {
	h := Hop{Phase: p.Name, Hop: hop, Address: address}
	loaded := p.latency(series)
	switch {
	case !p.Reached:
		h.Reason = "the phase was not reached"
	case !p.UnderLoad:
		h.Reason = p.whyNoLoad()
	case idle < 0:
		h.Reason = "there is no idle baseline"
	case loaded == nil || !loaded.Has(Median):
		h.Reason = "no answer under load"
	default:
		before := r.Phases[idle].latency(series)
		if before == nil || !before.Has(Median) {
			h.Reason = "no answer before the load"
			break
		}
		added := loaded.Median - before.Median
		h.Idle, h.Loaded, h.Induced = &before.Median, &loaded.Median, &added
	}
	return h
}

// latency returns the figures of a series in the phase, nil where it has none.
func (p *Phase) latency(series string) *Latency {
	for i := range p.Latency {
		if p.Latency[i].Series == series {
			return &p.Latency[i]
		}
	}
	return nil
}

// findQueue computes the steps of one phase and marks the hop behind the queue.
func findQueue(way []Hop) {
	var last time.Duration
	most := -1
	for i := range way {
		h := &way[i]
		if h.Induced == nil {
			continue
		}
		step := *h.Induced - last
		h.Step, last = &step, *h.Induced
		if most < 0 || step > *way[most].Step {
			most = i
		}
	}
	// A router that is slow to answer has a step up that the next one takes back: what is left at the end is the path's.
	if most >= 0 && *way[most].Step >= leastStep && 2**way[most].Step > last && last >= leastStep {
		way[most].Queue = true
	}
}

// hopColumns are the heads of the table of routers; from the third on they are numbers.
func hopColumns() []string {
	return []string{"Phase", "Router", "Hop", "Idle median", "Loaded median", "Induced", "Step"}
}

// hopRows returns a row for each router of each load phase; delays in ms.
func (r *Result) hopRows() (rows [][]string) {
	for i := range r.Hops {
		h := &r.Hops[i]
		hop, name := strconv.Itoa(h.Hop), printable(h.Address)
		if h.Hop == 0 {
			hop, name = none, name+" (server)"
		}
		added, step := none, none
		if h.Induced != nil {
			added, step = signed(*h.Induced), signed(*h.Step)
		}
		rows = append(rows, []string{printable(h.Phase), name, hop, orNone(h.Idle), orNone(h.Loaded), added, step})
	}
	return rows
}

// queueTexts say where the queue of each load phase is, a line each; nothing where that is not seen.
func (r *Result) queueTexts() (lines []string) {
	before := ""
	for i := range r.Hops {
		h := &r.Hops[i]
		if i == 0 || r.Hops[i-1].Phase != h.Phase {
			before = "this host"
		}
		if h.Queue {
			lines = append(lines, fmt.Sprintf("Queue of %s: between %s and %s, which alone adds %s of %s ms", printable(h.Phase), before, printable(h.Address), ms(*h.Step), ms(r.lastInduced(h.Phase))))
		}
		if h.Induced != nil {
			before = printable(h.Address)
		}
	}
	return lines
}

// lastInduced is what the load of a phase added at the end of the way.
func (r *Result) lastInduced(phase string) (d time.Duration) {
	for i := range r.Hops {
		if h := &r.Hops[i]; h.Phase == phase && h.Induced != nil {
			d = *h.Induced
		}
	}
	return d
}
