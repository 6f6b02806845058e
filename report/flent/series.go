package flent

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/dscp"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// The kinds of probe series, by what made them.
const (
	icmp  = "icmp"
	irtt  = "irtt"
	http  = "http"   // the time that a list of pages took to fetch
	udpRR = "udp_rr" // netperf's request and response, one at a time: each value is a mean over an interval
)

// kinds are in the order in which they speak for a run.
var kinds = []string{icmp, irtt, http, udpRR}

const pingPrefix = "Ping (ms)"

// isProbe reports whether a series holds round-trip times of probes. Averages over series are flent's own and no probe's.
func (s *series) isProbe() bool {
	return (strings.HasPrefix(s.name, pingPrefix) || s.name == httpLatency) && !s.computed() && !strings.Contains(s.name, "::tcp_") &&
		(s.hasRaw || s.hasGrid)
}

// computed reports whether flent made the series from others.
func (s *series) computed() bool {
	for _, end := range []string{" avg", " sum", " totals", " total", " fairness"} {
		if strings.HasSuffix(s.name, end) && len(s.rows) == 0 {
			return true
		}
	}
	return false
}

// direction returns the way of a TCP flow's data, or false where the series is none of a flow.
func (s *series) direction() (load.Direction, bool) {
	switch {
	case strings.HasPrefix(s.name, "TCP upload"), strings.Contains(s.declare.command, "-t TCP_STREAM"):
		return load.Upload, true
	case strings.HasPrefix(s.name, "TCP download"), strings.Contains(s.declare.command, "-t TCP_MAERTS"):
		return load.Download, true
	}
	return 0, false
}

func (s *series) isFlow() bool {
	_, ok := s.direction()
	return ok && !s.computed() && !strings.Contains(s.name, "::tcp_") && (s.hasRaw || s.hasGrid) &&
		(s.declare.units == rateUnit || s.declare.units == "")
}

// kind says what made the samples of a probe series.
func (s *series) kind() string {
	oneAtATime := slices.ContainsFunc(s.rows, func(r row) bool { return !math.IsNaN(r.dur) })
	switch {
	case s.name == httpLatency:
		return http
	case oneAtATime, s.declare.runner == "NetperfDemoRunner":
		return udpRR
	case s.declare.runner == "IrttRunner", slices.ContainsFunc(s.rows, func(r row) bool { return r.lost || !math.IsNaN(r.up) }), strings.Contains(s.name, "UDP"):
		return irtt
	}
	return icmp
}

func hasRTT(s probe.Sample) bool { return s.Outcome.HasRTT() }

// probe adds a series of probes.
func (m *mapper) probe(s *series) {
	p := bufferbloat.ProbeSeries{Name: s.name, Kind: s.kind(), Target: m.f.meta.host, Unscheduled: true}
	if step := m.f.meta.step; finite(step) && step > 0 && step < 3600 {
		p.Interval = time.Duration(step * 1e9)
	}
	switch {
	case len(s.rows) == 0:
		p.NoLoss = "its values are interpolated to a grid"
		m.probeGrid(&p, s)
	case p.Kind == udpRR:
		p.NoLoss = "netperf's request and response counts no losses"
		m.intervals(&p, s)
	default:
		if p.Kind == http {
			p.NoLoss = "flent keeps no record of fetches that failed"
		}
		m.replies(&p, s)
	}
	if !slices.ContainsFunc(p.Samples, hasRTT) && p.Error == "" {
		p.Error = "the file has no reply of it"
	}
	m.rec.Probes = append(m.rec.Probes, p)
}

// probeGrid takes the values of the grid, where the file has nothing better.
func (m *mapper) probeGrid(p *bufferbloat.ProbeSeries, s *series) {
	for i, v := range s.grid {
		if v >= 0 && v < maxRTT {
			p.Samples = append(p.Samples, probe.Sample{Seq: uint64(i), Sent: time.Duration(m.t0 + int64(m.f.grid[i]*1e9)), Outcome: probe.Received, RTT: millis(v)})
		}
	}
	if len(p.Samples) > 0 {
		m.find("flent_grid", bufferbloat.Weakens, "%s: the file has no raw samples of it, only values interpolated to a grid: losses and short delays do not show", s.name)
	}
}

