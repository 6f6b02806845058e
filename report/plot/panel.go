package plot

import (
	"fmt"
	"strings"

	"bufferbloat"
	"bufferbloat/report/curve"
)

// Sizes in px of a picture that is sceneWidth wide.
const (
	sceneWidth  = 800
	marginLeft  = 66
	marginRight = 16
	plotWidth   = sceneWidth - marginLeft - marginRight
	titleSize   = 15
	textSize    = 12
	smallSize   = 11
	lineHeight  = 15
)

// panel is one pair of axes on a scene.
type panel struct {
	s                        *scene
	left, top, right, bottom float64
	x, y                     axis
}

// addPanel places axes at top and draws them: grid, ticks, labels; the labels of x only where xLabel is not "".
func (s *scene) addPanel(top, height float64, x, y axis, xLabel, yLabel string) *panel {
	return s.addPanelAt(marginLeft, sceneWidth-marginRight, top, height, x, y, xLabel, yLabel)
}

func (s *scene) addPanelAt(left, right, top, height float64, x, y axis, xLabel, yLabel string) *panel {
	x.a, x.b = left, right
	y.a, y.b = top+height, top
	p := &panel{s, left, top, right, top + height, x, y}
	p.drawY(yLabel)
	p.drawX(xLabel)
	return p
}

// axisSpace is what the labels of an x axis need below a panel.
const axisSpace = 38

func (p *panel) drawY(name string) {
	n := max(2, int((p.bottom-p.top)/27))
	for _, t := range p.y.ticks(n) {
		at := p.y.place(t.at)
		p.s.line(grid, 1, nil, point{p.left, at}, point{p.right, at})
		p.s.write(text{at: point{p.left - 6, at + 4}, s: t.label, size: smallSize, anchor: 1, colour: ink})
	}
	if name != "" {
		p.s.write(text{at: point{18, (p.top + p.bottom) / 2}, s: name, size: textSize, anchor: 0.5, up: true, colour: ink})
	}
}

func (p *panel) drawX(name string) {
	last := -1e9
	for _, t := range p.x.ticks(int(max(2, (p.right-p.left)/75))) {
		at := p.x.place(t.at)
		p.s.line(grid, 1, nil, point{at, p.top}, point{at, p.bottom})
		w := p.s.fonts.width(t.label, smallSize, false)
		if name == "" || t.label == "" || at-w/2 < last+8 || at+w/2 > sceneWidth {
			continue
		}
		p.s.write(text{at: point{at, p.bottom + 15}, s: t.label, size: smallSize, anchor: 0.5, colour: ink})
		last = at + w/2
	}
	if name != "" {
		p.s.write(text{at: point{(p.left + p.right) / 2, p.bottom + 31}, s: name, size: textSize, anchor: 0.5, colour: ink})
	}
}

// frame draws the lines of the axes, over what was drawn.
func (p *panel) frame() {
	p.s.line(faint, 1, nil, point{p.left, p.top}, point{p.left, p.bottom}, point{p.right, p.bottom})
}

// at returns the place of a pair of values.
func (p *panel) at(x, y float64) point { return point{p.x.place(x), p.y.place(y)} }

// say writes a note in the middle of a panel that has nothing to show.
func (p *panel) say(note string) {
	p.s.write(text{at: point{(p.left + p.right) / 2, (p.top+p.bottom)/2 + 4}, s: p.s.fonts.fit(note, textSize, false, p.right-p.left-20), size: textSize,
		anchor: 0.5, colour: faint})
}

// phases shades the load phases of a run. With names, it writes them above the panel where they have the room.
func (p *panel) phases(windows []curve.Window, names bool) {
	var loads [][]point
	for _, w := range windows {
		if w.Kind == bufferbloat.Load {
			loads = append(loads, rectangle(p.x.clipped(w.Start.Seconds()), p.top, p.x.clipped(w.End.Seconds()), p.bottom))
		}
	}
	if len(loads) > 0 {
		p.s.add(path{lines: loads, closed: true, fill: shade})
	}
	y := 0.0
	if names {
		y = p.top - 5
	}
	p.phaseLines(windows, y)
}

