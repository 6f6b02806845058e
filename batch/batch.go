// Package batch turns a file that describes many runs into a list of them in order, and carries the list out so that it can be interrupted and resumed.
//
// It measures nothing itself: whoever runs a batch passes in what one run is.
package batch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of a batch.
const (
	maxAxes  = 20
	maxRuns  = 10_000
	maxHooks = 100
	maxName  = 100
	maxText  = 4000
)

// Batch is what a file describes.
type Batch struct {
	Name        string
	Title       string
	Repetitions int
	Order       Order
	Seed        uint64
	Pause       time.Duration // between runs
	Common      Settings      // of all runs
	Axes        []Axis
	Skip        []map[string]string // combinations that are left out: axis -> value
	Before      []Hook              // each run
	After       []Hook
	BeforeAll   []Hook // once
	AfterAll    []Hook

	source string // hash of the file's text
}

// Order says in which order the runs come.
type Order string

// The orders. Each takes one repetition of all combinations after the other.
const (
	Random Order = "random" // each repetition is shuffled, by the seed
	ABBA   Order = "abba"   // every second repetition goes backwards, so that a steady drift hits all combinations alike
	Listed Order = "listed" // as in the file
)

// Settings are what a run is made of. Those of an axis's value go over those of the batch: a plan and hosts replace, the others are added.
type Settings struct {
	Plan  string
	Hosts []string
	Set   []Pair   // the plan's parameters; {repetition} and {run} in them stand for the numbers, as in Flags
	Flags []string // further flags of a run
	Env   []Pair   // for hooks
}

// Pair is a name and what it stands for.
type Pair struct{ Name, Value string }

// Axis is one dimension of the matrix.
type Axis struct {
	Name   string
	Values []Choice
}

// Choice is one value of an axis.
type Choice struct {
	Name string
	Settings
	Before, After []Hook // Before come after the batch's own, and After before them
}

// Hook is a shell command that is run around a run or around the batch.
type Hook struct {
	Command string
	// Essential says what its failure means: before a run, that the run is not made; after one, or around the batch, that the batch ends. The failure of
	// one that is not essential is recorded, no more.
	Essential bool
	Timeout   time.Duration
}

// Run is one run of a batch.
type Run struct {
	Number        int    // in the batch's order, from 1
	Repetition    int    // from 1
	Values        []Pair // axis and value, in the order of the file
	File          string // name of its recording
	Settings             // all of them together
	Before, After []Hook
}

// Runs returns the batch's runs in their order, which is the same each time.
func (b *Batch) Runs() ([]Run, error) {
	cells, err := b.cells()
	if err != nil {
		return nil, err
	}
	if n := len(cells) * b.Repetitions; n > maxRuns || n < 1 {
		return nil, fmt.Errorf("%d combinations %d times are %d runs: want 1 to %d", len(cells), b.Repetitions, n, maxRuns)
	}
	random := rand.New(rand.NewPCG(b.Seed, 0))
	var out []Run
	for repetition := 1; repetition <= b.Repetitions; repetition++ {
		order := slices.Clone(cells)
		switch {
		case b.Order == Random:
			random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		case b.Order == ABBA && repetition%2 == 0:
			slices.Reverse(order)
		}
		for _, cell := range order {
			out = append(out, b.run(cell, len(out)+1, repetition))
		}
	}
	digits := len(strconv.Itoa(len(out)))
	for i := range out {
		out[i].File = out[i].file(digits)
	}
	return out, nil
}

// cells returns the combinations of all axes that are not skipped, the first axis changing slowest.
func (b *Batch) cells() ([][]Choice, error) {
	cells := [][]Choice{nil}
	for _, axis := range b.Axes {
		var next [][]Choice
		for _, cell := range cells {
			for _, choice := range axis.Values {
				next = append(next, append(slices.Clone(cell), choice))
			}
		}
		if cells = next; len(cells) > maxRuns {
			return nil, fmt.Errorf("the matrix has more than %d combinations", maxRuns)
		}
	}
	return slices.DeleteFunc(cells, func(cell []Choice) bool {
		return slices.ContainsFunc(b.Skip, func(skip map[string]string) bool { return b.matches(cell, skip) })
	}), nil
}

func (b *Batch) matches(cell []Choice, skip map[string]string) bool {
	for i, axis := range b.Axes {
		if want, ok := skip[axis.Name]; ok && want != cell[i].Name {
			return false
		}
	}
	return true
}

