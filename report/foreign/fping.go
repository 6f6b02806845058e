package foreign

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/probe"
	"bufferbloat/report"
	"bufferbloat/report/stat"
)

// The lines of fping, 3 to 5.
var (
	fpingLine    = newPattern(`^(?:\[(\d{1,12}\.\d{1,9})\] )?(\S+)\s*: \[(\d{1,10})\], (.*)$`)
	fpingReply   = newPattern(`^\d+ bytes, (\d+(?:[.,]\d+)?) ms(?: \(.*\))?(?: \[<- \S+\])?$`)
	fpingTimeout = newPattern(`^timed out(?: \(.*\))?$`)
	fpingDup     = newPattern(`^(?:\[\d{1,12}\.\d{1,9}\] )?(\S+)\s*: duplicate for \[\d+\], `)
	fpingSummary = newPattern(`^(\S+)\s*: xmt/rcv/%(?:loss|return) = (\d+)/(\d+)/(\d+)%(?:, min/avg/max = ([\d.,]+)/([\d.,]+)/([\d.,]+))?$`)
	fpingVector  = newPattern(`^(\S+)\s*:((?: (?:-|\d+(?:\.\d+)?))+)$`)
	fpingError   = newPattern(`^(?:\[\d{1,12}\.\d{1,9}\] )?(ICMP .*) from (\S+) for ICMP Echo sent to (\S+?)(?: \(\S+\))?$`)
	fpingSend    = newPattern(`^(?:\[\d{1,12}\.\d{1,9}\] )?(\S+)\s*: error while sending ping: (.*)$`)
)

func isFping(s string) bool {
	return fpingLine.MatchString(s) || fpingSummary.MatchString(s) || fpingVector.MatchString(s)
}

// fpingHost is one host of a text of fping.
type fpingHost struct {
	name     string
	replies  map[int64]pingReplied
	high     int64
	vector   []time.Duration // of -C; lost is negative
	summary  *fpingTotals
	step     time.Duration
	tally    probe.Tally
	unsent   int
	firstBad string
}

type fpingTotals struct {
	line
	sent, received int
	times          []time.Duration
}

type fpingText struct {
	hosts []*fpingHost
	first line
}

func (f *fpingText) host(name string) *fpingHost {
	for _, h := range f.hosts {
		if h.name == name {
			return h
		}
	}
	h := &fpingHost{name: name, replies: map[int64]pingReplied{}, high: -1}
	f.hosts = append(f.hosts, h)
	return h
}

// maxHosts bounds the hosts of one text.
const maxHosts = 1000

func readFping(lines []line) (*report.Result, *bufferbloat.Recording, error) {
	f := &fpingText{}
	for _, l := range lines {
		if err := f.line(l); err != nil {
			return nil, nil, err
		}
		if len(f.hosts) > maxHosts {
			return nil, nil, l.bad("more than %d hosts", maxHosts)
		}
	}
	return f.result()
}

func (f *fpingText) line(l line) error {
	text := strings.TrimRight(l.text, " \t")
	if text == "" {
		return nil
	}
	if m := fpingLine.FindStringSubmatch(text); m != nil {
		return f.host(m[2]).probe(l, m[1], m[3], m[4])
	}
	if m := fpingSummary.FindStringSubmatch(text); m != nil {
		return f.host(m[1]).totals(l, m[2:])
	}
	if m := fpingDup.FindStringSubmatch(text); m != nil {
		f.host(m[1]).tally.Duplicates++
		return nil
	}
	if m := fpingError.FindStringSubmatch(text); m != nil {
		h := f.host(m[3])
		h.tally.Rejected++
		if h.tally.FirstError == "" {
			h.tally.FirstError = clip(m[1])
		}
		if a, err := netip.ParseAddr(m[2]); err == nil && !slices.Contains(h.tally.RejectedBy, a) && len(h.tally.RejectedBy) < 8 {
			h.tally.RejectedBy = append(h.tally.RejectedBy, a)
		}
		return nil
	}
	if m := fpingSend.FindStringSubmatch(text); m != nil {
		h := f.host(m[1])
		if h.unsent++; h.firstBad == "" {
			h.firstBad = clip(m[2])
		}
		return nil
	}
	if m := fpingVector.FindStringSubmatch(text); m != nil {
		return f.host(m[1]).list(l, strings.Fields(m[2]))
	}
	return l.bad("not a line of fping's output")
}

