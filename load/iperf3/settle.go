package iperf3

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/iperf3"
	"bufferbloat/load"
)

const (
	// shortest is the least time that a rate may be made of, beside four round trips.
	shortest = 500 * time.Millisecond
	// wholeWithin is what a flow may lack of its time, or a twentieth of that time, and still be called whole.
	wholeWithin = time.Second
	// busyServer is the CPU time of a server in its own time from which it may be what limits: stock ones before 3.16 have one thread.
	busyServer = 0.9
)

// omit notes what was done until now as not to be counted.
func (r *running) omit() {
	now := r.host.Now()
	for _, f := range r.flows {
		if !r.o.UDP {
			f.look()
		}
		f.mu.Lock()
		f.omitted = omitted{bytes: f.sent.Bytes() + f.received.Bytes(), acked: f.acked, retransmits: f.info.Retransmits,
			tally: f.track.Tally, sent: f.sending}
		f.first = now
		f.mu.Unlock()
	}
}

// omittedBytes is what downloads had when the omitted time was over.
func (r *running) omittedBytes() (n uint64) {
	for _, f := range r.flows {
		f.mu.Lock()
		n += f.omitted.bytes + f.omitted.tally.Bytes
		f.mu.Unlock()
	}
	return n
}

// results are ours for the server.
func (r *running) results() wire.Results {
	out := wire.Results{Retransmits: wire.OnlyReceives}
	if now := r.used(); now.known && r.cpu.known && now.at.After(r.cpu.at) {
		share := func(d time.Duration) float64 { return d.Seconds() / now.at.Sub(r.cpu.at).Seconds() }
		out.CPUUser, out.CPUSystem = share(now.user-r.cpu.user), share(now.system-r.cpu.system)
		out.CPUTotal = out.CPUUser + out.CPUSystem
	}
	for i, f := range r.flows {
		f.mu.Lock()
		s := wire.StreamResult{ID: f.id, Retransmits: -1, HasOmitted: true, End: max(0, r.stopped.Sub(r.began)-r.o.Omit)}
		switch up := f.direction == load.Upload; {
		case up && r.o.UDP:
			s.Packets, s.OmittedPackets = int64(r.paced[i].Sent), int64(f.omitted.sent)
			s.Bytes = (r.paced[i].Sent - f.omitted.sent) * uint64(r.o.Size)
			out.Retransmits = wire.SendsBlindly
		case up:
			s.Bytes, s.Retransmits = r.pumped[i].Bytes-f.omitted.bytes, 0
			if f.info.HasRetransmits {
				s.Retransmits = int64(f.info.Retransmits - f.omitted.retransmits)
				out.Retransmits = wire.SendsCounted
			} else {
				out.Retransmits = wire.SendsBlindly
			}
		case r.o.UDP:
			t, o := &f.track.Tally, &f.omitted.tally
			s.Bytes, s.Jitter = t.Bytes-o.Bytes, t.Jitter
			s.Errors, s.Packets = int64(t.Lost()), int64(t.Highest)
			s.OmittedErrors, s.OmittedPackets = int64(o.Lost()), int64(o.Highest)
		default:
			s.Bytes = r.pumped[i].Bytes - f.omitted.bytes
		}
		if !r.o.UDP && f.info.CongestionControl != "" {
			out.Congestion = f.info.CongestionControl
		}
		f.mu.Unlock()
		out.Streams = append(out.Streams, s)
	}
	return out
}

// settle fills in what each flow did, and what is wrong with it.
func (r *running) settle(ctx context.Context) {
	for i, f := range r.flows {
		f.mu.Lock()
		s := settling{running: r, Flow: f, i: i}
		if !r.began.IsZero() && !r.stopped.IsZero() {
			if r.server != nil {
				s.word, s.told = r.server.Stream(f.id)
			}
			s.count()
		}
		s.out.Connected = f.linked
		s.warnings = append(s.warnings, r.doubts...)
		switch {
		case ctx.Err() != nil:
			f.err = context.Cause(ctx)
		case r.failure != nil:
			f.err = r.failure
		default:
			f.err = s.judge(ctx)
		}
		s.out.Warning = strings.Join(s.warnings, "; ")
		f.result = s.out
		f.mu.Unlock()
	}
}

