package bitrate

import (
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for s, want := range map[string]Bitrate{
		"20Mbit": 20e6, "512kbit": 512e3, "1.5Gbit": 15e8, "20mbit/s": 20e6, "4 Mbps": 4e6, "9600bit": 9600, "0bit": 0, "40Gbit": 40e9,
	} {
		if got, err := Parse(s); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "20", "Mbit", "-1Mbit", "nanMbit", "infMbit", "1e30Gbit", "20MB", "20Mbit;id"} {
		if got, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) = %d without an error", s, got)
		}
	}
}

func TestStringParsesBack(t *testing.T) {
	for _, r := range []Bitrate{0, 1, 999, 1000, 512e3, 20e6, 1234567, 40e9} {
		if got, err := Parse(r.String()); err != nil || got != r {
			t.Errorf("%d prints as %q, which parses to %d, %v", int64(r), r, got, err)
		}
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		name string
		n    uint64
		d    time.Duration
		want Bitrate
	}{
		{"1.2 TB in 1000 s is 9600 Mbit/s", 12e11, 1000 * time.Second, 9600 * Mbit},
		{"40 Gbit/s for 10 s", 50e9, 10 * time.Second, 40 * Gbit},
		{"no time has no rate", 1000, 0, 0},
		{"time that runs backwards has no rate", 1000, -time.Second, 0},
	} {
		if got := Of(c.n, c.d); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if got := (20 * Mbit).Duration(1514); got != 605600*time.Nanosecond {
		t.Errorf("1514 bytes at 20 Mbit/s take %v, want 605.6µs", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("20Mbit")
	f.Add("1.5 gbps")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(s)
		if err != nil {
			return
		}
		if back, err := Parse(r.String()); err != nil || back != r {
			t.Errorf("%q is %d, printed %q, parsed %d, %v", s, int64(r), r.String(), int64(back), err)
		}
	})
}
