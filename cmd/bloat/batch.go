package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"bufferbloat"
	"bufferbloat/batch"
	"bufferbloat/cmd/internal/program"
	"bufferbloat/internal/host"
	"bufferbloat/internal/statefile"
	"bufferbloat/internal/yamlnode"
	"bufferbloat/report"
)

// batchFlags are the flags of bloat run that only a batch has.
type batchFlags struct {
	resume string
	retry  bool
}

func (f *batchFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.resume, "resume", "", "batch: go on in this folder, where an earlier one was interrupted")
	flags.BoolVar(&f.retry, "retry-failed", false, "batch: with --resume, make the runs again that failed")
}

// byBatch are the flags of bloat run that a batch looks after itself, and does not hand on to its runs.
var byBatch = []string{"output", "dry-run", "json", "resume", "retry-failed", "passphrase"}

// notInBatch are the flags of bloat run that can't be given to a batch, because they are of one result.
var notInBatch = []string{"format", "against", "html", "grades", "events"}

// batchFile reads the batch of a file, or returns nil where the file is that of something else.
func batchFile(path string) (*batch.Batch, error) {
	if !isPlanFile(path) || path == "-" {
		return nil, nil
	}
	if err := checkRegular(path); err != nil {
		return nil, err
	}
	text, err := statefile.Read(path, yamlnode.MaxBytes)
	if err != nil {
		return nil, err
	}
	if !batch.Is(text) {
		return nil, nil
	}
	return batch.Read(path, text)
}

// batchRun is a batch under way.
type batchRun struct {
	*app
	batch      *batch.Batch
	file       string // of the batch
	dir        string // of its recordings
	given      []string
	passphrase string
	directory  *directoryFlags

	runs  []batch.Run
	plans map[string]bufferbloat.Plan // of a run's arguments
	log   io.Writer
}

// runBatch carries out a batch, or prints what it would do.
func (a *app) runBatch(cmd *cobra.Command, f *runFlags, b *batch.Batch, file string) error {
	given, err := givenFlags(cmd.Flags())
	if err != nil {
		return &usageError{err}
	}
	x := &batchRun{app: a, batch: b, file: file, given: given, passphrase: f.passphrase, directory: &f.directory, plans: map[string]bufferbloat.Plan{}}
	if x.runs, err = b.Runs(); err != nil {
		return &usageError{err}
	}
	ix, err := x.folder(f)
	if err != nil {
		return &usageError{err}
	}
	if err := x.plan(cmd.Context()); err != nil {
		return err
	}
	if f.dryRun {
		return x.print(ix, f.json)
	}
	return x.run(cmd.Context(), f, ix)
}

// givenFlags returns the flags of the command line that are for each run.
func givenFlags(flags *pflag.FlagSet) ([]string, error) {
	var out []string
	var bad []error
	flags.Visit(func(g *pflag.Flag) {
		switch list, isList := g.Value.(pflag.SliceValue); {
		case slices.Contains(notInBatch, g.Name):
			bad = append(bad, fmt.Errorf("--%s is of one run; show or compare the folder of the batch", g.Name))
		case slices.Contains(byBatch, g.Name):
		case isList:
			for _, v := range list.GetSlice() {
				out = append(out, "--"+g.Name+"="+v)
			}
		default:
			out = append(out, "--"+g.Name+"="+g.Value.String())
		}
	})
	return out, errors.Join(bad...)
}

// args is the command line of a run, without its name.
func (x *batchRun) args(r *batch.Run, further ...string) []string {
	own := r.Args()
	if i := len(own) - 1; isPlanFile(own[i]) && !filepath.IsAbs(own[i]) { // beside the batch's own file
		own[i] = filepath.Join(filepath.Dir(x.file), own[i])
		if !isPlanFile(own[i]) {
			own[i] = "." + string(os.PathSeparator) + own[i]
		}
	}
	args := []string{"run"}
	for _, given := range x.given {
		if len(r.Hosts) == 0 || !strings.HasPrefix(given, "--host=") { // the command line's servers are for runs that name none
			args = append(args, given)
		}
	}
	return append(append(args, further...), own...)
}

