package flent

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// What this program adds to a file that it writes: one key among the metadata, which flent takes for a setting that it does not know, and fields of
// raw samples, which it skips.
const (
	ownKey     = "X_BLOAT"
	ownSchema  = "bloat/flent/1"
	dueKey     = "x_due"     // when the probe was due, s since 1970; left out where it left on time
	outcomeKey = "x_outcome" // where it is neither received nor plainly lost
	stampKey   = "x_stamp"   // who stamped the reply
)

// own is all of a Recording that a data file has no place for.
type own struct {
	Schema   string                `json:"schema"`
	Version  string                `json:"version"`
	Started  time.Time             `json:"started"`
	Ended    time.Duration         `json:"ended_ns"`
	Stopped  string                `json:"stopped,omitempty"`
	Cut      bool                  `json:"truncated,omitempty"`
	Plan     bufferbloat.Plan      `json:"plan"`
	Path     bufferbloat.Path      `json:"path"`
	Client   bufferbloat.HostFacts `json:"client"`
	Source   *bufferbloat.Source   `json:"source,omitempty"`
	Phases   []bufferbloat.Phase   `json:"phases"`
	Findings []bufferbloat.Finding `json:"findings"`
	Probes   []ownProbe            `json:"probes"`
	Flows    []ownFlow             `json:"flows"`
	Others   []ownOther            `json:"others,omitempty"`
	CPU      ownCPU                `json:"cpu"`
}

type ownProbe struct {
	Series string                  `json:"series"` // in the file
	Probe  bufferbloat.ProbeSeries `json:"probe"`
	Tally  probe.Tally             `json:"tally"`
	Error  string                  `json:"error,omitempty"`
}

type ownFlow struct {
	Series string                 `json:"series"`
	Flow   bufferbloat.Flow       `json:"flow"`
	Result bufferbloat.FlowResult `json:"result"`
	Error  string                 `json:"error,omitempty"`
	First  uint64                 `json:"first_bytes"` // of the first point
}

type ownOther struct {
	Series    string `json:"series"`
	Name      string `json:"name"`
	Unit      string `json:"unit,omitempty"`
	Flow      string `json:"flow,omitempty"`
	Resampled bool   `json:"resampled,omitempty"`
}

type ownCPU struct {
	Why  string          `json:"unavailable,omitempty"`
	At   []time.Duration `json:"at_ns,omitempty"`
	Busy [][]float64     `json:"busy,omitempty"`
	Own  []float64       `json:"own,omitempty"`
}

// restore returns the recording of which this program made the file, or nil where it was made by a version with another schema. Raw samples are the
// file's.
func restore(f *file) (*bufferbloat.Recording, error) {
	var o own
	if err := json.Unmarshal(f.own, &o); err != nil {
		return nil, err
	}
	if o.Schema != ownSchema {
		return nil, nil
	}
	rec := &bufferbloat.Recording{Version: o.Version, Started: o.Started, Plan: o.Plan, Path: o.Path, Client: o.Client, Phases: o.Phases,
		Findings: o.Findings, Source: o.Source, Ended: o.Ended, Stopped: o.Stopped, Truncated: o.Cut}
	base := startOf(o.Started)
	for _, p := range o.Probes {
		s := f.byName[p.Series]
		if s == nil {
			return nil, fmt.Errorf("series %q is not in the file", p.Series)
		}
		p.Probe.Tally, p.Probe.Error, p.Probe.Samples = p.Tally, p.Error, samplesOf(s, base)
		rec.Probes = append(rec.Probes, p.Probe)
	}
	for _, fl := range o.Flows {
		fl.Flow.Result, fl.Flow.Error = fl.Result, fl.Error
		if s := f.byName[fl.Series]; s != nil {
			fl.Flow.Points = pointsOf(s, base, fl.First)
		}
		rec.Flows = append(rec.Flows, fl.Flow)
	}
	for _, q := range o.Others {
		out := bufferbloat.Quantity{Name: q.Name, Unit: q.Unit, Flow: q.Flow, Resampled: q.Resampled}
		if s := f.byName[q.Series]; s != nil {
			for _, r := range s.rows {
				if finite(r.val) {
					out.At, out.Values = append(out.At, since(r.at, base)), append(out.Values, r.val)
				}
			}
		}
		rec.Others = append(rec.Others, out)
	}
	if err := restoreCPU(&rec.CPU, &o.CPU); err != nil {
		return nil, err
	}
	return rec, rec.Check()
}

func restoreCPU(c *bufferbloat.CPUSeries, o *ownCPU) error {
	if len(o.At) != len(o.Busy) || len(o.At) != len(o.Own) {
		return fmt.Errorf("cpu: columns of %d, %d and %d values", len(o.At), len(o.Busy), len(o.Own))
	}
	c.Available, c.Why = o.Why == "", o.Why
	for i := range o.At {
		c.Samples = append(c.Samples, bufferbloat.CPUSample{At: o.At[i], Busy: o.Busy[i], Own: o.Own[i]})
	}
	return nil
}

// startOf is the time of x = 0 in a file of ours, ns since 1970; a run without a date begins in 1970.
func startOf(started time.Time) int64 {
	if started.Year() < 1971 || started.Year() > 2200 {
		return 0
	}
	return started.UnixNano()
}

// since puts a time on the run's base. A program that keeps times as floating point moves them by some 100 ns, which must not lead before the start.
func since(at, base int64) time.Duration {
	if d := time.Duration(at - base); d < -time.Microsecond || d > 0 {
		return d
	}
	return 0
}

func samplesOf(s *series, base int64) []probe.Sample {
	var out []probe.Sample
	for i := range s.rows {
		r := &s.rows[i]
		sample, ok := reply(r)
		if !ok || !(r.seq >= 0 && r.seq < 1<<53) {
			continue
		}
		if sample.Outcome == probe.Received && r.outcome == int8(probe.Late) {
			sample.Outcome = probe.Late
		}
		sample.Seq, sample.Sent = uint64(r.seq), since(int64(sample.Sent), base)
		sample.Due = sample.Sent
		if r.due != noTime {
			sample.Due = since(r.due, base)
		}
		if r.stamp > 0 {
			sample.Stamp = host.Stamp(r.stamp)
		}
		out = append(out, sample)
	}
	slices.SortStableFunc(out, func(a, b probe.Sample) int { return int(min(max(int64(a.Seq)-int64(b.Seq), -1), 1)) })
	return out
}

func pointsOf(s *series, base int64, first uint64) []bufferbloat.Point {
	var out []bufferbloat.Point
	for i := range s.rows {
		r := &s.rows[i]
		if !(r.val >= 0 && r.val < 1e9 && r.dur >= 0 && r.dur < maxSpan.Seconds()) {
			continue
		}
		at := since(r.at, base)
		if len(out) == 0 {
			out = append(out, bufferbloat.Point{At: max(0, at-time.Duration(math.Round(r.dur*1e9))), Bytes: first})
		}
		more := uint64(math.Round(r.val * 1e6 / 8 * r.dur))
		out = append(out, bufferbloat.Point{At: at, Bytes: out[len(out)-1].Bytes + more})
	}
	return out
}

// outcomeOf reads the name of an outcome.
func outcomeOf(s *scanner) int8 {
	if s.peek() != '"' {
		s.skip()
		return 0
	}
	name := string(s.str())
	for o := probe.Received; o <= probe.Invalid; o++ {
		if o.String() == name {
			return int8(o)
		}
	}
	return 0
}

// legal makes a name one that a series may have: no two colons in it, which would make it a part of another.
func legal(name string) string { return strings.ReplaceAll(name, "::", ": ") }
