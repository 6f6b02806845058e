package termplot

import (
	"bytes"
	"flag"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/probe"
)

var update = flag.Bool("update", false, "write the golden files anew")

// recording reads one of the recordings that report's tests share.
func recording(t testing.TB, name string) *bufferbloat.Recording {
	t.Helper()
	f, err := os.Open("../testdata/" + name + ".bloat.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rec, err := bufferbloat.ReadRecording(f)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// lossy is the fifo run with an outage of 1.5 s in the download and one probe in six lost in the upload.
func lossy(t testing.TB) *bufferbloat.Recording {
	rec := recording(t, "fifo")
	s := rec.Probes[0].Samples
	for i := range s {
		if at := s[i].Sent.Seconds(); at > 7 && at < 8.5 || at > 14 && i%6 == 0 {
			s[i].Outcome, s[i].RTT = probe.Lost, 0
		}
	}
	return rec
}

type draw func(io.Writer, []Run, Options) error

func TestPlots(t *testing.T) {
	t.Parallel()
	one := []Run{{"lossy", lossy(t)}}
	two := []Run{{"fifo", recording(t, "fifo")}, {"fq_codel", recording(t, "fq_codel")}}
	for name, tt := range map[string]struct {
		draw draw
		runs []Run
		o    Options
	}{
		"time":       {Time, one, Options{}},
		"time.ascii": {Time, one, Options{ASCII: true}},
		"time.two":   {Time, two, Options{Width: 100, Height: 8}},
		"time.small": {Time, one, Options{Width: 1, Height: 1}},
		"cdf":        {CDF, one, Options{}},
		"cdf.ascii":  {CDF, one, Options{ASCII: true}},
		"cdf.two":    {CDF, two, Options{Width: 100, Height: 8}},
		"empty.time": {Time, []Run{{"empty", &bufferbloat.Recording{}}}, Options{}},
		"empty.cdf":  {CDF, []Run{{"empty", &bufferbloat.Recording{}}}, Options{}},
	} {
		var got bytes.Buffer
		if err := tt.draw(&got, tt.runs, tt.o); err != nil {
			t.Fatal(err)
		}
		file := "testdata/" + name + ".txt"
		if *update {
			if err := os.WriteFile(file, got.Bytes(), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("%s is\n%s\nwant\n%s", name, got.String(), want)
		}
	}
}

// fits checks that a plot has only printable signs and no line that is too long.
func fits(t *testing.T, out string, o Options) {
	t.Helper()
	width := o.withDefaults().Width
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(line); n > width {
			t.Errorf("%d columns, want at most %d: %q", n, width, line)
		}
		for _, r := range line {
			if r < ' ' || r == 0x7f || r == 0x202e || o.ASCII && r > '~' {
				t.Errorf("sign %U in %q", r, line)
			}
		}
	}
	if !utf8.ValidString(out) {
		t.Error("not UTF-8")
	}
}

func TestNoRecordingPanicsOrLeavesTheWindow(t *testing.T) {
	t.Parallel()
	for seed := range uint64(25) {
		draws(t, seed, 1)
	}
}

func FuzzPlots(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(draws)
}

func draws(t *testing.T, a, b uint64) {
	r := rand.New(rand.NewPCG(a, b))
	o := Options{Width: r.IntN(200) - 20, Height: r.IntN(30) - 3, ASCII: r.IntN(2) == 0}
	var runs []Run
	for range r.IntN(4) {
		runs = append(runs, Run{"\x1b[2J\u202e\xff" + strings.Repeat("name ", r.IntN(60)), random(t, r)})
	}
	for _, draw := range []draw{Time, CDF} {
		var out bytes.Buffer
		if err := draw(&out, runs, o); err != nil {
			t.Fatal(err)
		}
		fits(t, out.String(), o)
	}
}

// random is any recording that the types allow, sense or not.
func random(t testing.TB, r *rand.Rand) *bufferbloat.Recording {
	rec := lossy(t)
	offset := func() time.Duration {
		switch r.IntN(8) {
		case 0:
			return time.Duration(r.Int64())
		case 1:
			return -time.Duration(r.Int64())
		case 2:
			return math.MaxInt64
		}
		return time.Duration(r.Int64N(int64(40 * time.Second)))
	}
	for i := range rec.Phases {
		if p := &rec.Phases[i]; r.IntN(4) == 0 {
			p.Start, p.End, p.From, p.To = offset(), offset(), offset(), offset()
			p.Name = "\x1b" + p.Name
		}
	}
	for i := range rec.Probes {
		s := rec.Probes[i].Samples
		rec.Probes[i].Samples = s[:r.IntN(len(s)+1)]
		for j := range rec.Probes[i].Samples {
			if r.IntN(20) == 0 {
				s[j] = probe.Sample{Due: offset(), Sent: offset(), Outcome: probe.Outcome(r.IntN(11)), RTT: offset()}
			}
		}
	}
	for i := range rec.Flows {
		f := &rec.Flows[i]
		f.Direction = load.Direction(r.IntN(4))
		for j := range f.Points {
			if r.IntN(30) == 0 {
				f.Points[j] = bufferbloat.Point{At: offset(), Bytes: r.Uint64()}
			}
		}
	}
	if r.IntN(5) == 0 {
		return &bufferbloat.Recording{Ended: offset()}
	}
	return rec
}
