package plot

import (
	"fmt"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report/curve"
)

// few is how many flows a picture over time shows each by itself.
const few = 8

// timeline is what a picture over time shows of one run.
type timeline struct {
	run     int
	span    time.Duration
	windows []curve.Window
	rates   map[load.Direction]rates
	delays  []namedDelays
}

type rates struct {
	total [][]curve.Rate
	each  [][][]curve.Rate // by flow, where there are few
}

type namedDelays struct {
	name string
	curve.Delays
}

func (d *drawing) timelines() (all []*timeline) {
	for i, r := range d.runs {
		t := &timeline{run: i, span: curve.Span(r.Recording), windows: curve.Windows(r.Recording), rates: map[load.Direction]rates{}}
		for _, dir := range []load.Direction{load.Download, load.Upload} {
			flows := curve.Flows(r.Recording, dir, "")
			bin := t.span / (plotWidth / 2)
			rs := rates{total: curve.Rates(flows, bin)}
			if len(flows) <= few {
				for _, f := range flows {
					rs.each = append(rs.each, curve.Rates([]*bufferbloat.Flow{f}, max(bin, 500*time.Millisecond)))
				}
			}
			t.rates[dir] = rs
		}
		primary := curve.Primary(r.Recording)
		for j := range r.Recording.Probes {
			s := &r.Recording.Probes[j]
			nd := namedDelays{s.Name, curve.NewDelays(s).Reduce(0, t.span, plotWidth)}
			if s == primary {
				t.delays = slices.Insert(t.delays, 0, nd)
			} else {
				t.delays = append(t.delays, nd)
			}
		}
		all = append(all, t)
	}
	return all
}

// limits are the ends of the axes of some timelines.
type limits struct {
	span time.Duration
	rate map[load.Direction]bitrate.Bitrate
	rtt  time.Duration
}

func limitsOf(lines []*timeline) limits {
	l := limits{rate: map[load.Direction]bitrate.Bitrate{}}
	for _, t := range lines {
		l.span = max(l.span, t.span)
		for dir, r := range t.rates {
			for _, each := range append(slices.Clone(r.each), r.total) {
				for _, stretch := range each {
					for _, q := range stretch {
						l.rate[dir] = max(l.rate[dir], q.Rate)
					}
				}
			}
		}
		for _, s := range t.delays {
			l.rtt = max(l.rtt, s.Max())
		}
	}
	return l
}

// rrul draws download, upload and RTT over time.
func (d *drawing) rrul() error {
	lines := d.timelines()
	shared := limitsOf(lines)
	groups := [][]*timeline{lines}
	if d.o.Apart {
		groups = nil
		for _, t := range lines {
			groups = append(groups, []*timeline{t})
		}
	}
	for _, group := range groups {
		l := shared
		if !d.o.SameAxes {
			l = limitsOf(group)
		}
		if len(groups) > 1 {
			d.groupTitle(group[0].run)
		}
		d.stack(group, l)
	}
	return nil
}

// groupTitle names the run that the panels below belong to.
func (d *drawing) groupTitle(run int) {
	d.y += lineHeight + 6
	d.scene.write(text{at: point{marginLeft, d.y}, s: d.scene.fonts.fit(d.runs[run].Name, titleSize-1, true, plotWidth), size: titleSize - 1, bold: true, colour: ink})
	d.y += 5
}

// stack draws the panels of some runs, which share them.
func (d *drawing) stack(group []*timeline, l limits) {
	first := true
	for _, dir := range []load.Direction{load.Download, load.Upload} {
		if !d.has(dir) {
			continue
		}
		d.ratePanel(group, dir, l, first)
		first = false
	}
	d.delayPanel(group, l, first)
}

// has reports whether any run has flows of a direction, or was to have them.
func (d *drawing) has(dir load.Direction) bool {
	for _, r := range d.runs {
		if len(curve.Flows(r.Recording, dir, "")) > 0 {
			return true
		}
		for _, ph := range r.Recording.Plan.Phases {
			if slices.ContainsFunc(ph.Flows, func(f bufferbloat.FlowPlan) bool { return f.Direction == dir }) {
				return true
			}
		}
	}
	return false
}

const (
	ratePanelHeight  = 120
	delayPanelHeight = 210
	phaseNames       = 14 // room above the first panel
)

// colourOf is the style of a run in a group, or of the n-th thing of a run that has the panel for itself.
func colourOf(group []*timeline, t *timeline, n int) style {
	if len(group) > 1 {
		return styles(t.run)
	}
	return styles(n)
}

