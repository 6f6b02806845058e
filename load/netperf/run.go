package netperf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/load"
)

const (
	leastGrace = 2 * time.Second
	maxGrace   = 30 * time.Second
	// lookEvery is how often an upload's acknowledgements are looked at for the time of the last one and the highest RTT.
	lookEvery = 100 * time.Millisecond
	// shortest is the least time that a rate may be made of, beside four round trips.
	shortest = 500 * time.Millisecond
	// wholeWithin is what a flow may lack of its time, or a twentieth of that time, and still be called whole.
	wholeWithin = time.Second
)

// errControl is why the data phase ended where the control connection did.
var errControl = errors.New("the control connection ended")

// running is a flow with its data connection.
type running struct {
	*Flow
	host     host.Host
	data     net.Conn
	until    time.Time
	setup    time.Duration // handshake of the data connection
	out      load.Result
	warnings []string
	// drainedFor is how long an upload's end was waited for.
	drainedFor time.Duration
	full       bool   // it moved all the bytes that it was to move
	backoff    string // how an upload's TCP stood at the end of its time, "" where it was not waiting to send again

	server *outcome
}

func (r *running) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// run is the data phase with its helpers. When it returns all of them are gone and both connections are closed or closing.
func (r *running) run(ctx context.Context) error {
	phase, stop := context.WithCancelCause(ctx)
	r.server = r.ctl.await(r.o.Server.Layout, func(error) { stop(errControl) })
	unwake := pump.OnDone(ctx, func() { _ = r.ctl.conn.SetReadDeadline(past(r.host)) })
	var err error
	if r.o.Direction == load.Upload {
		err = r.upload(ctx, phase)
	} else {
		err = r.download(ctx, phase)
	}
	unwake()
	r.end(ctx.Err() != nil)
	r.server.within(ctx, 0)
	stop(nil)
	if ctx.Err() == nil {
		r.ctl.bye(ctx)
	}
	return err
}

// refused returns the error number that came in place of the results, or nil.
func (r *running) refused() error {
	var refused *RefusedError
	if errors.As(r.server.err, &refused) {
		return refused
	}
	return nil
}

// download reads until its own time is over. What was read is the truth; the server's results only add to it.
func (r *running) download(ctx, phase context.Context) error {
	got, err := pump.Receive(phase, r.host, r.data, &r.received, pump.Options{Until: r.until, Limit: r.o.Bytes, Size: r.o.Buffer})
	r.out.Stopped = r.host.Now()
	r.out.Bytes, r.out.CountedBy, r.out.First, r.out.Last = got.Bytes, load.CountedByReads, got.First, got.Last
	r.sayNotFull(got)
	r.look()
	r.end(false)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	wait := leastGrace
	if !asPlanned(got.End) {
		wait = r.grace()
	}
	if r.server.within(ctx, wait) {
		r.serversWord()
	}
	switch {
	case r.refused() != nil:
		return r.client.explain(ctx, r.refused())
	case !asPlanned(got.End) && r.server.err != nil:
		return r.client.explain(ctx, gone(err, r.server.err))
	case got.Bytes == 0:
		return r.client.explain(ctx, fmt.Errorf("%w in %v of a download", ErrNoData, r.o.Length))
	case r.out.Stopped.Sub(r.out.Last) > r.longPause():
		// A rate over the time until the last byte would hide it.
		r.warn("nothing arrived in the last %v", r.out.Stopped.Sub(r.out.Last).Round(time.Millisecond))
	}
	r.checkDuration()
	if !asPlanned(got.End) {
		return r.cutShort(ctx, err)
	}
	return nil
}

// asPlanned reports whether a pump ended as it was to: after its time, or after its bytes.
func asPlanned(end pump.End) bool { return end == pump.TimeUp || end == pump.Full }

// sayNotFull warns where a flow that was to end after its bytes ended after its time.
func (r *running) sayNotFull(moved pump.Outcome) {
	r.full = moved.End == pump.Full
	if r.o.Bytes > 0 && moved.End == pump.TimeUp {
		r.warn("its time was up after %d of its %d bytes", moved.Bytes, r.o.Bytes)
	}
}

