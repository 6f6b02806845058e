package report

import (
	"fmt"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/report/stat"
)

// Direction is what the load of one phase added to the delay of each direction, by a series that tells the directions apart: medians, loaded
// less idle. The two hosts' clocks need not agree for that, only keep their difference.
type Direction struct {
	Phase  string `json:"phase"`
	Series string `json:"series"`
	Reason string `json:"reason,omitempty"` // why there are no figures, "" where there are
	// Up and Down are in the end what the phase's median delays are above the idle ones, signed.
	Up   *time.Duration `json:"up_induced_median_ns"`
	Down *time.Duration `json:"down_induced_median_ns"`
	N    int            `json:"n"` // packets under the load that tell
	// Drift is by how much the difference of the clocks moved from the baseline before the load to that after it; null where one is missing.
	// Up is too long by what part of it had come by then, and Down too short.
	Drift *time.Duration `json:"clock_drift_ns"`
	// Doubt says that the drift is more than a tenth of the figures, or than 1 ms where that is more.
	Doubt bool `json:"doubt,omitempty"`
}

// oneWay are the one-way delays of a series in one phase.
type oneWay struct {
	up, down time.Duration // medians, by clocks that need not agree; valid with n > 0
	n        int
}

func newOneWay(s *bufferbloat.ProbeSeries, p *Phase) (o oneWay) {
	var up, down []time.Duration
	for sample := range s.All() {
		if within(&sample, p.From, p.To) && outcome(&sample).HasRTT() && sample.HasOneWay {
			up, down = append(up, sample.Up), append(down, sample.Down)
		}
	}
	if o.n = len(up); o.n > 0 {
		o.up, _ = stat.Quantile(up, 0.5) // they fail on no delays alone
		o.down, _ = stat.Quantile(down, 0.5)
	}
	return o
}

// tellsDirections reports whether a series has any one-way delay.
func tellsDirections(s *bufferbloat.ProbeSeries) bool {
	for sample := range s.All() {
		if sample.HasOneWay {
			return true
		}
	}
	return false
}

// directions returns what each load phase added in each direction, nil where no series tells.
func (r *Result) directions(rec *bufferbloat.Recording) (all []Direction) {
	find := func(kind bufferbloat.PhaseKind) *Phase {
		if i := slices.IndexFunc(r.Phases, func(p Phase) bool { return p.Kind == kind && p.Reached }); i >= 0 {
			return &r.Phases[i]
		}
		return nil
	}
	before, after := find(bufferbloat.Idle), find(bufferbloat.After)
	for i := range rec.Probes {
		s := &rec.Probes[i]
		if !tellsDirections(s) {
			continue
		}
		var idle, late oneWay
		if before != nil {
			idle = newOneWay(s, before)
		}
		if after != nil {
			late = newOneWay(s, after)
		}
		for j := range r.Phases {
			if p := &r.Phases[j]; p.Kind == bufferbloat.Load {
				all = append(all, newDirection(p, s, idle, late))
			}
		}
	}
	return all
}

func newDirection(p *Phase, s *bufferbloat.ProbeSeries, idle, after oneWay) Direction {
	d := Direction{Phase: p.Name, Series: s.Name}
	switch {
	case !p.Reached:
		d.Reason = "the phase was not reached"
		return d
	case !p.UnderLoad:
		d.Reason = p.whyNoLoad()
		return d
	case idle.n == 0:
		d.Reason = "no packet before the load tells"
		return d
	}
	loaded := newOneWay(s, p)
	if d.N = loaded.n; d.N == 0 {
		d.Reason = "no packet under the load tells"
		return d
	}
	up, down := loaded.up-idle.up, loaded.down-idle.down
	d.Up, d.Down = &up, &down
	if after.n > 0 {
		// A clock that moves makes one way longer by as much as the other becomes shorter; a path that changes does not.
		drift := ((after.up - idle.up) - (after.down - idle.down)) / 2
		d.Drift = &drift
		d.Doubt = drift.Abs() > max(time.Millisecond, max(up.Abs(), down.Abs())/10)
	}
	return d
}

// directionColumns are the heads of the table of directions; from the third on they are numbers.
func directionColumns() []string {
	return []string{"Phase", "Probe", "N", "Induced up", "Induced down", "Clock drift"}
}

// directionRows returns a row for each series of each load phase; delays in ms.
func (r *Result) directionRows() (rows [][]string) {
	for i := range r.Directions {
		d := &r.Directions[i]
		row := []string{printable(d.Phase), printable(d.Series), fmt.Sprint(d.N), none, none, none}
		if d.Up != nil {
			row[3], row[4] = signed(*d.Up), signed(*d.Down)
		}
		if d.Drift != nil {
			row[5] = signed(*d.Drift)
			if d.Doubt {
				row[5] += " (!)"
			}
		}
		rows = append(rows, row)
	}
	return rows
}