func (d *drawing) ratePanel(group []*timeline, dir load.Direction, l limits, first bool) {
	title := "Download"
	if dir == load.Upload {
		title = "Upload"
	}
	s, n := d.scene, int(dir-load.Download)
	var keys []key
	if len(group) == 1 {
		keys = append(keys, key{style: colourOf(group, group[0], n), line: true, label: "all flows"})
		if len(group[0].rates[dir].each) > 1 {
			keys = append(keys, key{style: style{colour: colourOf(group, group[0], n).colour.at(0.35)}, line: true, label: "each flow"})
		}
	}
	d.y += s.legend(d.y, title, keys, true)
	if first {
		d.y += phaseNames
	}
	unit, unitName := rateUnit(l.rate[dir], max(l.rate[load.Download], l.rate[load.Upload]))
	p := s.addPanel(d.y, ratePanelHeight, newAxis(0, l.span.Seconds(), false), from0(float64(l.rate[dir])/float64(unit)), "", unitName)
	p.phases(group[0].windows, first)
	drawn := false
	for _, t := range group {
		st := colourOf(group, t, n)
		if len(group) == 1 && len(t.rates[dir].each) > 1 {
			for _, flow := range t.rates[dir].each {
				p.rates(flow, unit, style{colour: st.colour.at(0.35)}, 0.9)
			}
		}
		drawn = p.rates(t.rates[dir].total, unit, st, 1.8) || drawn
	}
	if !drawn {
		p.say("no " + dir.String() + " was delivered")
	}
	p.frame()
	d.y += ratePanelHeight + 10
}

// rates draws rates over time, each in the middle of the time that it is of, and reports whether there was one.
func (p *panel) rates(stretches [][]curve.Rate, unit bitrate.Bitrate, st style, width float64) bool {
	var lines [][]point
	for _, stretch := range stretches {
		var line []point
		for _, r := range stretch {
			line = append(line, p.at((r.From+(r.To-r.From)/2).Seconds(), float64(r.Rate)/float64(unit)))
		}
		if len(line) > 0 {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return false
	}
	p.s.add(path{lines: lines, stroke: st.colour, width: width, dash: st.dash})
	return true
}

func (d *drawing) delayPanel(group []*timeline, l limits, first bool) {
	s := d.scene
	var keys []key
	each := func(f func(t *timeline, nd *namedDelays, st style, row int)) {
		row := 0
		for _, t := range group {
			for i := range t.delays {
				if len(group) > 1 && i > 0 {
					break // of several runs the primary series alone
				}
				f(t, &t.delays[i], colourOf(group, t, i), row)
				row++
			}
		}
	}
	each(func(t *timeline, nd *namedDelays, st style, _ int) {
		name := nd.name
		if len(group) == 1 {
			keys = append(keys, key{style: st, line: true, label: name})
		} else {
			name = d.runs[t.run].Name
		}
		if c := count(nd.Delays); c != "" {
			mark := style{colour: lostColour}
			if len(group) > 1 {
				mark.colour = st.colour
			}
			keys = append(keys, key{style: mark, lost: true, label: s.fonts.fit(name, smallSize, false, 150) + ": " + c})
		}
		if nd.NotSent+nd.NoVerdict > 0 {
			keys = append(keys, key{style: style{colour: faint}, lost: true, label: s.fonts.fit(name, smallSize, false, 150) + ": " + undecided(nd.Delays)})
		}
	})
	d.y += s.legend(d.y, "Round-trip time", keys, true)
	if first {
		d.y += phaseNames
	}
	p := s.addPanel(d.y, delayPanelHeight, newAxis(0, l.span.Seconds(), false), from0(ms(l.rtt)), "time at which a probe was sent (s since the start)", "RTT (ms)")
	p.phases(group[0].windows, first)
	answered := 0
	each(func(_ *timeline, nd *namedDelays, st style, row int) {
		answered += nd.Answered
		width := 1.4
		if row > 0 && len(group) == 1 {
			width = 1
		}
		p.delays(nd.Delays, st, width) // the first has no dashes and lies below: what follows leaves some of it to be seen
	})
	each(func(_ *timeline, nd *namedDelays, st style, row int) {
		c := lostColour
		if len(group) > 1 {
			c = st.colour
		}
		p.missing(nd.Delays, c, row)
	})
	if answered == 0 {
		p.say("no probe was answered")
	}
	p.frame()
	d.y += delayPanelHeight + axisSpace
}

// delays draws RTTs over time: lines between answers that follow each other, dots for those that stand alone.
func (p *panel) delays(d curve.Delays, st style, width float64) {
	var lines, dots [][]point
	for _, stretch := range d.Stretches {
		var line []point
		for _, q := range stretch {
			line = append(line, p.at(q.At.Seconds(), ms(q.RTT)))
		}
		if len(line) == 1 {
			dots = append(dots, marker(0, line[0], 1.5))
			continue
		}
		lines = append(lines, line)
	}
	if len(lines) > 0 {
		p.s.add(path{lines: lines, stroke: st.colour, width: width, dash: st.dash})
	}
	if len(dots) > 0 {
		p.s.add(path{lines: dots, closed: true, fill: st.colour})
	}
}

// phaseLabel is a phase's name as pictures of phases show it.
func phaseLabel(w curve.Window) string {
	if w.Kind == bufferbloat.Load && !w.UnderLoad {
		return w.Name + " (no load)"
	}
	return w.Name
}

// percent is a share for a label.
func percent(part, whole int) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.3g%%", 100*float64(part)/float64(whole))
}
