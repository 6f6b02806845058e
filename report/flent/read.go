// Package flent reads and writes the data files of flent, so that its recordings can be shown here and ours can be plotted there.
//
// It reads format versions 1 to 4 (.flent, .flent.gz, and .flnt, which is bzip2) and writes version 4. What is mapped to what, and what is
// lost on the way, is in docs/flent.md.
package flent

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/load"
	"bufferbloat/report"
)

// maxSpan is the longest run that a file can hold.
const maxSpan = 400 * 24 * time.Hour

// Read reads a data file as a Recording, with Source set unless this program wrote the file. Raw samples are what it holds wherever the
// file has them; flent's grid, which interpolates, is taken only where there is nothing else, and a finding says so. Series of which a Recording
// has no notion become its Others, by name.
//
// The error is a *FormatError with the place in the decompressed text; errors.As finds a *VersionError in it where the file's format is newer than
// version 4, and errors.Is finds io.ErrUnexpectedEOF where it is cut off.
func Read(r io.Reader) (*bufferbloat.Recording, error) {
	f, err := decode(r)
	if err != nil {
		return nil, err
	}
	if f.own != nil {
		rec, err := restore(f)
		if err != nil {
			return nil, fmt.Errorf("flent data: %s: %w", ownKey, err)
		}
		if rec != nil {
			return rec, nil
		}
	}
	f.convert()
	m := &mapper{f: f, rec: &bufferbloat.Recording{}}
	m.run()
	if err := m.rec.Check(); err != nil {
		return nil, fmt.Errorf("flent data: %w", err)
	}
	return m.rec, nil
}

// convert brings the values of older versions to what version 4 has.
func (f *file) convert() {
	if f.version >= newest {
		return
	}
	for _, s := range f.order {
		for i := range s.rows {
			r := &s.rows[i]
			if strings.Contains(s.name, "UDP") && !math.IsNaN(r.dur) { // transactions per second
				r.val = 1000 / r.val // 0 gives infinity, which is no sample
			}
			if s.name == httpLatency { // seconds
				r.val *= 1000
			}
		}
		for i := range s.grid {
			if s.name == httpLatency {
				s.grid[i] *= 1000
			}
		}
		for _, c := range s.columns {
			if cumulative(s.name, c.name) {
				differences(c.v)
			}
		}
		if parent, key, ok := cutLast(s.name, "::"); ok && cumulative(parent, key) {
			differences(s.grid)
		}
		if s.declare.units == "bits/s" {
			s.declare.mean /= 1e6
			s.declare.units = rateUnit
		}
	}
}

const (
	httpLatency = "HTTP latency"
	voip        = "VoIP"
	rateUnit    = "Mbits/s"
)

// cumulative reports whether an old file counts this since the interface came up, where newer ones have what came since the sample before.
func cumulative(series, key string) bool {
	switch {
	case strings.HasPrefix(series, "qdisc_stats"):
		return key == "dropped" || key == "ecn_mark"
	case strings.HasPrefix(series, "wifi_stats"):
		return strings.HasPrefix(key, "airtime")
	}
	return false
}

