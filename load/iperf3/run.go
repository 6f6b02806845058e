package iperf3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
)

var (
	// errReached ends the data phase of a test whose downloads have had what they were to have.
	errReached = errors.New("all bytes came")
	// errControl ends the data phase where the control connection did.
	errControl = errors.New("the control connection ended")
)

// lookEvery is how often acknowledgements are looked at once the first one was seen.
const lookEvery = 100 * time.Millisecond

// event is what came on the control connection.
type event struct {
	state   wire.State
	results *wire.Results // what followed ExchangeResults
	at      time.Time
	err     error // why nothing more comes
}

// running is a test under way.
type running struct {
	*Test
	host   host.Host
	events chan event
	streams
	began   time.Time // when the server said so
	stopped time.Time // when the data phase was over
	ended   time.Time // when the server said that it counts no more; zero where it did not
	cpu     usage     // at began
	own     wire.Results
	server  *wire.Results // nil where they did not come
	report  [][]wire.Span // the server's, of each stream; nil where there is none
	failure error         // why the test is not whole
	reached bool          // the downloads together have had all that they were to have
	doubts  []string      // about all flows
}

// join runs the test, or waits until it has run. It may end before that only by the test itself ending, which a ctx that is done brings about.
func (t *Test) join(ctx context.Context) {
	t.beginning.Lock()
	first := t.abort == nil
	if first {
		ctx, t.abort = context.WithCancelCause(ctx)
	}
	abort := t.abort
	t.beginning.Unlock()
	if first {
		t.run(ctx)
		abort(nil)
		close(t.finished)
		return
	}
	select {
	case <-t.finished:
	case <-ctx.Done():
		abort(context.Cause(ctx))
		<-t.finished
	}
}

// run is the test from its streams on. When it returns all that it started is gone.
func (t *Test) run(ctx context.Context) {
	defer t.ctl.close()
	r := &running{Test: t, host: t.client.Host, events: make(chan event, 16)}
	defer r.close()
	if err := r.connect(ctx, t); err != nil {
		r.failure = t.client.explain(ctx, r.unless(ctx, err))
		r.settle(ctx)
		return
	}
	var reader sync.WaitGroup
	reader.Go(r.read)
	if r.failure = r.start(ctx); r.failure == nil {
		r.carry(ctx)
		r.finish(ctx)
	}
	if ctx.Err() != nil {
		r.giveUp()
	}
	_ = t.ctl.conn.SetReadDeadline(past(r.host))
	reader.Wait()
	r.settle(ctx)
}

// unless returns why the server had ended the test before its streams, where it did, and otherwise err, for which they were not opened.
func (r *running) unless(ctx context.Context, err error) error {
	release := r.ctl.wakeBy(ctx, goodbye/4)
	defer release()
	if e := r.next(); e.err != nil && !pump.IsDeadline(e.err) {
		return fmt.Errorf("%w before the streams were to be opened", gone(e.err))
	}
	return err
}

// read passes on what comes on the control connection, until there is no more.
func (r *running) read() {
	defer close(r.events)
	for range cap(r.events) / 2 {
		e := r.next()
		r.events <- e
		if e.err != nil || e.state == wire.DisplayResults {
			return
		}
		if e.state == wire.ExchangeResults {
			e = r.nextResults()
			r.events <- e
			if e.err != nil {
				return
			}
		}
	}
}

func (r *running) next() event {
	var b [1]byte
	_, err := io.ReadFull(r.ctl.conn, b[:])
	e := event{at: r.host.Now(), err: err}
	if err != nil {
		return e
	}
	e.state, e.err = wire.ParseState(b[0])
	switch e.state {
	case wire.ServerError:
		e.err = wire.ReadError(r.ctl.conn)
	case wire.AccessDenied, wire.ServerTerminate:
		e.err = &wire.StateError{State: e.state}
	}
	return e
}

func (r *running) nextResults() event {
	b, err := wire.ReadMessage(r.ctl.conn, wire.MaxResults)
	e := event{state: wire.ExchangeResults, at: r.host.Now(), err: err}
	if err != nil {
		return e
	}
	results, err := wire.ParseResults(b)
	e.results, e.err = &results, err
	return e
}

