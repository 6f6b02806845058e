// Package plot draws recordings: what was delivered and how long probes took, over time, as distributions, and against each other.
//
// A Picture is drawn once and written as SVG or PNG. It shows every lost probe, leaves gaps where nothing is known, and puts a probe at the time
// at which it was sent. Equal recordings give equal pictures.
package plot

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/report/curve"
)

// Kind is a kind of picture.
type Kind string

// The kinds.
const (
	RRUL        Kind = "rrul"         // download, upload and RTT over time, stacked on one time axis
	CDF         Kind = "cdf"          // distribution of the RTT: by phase, or of several runs in each phase
	Box         Kind = "box"          // quartiles of the RTT by phase and run
	RateLatency Kind = "rate-latency" // RTT against goodput, with an ellipse for each load
	Shares      Kind = "shares"       // goodput of each flow
	Heat        Kind = "heat"         // how many probes took how long, over time
	TCP         Kind = "tcp"          // the kernel's view of the flows: smoothed RTT and congestion window
	Qdisc       Kind = "qdisc"        // backlog of the queue discipline
)

// Kinds returns all kinds, the one that shows most first.
func Kinds() []Kind { return []Kind{RRUL, CDF, Box, RateLatency, Shares, Heat, TCP, Qdisc} }

// Run is a recording with the name that pictures call it by.
type Run struct {
	Name      string
	Recording *bufferbloat.Recording
}

// MaxRuns is how many runs one picture can hold apart.
const MaxRuns = 12

// Limits of Options.Width, in px.
const (
	MinWidth     = 200
	MaxWidth     = 8000
	DefaultWidth = 800
)

// Options are the settings of a picture. The zero value is useful.
type Options struct {
	Width int // in px; 0 means DefaultWidth. The picture is enlarged or reduced as a whole.
	// Apart draws each run in panels of its own, one run below the other, where they would share panels.
	Apart bool
	// SameAxes gives panels that stand apart the same range, so that they can be compared by eye.
	SameAxes bool
	Log      bool // RTTs on a logarithmic axis, where that is possible: in a CDF, box plot or heat map
}

// NotRecordedError says that a recording does not have what a picture shows.
type NotRecordedError struct {
	Kind Kind
	Run  string // name of the first run that lacks it
	What string
}

func (e *NotRecordedError) Error() string {
	return fmt.Sprintf("picture %s of %s: %s not in this recording", e.Kind, clean(e.Run), e.What)
}

// Picture is a drawing, ready to be written.
type Picture struct {
	Title       string
	Description string // what it shows, for those who can't see it

	scene *scene
	width int
}

func (p *Picture) zoom() float64 { return float64(p.width) / p.scene.w }

// New draws the runs. It fails with a *NotRecordedError where a run has no data of this kind at all; a run that lacks some of it says so in the
// picture. The recordings are not modified, and the picture keeps no reference to them.
func New(kind Kind, runs []Run, o Options) (*Picture, error) {
	if len(runs) == 0 {
		return nil, errors.New("a picture of no recording; name one at least")
	}
	if len(runs) > MaxRuns {
		return nil, fmt.Errorf("a picture of %d recordings: %d at most can be told apart", len(runs), MaxRuns)
	}
	if o.Width == 0 {
		o.Width = DefaultWidth
	}
	if o.Width < MinWidth || o.Width > MaxWidth {
		return nil, fmt.Errorf("a picture %d px wide: want %d to %d", o.Width, MinWidth, MaxWidth)
	}
	fonts, err := newFonts()
	if err != nil {
		return nil, err
	}
	d := &drawing{scene: &scene{w: sceneWidth, fonts: fonts}, runs: runs, o: o, kind: kind}
	draw, ok := map[Kind]func() error{RRUL: d.rrul, CDF: d.cdf, Box: d.box, RateLatency: d.rateLatency, Shares: d.shares, Heat: d.heat,
		TCP: d.tcp, Qdisc: d.qdisc}[kind]
	if !ok {
		return nil, fmt.Errorf("no picture is called %q; there are %s", kind, KindNames())
	}
	p := &Picture{Title: d.title(), Description: d.description(), scene: d.scene, width: o.Width}
	d.scene.add(path{closed: true, fill: paper}) // its height is known when all is drawn
	d.header()
	if err := draw(); err != nil {
		return nil, err
	}
	d.scene.h = d.y + 6
	d.scene.items[0].path.lines = [][]point{rectangle(0, 0, d.scene.w, d.scene.h)}
	return p, nil
}

// KindNames lists the kinds for a message.
func KindNames() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// drawing is a picture in the making; y is where the next thing goes.
type drawing struct {
	scene *scene
	kind  Kind
	runs  []Run
	o     Options
	y     float64
}

// kindTitle says what a kind of picture shows.
func kindTitle(k Kind) string {
	switch k {
	case RRUL:
		return "goodput and round-trip time"
	case CDF:
		return "distribution of the round-trip time"
	case Box:
		return "round-trip time by phase"
	case RateLatency:
		return "round-trip time against goodput"
	case Shares:
		return "goodput of each flow"
	case Heat:
		return "round-trip times over time"
	case TCP:
		return "the flows as the kernel sees them"
	case Qdisc:
		return "the queue discipline"
	}
	return string(k)
}

