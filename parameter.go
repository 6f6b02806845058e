package bufferbloat

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/dscp"
)

// Parameter is one value that a Definition leaves open.
type Parameter struct {
	Name    string
	Type    ParameterType
	Default string   // as text, in the form of Type; "" is the type's empty value: none, 0, no, an empty list
	Choices []string // the words that a Word may be; none where any will do
	Help    string   // one line
}

// ParameterType says what the text of a parameter means.
type ParameterType string

// The types. A list is written with commas.
const (
	Duration  ParameterType = "duration"  // 200ms, 1m30s; a bare number is seconds
	Count     ParameterType = "count"     // a whole number from 0 on
	Rate      ParameterType = "rate"      // 20mbit
	Mark      ParameterType = "mark"      // a code point by name or number: EF, 46
	Word      ParameterType = "word"      // any text
	YesNo     ParameterType = "yesno"     // yes or no
	Durations ParameterType = "durations" // a list, like those that follow
	Counts    ParameterType = "counts"
	Rates     ParameterType = "rates"
	Marks     ParameterType = "marks"
	Words     ParameterType = "words"
)

// ParameterTypes returns all types.
func ParameterTypes() []ParameterType {
	return []ParameterType{Duration, Count, Rate, Mark, Word, YesNo, Durations, Counts, Rates, Marks, Words}
}

// maxList bounds the members of a list, and maxWord the bytes of a word.
const (
	maxList = 1000
	maxWord = 1000
)

// Parse reads a value of the parameter's type: a time.Duration, an int, a bitrate.Bitrate, a dscp.CodePoint, a string, a bool, or a slice of one of
// the first five.
func (p *Parameter) Parse(text string) (any, error) {
	text = strings.TrimSpace(text)
	switch p.Type {
	case Duration:
		return orZero(text, parseDuration)
	case Count:
		return orZero(text, parseCount)
	case Rate:
		return orZero(text, bitrate.Parse)
	case Mark:
		return orZero(text, dscp.Parse)
	case Word:
		return orZero(text, p.word)
	case YesNo:
		return orZero(text, parseYesNo)
	case Durations:
		return parseList(text, parseDuration)
	case Counts:
		return parseList(text, parseCount)
	case Rates:
		return parseList(text, bitrate.Parse)
	case Marks:
		return parseList(text, dscp.Parse)
	case Words:
		return parseList(text, p.word)
	}
	return nil, fmt.Errorf("unknown type %q: want one of %v", p.Type, ParameterTypes())
}

// orZero is the type's empty value for an empty text.
func orZero[T any](text string, parse func(string) (T, error)) (T, error) {
	if text == "" {
		var zero T
		return zero, nil
	}
	return parse(text)
}

func parseList[T any](text string, parse func(string) (T, error)) ([]T, error) {
	if text == "" {
		return nil, nil
	}
	parts := strings.Split(text, ",")
	if len(parts) > maxList {
		return nil, fmt.Errorf("a list of %d: want at most %d", len(parts), maxList)
	}
	out := make([]T, len(parts))
	for i, part := range parts {
		v, err := parse(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

// parseDuration reads a time with its unit, or in seconds.
func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if v, numErr := strconv.ParseFloat(text, 64); numErr == nil && v >= 0 && v <= MaxLength.Seconds() {
		d, err = time.Duration(math.Round(v*float64(time.Second))), nil
	}
	if err != nil || d < 0 || d > MaxLength {
		return 0, fmt.Errorf("%q: want a time of 0 to %v with its unit, as in 200ms, or seconds", text, MaxLength)
	}
	return d, nil
}

func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	const most = 1 << 30
	if err != nil || n < 0 || n > most {
		return 0, fmt.Errorf("%q: want a whole number from 0 to %d", text, most)
	}
	return n, nil
}

func parseYesNo(text string) (bool, error) {
	switch strings.ToLower(text) {
	case "yes", "true":
		return true, nil
	case "no", "false":
		return false, nil
	}
	return false, fmt.Errorf("%q: want yes or no", text)
}

func (p *Parameter) word(text string) (string, error) {
	if len(text) > maxWord {
		return "", fmt.Errorf("%d bytes: want at most %d", len(text), maxWord)
	}
	if len(p.Choices) > 0 && !slices.Contains(p.Choices, text) {
		return "", fmt.Errorf("%q: want one of %s", text, strings.Join(p.Choices, ", "))
	}
	return text, nil
}

// parse reads a value of the parameter from text.
func (p *Parameter) parse(text string) (any, error) {
	v, err := p.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("parameter %s: %w", p.Name, err)
	}
	return v, nil
}

// Values are the parameters of a Definition as given or by default, checked.
type Values struct {
	servers []Server
	text    map[string]string
	value   map[string]any
}

// Servers returns the servers that were given, the plan's own first.
func (v *Values) Servers() []Server { return v.servers }

// Text returns a parameter as it was written, or false where the definition has none of that name.
func (v *Values) Text(name string) (string, bool) {
	text, ok := v.text[name]
	return text, ok
}

// get returns a parameter. A name or type that the definition does not declare is a mistake in its shape, which every test of the catalogue would
// meet.
func get[T any](v *Values, name string) T {
	got, ok := v.value[name].(T)
	if !ok {
		panic(fmt.Sprintf("parameter %q is not declared as %T", name, got))
	}
	return got
}

// nth returns the i-th of a list, or the zero value beyond its end.
func nth[T any](list []T, i int) (v T) {
	if i < len(list) {
		return list[i]
	}
	return v
}
