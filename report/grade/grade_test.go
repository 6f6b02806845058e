package grade

import (
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/report"
	"bufferbloat/report/stat"
)

const msec = time.Millisecond

// constant is the latency of n replies that all took d.
func constant(d time.Duration, n, lost int) []report.Latency {
	x := make([]time.Duration, n)
	for i := range x {
		x[i] = d
	}
	return []report.Latency{{Series: "icmp", Kind: "icmp", Primary: true, Summary: stat.Summarize(x, lost), Ladder: stat.Ladder(x)}}
}

// run is a result with idle, download and upload delays; with both it has a phase of both directions at once.
func run(idle, down, up, both time.Duration) *report.Result {
	r := &report.Result{}
	add := func(name string, kind bufferbloat.PhaseKind, d time.Duration, dirs ...load.Direction) {
		p := report.Phase{Name: name, Kind: kind, Reached: true, UnderLoad: kind == bufferbloat.Load, Latency: constant(d, 400, 0)}
		for _, d := range dirs {
			p.Goodput = append(p.Goodput, report.Goodput{Direction: d, OK: true, Rate: 60 * bitrate.Mbit, Flowed: 1, Whole: 1, Planned: 1})
		}
		r.Phases = append(r.Phases, p)
	}
	add("idle", bufferbloat.Idle, idle)
	add("download", bufferbloat.Load, down, load.Download)
	add("upload", bufferbloat.Load, up, load.Upload)
	if both > 0 {
		add("both", bufferbloat.Load, both, load.Download, load.Upload)
	}
	return r
}

// of returns the grade of one scheme.
func of(t *testing.T, r *report.Result, name, version string) report.Grade {
	t.Helper()
	for _, g := range All(r) {
		if g.Scheme == name && g.Version == version {
			return g
		}
	}
	t.Fatalf("no scheme %s, %s", name, version)
	return report.Grade{}
}

// The same 28 ms on one line: three schemes, three opinions.
func TestTheSameIncreaseHasOneGradeInEachScheme(t *testing.T) {
	r := run(12*msec, 40*msec, 40*msec, 40*msec)
	for _, tt := range []struct{ name, version, want string }{
		{"DSLReports bufferbloat", "FAQ 17930", "A"},
		{"8x8 utility", "maximum acceptable limits", "A"},
		{"LibreQoS bufferbloat", "code", "download A, upload A, both A"},
		{"LibreQoS bufferbloat", "shipped JSON", "download B, upload B, both B"},
		{"LibreQoS total", "shipped JSON", "B"},
		{"v.recipes", "page of 2026", "A"},
		{"lagas.lt", "methodology", "A"},
		{"Cloudflare AIM", "loaded increase", "5 of 20 points"},
		{"Cloudflare AIM", "gaming", "good, 25 points"},                 // idle 12 ms: 10, loss 0: 10, increase: 5
		{"Cloudflare AIM", "streaming", "good, 45 points"},              // and 20 for 60 Mbit/s
		{"Quality of Outcome", "goresponsiveness, gaming", "92 of 100"}, // p50 40 of 30 to 150
	} {
		if g := of(t, r, tt.name, tt.version); g.Value != tt.want {
			t.Errorf("%s, %s: got %q (%s), want %q", tt.name, tt.version, g.Value, g.Why, tt.want)
		}
	}
}

func TestEdges(t *testing.T) {
	for _, tt := range []struct {
		name, version string
		increase      time.Duration
		want          string
	}{
		{"DSLReports bufferbloat", "FAQ 17930", 5*msec - 1, "A+"},
		{"DSLReports bufferbloat", "FAQ 17930", 5 * msec, "A"},
		{"DSLReports bufferbloat", "FAQ 17930", 30 * msec, "B"},
		{"DSLReports bufferbloat", "FAQ 17930", 60 * msec, "C"},
		{"DSLReports bufferbloat", "FAQ 17930", 200 * msec, "D"},
		{"DSLReports bufferbloat", "FAQ 17930", 400*msec - 1000, "D"},
		{"DSLReports bufferbloat", "FAQ 17930", 400 * msec, "F"},
		{"DSLReports bufferbloat", "FAQ 17930", -3 * msec, "A+"},
		{"8x8 utility", "maximum acceptable limits", 400 * msec, "F"},
		{"LibreQoS bufferbloat", "code", 30 * msec, "download B, upload B"},
		{"LibreQoS bufferbloat", "shipped JSON", 25 * msec, "download B, upload B"},
		{"LibreQoS bufferbloat", "shipped JSON", 50 * msec, "download C, upload C"},
		{"LibreQoS bufferbloat", "shipped JSON", 75 * msec, "download D, upload D"},
		{"LibreQoS bufferbloat", "shipped JSON", 100 * msec, "download F, upload F"},
		{"v.recipes", "page of 2026", 15 * msec, "A"},
		{"v.recipes", "page of 2026", 500 * msec, "D"},
		{"v.recipes", "page of 2026", 501 * msec, "F"},
		{"lagas.lt", "methodology", 5 * msec, "A+"},
		{"lagas.lt", "methodology", 400 * msec, "D"},
		{"lagas.lt", "methodology", 401 * msec, "F"},
		{"Cloudflare AIM", "loaded increase", 10*msec - 1000, "20 of 20 points"},
		{"Cloudflare AIM", "loaded increase", 10 * msec, "10 of 20 points"},
		{"Cloudflare AIM", "loaded increase", 50 * msec, "0 of 20 points"},
		{"Cloudflare AIM", "loaded increase", 100 * msec, "-10 of 20 points"},
		{"Cloudflare AIM", "loaded increase", 500 * msec, "-20 of 20 points"},
	} {
		r := run(20*msec, 20*msec+tt.increase, 20*msec+tt.increase, 0)
		if g := of(t, r, tt.name, tt.version); g.Value != tt.want {
			t.Errorf("%s, %s, %v: got %q (%s), want %q", tt.name, tt.version, tt.increase, g.Value, g.Why, tt.want)
		}
	}
}

