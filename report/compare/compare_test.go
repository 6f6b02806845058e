package compare

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/report"
	"bufferbloat/report/stat"
)

func compared(t *testing.T, old, now []*report.Result, o Options) *Comparison {
	t.Helper()
	c, err := Compare(old, now, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *Comparison) figure(t *testing.T, name string) *Figure {
	t.Helper()
	for i := range c.Figures {
		if c.Figures[i].Name == name {
			return &c.Figures[i]
		}
	}
	t.Fatalf("no figure %s", name)
	return nil
}

func TestVerdicts(t *testing.T) {
	good := goodLine()
	slower, slightly, noisy := good, good, good
	slower.downRate = 17
	slightly.up = 82 * msec
	noisy.up = 88 * msec
	lossy, slightlyLossy := good, good
	lossy.loss, slightlyLossy.loss = 0.2, 0.003
	for _, tt := range []struct {
		name     string
		old, new line
		k        int
		between  float64
		metric   string
		want     Verdict
		all      Verdict
		status   int
	}{
		{"equal sets are equivalent", good, good, 10, 0.02, "upload.loaded_rtt.p50", Equivalent, Equivalent, 0},
		{"a queue three times as long is a regression", good, good.scaled(3), 6, 0.02, "upload.loaded_rtt.p50", Regression, Regression, 3},
		{"and the other way round an improvement", good.scaled(3), good, 6, 0.02, "upload.loaded_rtt.p50", Improvement, Improvement, 0},
		{"less goodput is a regression", good, slower, 6, 0.02, "download.goodput", Regression, Regression, 3},
		{"more goodput is an improvement", slower, good, 6, 0.02, "download.goodput", Improvement, Improvement, 0},
		{"2 ms of 80 are within the margin", good, slightly, 10, 0.02, "upload.loaded_rtt.p50", Equivalent, Equivalent, 0},
		{"a shift about the margin, of runs that differ, is inconclusive", good, noisy, 8, 0.1, "upload.loaded_rtt.p50", Inconclusive, Inconclusive, 5},
		{"three runs each of a long queue are enough for the small rule", good, good.scaled(3), 3, 0.02, "upload.loaded_rtt.p50", Regression, Regression, 3},
		{"one run each of equal lines is equivalent", good, good, 1, 0, "upload.loaded_rtt.p50", Equivalent, Equivalent, 0},
		{"one run each: a long queue is a regression", good, good.scaled(3), 1, 0, "upload.loaded_rtt.p50", Regression, Regression, 3},
		{"one run each: 15% are not, how runs differ is not known", good, good.scaled(1.15), 1, 0, "upload.loaded_rtt.p50", Inconclusive, Inconclusive, 5},
		{"one run each: losses are never", good, lossy, 1, 0, "download.loss", Inconclusive, Inconclusive, 5},
		{"one run each: no difference in losses is seen", good, slightlyLossy, 1, 0, "upload.loss", NotJudged, Equivalent, 0},
		{"ten runs each: losses are", good, lossy, 10, 0, "download.loss", Regression, Regression, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRand(1)
			c := compared(t, tt.old.runs("old", tt.k, tt.between, r), tt.new.runs("new", tt.k, tt.between, r), Options{})
			f := c.figure(t, tt.metric)
			if f.Verdict != tt.want || c.Verdict() != tt.all || c.Status() != tt.status {
				var b strings.Builder
				_ = c.WriteText(&b)
				t.Errorf("%s is %s, all %s, status %d; want %s, %s, %d\n%s", tt.metric, f.Verdict, c.Verdict(), c.Status(), tt.want, tt.all, tt.status, b.String())
			}
			if f.Verdict == Inconclusive && f.Missing == (Missing{}) {
				t.Error("it does not say how many runs are missing")
			}
			if f.Shift.HasInterval && (f.Shift.Low > f.Shift.Value || f.Shift.Value > f.Shift.High || f.HasRatio && f.Ratio.HasInterval && (f.Ratio.Low > f.Ratio.Value || f.Ratio.Value > f.Ratio.High)) {
				t.Errorf("a value outside its interval: %+v", f)
			}
		})
	}
}

