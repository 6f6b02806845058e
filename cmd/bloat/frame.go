package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/clipperhouse/displaywidth"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report"
)

// minute is how many seconds a view remembers.
const minute = 60

// view is what a picture of a run is made of: the last Progress, and the last minute of each row.
type view struct {
	last   bufferbloat.Progress
	rates  []rateRow  // in the order of load's directions
	delays []delayRow // in the plan's order
}

type rateRow struct {
	direction load.Direction
	past      []float64 // bit/s, one a second, the newest last; NaN where not known
	rate      bitrate.Bitrate
	ok        bool
}

type delayRow struct {
	series         string
	past           []float64 // mean RTT in s; NaN where nothing was sent, +Inf where all was lost
	highest        []float64 // of the same seconds
	mean           time.Duration
	ok             bool
	answered, lost int // in this phase
	silent         bool
	phaseMax       time.Duration
}

// take takes in a Progress. One that ends a phase has the rest of what was counted in it, and is no second of its own.
func (v *view) take(p bufferbloat.Progress) {
	if p.Phase != v.last.Phase || v.last.Finished {
		for i := range v.delays {
			d := &v.delays[i]
			d.answered, d.lost, d.phaseMax = 0, 0, 0
		}
	}
	v.last = p
	v.takeRates(p)
	for i := range p.Delays {
		v.takeDelay(&p.Delays[i], !p.Finished && p.Elapsed > 0)
	}
}

func (v *view) takeRates(p bufferbloat.Progress) {
	for _, direction := range []load.Direction{load.Download, load.Upload} {
		now := slices.IndexFunc(p.Rates, func(r bufferbloat.RateSoFar) bool { return r.Direction == direction })
		row := slices.IndexFunc(v.rates, func(r rateRow) bool { return r.direction == direction })
		if now < 0 && row < 0 {
			continue
		}
		if row < 0 {
			v.rates = append(v.rates, rateRow{direction: direction})
			slices.SortFunc(v.rates, func(a, b rateRow) int { return int(a.direction) - int(b.direction) })
			row = slices.IndexFunc(v.rates, func(r rateRow) bool { return r.direction == direction })
		}
		r, bits := &v.rates[row], math.NaN()
		if r.ok = now >= 0 && p.Rates[now].OK; r.ok {
			r.rate = p.Rates[now].Rate
			bits = float64(r.rate)
		}
		if !p.Finished && p.Elapsed > 0 {
			r.past = push(r.past, bits)
		}
	}
}

func (v *view) takeDelay(d *bufferbloat.DelaySoFar, second bool) {
	i := slices.IndexFunc(v.delays, func(r delayRow) bool { return r.series == d.Series })
	if i < 0 {
		v.delays = append(v.delays, delayRow{series: d.Series})
		i = len(v.delays) - 1
	}
	r := &v.delays[i]
	r.answered, r.lost = r.answered+d.Answered, r.lost+d.Lost
	mean, highest := math.NaN(), math.NaN()
	switch {
	case d.Answered > 0:
		r.mean, r.ok = d.Mean, true
		r.phaseMax = max(r.phaseMax, d.Highest)
		mean, highest = d.Mean.Seconds(), d.Highest.Seconds()
	case d.Lost > 0:
		mean, highest, r.ok = math.Inf(1), math.Inf(1), false
	default:
		r.ok = false
	}
	r.silent = d.Answered == 0 && d.Lost > 0
	if second {
		r.past, r.highest = push(r.past, mean), push(r.highest, highest)
	}
}

func push(past []float64, x float64) []float64 {
	if len(past) == minute {
		past = append(past[:0], past[1:]...)
	}
	return append(past, x)
}

// frameOptions say what a picture is drawn on.
type frameOptions struct {
	width, height  int // height 0 is not known
	unicode, color bool
}

// Colours by their SGR numbers.
const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