// run puts a run together.
func (b *Batch) run(cell []Choice, number, repetition int) Run {
	r := Run{Number: number, Repetition: repetition, Settings: b.Common.with(Settings{}), Before: slices.Clone(b.Before)}
	for i, choice := range cell {
		r.Values = append(r.Values, Pair{b.Axes[i].Name, choice.Name})
		r.Settings = r.with(choice.Settings)
		r.Before = append(r.Before, choice.Before...)
		r.After = append(slices.Clone(choice.After), r.After...)
	}
	r.After = append(r.After, b.After...)
	numbers := strings.NewReplacer("{repetition}", strconv.Itoa(repetition), "{run}", strconv.Itoa(number))
	for i := range r.Flags {
		r.Flags[i] = numbers.Replace(r.Flags[i])
	}
	for i := range r.Set {
		r.Set[i].Value = numbers.Replace(r.Set[i].Value)
	}
	return r
}

// with returns s with o over it. It shares nothing with s.
func (s Settings) with(o Settings) Settings {
	if o.Plan == "" {
		o.Plan = s.Plan
	}
	if len(o.Hosts) == 0 {
		o.Hosts = slices.Clone(s.Hosts)
	}
	o.Set, o.Env = over(s.Set, o.Set), over(s.Env, o.Env)
	o.Flags = append(slices.Clone(s.Flags), o.Flags...)
	return o
}

// over returns the pairs of a, in which those of b take the place of those with their name, and the rest of b.
func over(a, b []Pair) []Pair {
	out := slices.Clone(a)
	for _, p := range b {
		if i := slices.IndexFunc(out, func(q Pair) bool { return q.Name == p.Name }); i >= 0 {
			out[i] = p
			continue
		}
		out = append(out, p)
	}
	return out
}

// Args returns the run as arguments of bloat run, without the file that keeps the recording.
func (r *Run) Args() []string {
	var args []string
	for _, h := range r.Hosts {
		args = append(args, "--host="+h)
	}
	for _, p := range r.Set {
		args = append(args, "--set="+p.Name+"="+p.Value)
	}
	args = append(args, r.Flags...)
	if strings.HasPrefix(r.Plan, "-") {
		args = append(args, "--")
	}
	return append(args, r.Plan)
}

// Label names the run's combination for people: "qdisc=fifo rate=20mbit, 2nd of 5" without the count.
func (r *Run) Label() string {
	if len(r.Values) == 0 {
		return r.Plan
	}
	var words []string
	for _, p := range r.Values {
		words = append(words, p.Name+"="+p.Value)
	}
	return strings.Join(words, " ")
}

// recordingEnd is the ending of recordings.
const recordingEnd = ".bloat.json.gz"

// file is the name of the run's recording: its number, so that names sort in the order of the runs, and its values.
func (r *Run) file(digits int) string {
	parts := []string{fmt.Sprintf("%0*d", digits, r.Number)}
	for _, p := range r.Values {
		parts = append(parts, fileWord(p.Value))
	}
	name := strings.Join(parts, "-")
	const most = 180
	return fmt.Sprintf("%s-r%d%s", name[:min(most, len(name))], r.Repetition, recordingEnd)
}

// fileWord is a value as a part of a file's name, on any file system.
func fileWord(s string) string {
	word := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '.':
			return c
		}
		return '_'
	}, s)
	const most = 40
	return word[:min(most, len(word))]
}

// Env returns the environment that tells a hook about the run: BLOAT_BATCH, BLOAT_RUN and BLOAT_RUNS (which one, of how many), BLOAT_REPETITION, BLOAT_PLAN,
// BLOAT_HOST (the first), BLOAT_FILE (where the recording will be, or is), BLOAT_<AXIS> for each axis, and what the file itself names.
func (b *Batch) env(r *Run, of int, file string) []string {
	env := []string{"BLOAT_BATCH=" + b.Name, "BLOAT_RUN=" + strconv.Itoa(r.Number), "BLOAT_RUNS=" + strconv.Itoa(of),
		"BLOAT_REPETITION=" + strconv.Itoa(r.Repetition), "BLOAT_PLAN=" + r.Plan, "BLOAT_FILE=" + file}
	host := ""
	if len(r.Hosts) > 0 {
		host = r.Hosts[0]
	}
	env = append(env, "BLOAT_HOST="+host)
	for _, p := range r.Values {
		env = append(env, "BLOAT_"+strings.ToUpper(p.Name)+"="+p.Value)
	}
	return append(env, pairs(r.Env)...)
}

// envAll is env for hooks around the batch.
func (b *Batch) envAll(of int) []string {
	return append([]string{"BLOAT_BATCH=" + b.Name, "BLOAT_RUNS=" + strconv.Itoa(of)}, pairs(b.Common.Env)...)
}

func pairs(list []Pair) []string {
	var out []string
	for _, p := range list {
		out = append(out, p.Name+"="+p.Value)
	}
	return out
}

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