// phaseLines draws where phases begin, and writes their names at y unless that is 0.
func (p *panel) phaseLines(windows []curve.Window, y float64) {
	var borders [][]point
	for i, w := range windows {
		x0, x1 := p.x.clipped(w.Start.Seconds()), p.x.clipped(w.End.Seconds())
		if i > 0 {
			borders = append(borders, []point{{x0, p.top}, {x0, p.bottom}})
		}
		name := p.s.fonts.fit(phaseLabel(w), smallSize, false, 200)
		if y > 0 && p.s.fonts.width(name, smallSize, false) <= x1-x0+6 {
			p.s.write(text{at: point{(x0 + x1) / 2, y}, s: name, size: smallSize, anchor: 0.5, colour: faint})
		}
	}
	if len(borders) > 0 {
		p.s.add(path{lines: borders, stroke: faint.at(0.6), width: 0.8, dash: []float64{2, 3}})
	}
}

// key is an entry of a legend.
type key struct {
	style  style
	label  string
	line   bool // a sample of the line
	mark   bool // the marker
	lost   bool // the mark of a lost probe
	filled bool // a small field of the colour
	note   bool // the label alone
}

const keyGap = 16

func (s *scene) keyWidth(k key) float64 {
	w := s.fonts.width(k.label, smallSize, false)
	if k.note {
		return w
	}
	return w + 28
}

// legend writes a bold title and entries in lines of at most the plot's width, and returns the height that it took. With draw false it only
// measures.
func (s *scene) legend(top float64, title string, keys []key, draw bool) float64 {
	x, y := float64(marginLeft), top+lineHeight-3
	if title != "" {
		title = s.fonts.fit(title, textSize, true, plotWidth/2)
		if draw {
			s.write(text{at: point{x, y}, s: title, size: textSize, bold: true, colour: ink})
		}
		x += s.fonts.width(title, textSize, true) + keyGap
	}
	start := x
	if start > marginLeft+plotWidth/3 {
		start = marginLeft
	}
	for _, k := range keys {
		k.label = s.fonts.fit(k.label, smallSize, false, plotWidth-28-(start-marginLeft))
		w := s.keyWidth(k)
		if x+w > sceneWidth-marginRight && x > start {
			x, y = start, y+lineHeight
		}
		if draw {
			s.key(point{x, y}, k)
		}
		x += w + keyGap
	}
	return y - top + 5
}

func (s *scene) key(at point, k key) {
	if !k.note {
		mid := at.y - 4
		switch {
		case k.lost:
			s.line(k.style.colour, 1.6, nil, point{at.x + 11, mid - 5}, point{at.x + 11, mid + 5})
		case k.filled:
			s.add(path{lines: [][]point{rectangle(at.x+3, mid-5, at.x+20, mid+5)}, closed: true, fill: k.style.colour})
		}
		if k.line {
			s.line(k.style.colour, 2, k.style.dash, point{at.x, mid}, point{at.x + 22, mid})
		}
		if k.mark {
			s.add(path{lines: [][]point{marker(k.style.marker, point{at.x + 11, mid}, 4)}, closed: true, fill: k.style.colour})
		}
		at.x += 28
	}
	s.write(text{at: at, s: k.label, size: smallSize, colour: ink})
}

// missing marks along the top edge of a panel when probes left that have no answer: lost ones as full ticks, others as short grey ones. Several
// series have a row each, one below the other.
func (p *panel) missing(d curve.Delays, c colour, row int) {
	top := p.top + float64(row%4)*8
	marks := func(times []float64, c colour, length float64) {
		var lines [][]point
		for _, t := range times {
			if x := p.x.place(t); x >= p.left-0.5 && x <= p.right+0.5 {
				lines = append(lines, []point{{x, top}, {x, top + length}})
			}
		}
		if len(lines) > 0 {
			p.s.add(path{lines: lines, stroke: c, width: 1.2})
		}
	}
	var lost, other []float64
	for _, t := range d.Lost {
		lost = append(lost, t.Seconds())
	}
	for _, t := range d.Unsent {
		other = append(other, t.Seconds())
	}
	for _, t := range d.Undecided {
		other = append(other, t.Seconds())
	}
	marks(other, faint, 4)
	marks(lost, c, 7)
}

// count says how many probes of a series are missing, "" for none.
func count(d curve.Delays) string {
	if d.Missing == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d lost", d.Missing, d.Missing+d.Answered)
}

// undecided says how many probes have no time and were not lost.
func undecided(d curve.Delays) string {
	var parts []string
	if d.NotSent > 0 {
		parts = append(parts, fmt.Sprintf("%d not sent", d.NotSent))
	}
	if d.NoVerdict > 0 {
		parts = append(parts, fmt.Sprintf("%d neither answered nor lost", d.NoVerdict))
	}
	return strings.Join(parts, ", ")
}
