package iperf3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pace"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
)

var (
	errStalled = errors.New("no data came or went for too long")
	errNoStart = errors.New("not all streams came")
	errQuota   = errors.New("this server's limit in an hour is reached")
)

// test is a test under way.
type test struct {
	*session
	streams []*stream // in the order of their ids
	receive int       // how many of them, from the first on, this end receives on
	began   time.Time
	stopped time.Time    // when the client ended it
	cpu     usage        // at began
	left    atomic.Int64 // blocks that its senders may still send
	claim   func() bool  // takes one; nil where there is no limit
}

// stream is one data stream, of TCP or UDP.
type stream struct {
	conn     *arrival     // TCP
	udp      *udpStream   // UDP
	counter  pump.Counter // TCP
	sent     pace.Sent    // UDP, what this end sent; valid once its sender is gone
	sending  atomic.Uint64
	omitted  omitted // under test's own goroutine, and the one that omits before it ends
	snapshot wire.StreamResult
	spans    []wire.Span
}

// omitted is what a stream had done when the omitted time was over.
type omitted struct {
	bytes, sent uint64
	retransmits int64
	tally       wire.Tally
}

// usage is a moment and the CPU time used until then.
type usage struct {
	at           time.Time
	user, system time.Duration
	known        bool
}

func (s *session) used() usage {
	u := usage{at: s.host.Now()}
	if s.o.CPU != nil {
		var err error
		u.user, u.system, err = s.o.CPU()
		u.known = err == nil
	}
	return u
}

// attend carries out the test while another goroutine reads what the client says. It reports why the test ended before its client ended it, nil where
// it did not, and whether it began, and its end is logged. A refusal without a code is for the log alone: the client is gone, or knows.
func (t *test) attend(ctx context.Context) (no *refusal, begun bool) {
	_ = t.conn.SetReadDeadline(time.Time{})
	alive, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var watcher sync.WaitGroup
	watcher.Go(func() { t.watch(giveUp) })
	defer func() {
		_ = t.conn.SetReadDeadline(t.host.Now().Add(-time.Second))
		watcher.Wait()
	}()
	if ctx.Err() != nil { // its wake-up may have been undone
		return &refusal{why: "this server ends"}, false
	}
	t.receive, _ = t.p.Sends()
	if no := t.open(alive); no != nil {
		return no, false
	}
	t.log.Printf("iperf3: %v begins %s", t.peer, t)
	no = t.run(alive, giveUp)
	t.logEnd(no)
	return no, true
}

// open gathers the streams.
func (t *test) open(ctx context.Context) *refusal {
	var err error
	if t.p.Protocol == wire.UDP {
		err = t.openUDP(ctx)
	} else {
		err = t.openTCP(ctx)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return refuse(wire.StreamNotTaken, "%v within %v", errNoStart, t.patience())
	}
	return &refusal{why: err.Error()}
}

// close closes the streams. The client has had what it was to have, or does not want it any more.
func (t *test) close() {
	for _, s := range t.streams {
		if s.udp != nil {
			s.udp.leave()
			continue
		}
		if l, ok := s.conn.Conn.(interface{ SetLinger(int) error }); ok {
			_ = l.SetLinger(0)
		}
		_ = s.conn.Close()
	}
}

// run carries the data, until the client ends the test, and exchanges the results.
func (t *test) run(alive context.Context, giveUp context.CancelCauseFunc) *refusal {
	if !t.send(wire.TestStart.Byte(), wire.TestRunning.Byte()) {
		return &refusal{why: errClientGone.Error()}
	}
	t.began, t.cpu = t.host.Now(), t.used()
	receiving, stopReceiving := context.WithCancel(alive)
	sending, stopSending := context.WithCancel(alive)
	var receivers, senders, helpers sync.WaitGroup
	defer func() {
		stopReceiving()
		stopSending()
		receivers.Wait()
		senders.Wait()
		helpers.Wait()
		t.moved = t.payload()
	}()
	t.begin()
	for i, s := range t.streams {
		switch {
		case i >= t.receive:
			senders.Go(func() { t.transmit(sending, s, giveUp) })
		case s.udp == nil:
			receivers.Go(func() { t.absorb(receiving, s, giveUp) })
		}
	}
	if t.p.Protocol == wire.UDP && t.receive > 0 {
		helpers.Go(func() { t.watchIdle(sending, giveUp) })
	}
	if left := t.clients.Allowance(t.peer.Addr()); left > 0 {
		helpers.Go(func() { t.watchQuota(sending, left, giveUp) })
	}
	if t.p.Omit > 0 {
		helpers.Go(func() {
			if t.host.SleepUntil(sending, t.began.Add(t.p.Omit)) == nil {
				t.omit()
			}
		})
	}
	whole, cancel := host.WithDeadline(alive, t.host, t.until())
	defer cancel()
	select {
	case <-t.ended:
	case <-whole.Done():
		t.stopped = t.host.Now()
		stopReceiving()
		stopSending()
		receivers.Wait()
		senders.Wait()
		helpers.Wait()
		t.count()
		return t.broken(alive)
	}
	t.gather(alive)
	t.stopped = t.host.Now()
	stopSending()
	senders.Wait()
	helpers.Wait()
	t.count()
	t.endStreams()
	return t.exchange(alive)
}

