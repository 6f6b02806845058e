package plot

import (
	"math"
	"strings"
	"unicode"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

// scene is a drawing in px, from the top left corner, that any back end can write. Every picture is one: what SVG, PNG and HTML show is
// the same.
type scene struct {
	w, h  float64
	items []item
	fonts *fonts
}

// item is a path or a text; the other is nil.
type item struct {
	path *path
	text *text
}

type point struct{ x, y float64 }

// path is some lines of one style. Closed lines are filled where there is a fill.
type path struct {
	lines  [][]point
	closed bool
	stroke colour // none where its alpha is 0
	fill   colour
	width  float64
	dash   []float64
}

type text struct {
	at     point // of the base line
	s      string
	size   float64
	anchor float64 // 0 at is the left end, 0.5 the middle, 1 the right end
	up     bool    // turned by a quarter, read from below
	bold   bool
	colour colour
}

// colour is a colour of the sRGB space. Its role, "" for data, lets a page that has a dark side give it another.
type colour struct {
	rgb   uint32
	alpha float64
	role  string
}

func (c colour) at(alpha float64) colour {
	c.alpha = alpha
	return c
}

// The colours that are not data.
var (
	ink   = colour{0x1a1a1a, 1, "ink"}
	faint = colour{0x5a5a5a, 1, "faint"}
	grid  = colour{0xdddddd, 1, "grid"}
	paper = colour{0xffffff, 1, "paper"}
	shade = colour{0x0072b2, 0.07, "shade"}
)

// style is how one of several things is drawn, told apart by colour, dash and marker.
type style struct {
	colour colour
	dash   []float64
	marker int
}

// styles are Okabe and Ito's colours, told apart with every kind of colour vision, without the yellow and the black, which one of a light and
// a dark page would swallow. Those after the seventh repeat the colours with other dashes.
func styles(i int) style {
	colours := []uint32{0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x7f7f7f}
	dashes := [][]float64{nil, {7, 3}, {2, 2.5}, {9, 3, 2, 3}, {12, 4}, {4, 2}, {1, 3}}
	n := len(colours)
	return style{colour{colours[i%n], 1, ""}, dashes[(i+i/n)%len(dashes)], i % markers}
}

// lostColour marks what went missing. No series has it.
var lostColour = colour{0xb00020, 1, "lost"}

func (s *scene) add(p path) { s.items = append(s.items, item{path: &p}) }
func (s *scene) write(t text) {
	t.s = clean(t.s)
	if t.s != "" {
		s.items = append(s.items, item{text: &t})
	}
}

// line draws one open line.
func (s *scene) line(c colour, width float64, dash []float64, points ...point) {
	s.add(path{lines: [][]point{points}, stroke: c, width: width, dash: dash})
}

// box fills a rectangle.
func (s *scene) box(x0, y0, x1, y1 float64, fill colour) {
	s.add(path{lines: [][]point{rectangle(x0, y0, x1, y1)}, closed: true, fill: fill})
}

func rectangle(x0, y0, x1, y1 float64) []point {
	return []point{{x0, y0}, {x1, y0}, {x1, y1}, {x0, y1}}
}

// markers is how many shapes marker knows.
const markers = 6

// marker returns the closed outline of a mark of radius r around p.
func marker(kind int, p point, r float64) []point {
	polygon := func(n int, turn, r float64) (out []point) {
		for i := range n {
			a := turn + 2*math.Pi*float64(i)/float64(n)
			out = append(out, point{p.x + r*math.Sin(a), p.y - r*math.Cos(a)})
		}
		return out
	}
	switch kind % markers {
	case 1:
		return polygon(4, math.Pi/4, r*1.25) // square
	case 2:
		return polygon(3, 0, r*1.35) // triangle
	case 3:
		return polygon(4, 0, r*1.35) // diamond
	case 4:
		return polygon(3, math.Pi, r*1.35) // triangle on its tip
	case 5:
		return polygon(5, 0, r*1.2)
	}
	return polygon(12, 0, r) // a dot
}

// clean returns s with what can't be seen replaced, and cut to a length that no picture needs to exceed.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
	const most = 400
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

// fonts are the faces that texts are measured and, in PNG, drawn with.
type fonts struct {
	regular, bold *sfnt.Font
	buffer        sfnt.Buffer
}

func newFonts() (*fonts, error) {
	regular, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, err
	}
	bold, err := opentype.Parse(gobold.TTF)
	if err != nil {
		return nil, err
	}
	return &fonts{regular: regular, bold: bold}, nil
}

func (f *fonts) face(bold bool) *sfnt.Font {
	if bold {
		return f.bold
	}
	return f.regular
}

// wider is how much wider than the fonts here those may be that a viewer of SVG has: DejaVu Sans is.
const wider = 1.12

// width returns how wide s may be, in px.
func (f *fonts) width(s string, size float64, bold bool) float64 {
	face := f.face(bold)
	var total fixed.Int26_6
	for _, r := range s {
		i, err := face.GlyphIndex(&f.buffer, r)
		if err != nil {
			continue
		}
		if a, err := face.GlyphAdvance(&f.buffer, i, fixed.I(64), font.HintingNone); err == nil {
			total += a
		}
	}
	return float64(total) / 64 / 64 * size * wider
}

// fit returns s, cut with an ellipsis to what is not wider than width.
func (f *fonts) fit(s string, size float64, bold bool, width float64) string {
	s = clean(s)
	if f.width(s, size, bold) <= width {
		return s
	}
	r := []rune(s)
	low, high := 0, len(r)
	for low < high {
		mid := (low + high + 1) / 2
		if f.width(string(r[:mid])+"…", size, bold) <= width {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return strings.TrimRight(string(r[:low]), " ,") + "…"
}

// wrap breaks s at spaces into at most n lines that are not wider than width; the last is cut where more is left.
func (f *fonts) wrap(s string, size, width float64, n int) (lines []string) {
	words := strings.Fields(clean(s))
	for len(words) > 0 && len(lines) < n {
		take := 1
		for take < len(words) && f.width(strings.Join(words[:take+1], " "), size, false) <= width {
			take++
		}
		if len(lines) == n-1 {
			take = len(words)
		}
		lines = append(lines, f.fit(strings.Join(words[:take], " "), size, false, width))
		words = words[take:]
	}
	return lines
}
