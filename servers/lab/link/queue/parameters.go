package queue

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/servers/lab/link"
)

// parameter is one field of a discipline's options: how it is read, checked and written.
type parameter struct {
	name string
	// alone is a parameter without a value: its name, or one of others, stands for it.
	alone  bool
	others []string
	// read sets the field from the word that follows the name, or from the name itself where it stands alone.
	read func(word string) error
	// check fills in the default where the field is zero, and checks its range.
	check func() error
	// write returns the words that read reads, "" to say nothing.
	write func() string
	// leaf is set where what follows is another discipline, instead of read.
	leaf *Discipline
}

// described is a pointer to a discipline's options.
type described[T any] interface {
	*T
	// describe returns the discipline's name and the fields of the receiver.
	describe() (string, []parameter)
}

// complete returns o with its defaults, or an error that names the value and its range.
func complete[T any, P described[T]](o T) (T, error) {
	name, parameters := P(&o).describe()
	for _, p := range parameters {
		if err := p.check(); err != nil {
			return o, fmt.Errorf("%s %w", name, err)
		}
	}
	return o, nil
}

// write returns o as text, or its name alone where it is not valid.
func write[T any, P described[T]](o T) string {
	name, parameters := P(&o).describe()
	words := []string{name}
	for _, p := range parameters {
		if p.check() != nil {
			return name
		}
		if w := p.write(); w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

type ordered interface{ ~int | ~int64 | ~float64 }

// ranged is a field with a value from least to most; zero stands for otherwise.
func ranged[T ordered](name string, v *T, otherwise, least, most T, read func(string) (T, error), show func(T) string) parameter {
	within := func() bool { return *v >= least && *v <= most }
	return parameter{name: name,
		read: func(word string) error {
			got, err := read(word)
			if err == nil && (got < least || got > most) {
				err = errors.New("out of range")
			}
			if err != nil {
				return fmt.Errorf("%s %q: want %s to %s, as in %s", name, word, show(least), show(most), show(max(otherwise, least)))
			}
			*v = got
			return nil
		},
		check: func() error {
			if *v == 0 {
				*v = otherwise
			}
			switch {
			case within(), *v == otherwise && otherwise == 0:
				return nil
			case otherwise == 0:
				return fmt.Errorf("%s %s: want %s to %s", name, show(*v), show(least), show(most))
			}
			return fmt.Errorf("%s %s: want %s to %s, or 0 for %s", name, show(*v), show(least), show(most), show(otherwise))
		},
		write: func() string {
			if *v == 0 && least > 0 {
				return "" // not set, and there is no default
			}
			return name + " " + show(*v)
		}}
}

// count is a number of things.
func count(name string, v *int, otherwise, least, most int) parameter {
	return ranged(name, v, otherwise, least, most, strconv.Atoi, strconv.Itoa)
}

// packets is a number of packets, as in 1000p or 1000.
func packets(name string, v *int, otherwise, least, most int) parameter {
	return ranged(name, v, otherwise, least, most,
		func(s string) (int, error) { return strconv.Atoi(strings.TrimSuffix(s, "p")) }, func(n int) string { return strconv.Itoa(n) + "p" })
}

// size is a number of bytes, as in 1514, 256k or 32m; k and m are powers of 1024, as in tc.
func size(name string, v *int, otherwise, least, most int) parameter {
	return ranged(name, v, otherwise, least, most, parseSize, showSize)
}

func parseSize(s string) (int, error) {
	s = strings.TrimSuffix(strings.ToLower(s), "b")
	unit := 1
	for _, u := range []struct {
		suffix string
		unit   int
	}{{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}} {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			s, unit = n, u.unit
		}
	}
	n, err := strconv.Atoi(s)
	if err != nil || n > math.MaxInt32/unit*2 || n < -math.MaxInt32/unit*2 {
		return 0, errors.New("not a size")
	}
	return n * unit, nil
}

func showSize(n int) string {
	switch {
	case n != 0 && n%(1<<20) == 0:
		return strconv.Itoa(n>>20) + "m"
	case n != 0 && n%(1<<10) == 0:
		return strconv.Itoa(n>>10) + "k"
	}
	return strconv.Itoa(n)
}

// span is a time.
func span(name string, v *time.Duration, otherwise, least, most time.Duration) parameter {
	return ranged(name, v, otherwise, least, most, time.ParseDuration, time.Duration.String)
}

// speed is a rate.
func speed(name string, v *bitrate.Bitrate, otherwise bitrate.Bitrate) parameter {
	return ranged(name, v, otherwise, link.MinRate, link.MaxRate, bitrate.Parse, bitrate.Bitrate.String)
}

// required turns a parameter without a default into one that must be given.
func required[T ordered](p parameter, v *T, example string) parameter {
	check := p.check
	p.check = func() error {
		if *v == 0 {
			return fmt.Errorf("%s is missing: want one, as in %q", p.name, p.name+" "+example)
		}
		return check()
	}
	return p
}

// ratio is a share, or another number without a unit; "2%" is 0.02.
func ratio(name string, v *float64, otherwise, least, most float64) parameter {
	return ranged(name, v, otherwise, least, most, func(s string) (float64, error) {
		number, percent := strings.CutSuffix(s, "%")
		f, err := strconv.ParseFloat(number, 64)
		if percent {
			f /= 100
		}
		if math.IsNaN(f) {
			err = errors.New("not a number")
		}
		return f, err
	}, func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) })
}

// flag is a parameter that stands alone: yes sets v, no clears it.
func flag(yes, no string, v *bool) parameter {
	return parameter{name: yes, others: []string{no}, alone: true,
		read:  func(word string) error { *v = word == yes; return nil },
		check: func() error { return nil },
		write: func() string {
			if *v {
				return yes
			}
			return no
		}}
}

// choice is one of some names, of which the first is the default.
func choice(name string, v *string, names ...string) parameter {
	check := func() error {
		if *v == "" {
			*v = names[0]
		}
		for _, n := range names {
			if *v == n {
				return nil
			}
		}
		return fmt.Errorf("%s %q: want one of %s", name, *v, strings.Join(names, ", "))
	}
	return parameter{name: name, read: func(word string) error { *v = word; return check() }, check: check,
		write: func() string { return name + " " + *v }}
}

// depth is the limit of a FIFO: bytes, or a time at the rate of the link.
func depth(bytes *int, as *time.Duration, otherwise int) parameter {
	b := size("limit", bytes, otherwise, 1, MaxFIFO)
	d := span("limit", as, 0, time.Microsecond, link.MaxDelay)
	return parameter{name: "limit",
		read: func(word string) error {
			*bytes, *as = 0, 0
			if strings.HasSuffix(word, "s") {
				return d.read(word)
			}
			if err := b.read(word); err != nil {
				return fmt.Errorf("limit %q: want 1 to %d bytes, as in 256k, or a time up to %v, as in 250ms", word, MaxFIFO, link.MaxDelay)
			}
			return nil
		},
		check: func() error {
			if *as != 0 {
				return d.check()
			}
			return b.check()
		},
		write: func() string {
			if *as != 0 {
				return d.write()
			}
			return b.write()
		}}
}

// leaf is a discipline below another; accept says which may be there.
func leaf(v *Discipline, otherwise Discipline, accept func(Discipline) error) parameter {
	return parameter{name: "leaf", leaf: v,
		check: func() error {
			if *v == nil {
				*v = otherwise
			}
			if err := accept(*v); err != nil {
				return err
			}
			if err := (*v).Check(); err != nil {
				return fmt.Errorf("leaf: %w", err)
			}
			return nil
		},
		write: func() string { return "leaf " + (*v).String() }}
}
