package batch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bufferbloat/internal/host"
)

// bench is a runner whose runs write a word to their file: "whole" to a whole recording.
type bench struct {
	*Runner
	log     []string                                       // what was done, in order
	measure func(ctx context.Context, r *Run) (int, error) // beside writing the file; nil for success
	hook    func(h Hook) error
}

func newBench(dir string) *bench {
	x := &bench{}
	x.Runner = &Runner{Dir: dir, Clock: host.NewKernel(), Wall: time.Now,
		Measure: func(ctx context.Context, r *Run, file string) (int, error) {
			x.log = append(x.log, "run "+r.Label())
			if err := os.WriteFile(file, []byte("half"), 0o666); err != nil {
				return 1, err
			}
			status := 0
			if x.measure != nil {
				var err error
				if status, err = x.measure(ctx, r); err != nil {
					return status, err
				}
			}
			return status, os.WriteFile(file, []byte("whole"), 0o666)
		},
		Whole: func(file string) (int, bool) {
			b, err := os.ReadFile(file)
			return 0, err == nil && string(b) == "whole"
		},
		Hook: func(_ context.Context, h Hook, env []string) error {
			x.log = append(x.log, h.Command)
			if x.hook != nil {
				return x.hook(h)
			}
			return nil
		},
	}
	return x
}

const threeRuns = "batch: {name: t, plan: p, order: listed, pause: 10s, before: set, after: clear, before_all: begin, after_all: end, matrix: {x: [A, B, C]}}"

// begin runs a batch from its first run on.
func (x *bench) begin(t *testing.T, ctx context.Context, b *Batch) (*Index, error) {
	t.Helper()
	ix, err := b.NewIndex("v1", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ix, x.Run(ctx, b, ix)
}

// checkFolder checks that the folder holds the whole recordings of the runs that are done, the index, and nothing that a reader could take for a run.
func checkFolder(t *testing.T, dir string) *Index {
	t.Helper()
	ix, err := ReadIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	checkIndex(t, ix)
	want := []string{IndexFile}
	for _, r := range ix.Runs {
		if r.State == Done {
			want = append(want, r.File)
			if b, err := os.ReadFile(filepath.Join(dir, r.File)); err != nil || string(b) != "whole" {
				t.Errorf("run %d is done, and its file holds %q, %v", r.Number, b, err)
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if e.Name() != ".lock" {
			got = append(got, e.Name())
		}
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the folder holds %q, want %q", got, want)
	}
	return ix
}

func TestRunsHooksAndPausesComeInOrder(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		x := newBench(dir)
		began := time.Now()
		if _, err := x.begin(t, t.Context(), read(t, threeRuns)); err != nil {
			t.Fatal(err)
		}
		want := "begin|set|run x=A|clear|set|run x=B|clear|set|run x=C|clear|end"
		if got := strings.Join(x.log, "|"); got != want {
			t.Errorf("done: %s, want %s", got, want)
		}
		if got := time.Since(began); got != 20*time.Second {
			t.Errorf("it took %v, want two pauses of 10 s", got)
		}
		if ix := checkFolder(t, dir); ix.Count(Done) != 3 || ix.Ended == nil {
			t.Errorf("%+v, want three runs done, and an end", ix)
		}
	})
}

func TestTheGapOfAServerIsKeptWhereItIsLonger(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		x := newBench(dir)
		x.Gap = func(r *Run) time.Duration { return time.Duration(r.Number) * 6 * time.Second }
		began := time.Now()
		if _, err := x.begin(t, t.Context(), read(t, threeRuns)); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(began); got != 30*time.Second {
			t.Errorf("it took %v, want gaps of 12 and 18 s", got)
		}
	})
}