const (
	maxRTT  = 1e9   // ms
	patient = 10000 // ms; a mean over an interval with longer waits is that of a loss
)

func millis(v float64) time.Duration { return time.Duration(math.Round(v * 1e6)) }

// intervals takes netperf's mean round-trip times over intervals. One whose mean is beyond all patience is a wait for a packet that was lost, not a time.
func (m *mapper) intervals(p *bufferbloat.ProbeSeries, s *series) {
	n := 0
	for i := range s.rows {
		r := &s.rows[i]
		dur := 0.0
		if r.dur > 0 && r.dur < maxSpan.Seconds() {
			dur = r.dur
		}
		sample := probe.Sample{Seq: uint64(i), Sent: time.Duration(r.at) - time.Duration(dur*1e9), Outcome: probe.Received}
		switch {
		case !(r.val >= 0 && r.val <= patient) || dur > patient/1000:
			sample.Outcome = probe.Invalid
			m.stalled(p, s, r, dur)
		default:
			sample.RTT = millis(r.val)
			n++
		}
		p.Samples = append(p.Samples, sample)
	}
	m.find("flent_udp_rr", bufferbloat.Weakens, "%s: netperf's request and response, one at a time: each of the %d values is a mean over an interval, a lost packet stops it, "+
		"and losses are not told", s.name, n)
}

// stalled says what became of a series that waited for a packet that never came.
func (m *mapper) stalled(p *bufferbloat.ProbeSeries, s *series, r *row, dur float64) {
	at := float64(r.at-m.t0)/1e9 - dur
	if dur <= 0 {
		m.find("flent_stalled", bufferbloat.Weakens, "%s: a value of %.6g ms is no round-trip time; it is left out", s.name, r.val)
		return
	}
	p.Error = fmt.Sprintf("it stalled at %.1f s", at)
	m.find("flent_stalled", bufferbloat.Weakens, "%s: at %.1f s it stalled, waiting for a packet that was lost: its next \"interval\" lasted %.2f s, which flent shows as "+
		"a round-trip time of %.6g ms; it is left out, and nothing was probed meanwhile", s.name, at, dur, r.val)
}

// replies takes single replies and losses. Probes that left no trace but a gap in the sequence are lost.
func (m *mapper) replies(p *bufferbloat.ProbeSeries, s *series) {
	numbered := true
	p.Samples = make([]probe.Sample, 0, len(s.rows))
	for i := range s.rows {
		r := &s.rows[i]
		sample, ok := reply(r)
		if !ok {
			s.skipped++
			continue
		}
		if r.seq >= 0 && r.seq < 1<<53 {
			sample.Seq = uint64(r.seq)
		} else {
			sample.Seq, numbered = uint64(i), false
		}
		p.Samples = append(p.Samples, sample)
	}
	if !numbered {
		for i := range p.Samples {
			p.Samples[i].Seq = uint64(i)
		}
		if p.Kind == icmp {
			m.find("flent_unnumbered", bufferbloat.Weakens, "%s: its samples have no numbers, so that lost probes do not show", s.name)
		}
		return
	}
	slices.SortStableFunc(p.Samples, func(a, b probe.Sample) int { return cmp.Compare(a.Seq, b.Seq) })
	unique := slices.CompactFunc(p.Samples, func(a, b probe.Sample) bool { return a.Seq == b.Seq })
	p.Tally.Duplicates = uint64(len(p.Samples) - len(unique))
	p.Samples = unique
	if p.Kind == icmp {
		m.gaps(p)
	}
}

