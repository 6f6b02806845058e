package plot

import (
	"fmt"
	"slices"
	"time"

	"bufferbloat"
	"bufferbloat/report/curve"
	"bufferbloat/report/stat"
)

// sample is the RTTs of one run's primary series in one phase, sorted.
type sample struct {
	run   int
	phase string // label
	rtts  []time.Duration
	lost  int
}

// maxPhases bounds the phases of one picture.
const maxPhases = 12

// samples returns the RTTs of all runs by phase, drains left out, the phases in the order of the first run that has them.
func (d *drawing) samples() (phases []string, by map[string][]sample, left int) {
	by = map[string][]sample{}
	for i, r := range d.runs {
		s := curve.Primary(r.Recording)
		if s == nil {
			continue
		}
		for _, w := range curve.Windows(r.Recording) {
			if w.Kind == bufferbloat.Drain {
				continue
			}
			rtts, lost := curve.Within(s, w.From, w.To)
			label := phaseLabel(w)
			if !slices.Contains(phases, label) {
				phases = append(phases, label)
			}
			by[label] = append(by[label], sample{i, label, rtts, lost})
		}
	}
	if len(phases) > maxPhases {
		left = len(phases) - maxPhases
		phases = phases[:maxPhases]
	}
	return phases, by, left
}

// delayAxis returns the axis for the RTTs of samples: from 0, unless that would leave more than half of it empty and zero is not wanted.
func (d *drawing) delayAxis(all []sample, zero bool) axis {
	var low, high time.Duration
	any := false
	for _, s := range all {
		if len(s.rtts) == 0 {
			continue
		}
		if !any || s.rtts[0] < low {
			low = s.rtts[0]
		}
		high = max(high, s.rtts[len(s.rtts)-1])
		any = true
	}
	switch {
	case !any:
		return newAxis(0, 1, false)
	case d.o.Log && low > 0:
		return newAxis(ms(low)/1.05, ms(high)*1.05, true)
	case zero || low < high/2:
		return from0(ms(high))
	}
	room := max(ms(high-low)*0.06, ms(high)*0.02) // a link without any jitter is not drawn as if it had some
	return newAxis(max(0, ms(low)-room), ms(high)+room, false)
}

// cdfPoints is how many points a curve of a distribution has at most.
const cdfPoints = 400

// cdf draws the distribution of the RTT: of one run by phase, of several runs in a panel for each phase.
func (d *drawing) cdf() error {
	phases, by, left := d.samples()
	var all []sample
	for _, name := range phases {
		all = append(all, by[name]...)
	}
	d.y += d.scene.legend(d.y, "", []key{{note: true, label: "marks: medians; a curve that ends below 100% has lost probes"}}, true) + 3
	if len(d.runs) == 1 || d.o.Apart {
		for i := range d.runs {
			var own []sample
			for _, s := range all {
				if s.run == i {
					own = append(own, s)
				}
			}
			if len(d.runs) > 1 {
				d.groupTitle(i)
			}
			axisOf := own
			if d.o.SameAxes {
				axisOf = all
			}
			d.cdfPanel("", own, d.delayAxis(axisOf, false), 300, true, func(s sample) (style, string) {
				return styles(slices.Index(phases, s.phase)), s.phase
			})
		}
	} else {
		for i, name := range phases {
			axisOf := by[name]
			if d.o.SameAxes {
				axisOf = all
			}
			d.cdfPanel(name, by[name], d.delayAxis(axisOf, false), 150, i == len(phases)-1 || !d.o.SameAxes, func(s sample) (style, string) {
				return styles(s.run), d.runs[s.run].Name
			})
		}
		if len(phases) == 0 {
			d.cdfPanel("", nil, d.delayAxis(nil, false), 150, true, nil)
		}
	}
	d.leftOut(left)
	return nil
}

// leftOut says how many phases are not in the picture.
func (d *drawing) leftOut(n int) {
	if n > 0 {
		d.y += lineHeight
		d.scene.write(text{at: point{marginLeft, d.y}, s: fmt.Sprintf("%d more phases are not shown", n), size: smallSize, colour: faint})
	}
}

func (d *drawing) cdfPanel(title string, all []sample, x axis, height float64, labels bool, look func(sample) (style, string)) {
	s := d.scene
	var keys []key
	for _, smp := range all {
		st, name := look(smp)
		label := fmt.Sprintf("%s: n %d", s.fonts.fit(name, smallSize, false, 200), len(smp.rtts))
		if smp.lost > 0 {
			label += fmt.Sprintf(", %d lost", smp.lost)
		}
		keys = append(keys, key{style: st, line: true, mark: true, label: label})
	}
	d.y += s.legend(d.y, title, keys, true)
	xLabel, space := "", 12.0
	if labels {
		xLabel, space = "RTT (ms)", axisSpace+6
	}
	p := s.addPanel(d.y+4, height, x, newAxis(0, 100, false), xLabel, "share of probes (%)")
	drawn := false
	for _, smp := range all {
		st, _ := look(smp)
		drawn = p.cdf(smp, st) || drawn
	}
	if !drawn {
		p.say("no probe was answered")
	}
	p.frame()
	d.y += height + space + 4
}

