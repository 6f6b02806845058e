package foreign

import (
	"regexp"
	"sync"
)

// pattern is a regular expression that is compiled when it is first asked: there are fifty of them here, most runs of a program need none, and
// compiling all takes a tenth of what it takes to start.
type pattern struct {
	compiled func() *regexp.Regexp
}

// newPattern returns the pattern of an expression, which must be a valid one.
func newPattern(expression string) pattern {
	return pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
}

func (p pattern) MatchString(s string) bool            { return p.compiled().MatchString(s) }
func (p pattern) FindStringSubmatch(s string) []string { return p.compiled().FindStringSubmatch(s) }
func (p pattern) ReplaceAllString(s, replacement string) string {
	return p.compiled().ReplaceAllString(s, replacement)
}