func TestMoreRunsNeverTakeAVerdictBack(t *testing.T) {
	for k := 1; k <= 12; k++ {
		r := newRand(2)
		c := compared(t, goodLine().runs("old", k, 0.01, r), goodLine().scaled(2).runs("new", k, 0.01, r), Options{})
		f := c.figure(t, "upload.loaded_rtt.p50")
		if f.Verdict != Regression {
			t.Errorf("%d runs each: %s: %s", k, f.Verdict, f.Why)
		}
		if between := f.Basis == BetweenRuns; between != (k >= 4) {
			t.Errorf("%d runs each: the interval is %s", k, f.Basis)
		}
	}
}

// Eight metrics are judged: between runs it takes 2 x 8 / C(2k, k) <= 0.05, six runs each.
func TestMissingRuns(t *testing.T) {
	r := newRand(3)
	c := compared(t, goodLine().runs("old", 1, 0, r), goodLine().scaled(1.15).runs("new", 2, 0, r), Options{})
	if f := c.figure(t, "upload.loaded_rtt.p50"); f.Missing != (Missing{Old: 5, New: 4}) || f.Missing.String() != "needs 5 more runs of the old side and 4 of the new" {
		t.Errorf("%+v %q, want 5 and 4 more", f.Missing, f.Missing)
	}
	one := compared(t, goodLine().runs("old", 1, 0, r), goodLine().scaled(1.15).runs("new", 1, 0, r), Options{Metrics: []string{"upload.loaded_rtt.p50"}})
	if f := one.figure(t, "upload.loaded_rtt.p50"); f.Missing != (Missing{Old: 3, New: 3}) {
		t.Errorf("a single metric: %+v, want 3 more each: four and four reach 5%%", f.Missing)
	}
	if f := one.figure(t, "download.goodput"); f.Judged || f.Verdict != NotJudged {
		t.Errorf("a metric that nobody asked for is judged: %+v", f)
	}
	many := compared(t, goodLine().runs("old", 6, 0.2, r), goodLine().scaled(1.1).runs("new", 6, 0.2, r), Options{Metrics: []string{"upload.loaded_rtt.p50"}})
	if f := many.figure(t, "upload.loaded_rtt.p50"); f.Verdict != Inconclusive || f.Missing == (Missing{}) {
		t.Errorf("%s, missing %+v", f.Verdict, f.Missing)
	}
	for m, want := range map[Missing]string{{}: "", {Many: true}: "even 200 more runs would hardly decide it", {Old: 1, New: 1}: "needs 1 more run on each side",
		{New: 3}: "needs 3 more runs of the new side", {Old: 1}: "needs 1 more run of the old side"} {
		if got := m.String(); got != want {
			t.Errorf("%+v: %q, want %q", m, got, want)
		}
	}
}

