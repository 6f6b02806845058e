package batch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/statefile"
)

// Runner carries out a batch in a folder. All of its functions but Gap and Tell must be set.
type Runner struct {
	Dir   string           // the folder, which exists
	Clock host.Clock       // for pauses
	Wall  func() time.Time // wall clock, for the index
	// Measure makes one run and writes its recording to file. It returns the run's exit status, and an error where there is no recording.
	Measure func(ctx context.Context, r *Run, file string) (status int, err error)
	// Whole reports whether a file is a whole recording, and the exit status of its run.
	Whole func(file string) (status int, ok bool)
	// Hook runs a hook's command with further variables of the environment. It returns soon after ctx is done.
	Hook func(ctx context.Context, h Hook, env []string) error
	// Gap is how long to wait between the end of a run and the beginning of r at least; nil for the batch's pause alone.
	Gap func(r *Run) time.Duration
	// Tell is told what happens, a line at a time; nil for nobody.
	Tell func(line string)
	// Retry has runs that failed made again.
	Retry bool
}

// Run makes the runs of ix that are left, one after the other. The index is written before and after each of them, and a recording takes its name
// in the folder when it is whole, so that a process that is killed at any moment leaves no half recording among whole ones. Run returns the cause of ctx where
// that ended it; the run under way is then made again by the next call. A run that fails does not end the batch.
func (x *Runner) Run(ctx context.Context, b *Batch, ix *Index) error {
	runs, err := b.Runs()
	if err != nil {
		return err
	}
	unlock, err := statefile.Lock(ctx, x.Clock, filepath.Join(x.Dir, ".lock"))
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }()
	// What another process did between the caller's look at the index and the lock counts.
	switch last, err := ReadIndex(x.Dir); {
	case err == nil:
		if err := last.Fits(b, ix.Given); err != nil {
			return err
		}
		*ix = *last
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := x.settle(ix); err != nil {
		return err
	}
	if err := x.around(ctx, ix, "before_all", b.BeforeAll, b.envAll(len(runs))); err != nil {
		return errors.Join(err, x.around(ctx, ix, "after_all", b.AfterAll, b.envAll(len(runs))))
	}
	err = x.all(ctx, b, ix, runs)
	err = errors.Join(err, x.around(context.WithoutCancel(ctx), ix, "after_all", b.AfterAll, b.envAll(len(runs))))
	if ix.Count(Planned)+ix.Count(Running) == 0 {
		now := x.Wall().UTC().Round(time.Second)
		ix.Ended = &now
	}
	return errors.Join(err, x.save(ix))
}

// settle finds out what became of runs that were under way when another process ended.
func (x *Runner) settle(ix *Index) error {
	for i := range ix.Runs {
		d := &ix.Runs[i]
		file := filepath.Join(x.Dir, d.File)
		if err := removeAny(x.part(d.File)); err != nil {
			return err
		}
		switch d.State {
		case Running, Planned:
			d.State = Planned
			if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			status, ok := x.Whole(file)
			if !ok || d.Attempts == 0 {
				return fmt.Errorf("%s is there, and is no recording of this batch; move it away", file)
			}
			d.State, d.Status = Done, &status // the process ended between the recording's name and the index
		case Failed:
			if x.Retry {
				d.State = Planned
			}
		case Done:
			if _, ok := x.Whole(file); !ok {
				return fmt.Errorf("%s is in the index and is no whole recording; put it back, or begin a new folder", file)
			}
		}
	}
	return x.save(ix)
}

// part is the name of a recording while it grows. It is hidden, so that the folder is a set of whole recordings at any time.
func (x *Runner) part(file string) string { return filepath.Join(x.Dir, "."+file+".part") }

