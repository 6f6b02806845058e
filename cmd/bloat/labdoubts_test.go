package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
)

// lateBy is a link whose latest packets in a hundred were that late; 0 is one that delivered nothing.
type lateBy time.Duration

func (l lateBy) Quantile(p float64) (time.Duration, bool) {
	return time.Duration(float64(l) * p / 0.99), l > 0
}

func TestALabSaysWhatIsNotItsLinks(t *testing.T) {
	for _, c := range []struct {
		claim string
		late  time.Duration
		drops uint64
		want  []string
	}{
		{"a lab in time is not doubted", time.Millisecond, 0, nil},
		{"virtual time is never late", 0, 0, nil},
		{"a late link is named", 9900 * time.Microsecond, 0, []string{"1% of its packets more than 9.9ms late, and one 10ms"}},
		{"and so is loss at a socket", 0, 3, []string{"3 datagrams"}},
	} {
		got := labDoubts(lateBy(c.late), c.drops)
		if len(got) != len(c.want) || slices.ContainsFunc(got, func(f bufferbloat.Finding) bool {
			return f.Severity != bufferbloat.Weakens || !strings.Contains(f.Text, c.want[0])
		}) {
			t.Errorf("%s: got %+v, want %q", c.claim, got, c.want)
		}
	}
}
