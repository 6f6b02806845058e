package report

import (
	"fmt"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/report/stat"
)

// PageScore is RRUL's headline: how much longer a web page takes under the load of one phase. 100 is no longer than unloaded.
type PageScore struct {
	Phase  string `json:"phase"`
	Series string `json:"series"`
	Reason string `json:"reason,omitempty"` // why there is no score, "" where there is one
	// Score is the idle median over the loaded median, times 100.
	Score  *float64  `json:"score"`
	Idle   *PageTime `json:"idle"`
	Loaded *PageTime `json:"loaded"`
	// OverTime is the score of each part of the load, nil where there is but one part.
	OverTime []PageScoreAt `json:"over_time,omitempty"`
}

// PageScoreAt is the score of the pages that were begun in a part of a load.
type PageScoreAt struct {
	From  time.Duration `json:"from_ns"` // of the run
	To    time.Duration `json:"to_ns"`
	Score *float64      `json:"score"` // nil where no page was there in time
}

// A load is told of in parts of 10 s, or so many times 10 s that there are 12 parts at most.
const (
	scoreStep = 10 * time.Second
	mostParts = 12
)

// PageTime describes how long pages took. Low and High bound the mean, at the level of all intervals, of the pages as they depend on each
// other; they are null with fewer than 8 pages.
type PageTime struct {
	N      int            `json:"n"`
	Failed int            `json:"failed"` // that were not there after 30 s, or had something missing
	Unsent int            `json:"unsent"` // that were not begun, as too many were under way: the path is slower than the other pages say
	Median time.Duration  `json:"median_ns"`
	Mean   time.Duration  `json:"mean_ns"`
	StdDev *time.Duration `json:"std_dev_ns"` // null with one page
	Low    *time.Duration `json:"mean_low_ns"`
	High   *time.Duration `json:"mean_high_ns"`
}

// pageKind is bufferbloat's kind of a series of pages.
const pageKind = string(bufferbloat.Page)

// newPageTime describes the pages of a series from from to to, nil where none was there.
func newPageTime(s *bufferbloat.ProbeSeries, from, to time.Duration) *PageTime {
	var times []time.Duration
	var moments stat.Moments
	var count Count
	for sample := range s.All() {
		if !within(&sample, from, to) {
			continue
		}
		o := outcome(&sample)
		count.add(o)
		if o.HasRTT() {
			times = append(times, sample.RTT)
			moments.Add(sample.RTT)
		}
	}
	d := stat.Summarize(times, count.AllLost())
	if !d.OK() {
		return nil
	}
	t := &PageTime{N: d.N, Failed: count.AllLost(), Unsent: count.Unsent, Median: d.Median, Mean: d.Mean}
	if sd, ok := moments.StdDev(); ok {
		t.StdDev = &sd
	}
	if len(times) >= leastForInterval {
		x := make([]float64, len(times))
		for i, v := range times {
			x[i] = float64(v)
		}
		if low, high, _, err := stat.MeanInterval(x); err == nil && finite(low) && finite(high) {
			l, h := time.Duration(low), time.Duration(high)
			t.Low, t.High = &l, &h
		}
	}
	return t
}

// pageScores returns the score of each load phase for each series of pages, nil where there are none.
func (r *Result) pageScores(rec *bufferbloat.Recording) (all []PageScore) {
	idle := slices.IndexFunc(r.Phases, func(p Phase) bool { return p.Kind == bufferbloat.Idle && p.Reached })
	for i := range rec.Probes {
		s := &rec.Probes[i]
		if s.Kind != pageKind {
			continue
		}
		var before *PageTime
		if idle >= 0 {
			before = newPageTime(s, r.Phases[idle].From, r.Phases[idle].To)
		}
		for j := range r.Phases {
			if p := &r.Phases[j]; p.Kind == bufferbloat.Load {
				all = append(all, newPageScore(p, s, before))
			}
		}
	}
	return all
}

func newPageScore(p *Phase, s *bufferbloat.ProbeSeries, before *PageTime) PageScore {
	score := PageScore{Phase: p.Name, Series: s.Name, Idle: before}
	switch {
	case !p.Reached:
		score.Reason = "the phase was not reached"
		return score
	case !p.UnderLoad:
		score.Reason = p.whyNoLoad()
		return score
	}
	score.Loaded = newPageTime(s, p.From, p.To)
	switch {
	case before == nil:
		score.Reason = "no page was loaded before the load"
	case score.Loaded == nil:
		score.Reason = "no page was there in time under the load"
	default:
		score.Score = before.over(score.Loaded)
		score.OverTime = before.overTime(s, p.From, p.To)
	}
	return score
}

// over is the score of pages under load, where those without took t.
func (t *PageTime) over(loaded *PageTime) *float64 {
	if loaded == nil {
		return nil
	}
	v := 100 * float64(t.Median) / float64(loaded.Median)
	return &v
}

// overTime is the score of each part of a load.
func (t *PageTime) overTime(s *bufferbloat.ProbeSeries, from, to time.Duration) (parts []PageScoreAt) {
	step := scoreStep * max(1, (to-from+mostParts*scoreStep-1)/(mostParts*scoreStep))
	if to-from <= step {
		return nil
	}
	for ; from < to; from += step {
		end := min(from+step, to)
		parts = append(parts, PageScoreAt{From: from, To: end, Score: t.over(newPageTime(s, from, end))})
	}
	return parts
}

// text is the score in one line.
func (s *PageScore) text() string {
	if s.Score == nil {
		return fmt.Sprintf("Page score of %s, %s: none: %s", printable(s.Phase), printable(s.Series), s.Reason)
	}
	line := fmt.Sprintf("Page score of %s, %s: %.0f of 100: a page takes %s ms unloaded and %s ms under the load (medians of %d and %d)", printable(s.Phase), printable(s.Series),
		*s.Score, ms(s.Idle.Median), ms(s.Loaded.Median), s.Idle.N, s.Loaded.N)
	if n := s.Loaded.Failed; n > 0 {
		line += fmt.Sprintf("; %d more could not be loaded", n)
	}
	if n := s.Loaded.Unsent; n > 0 {
		was := "were"
		if n == 1 {
			was = "was"
		}
		line += fmt.Sprintf("; %d more %s not begun, so the load slows pages down by more than this", n, was)
	}
	for i, part := range s.OverTime {
		if i == 0 {
			line += fmt.Sprintf("; each %v from %v on:", part.To-part.From, part.From.Round(time.Second))
		}
		if part.Score == nil {
			line += " -"
			continue
		}
		line += fmt.Sprintf(" %.0f", *part.Score)
	}
	return line
}