func (o *frameOptions) paint(s, color string) string {
	if !o.color || s == "" || color == "" {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

// frame returns the picture's lines. None of them reaches the terminal's last column, where some terminals begin a new line at once, and one less
// than the terminal's height is left to them.
func (v *view) frame(o frameOptions) []string {
	lines := []string{v.heading(&o)}
	lines = append(lines, v.rows(&o)...)
	if o.height > 1 && len(lines) > o.height-1 {
		lines = lines[:o.height-1]
	}
	return lines
}

// heading says which phase it is, how far it is, and how long the run will still take.
func (v *view) heading(o *frameOptions) string {
	p, room := &v.last, o.width-1
	name := fit(title(p.Phase), 20)
	at := fmt.Sprintf("%.0f s", math.Round(p.Elapsed.Seconds()))
	share := 1.0
	if p.Length > 0 && p.Elapsed <= p.Length {
		at = fmt.Sprintf("%.0f of %s s", math.Round(p.Elapsed.Seconds()), seconds1(p.Length))
		share = p.Elapsed.Seconds() / p.Length.Seconds()
	}
	left := "last phase"
	if p.Left > 0 {
		left = leftText(p.Left) + " left"
	}
	text := name + "  " + at
	flows := ""
	if f := p.Flows; f.Planned > 0 {
		flows = fmt.Sprintf("%d flows", f.Planned)
		if f.Begun < f.Planned {
			flows = fmt.Sprintf("%d of %d flows", f.Begun, f.Planned)
		}
		if f.Failed > 0 {
			flows = fmt.Sprintf("%d flows, %d failed", f.Planned, f.Failed)
		}
	}
	bar := room - displaywidth.String(text) - displaywidth.String(flows) - displaywidth.String(left) - 6
	if flows == "" {
		bar += 2
	}
	parts := []string{o.paint(fit(text, room), bold)}
	if bar >= 5 {
		parts = append(parts, progressBar(share, min(bar, 40), o.unicode))
	}
	used := displaywidth.String(strings.Join([]string{text, flows, left}, "  "))
	switch {
	case flows != "" && used <= room:
		color := ""
		if p.Flows.Failed > 0 {
			color = red
		}
		parts = append(parts, o.paint(flows, color), left)
	case displaywidth.String(text)+2+displaywidth.String(left) <= room:
		parts = append(parts, left)
	}
	return strings.Join(parts, "  ")
}

// seconds1 is a time in seconds without needless digits.
func seconds1(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprint(int64(d / time.Second))
	}
	return fmt.Sprintf("%.1f", d.Seconds())
}

func leftText(d time.Duration) string {
	d = d.Round(time.Second)
	if d >= time.Minute {
		return fmt.Sprintf("%d:%02d min", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

func progressBar(share float64, width int, unicode bool) string {
	full := min(width, max(0, int(share*float64(width)+0.5)))
	if unicode {
		return strings.Repeat("█", full) + strings.Repeat("░", width-full)
	}
	return "[" + strings.Repeat("#", max(0, min(full, width-2))) + strings.Repeat(".", max(0, width-2-full)) + "]"
}

// row is a line of a picture before it is laid out.
type row struct {
	name, value    string
	color          string
	alarm          string // what has to be seen: "lost 3"
	more           string // what may be left out: "max 905.1 ms"
	past           []float64
	worstOfSeconds bool // several seconds in one column show the worst and not the mean
}

func (v *view) rows(o *frameOptions) []string {
	var rows []row
	for _, r := range v.rates {
		one := row{name: "down", value: "-", color: green, past: r.past}
		if r.direction == load.Upload {
			one.name, one.color = "up", cyan
		}
		if r.ok {
			one.value = rateText(r.rate)
		}
		if v.last.Kind == bufferbloat.Load || r.ok || anyNumber(r.past) {
			rows = append(rows, one)
		}
	}
	for _, d := range v.delays {
		one := row{name: report.Printable(d.series), value: "-", color: yellow, past: d.highest, worstOfSeconds: true}
		switch {
		case d.ok:
			one.value = delayText(d.mean)
		case d.silent:
			one.value = "no reply"
		}
		if d.lost > 0 {
			one.alarm = fmt.Sprintf("lost %d", d.lost)
		}
		if d.phaseMax > 0 {
			one.more = "max " + delayText(d.phaseMax)
		}
		rows = append(rows, one)
	}
	return layOut(rows, o)
}

func anyNumber(past []float64) bool {
	return slices.ContainsFunc(past, func(x float64) bool { return !math.IsNaN(x) })
}

// layOut puts rows into columns of the width there is: name and value always, then what was lost, then the minute, then what may be left out.
func layOut(rows []row, o *frameOptions) []string {
	const least, gap = 8, 2
	var nameW, valueW, alarmW, moreW int
	for _, r := range rows {
		nameW, valueW = max(nameW, displaywidth.String(r.name)), max(valueW, len(r.value))
		alarmW, moreW = max(alarmW, len(r.alarm)), max(moreW, len(r.more))
	}
	room := o.width - 1
	nameW = min(nameW, max(4, min(16, room/4)))
	left := room - nameW - gap - valueW
	take := func(w, keep int) int {
		if w == 0 || left < gap+w+keep {
			return 0
		}
		left -= gap + w
		return w
	}
	alarmW = take(alarmW, 0)
	moreW = take(moreW, gap+2*least)
	spark := 0
	if left >= gap+least {
		spark = min(minute, left-gap)
	}
	var out []string
	for _, r := range rows {
		line := pad(fit(r.name, nameW), nameW) + "  " + o.paint(fmt.Sprintf("%*s", valueW, r.value), r.color)
		if moreW > 0 {
			line += "  " + pad(r.more, moreW)
		}
		if alarmW > 0 {
			line += "  " + o.paint(r.alarm, red) + strings.Repeat(" ", alarmW-len(r.alarm))
		}
		if spark > 0 {
			line += "  " + sparkline(r.past, spark, r.worstOfSeconds, o.unicode)
		}
		out = append(out, cut(strings.TrimRight(line, " "), room))
	}
	return out
}

func rateText(r bitrate.Bitrate) string {
	switch {
	case r < bitrate.Mbit:
		return fmt.Sprintf("%.0f kbit/s", float64(r)/1e3)
	case r < 1000*bitrate.Mbit:
		return fmt.Sprintf("%.2f Mbit/s", float64(r)/1e6)
	}
	return fmt.Sprintf("%.3f Gbit/s", float64(r)/1e9)
}

func delayText(d time.Duration) string {
	if d >= 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

// Levels of a sparkline, lowest first.
const (
	unicodeLevels = "▁▂▃▄▅▆▇█"
	asciiLevels   = "_.-:=+*#"
)

// sparkline draws the last minute from 0 to its highest value in width columns, the newest right. A blank is a second of which nothing is known, an x one
// in which everything was lost.
func sparkline(past []float64, width int, worst, unicode bool) string {
	levels := []rune(asciiLevels)
	if unicode {
		levels = []rune(unicodeLevels)
	}
	columns := gather(past, width, worst)
	top := 0.0
	for _, x := range columns {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			top = max(top, x)
		}
	}
	var b strings.Builder
	for _, x := range columns {
		switch {
		case math.IsNaN(x):
			b.WriteByte(' ')
		case math.IsInf(x, 1):
			b.WriteByte('x')
		case top <= 0:
			b.WriteRune(levels[0])
		default:
			b.WriteRune(levels[min(len(levels)-1, int(x/top*float64(len(levels))))])
		}
	}
	return b.String()
}

// gather makes at most width columns of the last minute: each of the same number of seconds, counted from the newest. Several seconds show their mean, or
// the worst of them.
func gather(past []float64, width int, worst bool) []float64 {
	each := (minute + width - 1) / width
	var out []float64
	for end := len(past); end > 0; end -= each {
		sum, n, highest := 0.0, 0, math.NaN()
		for _, x := range past[max(0, end-each):end] {
			if math.IsNaN(x) {
				continue
			}
			sum, n = sum+x, n+1
			if math.IsNaN(highest) || x > highest {
				highest = x
			}
		}
		switch {
		case worst || n == 0:
			out = append(out, highest)
		default:
			out = append(out, sum/float64(n))
		}
	}
	slices.Reverse(out)
	return out
}

// summary is a line on a phase: how far it is, or what it was like.
func (v *view) summary(p bufferbloat.Progress) string {
	var b strings.Builder
	b.WriteString(title(p.Phase))
	if p.Finished {
		fmt.Fprintf(&b, ", %.1f s", p.Elapsed.Seconds())
	} else {
		fmt.Fprintf(&b, " %.0f of %s s", math.Round(p.Elapsed.Seconds()), seconds1(p.Length))
	}
	var parts []string
	for _, r := range p.Rates {
		way := "down"
		if r.Direction == load.Upload {
			way = "up"
		}
		switch {
		case p.Finished: // a rate is the result's to say: over which time, it knows only later
			parts = append(parts, fmt.Sprintf("%s %.1f MB", way, float64(r.Bytes)/1e6))
		case r.OK:
			parts = append(parts, way+" "+rateText(r.Rate))
		}
	}
	if f := p.Flows; f.Failed > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d flows failed", f.Failed, f.Planned))
	}
	for i := range v.delays {
		if text := v.delays[i].summary(p.Finished); text != "" {
			parts = append(parts, text)
		}
	}
	if len(parts) > 0 {
		b.WriteString(": " + strings.Join(parts, ", "))
	}
	if !p.Finished && p.Left > 0 {
		b.WriteString("; " + leftText(p.Left) + " left")
	}
	return b.String()
}

func (d *delayRow) summary(finished bool) string {
	name := report.Printable(d.series)
	lost := ""
	if d.lost > 0 {
		lost = fmt.Sprintf(" (lost %d)", d.lost)
	}
	switch {
	case finished && d.phaseMax > 0: // what was lost is known only later
		return fmt.Sprintf("%s up to %s", name, delayText(d.phaseMax))
	case !finished && d.ok:
		return fmt.Sprintf("%s %s%s", name, delayText(d.mean), lost)
	case d.lost > 0:
		return name + " no reply" + lost
	}
	return ""
}

// visible is the number of columns of a line, its colours aside.
func visible(s string) int {
	n := 0
	for s != "" {
		i := strings.IndexByte(s, 0x1b)
		if i < 0 {
			return n + displaywidth.String(s)
		}
		n += displaywidth.String(s[:i])
		j := strings.IndexByte(s[i:], 'm')
		if j < 0 {
			return n
		}
		s = s[i+j+1:]
	}
	return n
}

// fit cuts a text without colours to a number of columns.
func fit(s string, width int) string {
	if displaywidth.String(s) <= width {
		return s
	}
	used := 0
	for i, r := range s {
		if w := displaywidth.Rune(r); used+w > width {
			return s[:i]
		} else {
			used += w
		}
	}
	return s
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-displaywidth.String(s)))
}

// cut is fit for a line that may have colours; one that is too long loses them.
func cut(s string, width int) string {
	if visible(s) <= width {
		return s
	}
	var b strings.Builder
	for s != "" {
		i := strings.IndexByte(s, 0x1b)
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		j := strings.IndexByte(s[i:], 'm')
		if j < 0 {
			break
		}
		s = s[i+j+1:]
	}
	return fit(b.String(), max(0, width))
}