// probe takes what follows "host : [0], ".
func (h *fpingHost) probe(l line, stamp, seq, rest string) error {
	n, ok := count(seq)
	if !ok {
		return l.bad("no number of a probe")
	}
	i := int64(n)
	h.high = max(h.high, i)
	switch m := fpingReply.FindStringSubmatch(rest); {
	case m != nil:
		rtt, step, ok := msec(m[1])
		if !ok {
			return l.bad("no time that a reply can have")
		}
		if _, again := h.replies[i]; again {
			h.tally.Duplicates++
			return nil
		}
		h.step = max(h.step, step)
		reply := pingReplied{rtt: rtt}
		if v, ok := number(stamp); ok && v < 9e9 {
			reply.at, reply.hasAt = time.Duration(math.Round(v*1e6))*1000, true
		}
		h.replies[i] = reply
	case fpingTimeout.MatchString(rest):
	default:
		return l.bad("neither a reply nor a time-out")
	}
	return nil
}

func (h *fpingHost) totals(l line, m []string) error {
	if h.summary != nil {
		return l.bad("a second summary of this host; give each run its own file")
	}
	t := &fpingTotals{line: l}
	var ok, ok2 bool
	t.sent, ok = count(m[0])
	t.received, ok2 = count(m[1])
	if !ok || !ok2 {
		return l.bad("no counts")
	}
	for _, s := range m[3:] {
		if s == "" {
			continue
		}
		d, step, ok := msec(s)
		if !ok {
			return l.bad("%q is no time", clip(s))
		}
		t.times = append(t.times, d)
		if len(h.replies) == 0 {
			h.step = max(h.step, step)
		}
	}
	if len(t.times) == 3 && (t.times[0] > t.times[1] || t.times[1] > t.times[2]) {
		return l.bad("want min, avg and max in this order")
	}
	h.summary = t
	return nil
}

// list takes the times of -C: one for each probe, "-" for a lost one.
func (h *fpingHost) list(l line, fields []string) error {
	if h.vector != nil {
		return l.bad("a second list for this host; give each run its own file")
	}
	if len(fields) > maxSamples {
		return l.bad("too many times")
	}
	h.vector = []time.Duration{}
	for _, s := range fields {
		if s == "-" {
			h.vector = append(h.vector, -1)
			continue
		}
		d, step, ok := msec(s)
		if !ok {
			return l.bad("%q is no time", clip(s))
		}
		h.step = max(h.step, step)
		h.vector = append(h.vector, d)
	}
	return nil
}

// samples returns the probes of a host with the stamps of their replies.
func (h *fpingHost) samples() (samples []probe.Sample, at []time.Duration, has []bool, err error) {
	n := int(h.high + 1)
	if len(h.replies) == 0 && h.high < 0 {
		n = len(h.vector)
		for i, d := range h.vector {
			if d >= 0 {
				h.replies[int64(i)] = pingReplied{rtt: d}
			}
		}
	}
	if t := h.summary; t != nil {
		switch {
		case n > t.sent:
			return nil, nil, nil, t.bad("there is a line about probe %d of %d", n, t.sent)
		case t.received > len(h.replies)+int(h.tally.Duplicates):
			return nil, nil, nil, t.bad("there are only %d reply lines: the text is not whole", len(h.replies))
		case t.received < len(h.replies):
			return nil, nil, nil, t.bad("there are %d reply lines", len(h.replies))
		}
		n = t.sent
	}
	samples, at, has = make([]probe.Sample, n), make([]time.Duration, n), make([]bool, n)
	for i := range samples {
		s := &samples[i]
		s.Seq, s.Due, s.Sent, s.Outcome = uint64(i), time.Duration(i), time.Duration(i), probe.Lost
		if reply, ok := h.replies[int64(i)]; ok {
			s.Outcome, s.RTT = probe.Received, reply.rtt
			at[i], has[i] = reply.at-reply.rtt, reply.hasAt
		}
	}
	return samples, at, has, nil
}

// summaryOnly reports whether the host's single replies were not printed.
func (h *fpingHost) summaryOnly() bool {
	return h.high < 0 && h.vector == nil && h.summary != nil && h.summary.received > 0
}