// commandLine is the program's command line for a run's args, with the passphrase, which is written down nowhere.
func (x *batchRun) commandLine(args []string) []string {
	line := []string{"bloat", args[0]}
	if x.passphrase != "" {
		line = append(line, "--passphrase="+x.passphrase)
	}
	return append(line, args[1:]...)
}

// forbidden are flags that a batch's file may not give its runs.
var forbidden = append(slices.Clone(notInBatch), byBatch...)

// plan has every run say what it would do, so that a mistake, or a server's rule, is known before the first one begins.
func (x *batchRun) plan(ctx context.Context) error {
	for i := range x.runs {
		r := &x.runs[i]
		for _, flag := range r.Flags {
			name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
			if strings.HasPrefix(flag, "--") && slices.Contains(forbidden, name) || strings.HasPrefix(flag, "-o") || strings.HasPrefix(flag, "-Z") {
				return &usageError{fmt.Errorf("run %d (%s): the flag %s is not for a batch's file", r.Number, r.Label(), flag)}
			}
		}
		args := x.args(r, "--dry-run", "--json")
		key := strings.Join(args, "\x00")
		plan, ok := x.plans[key]
		if !ok {
			var err error
			if plan, err = x.dryRun(ctx, args); err != nil {
				return &usageError{fmt.Errorf("run %d (%s): %w", r.Number, r.Label(), err)}
			}
			x.plans[key] = plan
			if _, err := x.directory.publicServers(&plan, "a batch"); err != nil {
				return err
			}
		}
	}
	return nil
}

// planOfRun is the plan of a run, which plan has made.
func (x *batchRun) planOfRun(r *batch.Run) bufferbloat.Plan {
	return x.plans[strings.Join(x.args(r, "--dry-run", "--json"), "\x00")]
}

// child is the program as a run of the batch uses it.
func (x *batchRun) child(stdout, stderr io.Writer) *app {
	return &app{stdout: stdout, stderr: stderr, version: x.version, now: x.now, screen: x.screen, progress: x.progress, uninterrupt: func() {}, automation: "a batch"}
}

func (x *batchRun) dryRun(ctx context.Context, args []string) (plan bufferbloat.Plan, err error) {
	var out, complaints bytes.Buffer
	c := x.child(&out, &complaints)
	if status := c.run(ctx, x.commandLine(args)); status != 0 {
		return plan, errors.New(lastComplaint(complaints.String()))
	}
	var doc struct {
		Plan *bufferbloat.Plan `json:"plan"`
	}
	doc.Plan = &plan
	return plan, json.Unmarshal(out.Bytes(), &doc)
}

// lastComplaint is the last thing that the program said on stderr about why it did not go on.
func lastComplaint(stderr string) string {
	const mark = "bloat: "
	last := "it ended without a word"
	for line := range strings.Lines(stderr) {
		if text, ok := strings.CutPrefix(line, mark); ok {
			last = strings.TrimSpace(text)
		}
	}
	return last
}

// folder returns the index to begin or to go on with, and settles the folder's name.
func (x *batchRun) folder(f *runFlags) (*batch.Index, error) {
	if f.batch.resume == "" {
		if f.batch.retry {
			return nil, errors.New("--retry-failed goes with --resume")
		}
		if x.dir = f.output; x.dir == "" {
			x.dir = x.batch.Name + "-" + x.now().Format("20060102-150405")
		}
		return x.batch.NewIndex(x.version, x.given, x.now())
	}
	if f.output != "" {
		return nil, errors.New("--resume names the folder; leave out -o")
	}
	x.dir = f.batch.resume
	ix, err := batch.ReadIndex(x.dir)
	if err != nil {
		return nil, fmt.Errorf("--resume: %w", err)
	}
	if err := ix.Fits(x.batch, x.given); err != nil {
		return nil, fmt.Errorf("--resume %s: %w", x.dir, err)
	}
	return ix, nil
}

