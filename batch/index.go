package batch

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "embed"

	"bufferbloat/internal/statefile"
)

// IndexSchema names the version of an index.
const IndexSchema = "bloat/batch/1"

// IndexFile is the name of the index in a batch's folder.
const IndexFile = "index.json"

const maxIndex = 64 << 20

//go:embed index.schema.json
var indexSchema []byte

// JSONSchema returns the published JSON Schema of an index.
func JSONSchema() []byte { return slices.Clone(indexSchema) }

// Index says what the runs of a batch are, in their order, and what became of each.
type Index struct {
	Schema      string     `json:"schema"`
	Version     string     `json:"version"` // of the program
	Batch       string     `json:"batch"`
	Title       string     `json:"title,omitempty"`
	Source      string     `json:"source_sha256"` // of the batch's file
	Given       []string   `json:"given"`         // further arguments of all runs, from the command line; passphrases are left out
	Order       Order      `json:"order"`
	Seed        uint64     `json:"seed"`
	Repetitions int        `json:"repetitions"`
	Axes        []AxisDoc  `json:"axes"`
	Started     time.Time  `json:"started"`         // wall clock
	Ended       *time.Time `json:"ended,omitempty"` // nil while runs are left
	Runs        []RunDoc   `json:"runs"`
	Hooks       []HookDoc  `json:"hooks,omitempty"` // around the batch, that did not succeed
}

// AxisDoc is an axis of the matrix and the names of its values.
type AxisDoc struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// RunDoc is one run.
type RunDoc struct {
	Number     int        `json:"number"`
	Repetition int        `json:"repetition"`
	Values     []ValueDoc `json:"values"`
	Args       []string   `json:"args"` // of bloat run
	File       string     `json:"file"` // of the recording, in the folder; it is there where State is done
	State      State      `json:"state"`
	Status     *int       `json:"status"` // exit status; nil where the run did not end
	Error      string     `json:"error,omitempty"`
	Attempts   int        `json:"attempts"` // how often it was begun
	Started    *time.Time `json:"started,omitempty"`
	Ended      *time.Time `json:"ended,omitempty"`
	Hooks      []HookDoc  `json:"hooks,omitempty"` // those that did not succeed
}

// ValueDoc is the value of an axis.
type ValueDoc struct {
	Axis  string `json:"axis"`
	Value string `json:"value"`
}

// HookDoc is a hook that did not succeed.
type HookDoc struct {
	When      string `json:"when"` // "before", "after", "before_all", "after_all"
	Command   string `json:"command"`
	Essential bool   `json:"essential"`
	Error     string `json:"error"`
}

// State is what became of a run.
type State string

// The states.
const (
	Planned State = "planned" // not begun, or interrupted
	Running State = "running" // begun, and in an index that nobody is at: broken off
	Done    State = "done"    // there is a whole recording
	Failed  State = "failed"  // there is none, and Error says why
)

// NewIndex returns the index of a batch of which nothing has been run. given are further arguments of all runs.
func (b *Batch) NewIndex(version string, given []string, started time.Time) (*Index, error) {
	runs, err := b.Runs()
	if err != nil {
		return nil, err
	}
	ix := &Index{Schema: IndexSchema, Version: version, Batch: b.Name, Title: b.Title, Source: b.source, Given: append([]string{}, given...), Order: b.Order,
		Seed: b.Seed, Repetitions: b.Repetitions, Axes: []AxisDoc{}, Started: started.UTC().Round(time.Second)}
	for _, a := range b.Axes {
		d := AxisDoc{Name: a.Name}
		for _, c := range a.Values {
			d.Values = append(d.Values, c.Name)
		}
		ix.Axes = append(ix.Axes, d)
	}
	for _, r := range runs {
		d := RunDoc{Number: r.Number, Repetition: r.Repetition, Values: []ValueDoc{}, Args: r.Args(), File: r.File, State: Planned}
		for _, p := range r.Values {
			d.Values = append(d.Values, ValueDoc{p.Name, p.Value})
		}
		ix.Runs = append(ix.Runs, d)
	}
	return ix, nil
}

// ReadIndex reads the index of a folder.
func ReadIndex(dir string) (*Index, error) {
	b, err := statefile.Read(filepath.Join(dir, IndexFile), maxIndex)
	if err != nil {
		return nil, err
	}
	ix, err := ParseIndex(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, IndexFile), err)
	}
	return ix, nil
}

