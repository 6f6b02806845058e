package report

import "github.com/clipperhouse/displaywidth"

// width returns how many columns of a terminal s takes: the sum of its signs', as wcwidth has it. That a terminal may draw several as one picture is left
// out, because the tables for that are larger than those of all widths, and programs for routers have this package, too.
func width(s string) (n int) {
	for _, r := range s {
		n += displaywidth.Rune(r)
	}
	return n
}
