package flent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/facility"
	"bufferbloat/load"
	"bufferbloat/probe"
	"bufferbloat/report"
	"bufferbloat/report/stat"
)

// realFile returns the path of one of flent's own files. They are in the directory that BLOAT_FLENT_DATA names, or beside this repository; never in it.
func realFile(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("BLOAT_FLENT_DATA")
	if dir == "" {
		dir = "../../../shared/data/flent"
	}
	path := filepath.Join(dir, name+".flent.gz")
	if _, err := os.Stat(path); err != nil {
		facility.Missing(t, "flent-data", err.Error())
	}
	return path
}

func readReal(t testing.TB, name string) *bufferbloat.Recording {
	t.Helper()
	file, err := os.Open(realFile(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rec, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func seriesOf(t *testing.T, rec *bufferbloat.Recording, name string) *bufferbloat.ProbeSeries {
	t.Helper()
	i := slices.IndexFunc(rec.Probes, func(p bufferbloat.ProbeSeries) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("no series %q", name)
	}
	return &rec.Probes[i]
}

func whole(s *bufferbloat.ProbeSeries) (sum stat.Summary, lost int) {
	for _, x := range s.Samples {
		if x.Outcome.IsLost() {
			lost++
		}
	}
	return stat.Summarize(rtts(*s), lost), lost
}

// The figures are flent's own, by its manual and numpy; the counts are those of the raw samples, which flent's summary does not show. Its mean of
// test-rrul-icmp, 49.856, is what ping printed at its end; that of the samples in the file, which ping cut to one decimal, is 49.809.
func TestDelaysOfRealFilesAreFlentsWithTheTrueCounts(t *testing.T) {
	for _, c := range []struct {
		file, series      string
		n, lost           int
		mean, median, p99 float64 // ms; 0 where flent has none that holds
	}{
		{"test-rrul-icmp", "Ping (ms) ICMP", 747, 0, 49.809, 49.80, 50.70},
		{"test-rrul", "Ping (ms) ICMP", 682, 65, 0, 47.80, 319.00},
		{"test-rrul", "Ping (ms) UDP BE2", 35, 0, 0, 10.59, 389.29},
		{"test-rrul", "Ping (ms) UDP BE3", 33, 0, 0, 10.59, 390.00},
		{"test-rrul_be-socket_stats", "Ping (ms) ICMP", 1373, 27, 0, 26.10, 71.64},
		{"test-rrul_be-socket_stats", "Ping (ms) UDP BE1", 1353, 26, 26.506611, 26.02, 38.09},
		{"test-rrul_be-socket_stats", "Ping (ms) UDP BE2", 1349, 29, 26.762543, 26.13, 63.99},
		{"test-rrul_be-socket_stats", "Ping (ms) UDP BE3", 1357, 27, 27.01757, 26.61, 73.22},
		{"test-http", "HTTP latency", 701, 0, 1.05, 1.00, 2.47},
	} {
		rec := readReal(t, c.file)
		s := seriesOf(t, rec, c.series)
		sum, lost := whole(s)
		if sum.N != c.n || lost != c.lost {
			t.Errorf("%s, %s: %d replies and %d lost, want %d and %d", c.file, c.series, sum.N, lost, c.n, c.lost)
		}
		for _, f := range []struct {
			name      string
			got       time.Duration
			want, per float64
		}{{"mean", sum.Mean, c.mean, 0.0051}, {"median", sum.Median, c.median, 0.0051}, {"p99", sum.P99, c.p99, 0.0051}} {
			if got := float64(f.got) / 1e6; f.want != 0 && (got < f.want-f.per || got > f.want+f.per) {
				t.Errorf("%s, %s: %s %.3f ms, want %.3f", c.file, c.series, f.name, got, f.want)
			}
		}
	}
}

func TestRatesOfRealFilesAreFlentsWithTheTrueCounts(t *testing.T) {
	for _, c := range []struct {
		file, flow string
		mbps       float64
		intervals  int
		by         load.Counter
	}{
		{"test-rrul-icmp", "TCP download BE", 22.01, 698, load.CountedByReads},
		{"test-rrul-icmp", "TCP download BE4", 22.08, 697, load.CountedByReads},
		{"test-rrul-icmp", "TCP upload BE", 22.02, 620, load.CountedByServer},
		{"test-rrul-icmp", "TCP upload BE3", 21.93, 617, load.CountedByServer},
		{"test-rrul", "TCP download BE", 2.14, 638, load.CountedByReads},
		{"test-rrul", "TCP upload BE2", 2.51, 115, load.CountedByServer},
		{"test-rrul_be-socket_stats", "TCP download BE4", 2.97, 0, load.CountedByReads},
		{"test-rrul_be-socket_stats", "TCP upload BE4", 0.21, 0, load.CountedByServer},
		{"test-tcp_1up_noping-cpu_stats", "TCP upload", 939.47, 0, load.CountedByServer},
		{"test-voip-1up", "TCP upload", 87.94, 661, load.CountedByServer},
		{"test-tcp_nup", "TCP upload::1", 0.70, 0, load.CountedByServer},
	} {
		rec := readReal(t, c.file)
		found := false
		for _, p := range report.New(rec).Phases {
			for _, g := range p.Goodput {
				for _, f := range g.Flows {
					if f.Name != c.flow {
						continue
					}
					found = true
					if got := f.Rate.Mbps(); got < c.mbps-0.0051 || got > c.mbps+0.0051 || f.CountedBy != c.by {
						t.Errorf("%s, %s: %.3f Mbit/s counted by %v, want %.2f by %v", c.file, c.flow, got, f.CountedBy, c.mbps, c.by)
					}
				}
			}
		}
		if !found {
			t.Errorf("%s: no flow %q", c.file, c.flow)
		}
		for _, f := range rec.Flows {
			if n := len(f.Points) - 1; f.Name == c.flow && c.intervals != 0 && n != c.intervals {
				t.Errorf("%s, %s: %d intervals, want %d", c.file, c.flow, n, c.intervals)
			}
		}
	}
}

func TestTheIntervalOf142SecondsIsShownAsWhatItIs(t *testing.T) {
	rec := readReal(t, "test-rrul")
	s := seriesOf(t, rec, "Ping (ms) UDP BE1")
	if sum, _ := whole(s); sum.N != 34 || sum.Max > time.Second {
		t.Errorf("%d values up to %v, want the 34 that are round-trip times", sum.N, sum.Max)
	}
	if last := s.Samples[len(s.Samples)-1]; last.Outcome != probe.Invalid {
		t.Errorf("the last is %+v, want it invalid", last)
	}
	i := slices.IndexFunc(rec.Findings, func(f bufferbloat.Finding) bool { return f.Code == "flent_stalled" })
	if i < 0 {
		t.Fatalf("no finding says that it stalled: %v", rec.Findings)
	}
	for _, want := range []string{"UDP BE1", "7.5 s", "142.34 s", "100000 ms"} {
		if text := rec.Findings[i].Text; !strings.Contains(text, want) {
			t.Errorf("%q does not say %q", text, want)
		}
	}
	for _, p := range report.New(rec).Phases {
		for _, l := range p.Latency {
			if loss, ok := l.Loss(); ok && l.Kind == udpRR {
				t.Errorf("%s has a loss of %v, though netperf counts none", l.Series, loss)
			}
		}
	}
	for _, name := range []string{"Ping (ms) UDP BE1", "Ping (ms) UDP BE2", "Ping (ms) UDP BE3"} {
		if seriesOf(t, rec, name).Error == "" {
			t.Errorf("nothing says that %s ended after 8 of 150 s", name)
		}
	}
}

func TestPhasesOfRealFilesAreThoseOfTheirFlows(t *testing.T) {
	for file, want := range map[string]string{
		"test-rrul-icmp": "idle both drain after", "test-rrul": "idle both drain after", "test-tcp_nup": "idle upload drain",
		"test-tcp_1up_noping-cpu_stats": "upload", "test-http": "run", "test-voip-1up": "upload",
	} {
		var got []string
		rec := readReal(t, file)
		for _, p := range rec.Phases {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: phases %q, want %q", file, got, want)
		}
		if rec.Source == nil || !strings.HasPrefix(rec.Source.Program, "flent ") {
			t.Errorf("%s: source %+v", file, rec.Source)
		}
	}
	if p := readReal(t, "test-rrul-icmp").Phases[1]; p.Start < 4900*ms || p.Start > 5100*ms || p.To-p.From < 139*time.Second {
		t.Errorf("the load of test-rrul-icmp is %+v, want it from 5 s for 140 s", p)
	}
}

func TestSeriesOfRealFilesThatWeDoNotKnowAreKept(t *testing.T) {
	for file, names := range map[string][]string{
		"test-rrul":                     {"qdisc_stats_testbed-02::backlog_bytes", "cpu_stats_testbed-02::load", "TCP upload BE::tcp_rtt", "TCP totals", "Ping (ms) avg"},
		"test-tcp_1up_noping-cpu_stats": {"cpu_stats_10.70.2.2::cpu0", "cpu_stats_127.0.0.1::load"},
		"test-voip-1up":                 {"VoIP", "VoIP::delay", "VoIP::jitter", "VoIP::loss", "VoIP::bitrate", "VoIP::induced_delay"},
	} {
		rec := readReal(t, file)
		for _, name := range names {
			if !slices.ContainsFunc(rec.Others, func(q bufferbloat.Quantity) bool { return q.Name == name && len(q.Values) > 0 }) {
				t.Errorf("%s: %q is gone, or empty", file, name)
			}
		}
	}
	rec := readReal(t, "test-voip-1up")
	for _, q := range rec.Others {
		if v := stat.DescribeSorted(slices.Sorted(slices.Values(q.Values))); q.Name == "VoIP::delay" && (v.Mean < 24.945 || v.Mean > 24.955 || v.Median < 24.955 || v.Median > 24.965) {
			t.Errorf("VoIP::delay %+v, want mean 24.95 and median 24.96", v)
		}
		if q.Name == "VoIP" && len(q.Values) != 14913 {
			t.Errorf("%d packets, want 14913", len(q.Values))
		}
	}
}

func TestRealFilesComeBackFromOurs(t *testing.T) {
	for _, file := range []string{"test-rrul-icmp", "test-rrul", "test-rrul_be-socket_stats", "test-tcp_1up_noping-cpu_stats", "test-tcp_nup", "test-voip-1up", "test-http"} {
		rec := readReal(t, file)
		back, err := Read(strings.NewReader(string(written(t, rec))))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for i := range rec.Probes {
			if !slices.Equal(rec.Probes[i].Samples, back.Probes[i].Samples) {
				t.Errorf("%s: the samples of %s differ", file, rec.Probes[i].Name)
			}
		}
		for i := range rec.Others {
			if !slices.Equal(rec.Others[i].Values, back.Others[i].Values) {
				t.Errorf("%s: the values of %s differ", file, rec.Others[i].Name)
			}
		}
		for i := range rec.Flows {
			if !slices.Equal(rec.Flows[i].Points, back.Flows[i].Points) {
				t.Errorf("%s: the points of %s differ", file, rec.Flows[i].Name)
			}
		}
	}
}