// reply turns a raw sample into a probe's, its time of sending since 1970. It is false for what is neither a reply nor a loss.
func reply(r *row) (probe.Sample, bool) {
	s := probe.Sample{Sent: time.Duration(r.at), Outcome: probe.Lost}
	switch {
	case r.outcome != 0 && !probe.Outcome(r.outcome).HasRTT(): // a file of ours
		s.Outcome = probe.Outcome(r.outcome)
	case r.lost && r.direction > 0:
		s.Outcome = probe.LostUp
	case r.lost && r.direction < 0:
		s.Outcome = probe.LostDown
	case r.lost:
	case r.val >= 0 && r.val < maxRTT:
		s.Outcome, s.RTT = probe.Received, millis(r.val)
		s.Sent -= s.RTT // a reply is stamped as it comes
	case finite(r.val):
		s.Outcome = probe.Invalid
	default:
		return s, false
	}
	if s.Outcome.HasRTT() && math.Abs(r.up) < maxRTT && math.Abs(r.down) < maxRTT {
		s.Up, s.Down, s.HasOneWay = millis(r.up), millis(r.down), true
	}
	return s, true
}

// maxInferred is how many samples a series may have before gaps in its numbers no longer become lost probes: a small file should not become a large
// recording.
const maxInferred = 200_000

// gaps adds a lost probe for each number that is missing, sent between its neighbours. A gap that would put probes much closer together than
// the others are is no loss, and is left alone.
func (m *mapper) gaps(p *bufferbloat.ProbeSeries) {
	got := p.Samples
	if len(got) == 0 {
		return
	}
	if n := len(got); got[n-1].Seq-got[0].Seq == uint64(n-1) && got[0].Seq <= 1 {
		return
	}
	interval := p.Interval
	if interval <= 0 {
		interval = 10 * time.Millisecond
	}
	out := make([]probe.Sample, 0, len(got)+len(got)/8)
	lost := func(seq uint64, at time.Duration) {
		out = append(out, probe.Sample{Seq: seq, Sent: at, Outcome: probe.Lost})
	}
	const known = 1000                        // more missing at the start is a counter that began elsewhere
	if n := got[0].Seq; n > 1 && n <= known { // ping counts from 1, fping from 0
		for seq := uint64(1); seq < n; seq++ {
			lost(seq, got[0].Sent-time.Duration(n-seq)*interval)
		}
	}
	for i := range got {
		if i > 0 {
			a, b := got[i-1], got[i]
			steps := b.Seq - a.Seq
			span := b.Sent - a.Sent
			each := float64(span) / float64(steps)
			switch {
			case steps == 1:
			case each < float64(interval)/4 || uint64(len(out))+steps > maxInferred:
				m.find("flent_sequence", bufferbloat.Weakens, "%s: its numbers jump from %d to %d within %v; that is not counted as loss", p.Name, a.Seq, b.Seq, span)
			default:
				for k := uint64(1); k < steps; k++ {
					lost(a.Seq+k, a.Sent+time.Duration(each*float64(k)))
				}
			}
		}
		out = append(out, got[i])
	}
	p.Samples = out
}