// ParseIndex reads an index. Names of files that lead out of the folder are refused.
func ParseIndex(b []byte) (*Index, error) {
	var ix Index
	if err := json.Unmarshal(b, &ix); err != nil {
		return nil, err
	}
	if ix.Schema != IndexSchema {
		return nil, fmt.Errorf("schema %q: want %q", ix.Schema, IndexSchema)
	}
	if len(ix.Runs) < 1 || len(ix.Runs) > maxRuns {
		return nil, fmt.Errorf("%d runs: want 1 to %d", len(ix.Runs), maxRuns)
	}
	seen := map[string]bool{}
	for i := range ix.Runs {
		r := &ix.Runs[i]
		switch {
		case r.Number != i+1:
			return nil, fmt.Errorf("run %d has the number %d", i+1, r.Number)
		case !fileName.MatchString(r.File) || !strings.HasSuffix(r.File, recordingEnd) || seen[r.File]:
			return nil, fmt.Errorf("run %d has the file %q: want the name of a recording in the folder, and each once", r.Number, r.File)
		case !slices.Contains([]State{Planned, Running, Done, Failed}, r.State):
			return nil, fmt.Errorf("run %d has the state %q", r.Number, r.State)
		}
		seen[r.File] = true
	}
	return &ix, nil
}

// Fits returns an error where the index is not of b with the same further arguments: a folder holds the runs of one batch.
func (ix *Index) Fits(b *Batch, given []string) error {
	fresh, err := b.NewIndex(ix.Version, given, ix.Started)
	if err != nil {
		return err
	}
	switch {
	case ix.Batch != b.Name:
		return fmt.Errorf("the folder is of the batch %q, not of %q", ix.Batch, b.Name)
	case ix.Source != b.source:
		return errors.New("the batch's file has changed since the folder was begun; begin a new one, so that no two kinds of runs are mixed")
	case !slices.Equal(ix.Given, fresh.Given):
		return fmt.Errorf("the folder was begun with the arguments %q, and now there are %q: want the same", ix.Given, given)
	case !slices.EqualFunc(ix.Runs, fresh.Runs, func(a, b RunDoc) bool {
		return a.File == b.File && a.Repetition == b.Repetition && slices.Equal(a.Args, b.Args) && slices.Equal(a.Values, b.Values)
	}):
		return errors.New("the folder's runs are not those of this batch")
	}
	return nil
}

// Count returns how many runs are in a state.
func (ix *Index) Count(s State) (n int) {
	for i := range ix.Runs {
		if ix.Runs[i].State == s {
			n++
		}
	}
	return n
}

// Select returns the runs that are done and have all of the values that were asked for, as in "qdisc=fifo,rate=20mbit"; "" asks for all.
func (ix *Index) Select(values string) ([]RunDoc, error) {
	want, err := ix.wanted(values)
	if err != nil {
		return nil, err
	}
	var out []RunDoc
	for _, r := range ix.Runs {
		if r.State == Done && !slices.ContainsFunc(want, func(v ValueDoc) bool { return !slices.Contains(r.Values, v) }) {
			out = append(out, r)
		}
	}
	return out, nil
}

func (ix *Index) wanted(values string) ([]ValueDoc, error) {
	var out []ValueDoc
	for part := range strings.SplitSeq(values, ",") {
		if values == "" {
			break
		}
		axis, value, _ := strings.Cut(part, "=")
		i := slices.IndexFunc(ix.Axes, func(a AxisDoc) bool { return a.Name == axis })
		if i < 0 {
			return nil, fmt.Errorf("the batch %s has no axis %q: want AXIS=VALUE of %s", ix.Batch, axis, ix.axes())
		}
		if !slices.Contains(ix.Axes[i].Values, value) {
			return nil, fmt.Errorf("axis %s has no value %q: want one of %s", axis, value, strings.Join(ix.Axes[i].Values, ", "))
		}
		out = append(out, ValueDoc{axis, value})
	}
	return out, nil
}

func (ix *Index) axes() string {
	var names []string
	for _, a := range ix.Axes {
		names = append(names, a.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Label names the run's combination for people.
func (r *RunDoc) Label() string {
	var words []string
	for _, v := range r.Values {
		words = append(words, v.Axis+"="+v.Value)
	}
	return strings.Join(words, " ")
}