// settling is one flow whose result is being made; its lock is held.
type settling struct {
	*running
	*Flow
	i        int
	word     wire.StreamResult // the server's
	told     bool              // it is there
	out      load.Result
	warnings []string
}

func (s *settling) warn(format string, args ...any) {
	s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
}

func (s *settling) count() {
	s.out.Stopped = s.stopped
	if s.told {
		s.out.ServerBytes, s.out.HasServerBytes = s.word.Bytes, true
		s.out.ServerOwnCPU, s.out.HasServerOwnCPU = s.server.CPUTotal, s.server.CPUTotal > 0
		if s.server.CPUTotal > busyServer {
			s.warn("the server's program used %.2f CPUs: it may be the limit, not the path", s.server.CPUTotal)
		}
	}
	switch down := s.direction == load.Download; {
	case s.o.UDP && down:
		s.receivedDatagrams()
	case s.o.UDP:
		s.sentDatagrams()
	case down:
		s.download()
	default:
		s.upload()
	}
}

// download is what this end read. The server's word only adds what the sender alone knows.
func (s *settling) download() {
	got := s.pumped[s.i]
	s.out.Bytes, s.out.CountedBy, s.out.First, s.out.Last = got.Bytes-s.omitted.bytes, load.CountedByReads, got.First, got.Last
	if s.o.Omit > 0 {
		s.out.First = s.first
	}
	if s.told && s.server.Retransmits == wire.SendsCounted && s.word.Retransmits >= 0 {
		s.out.Retransmits, s.out.HasRetransmits = uint64(s.word.Retransmits), true
	}
	if s.server != nil {
		s.out.CongestionControl = s.server.Congestion
	}
}

// upload is what the server read until it learned of the end, in the time that it did so by its own clock; without its word, what its stack
// acknowledged. What was still queued then is in neither.
func (s *settling) upload() {
	sent := s.pumped[s.i]
	s.out.CongestionControl = s.info.CongestionControl
	if s.info.HasRetransmits {
		s.out.Retransmits, s.out.HasRetransmits = s.info.Retransmits-s.Flow.omitted.retransmits, true
	}
	s.out.First, s.out.Last = s.first, s.ackAt
	s.out.Bytes, s.out.CountedBy = min(s.acked, sent.Bytes)-min(s.acked, s.Flow.omitted.acked), load.CountedByAcks
	if !s.acks {
		// The first byte is known to have arrived no sooner than one round trip after it was sent.
		s.out.Bytes, s.out.CountedBy = sent.Bytes-s.Flow.omitted.bytes, load.NotCounted
		if s.out.First.IsZero() {
			s.out.First = s.began.Add(s.setup)
		}
		s.out.Last = s.stopped
	}
	if s.out.Last.Before(s.out.First) {
		s.out.Last = s.out.First
	}
	switch {
	case !s.told && s.out.CountedBy == load.NotCounted:
		s.warn("the server sent no result, and this stack does not tell what was acknowledged: the bytes are what was sent")
	case !s.told:
		s.warn("the server sent no result: the bytes are what its stack acknowledged")
	case s.word.Bytes > sent.Bytes:
		s.warn("the server says that it received %d bytes of the %d that were sent; its figure is not used", s.word.Bytes, sent.Bytes)
		s.out.HasServerBytes = false
	case s.out.CountedBy == load.CountedByAcks && s.word.Bytes < s.out.Bytes && s.o.Omit == 0:
		// Its stack has more than its program had read when it learned of the end: the rest of a block where it counts whole ones, or what came after.
		if missing := s.out.Bytes - s.word.Bytes; s.drained[s.i] && missing >= uint64(s.o.Size) {
			s.warn("the server's program had read %d of the %d bytes that its stack had when the test ended", s.word.Bytes, s.out.Bytes)
		}
	case s.drained[s.i] && s.o.Omit == 0:
		// All had come before the server learned of the end, so that its count and our last acknowledgement are of one interval.
		s.out.Bytes, s.out.CountedBy = s.word.Bytes, load.CountedByServer
	default:
		s.out.Bytes, s.out.CountedBy = s.word.Bytes, load.CountedByServer
		s.out.Last = s.serversEnd()
	}
}