func removeAny(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (x *Runner) save(ix *Index) error {
	if err := statefile.Replace(filepath.Join(x.Dir, IndexFile), ix); err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	return nil
}

func (x *Runner) tell(format string, args ...any) {
	if x.Tell != nil {
		x.Tell(fmt.Sprintf(format, args...))
	}
}

// all makes the runs that are planned.
func (x *Runner) all(ctx context.Context, b *Batch, ix *Index, runs []Run) error {
	var ended time.Time // when the last run did
	for i := range runs {
		d := &ix.Runs[i]
		if d.State != Planned {
			continue
		}
		if !ended.IsZero() {
			pause := b.Pause
			if x.Gap != nil {
				pause = max(pause, x.Gap(&runs[i]))
			}
			if err := x.Clock.SleepUntil(ctx, ended.Add(pause)); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		x.tell("run %d of %d, repetition %d: %s", d.Number, len(runs), d.Repetition, runs[i].Label())
		if err := x.one(ctx, b, ix, &runs[i], len(runs)); err != nil {
			return err
		}
		ended = x.Clock.Now()
		x.told(d)
	}
	return nil
}

func (x *Runner) told(d *RunDoc) {
	switch {
	case d.State == Failed:
		x.tell("run %d failed: %s", d.Number, d.Error)
	case d.Status != nil && *d.Status != 0:
		x.tell("run %d is void or partial (status %d); the recording is kept", d.Number, *d.Status)
	}
}

// one makes one run with its hooks, and keeps the index. An error ends the batch.
func (x *Runner) one(ctx context.Context, b *Batch, ix *Index, r *Run, of int) error {
	d := &ix.Runs[r.Number-1]
	now := x.Wall().UTC().Round(time.Second)
	d.State, d.Status, d.Error, d.Hooks, d.Started, d.Ended = Running, nil, "", nil, &now, nil
	d.Attempts++
	if err := x.save(ix); err != nil {
		return err
	}
	file := filepath.Join(x.Dir, d.File)
	env := b.env(r, of, file)
	notes, err := x.hooks(ctx, "before", r.Before, env)
	d.Hooks = append(d.Hooks, notes...)
	status := 1
	if err == nil {
		status, err = x.measure(ctx, r, d.File)
	}
	// What before has set up is taken down also where the run was interrupted.
	notes, afterErr := x.hooks(context.WithoutCancel(ctx), "after", r.After, append(env, "BLOAT_STATUS="+strconv.Itoa(status)))
	d.Hooks = append(d.Hooks, notes...)
	x.judge(ctx, d, status, err)
	if err := x.save(ix); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), afterErr)
	}
	if afterErr != nil {
		return fmt.Errorf("run %d: %w; what it was to take down may still stand, so no further run is made", r.Number, afterErr)
	}
	return nil
}

// judge says in the index what became of a run.
func (x *Runner) judge(ctx context.Context, d *RunDoc, status int, err error) {
	if ctx.Err() != nil {
		d.State, d.Started = Planned, nil
		return
	}
	now := x.Wall().UTC().Round(time.Second)
	d.Status, d.Ended, d.State = &status, &now, Done
	if err != nil {
		d.State, d.Error = Failed, err.Error()
	}
}

// measure makes a run and gives the recording its name once it is whole.
func (x *Runner) measure(ctx context.Context, r *Run, name string) (status int, err error) {
	part := x.part(name)
	status, err = x.Measure(ctx, r, part)
	if err == nil && ctx.Err() == nil {
		if _, ok := x.Whole(part); !ok {
			err = errors.New("it left no whole recording")
		}
	}
	if err == nil && ctx.Err() == nil {
		err = publish(part, filepath.Join(x.Dir, name))
	}
	if err != nil || ctx.Err() != nil {
		if status == 0 {
			status = 1
		}
		return status, errors.Join(err, removeAny(part))
	}
	return status, nil
}

// publish makes sure that a file is on the disk, and gives it its name.
func publish(part, file string) error {
	f, err := os.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, file)
}

// hooks runs commands one after the other until an essential one fails, and returns those that did not succeed.
func (x *Runner) hooks(ctx context.Context, when string, hooks []Hook, env []string) ([]HookDoc, error) {
	var notes []HookDoc
	for _, h := range hooks {
		bounded, cancel := host.WithTimeout(ctx, x.Clock, h.Timeout)
		err := x.Hook(bounded, h, env)
		if errors.Is(context.Cause(bounded), context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("not done within %v", h.Timeout)
		}
		cancel()
		if err == nil {
			continue
		}
		notes = append(notes, HookDoc{When: when, Command: h.Command, Essential: h.Essential, Error: err.Error()})
		x.tell("%s: %s: %v", when, h.Command, err)
		if h.Essential {
			return notes, fmt.Errorf("%s: %s: %w", when, h.Command, err)
		}
	}
	return notes, nil
}

// around runs the hooks around the batch.
func (x *Runner) around(ctx context.Context, ix *Index, when string, hooks []Hook, env []string) error {
	if len(hooks) == 0 {
		return nil
	}
	notes, err := x.hooks(ctx, when, hooks, env)
	ix.Hooks = append(ix.Hooks, notes...)
	return errors.Join(err, x.save(ix))
}
