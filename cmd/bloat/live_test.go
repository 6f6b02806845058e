package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clipperhouse/displaywidth"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
)

var updateFrames = flag.Bool("update-frames", false, "write the golden pictures of the live view")

// aRun is what a run tells, second by second: an idle phase, and a download whose queue fills up, with a stretch in which nothing is answered.
func aRun() []bufferbloat.Progress {
	var out []bufferbloat.Progress
	at := time.Duration(0)
	delays := func(ms float64, lost int) []bufferbloat.DelaySoFar {
		mean := time.Duration(ms * float64(time.Millisecond))
		primary := bufferbloat.DelaySoFar{Series: "ping", Kind: "icmp", Primary: true, Answered: 10 - lost, Lost: lost, Mean: mean, Highest: mean + mean/8, Last: mean}
		if lost == 10 {
			primary = bufferbloat.DelaySoFar{Series: "ping", Kind: "icmp", Primary: true, Lost: lost}
		}
		return []bufferbloat.DelaySoFar{primary, {Series: "UDP, marked 呼\x1b[2J", Kind: "irtt", Answered: 2, Mean: mean / 2, Highest: mean / 2, Last: mean / 2}}
	}
	phase := func(name string, kind bufferbloat.PhaseKind, length, rest time.Duration, step func(s int, p *bufferbloat.Progress)) {
		n := int(length / time.Second)
		for s := 0; s <= n; s++ {
			p := bufferbloat.Progress{Phase: name, Kind: kind, Elapsed: time.Duration(s) * time.Second, Length: length, At: at + time.Duration(s)*time.Second,
				Left: length - time.Duration(s)*time.Second + rest}
			if kind == bufferbloat.Load {
				p.Flows = bufferbloat.FlowsSoFar{Planned: 5, Begun: 5}
			}
			if s > 0 {
				step(s, &p)
			}
			if s == n {
				p.Left, p.Finished = rest, true
			}
			out = append(out, p)
		}
		at += length
	}
	phase("idle", bufferbloat.Idle, 5*time.Second, 91*time.Second, func(_ int, p *bufferbloat.Progress) { p.Delays = delays(12.25, 0) })
	phase("download", bufferbloat.Load, 90*time.Second, time.Second, func(s int, p *bufferbloat.Progress) {
		p.Rates = []bufferbloat.RateSoFar{{Direction: load.Download, Bytes: uint64(s) * 2_371_250, Rate: 18_970 * bitrate.Kbit, OK: true}}
		if s > 70 {
			p.Rates = append(p.Rates, bufferbloat.RateSoFar{Direction: load.Upload, Bytes: 50, Rate: 400 * bitrate.Kbit, OK: s > 71})
			p.Flows.Failed, p.Flows.Ended = 1, 1
		}
		lost := 0
		if s >= 60 && s < 64 {
			lost = 10
		} else if s%20 == 3 {
			lost = 1
		}
		p.Delays = delays(12.25+min(float64(s)*10, 250), lost)
	})
	phase("drain after download", bufferbloat.Drain, time.Second, 0, func(_ int, p *bufferbloat.Progress) { p.Delays = delays(14, 0) })
	return out
}

// TestFrames keeps pictures of the live view at several widths, on a terminal with UTF-8 and on one without.
func TestFrames(t *testing.T) {
	t.Parallel()
	for _, o := range []frameOptions{{width: 40}, {width: 80, unicode: true}, {width: 120, unicode: true}, {width: 80}, {width: 20}} {
		var got strings.Builder
		var v view
		for i, p := range aRun() {
			v.take(p)
			if p.Finished {
				fmt.Fprintf(&got, "--- stays\n%s\n", cut(v.summary(p), o.width-1))
				continue
			}
			if s := p.At / time.Second; s != 0 && s != 2 && s != 5 && s != 8 && s != 40 && s != 67 && s != 80 && i != len(aRun())-2 {
				continue
			}
			fmt.Fprintf(&got, "--- at %v, as plain line:\n%s\n--- as picture:\n%s\n", p.At, v.summary(p), strings.Join(v.frame(o), "\n"))
		}
		name := fmt.Sprintf("testdata/live/%d.golden", o.width)
		if o.unicode {
			name = fmt.Sprintf("testdata/live/%d-utf8.golden", o.width)
		}
		if *updateFrames {
			if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(got.String()), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("%s: got\n%s", name, got.String())
		}
	}
}

func TestNoLineReachesTheLastColumnOrSteersTheTerminal(t *testing.T) {
	t.Parallel()
	for width := 1; width <= 140; width++ {
		for _, o := range []frameOptions{{width: width}, {width: width, unicode: true, color: true}, {width: width, height: 3, unicode: true}} {
			var v view
			for _, p := range aRun() {
				v.take(p)
				lines := v.frame(o)
				if o.height > 0 && len(lines) >= o.height {
					t.Fatalf("%d lines on a terminal of %d", len(lines), o.height)
				}
				for _, line := range lines {
					if w := visible(line); w >= max(2, width) {
						t.Fatalf("width %d, at %v: %q is %d columns wide", width, p.At, line, w)
					}
					plain := line
					for _, sgr := range []string{bold, red, green, yellow, cyan, "0"} {
						plain = strings.ReplaceAll(plain, "\x1b["+sgr+"m", "")
					}
					if strings.ContainsAny(plain, "\x1b\r\n\t") {
						t.Fatalf("width %d: %q steers the terminal", width, line)
					}
				}
			}
		}
	}
}