// serversEnd is when the server stopped counting, as this end would have learned of it at once. Its own clock says how long it counted: from
// its start, after which the first data came one round trip later, to the end that it learned of. Without that it is when its word came.
func (s *settling) serversEnd() time.Time {
	latest := s.running.ended
	counted := s.word.End - s.word.Start
	if s.o.Omit == 0 {
		counted -= s.setup
	}
	if counted <= 0 || s.out.First.IsZero() {
		return latest
	}
	if at := s.out.First.Add(counted); at.Before(latest) {
		return at
	}
	return latest
}

// receivedDatagrams is what this end received.
func (s *settling) receivedDatagrams() {
	d := s.countedHere(s.omitted.tally)
	got := s.arrived[s.i]
	s.out.Bytes, s.out.CountedBy = s.track.Bytes-s.omitted.tally.Bytes, load.CountedByReads
	s.out.First, s.out.Last = got.first, got.last
	if s.o.Omit > 0 {
		s.out.First = s.first
	}
	if s.told && s.word.Packets > 0 {
		d.Sent, d.HasSender = uint64(s.word.Packets), true
		if s.word.HasOmitted {
			d.Sent -= uint64(min(s.word.Packets, max(0, s.word.OmittedPackets)))
		}
		if highest := s.track.Highest - s.omitted.tally.Highest; d.Sent > highest {
			d.AfterEnd = d.Sent - highest
		}
	}
	d.Intervals = intervals(s.track.Spans(s.stopped.Sub(s.began)), s.o.Omit)
	s.out.Datagrams = &d
}

// sentDatagrams is what the server says that it received; this end knows only what it sent.
func (s *settling) sentDatagrams() {
	sent := s.paced[s.i]
	d := load.Datagrams{Size: s.o.Size, Sent: sent.Sent - s.Flow.omitted.sent, Unsent: sent.Unsent, Skipped: sent.Skipped, Lateness: sent.Lateness,
		HasSender: true}
	s.out.Datagrams = &d
	s.out.CountedBy = load.NotCounted
	if !s.told {
		return
	}
	w := s.word
	packets, lost := w.Packets, w.Errors
	if w.HasOmitted {
		packets, lost = packets-w.OmittedPackets, lost-w.OmittedErrors
	}
	if packets < 0 || lost < 0 || lost > packets || uint64(packets) > sent.Sent || w.Bytes > sent.Sent*uint64(s.o.Size) {
		s.warn("the server says that it received %d bytes and missed %d of %d datagrams, and %d of %d bytes were sent: its figure is not used",
			w.Bytes, lost, packets, d.Sent, s.o.Size)
		return
	}
	if s.o.Omit > 0 && !w.HasOmitted {
		s.warn("the server, before 3.14, counts datagrams from the start, with what was omitted")
	}
	d.Received, d.Lost, d.HasReceiver, d.RTPJitter = uint64(packets-lost), uint64(lost), true, w.Jitter
	if d.Sent > uint64(packets) {
		d.AfterEnd = d.Sent - uint64(packets)
	}
	s.out.Bytes, s.out.CountedBy = w.Bytes, load.CountedByServer
	if w.Bytes > 0 {
		s.out.First = sent.First.Add(s.setup)
		if s.o.Omit > 0 {
			s.out.First = s.first
		}
		s.out.Last = s.serversEnd()
	}
	if s.report != nil {
		s.fromReport(&d)
	}
}

