package plot

import (
	"fmt"
	"math"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report/curve"
	"bufferbloat/report/stat"
)

// cloud is the pairs of rate and RTT of one direction of one load phase.
type cloud struct {
	run       int
	phase     string
	direction load.Direction
	pairs     []pairOf
}

type pairOf struct {
	rate bitrate.Bitrate
	rtt  time.Duration
}

// pairTime is the time that one pair is of.
const pairTime = time.Second

// clouds returns a run's pairs: in each second of a load its goodput and the median RTT.
func clouds(i int, rec *bufferbloat.Recording) (out []cloud) {
	s := curve.Primary(rec)
	if s == nil {
		return nil
	}
	for _, w := range curve.Windows(rec) {
		if !w.UnderLoad {
			continue
		}
		for _, dir := range []load.Direction{load.Download, load.Upload} {
			c := cloud{run: i, phase: w.Name, direction: dir}
			bins := curve.Rates(curve.Flows(rec, dir, w.Name), max(pairTime, (w.To-w.From)/200))
			for _, stretch := range bins {
				for _, r := range stretch {
					if r.From < w.From || r.To > w.To {
						continue
					}
					rtts, _ := curve.Within(s, r.From, r.To)
					if median, err := stat.Quantile(rtts, 0.5); err == nil {
						c.pairs = append(c.pairs, pairOf{r.Rate, median})
					}
				}
			}
			if len(c.pairs) > 0 {
				out = append(out, c)
			}
		}
	}
	return out
}

// label names a cloud within its run.
func (c cloud) label() string {
	if c.phase == c.direction.String() {
		return c.phase
	}
	return c.phase + ", " + c.direction.String()
}

// rateLatency draws RTT against goodput.
func (d *drawing) rateLatency() error {
	var all []cloud
	for i, r := range d.runs {
		all = append(all, clouds(i, r.Recording)...)
	}
	if !d.o.Apart || len(d.runs) == 1 {
		d.cloudPanel(all, all)
		return nil
	}
	for i := range d.runs {
		var own []cloud
		for _, c := range all {
			if c.run == i {
				own = append(own, c)
			}
		}
		limits := own
		if d.o.SameAxes {
			limits = all
		}
		d.groupTitle(i)
		d.cloudPanel(own, limits)
	}
	return nil
}

func (d *drawing) cloudPanel(all, limits []cloud) {
	var labels []string
	for _, c := range all {
		if !slices.Contains(labels, c.label()) {
			labels = append(labels, c.label())
		}
	}
	several := slices.ContainsFunc(all, func(c cloud) bool { return c.run != all[0].run })
	look := func(c cloud) style {
		i := slices.Index(labels, c.label())
		st := styles(i)
		if several {
			st = styles(c.run)
		}
		st.marker = i
		return st
	}
	var keys []key
	for i, l := range labels {
		st := styles(i)
		if several {
			st.colour = faint
		}
		st.marker = i
		keys = append(keys, key{style: st, mark: true, label: l})
	}
	keys = append(keys, key{note: true, label: "a dot: one second of load; ellipse: one standard deviation; large mark: mean"})
	d.y += d.scene.legend(d.y, "", keys, true)
	var highRate bitrate.Bitrate
	var highRTT float64
	for _, c := range limits {
		for _, q := range c.pairs {
			highRate, highRTT = max(highRate, q.rate), max(highRTT, ms(q.rtt))
		}
		for _, q := range c.ellipse(1) {
			highRate, highRTT = max(highRate, bitrate.Bitrate(q.x)), max(highRTT, q.y)
		}
	}
	unit, unitName := rateUnit(highRate, highRate)
	const height = 400
	p := d.scene.addPanel(d.y+4, height, from0(float64(highRate)/float64(unit)), from0(highRTT), "goodput ("+unitName+")", "median RTT in that second (ms)")
	for _, c := range all {
		p.cloud(c, unit, look(c))
	}
	if len(all) == 0 {
		p.say("no load with answered probes")
	}
	p.frame()
	d.y += height + 4 + axisSpace
}

