package bufferbloat

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
	"bufferbloat/watch"
)

// Scratch is a file of a program's own: what was written is read back.
type Scratch interface {
	io.ReaderAt
	io.WriterAt
}

// RunOptions are what a run needs beside its plan.
type RunOptions struct {
	Host       host.Host         // nil is the kernel's network stack and clock
	Version    string            // of the program, for the recording
	Started    time.Time         // wall clock, which names the run; zero takes Host's clock, which in virtual time is nobody's
	Passphrase string            // for the server; it is stored nowhere
	Kinds      Kinds             // of flows and probes beside Run's own
	File       io.Writer         // takes the recording as it grows; nil for none
	Packed     bool              // the Recording is to be as ReadPacked makes it, which takes a fifth of the memory
	Lab        *LabLink          // what Host emulates, nil where it is real
	NoCPU      string            // why this host's CPU use says nothing about the run, "" where it does
	LabCounts  func() *LabCounts // what Lab has counted, asked once when flows and probes have ended; nil, or a nil result, for nothing
	Doubts     func() []Finding  // what Host itself knows against the run, asked once when flows and probes have ended; nil for nothing
	Watch      []Watch           // what is read beside flows and probes
	// Scratch takes what a Packed recording has beyond some 4 MB, so that a run of hours takes no more memory than that; nil where all is to stay in memory, and
	// what can't be written does. It must last as long as the Recording, which panics where it can't read back what it wrote.
	Scratch Scratch
	// Reached is called once, with all servers as the run found them, before anything but the look at them is sent; nil for none.
	Reached func([]Path)
	// Progress is called when a phase begins and ends and each ProgressEvery (0 is each second), Event with all that happens, these included. Both are
	// called from one goroutine at a time and must be quick, since probes and flows may wait for them; nil for none.
	Progress      func(Progress)
	ProgressEvery time.Duration
	Event         func(Event)
}

// Run carries out plan. It first looks at the path without loading it: a server that can't be reached, refuses us or does not answer is an
// error within seconds. From then on it returns a Recording, whatever happens: what failed stands in it, and a ctx that ends early makes it
// partial, with the text of ctx's cause as the reason. An error beside a Recording says that the file could not be written.
func Run(ctx context.Context, plan Plan, o RunOptions) (*Recording, error) {
	if err := plan.Check(); err != nil {
		return nil, fmt.Errorf("the plan can't run: %w", err)
	}
	if o.Host == nil {
		o.Host = host.NewKernel()
	}
	r := &run{plan: plan, o: o, h: o.Host}
	if err := plan.beyond(&o.Kinds); err != nil {
		return nil, fmt.Errorf("the plan can't run: %w", err)
	}
	if err := r.checkSockets(ctx); err != nil {
		return nil, err
	}
	if err := r.reach(ctx); err != nil {
		return nil, err
	}
	if err := r.checkFlows(ctx); err != nil {
		return nil, err
	}
	if o.Reached != nil {
		o.Reached(append([]Path{r.path(r.peers[0])}, r.paths()...))
	}
	ready := sync.OnceFunc(func() { r.makeReady(ctx, 0) })
	var opening sync.WaitGroup
	if r.peers[0].info.Setup >= farAway { // a server would not hold an irtt session until all flows are agreed on
		opening.Go(ready)
	}
	probes, err := r.openProbes(ctx)
	opening.Wait()
	defer r.closeReady()
	defer r.closeLoops()
	if err != nil {
		return nil, err
	}
	ready()
	if ctx.Err() != nil {
		closeProbes(probes)
		return nil, context.Cause(ctx)
	}
	return r.measure(ctx, probes)
}

// run is one run under way.
type run struct {
	plan  Plan
	o     RunOptions
	h     host.Host
	peers []*peer    // the plan's own server first
	notes []Finding  // found before the recording began
	ready []openFlow // of the next load; nil where they are opened when it begins
	loops []*closedLoop
	start time.Time
	rec   *recorder
	// device is what this host's own network device is; nil where it is not watched.
	device *DeviceFacts
	// follow is set before anything that it is told of.
	follow follow
}

// offset puts a time of the host's clock on the run's time base.
func (r *run) offset(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return max(0, t.Sub(r.start))
}

func (r *run) now() time.Duration { return r.offset(r.h.Now()) }