// flow adds a TCP flow: its counter is the sum of its rates over their own intervals, its result what netperf said at the end.
func (m *mapper) flow(s *series) {
	f := bufferbloat.Flow{Name: s.name}
	f.Direction, _ = s.direction()
	var sum float64
	var longest, missing time.Duration
	f.Points = make([]bufferbloat.Point, 0, len(s.rows)+1)
	for i := range s.rows {
		r := &s.rows[i]
		if !(r.val >= 0 && r.val < 1e9 && r.dur > 0 && r.dur < maxSpan.Seconds()) {
			continue
		}
		end, dur := time.Duration(r.at), time.Duration(math.Round(r.dur*1e9))
		if n := len(f.Points); n == 0 {
			f.Points = append(f.Points, bufferbloat.Point{At: end - dur})
		} else if gap := end - dur - f.Points[n-1].At; gap > 50*time.Millisecond {
			missing += gap
			f.Points = append(f.Points, bufferbloat.Point{At: end - dur, Bytes: f.Points[n-1].Bytes})
		}
		last := f.Points[len(f.Points)-1]
		sum += r.val * 1e6 / 8 * r.dur
		f.Points = append(f.Points, bufferbloat.Point{At: max(end, last.At), Bytes: max(uint64(math.Round(sum)), last.Bytes)})
		longest = max(longest, dur)
	}
	switch {
	case len(f.Points) == 0 && s.onGrid > 0:
		f.Error = "the file has its rates on a grid only, which are no bytes"
		m.quantity(s)
	case len(f.Points) == 0:
		f.Error = "the file has no data of it"
	default:
		m.result(&f, s, sum, longest)
		if span := f.Result.Last - f.Result.First; missing > span/20 {
			f.Result.Warning = "its intervals leave out " + missing.Round(10*time.Millisecond).String() + ": over time it shows nothing there"
		}
	}
	m.rec.Flows = append(m.rec.Flows, f)
}

// result takes the flow's result. netperf's mean is of what the receiver counted: what this host read of a download, what the server says of an upload.
func (m *mapper) result(f *bufferbloat.Flow, s *series, sum float64, longest time.Duration) {
	d := &s.declare
	r := &f.Result
	r.Flowed, r.CountedBy = true, load.NotCounted
	r.First, r.Last = f.Points[0].At, f.Points[len(f.Points)-1].At
	r.Connected, r.Bytes = r.First, uint64(math.Round(sum))
	r.Stopped = r.Last
	// Its next interval would have ended after its time: it carried data until it was stopped.
	if length := m.f.meta.length; finite(length) && length > 0 && length < maxSpan.Seconds() {
		if stop := r.First + time.Duration(length*1e9); r.Last+longest >= stop {
			r.Stopped = stop
		}
	}
	netperf := d.runner == "NetperfDemoRunner" || d.runner == "" && m.f.version < newest || strings.Contains(d.command, "netperf")
	if netperf && d.mean > 0 && d.mean < 1e9 {
		m.counted(f, d)
	} else if netperf && f.Direction == load.Download {
		r.CountedBy = load.CountedByReads
	}
	if d.retransmits >= 0 && d.retransmits < 1<<53 {
		r.Retransmits, r.HasRetransmits = uint64(d.retransmits), true
	}
	r.CongestionControl = d.control
	if d.downTOS >= 0 && d.downTOS < 256 && f.Direction == load.Download {
		r.RemoteDSCP = dscp.FromByte(uint8(d.downTOS)).String()
	}
}

// counted puts netperf's own mean in place of the sum of the intervals. The time that it is over has two decimals and the rate has more digits, or the
// other way round: the better of the two gives the bytes where the file has no count.
func (m *mapper) counted(f *bufferbloat.Flow, d *seriesMeta) {
	r := &f.Result
	r.CountedBy = load.CountedByReads
	if f.Direction == load.Upload {
		r.CountedBy = load.CountedByServer
	}
	elapsed := (r.Last - r.First).Seconds()
	if d.elapsed > 0 && d.elapsed < maxSpan.Seconds() {
		elapsed = d.elapsed
	}
	bytes := d.mean * 1e6 / 8 * elapsed
	if d.received > 0 && d.received < 1<<53 && math.Abs(d.received/bytes-1) < 0.1 {
		bytes = d.received
		const rounding = 0.006 // s
		elapsed = min(max(bytes*8/(d.mean*1e6), elapsed-rounding), elapsed+rounding)
	}
	r.Bytes = uint64(math.Round(bytes))
	if f.Direction == load.Upload && d.received > 0 {
		r.ServerBytes, r.HasServerBytes = uint64(d.received), true
	}
	r.Last = r.First + time.Duration(elapsed*1e9)
}