// longPause is the time without a byte that is no more what a flow in good health may show.
func (r *running) longPause() time.Duration { return max(time.Second, 4*r.setup) }

// cutShort says that the data connection ended before its time was up: as an error where so much is missing that the flow is not
// whole, otherwise as a warning. Which end, or what between them, ended it is not known.
func (r *running) cutShort(ctx context.Context, cause error) error {
	early := r.until.Sub(r.out.Stopped).Round(time.Millisecond)
	switch {
	case early <= max(wholeWithin, r.o.Length/20):
		r.warn("the data connection ended %v before its time", early)
		return nil
	case cause != nil && !errors.Is(cause, errControl):
		return r.client.explain(ctx, fmt.Errorf("%w %v before its time: %w", ErrCutShort, early, cause))
	}
	return r.client.explain(ctx, fmt.Errorf("%w %v before its time", ErrCutShort, early))
}

// serversWord takes from a download's results what only the sender knows.
func (r *running) serversWord() {
	r.out.ServerBytes, r.out.HasServerBytes = r.server.results.TxBytes, true
	if r.o.Server.Layout != wire.UnknownLayout {
		r.out.CongestionControl = r.server.results.Congestion
		if r.server.results.Retransmits >= 0 {
			r.out.Retransmits, r.out.HasRetransmits = uint64(r.server.results.Retransmits), true
		}
	}
	r.serverCPU()
}

func (r *running) serverCPU() {
	if share := r.server.results.CPUPercent / 100; r.response.Flags&wire.FlagCPU != 0 && share >= 0 && share <= 1 {
		r.out.ServerCPU, r.out.HasServerCPU = float64(share), true
		if busiest := r.server.results.BusiestPercent; r.o.Server.Layout != wire.UnknownLayout && busiest >= busyCPU && busiest <= 100 {
			r.warn("a CPU of the server was busy for %.0f%% of the time: it may be the limit", busiest)
		}
	}
}

// busyCPU is the percentage of a CPU's time from which on it may be what limits a flow.
const busyCPU = 97

// sayPace warns of a server that holds the payload to a rate of its own: what is measured is that.
func (r *running) sayPace(p wire.Response) {
	size := p.SendSize
	if r.o.Direction == load.Upload {
		size = p.RecvSize
	}
	if text := paceText(p, size); text != "" {
		r.warn("%s", text)
	}
}

// paceText says to what rate a server holds messages of a size, "" where it says nothing of one.
func paceText(p wire.Response, size int32) string {
	if p.PaceBurst == 0 || p.PaceMicros == 0 {
		return ""
	}
	rate := float64(p.PaceBurst) * float64(size) * 8 / float64(p.PaceMicros)
	return fmt.Sprintf("the server holds the payload of all its tests together to %.2f Mbit/s", rate)
}

// upload writes until its time is over, then waits until the server has had everything.
func (r *running) upload(ctx, phase context.Context) error {
	watching, unwatch := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { r.watch(watching) })
	defer func() { unwatch(); watcher.Wait() }()

	begin := r.host.Now()
	sent, err := pump.Send(phase, r.host, r.data, &r.sent, pump.Options{Until: r.until, Limit: r.o.Bytes, Size: r.o.Size, Rate: r.o.Rate})
	r.out.Stopped = r.host.Now()
	r.wrote(sent.Bytes)
	r.sayNotFull(sent)
	info, told := r.look()
	r.backoff = backoffText(info)
	r.sayPause()
	drained := false
	var last time.Time
	if asPlanned(sent.End) {
		last, drained, err = r.drain(ctx, phase)
	}
	info, told = r.look()
	if told {
		r.out.CongestionControl = info.CongestionControl
		r.out.Retransmits, r.out.HasRetransmits = info.Retransmits, info.HasRetransmits
	}
	unwatch()
	watcher.Wait()
	r.end(!drained) // what the server has not had by now will not be waited for
	r.countAcks(begin, last)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.settle(ctx, sent, drained, err)
}