func (f *fpingText) result() (*report.Result, *bufferbloat.Recording, error) {
	if f.hosts[0].summaryOnly() {
		r, err := f.quiet()
		return r, nil, err
	}
	out := &pings{source: report.Source{Program: "fping", Host: clip(f.hosts[0].name)}}
	origin, total := time.Duration(0), 0
	for i, h := range f.hosts {
		if h.summaryOnly() {
			return nil, nil, h.summary.bad("the single replies of this host are missing, and those of another are here")
		}
		samples, at, has, err := h.samples()
		if err != nil {
			return nil, nil, err
		}
		if total += len(samples); total > maxSamples {
			return nil, nil, fmt.Errorf("more than %d probes", maxSamples)
		}
		s := bufferbloat.ProbeSeries{Name: clip(h.name), Kind: "icmp", Target: clip(h.name), Primary: i == 0, Samples: samples, Tally: h.tally}
		if a, err := netip.ParseAddr(h.name); err == nil {
			s.Address = a.String()
		}
		interval, timed := place(samples, at, has)
		if timed {
			s.Interval = interval.Round(100 * time.Microsecond)
			first := slices.Index(has, true)
			start := at[first] - samples[first].Sent
			if i == 0 {
				out.timed, origin = true, start
				out.started = wall(start, out)
			}
			for j := range samples {
				samples[j].Sent = max(0, samples[j].Sent+start-origin)
				samples[j].Due = samples[j].Sent
			}
		}
		out.timed = out.timed && (timed || len(samples) == 0)
		out.series, out.resolution = append(out.series, s), append(out.resolution, h.step)
		h.findings(out)
	}
	r, rec := out.result()
	return r, rec, nil
}

func (h *fpingHost) findings(out *pings) {
	name := clip(h.name)
	if h.summary == nil && h.vector == nil {
		out.findings = append(out.findings, finding("no_closing_line", bufferbloat.Weakens,
			"%s: the closing line is missing: probes after the last line are not known and not counted", name))
	}
	if h.tally.Rejected > 0 {
		by := make([]string, len(h.tally.RejectedBy))
		for i, a := range h.tally.RejectedBy {
			by[i] = a.String()
		}
		out.findings = append(out.findings, finding("probe_rejected", bufferbloat.Weakens, "%s: %s, which are no replies, came from %s: %s", name,
			many(int(h.tally.Rejected), "error reply", "error replies"), strings.Join(by, ", "), h.tally.FirstError))
	}
	if h.unsent > 0 {
		out.findings = append(out.findings, finding("send_errors", bufferbloat.Weakens,
			"%s: %d sends failed on the measuring host (%s): these probes count as lost here, because the text does not tell which they are", name, h.unsent, h.firstBad))
	}
}

// quiet is the result of summaries alone.
func (f *fpingText) quiet() (*report.Result, error) {
	r := &report.Result{Source: &report.Source{Program: "fping", Host: clip(f.hosts[0].name), Untold: []string{"single replies", "whether the line carried any load"}}}
	p := report.Phase{Name: phaseName, Kind: report.Unknown, Reached: true, Untimed: true, CPU: report.CPU{Why: "the source does not tell"}}
	for i, h := range f.hosts {
		t := h.summary
		if t == nil || h.high >= 0 || h.vector != nil {
			return nil, fmt.Errorf("fping: the single replies of %q are here and those of %q are not", clip(h.name), clip(f.hosts[0].name))
		}
		l := report.Latency{Series: clip(h.name), Kind: "icmp", Primary: i == 0, Stated: &report.Stated{Has: report.Min | report.Mean | report.Max, Why: "the summary does not tell"}}
		switch {
		case t.received > t.sent:
			return nil, t.bad("more received than sent")
		case t.received > 0 && len(t.times) != 3:
			return nil, t.bad("no min, avg and max")
		case t.received > 0:
			l.Summary = stat.Summary{N: t.received, Min: t.times[0], Mean: t.times[1], Max: t.times[2]}
		}
		l.Lost = t.sent - t.received
		p.Latency = append(p.Latency, l)
		r.Series = append(r.Series, report.Series{Name: clip(h.name), Kind: "icmp", Target: clip(h.name), Primary: i == 0, Uncounted: true, Resolution: h.step})
		out := &pings{}
		h.findings(out)
		r.Findings = append(r.Findings, out.findings...)
	}
	r.Phases = []report.Phase{p}
	r.Complete()
	return r, nil
}