// overhead is about what a run takes beside its plan: set-up, and the ends of its flows.
const overhead = 2 * time.Second

// estimate is about how long the runs that are left take.
func (x *batchRun) estimate(ix *batch.Index, retry bool) (d time.Duration) {
	for i := range x.runs {
		if s := ix.Runs[i].State; s == batch.Done || s == batch.Failed && !retry {
			continue
		}
		if d > 0 {
			d += x.batch.Pause
		}
		plan := x.planOfRun(&x.runs[i])
		d += plan.Length() + overhead
	}
	return d
}

// print prints what the batch would do.
func (x *batchRun) print(ix *batch.Index, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(x.stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(ix)
	}
	order := string(ix.Order)
	if ix.Order == batch.Random {
		order = fmt.Sprintf("random, seed %d", ix.Seed)
	}
	fmt.Fprintf(x.stdout, "batch %s: %d runs, order %s, about %v\n", ix.Batch, len(ix.Runs), order, x.estimate(ix, true).Round(time.Second))
	for _, h := range x.batch.BeforeAll {
		fmt.Fprintf(x.stdout, "  before all: %s\n", report.Printable(h.Command))
	}
	for i := range x.runs {
		r := &x.runs[i]
		for _, h := range r.Before {
			fmt.Fprintf(x.stdout, "  %*s  before: %s\n", 4, "", report.Printable(h.Command))
		}
		plan := x.planOfRun(r)
		fmt.Fprintf(x.stdout, "  %4d  %s, repetition %d: %s, %v -> %s\n", r.Number, report.Printable(r.Label()), r.Repetition, report.Printable(plan.Name), plan.Length(), r.File)
		for _, h := range r.After {
			fmt.Fprintf(x.stdout, "  %*s  after: %s\n", 4, "", report.Printable(h.Command))
		}
	}
	for _, h := range x.batch.AfterAll {
		fmt.Fprintf(x.stdout, "  after all: %s\n", report.Printable(h.Command))
	}
	return nil
}