// sayPause warns where nothing was acknowledged at the end of an upload's own time: a queue that drains after it would hide that. A
// hole in the data holds back the acknowledgement of all behind it for a round trip or two.
func (r *running) sayPause() {
	r.mu.Lock()
	defer r.mu.Unlock()
	pause := r.out.Stopped.Sub(r.ackAt)
	if r.acks && r.acked > 0 && pause > max(r.longPause(), 2*r.rtt) {
		r.warn("nothing was acknowledged in the last %v%s", pause.Round(time.Millisecond), r.backoff)
	}
}

// backoffText says that TCP waits with sending again, and how long: the flows that a full queue shuts out send ever more seldom, and may find
// it full each time. The longest such wait outlasts the load.
func backoffText(info host.TCPInfo) string {
	const worthSaying = 2 // a timer that ran out once is everyday life
	if info.Backoff < worthSaying {
		return ""
	}
	return fmt.Sprintf(" (TCP sent again %d times in a row without an answer, and waits %v to do so once more)", info.Backoff,
		info.NextRetry.Round(time.Millisecond))
}

// countAcks fills in the bytes that the stack knows to have arrived and the time in which they did.
func (r *running) countAcks(begin, last time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Bytes, r.out.CountedBy = r.acked, load.CountedByAcks
	r.out.First, r.out.Last = r.first, r.ackAt
	if !r.acks {
		// The first byte is known to have arrived no sooner than one round trip after it was sent.
		r.out.Bytes, r.out.CountedBy = r.writes, load.NotCounted
		r.out.First, r.out.Last = begin.Add(r.setup), r.out.Stopped
	}
	if !last.IsZero() {
		r.out.Last = last
		if r.out.First.IsZero() {
			r.out.First = begin.Add(r.setup)
		}
	}
	if r.out.Last.Before(r.out.First) {
		r.out.Last = r.out.First
	}
}

// settle takes the server's own count, and says what is wrong with the flow.
func (r *running) settle(ctx context.Context, sent pump.Outcome, drained bool, cause error) error {
	came := r.server.within(ctx, r.grace())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.refused() != nil {
		return r.client.explain(ctx, r.refused())
	}
	if !came && !drained && (!asPlanned(sent.End) || r.controlEnded()) {
		return r.client.explain(ctx, gone(cause, r.server.err))
	}
	switch {
	case came:
		r.serversCount(sent.Bytes, drained)
	case r.out.CountedBy == load.NotCounted:
		r.warn("the server sent no result, and this stack does not tell what was acknowledged: the bytes are what was sent")
	default:
		r.warn("the server sent no result: the bytes are what its stack acknowledged")
	}
	switch rx := r.server.results.RxBytes; {
	case r.out.Bytes == 0:
		return r.client.explain(ctx, fmt.Errorf("%w at the server in %v of an upload%s", ErrNoData, r.o.Length, r.backoff))
	case !asPlanned(sent.End):
		r.checkDuration()
		return r.cutShort(ctx, cause)
	case came && rx < sent.Bytes && drained:
		r.warn("the server stopped reading before the end: it took %d of %d bytes", rx, sent.Bytes)
	case came && rx < sent.Bytes:
		// Who is to blame, the path or the server, cannot be told.
		r.warn("the end of the data had not arrived %v after it was sent: %d of %d bytes are counted, and the server says that it read %d",
			r.drainedFor.Round(time.Millisecond), r.out.Bytes, sent.Bytes, rx)
	case !came && !drained:
		r.warn("it did not take the end of the data within %v either; what was still queued is not counted",
			r.drainedFor.Round(time.Millisecond))
	}
	r.checkDuration()
	return nil
}

// serversCount replaces what the stack knows by the server's count, where that is of the same interval: where the end of the data came
// through. Where it did not, the server counts what arrives until the reset does, after the last moment that this end knows of.
func (r *running) serversCount(sent uint64, drained bool) {
	rx := r.server.results.RxBytes
	if rx > sent {
		r.warn("the server says that it received %d bytes of the %d that were sent; its figure is not used", rx, sent)
		return
	}
	r.out.ServerBytes, r.out.HasServerBytes = rx, true
	r.serverCPU()
	switch {
	case drained || rx == 0 || rx == r.out.Bytes && r.out.CountedBy == load.CountedByAcks:
		r.out.Bytes, r.out.CountedBy = rx, load.CountedByServer
	case r.out.CountedBy == load.NotCounted:
		// Without acknowledgements the arrival of the results is the one moment by which rx bytes are known to have arrived.
		r.out.Bytes, r.out.CountedBy, r.out.Last = rx, load.CountedByServer, r.server.at
		if r.out.Last.Before(r.out.First) {
			r.out.Last = r.out.First
		}
	}
}

