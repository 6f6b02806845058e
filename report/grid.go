package report

import (
	"strings"
)

// grid draws a table whose first two columns are text and the others numbers. Its lines are of ASCII signs, and a sign whose width is the locale's
// choice counts as narrow. All rows have as many cells as head.
func grid(b *strings.Builder, head []string, rows [][]string) {
	widths := make([]int, len(head))
	fit := func(cells []string) {
		for i, c := range cells {
			widths[i] = max(widths[i], width(c))
		}
	}
	fit(head)
	for _, cells := range rows {
		fit(cells)
	}
	rule := func() {
		for _, w := range widths {
			b.WriteString("+" + strings.Repeat("-", w+2))
		}
		b.WriteString("+\n")
	}
	row := func(cells []string) {
		for i, c := range cells {
			pad := strings.Repeat(" ", widths[i]-width(c))
			if i < 2 {
				b.WriteString("| " + c + pad + " ")
			} else {
				b.WriteString("| " + pad + c + " ")
			}
		}
		b.WriteString("|\n")
	}
	rule()
	row(head)
	rule()
	for _, cells := range rows {
		row(cells)
	}
	rule()
}
