package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/png"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"bufferbloat"
)

var update = flag.Bool("update", false, "write the golden files anew")

// drawn are the kinds that recordings have the data for.
func drawn() []Kind { return []Kind{RRUL, CDF, Box, RateLatency, Shares, Heat} }

func runsOf(recs ...*bufferbloat.Recording) (runs []Run) {
	for i, rec := range recs {
		runs = append(runs, Run{fmt.Sprintf("run %d", i+1), rec})
	}
	return runs
}

func mustNew(t testing.TB, kind Kind, o Options, recs ...*bufferbloat.Recording) *Picture {
	t.Helper()
	p, err := New(kind, runsOf(recs...), o)
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return p
}

func svg(t testing.TB, p *Picture) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := p.WriteSVG(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decoded(t testing.TB, p *Picture) image.Image {
	t.Helper()
	var b bytes.Buffer
	if err := p.WritePNG(&b); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestPicturesAreTheSameEachTime(t *testing.T) {
	for _, kind := range drawn() {
		for name, p := range map[string]*Picture{
			"one":   mustNew(t, kind, Options{}, lossy(t)),
			"two":   mustNew(t, kind, Options{}, recording(t, "fifo"), recording(t, "fq_codel")),
			"apart": mustNew(t, kind, Options{Apart: true, SameAxes: true, Log: true}, lossy(t), recording(t, "fq_codel")),
		} {
			got := svg(t, p)
			file := filepath.Join("testdata", string(kind)+"."+name+".svg")
			if *update {
				if err := os.WriteFile(file, got, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs from what is drawn; look at both, and run the test with -update", file)
			}
		}
	}
}

// wellFormed fails unless b is XML with only the elements and attributes that pictures have, and returns its texts.
func wellFormed(t testing.TB, b []byte) (texts []string) {
	t.Helper()
	known := regexp.MustCompile(`^(svg|title|desc|path|text)$`)
	attribute := regexp.MustCompile(`^(xmlns|width|height|viewBox|role|font-.*|class|x|y|d|fill.*|stroke.*|text-anchor|transform)$`)
	for d := xml.NewDecoder(bytes.NewReader(b)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		switch v := token.(type) {
		case xml.StartElement:
			if !known.MatchString(v.Name.Local) {
				t.Fatalf("element %s", v.Name.Local)
			}
			for _, a := range v.Attr {
				if !attribute.MatchString(a.Name.Local) {
					t.Fatalf("attribute %s of %s", a.Name.Local, v.Name.Local)
				}
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Fatalf("%s=%q", a.Name.Local, a.Value)
				}
			}
		case xml.CharData:
			texts = append(texts, string(v))
		}
	}
}

func TestHostileNamesAreTexts(t *testing.T) {
	for _, kind := range drawn() {
		p := mustNew(t, kind, Options{}, hostile(t), hostile(t))
		b := svg(t, p)
		texts := strings.Join(wellFormed(t, b), "\n")
		if !strings.Contains(texts, "</text><script>alert(1)</script>\"'&") {
			t.Errorf("%s: the plan's name is not in the texts", kind)
		}
		for _, bad := range []string{"\x1b", "\u202e", "\x00", "<script"} {
			if bytes.Contains(b, []byte(bad)) {
				t.Errorf("%s: %q is in the file", kind, bad)
			}
		}
		decoded(t, mustNew(t, kind, Options{Width: MinWidth}, hostile(t)))
	}
}

// inked counts the pixels of an area, in the coordinates of a picture of DefaultWidth, that are near a colour.
func inked(img image.Image, x0, y0, x1, y1 int, rgb uint32, near int) (n int) {
	for y := y0; y < y1; y++ {
		for x := x0; x < x1; x++ {
			r, g, b, _ := img.At(x, y).RGBA()
			d := abs(int(r>>8)-int(rgb>>16&255)) + abs(int(g>>8)-int(rgb>>8&255)) + abs(int(b>>8)-int(rgb&255))
			if d <= near {
				n++
			}
		}
	}
	return n
}

func abs(v int) int { return max(v, -v) }

func TestPNGHasInkWhereTheDataIs(t *testing.T) {
	img := decoded(t, mustNew(t, RRUL, Options{}, lossy(t)))
	if w := img.Bounds().Dx(); w != DefaultWidth {
		t.Errorf("width %d, want %d", w, DefaultWidth)
	}
	h := img.Bounds().Dy()
	delay := h - delayPanelHeight - axisSpace - 6 // top of the last panel
	blue, red, orange := styles(0).colour.rgb, lostColour.rgb, styles(1).colour.rgb
	// The run is 30 s: idle to 3 s, an outage at 7 to 8.5 s, upload from 14.5 s.
	at := func(s float64) int { return marginLeft + int(s/29.6*plotWidth) }
	for _, tt := range []struct {
		what           string
		x0, y0, x1, y1 int
		rgb            uint32
		want           bool
	}{
		{"idle RTTs", at(0.5), delay + 100, at(2.5), delay + delayPanelHeight, blue, true},
		{"nothing above idle RTTs", at(0.5), delay + 10, at(2.5), delay + 100, blue, false},
		{"lost probes on the top edge", at(7.2), delay, at(8.3), delay + 8, red, true},
		{"the gap of the outage", at(7.2), delay + 16, at(8.3), delay + delayPanelHeight, blue, false},
		{"no loss before it", at(0), delay, at(6.8), delay + 16, red, false},
		{"goodput of the download", at(4), 80, at(12), 200, blue, true},
		{"no download before the load", at(0), 80, at(2.9), 200, blue, false},
		{"goodput of the upload", at(16), 230, at(24), 350, orange, true},
		{"no upload during the download", at(4), 230, at(13), 350, orange, false},
	} {
		if n := inked(img, tt.x0, tt.y0, tt.x1, tt.y1, tt.rgb, 60); (n > 5) != tt.want {
			t.Errorf("%s: %d pixels, want some: %v", tt.what, n, tt.want)
		}
	}
}

func TestWidthEnlargesTheWhole(t *testing.T) {
	small, large := decoded(t, mustNew(t, CDF, Options{Width: 200}, lossy(t))).Bounds(), decoded(t, mustNew(t, CDF, Options{Width: 800}, lossy(t))).Bounds()
	if small.Dx() != 200 || large.Dx() != 800 || abs(large.Dy()-4*small.Dy()) > 4 {
		t.Errorf("sizes %v and %v", small, large)
	}
	for _, width := range []int{-1, MinWidth - 1, MaxWidth + 1} {
		if _, err := New(CDF, runsOf(lossy(t)), Options{Width: width}); err == nil {
			t.Errorf("width %d is taken", width)
		}
	}
}

func TestWhatIsNotRecordedIsSaid(t *testing.T) {
	for _, kind := range []Kind{TCP, Qdisc} {
		_, err := New(kind, runsOf(lossy(t)), Options{})
		if e := (*NotRecordedError)(nil); !errors.As(err, &e) || e.Kind != kind || !strings.Contains(err.Error(), "not in this recording") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	empty := &bufferbloat.Recording{}
	for kind, want := range map[Kind]string{RRUL: "no probe was answered", CDF: "no probe was answered", Box: "no probe was answered",
		Heat: "no probe was answered", RateLatency: "no load with answered probes"} {
		if b := svg(t, mustNew(t, kind, Options{}, empty)); !bytes.Contains(b, []byte(want)) {
			t.Errorf("%s of an empty recording does not say %q", kind, want)
		}
	}
	if _, err := New(Shares, runsOf(empty), Options{}); err == nil {
		t.Error("shares of no flows")
	}
	for _, tt := range []struct {
		kind Kind
		n    int
	}{{RRUL, 0}, {RRUL, MaxRuns + 1}, {"pie", 1}} {
		if _, err := New(tt.kind, make([]Run, tt.n), Options{}); err == nil {
			t.Errorf("%s of %d runs", tt.kind, tt.n)
		}
	}
}

// withQuantities has what flent records of the flows and of the queue: a window that grows for 10 s, then nothing for 10 s, then one value.
func withQuantities(t testing.TB) *bufferbloat.Recording {
	rec := recording(t, "fifo")
	add := func(name string, step float64) {
		q := bufferbloat.Quantity{Name: name}
		for i := range 50 {
			q.At, q.Values = append(q.At, time.Duration(i)*200*time.Millisecond), append(q.Values, float64(i)*step)
		}
		q.At, q.Values = append(q.At, 20*time.Second), append(q.Values, 25*step)
		rec.Others = append(rec.Others, q)
	}
	add("TCP upload BE::tcp_rtt", 4)
	add("TCP upload BE::tcp_cwnd", 1)
	add("TCP upload BK::tcp_cwnd", 2)
	add("qdisc_stats_eth0::backlog_bytes", 1500)
	return rec
}

func TestQuantitiesAreDrawnWhereRecorded(t *testing.T) {
	for kind, want := range map[Kind][]string{
		TCP:   {">Smoothed RTT<", ">ms<", ">Congestion window<", ">segments<", ">TCP upload BK<"},
		Qdisc: {">Backlog<", ">bytes<", ">qdisc_stats_eth0<"},
	} {
		p := mustNew(t, kind, Options{}, withQuantities(t))
		b := svg(t, p)
		wellFormed(t, b)
		for _, w := range want {
			if !bytes.Contains(b, []byte(w)) {
				t.Errorf("%s lacks %q", kind, w)
			}
		}
		if bytes.Contains(b, []byte(">packets<")) {
			t.Errorf("%s has a panel of what was not recorded", kind)
		}
		img := decoded(t, p)
		at := func(s float64) int { return marginLeft + int(s/29.6*plotWidth) }
		bottom := img.Bounds().Dy() - axisSpace - 8
		for _, tt := range []struct {
			what     string
			from, to float64
			want     bool
		}{{"values", 1, 9.5, true}, {"the gap", 10.5, 19.5, false}, {"the last value", 19.8, 20.2, true}} {
			if n := inked(img, at(tt.from), bottom-165, at(tt.to), bottom, styles(0).colour.rgb, 80); (n > 2) != tt.want {
				t.Errorf("%s, %s: %d pixels, want some: %v", kind, tt.what, n, tt.want)
			}
		}
		_, err := New(kind, []Run{{"with", withQuantities(t)}, {"without", lossy(t)}}, Options{})
		if e := (*NotRecordedError)(nil); !errors.As(err, &e) || e.Run != "without" {
			t.Errorf("%s of two runs: %v, want the one that lacks it named", kind, err)
		}
	}
}

func TestOneSampleIsDrawn(t *testing.T) {
	for _, kind := range []Kind{RRUL, CDF, Box, Heat} {
		p := mustNew(t, kind, Options{Width: MinWidth}, one())
		if bytes.Contains(svg(t, p), []byte("no probe was answered")) {
			t.Errorf("%s: one answer is none", kind)
		}
		decoded(t, p)
	}
}

func TestAMillionSamplesGiveABoundedPicture(t *testing.T) {
	rec := long(1_000_000)
	for _, kind := range []Kind{RRUL, CDF, Heat} {
		b := svg(t, mustNew(t, kind, Options{}, rec))
		if len(b) > 200_000 {
			t.Errorf("%s: %d bytes", kind, len(b))
		}
	}
	// The one RTT of 200 ms among a million of 1 to 2 ms must be there: the axis reaches it, and a line does.
	p := mustNew(t, RRUL, Options{}, rec)
	if !bytes.Contains(svg(t, p), []byte(">200</text>")) {
		t.Error("the axis does not reach the highest RTT")
	}
	img := decoded(t, p)
	top := img.Bounds().Dy() - delayPanelHeight - axisSpace - 6
	if n := inked(img, marginLeft+plotWidth/2-4, top+15, marginLeft+plotWidth/2+4, top+60, styles(0).colour.rgb, 200); n == 0 {
		t.Error("the highest RTT is not drawn")
	}
}

func TestSameAxesAreTheSame(t *testing.T) {
	labels := func(o Options) (n int) {
		b := svg(t, mustNew(t, RRUL, o, recording(t, "fifo"), recording(t, "fq_codel")))
		return bytes.Count(b, []byte(">300</text>"))
	}
	if got := labels(Options{Apart: true}); got != 1 {
		t.Errorf("apart: %d axes reach 300 ms, want that of the fifo alone", got)
	}
	if got := labels(Options{Apart: true, SameAxes: true}); got != 2 {
		t.Errorf("apart with the same axes: %d axes reach 300 ms, want both", got)
	}
	if got := labels(Options{}); got != 1 {
		t.Errorf("together: %d axes reach 300 ms, want one", got)
	}
}

func TestNoRecordingPanics(t *testing.T) {
	for seed := range uint64(12) {
		draws(t, seed, 0)
	}
}

func FuzzNew(f *testing.F) {
	for seed := range uint64(2) {
		f.Add(seed, seed*3)
	}
	f.Fuzz(draws)
}

// draws checks that any two recordings give pictures that are well-formed, bounded, and can be painted.
func draws(t *testing.T, a, b uint64) {
	r := rand.New(rand.NewPCG(a, b))
	recs := []*bufferbloat.Recording{random(t, r), random(t, r)}[:1+r.IntN(2)]
	o := Options{Width: MinWidth, Apart: r.IntN(2) == 0, SameAxes: r.IntN(2) == 0, Log: r.IntN(2) == 0}
	for _, kind := range Kinds() {
		p, err := New(kind, runsOf(recs...), o)
		if err != nil {
			if e := (*NotRecordedError)(nil); !errors.As(err, &e) {
				t.Errorf("%s: %v", kind, err)
			}
			continue
		}
		out := svg(t, p)
		if len(out) > 1<<20 {
			t.Errorf("%s: %d bytes", kind, len(out))
		}
		wellFormed(t, out)
		if _, err := p.image(); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func BenchmarkMillionSamples(b *testing.B) {
	rec := long(1_000_000)
	b.ReportAllocs()
	for b.Loop() {
		if err := mustNew(b, RRUL, Options{}, rec).WritePNG(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}
