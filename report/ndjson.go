package report

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"
	"time"

	"bufferbloat"
	"bufferbloat/probe"
)

// SamplesSchema names the form of WriteNDJSON: one JSON object a line, each with its "type". Fields and types are added and never changed.
const SamplesSchema = "bloat/samples/1"

// ndjsonRun is the first line.
type ndjsonRun struct {
	Type    string  `json:"type"`
	Schema  string  `json:"schema"`
	Started *string `json:"started"`
	Host    *string `json:"host"`
	Source  *string `json:"source"`
	Status  int     `json:"status"`
	Stopped *string `json:"stopped"`
}

type ndjsonPhase struct {
	Type  string         `json:"type"`
	Name  string         `json:"phase"`
	Kind  string         `json:"kind"`
	Start *time.Duration `json:"start_ns"`
	End   *time.Duration `json:"end_ns"`
	From  *time.Duration `json:"from_ns"`
	To    *time.Duration `json:"to_ns"`
}

type ndjsonCPU struct {
	Type string        `json:"type"`
	At   time.Duration `json:"at_ns"`
	Busy []float64     `json:"busy"`
	Own  float64       `json:"own"`
}

type ndjsonFinding struct {
	Type string `json:"type"`
	bufferbloat.Finding
}

// WriteNDJSON prints the raw data of rec, of which r is the result: a line for the run, each phase, each probe, each reading of a stream's counter, each
// value of a further quantity, each sample of the CPUs and each finding. Times are offsets from the start of the run, null where the source does not tell them.
func (r *Result) WriteNDJSON(w io.Writer, rec *bufferbloat.Recording) error {
	b := bufio.NewWriterSize(w, 1<<16)
	lines := json.NewEncoder(b)
	lines.SetEscapeHTML(false)
	run := ndjsonRun{Type: "run", Schema: SamplesSchema, Host: text(r.Path.Host), Status: r.Status(), Stopped: text(stopText(r.Stopped, r.Truncated))}
	if r.Source != nil {
		run.Host, run.Source = text(r.Source.Host), text(r.Source.Program)
	}
	if !r.Started.IsZero() {
		run.Started = text(r.Started.Format(time.RFC3339Nano))
	}
	if err := lines.Encode(run); err != nil {
		return err
	}
	timed := true
	for i := range r.Phases {
		p := &r.Phases[i]
		known := p.Reached && !p.Untimed
		timed = timed && !p.Untimed
		if err := lines.Encode(ndjsonPhase{"phase", p.Name, string(p.Kind), value(p.Start, known), value(p.End, known), value(p.From, known), value(p.To, known)}); err != nil {
			return err
		}
	}
	var line []byte
	for i := range rec.Probes {
		s := &rec.Probes[i]
		head := `{"type":"probe","series":` + quoted(s.Name) + `,"kind":` + quoted(s.Kind) + `,"seq":`
		for sample := range s.All() {
			line = appendSample(append(line[:0], head...), &sample, timed)
			_, _ = b.Write(line) // errors are kept until Flush
		}
	}
	for i := range rec.Flows {
		f := &rec.Flows[i]
		head := `{"type":"stream","stream":` + quoted(f.Name) + `,"phase":` + quoted(f.Phase) + `,"direction":` + quoted(f.Direction.String()) + `,"at_ns":`
		for _, p := range f.Readings() {
			line = strconv.AppendInt(append(line[:0], head...), int64(p.At), 10)
			line = strconv.AppendUint(append(line, `,"bytes":`...), p.Bytes, 10)
			_, _ = b.Write(append(line, "}\n"...))
		}
	}
	for i := range rec.Others {
		q := &rec.Others[i]
		head := `{"type":"quantity","quantity":` + quoted(q.Name) + `,"unit":` + quotedOrNull(q.Unit) + `,"stream":` + quotedOrNull(q.Flow) + `,"at_ns":`
		at, values := q.Columns()
		for j := range min(len(at), len(values)) {
			line = strconv.AppendInt(append(line[:0], head...), int64(at[j]), 10)
			line = strconv.AppendFloat(append(line, `,"value":`...), values[j], 'g', -1, 64)
			_, _ = b.Write(append(line, "}\n"...))
		}
	}
	for _, c := range rec.CPU.Samples {
		if !sound(c, 0) {
			continue
		}
		if err := lines.Encode(ndjsonCPU{"cpu", c.At, c.Busy, c.Own}); err != nil {
			return err
		}
	}
	for _, f := range r.Findings {
		if err := lines.Encode(ndjsonFinding{"finding", f}); err != nil {
			return err
		}
	}
	return b.Flush()
}

// quoted is s as a JSON string.
func quoted(s string) string {
	b, _ := json.Marshal(s) // a string always can
	return string(b)
}

// quotedOrNull is quoted, and null for "".
func quotedOrNull(s string) string {
	if s == "" {
		return "null"
	}
	return quoted(s)
}

// appendSample appends what follows "seq".
func appendSample(b []byte, s *probe.Sample, timed bool) []byte {
	number := func(name string, d time.Duration, ok bool) {
		b = append(b, `,"`...)
		b = append(append(b, name...), `":`...)
		if ok {
			b = strconv.AppendInt(b, int64(d), 10)
		} else {
			b = append(b, "null"...)
		}
	}
	b = strconv.AppendUint(b, s.Seq, 10)
	b = append(append(append(b, `,"outcome":"`...), outcome(s).String()...), '"')
	number("due_ns", s.Due, timed)
	number("sent_ns", s.Sent, timed && s.Outcome != probe.Unsent)
	number("rtt_ns", s.RTT, outcome(s).HasRTT())
	number("up_ns", s.Up, s.HasOneWay)
	number("down_ns", s.Down, s.HasOneWay)
	return append(b, "}\n"...)
}