func TestRunsThatDoNotCountAreNamed(t *testing.T) {
	r := newRand(4)
	old := goodLine().runs("old", 7, 0.01, r)
	now := goodLine().scaled(1.02).runs("new", 8, 0.01, r)
	bad := func(i int, code string, severity bufferbloat.Severity, phase string) {
		now[i].Findings = append(now[i].Findings, bufferbloat.Finding{Code: code, Severity: severity, Phase: phase, Text: "because of " + code})
		now[i].Phases[2].Latency[0] = goodLine().latency(900*msec, 300, r) // were it to count, the verdict would be another
	}
	bad(0, "probes_late", bufferbloat.Voids, "")
	bad(1, "baseline_moved", bufferbloat.Weakens, "")
	bad(2, "cpu_client", bufferbloat.Weakens, "upload")
	bad(3, "stopped", bufferbloat.Weakens, "")
	now[4].Findings = []bufferbloat.Finding{{Code: "few_samples", Severity: bufferbloat.Weakens}}
	old[6] = old[0]
	c := compared(t, old, now, Options{})
	f := c.figure(t, "upload.loaded_rtt.p50")
	if len(f.New.Values) != 4 || len(f.Old.Values) != 6 {
		t.Errorf("%d old and %d new runs count, want 6 and 4: %v", len(f.Old.Values), len(f.New.Values), f.New.Absent)
	}
	if g := c.figure(t, "download.goodput"); len(g.New.Values) != 5 {
		t.Errorf("%d new runs count for the download, want 5: what concerns the upload leaves it alone", len(g.New.Values))
	}
	var b strings.Builder
	if err := c.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"new, new-1.json does not count: because of probes_late", "new, new-2.json does not count: because of baseline_moved",
		"new, new-3.json, phase upload does not count: because of cpu_client", "new, new-4.json does not count: because of stopped",
		"old, old-1.json does not count: the same run as old-1.json", "old: 6 runs (1 of 7 excluded), new: 5 runs (3 of 8 excluded)"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, b.String())
		}
	}
}

func TestNothingToCompareIsInvalid(t *testing.T) {
	r := newRand(5)
	fine := goodLine().runs("old", 6, 0.01, r)
	for _, tt := range []struct {
		name string
		harm func(*report.Result)
		want string
	}{
		{"all new runs are void", func(x *report.Result) {
			x.Findings = []bufferbloat.Finding{{Code: "no_replies", Severity: bufferbloat.Voids, Text: "none answered"}}
		}, "none answered"},
		{"the upload was not reached", func(x *report.Result) { x.Phases[2].Reached = false }, "not reached"},
		{"the upload had no load", func(x *report.Result) { x.Phases[2].UnderLoad = false }, "there was no load"},
		{"no probe was answered", func(x *report.Result) { x.Phases[2].Latency[0].Summary = stat.Summary{Lost: 300} }, "no probe was answered"},
		{"the upload failed", func(x *report.Result) {
			g := &x.Phases[2].Goodput[0]
			g.OK, g.Why = false, "connection refused"
		}, "connection refused"},
		{"there is no upload", func(x *report.Result) { x.Phases = x.Phases[:2] }, "not part of this run"},
		{"another kind of probe", func(x *report.Result) {
			for i := range x.Phases {
				x.Phases[i].Latency[0].Kind = "tcp"
			}
		}, "probed by tcp, not by icmp"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := goodLine().runs("new", 6, 0.01, newRand(6))
			for _, x := range now {
				tt.harm(x)
			}
			for _, order := range []string{"new", "old"} {
				a, b := fine, now
				if order == "old" {
					a, b = now, fine
				}
				c := compared(t, a, b, Options{})
				if c.Verdict() != Invalid || c.Status() != 4 {
					t.Errorf("in %s: %s, status %d, want invalid, 4", order, c.Verdict(), c.Status())
				}
				var text strings.Builder
				_ = c.WriteText(&text)
				want := tt.want
				if order == "old" && strings.HasPrefix(want, "probed") {
					want = "probed by icmp, not by tcp"
				}
				if !strings.Contains(text.String(), want) {
					t.Errorf("in %s: no word of %q:\n%s", order, want, text.String())
				}
			}
		})
	}
	c := compared(t, nil, nil, Options{})
	if c.Status() != 4 {
		t.Errorf("nothing at all: status %d, want 4", c.Status())
	}
	if c := compared(t, fine, fine, Options{Metrics: []string{"sideways.goodput"}}); c.Status() != 4 {
		t.Errorf("a phase that nobody has: status %d, want 4", c.Status())
	}
	if _, err := Compare(fine, fine, Options{Metrics: []string{"goodputs"}}); err == nil || !strings.Contains(err.Error(), `"goodputs"`) {
		t.Errorf("a metric that nobody knows: %v", err)
	}
}