// expect waits for a state, for a while. Another one is an error.
func (r *running) expect(ctx context.Context, want wire.State, wait time.Duration) (event, error) {
	release := r.ctl.wakeBy(ctx, wait)
	defer release()
	e, ok := <-r.events
	switch {
	case ctx.Err() != nil:
		return e, context.Cause(ctx)
	case !ok:
		return e, errControl
	case e.err != nil && pump.IsDeadline(e.err):
		return e, fmt.Errorf("%w: %v did not come within %v", ErrSilent, want, wait)
	case e.err != nil:
		return e, gone(e.err)
	case e.state != want:
		return e, fmt.Errorf("%w: it says %v where %v was due", ErrNotIPerf3, e.state, want)
	}
	return e, nil
}

// gone says that the server is, unless it said why.
func gone(err error) error {
	var state *wire.StateError
	var format *wire.FormatError
	switch {
	case errors.As(err, &state), errors.As(err, &format):
		return err
	case errors.Is(err, io.EOF):
		return ErrServerGone
	}
	return fmt.Errorf("%w: %w", ErrServerGone, err)
}

// start waits until the server says that the test runs.
func (r *running) start(ctx context.Context) error {
	for _, s := range [...]wire.State{wire.TestStart, wire.TestRunning} {
		if _, err := r.expect(ctx, s, beginTimeout); err != nil {
			if errors.Is(err, ErrServerGone) {
				err = fmt.Errorf("%w: it closed the control connection once the streams stood%s", ErrRefused, r.refusedAdvice())
			}
			return r.client.explain(ctx, err)
		}
	}
	r.began = r.host.Now()
	r.cpu = r.used()
	return nil
}

// carry is the data phase. It ends when all flows have ended, and they do so with the control connection.
func (r *running) carry(ctx context.Context) {
	phase, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var pumps, helpers sync.WaitGroup
	r.pump(phase, &pumps)
	pumped := make(chan struct{})
	helpers.Go(func() { pumps.Wait(); close(pumped) })
	watching, unwatch := context.WithCancel(phase)
	helpers.Go(func() { r.watch(watching) })
	if r.o.Omit > 0 {
		helpers.Go(func() {
			if r.host.SleepUntil(watching, r.began.Add(r.o.Omit)) == nil {
				r.omit()
			}
		})
	}
	if r.o.Bytes+r.o.Blocks > 0 && r.o.Downloads > 0 {
		helpers.Go(func() { r.stopWhenReached(watching, stop) })
	}
	select {
	case <-pumped:
		r.stopped = r.host.Now()
		if r.broke() && ctx.Err() == nil {
			// Streams end early where the server gives up, and it says why on the other connection.
			quiet := make(chan struct{})
			timer := r.host.AfterFunc(goodbye, func() { close(quiet) })
			select {
			case e := <-r.events:
				r.fail(ctx, e)
			case <-quiet:
			case <-ctx.Done():
			}
			timer.Stop()
		}
	case e := <-r.events:
		r.fail(ctx, e)
		stop(errControl)
		<-pumped
		r.stopped = r.host.Now()
	}
	unwatch()
	helpers.Wait()
}

// fail records why a test ended that the client did not end.
func (r *running) fail(ctx context.Context, e event) {
	err := e.err
	if err == nil {
		err = fmt.Errorf("%w: it says %v in the middle of the test", ErrNotIPerf3, e.state)
	}
	r.failure = r.client.explain(ctx, gone(err))
}

// broke reports whether all streams have ended that were to go on.
func (r *running) broke() bool {
	for i := range r.flows {
		if end := r.pumped[i].End; end != pump.Closed && end != pump.Broken {
			return false
		}
	}
	return true
}

// until is when the data phase ends.
func (r *running) until() time.Time {
	if r.o.Length == 0 {
		return r.began.Add(r.o.Omit + maxLength)
	}
	return r.began.Add(r.o.Omit + r.o.Length)
}

// watch looks at the acknowledgements of uploads: closely until the first, since that is where a flow's time begins, then now and then.
func (r *running) watch(ctx context.Context) {
	if r.o.UDP || r.o.Uploads == 0 {
		return
	}
	for pause := time.Duration(0); r.host.SleepUntil(ctx, r.host.Now().Add(pause)) == nil; {
		pause = lookEvery
		for _, f := range r.flows {
			if f.direction != load.Upload {
				continue
			}
			f.look()
			if !f.seen() {
				pause = min(pause, max(f.setup/8, time.Millisecond))
			}
		}
	}
}

