package bufferbloat

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// LabCounts is what an emulated link counted, from when it began, before the run did, until the run's flows and probes had ended.
type LabCounts struct {
	Down LabDirection `json:"down"`
	Up   LabDirection `json:"up"`
	Late *LabLateness `json:"late,omitempty"` // nil in virtual time, which nothing is late in
	// Outside are packets that this machine lost and the link did not, by where: "entrance". nil for none.
	Outside map[string]uint64 `json:"outside_packets,omitempty"`
}

// LabDirection is one direction of the link. Bytes are those that the link charges, overhead included.
type LabDirection struct {
	Queue string   `json:"queue"` // the queue's kind, as "tc -s qdisc" names it
	In    LabCount `json:"in"`    // what was sent into the link
	Out   LabCount `json:"out"`   // what it delivered
	// The next five are the queue's, as "tc -s qdisc" counts them. A queue here never has a packet back from its device: there are no requeues.
	Sent       LabCount `json:"sent"`
	Dropped    LabCount `json:"dropped"`
	Backlog    LabCount `json:"backlog"`
	Overlimits uint64   `json:"overlimits"`
	Marked     uint64   `json:"marked"`      // with CE
	MaxBacklog LabCount `json:"max_backlog"` // each of its fields on its own
	// Drops are packets by reason, the medium's losses included: "tail", "aqm", "overflow", "policed", "filtered", "lost", "closed". nil for none.
	Drops      map[string]uint64 `json:"drops_packets,omitempty"`
	Duplicated uint64            `json:"duplicated"`     // by the medium, as are the next two
	Corrupted  uint64            `json:"corrupted"`      //
	Held       uint64            `json:"held_back"`      // until others had overtaken them
	More       []LabCounter      `json:"more,omitempty"` // what only this kind of queue has
}

// LabCount is a number of packets and of their bytes.
type LabCount struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// LabCounter is a number with a name that says its unit: "delay_ns". It is as it stood at the end.
type LabCounter struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// LabLateness is how long after its time the link delivered packets, by the fault of the machine that it ran on.
type LabLateness struct {
	Packets uint64        `json:"packets"`
	Median  time.Duration `json:"median_ns"`
	P99     time.Duration `json:"p99_ns"`
	Max     time.Duration `json:"max_ns"`
}

// check says what no link can have counted.
func (c *LabCounts) check() error {
	if l := c.Late; l != nil {
		if err := inRun(l.Median, l.P99, l.Max); err != nil {
			return fmt.Errorf("the emulated link's lateness: %w", err)
		}
	}
	for _, d := range []*LabDirection{&c.Down, &c.Up} {
		if len(d.More) > maxNames || len(d.Drops) > maxNames {
			return errors.New("the emulated link counts too much")
		}
		for _, m := range d.More {
			if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
				return fmt.Errorf("the emulated link's counter %q is no number", m.Name)
			}
		}
	}
	return nil
}

// applyLabCounts adds to the description of the link what it counted. The description may be the caller's own and stays as it is.
func (r *Recording) applyLabCounts(c *LabCounts) error {
	if r.Path.Lab == nil {
		return errors.New("counters of an emulated link, and there is none")
	}
	l := *r.Path.Lab
	l.Counted = c
	r.Path.Lab = &l
	return c.check()
}