// stated turns results into what the texts of another program come to: figures without samples, and no word of losses.
func stated(results []*report.Result) []*report.Result {
	for _, x := range results {
		x.Source, x.Started, x.Length, x.Induced = &report.Source{Program: "speedtest.sh"}, time.Time{}, 0, nil
		for i := range x.Phases {
			p := &x.Phases[i]
			for j := range p.Latency {
				l := &p.Latency[j]
				l.Stated, l.Lost = &report.Stated{Has: report.AllFigures, WhyLoss: "the script does not see losses"}, 0
				l.MedianRange, l.P90Range, l.Count = stat.Estimate{}, stat.Estimate{}, report.Count{}
			}
			for j := range p.Goodput {
				p.Goodput[j].Range, p.Goodput[j].HasFairness = report.RateRange{}, false
			}
		}
	}
	return results
}

func TestWhatNoSourceTellsIsNotJudged(t *testing.T) {
	r := newRand(30)
	texts := func(l line, between float64) []*report.Result { return stated(l.runs("x", 6, between, r)) }
	one := stated(goodLine().runs("x", 1, 0, r))[0]
	same := []*report.Result{one, one, one, one, one, one}
	good, bad := texts(goodLine(), 0.01), texts(goodLine().scaled(3), 0.01)
	for _, tt := range []struct {
		name     string
		old, new []*report.Result
		o        Options
		status   []int
	}{
		{"equal lines", good, texts(goodLine(), 0.01), Options{}, []int{0, 5}},
		{"equal texts", same, same, Options{}, []int{0, 5}},
		{"clearly better", bad, good, Options{}, []int{0}},
		{"clearly worse", good, bad, Options{}, []int{3}},
		{"asked for with --metric", good, bad, Options{Metrics: []string{"download.loss"}}, []int{4}},
		{"asked for with --fail-if", bad, good, Options{FailIf: []Condition{condition(t, "loss > 1%")}}, []int{4}},
		{"one side tells losses", goodLine().runs("x", 6, 0.01, r), good, Options{}, []int{4}},
		{"one run tells losses", good, append(goodLine().runs("y", 1, 0.01, r), texts(goodLine(), 0.01)...), Options{}, []int{4}},
	} {
		c := compared(t, tt.old, tt.new, tt.o)
		if !slices.Contains(tt.status, c.Status()) {
			var b strings.Builder
			_ = c.WriteText(&b)
			t.Errorf("%s: status %d, want %v\n%s", tt.name, c.Status(), tt.status, b.String())
		}
		f := c.figure(t, "download.loss")
		if want := c.Status() == 4 && len(tt.o.FailIf) == 0; (f.Verdict == Invalid) != want || !want && f.Verdict != NotJudged || !strings.Contains(f.Why, "does not see losses") {
			t.Errorf("%s: the loss is %s: %q", tt.name, f.Verdict, f.Why)
		}
	}
	if c := compared(t, bad, good, Options{}); c.figure(t, "download.loaded_rtt.p50").Verdict != Improvement || c.figure(t, "upload.loaded_rtt.p90").Verdict != Improvement {
		t.Error("six delays a third as long are no improvement")
	}
}

