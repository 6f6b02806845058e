package plot

import (
	"math"
	"time"

	"bufferbloat/report/curve"
)

const (
	heatRows   = 50
	heatLevels = 9
	heatHeight = 260
)

// heat draws, for each run, how many of the probes of a short time took how long.
func (d *drawing) heat() error {
	var all []sample
	var span time.Duration
	whole := make([]sample, len(d.runs))
	for i, r := range d.runs {
		span = max(span, curve.Span(r.Recording))
		if s := curve.Primary(r.Recording); s != nil {
			rtts, lost := curve.Within(s, 0, math.MaxInt64)
			whole[i] = sample{run: i, rtts: rtts, lost: lost}
		}
		all = append(all, whole[i])
	}
	quarter := heatLevel(1, 4)
	ramp := []key{{note: true, label: "share of the probes of a column:"}}
	for _, k := range []int{1, quarter, heatLevels} {
		name := map[int]string{1: "few", quarter: "a quarter", heatLevels: "all"}[k]
		ramp = append(ramp, key{style: style{colour: heatColour(k)}, filled: true, label: name})
	}
	ramp = append(ramp, key{style: style{colour: lostColour}, filled: true, label: "lost (along the top)"})
	d.y += d.scene.legend(d.y, "", ramp, true)
	for i, r := range d.runs {
		if len(d.runs) > 1 {
			d.groupTitle(i)
		}
		own, x := whole[i:i+1], curve.Span(r.Recording)
		if d.o.SameAxes {
			own, x = all, span
		}
		d.heatPanel(r, whole[i], d.delayAxis(own, false), x)
	}
	return nil
}

// heatLevel is the level, 1 to heatLevels, of some of all probes of a column. It grows with the root of the share, so that a few probes show.
func heatLevel(some, all int) int {
	return max(1, int(math.Ceil(heatLevels*math.Sqrt(float64(some)/float64(all)))))
}

// heatColour is the colour of a level.
func heatColour(level int) colour {
	return colour{0x08306b, 1, ""}.at(math.Round(100*(0.1+0.9*float64(level)/heatLevels)) / 100)
}

func (d *drawing) heatPanel(r Run, smp sample, y axis, span time.Duration) {
	s := d.scene
	d.y += phaseNames + 4
	top := d.y
	p := s.addPanel(top+8, heatHeight, newAxis(0, span.Seconds(), false), y, "time at which a probe was sent (s since the start)", "RTT (ms)")
	n := len(smp.rtts) + smp.lost
	columns := max(20, min(n/10, plotWidth/4))
	h := newHeat(r, p.y, columns, span)
	var cells [heatLevels + 1][][]point
	column := (p.right - p.left) / float64(columns)
	row := (p.bottom - p.top) / heatRows
	for c := range columns {
		if h.total[c] == 0 {
			continue
		}
		left := p.left + float64(c)*column
		for q := range heatRows {
			if v := h.count[c][q]; v > 0 {
				level := heatLevel(v, h.total[c])
				cells[level] = append(cells[level], rectangle(left, p.bottom-float64(q+1)*row, left+column, p.bottom-float64(q)*row))
			}
		}
		if h.lost[c] > 0 {
			share := 0.3 + 0.7*float64(h.lost[c])/float64(h.total[c])
			s.box(left, p.top-8, left+column, p.top-2, lostColour.at(math.Round(share*100)/100))
		}
	}
	for level, list := range cells {
		if len(list) > 0 {
			s.add(path{lines: list, closed: true, fill: heatColour(level)})
		}
	}
	windows := curve.Windows(r.Recording)
	p.phaseLines(windows, p.top-12)
	if len(smp.rtts) == 0 {
		p.say("no probe was answered")
	}
	p.frame()
	d.y = p.bottom + axisSpace
}

// heatMap counts probes by time and RTT.
type heatMap struct {
	count [][heatRows]int
	lost  []int
	total []int // answered and lost
}

func newHeat(r Run, y axis, columns int, span time.Duration) heatMap {
	h := heatMap{make([][heatRows]int, columns), make([]int, columns), make([]int, columns)}
	s := curve.Primary(r.Recording)
	if s == nil || span <= 0 {
		return h
	}
	column := func(t time.Duration) int {
		return max(0, min(columns-1, int(float64(t)/float64(span)*float64(columns))))
	}
	rows := axis{low: y.low, high: y.high, log: y.log, a: 0, b: heatRows}
	d := curve.NewDelays(s)
	for _, stretch := range d.Stretches {
		for _, q := range stretch {
			c := column(q.At)
			h.count[c][max(0, min(heatRows-1, int(rows.place(ms(q.RTT)))))]++
			h.total[c]++
		}
	}
	for _, t := range d.Lost {
		c := column(t)
		h.lost[c]++
		h.total[c]++
	}
	return h
}