func (p *panel) cloud(c cloud, unit bitrate.Bitrate, st style) {
	var dots [][]point
	for _, q := range c.pairs {
		dots = append(dots, marker(st.marker, p.at(float64(q.rate)/float64(unit), ms(q.rtt)), 2.2))
	}
	p.s.add(path{lines: dots, closed: true, fill: st.colour.at(0.45)})
	var line []point
	for _, q := range c.ellipse(48) {
		// What lies below 0 has no meaning, and no place.
		line = append(line, point{p.x.clipped(q.x / float64(unit)), p.y.clipped(q.y)})
	}
	if len(line) > 0 {
		p.s.add(path{lines: [][]point{line}, closed: true, stroke: st.colour, fill: st.colour.at(0.08), width: 1.6})
	}
	m := c.mean()
	p.s.add(path{lines: [][]point{marker(st.marker, p.at(m.x/float64(unit), m.y), 5.5)}, closed: true, fill: st.colour, stroke: paper, width: 1})
}

// mean is the centre of a cloud, in bit/s and ms.
func (c cloud) mean() (m point) {
	for _, q := range c.pairs {
		m.x += float64(q.rate) / float64(len(c.pairs))
		m.y += ms(q.rtt) / float64(len(c.pairs))
	}
	return m
}

// ellipse returns points of the ellipse of one standard deviation, in bit/s and ms, none for fewer than three pairs. With n = 1 it returns the
// ends of the box around it.
func (c cloud) ellipse(n int) (out []point) {
	if len(c.pairs) < 3 {
		return nil
	}
	m := c.mean()
	var xx, yy, xy float64
	for _, q := range c.pairs {
		dx, dy := float64(q.rate)-m.x, ms(q.rtt)-m.y
		xx += dx * dx
		yy += dy * dy
		xy += dx * dy
	}
	k := float64(len(c.pairs) - 1)
	sx, sy := math.Sqrt(xx/k), math.Sqrt(yy/k)
	if n == 1 {
		return []point{{m.x - sx, m.y - sy}, {m.x + sx, m.y + sy}}
	}
	r := 0.0
	if sx > 0 && sy > 0 {
		r = max(-1, min(xy/k/(sx*sy), 1))
	}
	// The ellipse of correlation r, as the image of a circle under the covariance's root (Cholesky).
	for i := range n {
		a := 2 * math.Pi * float64(i) / float64(n)
		u, v := math.Cos(a), math.Sin(a)
		out = append(out, point{m.x + sx*u, m.y + sy*(r*u+math.Sqrt(1-r*r)*v)})
	}
	return out
}

// maxSharePanels bounds the panels of one picture.
const maxSharePanels = 16

// shares draws the goodput of each flow: a panel for each direction of each load phase of each run.
func (d *drawing) shares() error {
	type part struct {
		run   int
		label string
		flows []*bufferbloat.Flow
	}
	var parts []part
	var high bitrate.Bitrate
	for i, r := range d.runs {
		for _, w := range loadPhases(r.Recording) {
			for _, dir := range []load.Direction{load.Download, load.Upload} {
				flows := curve.Flows(r.Recording, dir, w)
				if len(flows) == 0 {
					continue
				}
				parts = append(parts, part{i, cloud{phase: w, direction: dir}.label(), flows})
				for _, f := range flows {
					v, _ := flowRate(f)
					high = max(high, v)
				}
			}
		}
	}
	if len(parts) == 0 {
		return &NotRecordedError{Kind: d.kind, Run: d.runs[0].Name, What: "no flow is"}
	}
	for i, q := range parts[:min(len(parts), maxSharePanels)] {
		if len(d.runs) > 1 && (i == 0 || parts[i-1].run != q.run) {
			d.groupTitle(q.run)
		}
		top := bitrate.Bitrate(0)
		for _, f := range q.flows {
			v, _ := flowRate(f)
			top = max(top, v)
		}
		if d.o.SameAxes {
			top = high
		}
		d.sharePanel(q.label, q.flows, top, high, i == min(len(parts), maxSharePanels)-1)
	}
	if n := len(parts) - maxSharePanels; n > 0 {
		d.y += lineHeight
		d.scene.write(text{at: point{marginLeft, d.y}, s: fmt.Sprintf("%d more panels are not shown", n), size: smallSize, colour: faint})
	}
	return nil
}

