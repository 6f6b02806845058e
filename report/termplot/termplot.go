// Package termplot draws recordings as text for a terminal: round-trip times and goodput over time, and distributions.
//
// It writes no colours and no control sequences: Unicode with Braille patterns and blocks, or ASCII alone.
package termplot

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report/curve"
)

// Run is a recording with the name that plots call it by.
type Run struct {
	Name      string
	Recording *bufferbloat.Recording
}

// Limits and defaults of Options.
const (
	MinWidth      = 40
	MaxWidth      = 500
	DefaultWidth  = 80
	DefaultHeight = 12
	maxHeight     = 100
)

// Options are the settings of a plot. The zero value is useful.
type Options struct {
	Width  int  // of a line, in columns; 0 means DefaultWidth; what lies outside MinWidth to MaxWidth is taken to the nearer of them
	Height int  // of one plot, in lines; 0 means DefaultHeight
	ASCII  bool // no signs beyond ASCII
}

func (o Options) withDefaults() Options {
	o.Width = max(MinWidth, min(cmp.Or(o.Width, DefaultWidth), MaxWidth))
	o.Height = max(3, min(cmp.Or(o.Height, DefaultHeight), maxHeight))
	return o
}

// labelWidth is the room for the labels of the y axis.
const labelWidth = 8

// text is a plot in the making.
type text struct {
	strings.Builder
	o     Options
	width int // of the plotted area, in columns
}

func newText(o Options) *text {
	o = o.withDefaults()
	return &text{o: o, width: o.Width - labelWidth - 2}
}

// clean returns s with everything that could steer a terminal replaced, and cut to width columns.
func (t *text) clean(s string, width int) string {
	r := []rune(strings.Map(func(r rune) rune {
		switch {
		case !unicode.IsPrint(r) || t.o.ASCII && r > '~':
			return '?'
		}
		return r
	}, s))
	if len(r) > width {
		r = append(r[:max(0, width-1)], '~')
	}
	return string(r)
}

// line writes a line, cut to the width, without the spaces at its end.
func (t *text) line(s string) {
	if r := []rune(s); len(r) > t.o.Width {
		s = string(r[:t.o.Width-1]) + "~"
	}
	t.WriteString(strings.TrimRight(s, " ") + "\n")
}

// Time writes, for each run, its goodput and the round-trip times of its primary series over time. The axes of several runs are the same.
func Time(w io.Writer, runs []Run, o Options) error {
	t := newText(o)
	var span, high time.Duration
	for _, r := range runs {
		span = max(span, curve.Span(r.Recording))
		if s := curve.Primary(r.Recording); s != nil {
			high = max(high, curve.NewDelays(s).Max())
		}
	}
	for i, r := range runs {
		if i > 0 {
			t.line("")
		}
		t.time(r, max(span, 1), max(high, 1))
	}
	_, err := io.WriteString(w, t.String())
	return err
}

func (t *text) time(r Run, span, high time.Duration) {
	s := curve.Primary(r.Recording)
	name := "no probes"
	if s != nil {
		name = s.Name
	}
	t.line(t.clean(r.Name, t.o.Width-30) + ": RTT of " + t.clean(name, 12) + " in ms over s")
	if curve.Span(r.Recording) <= 0 {
		t.line("nothing was recorded")
		return
	}
	for _, d := range []load.Direction{load.Download, load.Upload} {
		t.sparkline(r.Recording, d, span)
	}
	g := newGrid(t.width, t.o.Height, t.o.ASCII)
	lost := slices.Repeat([]byte{' '}, t.width)
	if s != nil {
		d := curve.NewDelays(s)
		for _, stretch := range d.Reduce(0, span, g.w).Stretches {
			g.curve(stretch, span, high)
		}
		for _, at := range d.Lost {
			lost[column(at, span, t.width)] = 'x'
		}
		t.label("lost", string(lost))
		if d.Missing > 0 {
			defer func() { t.line(fmt.Sprintf("x: %d of %d probes lost", d.Missing, d.Missing+d.Answered)) }()
		}
		if d.Answered == 0 {
			defer t.line("no probe was answered")
		}
	}
	t.grid(g, float64(high)/1e6)
	t.xAxis(0, span.Seconds())
	t.phases(r.Recording, span)
}

// column is the one of n columns that at lies in.
func column(at, span time.Duration, n int) int {
	return max(0, min(n-1, int(float64(at)/float64(span)*float64(n))))
}

// label writes a line of the plotted area behind a label.
func (t *text) label(label, s string) {
	t.line(fmt.Sprintf("%*s  %s", labelWidth, label, s))
}