// gather waits, after an upload of so many bytes, for those that were under way when its client told the end: as long as they come, and not for
// long. A client of a timed test sends on until it tells the end, and what comes after that is not counted.
func (t *test) gather(alive context.Context) {
	want := t.p.Bytes + t.p.Blocks*uint64(t.p.Size)
	if want == 0 || t.receive == 0 || t.p.Omit > 0 || t.p.Protocol == wire.UDP {
		return
	}
	const step, quiet, most = 5 * time.Millisecond, 200 * time.Millisecond, 5 * time.Second
	var had uint64
	began := t.host.Now()
	for moved := began; ; {
		var got uint64
		for _, s := range t.streams[:t.receive] {
			got += s.counter.Bytes()
		}
		now := t.host.Now()
		if got > had {
			had, moved = got, now
		}
		if got >= want || now.Sub(moved) > quiet || now.Sub(began) > most || t.host.SleepUntil(alive, now.Add(step)) != nil {
			return
		}
	}
}

// endStreams ends what this end sends. A client of 3.12 reads whole blocks, and would wait for the rest of one for ever.
func (t *test) endStreams() {
	for i, s := range t.streams {
		if i < t.receive || s.conn == nil {
			continue
		}
		if w, ok := s.conn.Conn.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite() // it fails only where the client is gone, which the exchange will see
		}
	}
}

// until is when the server ends the test that its client does not end: one without a length where that of the longest is over.
func (t *test) until() time.Time {
	if t.p.Time == 0 {
		return t.began.Add(t.o.MaxLength)
	}
	return t.began.Add(t.p.Omit + t.p.Time + lengthGrace)
}

// broken says why a test ended that its client did not end.
func (t *test) broken(alive context.Context) *refusal {
	switch cause := context.Cause(alive); {
	case cause == nil && t.p.Time == 0:
		return refuse(t.tooLong(), "it had no end of its own, and %v is the longest that this server allows", t.o.MaxLength)
	case cause == nil:
		return refuse(wire.PastItsTime, "%v past its time", lengthGrace)
	case errors.Is(cause, errStalled):
		return refuse(wire.NoData, "%v (%v)", cause, idleTimeout)
	case errors.Is(cause, errQuota):
		return refuse(wire.RateLimit, "%v: %d bytes of an address", cause, t.o.MaxBytesPerHour)
	case errors.Is(cause, errClientEnded):
		return refuse(wire.ClientEnded, "%v", cause)
	default:
		return &refusal{why: cause.Error()}
	}
}

// begin lets UDP streams count from now.
func (t *test) begin() {
	for i, s := range t.streams {
		if s.udp != nil {
			s.udp.begin(i < t.receive, t.p.Counters64, t.began)
		}
	}
}

// absorb reads a TCP stream to its end.
func (t *test) absorb(ctx context.Context, s *stream, giveUp context.CancelCauseFunc) {
	out, _ := pump.Receive(ctx, t.host, s.conn.Conn, &s.counter, pump.Options{Idle: idleTimeout})
	if out.End == pump.Stalled {
		giveUp(errStalled)
	}
}

