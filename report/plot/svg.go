package plot

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// WriteSVG writes the picture as an SVG document. It names no other file and no address but that of the SVG name space.
func (p *Picture) WriteSVG(w io.Writer) error {
	return p.writeSVG(w, ` xmlns="http://www.w3.org/2000/svg"`)
}

// WriteInline writes the picture as an svg element for an HTML page. It has classes f-ROLE and s-ROLE on all that is filled or stroked with a
// colour that is not data (ink, faint, grid, paper, shade, lost), for the page's style to change.
func (p *Picture) WriteInline(w io.Writer) error { return p.writeSVG(w, "") }

func (p *Picture) writeSVG(w io.Writer, namespace string) error {
	b := bufio.NewWriter(w)
	s := p.scene
	fmt.Fprintf(b, `<svg%s width="%s" height="%s" viewBox="0 0 %s %s" role="img" font-family="%s">`+"\n",
		namespace, num(float64(p.width)), num(s.h*p.zoom()), num(s.w), num(s.h), "Arial, Helvetica, 'Liberation Sans', 'DejaVu Sans', sans-serif")
	fmt.Fprintf(b, "<title>%s</title>\n", escape(p.Title))
	fmt.Fprintf(b, "<desc>%s</desc>\n", escape(p.Description))
	for _, it := range s.items {
		if it.path != nil {
			writePath(b, it.path)
		} else {
			writeText(b, it.text)
		}
	}
	b.WriteString("</svg>\n")
	return b.Flush()
}

// num is a number of px with one decimal at most.
func num(v float64) string {
	s := strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	if s == "-0" {
		return "0"
	}
	return s
}

func escape(s string) string { return html.EscapeString(clean(s)) }

// attribute writes one paint with its class, which a page's style may answer to. Presentation attributes give way to any style.
func (c colour) attribute(name string) string {
	s := fmt.Sprintf(` %s="#%06x"`, name, c.rgb)
	if c.alpha < 1 {
		s += fmt.Sprintf(` %s-opacity="%s"`, name, strconv.FormatFloat(c.alpha, 'g', 3, 64))
	}
	return s
}

func writePath(b *bufio.Writer, p *path) {
	var classes []string
	fill, stroke := ` fill="none"`, ""
	if p.fill.alpha > 0 {
		fill = p.fill.attribute("fill")
		if p.fill.role != "" {
			classes = append(classes, "f-"+p.fill.role)
		}
	}
	if p.stroke.alpha > 0 {
		stroke = p.stroke.attribute("stroke") + ` stroke-width="` + num(p.width) + `"`
		if p.width > 1 && !p.closed {
			stroke += ` stroke-linejoin="round"`
		}
		if len(p.dash) > 0 {
			var d []string
			for _, v := range p.dash {
				d = append(d, num(v))
			}
			stroke += ` stroke-dasharray="` + strings.Join(d, " ") + `"`
		}
		if p.stroke.role != "" {
			classes = append(classes, "s-"+p.stroke.role)
		}
	}
	class := ""
	if len(classes) > 0 {
		class = ` class="` + strings.Join(classes, " ") + `"`
	}
	b.WriteString("<path" + class + fill + stroke + ` d="`)
	for _, line := range p.lines {
		writeLine(b, line, p.closed)
	}
	b.WriteString("\"/>\n")
}

// writeLine writes a line with relative moves: they are short, and being differences of rounded places they do not drift.
func writeLine(b *bufio.Writer, line []point, closed bool) {
	var lastX, lastY float64
	for i, p := range line {
		x, y := math.Round(p.x*10), math.Round(p.y*10)
		switch {
		case i == 0:
			b.WriteString("M" + num(x/10) + pair(y/10))
		case i == 1:
			b.WriteString("l" + num((x-lastX)/10) + pair((y-lastY)/10))
		default:
			b.WriteString(pair((x-lastX)/10) + pair((y-lastY)/10))
		}
		lastX, lastY = x, y
	}
	if closed {
		b.WriteString("z")
	}
}

// pair is a number that follows another: the sign is separator enough.
func pair(v float64) string {
	if s := num(v); strings.HasPrefix(s, "-") {
		return s
	} else {
		return " " + s
	}
}

func writeText(b *bufio.Writer, t *text) {
	fmt.Fprintf(b, `<text class="f-%s" x="%s" y="%s" font-size="%s"%s`, t.colour.role, num(t.at.x), num(t.at.y), num(t.size), t.colour.attribute("fill"))
	switch t.anchor {
	case 0.5:
		b.WriteString(` text-anchor="middle"`)
	case 1:
		b.WriteString(` text-anchor="end"`)
	}
	if t.bold {
		b.WriteString(` font-weight="bold"`)
	}
	if t.up {
		fmt.Fprintf(b, ` transform="rotate(-90 %s %s)"`, num(t.at.x), num(t.at.y))
	}
	b.WriteString(">" + escape(t.s) + "</text>\n")
}
