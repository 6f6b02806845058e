package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"bufferbloat"
)

// RRULScore is the optional score of the RRUL specification for one load phase, and its list of penalties. Both are coarse on purpose: the headline is
// the PageScore, and the figures stand in their tables.
type RRULScore struct {
	Phase     string        `json:"phase"`
	Total     *float64      `json:"total"` // 0 to 100: the sum of the parts; nil where one of them is not known
	Parts     []RRULPart    `json:"parts"`
	Penalties []RRULPenalty `json:"penalties"`
}

// RRULPart is one of five parts: 20 points for what the unloaded path, or the ideal, has.
type RRULPart struct {
	Name   string   `json:"name"`   // "pages", "responses", "look-ups", "loss", "jitter"
	Points *float64 `json:"points"` // 0 to 20
	Reason string   `json:"reason,omitempty"`
}

// RRULPenalty is something that a link should not do to this workload.
type RRULPenalty struct {
	Code string `json:"code"` // "slew", "background", "expedited", "unequal", "delay"
	Text string `json:"text"`
}

// The marks of score and penalties.
const (
	partPoints    = 20.0
	noLossPoints  = 0.05                   // the share of a call's lost packets from which there are no points for loss
	slewPenalty   = time.Second            // TCP's first retransmission of a SYN (RFC 6298)
	backShare     = 0.9                    // of a best-effort stream's rate, from which a background stream is treated like one
	expeditedMost = 0.3                    // of a direction's rate
	unequalBelow  = 0.9                    // Jain's index of streams of one class
	delayPenalty  = 150 * time.Millisecond // one way (ITU-T G.114)
)

// rrulScores returns the score of each load phase of an RRUL workload, nil for other plans.
func (r *Result) rrulScores() (all []RRULScore) {
	if !strings.HasPrefix(r.Plan.Workload, "rrul") {
		return nil
	}
	for i := range r.Phases {
		p := &r.Phases[i]
		if p.Kind != bufferbloat.Load || !p.UnderLoad {
			continue
		}
		s := RRULScore{Phase: p.Name, Parts: r.rrulParts(p), Penalties: append(p.streamPenalties(), p.callPenalties()...)}
		total := 0.0
		known := true
		for _, part := range s.Parts {
			if known = known && part.Points != nil; known {
				total += *part.Points
			}
		}
		if known {
			s.Total = &total
		}
		all = append(all, s)
	}
	return all
}

func (r *Result) rrulParts(p *Phase) []RRULPart {
	pages := RRULPart{Name: "pages", Reason: "no page was loaded"}
	for _, s := range r.PageScores {
		if s.Phase == p.Name {
			pages.Reason = s.Reason
			if s.Score != nil {
				pages = points("pages", *s.Score/100)
			}
		}
	}
	loss, jitter := p.callParts()
	return []RRULPart{pages, r.ratioPart("responses", p, bufferbloat.TCPRR, bufferbloat.UDPRR), r.ratioPart("look-ups", p, bufferbloat.DNS), loss, jitter}
}

// points is a part of a share of the ideal, 0..1 and no more.
func points(name string, share float64) RRULPart {
	v := partPoints * min(max(share, 0), 1)
	return RRULPart{Name: name, Points: &v}
}

// ratioPart compares the medians of series of some kinds before the load and under it; each series counts the same.
func (r *Result) ratioPart(name string, p *Phase, kinds ...bufferbloat.ProbeKind) RRULPart {
	idle := r.baseline(bufferbloat.Idle)
	var sum float64
	n := 0
	for i := range p.Latency {
		l := &p.Latency[i]
		if !slices.Contains(kinds, bufferbloat.ProbeKind(l.Kind)) {
			continue
		}
		var before *Latency
		if idle != nil {
			if j := slices.IndexFunc(idle.Latency, func(q Latency) bool { return q.Series == l.Series }); j >= 0 {
				before = &idle.Latency[j]
			}
		}
		if before == nil || !before.OK() || !l.OK() || l.Median <= 0 {
			return RRULPart{Name: name, Reason: l.Series + " has no median before the load, or none under it"}
		}
		sum += min(1, float64(before.Median)/float64(l.Median))
		n++
	}
	if n == 0 {
		return RRULPart{Name: name, Reason: "no such probe ran"}
	}
	return points(name, sum/float64(n))
}