// transmit sends on a stream until the test is over. With TCP it stops where the client has had what it asked for, and holds still; with
// UDP it goes on, since what was lost will not come again.
func (t *test) transmit(ctx context.Context, s *stream, giveUp context.CancelCauseFunc) {
	if s.udp != nil {
		clock, release := t.senderClock()
		defer release()
		var err error
		s.sent, err = pace.SendDatagrams(ctx, clock, pace.Datagrams{Size: t.p.Size, Rate: t.rate, Burst: t.p.Burst, Until: t.until()},
			s.udp.sender(t, &s.sending))
		if err != nil && ctx.Err() == nil {
			giveUp(err)
		}
		return
	}
	out, _ := pace.Send(ctx, t.host, s.conn.Conn, &s.counter,
		pace.Blocks{Size: t.p.Size, Rate: t.rate, Burst: t.p.Burst, Claim: t.claim, Until: t.until(), Idle: idleTimeout})
	if out.End == pump.Stalled {
		giveUp(errStalled)
	}
}

// mostPrecise is how many streams of a server may wait precisely at once, each of which holds a thread for up to 2 ms of each wait. 64 of them, of 2 Mbit/s
// each, cost 2.3 times as much CPU time as by the runtime's timers, and left no more evenly.
const mostPrecise = 4

// senderClock returns the clock that a sender of datagrams waits by, and what is to be called when it waits no more.
func (v *service) senderClock() (clock host.Clock, release func()) {
	clock, release = v.host, func() { v.precise.Add(-1) }
	if v.precise.Add(1) > mostPrecise {
		clock = struct{ host.Clock }{v.host}
	}
	return clock, release
}

// watchQuota gives a test up where it has moved all that its address may still move, with what moves in the time between two looks.
func (t *test) watchQuota(ctx context.Context, left uint64, giveUp context.CancelCauseFunc) {
	const every = 20 * time.Millisecond
	for t.host.SleepUntil(ctx, t.host.Now().Add(every)) == nil {
		if t.payload() > left {
			giveUp(errQuota)
			return
		}
	}
}

// omit notes what was done until now as not to be counted.
func (t *test) omit() {
	for _, s := range t.streams {
		if s.udp != nil {
			s.omitted.tally, s.omitted.sent = s.udp.tally(), s.sending.Load()
			continue
		}
		s.omitted.bytes = s.counter.Bytes()
		if info, err := t.host.TCPInfo(s.conn.Conn); err == nil {
			s.omitted.retransmits = int64(info.Retransmits)
		}
	}
}

// count makes each stream's result of what it has done until now.
func (t *test) count() {
	for i, s := range t.streams {
		r := wire.StreamResult{ID: wire.StreamID(i), Retransmits: -1, HasOmitted: true, End: max(0, t.stopped.Sub(t.began)-t.p.Omit)}
		switch received := i < t.receive; {
		case s.udp == nil:
			r.Bytes = s.counter.Bytes() - s.omitted.bytes
			if info, err := t.host.TCPInfo(s.conn.Conn); err == nil && info.HasRetransmits && !received {
				r.Retransmits = int64(info.Retransmits) - s.omitted.retransmits
			}
		case received:
			now, from := s.udp.tally(), s.omitted.tally
			s.spans = s.udp.spans(t.stopped)
			r.Bytes, r.Jitter = now.Bytes-from.Bytes, now.Jitter
			r.Errors, r.Packets = int64(now.Lost()), int64(now.Highest)
			r.OmittedErrors, r.OmittedPackets = int64(from.Lost()), int64(from.Highest)
		default:
			r.Packets, r.OmittedPackets = int64(s.sent.Sent), int64(s.omitted.sent)
			r.Bytes = (s.sent.Sent - s.omitted.sent) * uint64(t.p.Size)
		}
		s.snapshot = r
	}
}

// results are what this end says of the test.
func (t *test) results() wire.Results {
	out := wire.Results{Retransmits: wire.OnlyReceives}
	if now := t.used(); now.known && t.cpu.known && now.at.After(t.cpu.at) {
		share := func(d time.Duration) float64 { return d.Seconds() / now.at.Sub(t.cpu.at).Seconds() }
		out.CPUUser, out.CPUSystem = share(now.user-t.cpu.user), share(now.system-t.cpu.system)
		out.CPUTotal = out.CPUUser + out.CPUSystem
	}
	if t.receive < len(t.streams) {
		out.Retransmits = wire.SendsBlindly
	}
	for i, s := range t.streams {
		if i >= t.receive && s.snapshot.Retransmits >= 0 {
			out.Retransmits = wire.SendsCounted
		}
		out.Streams = append(out.Streams, s.snapshot)
	}
	if first := t.streams[0]; first.conn != nil {
		if info, err := t.host.TCPInfo(first.conn.Conn); err == nil {
			out.Congestion = info.CongestionControl
		}
	}
	switch {
	case !t.p.ServerOutput:
	case t.p.Protocol == wire.UDP && t.receive > 0:
		all := make([][]wire.Span, len(t.streams))
		for i, s := range t.streams {
			all[i] = s.spans
		}
		out.ServerJSON = wire.Report(all)
	default:
		out.ServerText = t.text()
	}
	return out
}

