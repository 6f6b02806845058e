package batch

import (
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"bufferbloat/internal/yamlnode"
)

// Key is the one key at the top of a batch's file; it tells such a file from a plan's.
const Key = "batch"

// Is reports whether a file's text is that of a batch, by its top: whether it is a right one, Read says.
func Is(text []byte) bool {
	v, err := yamlnode.Parse("", text)
	if err != nil {
		return false
	}
	top, err := v.Pairs()
	return err == nil && slices.ContainsFunc(top, func(p yamlnode.Pair) bool { return p.Name == Key })
}

// Read reads a batch from its file's text. An error is a *yamlnode.Error with line and column, or several that errors.Join put together.
func Read(name string, text []byte) (*Batch, error) {
	v, err := yamlnode.Parse(name, text)
	if err != nil {
		return nil, err
	}
	top, err := v.Map(Key)
	if err != nil {
		return nil, err
	}
	b := &Batch{source: hash(text)}
	r := &reader{}
	r.batch(top[Key], b)
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	if _, err := b.Runs(); err != nil {
		return nil, top[Key].Errorf("%v", err)
	}
	return b, nil
}

// reader collects errors, so that what reads a part need not look after each step.
type reader struct{ errs []error }

func (r *reader) note(err error) {
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

var settingsKeys = []string{"plan", "hosts", "set", "flags", "env", "before", "after"}

func (r *reader) batch(v yamlnode.Value, b *Batch) {
	keys := append([]string{"name", "title", "repetitions", "order", "seed", "pause", "matrix", "skip", "before_all", "after_all"}, settingsKeys...)
	m, err := v.Map(keys...)
	if err == nil && !v.Present() {
		err = v.Errorf("want a batch: its name, a plan, ...")
	}
	if err != nil {
		r.note(err)
		return
	}
	b.Name = r.word(m["name"], v, fileName, "a name of letters, digits, dots, dashes and underscores")
	b.Title = r.text(m["title"])
	b.Repetitions = r.number(m["repetitions"], 1, 1, maxRuns)
	b.Seed = uint64(r.number(m["seed"], 1, 0, math.MaxInt32))
	b.Order = Random
	if m["order"].Present() {
		if b.Order = Order(r.text(m["order"])); b.Order != Random && b.Order != ABBA && b.Order != Listed {
			r.note(m["order"].Errorf("order %q: want random, abba or listed", b.Order))
		}
	}
	b.Pause, err = m["pause"].Duration(0, 0, 24*time.Hour)
	r.note(err)
	b.Common = r.settings(m)
	b.Before, b.After, b.BeforeAll, b.AfterAll = r.hooks(m["before"]), r.hooks(m["after"]), r.hooks(m["before_all"]), r.hooks(m["after_all"])
	axes, err := m["matrix"].Pairs()
	r.note(err)
	if len(axes) > maxAxes {
		r.note(m["matrix"].Errorf("%d axes: want at most %d", len(axes), maxAxes))
		return
	}
	names := map[string]bool{}
	for _, p := range axes {
		if names[strings.ToUpper(p.Name)] = true; !axisName.MatchString(p.Name) || slices.Contains(reserved, p.Name) {
			r.note(p.Key.Errorf("axis %q: want small letters, digits and underscores, a letter first, and none of %s", p.Name, strings.Join(reserved, ", ")))
		}
		b.Axes = append(b.Axes, r.axis(p.Name, p.Value))
	}
	r.skip(m["skip"], b)
	if b.Common.Plan == "" && !slices.ContainsFunc(b.Axes, func(a Axis) bool {
		return !slices.ContainsFunc(a.Values, func(c Choice) bool { return c.Plan == "" })
	}) {
		r.note(v.Errorf("no plan is named for some of the runs: want plan, for the batch or for each value of an axis"))
	}
}

// What names may be.
var (
	fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	axisName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	reserved = []string{"batch", "run", "runs", "repetition", "plan", "host", "file", "status"} // their variables are taken
)

func (r *reader) word(v, whole yamlnode.Value, form *regexp.Regexp, want string) string {
	if !v.Present() {
		r.note(whole.Errorf("no name: want %s", want))
		return ""
	}
	text := r.text(v)
	if len(text) > maxName || !form.MatchString(text) {
		r.note(v.Errorf("%q: want %s, of at most %d bytes", text, want, maxName))
	}
	return text
}

// text reads a text of one line.
func (r *reader) text(v yamlnode.Value) string {
	if !v.Present() {
		return ""
	}
	text, err := v.Text()
	r.note(err)
	if len(text) > maxText {
		r.note(v.Errorf("%d bytes: want at most %d", len(text), maxText))
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		r.note(v.Errorf("a text with control characters"))
	}
	return text
}

func (r *reader) number(v yamlnode.Value, absent, least, most int) int {
	n, err := v.Int(absent, least, most)
	r.note(err)
	return n
}

func (r *reader) settings(m map[string]yamlnode.Value) Settings {
	s := Settings{Plan: r.text(m["plan"]), Hosts: r.texts(m["hosts"]), Flags: r.texts(m["flags"])}
	for _, h := range s.Hosts {
		if h == "" {
			r.note(m["hosts"].Errorf("a host without a name"))
		}
	}
	s.Set, s.Env = r.pairs(m["set"]), r.pairs(m["env"])
	if i := slices.IndexFunc(s.Env, func(p Pair) bool { return !envName.MatchString(p.Name) || strings.HasPrefix(p.Name, "BLOAT_") }); i >= 0 {
		r.note(m["env"].Errorf("variable %q: want letters, digits and underscores, and not BLOAT_, which is the program's", s.Env[i].Name))
	}
	return s
}

func (r *reader) texts(v yamlnode.Value) []string {
	list, err := v.OneOrMore()
	r.note(err)
	var out []string
	for _, member := range list {
		if !member.Present() {
			r.note(member.Errorf("nothing: want a text"))
		}
		out = append(out, r.text(member))
	}
	return out
}

func (r *reader) pairs(v yamlnode.Value) []Pair {
	pairs, err := v.Pairs()
	r.note(err)
	var out []Pair
	for _, p := range pairs {
		value := ""
		if p.Value.IsList() { // as the plan's parameters are written: with commas
			value = strings.Join(r.texts(p.Value), ",")
		} else {
			value = r.text(p.Value)
		}
		if p.Name == "" || strings.ContainsAny(p.Name, "= \t\n") {
			r.note(p.Key.Errorf("%q is no name", p.Name))
		}
		out = append(out, Pair{p.Name, value})
	}
	return out
}

// axis reads the values of an axis: a list, or a mapping of "set", the plan's parameter that the values are of, and "values".
func (r *reader) axis(name string, v yamlnode.Value) Axis {
	a := Axis{Name: name}
	parameter := ""
	if v.IsMap() {
		m, err := v.Map("set", "values")
		r.note(err)
		if parameter = r.text(m["set"]); parameter == "" {
			r.note(v.Errorf("axis %s: want set, the parameter that the values are of, and values", name))
		}
		v = m["values"]
	}
	values, err := v.List()
	r.note(err)
	if len(values) == 0 {
		r.note(v.Errorf("axis %s has no values: want a list", name))
	}
	seen := map[string]bool{}
	for _, member := range values {
		c := r.choice(member)
		if seen[c.Name] {
			r.note(member.Errorf("axis %s: the value %q stands twice", name, c.Name))
		}
		seen[c.Name] = true
		if parameter != "" {
			c.Set = over(c.Set, []Pair{{parameter, c.Name}})
		}
		a.Values = append(a.Values, c)
	}
	return a
}

func (r *reader) choice(v yamlnode.Value) Choice {
	if !v.IsMap() {
		return Choice{Name: r.word(v, v, anyWord, "a value")}
	}
	m, err := v.Map(append([]string{"name"}, settingsKeys...)...)
	r.note(err)
	return Choice{Name: r.word(m["name"], v, anyWord, "a name for the value"), Settings: r.settings(m), Before: r.hooks(m["before"]), After: r.hooks(m["after"])}
}

var anyWord = regexp.MustCompile(`^.+$`)

func (r *reader) hooks(v yamlnode.Value) []Hook {
	list, err := v.OneOrMore()
	r.note(err)
	if len(list) > maxHooks {
		r.note(v.Errorf("%d commands: want at most %d", len(list), maxHooks))
		return nil
	}
	var out []Hook
	for _, member := range list {
		h := Hook{Essential: true, Timeout: time.Minute}
		command := member
		if member.IsMap() {
			m, err := member.Map("run", "essential", "timeout")
			r.note(err)
			command = m["run"]
			h.Essential, err = m["essential"].Bool(true)
			r.note(err)
			h.Timeout, err = m["timeout"].Duration(h.Timeout, time.Millisecond, time.Hour)
			r.note(err)
		}
		h.Command, err = command.Text()
		r.note(err)
		if strings.TrimSpace(h.Command) == "" || strings.ContainsRune(h.Command, 0) || len(h.Command) > maxText {
			r.note(member.Errorf("want a command for the shell of at most %d bytes", maxText))
		}
		out = append(out, h)
	}
	return out
}

// skip reads the combinations that are left out.
func (r *reader) skip(v yamlnode.Value, b *Batch) {
	list, err := v.List()
	r.note(err)
	for _, member := range list {
		pairs, err := member.Pairs()
		r.note(err)
		skip := map[string]string{}
		for _, p := range pairs {
			i := slices.IndexFunc(b.Axes, func(a Axis) bool { return a.Name == p.Name })
			value := r.text(p.Value)
			if i < 0 {
				r.note(p.Key.Errorf("skip: no axis %q", p.Name))
			} else if !slices.ContainsFunc(b.Axes[i].Values, func(c Choice) bool { return c.Name == value }) {
				r.note(p.Value.Errorf("skip: axis %s has no value %q", p.Name, value))
			}
			skip[p.Name] = value
		}
		if len(skip) == 0 && err == nil {
			r.note(member.Errorf("skip: want the values of some axes"))
		}
		b.Skip = append(b.Skip, skip)
	}
}