// callParts are those of the loss and the variation of delay that the worst call met on its worse way.
func (p *Phase) callParts() (loss, jitter RRULPart) {
	loss, jitter = RRULPart{Name: "loss", Reason: "no call ran"}, RRULPart{Name: "jitter", Reason: "no call ran"}
	worst, most := 0.0, time.Duration(0)
	for _, v := range p.Voice {
		for _, way := range []*VoiceWay{&v.Up, &v.Down} {
			if way.EffectiveLoss == nil || way.IPDVP99 == nil {
				why := v.Series + ": too few packets"
				if way.Reason != "" {
					why = v.Series + ": " + way.Reason
				}
				loss.Reason, jitter.Reason = why, why
				return loss, jitter
			}
			worst, most = max(worst, *way.EffectiveLoss), max(most, *way.IPDVP99)
		}
	}
	if len(p.Voice) == 0 {
		return loss, jitter
	}
	return points("loss", 1-worst/noLossPoints), points("jitter", 1-float64(most)/float64(lateJitter))
}

// streamPenalties are those of the streams: for late starts, and for what their classes did to each other.
func (p *Phase) streamPenalties() []RRULPenalty {
	out := []RRULPenalty{}
	add := func(code, format string, args ...any) {
		out = append(out, RRULPenalty{code, fmt.Sprintf(format, args...)})
	}
	for i := range p.Goodput {
		g := &p.Goodput[i]
		if g.Detail == nil {
			continue
		}
		if d := g.Detail.SlewMax; d != nil && *d >= slewPenalty {
			add("slew", "%v: a stream began %s after it was due: its SYN was lost", g.Direction, seconds(*d))
		}
		each := map[string]float64{}
		for _, c := range g.Detail.Groups {
			if c.By != "dscp" || c.Goodput == nil || c.Flowed == 0 {
				continue
			}
			each[c.Name] = float64(*c.Goodput) / float64(c.Flowed)
			if c.Name == "EF" && g.OK && float64(*c.Goodput) > expeditedMost*float64(g.Rate) {
				add("expedited", "%v: EF takes %s of the rate", g.Direction, percent(float64(*c.Goodput)/float64(g.Rate)))
			}
			if c.Fairness != nil && *c.Fairness < unequalBelow {
				add("unequal", "%v: the streams of %s share unequally: fairness %.2f", g.Direction, c.Name, *c.Fairness)
			}
		}
		if back, best := each["CS1"], each["CS0"]; best > 0 && back >= backShare*best {
			add("background", "%v: a stream of CS1 gets %s of what one of best effort gets", g.Direction, percent(back/best))
		}
	}
	return out
}

// callPenalties are those for delay that people hear.
func (p *Phase) callPenalties() (out []RRULPenalty) {
	for _, v := range p.Voice {
		for _, way := range []struct {
			name string
			*VoiceWay
		}{{"up", &v.Up}, {"down", &v.Down}} {
			if way.OneWay != nil && *way.OneWay > delayPenalty {
				out = append(out, RRULPenalty{"delay", fmt.Sprintf("%s: %s ms one way, %s: calls want at most %s ms", v.Series, briefMS(*way.OneWay), way.name, briefMS(delayPenalty))})
			}
		}
	}
	return out
}

// text is the score in lines.
func (s *RRULScore) text() []string {
	var parts []string
	for _, p := range s.Parts {
		if p.Points == nil {
			parts = append(parts, fmt.Sprintf("%s - (%s)", p.Name, printable(p.Reason)))
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %.0f", p.Name, *p.Points))
	}
	total := none
	if s.Total != nil {
		total = fmt.Sprintf("%.0f", *s.Total)
	}
	out := []string{fmt.Sprintf("RRUL score of %s: %s of 100, at most 20 each: %s", printable(s.Phase), total, strings.Join(parts, ", "))}
	for _, p := range s.Penalties {
		out = append(out, "Penalty: "+printable(p.Text))
	}
	return out
}