// stopWhenReached ends the data phase once all downloads together have what they were to have.
func (r *running) stopWhenReached(ctx context.Context, stop context.CancelCauseFunc) {
	want := r.o.Bytes + r.o.Blocks*uint64(r.o.Size)
	const step = 5 * time.Millisecond
	for r.host.SleepUntil(ctx, r.host.Now().Add(step)) == nil {
		var got uint64
		for _, f := range r.flows {
			if n, ok := f.Delivered(); ok && f.direction == load.Download {
				got += n
			}
		}
		if got >= want+r.omittedBytes() {
			r.reached = true
			stop(errReached)
			return
		}
	}
}

// finish ends the test: the client says so, and both ends tell each other what they counted.
func (r *running) finish(ctx context.Context) {
	if r.failure != nil || ctx.Err() != nil {
		return
	}
	draining, drained := context.WithCancel(ctx)
	var drains sync.WaitGroup
	r.drain(draining, &drains)
	defer func() { drained(); drains.Wait() }()
	r.awaitAcks(ctx)
	err := r.write(ctx, []byte{wire.TestEnd.Byte()})
	var e event
	if err == nil {
		e, err = r.expect(ctx, wire.ExchangeResults, resultsTimeout)
	}
	for _, f := range r.flows {
		f.look()
	}
	if err != nil {
		r.noResults(ctx, err)
		return
	}
	r.ended = e.at
	// What still waits in this host would only stand in the way of the results, and the server counts no more.
	for _, f := range r.flows {
		if f.direction == load.Upload {
			f.end(true)
		}
	}
	r.exchange(ctx)
}

// exchange sends our results, takes the server's, and says goodbye.
func (r *running) exchange(ctx context.Context) {
	r.own = r.results()
	err := r.write(ctx, r.own.AppendTo(nil))
	var e event
	if err == nil {
		e, err = r.expect(ctx, wire.ExchangeResults, resultsTimeout)
	}
	if err != nil {
		r.noResults(ctx, err)
		return
	}
	r.server = e.results
	if spans, err := wire.ParseReport(e.results.ServerJSON, len(r.flows)); err == nil {
		r.report = spans
	}
	if _, err := r.expect(ctx, wire.DisplayResults, resultsTimeout); err != nil {
		return // the results are in; how the server says goodbye is no matter
	}
	for _, f := range r.flows {
		f.end(true)
	}
	if r.write(ctx, []byte{wire.Done.Byte()}) != nil {
		return
	}
	if w, ok := r.ctl.conn.(interface{ CloseWrite() error }); ok && w.CloseWrite() == nil {
		release := r.ctl.wakeBy(ctx, goodbye)
		defer release()
		_, _ = io.CopyN(io.Discard, r.ctl.conn, 1<<10)
	}
}

// noResults records that the server's word is missing. For downloads that weakens nothing but what only the sender knows.
func (r *running) noResults(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	var state *wire.StateError
	if errors.As(err, &state) || r.o.Uploads > 0 && r.o.UDP {
		r.failure = r.client.explain(ctx, err)
		return
	}
	r.doubts = append(r.doubts, fmt.Sprintf("the server sent no results: %v", err))
}

// giveUp tells the server that the test is over before its end.
func (r *running) giveUp() {
	_ = r.ctl.conn.SetWriteDeadline(r.host.Now().Add(goodbye / 4))
	_, _ = r.ctl.conn.Write([]byte{wire.ClientTerminate.Byte()})
}

// write sends on the control connection.
func (r *running) write(ctx context.Context, b []byte) error {
	_ = r.ctl.conn.SetWriteDeadline(r.host.Now().Add(resultsTimeout))
	release := pump.OnDone(ctx, func() { _ = r.ctl.conn.SetWriteDeadline(past(r.host)) })
	defer release()
	if _, err := r.ctl.conn.Write(b); err != nil {
		return gone(err)
	}
	return nil
}

// usage is a moment and the CPU time used until then.
type usage struct {
	at           time.Time
	user, system time.Duration
	known        bool
}

func (r *running) used() usage {
	u := usage{at: r.host.Now()}
	if r.client.CPU != nil {
		var err error
		u.user, u.system, err = r.client.CPU()
		u.known = err == nil
	}
	return u
}

// share is what each upload sends at most, in bytes: an even part of what all are to send together, so that each has its own end; 0 is no limit.
func (o TestOptions) share() uint64 {
	n := uint64(max(1, o.Uploads))
	if o.Bytes > 0 {
		return (o.Bytes + n - 1) / n
	}
	return (o.Blocks + n - 1) / n * uint64(o.Size)
}

// remote is where streams go: to the control connection's own remote address, since a second look-up of the name could lead elsewhere.
func (t *Test) remote() netip.AddrPort { return t.ctl.remote }
