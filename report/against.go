package report

import (
	"time"

	"bufferbloat/load"
	"bufferbloat/report/stat"
)

// rateDoc is the interval of a goodput within the run.
type rateDoc struct {
	Low  int64   `json:"low_bps"`
	High int64   `json:"high_bps"`
	NEff float64 `json:"n_effective"`
	Weak bool    `json:"weak"`
}

func (r *RateRange) document() *rateDoc {
	return value(rateDoc{int64(r.Low), int64(r.High), round1(r.NEff), r.Weak}, r.OK)
}

// improvedDoc is the comparison with an earlier run: the medians under load before and after, the idle median of both, and the two ratios.
type improvedDoc struct {
	Against string             `json:"against"`
	Phases  []improvedPhaseDoc `json:"phases"`
	Marks   []string           `json:"marks"`
}

type improvedPhaseDoc struct {
	Phase          string               `json:"phase"`
	Reason         *string              `json:"reason"`
	Probe          *string              `json:"probe"`
	Before         *time.Duration       `json:"before_rtt_median_ns"`
	BeforeInterval *intervalDoc         `json:"before_rtt_median_interval"`
	After          *time.Duration       `json:"after_rtt_median_ns"`
	AfterInterval  *intervalDoc         `json:"after_rtt_median_interval"`
	Idle           *time.Duration       `json:"idle_rtt_median_ns"`
	IdleInterval   *intervalDoc         `json:"idle_rtt_median_interval"`
	Plain          *ratioDoc            `json:"plain_ratio"`
	Subtracted     *ratioDoc            `json:"baseline_removed_ratio"`
	Goodput        []improvedGoodputDoc `json:"goodput"`
}

type improvedGoodputDoc struct {
	Direction load.Direction `json:"direction"`
	Before    int64          `json:"before_bps"`
	After     int64          `json:"after_bps"`
}

func (m *Improved) document() *improvedDoc {
	if m == nil {
		return nil
	}
	d := &improvedDoc{Against: m.Before, Phases: []improvedPhaseDoc{}, Marks: append([]string{}, m.Marks...)}
	for i := range m.Phases {
		p := &m.Phases[i]
		of := func(e *stat.Estimate) (*time.Duration, *intervalDoc) { return value(e.Value, p.OK), interval(e, p.OK) }
		doc := improvedPhaseDoc{Phase: p.Phase, Reason: text(p.Why), Probe: text(p.Probe), Goodput: []improvedGoodputDoc{}}
		doc.Before, doc.BeforeInterval = of(&p.A)
		doc.After, doc.AfterInterval = of(&p.B)
		doc.Idle, doc.IdleInterval = of(&p.C)
		if p.OK {
			doc.Plain, doc.Subtracted = ratio(p.Plain), ratio(p.Subtracted)
		}
		for _, g := range p.Goodput {
			doc.Goodput = append(doc.Goodput, improvedGoodputDoc{g.Direction, int64(g.Before), int64(g.After)})
		}
		d.Phases = append(d.Phases, doc)
	}
	return d
}
