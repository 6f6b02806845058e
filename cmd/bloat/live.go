package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"bufferbloat"
	"bufferbloat/cmd/internal/program"
	"bufferbloat/report"
)

// screen is a terminal that people look at.
type screen struct {
	w       io.Writer
	size    func() (width, height int) // 0 where not known
	unicode bool
	color   bool
	resumed func(func()) (stop func()) // has a function called when the process goes on after a stop; nil for never
}

// openScreen returns the terminal at a file descriptor, as its environment describes it. A dumb one has no size, and is not drawn on.
func openScreen(w io.Writer, fd int) *screen {
	s := &screen{w: w, unicode: unicodeLocale(os.Getenv), resumed: onContinue}
	kind := os.Getenv("TERM")
	if kind == "dumb" || kind == "" && runtime.GOOS != "windows" {
		return s
	}
	s.color = os.Getenv("NO_COLOR") == ""
	s.size = func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil {
			return 0, 0
		}
		return width, height
	}
	return s
}

// redraw is the least time between two pictures: in virtual time a run tells more than anybody can see.
const redraw = 100 * time.Millisecond

// live draws a run on a terminal while it goes on: a few lines at the place of the cursor, drawn over each time. It changes nothing of the
// terminal's state, so that a program that is killed leaves nothing to put right.
type live struct {
	screen *screen
	out    *outlet
	now    func() time.Time
	stop   func()

	mu    sync.Mutex
	view  view
	drawn []string // the lines that stand on the terminal, above the cursor
	width int      // of the terminal when they were drawn
	last  time.Time
}

func newLive(s *screen, now func() time.Time) *live {
	l := &live{screen: s, out: openOutlet(s.w, 1), now: now, stop: func() {}}
	if s.resumed != nil {
		l.stop = s.resumed(l.forget)
	}
	return l
}

// forget gives up the lines that stand on the terminal: others have written there.
func (l *live) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drawn = nil
}

// progress takes in how far the run is, and draws it. It is called from one goroutine at a time.
func (l *live) progress(p bufferbloat.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view.take(p)
	now := l.now()
	if !p.Finished && !l.last.IsZero() && now.Sub(l.last) < redraw {
		return
	}
	width, height := l.screen.size()
	if width <= 0 {
		width = 80
	}
	var b bytes.Buffer
	l.erase(&b, width)
	lines := l.view.frame(frameOptions{width: width, height: height, unicode: l.screen.unicode, color: l.screen.color})
	if p.Finished {
		lines = nil
		fmt.Fprintf(&b, "%s\n", cut(l.view.summary(p), width-1)) // stays
	}
	for _, line := range lines {
		fmt.Fprintf(&b, "%s\n", line)
	}
	// A terminal that does not take what it was sent before misses this one: then the old lines stand.
	if l.out.offer(b.Bytes()) {
		l.drawn, l.width, l.last = lines, width, now
	}
}

// erase goes up over the lines that stand there, and removes them. A terminal that was made narrower since has broken them into more.
func (l *live) erase(b *bytes.Buffer, width int) {
	rows := 0
	for _, line := range l.drawn {
		rows += 1 + max(0, visible(line)-1)/max(1, width)
	}
	if width >= l.width {
		rows = len(l.drawn)
	}
	if rows > 0 {
		fmt.Fprintf(b, "\r\x1b[%dA\x1b[J", rows)
	}
}

// close removes what is drawn.
func (l *live) close() {
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	width, _ := l.screen.size()
	var b bytes.Buffer
	l.erase(&b, width)
	l.drawn = nil
	_ = l.out.close(b.Bytes(), time.Second) // a terminal that takes nothing can't be cleaned either
}

// plainEvery is the time of the run between two of plainLines.
const plainEvery = 10 * time.Second

// plainLines tells of a run in lines, for files and for terminals that can't be drawn on.
type plainLines struct {
	out  *outlet
	view view
	next time.Duration // on the run's time base
}

func newPlain(w io.Writer) *plainLines { return &plainLines{out: openOutlet(w, 100)} }

func (l *plainLines) progress(p bufferbloat.Progress) {
	l.view.take(p)
	switch {
	case p.Finished:
		l.out.offer([]byte(l.view.summary(p) + "\n"))
	case p.At >= l.next && p.Elapsed > 0:
		l.out.offer([]byte(l.view.summary(p) + "\n"))
		l.next = p.At.Truncate(plainEvery) + plainEvery
	}
}

func (l *plainLines) close() { _ = l.out.close(nil, time.Second) }

// The ways to tell how far a run is.
const (
	autoProgress  = "auto"
	liveProgress  = "live"
	plainProgress = "plain"
	noProgress    = "none"
)

// watcher returns what is told how far a run is, and what to call when it is over. how is the value of --progress; lines says whether a stderr
// that is no terminal gets lines.
func (a *app) watcher(ctx context.Context, how string, lines bool) (progress func(bufferbloat.Progress), closed func(), err error) {
	if how == autoProgress {
		switch {
		case a.screen != nil && a.screen.size != nil:
			how = liveProgress
		case a.screen != nil || lines && a.progress == nil:
			how = plainProgress
		default:
			how = noProgress
		}
	}
	var watch interface {
		progress(bufferbloat.Progress)
		close()
	}
	switch how {
	case liveProgress:
		if a.screen == nil || a.screen.size == nil {
			return nil, nil, &usageError{fmt.Errorf("--progress live: stderr is no terminal that can be drawn on")}
		}
		watch = newLive(a.screen, time.Now)
	case plainProgress:
		w := a.stderr
		if a.screen != nil {
			w = a.screen.w
		}
		watch = newPlain(w)
	case noProgress:
		return a.progress, func() {}, nil
	default:
		return nil, nil, &usageError{fmt.Errorf("--progress %q: want auto, live, plain or none", how)}
	}
	return func(p bufferbloat.Progress) {
		if !p.Finished || ctx.Err() == nil { // a phase that was broken off has nothing to be summed up
			watch.progress(p)
		}
		if a.progress != nil {
			a.progress(p)
		}
	}, watch.close, nil
}

// followed are those who follow a run while it goes on.
type followed struct {
	stop   func()  // takes down what is shown
	events *events // nil without --events
}

// follow has a run followed by whom the flags name. When the run is over, stop must be called, and then over or failed.
func (a *app) follow(ctx context.Context, f *measureFlags, plan *bufferbloat.Plan, o *bufferbloat.RunOptions, lines bool) (*followed, error) {
	progress, stop, err := a.watcher(ctx, f.progress, lines)
	if err != nil {
		return nil, err
	}
	w := &followed{stop: stop}
	o.Progress = progress
	if f.events == "" {
		return w, nil
	}
	if w.events, err = a.openEvents(f.events); err != nil {
		stop()
		return nil, err
	}
	w.events.begin(o.Started, plan)
	o.Event = w.events.event
	return w, nil
}

// over ends the following of a run that has a result.
func (w *followed) over(result *report.Result) error {
	if w.events == nil {
		return nil
	}
	return w.events.end(result, result.Status(), nil)
}

// failed ends the following of a run that has none, and returns why.
func (w *followed) failed(ctx context.Context, err error) error {
	if w.events == nil {
		return err
	}
	status, s := statusFailed, (*program.SignalError)(nil)
	if errors.As(context.Cause(ctx), &s) {
		status = s.Status()
	}
	return errors.Join(err, w.events.end(nil, status, err))
}

// title is a phase's name as it begins a line.
func title(name string) string {
	name = report.Printable(name)
	if name == "" {
		return "Phase"
	}
	return strings.ToUpper(name[:1]) + name[1:]
}