// exchange tells the client to send its results, reads them, and sends ours. Both ends' numbers stand by then; what the client does with
// them, and how it goes, is no matter.
func (t *test) exchange(alive context.Context) *refusal {
	if !t.send(wire.ExchangeResults.Byte()) {
		return &refusal{why: "the client left without results"}
	}
	t.expect(alive, resultsTimeout)
	b, err := wire.ReadMessage(t.conn, maxResults)
	if err == nil {
		_, err = wire.ParseResults(b)
	}
	var format *wire.FormatError
	if errors.As(err, &format) {
		return refuse(wire.NoResults, "%v", err)
	}
	if err != nil {
		return &refusal{why: "the client left without results"}
	}
	if !t.send(t.results().AppendTo(nil)...) || !t.send(wire.DisplayResults.Byte()) {
		return &refusal{why: "the client left without ours"}
	}
	// The client closes first: closes that cross become resets behind a NAT.
	t.expect(alive, goodbye)
	_, _ = io.CopyN(io.Discard, t.conn, 1<<10)
	return nil
}

// String is the test in words for the log.
func (t *test) String() string {
	p := t.p
	what := "an upload"
	switch {
	case p.Bidirectional:
		what = "both directions"
	case p.Reverse:
		what = "a download"
	}
	s := fmt.Sprintf("%s by %v, %d streams", what, p.Protocol, len(t.streams))
	if t.rate > 0 {
		s += fmt.Sprintf(" of %v", t.rate)
	}
	switch {
	case p.Time > 0:
		s += fmt.Sprintf(", at most %v", p.Omit+p.Time)
	case p.Bytes > 0:
		s += fmt.Sprintf(", %d bytes", p.Bytes)
	case p.Blocks > 0:
		s += fmt.Sprintf(", %d blocks of %d bytes", p.Blocks, p.Size)
	}
	return s
}

// sums are the bytes of each direction, as counted.
func (t *test) sums() (received, sent uint64) {
	for i, s := range t.streams {
		if i < t.receive {
			received += s.snapshot.Bytes
		} else {
			sent += s.snapshot.Bytes
		}
	}
	return received, sent
}

// payload is all that the test moved, also what is not counted in its results.
func (t *test) payload() (n uint64) {
	for _, s := range t.streams {
		n += s.counter.Bytes() + s.sending.Load()*uint64(t.p.Size)
		if s.udp != nil {
			n += s.udp.tally().Bytes
		}
	}
	return n
}

// text is the report for a client that wants to see it.
func (t *test) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "bloat: %s\n", t)
	d := max(0, t.stopped.Sub(t.began)-t.p.Omit)
	for i, s := range t.streams {
		verb := "sent"
		if i < t.receive {
			verb = "received"
		}
		fmt.Fprintf(&b, "[%3d] %.3f s: %s %d bytes, %.3f Mbit/s\n", s.snapshot.ID, d.Seconds(), verb, s.snapshot.Bytes,
			bitrate.Of(s.snapshot.Bytes, d).Mbps())
	}
	return b.String()
}

// logEnd notes how a test ended.
func (t *test) logEnd(no *refusal) {
	if t.stopped.IsZero() { // it ended before any data could flow
		t.log.Printf("iperf3: %v ends: %s", t.peer, no.why)
		return
	}
	received, sent := t.sums()
	d := t.stopped.Sub(t.began)
	why := "complete"
	if no != nil {
		why = no.why
	}
	t.log.Printf("iperf3: %v ends after %v: received %d bytes (%.2f Mbit/s), sent %d bytes (%.2f Mbit/s); %s", t.peer, d.Round(time.Millisecond),
		received, bitrate.Of(received, d).Mbps(), sent, bitrate.Of(sent, d).Mbps(), why)
}
