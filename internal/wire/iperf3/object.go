package iperf3

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// object is a JSON object by its keys in lower case: the protocol does not tell upper from lower case.
type object struct {
	what   string
	fields map[string]json.RawMessage
}

// parseObject reads an object. A key twice, too deep a nesting, or anything but blanks and NULs behind the object is an error.
func parseObject(what string, b []byte) (object, error) {
	b = bytes.TrimRight(b, "\x00\n\r\t ")
	if at, ok := tooDeep(b); ok {
		return object{}, &FormatError{what, at, fmt.Sprintf("nested more than %d deep", maxNesting)}
	}
	d := json.NewDecoder(bytes.NewReader(b))
	bad := func(err error) (object, error) {
		at := int(d.InputOffset())
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			at = int(syntax.Offset)
		}
		return object{}, &FormatError{what, at, err.Error()}
	}
	if t, err := d.Token(); err != nil {
		return bad(err)
	} else if t != json.Delim('{') {
		return bad(errors.New("no object"))
	}
	o := object{what, map[string]json.RawMessage{}}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return bad(err)
		}
		key := strings.ToLower(t.(string)) // a key is a string, or Token has failed
		if _, twice := o.fields[key]; twice {
			return bad(fmt.Errorf("key %.40q twice", key))
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return bad(err)
		}
		o.fields[key] = value
	}
	if _, err := d.Token(); err != nil {
		return bad(err)
	}
	if int(d.InputOffset()) != len(b) {
		return bad(errors.New("more behind the object"))
	}
	return o, nil
}

// tooDeep returns the offset of the bracket that nests deeper than maxNesting, before anything recurses into it.
func tooDeep(b []byte) (int, bool) {
	depth, text := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return i, true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return 0, false
}

// get returns a value, or false where the key is missing or null.
func (o object) get(key string) (json.RawMessage, bool) {
	v, ok := o.fields[key]
	return v, ok && !bytes.Equal(v, []byte("null"))
}

// integer returns a number, or else where the key is missing or null.
func (o object) integer(key string, otherwise int64) (int64, error) {
	v, ok := o.get(key)
	if !ok {
		return otherwise, nil
	}
	n, ok := parseInteger(string(v))
	if !ok {
		return 0, o.bad(key, v, "a number")
	}
	return n, nil
}

// within is integer with bounds, for what must not be taken for something else when it is out of range.
func (o object) within(key string, otherwise, least, most int64) (int64, error) {
	n, err := o.integer(key, otherwise)
	if err == nil && (n < least || n > most) {
		err = &FormatError{o.what, 0, fmt.Sprintf("%q is %d, want %d to %d", key, n, least, most)}
	}
	return n, err
}

func (o object) bad(key string, v json.RawMessage, want string) error {
	return &FormatError{o.what, 0, fmt.Sprintf("%q is %.40q, want %s", key, v, want)}
}

// parseInteger reads a number as the versions of iperf3 write them: signed; or, where a negative one was printed as unsigned, above
// 2^63; or as a double.
func parseInteger(s string) (int64, bool) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, true
	}
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return int64(n), true
	}
	if s == "" || s[0] != '-' && (s[0] < '0' || s[0] > '9') {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange), math.IsNaN(f):
		return 0, false
	case f >= 1<<63:
		return -1, true
	case f < -1<<63:
		return 0, false
	}
	return int64(f), true
}

// number returns a finite double; null and a missing key are 0.
func (o object) number(key string) (float64, error) {
	v, ok := o.get(key)
	if !ok {
		return 0, nil
	}
	var f float64
	if err := json.Unmarshal(v, &f); err != nil {
		return 0, o.bad(key, v, "a number")
	}
	return f, nil
}

// flag reports whether a flag is set. To every version of iperf3 a boolean of either value sets it, and so does a number but 0.
func (o object) flag(key string) bool {
	v, ok := o.get(key)
	return ok && string(v) != "0"
}

// text returns a string, "" where it is missing.
func (o object) text(key string) (string, error) {
	v, ok := o.get(key)
	if !ok {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		return "", o.bad(key, v, "a string")
	}
	return s, nil
}

// writer appends an object's text.
type writer struct {
	b []byte
}

func (w *writer) key(name string) {
	if len(w.b) == 0 || w.b[len(w.b)-1] == '{' || w.b[len(w.b)-1] == '[' {
		w.b = append(w.b, '"')
	} else {
		w.b = append(w.b, ',', '"')
	}
	w.b = append(append(w.b, name...), '"', ':')
}

func (w *writer) integer(name string, v int64) {
	w.key(name)
	w.b = strconv.AppendInt(w.b, v, 10)
}

// positive writes a number unless it is 0, which stands for a missing key.
func (w *writer) positive(name string, v int64) {
	if v != 0 {
		w.integer(name, v)
	}
}

// flag writes true, or nothing: a flag that is false is left out, since false would set it.
func (w *writer) flag(name string, set bool) {
	if set {
		w.key(name)
		w.b = append(w.b, "true"...)
	}
}

// one writes a flag in the form of a number.
func (w *writer) one(name string, set bool) {
	if set {
		w.integer(name, 1)
	}
}

func (w *writer) number(name string, v float64) {
	w.key(name)
	w.b = strconv.AppendFloat(w.b, v, 'g', 15, 64)
}

func (w *writer) text(name, v string) {
	if v == "" {
		return
	}
	w.key(name)
	s, _ := json.Marshal(v) // a string always can be
	w.b = append(w.b, s...)
}
