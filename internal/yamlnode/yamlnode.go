// Package yamlnode reads YAML files that people write by hand: strictly, and with line and column in every error.
//
// What a reader would not expect of data is refused: several documents, keys that stand twice, merge keys, tags of one's own, and aliases that
// unfold to more than a file's worth.
package yamlnode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Limits of a file.
const (
	MaxBytes = 1 << 20
	maxNodes = 100_000 // visited, those behind aliases each time
	maxDepth = 100
)

// Error is what is wrong with a file, and where.
type Error struct {
	File         string
	Line, Column int // from 1; 0 where not known
	Text         string
}

func (e *Error) Error() string {
	switch {
	case e.Line == 0:
		return fmt.Sprintf("%s: %s", e.File, e.Text)
	case e.Column == 0:
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// Value is a part of a file. The zero Value is a part that is not there; it reads as the empty value of each kind.
type Value struct {
	file string
	node *yaml.Node // nil where there is none; never an alias
}

// Parse reads a file's text. name stands in the errors, which are *Error.
func Parse(name string, b []byte) (Value, error) {
	bad := func(format string, args ...any) (Value, error) {
		return Value{}, &Error{File: name, Text: fmt.Sprintf(format, args...)}
	}
	if len(b) > MaxBytes {
		return bad("%d bytes: want at most %d", len(b), MaxBytes)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return bad("it is empty")
		}
		return Value{}, syntax(name, b, decoder, err)
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err == nil {
		return Value{}, &Error{File: name, Line: second.Line, Column: second.Column, Text: "a second document begins: want one"}
	} else if !errors.Is(err, io.EOF) {
		return Value{}, syntax(name, b, decoder, err)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return bad("it is empty")
	}
	w := walker{file: name, left: maxNodes}
	if err := w.check(doc.Content[0], 0); err != nil {
		return Value{}, err
	}
	return value(name, doc.Content[0]), nil
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)$`)

// syntax gives an error of the YAML reader our form. The reader's own text names a line alone, and often that on which the list or mapping begins.
func syntax(name string, text []byte, d *yaml.Decoder, err error) error {
	e := &Error{File: name, Text: err.Error()}
	if m := yamlLine.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " ")); m != nil {
		e.Line, _ = strconv.Atoi(m[1]) // "" is 0: not known
		e.Text = m[2]
	}
	if line, column, ok := stopped(d, text); ok {
		e.Line, e.Column = line, column
	}
	parser := field(reflect.ValueOf(d), "parser", "parser")
	if context, began := field(parser, "context"), field(parser, "context_mark", "line"); context.Kind() == reflect.String && context.Len() > 0 && began.CanInt() {
		e.Text += fmt.Sprintf(" %s from line %d on", context, began.Int()+1)
	}
	return e
}

// stopped returns where the decoder met what it could not read, from 1. The decoder knows and has no way to say: this looks at its fields, and returns
// false where they are not what they were when this was written.
func stopped(d *yaml.Decoder, text []byte) (line, column int, ok bool) {
	inner := field(reflect.ValueOf(d), "parser")
	parser := field(inner, "parser")
	mark := field(inner, "event", "start_mark") // of what was read well and means nothing, as an alias of nothing
	if field(parser, "problem").String() != "" {
		mark = field(parser, "problem_mark")
	}
	at := [3]int{}
	for i, v := range []reflect.Value{field(mark, "line"), field(mark, "column"), field(parser, "problem_offset")} {
		if !v.CanInt() {
			return 0, 0, false
		}
		at[i] = int(v.Int())
	}
	if offset := at[2]; at[0] == 0 && at[1] == 0 && offset > 0 && offset <= len(text) { // no character at all, so that there is no mark of it
		before := text[:offset]
		begin := bytes.LastIndexByte(before, '\n') + 1
		return bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(before[begin:]) + 1, true
	}
	return at[0] + 1, at[1] + 1, true
}

// field returns a field of a struct, or of what a pointer leads to, by the names on the way; the zero Value where there is none.
func field(v reflect.Value, names ...string) reflect.Value {
	for _, name := range names {
		if v = reflect.Indirect(v); v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		v = v.FieldByName(name)
	}
	return v
}

// walker looks at every node before anything is read.
type walker struct {
	file string
	left int
}

func (w *walker) check(n *yaml.Node, depth int) error {
	at := Value{w.file, n}
	if w.left--; w.left < 0 {
		return at.Errorf("more than %d values, those behind aliases each time", maxNodes)
	}
	if depth > maxDepth {
		return at.Errorf("more than %d levels", maxDepth)
	}
	if n.Kind == yaml.AliasNode {
		return w.check(n.Alias, depth+1)
	}
	if tag := n.ShortTag(); tag != "" && !slices.Contains([]string{"!!map", "!!seq", "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp", "!!merge"}, tag) {
		return at.Errorf("a value with the tag %s: want plain data", tag)
	}
	seen := map[string]bool{}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			key := Value{w.file, child}
			switch {
			case child.Kind != yaml.ScalarNode:
				return key.Errorf("a key that is no word")
			case child.ShortTag() == "!!merge":
				return key.Errorf("merge keys (<<) are not read: write the keys out")
			case seen[child.Value]:
				return key.Errorf("the key %q stands twice", child.Value)
			}
			seen[child.Value] = true
		}
		if err := w.check(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func value(file string, n *yaml.Node) Value {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return Value{file, n}
}

// Errorf returns an *Error at the value's place.
func (v Value) Errorf(format string, args ...any) error {
	e := &Error{File: v.file, Text: fmt.Sprintf(format, args...)}
	if v.node != nil {
		e.Line, e.Column = v.node.Line, v.node.Column
	}
	return e
}

// Present reports whether there is such a part, and not null.
func (v Value) Present() bool { return v.node != nil && v.node.ShortTag() != "!!null" }

// IsMap reports whether the value has keys.
func (v Value) IsMap() bool { return v.node != nil && v.node.Kind == yaml.MappingNode }

// IsList reports whether the value is a list.
func (v Value) IsList() bool { return v.node != nil && v.node.Kind == yaml.SequenceNode }

// Pair is a key and its value.
type Pair struct {
	Name       string
	Key, Value Value // Key is for errors about the name
}

// Pairs returns a mapping's keys and values in the order of the file.
func (v Value) Pairs() ([]Pair, error) {
	if !v.Present() {
		return nil, nil
	}
	if !v.IsMap() {
		return nil, v.Errorf("want keys with values, as in name: value")
	}
	var out []Pair
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		out = append(out, Pair{key.Value, Value{v.file, key}, value(v.file, v.node.Content[i+1])})
	}
	return out, nil
}

// Map returns the values of a mapping by their keys, which must be some of those named.
func (v Value) Map(keys ...string) (map[string]Value, error) {
	pairs, err := v.Pairs()
	if err != nil {
		return nil, err
	}
	out := map[string]Value{}
	for _, p := range pairs {
		if !slices.Contains(keys, p.Name) {
			return nil, p.Key.Errorf("unknown key %q: want one of %s", p.Name, strings.Join(keys, ", "))
		}
		out[p.Name] = p.Value
	}
	return out, nil
}

// List returns a list's members.
func (v Value) List() ([]Value, error) {
	if !v.Present() {
		return nil, nil
	}
	if !v.IsList() {
		return nil, v.Errorf("want a list")
	}
	var out []Value
	for _, n := range v.node.Content {
		out = append(out, value(v.file, n))
	}
	return out, nil
}

// OneOrMore is List, where a value that is no list stands for a list of one.
func (v Value) OneOrMore() ([]Value, error) {
	if !v.Present() || v.IsList() {
		return v.List()
	}
	return []Value{v}, nil
}

// Text returns a scalar as it is written, whatever it looks like: 10 and 1e1 are different texts.
func (v Value) Text() (string, error) {
	if v.node == nil {
		return "", nil
	}
	if v.node.Kind != yaml.ScalarNode || !v.Present() {
		return "", v.Errorf("want a text or a number")
	}
	return v.node.Value, nil
}

// Texts returns the texts of OneOrMore.
func (v Value) Texts() ([]string, error) {
	list, err := v.OneOrMore()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, member := range list {
		text, err := member.Text()
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, nil
}

// Int returns a whole number from least to most, or absent where there is none.
func (v Value) Int(absent, least, most int) (int, error) {
	if !v.Present() {
		return absent, nil
	}
	n, err := strconv.Atoi(v.node.Value)
	if v.node.Kind != yaml.ScalarNode || err != nil || n < least || n > most {
		return 0, v.Errorf("want a whole number from %d to %d", least, most)
	}
	return n, nil
}

// Bool returns true or false, or absent where there is none.
func (v Value) Bool(absent bool) (bool, error) {
	if !v.Present() {
		return absent, nil
	}
	if v.node.Kind == yaml.ScalarNode {
		switch strings.ToLower(v.node.Value) {
		case "true", "yes":
			return true, nil
		case "false", "no":
			return false, nil
		}
	}
	return false, v.Errorf("want true or false")
}

// Duration returns a time with its unit or in seconds, or absent where there is none.
func (v Value) Duration(absent, least, most time.Duration) (time.Duration, error) {
	if !v.Present() {
		return absent, nil
	}
	d, err := time.ParseDuration(v.node.Value)
	if f, numErr := strconv.ParseFloat(v.node.Value, 64); numErr == nil && f >= 0 && f <= most.Seconds() {
		d, err = time.Duration(math.Round(f*float64(time.Second))), nil
	}
	if v.node.Kind != yaml.ScalarNode || err != nil || d < least || d > most {
		return 0, v.Errorf("want a time from %v to %v with its unit, as in 500ms or 2m, or seconds", least, most)
	}
	return d, nil
}
