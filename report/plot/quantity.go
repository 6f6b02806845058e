package plot

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/probe"
	"bufferbloat/report/curve"
)

// measure is a kind of quantity that a picture shows in a panel: those whose names end with the suffix, of whatever flow or interface.
type measure struct {
	suffix string
	title  string
	unit   string // of a quantity that does not name its own
}

// The suffixes are those of flent's data files; units are those of the programs that flent asks: ss(8) and tc(8).
func tcpMeasures() []measure {
	return []measure{{"::tcp_rtt", "Smoothed RTT", "ms"}, {"::tcp_cwnd", "Congestion window", "segments"}}
}

func qdiscMeasures() []measure {
	return []measure{{"::backlog_bytes", "Backlog", "bytes"}, {"::backlog_pkts", "Backlog", "packets"}}
}

func (d *drawing) tcp() error {
	return d.quantities("TCP_INFO of the flows (srtt, cwnd) is", tcpMeasures())
}

func (d *drawing) qdisc() error {
	return d.quantities("the queue discipline's backlog is", qdiscMeasures())
}

// maxQuantities bounds the lines of a panel.
const maxQuantities = 14

// quantities draws panels over time, for each run one for each measure that it has, on a time axis that they share.
func (d *drawing) quantities(what string, measures []measure) error {
	matching := func(r Run, m measure) (out []*bufferbloat.Quantity) {
		for i := range r.Recording.Others {
			q := r.Recording.Others[i]
			if !strings.HasSuffix(q.Name, m.suffix) {
				continue
			}
			if q.At, q.Values = q.Columns(); len(q.At) > 0 && len(q.At) == len(q.Values) {
				out = append(out, &q)
			}
		}
		return out
	}
	var span time.Duration
	high := map[string]float64{}
	for i, r := range d.runs {
		span = max(span, curve.Span(r.Recording))
		any := false
		for _, m := range measures {
			for _, q := range matching(r, m) {
				any = true
				span = max(span, slices.Max(q.At))
				high[m.suffix] = max(high[m.suffix], slices.Max(q.Values))
			}
		}
		if !any {
			return &NotRecordedError{Kind: d.kind, Run: d.runs[i].Name, What: what}
		}
	}
	for i, r := range d.runs {
		if len(d.runs) > 1 {
			d.groupTitle(i)
		}
		x := curve.Span(r.Recording)
		if d.o.SameAxes {
			x = span
		}
		shown := slices.DeleteFunc(slices.Clone(measures), func(m measure) bool { return len(matching(r, m)) == 0 })
		for j, m := range shown {
			list := matching(r, m)
			top := 0.0
			for _, q := range list {
				x = max(x, slices.Max(q.At))
				top = max(top, slices.Max(q.Values))
			}
			if d.o.SameAxes {
				top = high[m.suffix]
			}
			d.quantityPanel(m, list, curve.Windows(r.Recording), x, top, j == 0, j == len(shown)-1)
		}
	}
	return nil
}

func (d *drawing) quantityPanel(m measure, list []*bufferbloat.Quantity, windows []curve.Window, span time.Duration, high float64, first, last bool) {
	var keys []key
	resampled := false
	for i, q := range list[:min(len(list), maxQuantities)] {
		keys = append(keys, key{style: styles(i), line: true, label: strings.TrimSuffix(q.Name, m.suffix)})
		resampled = resampled || q.Resampled
	}
	if n := len(list) - maxQuantities; n > 0 {
		keys = append(keys, key{note: true, label: fmt.Sprintf("%d more are not shown", n)})
	}
	if resampled {
		keys = append(keys, key{note: true, label: "(interpolated by its source)"})
	}
	d.y += d.scene.legend(d.y, m.title, keys, true)
	if first {
		d.y += phaseNames
	}
	xLabel, space := "", 10.0
	if last {
		xLabel, space = "time (s since the start)", axisSpace
	}
	unit := m.unit
	if u := list[0].Unit; u != "" {
		unit = u
	}
	const height = 170
	p := d.scene.addPanel(d.y, height, newAxis(0, span.Seconds(), false), from0(high), xLabel, d.scene.fonts.fit(unit, textSize, false, height))
	p.phases(windows, first)
	for i, q := range list[:min(len(list), maxQuantities)] {
		p.quantity(q, span, styles(i))
	}
	p.frame()
	d.y += height + space
}

// quantity draws one line: of each px the first, lowest, highest and last value, with gaps where values are missing.
func (p *panel) quantity(q *bufferbloat.Quantity, span time.Duration, st style) {
	// Delays have the reduction that this needs; values go through it as whole numbers of a billionth of the axis.
	scale := 1e9 / max(math.Abs(p.y.high), 1e-300)
	s := &bufferbloat.ProbeSeries{Interval: typicalInterval(q.At)}
	for i, at := range q.At {
		v := max(0, min(q.Values[i]*scale, 4e9))
		s.Samples = append(s.Samples, probe.Sample{Sent: at, Outcome: probe.Received, RTT: time.Duration(v)})
	}
	var lines, dots [][]point
	for _, stretch := range curve.NewDelays(s).Reduce(0, span, plotWidth).Stretches {
		var line []point
		for _, r := range stretch {
			line = append(line, p.at(r.At.Seconds(), float64(r.RTT)/scale))
		}
		if len(line) == 1 {
			dots = append(dots, marker(0, line[0], 1.5))
			continue
		}
		lines = append(lines, line)
	}
	if len(lines) > 0 {
		p.s.add(path{lines: lines, stroke: st.colour, width: 1.4, dash: st.dash})
	}
	if len(dots) > 0 {
		p.s.add(path{lines: dots, closed: true, fill: st.colour})
	}
}

// typicalInterval is the median distance of times, 0 for fewer than three.
func typicalInterval(at []time.Duration) time.Duration {
	if len(at) < 3 {
		return 0
	}
	var d []time.Duration
	for i := 1; i < len(at); i++ {
		d = append(d, at[i]-at[i-1])
	}
	slices.Sort(d)
	return max(0, d[len(d)/2]) * 3 // these programs sample at no fixed distance
}