func TestNoColorMeansNoEscapesInLines(t *testing.T) {
	t.Parallel()
	var v view
	for _, p := range aRun() {
		v.take(p)
		if text := strings.Join(v.frame(frameOptions{width: 100, unicode: true}), "\n"); strings.ContainsRune(text, 0x1b) {
			t.Fatalf("%q has escapes", text)
		}
	}
}

func TestSparklines(t *testing.T) {
	t.Parallel()
	nan, inf := math.NaN(), math.Inf(1)
	long := make([]float64, 60)
	long[30], long[31] = 8, 2
	for name, tt := range map[string]struct {
		past  []float64
		width int
		worst bool
		want  string
	}{
		"nothing":                               {nil, 10, false, ""},
		"a step, scaled from 0":                 {[]float64{1, 1, 2, 4}, 60, false, "▃▃▅█"},
		"unknown is blank, lost is an x":        {[]float64{nan, 1, inf, 1}, 60, true, " █x█"},
		"nothing but zeros is low":              {[]float64{0, 0}, 60, false, "▁▁"},
		"a minute in 20 columns shows means":    {long, 20, false, "▁▁▁▁▁▁▁▁▁▁█▁▁▁▁▁▁▁▁▁"},
		"or the worst":                          {append(append([]float64{}, long[:58]...), inf, 1), 20, true, "▁▁▁▁▁▁▁▁▁▁█▁▁▁▁▁▁▁▁x"},
		"seconds that are not there are no ink": {[]float64{1, 2, 3}, 30, false, "▄█"},
	} {
		if got := sparkline(tt.past, tt.width, tt.worst, true); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// terminal is what stands on a terminal after what was written to it: enough of one for the live view, which goes up, erases, and writes lines.
type terminal struct {
	mu     sync.Mutex
	width  int
	rows   []string
	at     int // row of the cursor
	column int
}

func (s *terminal) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for text := string(b); text != ""; {
		s.fill()
		switch {
		case text[0] == '\r':
			s.column, text = 0, text[1:]
		case text[0] == '\n':
			s.at, s.column, text = s.at+1, 0, text[1:]
		case strings.HasPrefix(text, "\x1b["):
			end := strings.IndexFunc(text[2:], func(r rune) bool { return r >= '@' }) + 2
			n := 1
			_, _ = fmt.Sscanf(text[2:end], "%d", &n)
			switch text[end] {
			case 'A':
				s.at = max(0, s.at-n)
			case 'J':
				s.rows = append(s.rows[:s.at], strings.Repeat(" ", 0))
			case 'm':
			default:
				return 0, fmt.Errorf("unknown escape %q", text[:end+1])
			}
			text = text[end+1:]
		default:
			r := []rune(text)[0]
			w := displaywidth.Rune(r)
			if s.column+w > s.width {
				s.at, s.column = s.at+1, 0
				s.fill()
			}
			s.rows[s.at] += string(r)
			s.column += w
			text = text[len(string(r)):]
		}
	}
	return len(b), nil
}

func (s *terminal) fill() {
	for len(s.rows) <= s.at {
		s.rows = append(s.rows, "")
	}
}

func (s *terminal) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimRight(strings.Join(s.rows, "\n"), "\n")
}

// draw plays a run on a terminal, until a Progress for which stop returns true.
func draw(t *testing.T, s *terminal, stop func(bufferbloat.Progress) bool) (onScreen string) {
	t.Helper()
	fmt.Fprintln(s, "$ bloat speedtest -H host")
	size := func() (int, int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.width, 24
	}
	l := newLive(&screen{w: s, size: size, unicode: true, color: true}, time.Now)
	for _, p := range aRun() {
		l.progress(p)
		synctest.Wait()
		time.Sleep(time.Second)
		if stop(p) {
			break
		}
	}
	onScreen = s.text()
	l.close()
	return onScreen
}

func TestTheScreenIsCleanAfterARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &terminal{width: 80}
		draw(t, s, func(bufferbloat.Progress) bool { return false })
		want := "$ bloat speedtest -H host\n" +
			"Idle, 5.0 s: ping up to 13.8 ms, UDP, marked 呼\\x1b[2J up to 6.1 ms\n"
		if got := s.text(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 3 || strings.ContainsAny(got, "█▁") {
			t.Errorf("on the terminal there is\n%s", got)
		}
	})
}

func TestTheScreenIsCleanAfterAnInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &terminal{width: 80}
		on := draw(t, s, func(p bufferbloat.Progress) bool { return p.At == 40*time.Second })
		if !strings.Contains(on, "Download  35 of 90 s") || strings.Count(on, "Download") != 1 || !strings.Contains(on, "18.97 Mbit/s") {
			t.Errorf("before, there was\n%s", on)
		}
		if got := s.text(); strings.Count(got, "\n") != 1 || strings.Contains(got, "Download") {
			t.Errorf("on the terminal there is\n%s\nwant the command and the idle phase alone", got)
		}
	})
}

// A terminal that is made narrower breaks the lines that stand on it; what was there before must stay, and what is drawn must go.
func TestANarrowerTerminalIsCleanedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &terminal{width: 120}
		narrow := false
		on := draw(t, s, func(p bufferbloat.Progress) bool {
			if p.At == 40*time.Second && !narrow {
				narrow = true
				s.reflow(50)
			}
			return p.At == 45*time.Second
		})
		if strings.Count(on, "Download") != 1 || !strings.HasPrefix(on, "$ bloat speedtest") {
			t.Errorf("on the terminal there is\n%s", on)
		}
	})
}

// reflow breaks what stands on the terminal into rows of another width.
func (s *terminal) reflow(width int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []string
	for _, row := range s.rows {
		for displaywidth.String(row) > width {
			head := fit(row, width)
			rows, row = append(rows, head), row[len(head):]
		}
		rows = append(rows, row)
	}
	s.rows, s.width, s.at, s.column = rows, width, len(rows)-1, 0
}

func TestAStoppedTerminalHoldsUpNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe() // nobody reads
		l := newLive(&screen{w: w, size: func() (int, int) { return 80, 24 }}, time.Now)
		began := time.Now()
		for _, p := range aRun() {
			l.progress(p)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the run was held up for %v", took)
		}
		l.close()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the end was held up for %v", took)
		}
		r.Close()
	})
}

func TestPlainLinesComeNowAndThen(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	l := newPlain(&b)
	for _, p := range aRun() {
		l.progress(p)
	}
	l.close()
	text := b.String()
	if n := strings.Count(text, "\n"); n < 11 || n > 15 {
		t.Errorf("%d lines of 96 s:\n%s", n, text)
	}
	if strings.Contains(text, "\x1b") || !strings.Contains(text, "Download 35 of 90 s: down 18.97 Mbit/s, ping 262.2 ms (lost 2)") {
		t.Errorf("got\n%s", text)
	}
}

func TestEventsAreOfTheirSchema(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "events")
	a := &app{version: "v1"}
	e, err := a.openEvents(name)
	if err != nil {
		t.Fatal(err)
	}
	e.begin(time.Unix(1, 0), &bufferbloat.Plan{Name: "p"})
	for _, p := range aRun() {
		e.event(bufferbloat.Event{At: p.At, Progress: &p})
	}
	flow := &bufferbloat.Flow{Name: "f", Phase: "download", Direction: load.Download, Error: "no"}
	for _, ev := range []bufferbloat.Event{{Began: &bufferbloat.Phase{Name: "idle", Kind: bufferbloat.Idle}}, {Ended: &bufferbloat.Phase{Name: "idle", Kind: bufferbloat.Idle}},
		{Flow: flow}, {FlowOver: flow}, {Finding: &bufferbloat.Finding{Code: "c", Severity: bufferbloat.Note, Text: "t"}}} {
		e.event(ev)
	}
	e.dropped = 3
	if err := e.end(nil, 1, errors.New("refused")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	types, err := readEvents(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"run", "progress", "phase_began", "phase_ended", "flow_began", "flow_ended", "finding", "dropped", "end"} {
		if types[want] == 0 {
			t.Errorf("no %q among %v", want, types)
		}
	}
}

// readEvents validates lines of --events, and counts their types.
func readEvents(text string) (map[string]int, error) {
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(eventsJSONSchema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("events.json", schema); err != nil {
		return nil, err
	}
	s, err := c.Compile("events.json")
	if err != nil {
		return nil, err
	}
	types := map[string]int{}
	for line := range strings.Lines(text) {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		if err := s.Validate(doc); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		var head struct{ Type string }
		if err := json.Unmarshal([]byte(line), &head); err != nil {
			return nil, err
		}
		types[head.Type]++
	}
	return types, nil
}

func TestAReaderOfEventsThatIsSlowHearsHowManyItMissed(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	e := &events{out: openOutlet(w, 2), close: w.Close, version: "v1"}
	for range 10 {
		e.put(droppedEvent{"progress", 1})
	}
	read := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		read <- string(b)
	}()
	if err := e.end(nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	text := <-read
	written := strings.Count(text, `"progress"`)
	if !strings.Contains(text, fmt.Sprintf(`{"type":"dropped","count":%d}`, 10-written)) || !strings.HasSuffix(text, "\"result\":null}\n") {
		t.Errorf("got %s, want the missing ones counted", text)
	}
}