func TestASourceWithoutDelaysLeavesTheRates(t *testing.T) {
	r := newRand(31)
	rates := func() []*report.Result {
		all := stated(goodLine().runs("x", 6, 0.01, r))
		for _, x := range all {
			x.Series, x.Phases = nil, x.Phases[1:2]
			x.Phases[0].Latency = nil
		}
		return all
	}
	c := compared(t, rates(), rates(), Options{})
	if s := c.Status(); s != 0 && s != 5 {
		t.Errorf("status %d, want 0 or 5", s)
	}
	if f := c.figure(t, "download.loaded_rtt.p90"); f.Verdict != NotJudged || f.Why == "" {
		t.Errorf("delays that nothing tells are %s: %q", f.Verdict, f.Why)
	}
	void := rates()
	for _, x := range void {
		x.Stopped = "interrupted"
	}
	if c := compared(t, void, rates(), Options{}); c.figure(t, "download.loaded_rtt.p90").Verdict != Invalid || c.Status() != 4 {
		t.Errorf("a side of void runs: status %d, want 4", c.Status())
	}
	means := stated(goodLine().runs("x", 6, 0.01, r))
	for _, x := range means {
		x.Phases = x.Phases[1:2]
		x.Phases[0].Goodput, x.Phases[0].Latency[0].Stated.Has = nil, report.Min|report.Mean|report.Max
	}
	if c := compared(t, means, means, Options{}); c.Status() != 4 || !strings.HasPrefix(written(t, c), "invalid: there is nothing to compare\n") {
		t.Errorf("nothing that is judged is told: status %d, want 4\n%s", c.Status(), written(t, c))
	}
	silent := goodLine().runs("x", 6, 0.01, r)
	for _, x := range silent {
		x.Phases[1].Latency[0].Summary = stat.Summary{}
		x.Phases[1].Latency[0].Stated = &report.Stated{Why: "no ping was answered", WhyLoss: "no ping was answered"}
	}
	if c := compared(t, silent, silent, Options{}); c.Status() != 4 {
		t.Errorf("pings that nobody answered: status %d, want 4", c.Status())
	}
}