// sparkline writes one direction's goodput as a line of levels.
func (t *text) sparkline(rec *bufferbloat.Recording, d load.Direction, span time.Duration) {
	bin := max(curve.MinBin, span/time.Duration(t.width))
	stretches := curve.Rates(curve.Flows(rec, d, ""), bin)
	if len(stretches) == 0 {
		return
	}
	levels := []rune("▁▂▃▄▅▆▇█")
	if t.o.ASCII {
		levels = []rune("_.:-=+*#")
	}
	highest := 0.0
	for _, stretch := range stretches {
		for _, r := range stretch {
			highest = max(highest, r.Rate.Mbps())
		}
	}
	out := slices.Repeat([]rune{' '}, t.width)
	for _, stretch := range stretches {
		for _, r := range stretch {
			level := levels[max(0, min(len(levels)-1, int(r.Rate.Mbps()/max(highest, 1e-9)*float64(len(levels)))))]
			for c := column(r.From, span, t.width); c <= column(r.To-1, span, t.width); c++ {
				out[c] = level
			}
		}
	}
	note := fmt.Sprintf("%v: highest %s Mbit/s over %d ms", d, number(highest), bin.Milliseconds())
	t.label(map[load.Direction]string{load.Download: "down", load.Upload: "up"}[d], string(out))
	t.label("", note)
}

// number is a figure with about three digits.
func number(v float64) string {
	switch {
	case v >= 1e7:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// grid writes a grid with its y axis, from 0 to high.
func (t *text) grid(g *grid, high float64) {
	bar := "┤"
	if t.o.ASCII {
		bar = "|"
	}
	for i, row := range g.rows() {
		label := ""
		switch i {
		case 0:
			label = number(high)
		case g.rowCount / 2:
			if g.rowCount > 4 {
				label = number(high * (1 - float64(i)/float64(g.rowCount)))
			}
		case g.rowCount - 1:
			label = "0"
		}
		t.line(fmt.Sprintf("%*s %s%s", labelWidth, label, bar, row))
	}
}

// xAxis writes the axis from low to high below a grid.
func (t *text) xAxis(low, high float64) {
	corner, dash, mark := "└", '─', '┬'
	if t.o.ASCII {
		corner, dash, mark = "+", '-', '+'
	}
	axis, labels := slices.Repeat([]rune{dash}, t.width), slices.Repeat([]rune{' '}, t.width+6)
	step := niceStep((high - low) / float64(max(2, t.width/14)))
	digits := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	free := 0
	for i := range t.width {
		v := (math.Ceil(low/step-1e-9) + float64(i)) * step
		if v > high {
			break
		}
		c := max(0, min(t.width-1, int((v-low)/(high-low)*float64(t.width))))
		axis[c] = mark
		s := []rune(strconv.FormatFloat(v, 'f', digits, 64))
		if v >= 1e7 {
			s = []rune(strconv.FormatFloat(v, 'g', 3, 64))
		}
		if start := max(0, c-len(s)/2); start >= free && start+len(s) <= len(labels) {
			copy(labels[start:], s)
			free = start + len(s) + 1
		}
	}
	t.line(strings.Repeat(" ", labelWidth+1) + corner + string(axis))
	t.label("", string(labels[:t.width]))
}

// niceStep returns the smallest of 1, 2, 5 times a power of ten that is at least v.
func niceStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*p*1.0000001 {
			return m * p
		}
	}
	return 10 * p
}

// phases writes the names of the phases below the time axis, where they have the room.
func (t *text) phases(rec *bufferbloat.Recording, span time.Duration) {
	out := slices.Repeat([]rune{' '}, t.width)
	for i, w := range curve.Windows(rec) {
		a, b := column(w.Start, span, t.width), column(w.End, span, t.width)
		if i > 0 {
			out[a] = '|'
			a++
		}
		if name := []rune(t.clean(w.Name, t.o.Width)); len(name) < b-a {
			copy(out[a+(b-a-len(name))/2:], name)
		}
	}
	t.label("", string(out))
}

// marks tell the curves of one plot apart.
func (t *text) marks() []rune {
	if t.o.ASCII {
		return []rune("*o+x#@%&")
	}
	return []rune("●○▲△■□◆◇")
}

// CDF writes the distribution of the round-trip times of the primary series: of one run by phase, of several in a plot for each phase.
func CDF(w io.Writer, runs []Run, o Options) error {
	t := newText(o)
	type group struct {
		title  string
		curves []distribution
	}
	var groups []group
	if len(runs) == 1 {
		groups = append(groups, group{title: t.clean(runs[0].Name, t.o.Width-40)})
	}
	for _, r := range runs {
		s := curve.Primary(r.Recording)
		for _, win := range curve.Windows(r.Recording) {
			if s == nil || win.Kind == bufferbloat.Drain {
				continue
			}
			rtts, lost := curve.Within(s, win.From, win.To)
			i := slices.IndexFunc(groups, func(g group) bool { return len(runs) == 1 || g.title == t.clean(win.Name, t.o.Width-40) })
			if i < 0 {
				groups = append(groups, group{title: t.clean(win.Name, t.o.Width-40)})
				i = len(groups) - 1
			}
			name := win.Name
			if len(runs) > 1 {
				name = r.Name
			}
			if len(groups[i].curves) < len(t.marks()) && len(groups) <= 12 {
				groups[i].curves = append(groups[i].curves, distribution{name, rtts, lost})
			}
		}
	}
	for i, g := range groups[:min(len(groups), 12)] {
		if i > 0 {
			t.line("")
		}
		t.line(g.title + ": share of probes (%) by RTT (ms)")
		t.cdf(g.curves)
	}
	if len(groups) == 0 {
		t.line("no phase with probes")
	}
	_, err := io.WriteString(w, t.String())
	return err
}