func TestDirectionsAreCombinedAsTheSchemeHasIt(t *testing.T) {
	r := run(10*msec, 12*msec, 110*msec, 20*msec) // +2, +100, +10
	for _, tt := range []struct{ name, version, want string }{
		{"DSLReports bufferbloat", "FAQ 17930", "B"}, // the mean of 2 and 100
		{"lagas.lt", "methodology", "C"},             // the highest
		{"LibreQoS bufferbloat", "shipped JSON", "download A+, upload F, both A"},
		{"LibreQoS total", "shipped JSON", "B"}, // idle A+, and the mean of 6, 1 and 5
	} {
		if g := of(t, r, tt.name, tt.version); g.Value != tt.want {
			t.Errorf("%s: got %q (%s), want %q", tt.name, g.Value, g.Why, tt.want)
		}
	}
}

func TestWhatIsMissingHasNoGradeAndAReason(t *testing.T) {
	noIdle := run(10*msec, 20*msec, 20*msec, 0)
	noIdle.Phases = noIdle.Phases[1:]
	void := run(10*msec, 20*msec, 20*msec, 0)
	void.Findings = []bufferbloat.Finding{{Code: "x", Severity: bufferbloat.Voids, Text: "x"}}
	noLoad := run(10*msec, 20*msec, 20*msec, 0)
	noLoad.Phases[2].UnderLoad = false
	few := run(10*msec, 20*msec, 20*msec, 0)
	few.Phases[1].Latency = constant(20*msec, 9, 0)
	lossUnknown := run(10*msec, 20*msec, 20*msec, 0)
	lossUnknown.Phases[1].Latency[0].Stated = &report.Stated{Has: report.AllFigures, WhyLoss: "not told"}
	onlyBoth := run(10*msec, 20*msec, 20*msec, 20*msec)
	onlyBoth.Phases = append(onlyBoth.Phases[:1], onlyBoth.Phases[3])
	for _, tt := range []struct {
		name, scheme, version string
		r                     *report.Result
		why                   string
	}{
		{"no baseline", "DSLReports bufferbloat", "FAQ 17930", noIdle, "idle baseline"},
		{"void", "DSLReports bufferbloat", "FAQ 17930", void, "void"},
		{"no load", "lagas.lt", "methodology", noLoad, "no load in upload"},
		{"few samples", "8x8 utility", "maximum acceptable limits", few, "too few"},
		{"loss not told", "Cloudflare AIM", "gaming", lossUnknown, "loss is not known"},
		{"jitter", "Cloudflare AIM", "rtc", run(10*msec, 20*msec, 20*msec, 0), "neighbouring"},
		{"both at once only", "DSLReports bufferbloat", "FAQ 17930", onlyBoth, "each by itself"},
		{"two directions only", "LibreQoS total", "shipped JSON", run(10*msec, 20*msec, 20*msec, 0), "both at once"},
	} {
		g := of(t, tt.r, tt.scheme, tt.version)
		if g.Value != "" || !strings.Contains(g.Why, tt.why) {
			t.Errorf("%s: got %q, %q; want no grade and %q", tt.name, g.Value, g.Why, tt.why)
		}
	}
}

func TestEachSchemeSaysWhatItIs(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range All(run(12*msec, 40*msec, 40*msec, 40*msec)) {
		if g.Scheme == "" || g.Version == "" || g.Source == "" || g.Statistic == "" || g.Cuts == "" || len(g.Inputs) == 0 || seen[g.Scheme+g.Version] {
			t.Errorf("%+v: want a name, a version, a source, a statistic, thresholds and inputs, and each once", g)
		}
		seen[g.Scheme+g.Version] = true
		if (g.Value == "") != (g.Why != "") {
			t.Errorf("%s, %s: grade %q and reason %q", g.Scheme, g.Version, g.Value, g.Why)
		}
	}
	if g := of(t, run(12*msec, 40*msec, 40*msec, 0), "DSLReports bufferbloat", "FAQ 17930"); g.Cuts != "A+ < 5, A < 30, B < 60, C < 200, D < 400, F beyond; ms" {
		t.Errorf("thresholds %q", g.Cuts)
	}
}

// Results without anything in them are graded as not computable, and nothing panics.
func TestNothingHasNoGrade(t *testing.T) {
	for _, g := range All(&report.Result{}) {
		if g.Value != "" || g.Why == "" {
			t.Errorf("%s, %s: %q, %q", g.Scheme, g.Version, g.Value, g.Why)
		}
	}
}