// fromReport takes from the server's own report how the datagrams came over time.
func (s *settling) fromReport(d *load.Datagrams) {
	spans := s.report[s.i]
	d.Intervals = intervals(spans, 0)
	d.HasOrder, d.HasDelay = len(spans) > 0, false
	for _, span := range spans {
		d.HasOrder = d.HasOrder && span.HasOrder
		d.Reordered += span.Reordered
		d.Duplicate += span.Duplicate
		if span.HasDelay {
			d.HasDelay, d.LastDelay = true, span.Most
			d.DelayChange = max(d.DelayChange, span.Most)
		}
	}
}

// intervals are a receiver's spans, without those that began in the omitted time.
func intervals(spans []wire.Span, omit time.Duration) []load.Interval {
	var list []load.Interval
	for _, s := range spans {
		if s.From < omit {
			continue
		}
		list = append(list, load.Interval{From: s.From - omit, To: s.To - omit, Bytes: s.Bytes, Received: s.Received, Lost: s.Lost,
			Reordered: s.Reordered, Duplicate: s.Duplicate, RTPJitter: s.Jitter, LeastDelay: s.Least, MostDelay: s.Most,
			HasOrder: s.HasOrder, HasDelay: s.HasDelay})
	}
	return list
}

// judge says what is wrong with a flow of a test that went to its end.
func (s *settling) judge(ctx context.Context) error {
	length := s.out.Stopped.Sub(s.began).Round(time.Millisecond)
	got := s.pumped[s.i]
	switch {
	case s.o.UDP && s.broken[s.i] != nil && !errors.Is(s.broken[s.i], errReached):
		return s.client.explain(ctx, fmt.Errorf("%w: %w", ErrCutShort, s.broken[s.i]))
	case s.out.Bytes == 0 && s.direction == load.Download && s.reached:
		s.warn("the other streams had all that was asked for before this one had any")
		return nil
	case s.out.Bytes == 0:
		return s.client.explain(ctx, fmt.Errorf("%w in %v of the %v", ErrNoData, length, s.direction))
	case got.End == pump.Closed || got.End == pump.Broken:
		return s.cutShort(ctx, got, s.broken[s.i])
	}
	if d, least := s.out.Duration(), max(shortest, 4*s.setup); d < least {
		s.warn("data flowed for %v only, less than %v: too short for a rate", d.Round(time.Microsecond), least.Round(time.Millisecond))
	}
	pause := max(time.Second, 4*s.setup)
	if quiet := s.out.Stopped.Sub(s.out.Last); s.direction == load.Download && quiet > pause && s.o.Length > 0 {
		s.warn("nothing arrived in the last %v", quiet.Round(time.Millisecond))
	}
	if quiet := s.out.Stopped.Sub(s.ackAt); s.direction == load.Upload && s.acks && quiet > max(pause, 2*s.rtt) {
		s.warn("nothing was acknowledged in the last %v", quiet.Round(time.Millisecond))
	}
	if d := s.out.Datagrams; d != nil && d.HasSender && s.direction == load.Upload {
		if missed := d.Unsent + d.Skipped; missed > 0 {
			s.warn("%d of %d datagrams did not leave this host: the load was less than intended", missed, missed+d.Sent)
		}
	}
	return nil
}

// cutShort says that the data connection ended before its time was up: as an error where so much is missing that the flow is not whole,
// otherwise as a warning.
func (s *settling) cutShort(ctx context.Context, got pump.Outcome, cause error) error {
	early := s.until().Sub(got.Last).Round(time.Millisecond)
	if early <= max(wholeWithin, s.o.Length/20) {
		s.warn("the data connection ended %v before its time", early)
		return nil
	}
	if cause == nil {
		return s.client.explain(ctx, fmt.Errorf("%w %v before its time", ErrCutShort, early))
	}
	return s.client.explain(ctx, fmt.Errorf("%w %v before its time: %w", ErrCutShort, early, cause))
}