func written(t *testing.T, c *Comparison) string {
	t.Helper()
	var b strings.Builder
	if err := c.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// An emulated link in virtual time often draws the same run whatever its seed.
func TestRunsThatAreIdenticalInEveryFigureCountOnce(t *testing.T) {
	drawn := func(side string, l line) []*report.Result {
		var out []*report.Result
		for i := range 6 {
			x := *l.result(fmt.Sprintf("%s-%d.json", side, i+1), newRand(40))
			x.Started, x.Length = x.Started.Add(time.Duration(i)*time.Hour), x.Length+time.Duration(i)
			out = append(out, &x)
		}
		return out
	}
	c := compared(t, drawn("old", goodLine()), drawn("new", goodLine().scaled(1.15)), Options{})
	if f := c.figure(t, "upload.loaded_rtt.p50"); len(f.Old.Values) != 1 || len(f.New.Values) != 1 || f.Verdict != Inconclusive {
		t.Errorf("%d and %d runs count, %s; want one each, inconclusive", len(f.Old.Values), len(f.New.Values), f.Verdict)
	}
	got := written(t, c)
	for _, want := range []string{"old: 1 run (5 of 6 excluded), new: 1 run (5 of 6 excluded)",
		"old: these 6 runs are identical in every figure: they count as one: old-1.json, old-2.json, old-3.json, old-4.json, old-5.json, old-6.json",
		"new: these 6 runs are identical in every figure: they count as one: new-1.json, "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if c.New[3].Void != "identical in every figure to new-1.json: they count as one" {
		t.Errorf("the fourth run is excluded with %q", c.New[3].Void)
	}
}

func TestRunsOnBothSidesAreNamed(t *testing.T) {
	r := newRand(41)
	six, other := goodLine().runs("x", 6, 0.02, r), goodLine().runs("y", 6, 0.02, r)
	later := *six[0]
	later.Started = later.Started.Add(time.Hour)
	for _, tt := range []struct {
		name     string
		old, new []*report.Result
		want     string
	}{
		{"one run", six[:1], six[:1], "note: both sides are the same run: that they are equal says nothing"},
		{"one run and its twin", six[:1], []*report.Result{&later}, "note: both sides are identical in every figure"},
		{"six runs", six, six, "note: both sides are the same 6 runs"},
		{"one of them", six, append(slices.Clone(other), six[2]), "note: runs of both sides are identical in every figure: old x-3.json and new x-3.json\n"},
		{"none", six, other, ""},
	} {
		got := written(t, compared(t, tt.old, tt.new, Options{}))
		if !strings.Contains(got, tt.want) || tt.want == "" && strings.Contains(got, "both sides") {
			t.Errorf("%s: want %q in\n%s", tt.name, tt.want, got)
		}
	}
}

func TestMetricsOfAllPhases(t *testing.T) {
	var names []string
	for _, f := range figuresOf(goodLine().result("x", newRand(7))) {
		names = append(names, f.Name)
		if f.why != "" && !strings.HasSuffix(f.Name, ".p99") {
			t.Errorf("%s: %s", f.Name, f.why)
		}
		if k, ok := kindOf(f.Name); !ok || k.Unit != f.Unit {
			t.Errorf("%s is of kind %+v, %v", f.Name, k, ok)
		}
	}
	for _, want := range []string{"idle_rtt.p50", "idle_rtt.p90", "idle.loss", "download.goodput", "download.fairness", "download.loaded_rtt.p50", "download.loaded_rtt.p90",
		"download.loaded_rtt.p99", "download.induced.p50", "download.induced.p90", "download.loss", "upload.goodput", "upload.loaded_rtt.max"} {
		if !slices.Contains(names, want) {
			t.Errorf("no metric %s among %v", want, names)
		}
	}
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(names) {
		t.Errorf("a name twice: %v", names)
	}
}

func TestBothDirectionsAtOnceHaveTheirOwnNames(t *testing.T) {
	x := goodLine().result("x", newRand(8))
	x.Phases[1].Name = "Both ways!"
	x.Phases[1].Goodput = append(x.Phases[1].Goodput, x.Phases[2].Goodput...)
	x.Phases[2].Name = "both_ways_"
	var names []string
	for _, f := range figuresOf(x) {
		names = append(names, f.Name)
	}
	for _, want := range []string{"both_ways_.download.goodput", "both_ways_.upload.goodput", "both_ways_.loaded_rtt.p50", "both_ways__2.loaded_rtt.p50"} {
		if !slices.Contains(names, want) {
			t.Errorf("no metric %s among %v", want, names)
		}
	}
	if !within("both_ways_.upload.goodput", "upload.goodput") || !within("x.loaded_rtt.p90", "loaded_rtt.p90") || within("x.unloaded_rtt.p90", "loaded_rtt.p90") {
		t.Error("a short name stands for the wrong metrics")
	}
}

func TestAWeakIntervalGivesWayToTheSpanOfTheSamples(t *testing.T) {
	r := newRand(9)
	x := goodLine().result("x", r)
	l := &x.Phases[1].Latency[0]
	l.MedianRange = stat.Restored(stat.Estimate{Value: l.Median, Low: l.Median - 1, High: l.Median + 1, N: l.N, NEff: 3}, true)
	i := slices.IndexFunc(figuresOf(x), func(f figure) bool { return f.Name == "download.loaded_rtt.p50" })
	if f := figuresOf(x)[i]; f.low != float64(l.P10) || f.high != float64(l.P90) {
		t.Errorf("%v to %v, want %v to %v", f.low, f.high, float64(l.P10), float64(l.P90))
	}
}

func TestMargins(t *testing.T) {
	for _, tt := range []struct {
		m    Margins
		u    Unit
		old  float64
		want float64
	}{
		{Margins{}, Delay, 10e6, 2e6}, {Margins{}, Delay, 100e6, 10e6}, {Margins{}, Rate, 20e6, 1e6}, {Margins{}, Share, 0, 0.02},
		{Margins{DelayTime: 5 * time.Millisecond}, Delay, 100e6, 5e6}, {Margins{DelayShare: 0.2}, Delay, 1e6, 0.2e6},
		{Margins{}, Delay, -100e6, 10e6}, {Margins{RateShare: 0.1, Points: 0.5}, Share, 0.3, 0.5},
	} {
		if got := tt.m.withDefaults().of(tt.u, tt.old); math.Abs(got-tt.want) > 1e-6 {
			t.Errorf("%+v of %v %s: %v, want %v", tt.m, tt.old, tt.u, got, tt.want)
		}
	}
}

func TestParseCondition(t *testing.T) {
	for _, tt := range []struct {
		text string
		want Condition
		form string
	}{
		{"loaded_rtt.p90 > 50ms", Condition{"loaded_rtt.p90", Delay, ">", 50e6}, "loaded_rtt.p90 > 50ms"},
		{"upload.loaded_rtt.p50>=0.05 s", Condition{"upload.loaded_rtt.p50", Delay, ">=", 50e6}, "upload.loaded_rtt.p50 >= 50ms"},
		{" download.goodput < 20Mbit/s ", Condition{"download.goodput", Rate, "<", 20e6}, "download.goodput < 20Mbit"},
		{"loss > 1%", Condition{"loss", Share, ">", 0.01}, "loss > 0.01"},
		{"fairness<=0.8", Condition{"fairness", Share, "<=", 0.8}, "fairness <= 0.8"},
		{"induced.p50 > -5ms", Condition{"induced.p50", Delay, ">", -5e6}, "induced.p50 > -5ms"},
		{"idle_rtt.p50 > 250us", Condition{"idle_rtt.p50", Delay, ">", 250e3}, "idle_rtt.p50 > 0.25ms"},
	} {
		got, err := ParseCondition(tt.text)
		if err != nil || got != tt.want || got.String() != tt.form {
			t.Errorf("%q: %+v (%s), %v, want %+v (%s)", tt.text, got, got, err, tt.want, tt.form)
		}
	}
	for _, tt := range []struct {
		text   string
		offset int
		reason string
	}{
		{"", 0, "want an operator"},
		{"loaded_rtt.p90 50ms", 19, "want an operator"},
		{"loaded_rtt.p80 > 50ms", 0, "no metric"},
		{" goodputs > 50Mbit", 1, "no metric"},
		{"loaded_rtt.p90 > 50", 17, "want a time with its unit"},
		{"loaded_rtt.p90 > 50Mbit", 17, "want a time with its unit"},
		{"loaded_rtt.p90 > ms", 17, "want a time with its unit"},
		{"loaded_rtt.p90 > NaNms", 17, "want a time with its unit"},
		{"loaded_rtt.p90 > 1e3ms", 17, "want a time with its unit"},
		{"loaded_rtt.p90 > 50,5ms", 17, "want a time with its unit"},
		{"loaded_rtt.p90 > 5000000s", 17, "want a time with its unit"},
		{"goodput < 20", 10, "want a rate with its unit"},
		{"loss > 101%", 7, "want a share"},
		{"loss => 1%", 0, "no metric"},
		{"a b.loss > 1%", 1, "small letters"},
		{"Upload.loss > 1%", 0, "small letters"},
		{strings.Repeat("x.", 200) + "loss > 1%", 256, "longer than"},
	} {
		_, err := ParseCondition(tt.text)
		c := (*ConditionError)(nil)
		if !errors.As(err, &c) || c.Offset != tt.offset || !strings.Contains(c.Reason, tt.reason) {
			t.Errorf("%q: %v, want %q at %d", tt.text, err, tt.reason, tt.offset)
		}
	}
}

func FuzzParseCondition(f *testing.F) {
	for _, s := range []string{"loaded_rtt.p90 > 50ms", "upload.goodput<20Mbit", "loss >= 1%", "fairness <= 0.75", "induced.p90 > -0.5us"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCondition(s)
		if err != nil {
			if e := (*ConditionError)(nil); !errors.As(err, &e) || e.Offset < 0 || e.Offset > len(s) {
				t.Fatalf("%q: %v has no place", s, err)
			}
			return
		}
		again, err := ParseCondition(c.String())
		if err != nil || again.Metric != c.Metric || again.Op != c.Op || again.Unit != c.Unit || math.Abs(again.Value-c.Value) > 1e-6+1e-12*math.Abs(c.Value) {
			t.Fatalf("%q is %+v, printed %q, which is %+v, %v", s, c, c, again, err)
		}
	})
}

func TestThresholds(t *testing.T) {
	for _, tt := range []struct {
		text   string
		harm   func(*report.Result)
		state  State
		worst  string
		status int
	}{
		{"loaded_rtt.p90 > 500ms", nil, Kept, "upload.loaded_rtt.p90", 0},
		{"loaded_rtt.p50 > 70ms", nil, Missed, "upload.loaded_rtt.p50", 3},
		{"download.loaded_rtt.p50 > 70ms", nil, Kept, "download.loaded_rtt.p50", 0},
		{"goodput < 5Mbit", nil, Missed, "upload.goodput", 3},
		{"goodput > 100Mbit", nil, Kept, "download.goodput", 0},
		{"loss > 0.5%", nil, Kept, "idle.loss", 0},
		{"upload.loaded_rtt.p90 > 500ms", func(r *report.Result) { r.Phases[2].UnderLoad = false }, CannotJudge, "", 4},
		{"loaded_rtt.p90 > 500ms", func(r *report.Result) { r.Phases[2].UnderLoad = false }, CannotJudge, "download.loaded_rtt.p90", 4},
		{"loaded_rtt.p90 > 5ms", func(r *report.Result) { r.Phases[2].UnderLoad = false }, Missed, "download.loaded_rtt.p90", 3},
		{"sideways.loaded_rtt.p90 > 5ms", nil, CannotJudge, "", 4},
		{"loaded_rtt.p99 > 500ms", nil, Kept, "upload.loaded_rtt.p99", 0},
		{"idle_rtt.p99 > 500ms", nil, CannotJudge, "", 4},
		{"loaded_rtt.p50 > 500ms", func(r *report.Result) {
			r.Findings = []bufferbloat.Finding{{Code: "probes_late", Severity: bufferbloat.Voids, Text: "late"}}
		}, CannotJudge, "", 4},
		{"idle_rtt.p50 > 500ms", func(r *report.Result) { r.Phases[0].Latency[0] = goodLine().latency(40*msec, 5, newRand(11)) }, CannotJudge, "", 4},
	} {
		c, err := ParseCondition(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		x := goodLine().result("x", newRand(10))
		if tt.harm != nil {
			tt.harm(x)
		}
		got := compared(t, nil, []*report.Result{x}, Options{FailIf: []Condition{c}})
		if j := got.Conditions[0]; j.State != tt.state || j.Worst != tt.worst || got.Status() != tt.status {
			t.Errorf("%s: %s (%s), worst %q, status %d; want %s, %q, %d", tt.text, j.State, j.Why, j.Worst, got.Status(), tt.state, tt.worst, tt.status)
		}
		if j := got.Conditions[0]; j.State == CannotJudge && j.Why == "" {
			t.Errorf("%s: it does not say why it cannot be judged", tt.text)
		}
	}
}

func TestTheNotesSayWhereRunsAreNotAlike(t *testing.T) {
	r := newRand(12)
	old, now := goodLine().runs("old", 2, 0, r), goodLine().runs("new", 2, 0, r)
	if c := compared(t, old, now, Options{}); len(c.Notes) != 0 {
		t.Errorf("like runs: %v", c.Notes)
	}
	now[1].Path.Family, now[0].Path.Host = "IPv6", "other.example"
	now[0].Plan.Phases = []bufferbloat.PhasePlan{{Name: "download", Length: 10 * time.Second, Flows: make([]bufferbloat.FlowPlan, 2)}}
	got := fmt.Sprint(compared(t, old, now, Options{}).Notes)
	for _, want := range []string{"IPv6", "other.example", "download 10s with 2 flows"} {
		if !strings.Contains(got, want) {
			t.Errorf("the notes do not name %s: %s", want, got)
		}
	}
}
