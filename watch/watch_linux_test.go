package watch

import (
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	got, err := parseStat([]byte("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 100 10 20 600 70 1 2 5 0 0\ncpu1 1 1 1 1\nintr 5\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Total) != 2 || got.Total[0] != 808*10*time.Millisecond || got.Busy[0] != 138*10*time.Millisecond {
		t.Errorf("got %+v; want 2 CPUs, the first with 8.08 s of which 1.38 s busy", got)
	}
	for _, bad := range []string{"", "cpu0 a b c d\n", "cpu0 -1 2 3 4 5\n"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q is read without an error", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("cpu0 100 10 20 600 70 1 2 5 0 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseStat(b)
		if err == nil && (len(got.Busy) != len(got.Total) || len(got.Total) == 0) {
			t.Errorf("%q gives %+v", b, got)
		}
	})
}
