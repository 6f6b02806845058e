package watch

import (
	"testing"
	"time"
)

func TestTheTimesOfACoreByKind(t *testing.T) {
	const tick = 10 * time.Millisecond
	got, err := parseCores([]byte("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 100 10 20 600 70 1 2 5 50 0\ncpu3 1 1 1 1\nintr 5\n"))
	want := Core{Number: 0, Busy: 138 * tick, IRQ: tick, SoftIRQ: 2 * tick, Steal: 5 * tick, Total: 808 * tick}
	if err != nil || len(got) != 2 || got[0] != want || got[1] != (Core{Number: 3, Busy: 3 * tick, Total: 4 * tick}) {
		t.Errorf("got %+v, %v\nwant %+v, and CPU 3", got, err, want)
	}
	for _, bad := range []string{"", "cpu0 a b c d\n", "cpux 1 2 3 4\n", "cpu0 1 2 3 99999999999999999\n"} {
		if got, err := parseCores([]byte(bad)); err == nil {
			t.Errorf("%q: got %+v", bad, got)
		}
	}
	if cores, err := Cores(); err != nil || len(cores) == 0 || cores[0].Total <= 0 {
		t.Errorf("this host: %+v, %v", cores, err)
	}
}

func FuzzParseCores(f *testing.F) {
	f.Add([]byte("cpu0 100 10 20 600 70 1 2 5 0 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		cores, err := parseCores(b)
		for _, c := range cores {
			if err != nil || c.Busy < 0 || c.Busy > c.Total || c.IRQ+c.SoftIRQ+c.Steal > c.Busy {
				t.Errorf("%q: %+v, %v", b, c, err)
			}
		}
	})
}
