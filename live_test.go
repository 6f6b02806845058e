package bufferbloat_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/servers/lab"
)

func TestProgressTellsWhatARunHasSeen(t *testing.T) {
	var seen []bufferbloat.Progress
	r := rig{link: lab.Config{Down: 4_000_000, RTT: 20 * time.Millisecond}, options: bufferbloat.RunOptions{ProgressEvery: 250 * time.Millisecond},
		progress: func(p bufferbloat.Progress, _ func()) { seen = append(seen, p) }}
	rec, err := r.run(t, t.Context(), one(4*time.Second, bufferbloat.FlowPlan{Name: "down", Direction: load.Download}))
	if err != nil {
		t.Fatal(err)
	}
	var answered int
	fast := 0
	left := 6 * time.Second
	for i, p := range seen {
		if len(p.Delays) != 1 || p.Delays[0].Series != "ping" || !p.Delays[0].Primary {
			t.Fatalf("progress %d has the delays %+v", i, p.Delays)
		}
		d := p.Delays[0]
		answered += d.Answered
		if d.Answered > 0 && (d.Mean < 20*time.Millisecond || d.Highest < d.Mean || d.Last > d.Highest) {
			t.Errorf("progress %d has the delays %+v", i, d)
		}
		if p.Left > left || p.Elapsed < 0 {
			t.Errorf("%v are left after %v before", p.Left, left)
		}
		left = p.Left
		for _, rate := range p.Rates {
			if rate.OK && rate.Rate > 3_500_000 && rate.Rate < 4_000_000 {
				fast++
			}
		}
	}
	if replies := len(rec.Probes[0].Samples); answered < replies-2 || answered > replies {
		t.Errorf("%d replies were told of, %d are in the recording", answered, replies)
	}
	if fast < 10 {
		t.Errorf("%d times of 16 the rate was about the link's", fast)
	}
	last := seen[len(seen)-1]
	if f := last.Flows; left != 0 || !last.Finished || f.Planned != 1 || f.Begun != 1 || f.Ended != 1 || f.Failed != 0 {
		t.Errorf("the last progress is %+v", last)
	}
	if got, all := last.Rates[0].Bytes, rec.Flows[0].Result.Bytes; got > all || got < all*9/10 {
		t.Errorf("%d of %d bytes were told of", got, all)
	}
}

func TestNoRateOfSeveralFlowsIsAboveTheLinks(t *testing.T) {
	const link = 4_000_000
	told := 0
	r := rig{link: lab.Config{Down: link, RTT: 20 * time.Millisecond}, options: bufferbloat.RunOptions{ProgressEvery: 250 * time.Millisecond},
		progress: func(p bufferbloat.Progress, _ func()) {
			for _, rate := range p.Rates {
				if told++; rate.OK && rate.Rate > link {
					t.Errorf("%v of %v at %v of %s", rate.Rate, bitrate.Bitrate(link), p.Elapsed, p.Phase)
				}
			}
		}}
	var flows []bufferbloat.FlowPlan
	for _, name := range []string{"a", "b", "c", "d"} {
		flows = append(flows, bufferbloat.FlowPlan{Name: name, Direction: load.Download})
	}
	if _, err := r.run(t, t.Context(), one(2*time.Second, flows...)); err != nil || told < 7 {
		t.Errorf("%d rates, %v", told, err)
	}
}

func TestEventsComeInTheirOrderAndTellAll(t *testing.T) {
	var kinds []string
	last := time.Duration(-1)
	r := rig{link: light, options: bufferbloat.RunOptions{Event: func(e bufferbloat.Event) {
		if e.At < last {
			t.Errorf("an event at %v after one at %v", e.At, last)
		}
		last = e.At
		switch {
		case e.Began != nil:
			kinds = append(kinds, "begin "+e.Began.Name)
		case e.Ended != nil:
			kinds = append(kinds, "end "+e.Ended.Name)
			if e.Ended.Name == "load" && e.Ended.To <= e.Ended.From {
				t.Errorf("the window of a load that is over is %+v", e.Ended)
			}
		case e.Flow != nil && e.Flow.Error != "":
			kinds = append(kinds, "no "+e.Flow.Name)
		case e.Flow != nil:
			kinds = append(kinds, "flow "+e.Flow.Name)
		case e.FlowOver != nil:
			kinds = append(kinds, "over "+e.FlowOver.Name)
			if e.FlowOver.Result.Bytes == 0 {
				t.Errorf("a flow that is over has no bytes: %+v", e.FlowOver)
			}
		case e.Finding != nil && e.Finding.Code == "streams_missing":
			kinds = append(kinds, "finding")
		}
	}}}
	p := one(2*time.Second, bufferbloat.FlowPlan{Name: "a", Direction: load.Download},
		bufferbloat.FlowPlan{Name: "b", Direction: load.Download, Start: time.Second},
		bufferbloat.FlowPlan{Name: "c", Direction: load.Download, Server: "nobody"})
	p.Others = []bufferbloat.Server{{Name: "nobody", Host: "192.0.2.77", NetperfPort: 12865, IRTTPort: 2112}}
	if _, err := r.run(t, t.Context(), p); err != nil {
		t.Fatal(err)
	}
	want := []string{"begin idle", "end idle", "begin load", "no c", "flow a", "flow b", "over a", "over b", "end load", "finding"}
	if slices.Sort(kinds[6:8]); !slices.Equal(kinds, want) {
		t.Errorf("got  %q\nwant %q", kinds, want)
	}
}

func TestARunThatIsStoppedBeforeItsFlowsBeginGivesThemUp(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	r := rig{progress: func(p bufferbloat.Progress, _ func()) {
		if p.Phase == "idle" {
			stop(errors.New("interrupted"))
		}
	}}
	rec, err := r.run(t, ctx, one(2*time.Second, bufferbloat.FlowPlan{Name: "a", Direction: load.Download}))
	if err != nil || rec.Stopped != "interrupted" || len(rec.Flows) != 0 {
		t.Errorf("got %+v, %v; want a recording that was interrupted and has no flow", rec, err)
	}
}