// cdf draws one distribution, from its first RTT at 0 to the right edge at the share that was answered.
func (p *panel) cdf(smp sample, st style) bool {
	steps := curve.CDF(smp.rtts, smp.lost, cdfPoints)
	if len(steps) == 0 {
		return false
	}
	line := []point{p.at(ms(steps[0].RTT), 0)}
	var median point
	half := false
	last := 0.0
	for _, q := range steps {
		x := p.x.place(ms(q.RTT))
		if len(steps) < cdfPoints/2 {
			line = append(line, point{x, p.y.place(100 * last)})
		}
		line = append(line, point{x, p.y.place(100 * q.Share)})
		if !half && q.Share >= 0.5 {
			median, half = point{x, p.y.place(50)}, true
		}
		last = q.Share
	}
	line = append(line, point{p.right, p.y.place(100 * last)})
	p.s.add(path{lines: [][]point{line}, stroke: st.colour, width: 1.8, dash: st.dash})
	if half {
		p.s.add(path{lines: [][]point{marker(st.marker, median, 4)}, closed: true, fill: st.colour})
	}
	return true
}

// box draws quartiles by phase, the runs beside each other.
func (d *drawing) box() error {
	phases, by, left := d.samples()
	var all []sample
	for _, name := range phases {
		all = append(all, by[name]...)
	}
	const height = 330
	d.y += d.scene.legend(d.y, "", []key{{note: true, label: "box: quartiles and median; whiskers: 10th to 90th percentile; dots: lowest and highest"}}, true)
	y := d.delayAxis(all, true)
	p := d.scene.addPanel(d.y+4, height, axis{high: 1, blank: true}, y, "", "RTT (ms)")
	column := float64(plotWidth) / float64(max(1, len(phases)))
	for i, name := range phases {
		left := p.left + float64(i)*column
		if i > 0 {
			d.scene.line(faint.at(0.5), 0.8, []float64{2, 3}, point{left, p.top}, point{left, p.bottom})
		}
		d.scene.write(text{at: point{left + column/2, p.bottom + 17}, s: d.scene.fonts.fit(name, textSize, false, column-6), size: textSize, anchor: 0.5, colour: ink})
		each := min(column/float64(len(d.runs)), 160)
		for _, smp := range by[name] {
			mid := left + column/2 + (float64(smp.run)-float64(len(d.runs)-1)/2)*each
			look := styles(smp.run)
			if len(d.runs) == 1 {
				look = styles(i)
			}
			p.box(smp, mid, min(each*0.6, 70), look)
			p.boxCount(smp, mid, each)
		}
	}
	if !slices.ContainsFunc(all, func(s sample) bool { return len(s.rtts) > 0 }) {
		p.say("no probe was answered")
	}
	p.frame()
	d.y += height + 54
	d.leftOut(left)
	return nil
}

// boxCount writes below a box how many probes it is of, where that has the room.
func (p *panel) boxCount(smp sample, mid, room float64) {
	lines := []string{fmt.Sprintf("n %d", len(smp.rtts)), percent(smp.lost, smp.lost+len(smp.rtts)) + " lost"}
	if smp.lost == 0 {
		lines = lines[:1]
	}
	for i, line := range lines {
		if p.s.fonts.width(line, smallSize-1, false) <= room-4 {
			p.s.write(text{at: point{mid, p.bottom + 31 + float64(i)*13}, s: line, size: smallSize - 1, anchor: 0.5, colour: faint})
		}
	}
}

func (p *panel) box(smp sample, mid, width float64, st style) {
	at := func(q float64) float64 {
		v, _ := stat.Quantile(smp.rtts, q) // it fails on no samples alone
		return p.y.place(ms(v))
	}
	if len(smp.rtts) == 0 {
		return
	}
	low, high, half := mid-width/2, mid+width/2, width/2
	c := st.colour
	p.s.add(path{lines: [][]point{{{mid, at(0.1)}, {mid, at(0.25)}}, {{mid, at(0.75)}, {mid, at(0.9)}},
		{{mid - half/2, at(0.1)}, {mid + half/2, at(0.1)}}, {{mid - half/2, at(0.9)}, {mid + half/2, at(0.9)}}}, stroke: c, width: 1.4})
	p.s.add(path{lines: [][]point{rectangle(low, at(0.75), high, at(0.25))}, closed: true, fill: c.at(0.25), stroke: c, width: 1.4})
	p.s.line(c, 2.6, nil, point{low, at(0.5)}, point{high, at(0.5)})
	p.s.add(path{lines: [][]point{marker(0, point{mid, at(0)}, 2), marker(0, point{mid, at(1)}, 2)}, closed: true, fill: c})
}
