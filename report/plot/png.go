package plot

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/font"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// WritePNG writes the picture as a PNG of its width.
func (p *Picture) WritePNG(w io.Writer) error {
	img, err := p.image()
	if err != nil {
		return err
	}
	return png.Encode(w, img)
}

// canvas draws a scene's items, enlarged, on an image.
type canvas struct {
	img   *image.RGBA
	zoom  float64
	fonts *fonts
	faces map[faceKey]font.Face
}

type faceKey struct {
	size float64
	bold bool
}

func (p *Picture) image() (*image.RGBA, error) {
	z := p.zoom()
	c := &canvas{img: image.NewRGBA(image.Rect(0, 0, p.width, int(math.Ceil(p.scene.h*z)))), zoom: z, fonts: p.scene.fonts, faces: map[faceKey]font.Face{}}
	draw.Draw(c.img, c.img.Bounds(), image.White, image.Point{}, draw.Src)
	for _, it := range p.scene.items {
		if it.path != nil {
			c.path(it.path)
		} else if err := c.text(it.text); err != nil {
			return nil, err
		}
	}
	return c.img, nil
}

func (c colour) paint() *image.Uniform {
	return image.NewUniform(color.NRGBA{uint8(c.rgb >> 16), uint8(c.rgb >> 8), uint8(c.rgb), uint8(math.Round(c.alpha * 255))})
}

func (c *canvas) path(p *path) {
	var lines [][]point
	for _, line := range p.lines {
		out := make([]point, len(line))
		for i, q := range line {
			out[i] = point{q.x * c.zoom, q.y * c.zoom}
		}
		lines = append(lines, out)
	}
	if p.closed && p.fill.alpha > 0 {
		c.fill(lines, p.fill)
	}
	if p.stroke.alpha > 0 {
		var dash []float64
		for _, d := range p.dash {
			dash = append(dash, d*c.zoom)
		}
		c.fill(outline(lines, p.closed, p.width*c.zoom, dash), p.stroke)
	}
}

// fill fills polygons, all with one cover of paint: where two of them overlap they are no darker.
func (c *canvas) fill(polygons [][]point, col colour) {
	bounds := image.Rectangle{}
	for _, poly := range polygons {
		for _, q := range poly {
			x, y := int(math.Floor(clamp(q.x))), int(math.Floor(clamp(q.y)))
			bounds = bounds.Union(image.Rect(x, y, x+2, y+2))
		}
	}
	bounds = bounds.Intersect(c.img.Bounds())
	if bounds.Empty() {
		return
	}
	r := vector.NewRasterizer(bounds.Dx(), bounds.Dy())
	for _, poly := range polygons {
		// The rasterizer adds up signed areas, so that all must turn the same way.
		backwards := area(poly) < 0
		for i := range poly {
			q := poly[i]
			if backwards {
				q = poly[len(poly)-1-i]
			}
			x, y := float32(clamp(q.x)-float64(bounds.Min.X)), float32(clamp(q.y)-float64(bounds.Min.Y))
			if i == 0 {
				r.MoveTo(x, y)
			} else {
				r.LineTo(x, y)
			}
		}
		r.ClosePath()
	}
	r.Draw(c.img, bounds, col.paint(), image.Point{})
}

// clamp keeps a place near the image.
func clamp(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return max(-1e5, min(v, 1e5))
}

func area(poly []point) (a float64) {
	for i, p := range poly {
		q := poly[(i+1)%len(poly)]
		a += p.x*q.y - q.x*p.y
	}
	return a
}

// outline returns polygons that cover the lines, drawn with a pen of that width.
func outline(lines [][]point, closed bool, width float64, dash []float64) (out [][]point) {
	for _, line := range lines {
		if closed && len(line) > 0 {
			line = append(line[:len(line):len(line)], line[0])
		}
		if len(line) == 1 {
			out = append(out, marker(0, line[0], width/2))
		}
		for _, piece := range dashed(line, dash) {
			for i := 1; i < len(piece); i++ {
				a, b := piece[i-1], piece[i]
				l := math.Hypot(b.x-a.x, b.y-a.y)
				if l == 0 {
					continue
				}
				dx, dy := (b.y-a.y)/l*width/2, -(b.x-a.x)/l*width/2
				out = append(out, []point{{a.x + dx, a.y + dy}, {b.x + dx, b.y + dy}, {b.x - dx, b.y - dy}, {a.x - dx, a.y - dy}})
				if width > 1.2 && i < len(piece)-1 {
					out = append(out, marker(0, b, width/2))
				}
			}
		}
	}
	return out
}

// dashed cuts a line into the pieces that dash draws.
func dashed(line []point, dash []float64) (out [][]point) {
	if len(dash) == 0 || len(line) < 2 {
		return [][]point{line}
	}
	on, k, left := true, 0, dash[0]
	piece := []point{line[0]}
	for i := 1; i < len(line); i++ {
		a, b := line[i-1], line[i]
		l := math.Hypot(b.x-a.x, b.y-a.y)
		for at := 0.0; at < l; {
			step := min(left, l-at)
			at += step
			left -= step
			q := point{a.x + (b.x-a.x)*at/l, a.y + (b.y-a.y)*at/l}
			if on {
				piece = append(piece, q)
			}
			if left > 0 {
				continue
			}
			if on {
				out = append(out, piece)
			}
			on, k = !on, (k+1)%len(dash)
			left, piece = dash[k], []point{q}
		}
	}
	if on && len(piece) > 1 {
		out = append(out, piece)
	}
	return out
}

func (c *canvas) text(t *text) error {
	key := faceKey{t.size, t.bold}
	face, ok := c.faces[key]
	if !ok {
		var err error
		face, err = opentype.NewFace(c.fonts.face(t.bold), &opentype.FaceOptions{Size: t.size * c.zoom, DPI: 72, Hinting: font.HintingNone})
		if err != nil {
			return fmt.Errorf("font of %v px: %w", t.size, err)
		}
		c.faces[key] = face
	}
	width := font.MeasureString(face, t.s)
	shift := -float64(width) / 64 * t.anchor
	at := point{t.at.x * c.zoom, t.at.y * c.zoom}
	if !t.up {
		d := font.Drawer{Dst: c.img, Src: t.colour.paint(), Face: face, Dot: fixed.Point26_6{X: fixed.Int26_6((at.x + shift) * 64), Y: fixed.Int26_6(at.y * 64)}}
		d.DrawString(t.s)
		return nil
	}
	// The text goes on a mask that lies on its side, which is then stood up.
	m := face.Metrics()
	rise, w := m.Ascent.Ceil(), width.Ceil()+2
	lying := image.NewAlpha(image.Rect(0, 0, w, rise+m.Descent.Ceil()))
	d := font.Drawer{Dst: lying, Src: image.Opaque, Face: face, Dot: fixed.P(1, rise)}
	d.DrawString(t.s)
	standing := image.NewAlpha(image.Rect(0, 0, lying.Rect.Dy(), w))
	for y := range lying.Rect.Dy() {
		for x := range w {
			standing.SetAlpha(y, w-1-x, lying.AlphaAt(x, y))
		}
	}
	left, bottom := int(math.Round(at.x))-rise, int(math.Round(at.y-shift))
	draw.DrawMask(c.img, image.Rect(left, bottom-w, left+standing.Rect.Dx(), bottom), t.colour.paint(), image.Point{}, standing, image.Point{}, draw.Over)
	return nil
}
