package bufferbloat

import "testing"

func TestNumbersOfOneStreamAreNotTakenForThoseOfAll(t *testing.T) {
	for name, tt := range map[string]struct {
		texts []string
		want  string
	}{
		"one":                       {[]string{"428 of 1500 did not leave"}, "428 of 1500 did not leave"},
		"equal ones":                {[]string{"428 of 1500 did not leave", "428 of 1500 did not leave"}, "428 of 1500 did not leave (2 alike)"},
		"ones whose numbers differ": {[]string{"428 of 1500 did not leave", "428 of 1500 did not leave", "9 of 1500 did not leave"}, "428 of 1500 did not leave (the first of 3 streams, whose numbers differ)"},
	} {
		t.Run(name, func(t *testing.T) {
			var a alike
			for _, s := range tt.texts {
				a.add(s)
			}
			if got := a.brief(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
