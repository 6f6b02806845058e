package report

import (
	"math"
	"strconv"
	"time"

	"bufferbloat"
	"bufferbloat/report/stat"
)

// ClosedLoop is what a closed loop did in one phase: how many transactions went through, and how long those took that were under way at regular moments. That
// weighs each transaction by its length. A mean time of a transaction is not told: it would count a long queue as rarely as such a test meets it.
type ClosedLoop struct {
	Phase  string `json:"phase"`
	Series string `json:"series"`
	Kind   string `json:"kind"`
	Reason string `json:"reason,omitempty"` // why there are no figures, "" where there are
	// Rate is the number of transactions in a second.
	Rate *float64 `json:"transactions_per_second"`
	N    int      `json:"n"` // moments at which a transaction was under way whose fate is known
	// Unanswered is the share of them, 0..1, at which a request was out that was never answered. The quantiles count it as longer than any.
	Unanswered *float64       `json:"unanswered"`
	Median     *time.Duration `json:"time_weighted_median_ns"` // null where it lies among the unanswered
	P90        *time.Duration `json:"time_weighted_p90_ns"`
	P99        *time.Duration `json:"time_weighted_p99_ns"` // null, too, with few moments
}

// closedLoops returns the figures of each closed loop in each phase but drains, nil where there is none.
func (r *Result) closedLoops(rec *bufferbloat.Recording) (all []ClosedLoop) {
	for i := range r.Phases {
		p := &r.Phases[i]
		for j := range rec.Plan.Probes {
			pr := &rec.Plan.Probes[j]
			if k := pr.Kind; (k == bufferbloat.ClosedTCPRR || k == bufferbloat.ClosedUDPRR) && p.Kind != bufferbloat.Drain {
				all = append(all, newClosedLoop(p, pr, rec))
			}
		}
	}
	return all
}

func newClosedLoop(p *Phase, pr *bufferbloat.ProbePlan, rec *bufferbloat.Recording) ClosedLoop {
	l := ClosedLoop{Phase: p.Name, Series: pr.Name, Kind: string(pr.Kind)}
	var done, passed float64
	last := time.Duration(-1)
	eachValue(rec, pr.Name+bufferbloat.LoopTransactions, p, func(at time.Duration, v float64) {
		if last >= 0 {
			d := (at - last).Seconds()
			done, passed = done+v*d, passed+d
		}
		last = at
	})
	if passed > 0 {
		rate := done / passed
		l.Rate = &rate
	}
	var rtts []time.Duration
	eachValue(rec, pr.Name+bufferbloat.LoopRTT, p, func(_ time.Duration, v float64) {
		rtts = append(rtts, time.Duration(math.Round(v*1e6)))
	})
	lost := 0
	eachValue(rec, pr.Name+bufferbloat.LoopUnanswered, p, func(time.Duration, float64) { lost++ })
	l.N = len(rtts) + lost
	switch {
	case !p.Reached:
		l.Reason = "the phase was not reached"
	case l.N == 0:
		l.Reason = "no transaction was seen in it"
	}
	if l.N == 0 {
		return l
	}
	share := float64(lost) / float64(l.N)
	l.Unanswered = &share
	quantile := func(q float64) *time.Duration {
		b, err := stat.QuantileWithLoss(rtts, lost, q)
		return value(b.Value, err == nil && !b.Unbounded)
	}
	l.Median, l.P90 = quantile(0.5), quantile(0.9)
	if l.N >= stat.MinSamples(0.99) {
		l.P99 = quantile(0.99)
	}
	return l
}

// eachValue calls f with each value of a quantity in the time of a phase that counts.
func eachValue(rec *bufferbloat.Recording, name string, p *Phase, f func(at time.Duration, v float64)) {
	for i := range rec.Others {
		q := &rec.Others[i]
		if q.Name != name {
			continue
		}
		times, values := q.Columns()
		for j, at := range times {
			if at >= p.From && at < p.To {
				f(at, values[j])
			}
		}
	}
}

// loopColumns are the heads of the table of closed loops; from the third on they are numbers.
func loopColumns() []string {
	return []string{"Phase", "Closed loop", "Trans./s", "Unanswered", "Median by time", "90pct by time", "99pct by time"}
}

// loopRows returns a row for each closed loop in each phase; times in ms.
func (r *Result) loopRows() (rows [][]string) {
	for i := range r.Loops {
		l := &r.Loops[i]
		row := []string{printable(l.Phase), printable(l.Series), none, none, orNone(l.Median), orNone(l.P90), orNone(l.P99)}
		if l.Rate != nil {
			row[2] = strconv.FormatFloat(*l.Rate, 'f', 1, 64)
		}
		if l.Unanswered != nil {
			row[3] = percent(*l.Unanswered)
		}
		rows = append(rows, row)
	}
	return rows
}