// controlEnded reports whether the control connection was lost, as against silent.
func (r *running) controlEnded() bool { return r.server.err != nil && !pump.IsDeadline(r.server.err) }

// drain ends the stream and waits for the server to do so too, which it does when it has read everything. It returns when that
// was, and false if it did not come: not within the grace after the last acknowledgement, nor within 30 s in all.
func (r *running) drain(ctx, phase context.Context) (time.Time, bool, error) {
	w, ok := r.data.(interface{ CloseWrite() error })
	if !ok {
		return time.Time{}, false, fmt.Errorf("half-close: %w", errors.ErrUnsupported)
	}
	if err := w.CloseWrite(); err != nil {
		return time.Time{}, false, err
	}
	var none pump.Counter
	start := r.host.Now()
	defer func() { r.drainedFor = r.host.Now().Sub(start) }()
	for {
		r.look()
		// It moves with every acknowledgement, and with the RTT, which may still rise while the queue drains.
		deadline := r.drainDeadline(start)
		if !r.host.Now().Before(deadline) {
			return time.Time{}, false, nil
		}
		got, err := pump.Receive(phase, r.host, r.data, &none, pump.Options{Until: deadline})
		switch got.End {
		case pump.Closed:
			return r.host.Now(), true, nil
		case pump.TimeUp:
		default:
			return time.Time{}, false, err
		}
	}
}

// drainDeadline is when a drain that began at start is given up, as far as is known now.
func (r *running) drainDeadline(start time.Time) time.Time {
	grace := r.grace()
	r.mu.Lock()
	defer r.mu.Unlock()
	deadline := start.Add(grace)
	if r.ackAt.After(start) {
		deadline = r.ackAt.Add(grace)
	}
	if bound := start.Add(r.mostGrace()); deadline.After(bound) {
		return bound
	}
	return deadline
}

// mostGrace is the longest grace: 30 s, or twelve handshakes where these take seconds, since what is lost is sent again after ever longer pauses.
func (f *Flow) mostGrace() time.Duration { return max(maxGrace, 12*f.o.Server.Setup) }

// grace is how long the end of a flow may stand still: three times the highest smoothed RTT seen plus 2 s, at most mostGrace.
func (r *running) grace() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(3*max(r.rtt, r.setup)+leastGrace, r.mostGrace())
}

// watch looks at the acknowledgements of an upload until ctx is done: closely until the first one, since that is where the flow's
// time begins, then now and then.
func (r *running) watch(ctx context.Context) {
	step := max(r.setup/8, time.Millisecond)
	r.mu.Lock()
	acks := r.acks
	r.mu.Unlock()
	if !acks {
		return
	}
	for {
		r.mu.Lock()
		pause := lookEvery
		if r.first.IsZero() {
			pause = min(step, lookEvery)
		}
		r.mu.Unlock()
		if r.host.SleepUntil(ctx, r.host.Now().Add(pause)) != nil {
			return
		}
		r.look()
	}
}

// checkDuration warns of a figure that is made of too little.
func (r *running) checkDuration() {
	if d, least := r.out.Duration(), max(shortest, 4*r.setup); d < least && !r.full {
		r.warn("data flowed for %v only, less than %v: too short for a rate",
			d.Round(time.Microsecond), least.Round(time.Millisecond))
	}
}

// gone says that the server is, with the reason of whichever connection knows one.
func gone(data, control error) error {
	for _, err := range []error{data, control} {
		if err != nil && !errors.Is(err, errControl) && !pump.IsDeadline(err) {
			return fmt.Errorf("%w: %w", ErrServerGone, err)
		}
	}
	return ErrServerGone
}