type distribution struct {
	name string
	rtts []time.Duration // sorted
	lost int
}

func (t *text) cdf(curves []distribution) {
	var low, high time.Duration = math.MaxInt64, 0
	for _, c := range curves {
		if n := len(c.rtts); n > 0 {
			low, high = min(low, c.rtts[0]), max(high, c.rtts[n-1])
		}
	}
	if low > high {
		t.line("no probe was answered")
		return
	}
	from, to := 0.0, float64(high)/1e6
	if low > high/2 {
		from = float64(low) / 1e6
		room := max((to-from)*0.05, to*0.02)
		from, to = from-room, to+room
	}
	if to <= from {
		to = from + 1
	}
	g := newGrid(t.width, t.o.Height, true)
	marks := t.marks()
	for i, c := range curves {
		g.distribution(c, from, to, marks[i])
	}
	t.grid(g, 100)
	t.xAxis(from, to)
	for i, c := range curves {
		note := fmt.Sprintf("%c %s: n %d", marks[i], t.clean(c.name, t.o.Width/2), len(c.rtts))
		if c.lost > 0 {
			note += fmt.Sprintf(", %d lost: its curve ends at %.1f%%", c.lost, 100*float64(len(c.rtts))/float64(len(c.rtts)+c.lost))
		}
		t.line("  " + note)
	}
}

// grid is an area of dots: in Braille 2 x 4 of them in a sign, otherwise a sign each.
type grid struct {
	w, h     int // dots
	rowCount int
	braille  bool
	dots     [][]rune // 0 where there is none, the sign otherwise
}

func newGrid(columns, rows int, ascii bool) *grid {
	g := &grid{w: columns, h: rows, rowCount: rows, braille: !ascii}
	if g.braille {
		g.w, g.h = 2*columns, 4*rows
	}
	for range g.h {
		g.dots = append(g.dots, make([]rune, g.w))
	}
	return g
}

// set puts a sign at x and y, y upwards.
func (g *grid) set(x, y int, sign rune) {
	if x >= 0 && x < g.w && y >= 0 && y < g.h {
		g.dots[g.h-1-y][x] = sign
	}
}

// curve draws a stretch of RTTs as a line.
func (g *grid) curve(stretch []curve.RTT, span, high time.Duration) {
	lastX, lastY := -1, 0
	for _, p := range stretch {
		x := column(p.At, span, g.w)
		y := min(g.h-1, int(float64(p.RTT)/float64(high)*float64(g.h)))
		if lastX < 0 {
			lastX, lastY = x, y
		}
		n := max(x-lastX, max(y-lastY, lastY-y), 1)
		for i := range n + 1 {
			g.set(lastX+(x-lastX)*i/n, lastY+(y-lastY)*i/n, '*')
		}
		lastX, lastY = x, y
	}
}

// distribution draws a CDF: in each column the share that was answered by then.
func (g *grid) distribution(c distribution, from, to float64, sign rune) {
	all := len(c.rtts) + c.lost
	if len(c.rtts) == 0 {
		return
	}
	place := func(share float64) int { return min(g.h-1, int(share*float64(g.h))) }
	last, begun := 0, false
	for x := range g.w {
		edge := from + (to-from)*float64(x+1)/float64(g.w)
		if x == g.w-1 {
			edge = math.Inf(1)
		}
		n, _ := slices.BinarySearchFunc(c.rtts, edge, func(d time.Duration, v float64) int {
			if float64(d)/1e6 <= v {
				return -1
			}
			return 1
		})
		if n == 0 {
			continue
		}
		y := place(float64(n) / float64(all))
		if !begun {
			last, begun = 0, true
		}
		for v := min(last+1, y); v <= y; v++ {
			g.set(x, v, sign)
		}
		last = y
	}
}

// brailleBits are the bits of the dots of a Braille sign (Unicode block U+2800), by row and column.
var brailleBits = [4][2]rune{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

func (g *grid) rows() (out []string) {
	for row := range g.rowCount {
		var b strings.Builder
		if !g.braille {
			for _, sign := range g.dots[row] {
				b.WriteRune(cmp.Or(sign, ' '))
			}
			out = append(out, b.String())
			continue
		}
		for c := 0; c < g.w; c += 2 {
			sign := rune(0)
			for y := range 4 {
				for x := range 2 {
					if g.dots[4*row+y][c+x] != 0 {
						sign |= brailleBits[y][x]
					}
				}
			}
			if sign == 0 {
				b.WriteRune(' ')
			} else {
				b.WriteRune(0x2800 + sign)
			}
		}
		out = append(out, b.String())
	}
	return out
}
