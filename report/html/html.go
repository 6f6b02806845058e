// Package html writes a result as one HTML page that needs nothing else: tables, findings, pictures, charts to zoom into, and the recording itself.
//
// The page names no address, loads nothing, and forbids itself to (Content-Security-Policy). Without a script it has the tables and the
// pictures; the script adds the charts.
package html

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // for the page's parts
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bufferbloat"
	"bufferbloat/report"
	"bufferbloat/report/plot"
)

var (
	//go:embed page.tmpl
	pageTemplate string
	//go:embed page.css
	pageStyle string
	//go:embed page.js
	pageScript string
)

// MaxFile is how large a recording file may be, in bytes, to go into a page; the page says so where one is left out.
const MaxFile = 32 << 20

// Run is one run of a page.
type Run struct {
	Name      string
	Recording *bufferbloat.Recording
	Result    *report.Result // of Recording; nil computes it
	File      []byte         // the recording's file as it is to be downloaded; nil for none
	FileName  string         // under which it is offered
}

// page is what the template shows.
type page struct {
	Title  string
	Policy string
	Style  template.CSS
	Script template.JS
	Runs   []runPart
	Charts []picture
	Left   []string // pictures that the recordings have no data for
	Data   chartData
}

type runPart struct {
	Name string
	report.Page
	Facts    [][2]string
	FileName string
	FileURL  template.URL
	FileSize string
	FileNone string // why there is no file
	JSONName string
	JSONURL  template.URL
}

type picture struct {
	Title string
	SVG   template.HTML
	Open  bool
}

// Write writes the page of one run or several.
func Write(w io.Writer, runs []Run, o plot.Options) error {
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return err
	}
	script := sha256.Sum256([]byte(pageScript))
	p := page{Style: template.CSS(pageStyle), Script: template.JS(pageScript),
		Policy: "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(script[:]) +
			"'; base-uri 'none'; form-action 'none'"}
	var drawn []plot.Run
	for i := range runs {
		part, err := newPart(&runs[i])
		if err != nil {
			return err
		}
		p.Runs = append(p.Runs, part)
		drawn = append(drawn, plot.Run{Name: runs[i].Name, Recording: runs[i].Recording})
	}
	for _, kind := range plot.Kinds() {
		pic, err := plot.New(kind, drawn, o)
		if missing := (*plot.NotRecordedError)(nil); errors.As(err, &missing) {
			p.Left = append(p.Left, printable(missing.Error()))
			continue
		}
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := pic.WriteInline(&b); err != nil {
			return err
		}
		if p.Title == "" {
			p.Title = printable(pic.Title)
		}
		p.Charts = append(p.Charts, picture{printable(pic.Title), template.HTML(b.String()), len(p.Charts) < 2})
	}
	p.Data = newChartData(runs)
	return t.Execute(w, p)
}

func newPart(r *Run) (runPart, error) {
	result := r.Result
	if result == nil {
		result = report.New(r.Recording)
	}
	part := runPart{Name: printable(r.Name), Page: result.Page(), Facts: facts(r.Recording, result)}
	var doc bytes.Buffer
	if err := result.WriteJSON(&doc); err != nil {
		return part, fmt.Errorf("the document of %q: %w", r.Name, err)
	}
	part.JSONName, part.JSONURL = printable(r.Name)+".json", dataURL("application/json", doc.Bytes())
	switch {
	case len(r.File) == 0:
		part.FileNone = "the recording is not in this page"
	case len(r.File) > MaxFile:
		part.FileNone = fmt.Sprintf("the recording, of %d MB, is too large for a page", len(r.File)>>20)
	default:
		part.FileName, part.FileURL = printable(r.FileName), dataURL("application/gzip", r.File)
		part.FileSize = strconv.Itoa((len(r.File)+1023)/1024) + " kB"
	}
	return part, nil
}

// printable returns s with what can't be seen replaced.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

func dataURL(kind string, b []byte) template.URL {
	return template.URL("data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(b))
}

// facts are what bears on the result beside its figures, a name and a value each.
func facts(rec *bufferbloat.Recording, r *report.Result) (out [][2]string) {
	add := func(name, format string, args ...any) {
		out = append(out, [2]string{printable(name), printable(fmt.Sprintf(format, args...))})
	}
	known := func(name, value string) {
		if value != "" {
			add(name, "%s", value)
		}
	}
	if !rec.Started.IsZero() {
		add("Started", "%s", rec.Started.Format(time.RFC3339))
	}
	add("Length", "%.1f s", r.Length.Seconds())
	known("Plan", rec.Plan.Name)
	known("Path", plot.Describe(rec))
	known("Server", rec.Path.Host)
	known("Address", rec.Path.Address)
	known("Server program", rec.Path.Server)
	known("Stack", rec.Path.Stack)
	if c := rec.Client; c.OS != "" {
		add("Client", "%s %s %s, %d CPUs", c.OS, c.Kernel, c.Arch, c.CPUs)
		known("Congestion control", c.CongestionControl)
	}
	for _, s := range r.Series {
		text := fmt.Sprintf("%s to %s every %v, %s: %d sent, %d answered, %d lost", s.Kind, s.Target, s.Interval, s.DSCP, s.Count.Sent, s.Count.Answered(), s.Count.AllLost())
		if s.Count.Unsent > 0 {
			text += fmt.Sprintf(", %d not sent", s.Count.Unsent)
		}
		if s.Error != "" {
			text += "; " + s.Error
		}
		add("Probe "+s.Name, "%s", text)
	}
	for i := range rec.Flows {
		const most = 64
		if i == most {
			add("Flows", "%d more", len(rec.Flows)-most)
			break
		}
		f := &rec.Flows[i]
		text := fmt.Sprintf("%d bytes, counted by %v", f.Result.Bytes, f.Result.CountedBy)
		if f.Result.HasRetransmits {
			text += fmt.Sprintf(", %d retransmissions", f.Result.Retransmits)
		}
		if f.Error != "" {
			text = f.Error
		}
		add("Flow "+f.Name, "%s", text)
	}
	known("Recorded by", rec.Version)
	return out
}