// run carries the batch out.
func (x *batchRun) run(ctx context.Context, f *runFlags, ix *batch.Index) error {
	if err := x.makeFolder(f.batch.resume != ""); err != nil {
		return &usageError{err}
	}
	log, err := os.OpenFile(filepath.Join(x.dir, "batch.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	defer log.Close()
	x.log = log
	x.say(fmt.Sprintf("batch %s: %d of %d runs left, about %v, in %s", ix.Batch, len(ix.Runs)-ix.Count(batch.Done), len(ix.Runs),
		x.estimate(ix, f.batch.retry).Round(time.Second), x.dir))
	runner := batch.Runner{Dir: x.dir, Clock: host.NewKernel(), Wall: x.now, Measure: x.measureOne, Whole: wholeRecording, Hook: x.hook, Gap: x.gap, Tell: x.say,
		Retry: f.batch.retry}
	err = runner.Run(ctx, x.batch, ix)
	x.say(fmt.Sprintf("batch %s: %d done, %d failed, %d left", ix.Batch, ix.Count(batch.Done), ix.Count(batch.Failed), ix.Count(batch.Planned)))
	if err != nil {
		if s := (*program.SignalError)(nil); errors.As(err, &s) {
			x.say(fmt.Sprintf("%v; go on with: bloat run %s --resume %s, and the same other flags", s, x.file, x.dir))
			x.status = s.Status()
			return nil
		}
		return err
	}
	x.status = batchStatus(ix)
	if f.json {
		e := json.NewEncoder(x.stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(ix)
	}
	_, err = fmt.Fprintln(x.stdout, x.dir)
	return err
}

// batchStatus is the exit status of a batch that came to its end: 0 where every run measured, 1 where none did, otherwise 4.
func batchStatus(ix *batch.Index) int {
	whole := 0
	for i := range ix.Runs {
		if r := &ix.Runs[i]; r.State == batch.Done && r.Status != nil && *r.Status == 0 {
			whole++
		}
	}
	switch {
	case whole == len(ix.Runs):
		return 0
	case ix.Count(batch.Done) == 0:
		return statusFailed
	}
	return 4
}

// makeFolder makes the batch's folder, which must be new or empty unless resumed, and puts the batch's file into it.
func (x *batchRun) makeFolder(resumed bool) error {
	if resumed {
		return nil
	}
	if err := os.MkdirAll(x.dir, 0o777); err != nil {
		return err
	}
	entries, err := os.ReadDir(x.dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("the folder %s is not empty; name another with -o, or go on in it with --resume", x.dir)
	}
	text, err := os.ReadFile(x.file)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(x.dir, "batch.yaml"), text, 0o666)
}

// say tells the user and the log what happens.
func (x *batchRun) say(line string) {
	line = report.Printable(line)
	fmt.Fprintf(x.stderr, "bloat: %s\n", line)
	fmt.Fprintf(x.log, "%s %s\n", x.now().UTC().Format(time.RFC3339), line)
}

// measureOne makes one run.
func (x *batchRun) measureOne(ctx context.Context, r *batch.Run, file string) (int, error) {
	args := x.args(r, "--output="+file)
	fmt.Fprintf(x.log, "%s bloat %s\n", x.now().UTC().Format(time.RFC3339), report.Printable(strings.Join(args, " ")))
	var complaints bytes.Buffer
	stderr := io.MultiWriter(x.log, &complaints)
	var status int
	if slices.ContainsFunc(args, func(s string) bool { return strings.HasPrefix(s, "--lab-carrier") }) {
		// The kernel's lab is this program several times over, and takes over the process that asks for it.
		var err error
		if status, err = runAlone(ctx, x.commandLine(args)[1:], x.log, stderr); err != nil {
			return statusFailed, err
		}
	} else {
		status = x.child(x.log, stderr).run(ctx, x.commandLine(args))
	}
	if status == statusFailed || status == statusUsage {
		return status, errors.New(lastComplaint(complaints.String()))
	}
	return status, nil
}

// wholeRecording reports whether a file is the recording of a run that came to its end, and that run's status.
func wholeRecording(file string) (int, bool) {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return 0, false
	}
	o, err := openFigures(file, nil)
	if err != nil || o.result.Truncated || o.result.Stopped != "" || o.result.Source != nil {
		return 0, false
	}
	return o.result.Status(), true
}

// gap is the time that the rules of public servers ask for between runs that nobody starts by hand.
func (x *batchRun) gap(r *batch.Run) (d time.Duration) {
	plan := x.planOfRun(r)
	use, err := x.directory.publicServers(&plan, "a batch")
	if err != nil {
		return 0 // the run itself will say it
	}
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	for _, e := range use.servers {
		if e.UnattendedGap != nil {
			d = max(d, e.UnattendedGap.Wait(random))
		}
	}
	return d
}

// hook runs a command of the batch's file in the file's folder.
func (x *batchRun) hook(ctx context.Context, h batch.Hook, env []string) error {
	fmt.Fprintf(x.log, "%s $ %s\n", x.now().UTC().Format(time.RFC3339), strings.ReplaceAll(h.Command, "\n", "\n  "))
	dir := filepath.Dir(x.file)
	for i, v := range env { // the command runs elsewhere than the program
		if path, ok := strings.CutPrefix(v, "BLOAT_FILE="); ok {
			if abs, err := filepath.Abs(path); err == nil {
				env[i] = "BLOAT_FILE=" + abs
			}
		}
	}
	return runShell(ctx, h.Command, dir, env, x.log)
}
