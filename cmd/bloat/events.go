package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"bufferbloat"
	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report"
)

// EventsSchema names the form of --events: one JSON object a line, each with its "type". Fields and types are added and never changed.
const eventsSchema = "bloat/events/1"

//go:embed events.schema.json
var eventsJSONSchema []byte

// The types of events beside those that are told apart by their fields.
type (
	runEvent struct {
		Type    string           `json:"type"` // "run", the first
		Schema  string           `json:"schema"`
		Version string           `json:"version"`
		Started time.Time        `json:"started"`
		Plan    bufferbloat.Plan `json:"plan"`
	}
	phaseEvent struct {
		Type string        `json:"type"` // "phase_began", "phase_ended"
		At   time.Duration `json:"at_ns"`
		bufferbloat.Phase
	}
	flowEvent struct {
		Type      string                  `json:"type"` // "flow_began", "flow_ended"
		At        time.Duration           `json:"at_ns"`
		Flow      string                  `json:"flow"`
		Phase     string                  `json:"phase"`
		Direction load.Direction          `json:"direction"`
		Error     *string                 `json:"error"`
		Result    *bufferbloat.FlowResult `json:"result,omitempty"` // "flow_ended" alone
	}
	findingEvent struct {
		Type string        `json:"type"` // "finding"
		At   time.Duration `json:"at_ns"`
		bufferbloat.Finding
	}
	progressEvent struct {
		Type    string        `json:"type"` // "progress"
		At      time.Duration `json:"at_ns"`
		Phase   string        `json:"phase"`
		Elapsed time.Duration `json:"elapsed_ns"`
		Length  time.Duration `json:"length_ns"`
		Left    time.Duration `json:"left_ns"`
		Over    bool          `json:"over"`
		Flows   flowsEvent    `json:"flows"`
		Rates   []rateEvent   `json:"rates"`
		Delays  []delayEvent  `json:"delays"`
	}
	flowsEvent struct {
		Planned int `json:"planned"`
		Begun   int `json:"begun"`
		Ended   int `json:"ended"`
		Failed  int `json:"failed"`
	}
	rateEvent struct {
		Direction load.Direction   `json:"direction"`
		Bytes     uint64           `json:"bytes"`
		Rate      *bitrate.Bitrate `json:"rate_bps"`
	}
	delayEvent struct {
		Series   string         `json:"series"`
		Kind     string         `json:"kind"`
		Answered int            `json:"answered"`
		Lost     int            `json:"lost"`
		Mean     *time.Duration `json:"mean_ns"`
		Highest  *time.Duration `json:"highest_ns"`
		Last     *time.Duration `json:"last_ns"`
	}
	droppedEvent struct {
		Type  string `json:"type"` // "dropped"
		Count int    `json:"count"`
	}
	endEvent struct {
		Type   string          `json:"type"` // "end", the last
		Status int             `json:"status"`
		Error  *string         `json:"error"`
		Result json.RawMessage `json:"result"` // null where nothing was measured
	}
)

// events writes what happens in a run, a line each. Its methods are called from one goroutine at a time.
type events struct {
	out     *outlet
	close   func() error
	version string
	dropped int
}

const (
	eventsWaiting  = 4096
	eventsPatience = 5 * time.Second
)

// openEvents opens the file of --events, or stdout for "-".
func (a *app) openEvents(path string) (*events, error) {
	e := &events{version: a.version, close: func() error { return nil }}
	w := a.stdout
	if path != "-" {
		file, err := program.OpenOutput(path)
		if err != nil {
			return nil, &usageError{fmt.Errorf("--events: %w", err)}
		}
		w, e.close = file, file.Close
	}
	e.out = openOutlet(w, eventsWaiting)
	return e, nil
}

func (e *events) begin(started time.Time, plan *bufferbloat.Plan) {
	e.put(runEvent{"run", eventsSchema, e.version, started.UTC().Round(0), *plan})
}

// put writes a line. Where the reader does not keep up, lines are left out, and how many is said before the next.
func (e *events) put(v any) {
	if e.dropped > 0 {
		if !e.out.offer(line(droppedEvent{"dropped", e.dropped})) {
			e.dropped++
			return
		}
		e.dropped = 0
	}
	if !e.out.offer(line(v)) {
		e.dropped++
	}
}

func line(v any) []byte {
	var b bytes.Buffer
	j := json.NewEncoder(&b)
	j.SetEscapeHTML(false)
	if err := j.Encode(v); err != nil { // nothing that is put can't be encoded, but a number that is none
		b.Reset()
		fmt.Fprintf(&b, "{\"type\":\"unwritable\",\"error\":%q}\n", err.Error())
	}
	return b.Bytes()
}

// event writes what happened.
func (e *events) event(ev bufferbloat.Event) {
	switch {
	case ev.Began != nil:
		e.put(phaseEvent{"phase_began", ev.At, *ev.Began})
	case ev.Ended != nil:
		e.put(phaseEvent{"phase_ended", ev.At, *ev.Ended})
	case ev.Flow != nil:
		e.put(flowEvent{"flow_began", ev.At, ev.Flow.Name, ev.Flow.Phase, ev.Flow.Direction, some(ev.Flow.Error, ev.Flow.Error != ""), nil})
	case ev.FlowOver != nil:
		f := ev.FlowOver
		e.put(flowEvent{"flow_ended", ev.At, f.Name, f.Phase, f.Direction, some(f.Error, f.Error != ""), &f.Result})
	case ev.Finding != nil:
		e.put(findingEvent{"finding", ev.At, *ev.Finding})
	case ev.Progress != nil:
		e.put(ofProgress(ev.At, ev.Progress))
	}
}

// some is v where it means something, and otherwise null.
func some[T any](v T, means bool) *T {
	if !means {
		return nil
	}
	return &v
}

func ofProgress(at time.Duration, p *bufferbloat.Progress) progressEvent {
	out := progressEvent{Type: "progress", At: at, Phase: p.Phase, Elapsed: p.Elapsed, Length: p.Length, Left: p.Left, Over: p.Finished,
		Flows: flowsEvent(p.Flows), Rates: []rateEvent{}, Delays: []delayEvent{}}
	for _, r := range p.Rates {
		out.Rates = append(out.Rates, rateEvent{r.Direction, r.Bytes, some(r.Rate, r.OK)})
	}
	for _, d := range p.Delays {
		any := d.Answered > 0
		out.Delays = append(out.Delays, delayEvent{d.Series, d.Kind, d.Answered, d.Lost, some(d.Mean, any), some(d.Highest, any), some(d.Last, any)})
	}
	return out
}

// end writes the last line, with the result of the run or why there is none, and closes the file.
func (e *events) end(result *report.Result, status int, runErr error) error {
	last := endEvent{Type: "end", Status: status}
	if runErr != nil {
		last.Error = some(runErr.Error(), true)
	}
	if result != nil {
		var b, compact bytes.Buffer
		if err := errors.Join(result.WriteJSON(&b), json.Compact(&compact, b.Bytes())); err != nil {
			return err
		}
		last.Result = compact.Bytes()
	}
	b := line(last)
	if e.dropped > 0 {
		b = append(line(droppedEvent{"dropped", e.dropped}), b...)
	}
	err := errors.Join(e.out.close(b, eventsPatience), e.close())
	if err != nil {
		return fmt.Errorf("--events: %w", err)
	}
	return nil
}