func (d *drawing) title() string {
	rec := d.runs[0].Recording
	name := rec.Plan.Name
	if name == "" {
		name = "run"
	}
	for _, r := range d.runs[1:] {
		if r.Recording.Plan.Name != rec.Plan.Name {
			name = "several plans"
		}
	}
	if len(d.runs) > 1 {
		name = fmt.Sprintf("%s, %d runs", name, len(d.runs))
	} else if rec.Path.Host != "" {
		name += " to " + rec.Path.Host
	}
	return name + ": " + kindTitle(d.kind)
}

func (d *drawing) description() string {
	var parts []string
	for _, r := range d.runs {
		parts = append(parts, r.Name+": "+Describe(r.Recording))
	}
	return strings.Join(parts, "; ")
}

// Describe says in a line what path a recording is of, when, and how it was probed.
func Describe(rec *bufferbloat.Recording) string {
	parts := []string{}
	if s := describePath(rec); s != "" {
		parts = append(parts, s)
	}
	if s := curve.Primary(rec); s != nil {
		parts = append(parts, fmt.Sprintf("%s every %s", s.Name, msText(ms(s.Interval))))
	}
	return strings.Join(append(parts, describeRun(rec)...), "; ")
}

// describeRun says when a run was, and what cut it short.
func describeRun(rec *bufferbloat.Recording) (parts []string) {
	if !rec.Started.IsZero() {
		parts = append(parts, rec.Started.Format("2006-01-02 15:04:05"))
	}
	if rec.Truncated {
		parts = append(parts, "the recording was cut off")
	} else if rec.Stopped != "" {
		parts = append(parts, rec.Stopped)
	}
	return parts
}

func describePath(rec *bufferbloat.Recording) string {
	path := rec.Path
	if l := path.Lab; l != nil {
		return fmt.Sprintf("emulated link (%s): %s down, %s up, %s RTT, %s%s", strings.TrimPrefix(l.Carrier, "in process, "), rateText(l.Down), rateText(l.Up),
			msText(ms(l.RTT)), l.Queue, bufferText(l))
	}
	var words []string
	for _, w := range []string{path.Host, path.Family, path.Server} {
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, ", ")
}

// bufferText says how deep the queues are, as time where their rates are known.
func bufferText(l *bufferbloat.LabLink) string {
	if l.Queue != "fifo" || l.Down <= 0 || l.Up <= 0 {
		return ""
	}
	down, up := ms(l.Down.Duration(l.BufferDown)), ms(l.Up.Duration(l.BufferUp))
	if fmt.Sprintf("%.0f", down) == fmt.Sprintf("%.0f", up) {
		return fmt.Sprintf(" of %.0f ms", down)
	}
	return fmt.Sprintf(" of %.0f ms down, %.0f ms up", down, up)
}

func msText(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", v), "0"), ".") + " ms"
}

// rateText is a rate for people: "20 Mbit/s".
func rateText(r bitrate.Bitrate) string {
	s := r.String()
	n := strings.IndexFunc(s, unicode.IsLetter)
	if n < 0 {
		return s
	}
	return s[:n] + " " + s[n:] + "/s"
}

// header writes the title and what the runs are, with their colours where there are several.
func (d *drawing) header() {
	s := d.scene
	d.y = 10 + titleSize
	s.write(text{at: point{marginLeft, d.y}, s: s.fonts.fit(d.title(), titleSize, true, plotWidth), size: titleSize, bold: true, colour: ink})
	d.y += 4
	if len(d.runs) == 1 {
		for _, line := range s.fonts.wrap(Describe(d.runs[0].Recording), smallSize, plotWidth, 2) {
			d.y += lineHeight
			s.write(text{at: point{marginLeft, d.y}, s: line, size: smallSize, colour: faint})
		}
		d.y += 8
		return
	}
	for i, r := range d.runs {
		d.y += lineHeight + 1
		k := key{style: styles(i), line: true}
		switch d.kind {
		case RateLatency:
			k = key{style: styles(i), mark: true}
		case Box:
			k = key{style: styles(i), filled: true}
		case Shares, Heat, TCP, Qdisc:
			k = key{note: true}
		}
		name := s.fonts.fit(r.Name, smallSize, true, plotWidth*0.3)
		at := point{marginLeft, d.y}
		s.key(at, k)
		if !k.note {
			at.x += 28
		}
		s.write(text{at: at, s: name, size: smallSize, bold: true, colour: ink})
		at.x += s.fonts.width(name, smallSize, true) + 6
		about := strings.Join(append([]string{describePath(r.Recording)}, describeRun(r.Recording)...), "; ")
		s.write(text{at: at, s: s.fonts.fit(about, smallSize, false, sceneWidth-marginRight-at.x), size: smallSize, colour: faint})
	}
	d.y += 8
}