func TestARunThatFailsDoesNotEndTheBatch(t *testing.T) {
	t.Parallel()
	dir, x := t.TempDir(), (*bench)(nil)
	x = newBench(dir)
	fail := true
	x.measure = func(_ context.Context, r *Run) (int, error) {
		switch {
		case r.Number == 1:
			return 4, nil
		case r.Number == 2 && fail:
			return 1, errors.New("connection refused")
		}
		return 0, nil
	}
	b := read(t, strings.Replace(threeRuns, "pause: 10s, ", "", 1))
	ix, err := x.begin(t, t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	checkFolder(t, dir)
	states := fmt.Sprintf("%s %d, %s %d %q, %s %d", ix.Runs[0].State, *ix.Runs[0].Status, ix.Runs[1].State, *ix.Runs[1].Status, ix.Runs[1].Error, ix.Runs[2].State, *ix.Runs[2].Status)
	if want := `done 4, failed 1 "connection refused", done 0`; states != want {
		t.Errorf("got %s, want %s", states, want)
	}
	// Resumed, a failed run stays as it is; with Retry it is made again.
	x.log, fail = nil, false
	if err := x.Run(t.Context(), b, ix); err != nil || slices.Contains(x.log, "run x=B") {
		t.Errorf("resumed: %v, %q, want no run", err, x.log)
	}
	x.Retry = true
	if err := x.Run(t.Context(), b, ix); err != nil || !slices.Contains(x.log, "run x=B") || slices.Contains(x.log, "run x=A") {
		t.Errorf("retried: %v, %q, want the failed run alone", err, x.log)
	}
	if ix := checkFolder(t, dir); ix.Count(Done) != 3 || ix.Runs[1].Attempts != 2 {
		t.Errorf("%+v, want three runs done, the second at its second attempt", ix.Runs)
	}
}

func TestHooksThatFail(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text, bad string // the hook that fails
		log       string
		err       string
		states    string
	}{
		"before, essential: the run is not made, and what was set up is taken down": {threeRuns, "set", "begin|set|clear|set|clear|set|clear|end", "", "failed failed failed"},
		"before, not essential: the run is made": {strings.Replace(threeRuns, "before: set", "before: {run: set, essential: false}", 1), "set",
			"begin|set|run x=A|clear|set|run x=B|clear|set|run x=C|clear|end", "", "done done done"},
		"after, essential: no further run":        {threeRuns, "clear", "begin|set|run x=A|clear|end", "may still stand", "done planned planned"},
		"before all, essential: nothing is begun": {threeRuns, "begin", "begin|end", "begin", "planned planned planned"},
		"after all: said":                         {threeRuns, "end", "begin|set|run x=A|clear|set|run x=B|clear|set|run x=C|clear|end", "end", "done done done"},
	} {
		dir := t.TempDir()
		x := newBench(dir)
		x.hook = func(h Hook) error {
			if h.Command == tt.bad {
				return errors.New("exit status 1")
			}
			return nil
		}
		_, err := x.begin(t, t.Context(), read(t, strings.Replace(tt.text, "pause: 10s, ", "", 1)))
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want an error with %q", name, err, tt.err)
		}
		if got := strings.Join(x.log, "|"); got != tt.log {
			t.Errorf("%s: done %s, want %s", name, got, tt.log)
		}
		var states []string
		noted := 0
		ix := checkFolder(t, dir)
		for _, r := range ix.Runs {
			states = append(states, string(r.State))
			noted += len(r.Hooks)
		}
		if got := strings.Join(states, " "); got != tt.states || noted+len(ix.Hooks) == 0 {
			t.Errorf("%s: the index says %s with %d hooks noted, want %s and some", name, got, noted, tt.states)
		}
	}
}

// A process can be killed at any moment. Here it dies, as far as the folder can tell, where a function panics.
func TestABatchThatIsKilledGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	killed := errors.New("killed")
	for name, arm := range map[string]func(x *bench){
		"with a recording half written": func(x *bench) {
			x.measure = func(_ context.Context, r *Run) (int, error) {
				if r.Number == 2 {
					panic(killed)
				}
				return 0, nil
			}
		},
		"before the recording has its name": func(x *bench) {
			whole := x.Whole
			x.Whole = func(file string) (int, bool) {
				if strings.Contains(file, "2-B") {
					panic(killed)
				}
				return whole(file)
			}
		},
		"before the index says that it is done": func(x *bench) {
			cleared := 0
			x.hook = func(h Hook) error {
				if h.Command == "clear" {
					if cleared++; cleared == 2 {
						panic(killed)
					}
				}
				return nil
			}
		},
		"before the run": func(x *bench) {
			set := 0
			x.hook = func(h Hook) error {
				if h.Command == "set" {
					if set++; set == 2 {
						panic(killed)
					}
				}
				return nil
			}
		},
	} {
		dir := t.TempDir()
		b := read(t, strings.Replace(threeRuns, "pause: 10s, ", "", 1))
		x := newBench(dir)
		arm(x)
		func() {
			defer func() {
				if r := recover(); r != any(killed) {
					t.Fatalf("%s: it ended with %v", name, r)
				}
			}()
			_, err := x.begin(t, t.Context(), b)
			t.Fatalf("%s: it was not killed, %v", name, err)
		}()
		before, err := ReadIndex(dir)
		if err != nil || before.Runs[1].State != Running {
			t.Fatalf("%s: the index says %+v, %v, want the second run under way", name, before, err)
		}
		y := newBench(dir)
		if err := y.Run(t.Context(), b, before); err != nil {
			t.Errorf("%s: resumed: %v", name, err)
		}
		ix := checkFolder(t, dir)
		if ix.Count(Done) != 3 || ix.Runs[0].Attempts != 1 || slices.Contains(y.log, "run x=A") || !slices.Contains(y.log, "run x=C") {
			t.Errorf("%s: resumed, it did %q, and the index says %+v", name, y.log, ix.Runs)
		}
	}
}

func TestAnInterruptedRunIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	x := newBench(dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	x.measure = func(_ context.Context, r *Run) (int, error) {
		if r.Number == 2 {
			cancel(interrupted)
			return 130, nil // with the partial recording written, as a run does
		}
		return 0, nil
	}
	b := read(t, strings.Replace(threeRuns, "pause: 10s, ", "", 1))
	ix, err := x.begin(t, ctx, b)
	if !errors.Is(err, interrupted) {
		t.Errorf("it ended with %v, want the cause", err)
	}
	if want := "begin|set|run x=A|clear|set|run x=B|clear|end"; strings.Join(x.log, "|") != want {
		t.Errorf("done: %q, want %q: what was set up is taken down", x.log, want)
	}
	checkFolder(t, dir)
	y := newBench(dir)
	if err := y.Run(t.Context(), b, ix); err != nil {
		t.Fatal(err)
	}
	if want := "begin|set|run x=B|clear|set|run x=C|clear|end"; strings.Join(y.log, "|") != want {
		t.Errorf("resumed: %q, want %q", y.log, want)
	}
	if ix := checkFolder(t, dir); ix.Count(Done) != 3 || ix.Runs[1].Attempts != 2 {
		t.Errorf("%+v, want three runs done", ix.Runs)
	}
}

func TestAHookThatHangsIsEnded(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		x := newBench(dir)
		x.Hook = func(ctx context.Context, h Hook, _ []string) error {
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		b := read(t, "batch: {name: t, plan: p, before: {run: hang, timeout: 3}}")
		ix, err := x.begin(t, t.Context(), b)
		if err != nil || ix.Runs[0].State != Failed || !strings.Contains(ix.Runs[0].Error, "not done within 3s") || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v, %+v: want the run failed after 3 s", err, time.Since(began), ix.Runs[0])
		}
	})
}

func TestAFolderHoldsOneBatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := "batch: {name: t, plan: p, matrix: {x: [A, B]}}"
	x, b := newBench(dir), read(t, text)
	ix, err := x.begin(t, t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	if err := ix.Fits(b, nil); err != nil {
		t.Errorf("the same batch: %v", err)
	}
	for name, tt := range map[string]struct {
		text  string
		given []string
		want  string
	}{
		"a comment more":  {text + " # longer", nil, "has changed"},
		"another name":    {strings.Replace(text, "name: t", "name: u", 1), nil, `not of "u"`},
		"other arguments": {text, []string{"--lab"}, "want the same"},
	} {
		other := read(t, tt.text)
		if err := ix.Fits(other, tt.given); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, tt.want)
		}
	}
	if err := os.Remove(filepath.Join(dir, ix.Runs[0].File)); err != nil {
		t.Fatal(err)
	}
	if err := x.Run(t.Context(), b, ix); err == nil || !strings.Contains(err.Error(), "no whole recording") {
		t.Errorf("a recording that is gone: %v, want an error", err)
	}
}

func TestAFileOfSomebodyElseIsNotOverwritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := read(t, "batch: {name: t, plan: p}")
	foreign := filepath.Join(dir, runsOf(t, b)[0].File)
	if err := os.WriteFile(foreign, []byte("whole"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := newBench(dir).begin(t, t.Context(), b); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("got %v, want an error", err)
	}
}
