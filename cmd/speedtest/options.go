package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// option is one flag of a command line.
type option struct {
	short byte   // 0 for none
	long  string // without its dashes
	arg   string // what stands behind it, for people; "" for nothing
	// maybe says that the value may be missing: it is there where the next word begins with a digit, as the scripts have it.
	maybe bool
	help  string
	set   func(value string) error
}

// parse sets the options that words name, in their order, and refuses all else.
func parse(words []string, options []option) error {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		if word == "--" {
			break
		}
		if word == "-h" || word == "--help" {
			return errHelp
		}
		o, value, has, err := find(word, options)
		if err != nil {
			return err
		}
		switch {
		case o.arg == "" && has:
			return fmt.Errorf("%s takes no value", word)
		case o.arg == "" || has:
		case o.maybe && (len(words) == 0 || words[0] == "" || words[0][0] < '0' || words[0][0] > '9'):
		case len(words) == 0:
			return fmt.Errorf("%s wants a value: %s", word, o.arg)
		default:
			value, words = words[0], words[1:]
		}
		if err := o.set(value); err != nil {
			return fmt.Errorf("%s %q: %w", strings.SplitN(word, "=", 2)[0], value, err)
		}
	}
	if len(words) > 0 {
		return fmt.Errorf("unexpected argument %q", words[0])
	}
	return nil
}

// find returns the option that a word names, and the value in the same word: --time=30, -t30.
func find(word string, options []option) (o option, value string, has bool, err error) {
	if name, ok := strings.CutPrefix(word, "--"); ok {
		name, value, has = strings.Cut(name, "=")
		for _, o := range options {
			if o.long == name {
				return o, value, has, nil
			}
		}
	} else if len(word) > 1 && word[0] == '-' {
		for _, o := range options {
			if o.short == word[1] && (len(word) == 2 || o.arg != "") {
				return o, word[2:], len(word) > 2, nil
			}
		}
	}
	if strings.HasPrefix(word, "-") {
		return o, "", false, fmt.Errorf("unknown flag %q", word)
	}
	return o, "", false, fmt.Errorf("unexpected argument %q", word)
}

// usage prints the options.
func usage(w io.Writer, line string, options []option) {
	fmt.Fprintf(w, "usage: %s\n\n", line)
	for _, o := range options {
		name := "    "
		if o.short != 0 {
			name = "-" + string(rune(o.short)) + ", "
		}
		if name += "--" + o.long; o.maybe {
			name += " [" + o.arg + "]"
		} else if o.arg != "" {
			name += " " + o.arg
		}
		fmt.Fprintf(w, "  %-26s %s\n", name, o.help)
	}
}

// flag returns what sets b.
func flag(b *bool) func(string) error {
	return func(string) error { *b = true; return nil }
}

// text returns what sets s.
func text(s *string) func(string) error {
	return func(value string) error { *s = value; return nil }
}

// number returns what sets n to a number of least to most.
func number[T int | uint16](n *T, least, most int) func(string) error {
	return func(value string) error {
		v, err := strconv.Atoi(value)
		if err != nil || v < least || v > most {
			return fmt.Errorf("want %d to %d", least, most)
		}
		*n = T(v)
		return nil
	}
}

// seconds returns what sets d, of "30" or "500ms".
func seconds(d *time.Duration) func(string) error {
	return func(value string) error {
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			if math.IsNaN(v) || v < 0 || v > 3600 {
				return errors.New("want 0 to 3600 seconds")
			}
			*d = time.Duration(math.Round(v * float64(time.Second)))
			return nil
		}
		v, err := time.ParseDuration(value)
		if err != nil || v < 0 || v > time.Hour {
			return errors.New("want seconds (30) or a time with its unit (500ms, 2m)")
		}
		*d = v
		return nil
	}
}