// loadPhases returns the phases that flows belong to, in the order of the flows.
func loadPhases(rec *bufferbloat.Recording) (out []string) {
	for i := range rec.Flows {
		if name := rec.Flows[i].Phase; !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// flowRate is a flow's goodput over its own time, false where it has none.
func flowRate(f *bufferbloat.Flow) (bitrate.Bitrate, bool) {
	r := f.Result
	if !r.Flowed || r.Last <= r.First || r.First < 0 {
		return 0, false
	}
	v := float64(r.Bytes) * 8 / (r.Last - r.First).Seconds()
	return bitrate.Bitrate(min(v, 1e17)), true
}

func (d *drawing) sharePanel(title string, flows []*bufferbloat.Flow, high, highest bitrate.Bitrate, last bool) {
	s := d.scene
	var bytes []float64
	flowed, sum := 0, bitrate.Bitrate(0)
	for _, f := range flows {
		if v, ok := flowRate(f); ok {
			flowed++
			sum += v
			bytes = append(bytes, float64(f.Result.Bytes))
		} else {
			bytes = append(bytes, 0)
		}
	}
	note := fmt.Sprintf("%d of %d flows delivered", flowed, len(flows))
	if j, ok := stat.Jain(bytes); ok && len(flows) > 1 {
		note += fmt.Sprintf("; Jain's index %.3f over all of them", j)
	}
	unit, unitName := rateUnit(high, highest)
	keys := []key{{note: true, label: note}}
	if flowed > 1 {
		keys = append(keys, key{style: style{colour: faint, dash: []float64{5, 3}}, line: true, label: "equal shares"})
	}
	d.y += s.legend(d.y, title, keys, true)
	const height = 130
	p := s.addPanel(d.y+4, height, axis{high: 1, blank: true}, from0(float64(high)/float64(unit)), "", unitName)
	slot := float64(plotWidth) / float64(len(flows))
	width := min(slot*0.7, 60)
	var bars, failed [][]point
	for i, f := range flows {
		mid := p.left + (float64(i)+0.5)*slot
		if v, ok := flowRate(f); ok {
			bars = append(bars, rectangle(mid-width/2, p.y.place(float64(v)/float64(unit)), mid+width/2, p.bottom))
		}
		if f.Error != "" || !f.Result.Flowed {
			failed = append(failed, []point{{mid - 4, p.bottom - 12}, {mid + 4, p.bottom - 4}}, []point{{mid - 4, p.bottom - 4}, {mid + 4, p.bottom - 12}})
		}
		if slot >= 55 {
			s.write(text{at: point{mid, p.bottom + 15}, s: s.fonts.fit(f.Name, smallSize, false, slot-4), size: smallSize, anchor: 0.5, colour: ink})
		}
	}
	st := styles(int(flows[0].Direction - load.Download))
	if len(bars) > 0 {
		s.add(path{lines: bars, closed: true, fill: st.colour.at(0.8)})
	}
	if len(failed) > 0 {
		s.add(path{lines: failed, stroke: lostColour, width: 2})
	}
	if flowed > 1 {
		y := p.y.place(float64(sum) / float64(len(flows)) / float64(unit))
		s.line(faint, 1.4, []float64{5, 3}, point{p.left, y}, point{p.right, y})
	}
	if flowed == 0 {
		p.say("no flow delivered anything")
	}
	p.frame()
	d.y += height + 26
	if last && len(failed) > 0 {
		d.y += lineHeight
		s.write(text{at: point{marginLeft, d.y}, s: "a red cross: the flow failed, or ended before its time", size: smallSize, colour: faint})
	}
}
