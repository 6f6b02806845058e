package queue

import (
	"fmt"
	"slices"
	"strings"
)

// MaxText is the longest text, in bytes, that Parse reads.
const MaxText = 1024

// kind is a discipline that Parse knows.
type kind struct {
	name string
	read func(words []string) (Discipline, error)
}

// kinds returns all of them.
func kinds() []kind {
	return []kind{
		{"pfifo", read[PFIFO]}, {"bfifo", read[BFIFO]}, {"fifo", read[BFIFO]}, {"pfifo_fast", read[PFIFOFast]},
		{"sfq", read[SFQ]}, {"drr", read[DRR]}, {"qfq", read[QFQ]},
		{"red", read[RED]}, {"codel", read[CoDel]}, {"pie", read[PIE]},
		{"fq_codel", read[FQCoDel]}, {"fq_pie", read[FQPIE]}, {"cake", read[Cake]},
		{"tbf", read[TBF]}, {"htb", read[HTB]}, {"policer", read[Policer]}, {"codel_policer", read[CoDelPolicer]},
	}
}

// Names returns the names of all disciplines.
func Names() []string {
	var names []string
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

// Parse reads a discipline: its name, then parameters and their values, set apart by blanks, commas or "=", as in "fq_codel target 5ms
// limit 10240p" or "fq_codel,target=5ms". What follows "leaf" is the discipline below a shaper, a policer or a scheduler, as in "htb rate
// 18mbit leaf fq_codel target 10ms". An error names the value and the range that it may have.
func Parse(text string) (Discipline, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("queue discipline of %d bytes: want at most %d", len(text), MaxText)
	}
	return parseWords(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\r\n,=", r) }))
}

func parseWords(words []string) (Discipline, error) {
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	for _, k := range kinds() {
		if k.name == name {
			return k.read(words[1:])
		}
	}
	return nil, fmt.Errorf("queue discipline %q: want one of %s", name, strings.Join(Names(), ", "))
}

// read sets the fields of a T from words.
func read[T Discipline, P described[T]](words []string) (Discipline, error) {
	var o T
	name, parameters := P(&o).describe()
	seen := map[string]bool{}
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		p, ok := find(parameters, word)
		if !ok {
			return nil, fmt.Errorf("%s %q: want %s", name, word, strings.Join(usage(parameters), ", "))
		}
		if seen[p.name] {
			return nil, fmt.Errorf("%s: a second %s", name, p.name)
		}
		seen[p.name] = true
		if p.leaf != nil {
			below, err := parseWords(words)
			if err != nil {
				return nil, fmt.Errorf("%s leaf: %w", name, err)
			}
			*p.leaf, words = below, nil
			continue
		}
		if !p.alone {
			if len(words) == 0 {
				return nil, fmt.Errorf("%s %s: the value is missing", name, word)
			}
			word, words = words[0], words[1:]
		}
		if err := p.read(word); err != nil {
			return nil, fmt.Errorf("%s %w", name, err)
		}
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	return o, nil
}

func find(parameters []parameter, word string) (parameter, bool) {
	for _, p := range parameters {
		if p.name == word || slices.Contains(p.others, word) {
			return p, true
		}
	}
	return parameter{}, false
}

// usage names the parameters.
func usage(parameters []parameter) []string {
	var names []string
	for _, p := range parameters {
		names = append(append(names, p.name), p.others...)
	}
	return names
}
