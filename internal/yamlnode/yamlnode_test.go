package yamlnode

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestErrorsNameLineAndColumn(t *testing.T) {
	t.Parallel()
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 9; i++ {
		at := string(rune('0' + i))
		before := "*a" + string(rune('0'+i-1))
		bomb.WriteString("a" + at + ": &a" + at + " [" + strings.Repeat(before+", ", 9) + before + "]\n")
	}
	for name, tt := range map[string]struct{ text, want string }{
		"an unknown key":      {"name: x\nrepetition: 3\n", `f.yaml:2:1: unknown key "repetition": want one of name, n, list, wait, on`},
		"a key twice":         {"name: x\nname: y\n", `f.yaml:2:1: the key "name" stands twice`},
		"a word for a number": {"n: many\n", "f.yaml:1:4: want a whole number from 1 to 9"},
		"a number too high":   {"n: 10\n", "f.yaml:1:4: want a whole number"},
		"a map for a text":    {"name: {a: b}\n", "f.yaml:1:7: want a text"},
		"a null for a text":   {"name:\n", "f.yaml:1:6: want a text"},
		"a text for a list":   {"list: a\n", "f.yaml:1:7: want a list"},
		"a time too long":     {"wait: 2h\n", "f.yaml:1:7: want a time from 1s to 1h0m0s"},
		"a maybe":             {"on: maybe\n", "f.yaml:1:5: want true or false"},
		"a list that is open": {"name: [a\nn: 1\n", "f.yaml:2:2: did not find expected ',' or ']' while parsing a flow sequence from line 1 on"},
		"a list left open":    {"n: 1\nname: [a\n", "f.yaml:3:1: did not find expected ',' or ']' while parsing a flow sequence from line 2 on"},
		"a quote left open":   {"n: 1\nname: \"a\n", "f.yaml:3:1: found unexpected end of stream"},
		"a tab to indent":     {"n: 1\nlist:\n\t- a\n", "f.yaml:3:1: found character"},
		"a key too far right": {"n: 1\nname: a\n  wait: 1\n", "f.yaml:3:7: mapping values"},
		"a key too far left":  {"list:\n    - a\n  - b\n", "f.yaml:3:3: did not find expected key"},
		"no such alias":       {"n: 1\nname: *nobody\n", "f.yaml:2:7: unknown anchor"},
		"no such character":   {"n: 1\nname: @a\n", "f.yaml:2:7: found character"},
		"a control character": {"n: 1\nname: \u00e4\x01b\n", "f.yaml:2:8: control characters"},
		"no UTF-8":            {"n: 1\nname: a\xffb\n", "f.yaml:2:8: invalid leading UTF-8"},
		"on its first line":   {"name: ]\n", "f.yaml:1:7: did not find"},
		"two documents":       {"name: a\n---\nname: b\n", "f.yaml:2:1: a second document"},
		"nothing":             {"# only a comment\n", "f.yaml: it is empty"},
		"a merge key":         {"name: a\n<<: {n: 1}\n", "f.yaml:2:1: merge keys"},
		"a tag of one's own":  {"name: !ruby/object x\n", "tag"},
		"binary":              {"name: !!binary aGk=\n", "tag"},
		"a key that is a map": {"{a: b}: c\n", "no word"},
		"a list at the top":   {"- a\n", "f.yaml:1:1: want keys"},
		"a bomb of aliases":   {bomb.String(), "more than 100000 values"},
		"an endless alias":    {"a: &a [*a]\n", "f.yaml:"},
		"too deep":            {strings.Repeat("[", 200) + strings.Repeat("]", 200), "levels"},
	} {
		err := readAll(tt.text)
		var e *Error
		if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.As(err, &e) {
			t.Errorf("%s: %v, want an *Error with %q", name, err, tt.want)
		}
	}
}

func readAll(text string) error {
	v, err := Parse("f.yaml", []byte(text))
	if err != nil {
		return err
	}
	m, err := v.Map("name", "n", "list", "wait", "on")
	if err != nil {
		return err
	}
	_, err = m["name"].Text()
	_, err2 := m["n"].Int(1, 1, 9)
	_, err3 := m["list"].List()
	_, err4 := m["wait"].Duration(0, time.Second, time.Hour)
	_, err5 := m["on"].Bool(false)
	return errors.Join(err, err2, err3, err4, err5)
}

func TestScalarsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	v, err := Parse("f.yaml", []byte("&x a: 0x1F\nb: [1e3, yes, 2026-01-02, \"\"]\nwait: 1.5\n\"on\": yes\nc: &c one\nd: [*c, *c]\n"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := v.Map("a", "b", "wait", "on", "c", "d", "e")
	if err != nil {
		t.Fatal(err)
	}
	if a, err := m["a"].Text(); err != nil || a != "0x1F" {
		t.Errorf("a is %q, %v", a, err)
	}
	if b, err := m["b"].Texts(); err != nil || strings.Join(b, "|") != "1e3|yes|2026-01-02|" {
		t.Errorf("b is %q, %v", b, err)
	}
	if d, err := m["d"].Texts(); err != nil || strings.Join(d, "|") != "one|one" {
		t.Errorf("d is %q, %v", d, err)
	}
	if w, err := m["wait"].Duration(0, 0, time.Hour); err != nil || w != 1500*time.Millisecond {
		t.Errorf("wait is %v, %v", w, err)
	}
	if on, err := m["on"].Bool(false); err != nil || !on {
		t.Errorf("on is %v, %v", on, err)
	}
	if n, err := m["e"].Int(7, 1, 9); err != nil || n != 7 {
		t.Errorf("an absent number is %d, %v, want its default", n, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"name: x\nn: 3\n", "a: &a [*a]\n", "- [a, {b: c}]\n", "? [a]\n: b\n", "a: !!binary aGk=\n", "%YAML 1.1\n---\na: b\n...\n", "<<: *a\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := Parse("f.yaml", []byte(text))
		if err != nil {
			if e := (*Error)(nil); !errors.As(err, &e) || e.Line < 0 || e.Line > strings.Count(text, "\n")+strings.Count(text, "\r")+len(text)+2 ||
				(e.Line > 0) != (e.Column > 0) || e.Column > utf8.RuneCountInString(text)+2 {
				t.Errorf("%q: %v is no *Error with a line and a column of the text", text, err)
			}
			return
		}
		visit(t, v)
	})
}

// visit reads everything in every way: nothing may panic, and every part is of exactly one kind.
func visit(t *testing.T, v Value) {
	_, _ = v.Int(0, 0, 9)
	_, _ = v.Bool(false)
	_, _ = v.Duration(0, 0, time.Hour)
	_, textErr := v.Text()
	pairs, _ := v.Pairs()
	for _, p := range pairs {
		visit(t, p.Value)
	}
	list, _ := v.List()
	for _, member := range list {
		visit(t, member)
	}
	if textErr == nil && (v.IsMap() || v.IsList()) || v.IsMap() && v.IsList() {
		t.Errorf("%+v is of two kinds", v.node)
	}
}