// measure runs the probes through all phases.
func (r *run) measure(ctx context.Context, probes []openProbe) (*Recording, error) {
	r.watchHost()
	r.start = r.h.Now()
	r.rec = newRecorder(r.start, r.o.File)
	if r.rec.rec.packing = r.o.Packed; r.o.Packed && r.o.Scratch != nil {
		r.rec.rec.shelf = &shelf{file: r.o.Scratch, most: mostHeld}
	}
	r.follow = follow{progress: r.o.Progress, event: r.o.Event, now: r.now, plan: &r.plan}
	started := r.o.Started
	if started.IsZero() {
		started = r.start
	}
	r.rec.put(&entry{Head: &head{
		Schema: FileSchema, Version: r.o.Version, Started: started.Round(0), Plan: r.plan, Client: r.facts(),
		Path: r.path(r.peers[0]), Paths: r.paths(),
	}})
	for _, f := range r.notes {
		r.find(f)
	}
	for i := range probes {
		r.rec.put(&entry{Series: &probes[i].series})
		r.follow.declare(&probes[i].series)
	}
	sending, stopSending := context.WithCancel(ctx)
	keeping, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	var probing, keeper sync.WaitGroup
	ends := make([]*seriesEnd, len(probes))
	for i, p := range probes {
		probing.Go(func() { ends[i] = r.probe(ctx, sending, p) })
	}
	for _, l := range r.loops {
		probing.Go(func() { r.runLoop(ctx, sending, l) })
	}
	keeper.Go(func() { r.keep(keeping, sending) })
	keeper.Go(func() { r.watch(sending) })
	keeper.Go(func() { r.tell(keeping) })
	r.phases(ctx)
	stopSending()
	probing.Wait()
	stopKeeping()
	keeper.Wait()
	r.rec.flush()
	for _, e := range ends {
		r.rec.put(&entry{SeriesEnd: e})
	}
	for _, p := range probes {
		r.remark(&p)
	}
	stopped := ""
	if ctx.Err() != nil {
		stopped = context.Cause(ctx).Error()
	}
	if r.o.Lab != nil && r.o.LabCounts != nil {
		if c := r.o.LabCounts(); c != nil {
			r.rec.put(&entry{LabCounts: c})
		}
	}
	found := r.rec.judge(stopped)
	for _, f := range append(found, r.doubts()...) {
		r.find(f)
	}
	r.rec.put(&entry{End: &end{Ended: r.now(), Stopped: stopped}})
	return r.rec.finish()
}

// find records a finding.
func (r *run) find(f Finding) {
	r.rec.put(&entry{Finding: &f})
	r.follow.finding(f)
}

// probe runs one series: it sends until sending is done, listens for a while after it, and gives up at once when ctx is done.
func (r *run) probe(ctx, sending context.Context, p openProbe) *seriesEnd {
	start := r.start.Add(p.planned.Start)
	tally, err := probe.Run(ctx, sending, r.h, p.transport, p.options, start, p.planned.count(), func(s probe.Sample) {
		s.Due += p.planned.Start // both are counted from the series' own start
		s.Sent += p.planned.Start
		r.rec.sample(p.series.Name, s)
		r.follow.sample(p.series.Name, &s)
	})
	e := &seriesEnd{Series: p.series.Name, Tally: tally}
	if err != nil && ctx.Err() == nil {
		e.Error = err.Error()
	}
	return e
}

// count is how many probes are due in a series, 0 for all until the run's end.
func (p *ProbePlan) count() uint64 {
	return uint64((p.Length + p.Interval - 1) / p.Interval)
}

// keep writes out each second what came in until ctx is done, and until sending is reads the host's CPU times.
func (r *run) keep(ctx, sending context.Context) {
	last, err := watch.CPU()
	why := r.o.NoCPU
	if why == "" && err != nil {
		why = err.Error()
	}
	if why != "" {
		r.rec.put(&entry{CPU: &cpuColumns{Unavailable: why}})
	}
	for n := 1; r.h.SleepUntil(ctx, r.start.Add(time.Duration(n)*time.Second)) == nil; n++ {
		if why == "" && sending.Err() == nil {
			if t, err := watch.CPU(); err == nil {
				if busy, own := watch.Use(last, t); busy != nil {
					r.rec.cpuSample(CPUSample{At: r.now(), Busy: busy, Own: own})
				}
				last = t
			}
		}
		r.rec.flush()
	}
}

// phases runs the plan's phases one after the other, until ctx is done.
func (r *run) phases(ctx context.Context) {
	var loaded time.Duration // when the last load began
	for i, ph := range r.plan.Phases {
		if ctx.Err() != nil {
			return
		}
		began := r.h.Now()
		p := Phase{Name: ph.Name, Kind: ph.Kind, Start: r.offset(began)}
		r.rec.put(&entry{Phase: &p})
		r.follow.begin(i, p)
		switch ph.Kind {
		case Load:
			loaded = p.Start
			r.load(ctx, ph)
		case Drain:
			r.rec.flush()
			r.sleep(ctx, began.Add(ph.Length+min(r.rec.highestRTT(loaded), maxDrain)))
			r.makeReady(ctx, i+1)
		default:
			r.sleep(ctx, began.Add(ph.Length))
		}
		r.rec.flush()
		p.End = r.now()
		p.From, p.To = r.rec.window(p)
		r.rec.put(&entry{Phase: &p})
		r.follow.finish(p)
	}
}

// makeReady opens the flows of the next load, from phase i on, where nothing but baselines comes before it: a load then begins when it is due, and
// no baseline sees its flows opened.
func (r *run) makeReady(ctx context.Context, i int) {
	const longest = time.Minute // that a server is to hold flows ready
	var ahead time.Duration
	for _, ph := range r.plan.Phases[min(i, len(r.plan.Phases)):] {
		switch {
		case ph.Kind == Load && ahead <= longest && ctx.Err() == nil:
			r.ready = r.openFlows(ctx, ph, ahead)
			return
		case ph.Kind != Idle && ph.Kind != After:
			return
		}
		ahead += ph.Length
	}
}

// maxDrain bounds what the highest RTT of a load adds to the drain after it.
const maxDrain = 10 * time.Second

// sleep waits until t; phases looks at ctx itself.
func (r *run) sleep(ctx context.Context, t time.Time) { _ = r.h.SleepUntil(ctx, t) }

func (r *run) facts() HostFacts {
	f := HostFacts{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Kernel: watch.Kernel(), Device: r.device}
	if r.o.Lab == nil {
		f.CongestionControl = watch.CongestionControl()
	}
	return f
}
