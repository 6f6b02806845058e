package compare

import (
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/report"
)

func TestPagesAreFiguresWhereTheyWereLoaded(t *testing.T) {
	score := 25.0
	enough, few := &report.PageTime{N: 10, Median: time.Second}, &report.PageTime{N: 9, Median: time.Second}
	for name, c := range map[string]struct {
		pages       []report.PageScore
		time, score string // what is wrong with them; "absent" where there is no such figure
	}{
		"none":            {nil, "absent", "absent"},
		"of another load": {[]report.PageScore{{Phase: "down"}}, "absent", "absent"},
		"both":            {[]report.PageScore{{Phase: "up", Score: &score, Idle: enough, Loaded: enough}}, "", ""},
		"few before":      {[]report.PageScore{{Phase: "up", Score: &score, Idle: few, Loaded: enough}}, "", "9 pages are too few for a percentile"},
		"few under load":  {[]report.PageScore{{Phase: "up", Score: &score, Idle: enough, Loaded: few}}, "9 pages are too few for a percentile", "9 pages are too few for a percentile"},
		"none under load": {[]report.PageScore{{Phase: "up", Reason: "gone", Idle: enough}}, "gone", "gone"},
	} {
		r := &report.Result{Phases: []report.Phase{{Name: "up", Kind: bufferbloat.Load, Reached: true, UnderLoad: true}}, PageScores: c.pages}
		got := map[string]string{"up.page_time.p50": "absent", "up.page_score": "absent"}
		for _, f := range figuresOf(r) {
			if _, ok := got[f.Name]; ok {
				got[f.Name] = f.why
				if f.why == "" && (f.Unit == Delay && f.value != 1e9 || f.Unit == Share && f.value != 0.25) {
					t.Errorf("%s: %s is %v", name, f.Name, f.value)
				}
			}
		}
		if got["up.page_time.p50"] != c.time || got["up.page_score"] != c.score {
			t.Errorf("%s: %q, want %q and %q", name, got, c.time, c.score)
		}
	}
}