// differences replaces each value by what it adds to the last known one before it; the first becomes 0.
func differences(v []float64) {
	last := math.NaN()
	for i, now := range v {
		if math.IsNaN(now) {
			continue
		}
		v[i] = 0
		if !math.IsNaN(last) {
			v[i] = now - last
		}
		last = now
	}
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// mapper turns a file into a Recording. While it works, times in the Recording are nanoseconds since 1970; the last step puts them on
// the run's own base.
type mapper struct {
	f   *file
	rec *bufferbloat.Recording
	t0  int64 // where the grid begins, ns since 1970
}

func (m *mapper) run() {
	m.head()
	m.t0 = m.gridStart()
	for _, s := range m.f.order {
		switch {
		case s.isProbe():
			m.probe(s)
		case s.isFlow():
			m.flow(s)
		default:
			m.quantity(s)
		}
		m.columns(s)
		if s.skipped > 0 {
			m.find("flent_raw_skipped", bufferbloat.Weakens, "%s: %d raw samples have no time; they are left out", s.name, s.skipped)
		}
	}
	m.align()
	m.rebase()
	m.phases()
	m.primary()
	m.conclude()
}

func (m *mapper) find(code string, severity bufferbloat.Severity, format string, args ...any) {
	m.rec.Findings = append(m.rec.Findings, bufferbloat.Finding{Code: code, Severity: severity, Text: fmt.Sprintf(format, args...)})
}

// head takes what the metadata say of the run as a whole.
func (m *mapper) head() {
	meta := &m.f.meta
	program := "flent"
	if meta.program != "" {
		program += " " + meta.program
	}
	m.rec.Source = &bufferbloat.Source{Program: program, Title: meta.title, Untold: []string{"when probes were due, and who stamped their replies",
		"the address of the server", "the CPU use of this host"}}
	m.rec.Plan = bufferbloat.Plan{Name: cmp.Or(meta.name, "flent"), Server: bufferbloat.Server{Host: meta.host}}
	m.rec.Path = bufferbloat.Path{Host: meta.host}
	if meta.ipVersion == 4 || meta.ipVersion == 6 {
		m.rec.Path.Family = fmt.Sprintf("IPv%d", int(meta.ipVersion))
	}
	m.rec.Client = bufferbloat.HostFacts{OS: strings.ToLower(meta.kernel), Kernel: meta.release}
	m.rec.CPU.Why = "not among what " + program + " recorded"
	if slices.ContainsFunc(m.f.order, func(s *series) bool { return strings.HasPrefix(s.name, "cpu_stats") }) {
		m.rec.CPU.Why = "flent recorded it by host: see the further series"
	}
	if meta.failedRuns > 0 {
		m.find("flent_failed", bufferbloat.Weakens, "flent says that %v of its programs failed in this run", meta.failedRuns)
	}
}

// parseTime reads the metadata's form of a time. Those of old versions have no zone and are local to a place that is not told.
func parseTime(s string) (t time.Time, zone, ok bool) {
	s, zone = strings.CutSuffix(s, "Z")
	t, err := time.Parse("2006-01-02T15:04:05.999999999", s)
	return t, zone, err == nil && t.Year() >= 1970 && t.Year() < 2200
}

// gridStart is the time of x = 0. A time without a zone is moved by whole quarters of an hour, to where the raw samples are.
func (m *mapper) gridStart() int64 {
	first, found := int64(math.MaxInt64), false
	for _, s := range m.f.order {
		for i := range s.rows {
			first, found = min(first, s.rows[i].at), true
		}
	}
	t, zone, ok := parseTime(cmp.Or(m.f.meta.t0, m.f.meta.time))
	switch {
	case !ok && found:
		return first
	case !ok:
		return 0
	case !zone && found:
		const quarter = int64(15 * time.Minute)
		at := t.UnixNano()
		if shift := (at - first + quarter/2) / quarter * quarter; shift > -int64(15*time.Hour) && shift < int64(15*time.Hour) {
			return at - shift
		}
		return first
	case !zone:
		m.find("flent_zone", bufferbloat.Note, "the file's times have no zone: the date may be off by hours")
	}
	return t.UnixNano()
}

// quantity keeps a series of which a Recording has no notion.
func (m *mapper) quantity(s *series) {
	q := bufferbloat.Quantity{Name: s.name, Unit: s.declare.units}
	if s.name == "VoIP" && len(s.rows) > 0 {
		q.Unit = "ms" // its values are one-way delays; the unit in the file is that of another field of theirs
	}
	for i := range s.rows {
		if r := &s.rows[i]; finite(r.val) {
			q.At, q.Values = append(q.At, time.Duration(r.at)), append(q.Values, r.val)
		}
	}
	if len(q.At) == 0 {
		if m.f.inColumn(s.name) {
			return // its raw samples stand with another series: columns has them
		}
		if !s.hasGrid && len(s.rows) == 0 {
			return // an entry among the metadata, or the place of samples whose fields columns keeps
		}
		m.onGrid(&q, s)
	}
	m.rec.Others = append(m.rec.Others, q)
}

func (m *mapper) onGrid(q *bufferbloat.Quantity, s *series) {
	q.Resampled = true
	q.At, q.Values = make([]time.Duration, 0, s.onGrid), make([]float64, 0, s.onGrid)
	for i, v := range s.grid {
		if finite(v) {
			q.At, q.Values = append(q.At, time.Duration(m.t0+int64(m.f.grid[i]*1e9))), append(q.Values, v)
		}
	}
}

// columns keeps the further fields of raw samples, by the names that flent gives them.
func (m *mapper) columns(s *series) {
	for _, c := range s.columns {
		q := bufferbloat.Quantity{Name: s.name + "::" + c.name}
		if c.name == "value" {
			q = bufferbloat.Quantity{Name: s.name, Unit: s.declare.units}
			m.rec.Others = slices.DeleteFunc(m.rec.Others, func(o bufferbloat.Quantity) bool { return o.Name == s.name })
		}
		q.At, q.Values = c.at, c.v
		m.rec.Others = append(m.rec.Others, q)
	}
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// align moves series whose clock counts from elsewhere, as fping's does from the start of some systems, to the start of the run: their spacing is
// true, and where they lie against the others is lost.
func (m *mapper) align() {
	limit := time.Duration(24 * time.Hour)
	if finite(m.f.meta.total) {
		limit += time.Duration(min(max(m.f.meta.total, 0), maxSpan.Seconds()) * 1e9)
	}
	for i := range m.rec.Probes {
		p := &m.rec.Probes[i]
		if len(p.Samples) == 0 {
			continue
		}
		off := p.Samples[0].Sent - time.Duration(m.t0)
		if off.Abs() <= limit || m.t0 == 0 {
			continue
		}
		for j := range p.Samples {
			p.Samples[j].Sent -= off
			p.Samples[j].Due -= off
		}
		m.find("flent_clock", bufferbloat.Weakens, "%s: its time stamps are %v away from the run's and count from another start; its first sample is taken "+
			"to be at the start of the run", p.Name, off.Abs().Round(time.Second))
	}
}

// rebase puts all times onto the run's own base, which is the earliest of them.
func (m *mapper) rebase() {
	base, last := time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
	see := func(from, to time.Duration) { base, last = min(base, from), max(last, to) }
	for i := range m.rec.Probes {
		for _, s := range m.rec.Probes[i].Samples {
			see(s.Sent, s.Sent+s.RTT)
		}
	}
	for i := range m.rec.Flows {
		if r := &m.rec.Flows[i].Result; r.Flowed {
			see(r.First, r.Last)
		}
	}
	for i := range m.rec.Others {
		for _, at := range m.rec.Others[i].At {
			see(at, at)
		}
	}
	if base > last {
		base, last = time.Duration(m.t0), time.Duration(m.t0)
	}
	m.shift(base)
	m.rec.Ended = last - base
	if base > 0 {
		m.rec.Started = time.Unix(0, int64(base)).UTC()
	}
}

func (m *mapper) shift(base time.Duration) {
	for i := range m.rec.Probes {
		samples := m.rec.Probes[i].Samples
		for j := range samples {
			samples[j].Sent -= base
			samples[j].Due = samples[j].Sent
		}
	}
	for i := range m.rec.Flows {
		f := &m.rec.Flows[i]
		for j := range f.Points {
			f.Points[j].At -= base
		}
		if r := &f.Result; r.Flowed {
			r.Connected, r.First, r.Last, r.Stopped = r.Connected-base, r.First-base, r.Last-base, r.Stopped-base
			f.Started = r.First
		}
	}
	for i := range m.rec.Others {
		at := m.rec.Others[i].At
		for j := range at {
			at[j] -= base
		}
	}
}

// phases cuts the run by what its flows did: idle before the first, load, a drain and idle again after the last.
func (m *mapper) phases() {
	rec := m.rec
	var first, last, from, to time.Duration
	var down, up, found bool
	for i := range rec.Flows {
		f := &rec.Flows[i]
		down, up = down || f.Direction == load.Download, up || f.Direction == load.Upload
		r := &f.Result
		if !r.Flowed {
			continue
		}
		if !found {
			first, last, from, to, found = r.First, r.Last, r.First, r.Stopped, true
		}
		first, last, from, to = min(first, r.First), max(last, r.Last), max(from, r.First), min(to, r.Stopped)
	}
	name := "both"
	if !up {
		name = "download"
	} else if !down {
		name = "upload"
	}
	for i := range rec.Flows {
		rec.Flows[i].Phase = name
	}
	add := func(name string, kind bufferbloat.PhaseKind, start, end time.Duration, planned float64) {
		rec.Phases = append(rec.Phases, bufferbloat.Phase{Name: name, Kind: kind, Start: start, End: end, From: start, To: end})
		length := end - start
		if finite(planned) && planned > 0 && planned < maxSpan.Seconds() {
			length = time.Duration(planned * 1e9)
		}
		rec.Plan.Phases = append(rec.Plan.Phases, bufferbloat.PhasePlan{Name: name, Kind: kind, Length: length})
	}
	end := rec.Ended + 1 // a sample at the very end is in
	switch {
	case !found && len(rec.Flows) > 0:
		add(name, bufferbloat.Load, 0, end, m.f.meta.length)
		rec.Phases[0].To = 0
		return
	case !found && m.f.meta.name == "ping":
		add("idle", bufferbloat.Idle, 0, end, m.f.meta.length)
		return
	case !found:
		add("run", report.Unknown, 0, end, m.f.meta.length)
		return
	}
	if lead := (m.f.meta.total - m.f.meta.length) / 2; first > 0 && len(rec.Probes) > 0 {
		add("idle", bufferbloat.Idle, 0, first, lead)
	}
	add(name, bufferbloat.Load, first, last, m.f.meta.length)
	ph := &rec.Phases[len(rec.Phases)-1]
	if ph.From, ph.To = from, min(to, last); from >= to {
		ph.From, ph.To = first, first
	}
	drained := min(last+time.Second+m.highest(first, last), end)
	if last < end && len(rec.Probes) > 0 {
		add("drain", bufferbloat.Drain, last, drained, math.NaN())
	}
	if drained < end && len(rec.Probes) > 0 {
		add("after", bufferbloat.After, drained, end, math.NaN())
	}
}

// highest is the highest RTT of the probes sent from..to, up to 10 s.
func (m *mapper) highest(from, to time.Duration) (high time.Duration) {
	for i := range m.rec.Probes {
		for _, s := range m.rec.Probes[i].Samples {
			if s.Sent >= from && s.Sent < to {
				high = max(high, s.RTT)
			}
		}
	}
	return min(high, 10*time.Second)
}

// primary marks the series that the tables show first: the best kind that has replies.
func (m *mapper) primary() {
	best, rank := -1, len(kinds)
	for i := range m.rec.Probes {
		p := &m.rec.Probes[i]
		if r := slices.Index(kinds, p.Kind); r < rank && slices.ContainsFunc(p.Samples, hasRTT) {
			best, rank = i, r
		}
	}
	if best >= 0 {
		m.rec.Probes[best].Primary = true
	}
}

// silence at the end of a run, with a twentieth of its length, from which a series counts as ended early.
const silence = 2 * time.Second

// conclude says what holds for all series of a kind.
func (m *mapper) conclude() {
	has := func(kind string) bool {
		return slices.ContainsFunc(m.rec.Probes, func(p bufferbloat.ProbeSeries) bool { return p.Kind == kind && len(p.Samples) > 0 })
	}
	if has(icmp) {
		m.find("flent_loss", bufferbloat.Note, "flent keeps no record of lost ICMP probes: gaps in the sequence count as lost here, and what was lost after the last reply is not known")
	}
	for i := range m.rec.Probes {
		p := &m.rec.Probes[i]
		if n := len(p.Samples); n > 0 && p.Error == "" && p.Samples[n-1].Sent < m.rec.Ended-silence-m.rec.Ended/20 {
			p.Error = fmt.Sprintf("its last value is of %.1f s, in a run of %.1f s", p.Samples[n-1].Sent.Seconds(), m.rec.Ended.Seconds())
		}
	}
	for i := range m.rec.Flows {
		if f := &m.rec.Flows[i]; f.Direction == load.Upload && len(f.Points) > 0 {
			m.find("flent_uploads", bufferbloat.Note, "upload rates over time are what netperf wrote to its socket, ahead of the link by what was queued; the goodput is what the server received")
			break
		}
	}
	for i := range m.rec.Flows {
		if f := &m.rec.Flows[i]; f.Result.Flowed && f.Result.CountedBy == load.NotCounted {
			m.find("flent_uncounted", bufferbloat.Weakens, "%s: the file does not say what arrived, so there is no goodput", f.Name)
		}
	}
}

// Is reports whether a file begins like a data file: head is the beginning of its text, or of bzip2.
func Is(head []byte) bool {
	if bytes.HasPrefix(head, []byte("BZh")) {
		return true // no other file here is compressed so
	}
	s := newScanner(bytes.NewReader(head))
	s.take('{')
	for first := true; s.more(&first, '}'); {
		switch string(s.key()) {
		case "metadata", "raw_values", "x_values", "results":
			return s.err == nil
		case "version":
			if c := s.peek(); c == '{' || c == '[' { // irtt's
				return false
			}
		}
		s.skip()
	}
	return false
}
