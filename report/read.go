package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
	"bufferbloat/report/stat"
)

// ErrNotResult says that a document is JSON, and not one of Schema.
var ErrNotResult = errors.New("not a document of schema " + Schema)

// DocumentError says where a document is wrong.
type DocumentError struct {
	Offset int64  // in bytes; 0 where it is known only by Field
	Field  string // "" where it is known only by Offset
	Err    error
}

func (e *DocumentError) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("result, %s: %v", e.Field, e.Err)
	}
	return fmt.Sprintf("result, byte %d: %v", e.Offset, e.Err)
}

func (e *DocumentError) Unwrap() error { return e.Err }

// Bounds of what a reader accepts.
const (
	maxDocument = 64 << 20
	maxDepth    = 32
)

// read is what a document said beside the fields of a Result.
type read struct {
	status int
	cause  string
	bare   bool // the document of a run that could not even begin
}

// ReadResult reads a document of Schema, as WriteJSON and WriteError print it, back into a result with the same figures. It has no samples, so that
// ratios built on it have wider intervals than those of the recording. Fields that it does not know are skipped, and so is the comparison with
// another run. A document with a key twice in one object is refused, because one of the two values would be lost. The error is a *DocumentError, which
// wraps ErrNotResult where the document is of another kind, or that of reading.
func ReadResult(from io.Reader) (*Result, error) {
	b, err := io.ReadAll(io.LimitReader(from, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxDocument {
		return nil, &DocumentError{Offset: maxDocument, Err: fmt.Errorf("longer than %d MiB", maxDocument>>20)}
	}
	if err := checkDocument(b); err != nil {
		return nil, err
	}
	var kind struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(b, &kind); err != nil || kind.Schema != Schema {
		return nil, &DocumentError{Field: "schema", Err: ErrNotResult}
	}
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		out := &DocumentError{Err: err}
		if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
			out.Offset, out.Field = t.Offset, t.Field
		}
		return nil, out
	}
	c := &checker{}
	r := c.result(&d)
	if c.err != nil {
		return nil, c.err
	}
	return r, nil
}

// IsResult reports whether head is the beginning of a document of Schema as this program prints it.
func IsResult(head []byte) bool {
	head = bytes.TrimLeft(head, " \t\r\n")
	rest, ok := bytes.CutPrefix(head, []byte("{"))
	if !ok {
		return false
	}
	rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(`"schema"`))
	if !ok {
		return false
	}
	rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
	return ok && bytes.HasPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(`"`+Schema+`"`))
}

// checkDocument reads b as one JSON value in which no object has a key twice, keys compared without case as the decoder does.
func checkDocument(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	type level struct {
		keys map[string]bool // nil in an array
		key  bool            // a key is next
	}
	var open []level
	for done := false; !done; {
		t, err := d.Token()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return &DocumentError{Offset: d.InputOffset(), Err: err}
		}
		if n := len(open); n > 0 && open[n-1].key {
			if key, ok := t.(string); ok {
				low := strings.ToLower(key)
				if open[n-1].keys[low] {
					return &DocumentError{Offset: d.InputOffset(), Err: fmt.Errorf("the key %q is there twice", key)}
				}
				open[n-1].keys[low], open[n-1].key = true, false
				continue
			}
		}
		switch t {
		case json.Delim('{'):
			open = append(open, level{map[string]bool{}, true})
			continue
		case json.Delim('['):
			open = append(open, level{})
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		if len(open) > maxDepth {
			return &DocumentError{Offset: d.InputOffset(), Err: fmt.Errorf("nested more than %d deep", maxDepth)}
		}
		if n := len(open); n > 0 {
			open[n-1].key = open[n-1].keys != nil
		}
		done = len(open) == 0
	}
	if rest := bytes.TrimLeft(b[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return &DocumentError{Offset: int64(len(b) - len(rest)), Err: errors.New("something follows the document")}
	}
	return nil
}

// checker turns parts of a document into parts of a result and keeps the first complaint.
type checker struct{ err error }

func (c *checker) complain(field, format string, args ...any) {
	if c.err == nil {
		c.err = &DocumentError{Field: field, Err: fmt.Errorf(format, args...)}
	}
}

// of is *p, or the zero value and false where it is null.
func of[T any](p *T) (v T, ok bool) {
	if p == nil {
		return v, false
	}
	return *p, true
}

func orZero[T any](p *T) T {
	v, _ := of(p)
	return v
}

// maxOffset bounds the times of a run.
const maxOffset = 400 * 24 * time.Hour

// times refuses times that no run can hold.
func (c *checker) times(field string, all ...*time.Duration) {
	for _, t := range all {
		if t != nil && (*t < 0 || *t > maxOffset) {
			c.complain(field, "a time of %d ns, outside 0 to %v", int64(*t), maxOffset)
		}
	}
}

func (c *checker) result(d *document) *Result {
	r := &Result{Version: d.Version, Length: orZero(d.Length), Stopped: orZero(d.Stopped), Truncated: d.Truncated, Findings: d.Findings,
		read: &read{status: d.Status, cause: orZero(d.Error), bare: d.Source == nil && d.Path == nil}}
	c.times("length_ns", d.Length)
	if d.Status < 0 || d.Status > 255 {
		c.complain("status", "%d is no exit status", d.Status)
	}
	if d.Status > 128 {
		r.Signal = d.Status - 128
	}
	if s, ok := of(d.Started); ok {
		var err error
		if r.Started, err = time.Parse(time.RFC3339Nano, s); err != nil {
			c.complain("started", "%v", err)
		}
	}
	if r.read.bare {
		r.Plan.Name = d.Command
	} else if d.Source == nil {
		r.Paths = d.Paths
		r.Path, r.Client, r.Plan = orZero(d.Path), orZero(d.Client), orZero(d.Plan)
	} else {
		r.Plan.Name = d.Command
		r.Source = &Source{Program: d.Source.Program, Host: orZero(d.Source.Host), Run: orZero(d.Source.Run), Untold: d.Source.Untold}
		if d.Rules.Quantile != stat.Rule {
			r.Source.Rule = d.Rules.Quantile
		}
	}
	for _, p := range r.Plan.Phases {
		for _, f := range p.Flows {
			if f.Direction != load.Download && f.Direction != load.Upload {
				c.complain("plan", "flow %q has no direction", f.Name)
			}
		}
	}
	for i := range d.Phases {
		r.Phases = append(r.Phases, c.phase(&d.Phases[i]))
	}
	for i := range d.Probes {
		r.Series = append(r.Series, c.series(&d.Probes[i]))
	}
	for i := range d.Induced {
		r.Induced = append(r.Induced, c.induced(r, &d.Induced[i]))
		if p := r.phase(d.Induced[i].Phase); p != nil && !p.UnderLoad {
			p.noLoad = orZero(d.Induced[i].Reason)
		}
	}
	for _, o := range d.Others {
		r.Others = append(r.Others, Other{o.Name, orZero(o.Unit), o.Flow, o.Resampled, stat.Values{N: o.N, Min: orZero(o.Min), Median: orZero(o.Median), Mean: orZero(o.Mean),
			P99: orZero(o.P99), HasP99: o.P99 != nil, Max: orZero(o.Max)}})
	}
	r.PageScores, r.RRUL, r.Hops, r.Loops, r.Directions, r.Clocks = d.PageScores, d.RRUL, d.Hops, d.Loops, d.Directions, d.Clocks
	c.apps(r)
	for i := range d.Grades {
		r.Grades = append(r.Grades, d.Grades[i].grade())
	}
	r.noCPU = r.whyNoCPU()
	return r
}

// whyNoCPU is the reason of the first phase where no phase has CPU figures.
func (r *Result) whyNoCPU() (why string) {
	for i := range r.Phases {
		if r.Phases[i].CPU.OK {
			return ""
		}
		why = cmp.Or(why, r.Phases[i].CPU.Why)
	}
	return why
}

func (c *checker) phase(d *phaseDoc) Phase {
	field := "phase " + d.Name
	c.times(field, d.Start, d.End, d.From, d.To)
	p := Phase{Name: d.Name, Kind: bufferbloat.PhaseKind(d.Kind), Reached: d.Reached, Start: orZero(d.Start), End: orZero(d.End),
		From: orZero(d.From), To: orZero(d.To), UnderLoad: d.UnderLoad, Total: d.Total, Voice: d.Voice}
	if d.Reached && (d.Start == nil || d.End == nil || d.From == nil || d.To == nil) {
		c.complain(field, "it was reached and has no times")
	}
	p.CPU = CPU{Why: orZero(d.CPU.Reason), Own: orZero(d.CPU.Own)}
	for _, s := range d.CPU.Cores {
		p.CPU.Cores = append(p.CPU.Cores, Share{s.Mean, s.StdDev})
	}
	switch b := d.CPU.Busy; {
	case b != nil:
		p.CPU.OK, p.CPU.Busy = true, Share{b.Mean, b.StdDev}
	case d.CPU.Own != nil: // the source tells each CPU and not all of them together
		p.CPU.OK, p.CPU.OnlyCores = true, true
	}
	for i := range d.Goodput {
		p.Goodput = append(p.Goodput, c.goodput(field, &d.Goodput[i]))
	}
	for i := range d.Latency {
		p.Latency = append(p.Latency, c.latency(field, &d.Latency[i]))
	}
	return p
}

func (c *checker) goodput(field string, d *goodputDoc) Goodput {
	g := Goodput{Direction: d.Direction, Why: orZero(d.Reason), Bytes: orZero(d.Bytes), First: orZero(d.First), Last: orZero(d.Last),
		Flowed: d.Flowed, Whole: d.Whole, Planned: d.Planned, Detail: d.Detail}
	rate, ok := of(d.Goodput)
	g.Rate, g.OK = bitrate.Bitrate(rate), ok
	g.Fairness, g.HasFairness = of(d.Fairness)
	c.times(field, d.First, d.Last)
	if g.Rate < 0 || g.Flowed < 0 || g.Planned < 0 || g.Whole < 0 {
		c.complain(field, "a negative rate or number of streams")
	}
	if g.HasFairness && !(g.Fairness >= 0 && g.Fairness <= 1+1e-9) {
		c.complain(field, "a fairness of %v, outside 0 to 1", g.Fairness)
	}
	if d.Direction != load.Download && d.Direction != load.Upload {
		c.complain(field, "a goodput without a direction")
	}
	c.counter(field, &g.CountedBy, d.CountedBy)
	if i := d.Interval; i != nil {
		g.Range = RateRange{OK: true, Low: bitrate.Bitrate(i.Low), High: bitrate.Bitrate(i.High), NEff: i.NEff, Weak: i.Weak}
		if g.Range.Low < 0 || g.Range.Low > g.Rate || g.Range.High < g.Rate || i.NEff < 0 {
			c.complain(field, "the goodput lies outside its interval")
		}
	}
	if m := d.Detail; m != nil {
		c.times(field, m.SlewMedian, m.SlewMax)
		if m.Skipped < 0 || m.Grid != nil && m.Grid.Interval <= 0 {
			c.complain(field, "a negative time")
		}
	}
	for i := range d.Flows {
		g.Flows = append(g.Flows, c.flow(field, &d.Flows[i]))
	}
	return g
}

func (c *checker) counter(field string, to *load.Counter, name *string) {
	if err := to.UnmarshalText([]byte(orZero(name))); err != nil {
		c.complain(field, "%v", err)
	}
}

func (c *checker) flow(field string, d *flowDoc) Flow {
	f := Flow{Name: d.Name, Error: orZero(d.Error), Detail: d.Detail}
	rate, ok := of(d.Goodput)
	f.Rate, f.OK = bitrate.Bitrate(rate), ok
	c.times(field, d.Connected, d.First, d.Last, d.Stopped)
	c.counter(field, &f.CountedBy, d.CountedBy)
	f.Bytes, f.Flowed = of(d.Bytes)
	f.Connected, f.First, f.Last, f.Stopped = orZero(d.Connected), orZero(d.First), orZero(d.Last), orZero(d.Stopped)
	f.Retransmits, f.HasRetransmits = of(d.Retransmits)
	f.ServerBytes, f.HasServerBytes = of(d.ServerBytes)
	f.ServerCPU, f.HasServerCPU = of(d.ServerCPU)
	f.CongestionControl, f.RemoteDSCP, f.Warning = orZero(d.Control), orZero(d.RemoteDSCP), orZero(d.Warning)
	f.Whole = f.OK && f.Flowed && f.Error == ""
	if f.Rate < 0 {
		c.complain(field, "a negative rate")
	}
	if m := d.Detail; m != nil {
		c.times(field, m.Due, m.Slew)
		if s := m.Share; s != nil && (min(s.Mean, s.P10, s.Median, s.P90) < 0 || max(s.Mean, s.P10, s.Median, s.P90) > 1) {
			c.complain(field, "a share outside 0 to 1")
		}
		if t := m.TCP; t != nil {
			c.times(field, t.RTTMedian, t.RTTMax, t.MinRTT, t.Busy, t.WindowLimited, t.BufferLimited)
		}
	}
	return f
}

func (c *checker) count(field string, d *countDoc) Count {
	if d == nil {
		return Count{}
	}
	n := Count{Due: d.Due, Unsent: d.Unsent, Sent: d.Sent, Received: d.Received, Late: d.Late, Lost: d.Lost, LostUp: d.LostUp, LostDown: d.LostDown,
		Unfinished: d.Unfinished, Invalid: d.Invalid}
	for _, v := range []int{n.Due, n.Unsent, n.Sent, n.Received, n.Late, n.Lost, n.LostUp, n.LostDown, n.Unfinished, n.Invalid} {
		if v < 0 || v > math.MaxInt32 {
			c.complain(field, "a count of %d probes", v)
			return Count{}
		}
	}
	if total, ok := of(d.LostTotal); ok && total != n.AllLost() {
		c.complain(field, "%d probes lost in all, and %d by their direction", total, n.AllLost())
	}
	if n.Due != n.Sent+n.Unsent || n.Sent != n.Answered()+n.AllLost()+n.Unfinished+n.Invalid {
		c.complain(field, "the counts of the probes do not add up")
	}
	return n
}

func (c *checker) latency(field string, d *latencyDoc) Latency {
	field += ", series " + d.Series
	l := Latency{Series: d.Series, Kind: d.Kind, Primary: d.Primary, Count: c.count(field, d.Count)}
	l.N, l.Lost = d.N, l.Count.AllLost()
	if d.N < 0 || d.N > math.MaxInt32 || d.Count != nil && d.N != l.Count.Answered() {
		c.complain(field, "n is %d with %d answered probes", d.N, l.Count.Answered())
	}
	loss, decided := of(d.Loss)
	if decided && !(loss >= 0 && loss <= 1) {
		c.complain(field, "a loss of %v, outside 0 to 1", loss)
	}
	if d.Count == nil && decided { // so many that the share is right
		l.Lost = 1
		if loss < 1 {
			l.Lost = int(min(math.Round(float64(l.N)*loss/(1-loss)), math.MaxInt32))
		}
	}
	c.quantiles(field, d, &l)
	if d.Stated {
		l.Stated = &Stated{WhyLoss: orZero(d.NoLoss)}
		if l.OK() {
			l.Stated.Why = orZero(d.Reason)
		}
		for _, f := range []struct {
			has   Figures
			value *time.Duration
		}{{Min, d.Min}, {P10, d.P10}, {Median, d.Median}, {Mean, d.Mean}, {P90, d.P90}, {Max, d.Max}} {
			if f.value != nil {
				l.Stated.Has |= f.has
			}
		}
		return l
	}
	l.NoLoss = orZero(d.NoLoss)
	if l.OK() && (d.Min == nil || d.P10 == nil || d.Median == nil || d.Mean == nil || d.P90 == nil || d.Max == nil ||
		noInterval(l.N) == "" && (d.MedianInterval == nil || d.P90Interval == nil)) {
		c.complain(field, "it has answered probes and lacks a figure of theirs")
		return l
	}
	if l.OK() {
		l.MedianRange, l.P90Range = c.estimate(field, l.Median, l.N, d.MedianInterval), c.estimate(field, l.P90, l.N, d.P90Interval)
	}
	if decided {
		l.MedianWithLoss = bound(d.MedianWithLoss)
		l.P90WithLoss = bound(d.P90WithLoss)
	}
	for _, rung := range d.Ladder {
		v, ok := of(rung.Value)
		l.Ladder = append(l.Ladder, stat.Rung{Q: rung.Q, Value: v, OK: ok})
	}
	return l
}

// bound is a quantile with losses, null where it lies among them.
func bound(v *time.Duration) stat.Bound { return stat.Bound{Value: orZero(v), Unbounded: v == nil} }

// quantiles takes over the times of a series, which have to be in order.
func (c *checker) quantiles(field string, d *latencyDoc, l *Latency) {
	last := time.Duration(0)
	for _, q := range []struct {
		to    *time.Duration
		value *time.Duration
	}{{&l.Min, d.Min}, {&l.P10, d.P10}, {&l.Median, d.Median}, {&l.P90, d.P90}, {&l.P99, d.P99}, {&l.Max, d.Max}} {
		v, ok := of(q.value)
		switch {
		case !ok:
			continue
		case l.N == 0:
			c.complain(field, "a time without an answered probe")
		case v < last || v > maxOffset:
			c.complain(field, "quantiles out of order, or a time of %d ns", int64(v))
		}
		*q.to, last = v, v
	}
	l.HasP99, l.Mean = d.P99 != nil, orZero(d.Mean)
	if d.Mean != nil && (l.Mean < 0 || l.Mean > maxOffset) {
		c.complain(field, "a mean of %d ns", int64(l.Mean))
	}
}

func (c *checker) estimate(field string, value time.Duration, n int, d *intervalDoc) stat.Estimate {
	if d == nil {
		return stat.Restored(stat.Estimate{Value: value, Low: value, High: value, N: n}, true)
	}
	if d.Low > value || d.High < value || d.Low < -maxOffset || d.High > maxOffset || d.NEff < 0 || d.Block < 0 || d.Resamples < 0 {
		c.complain(field, "a figure lies outside its interval")
	}
	return stat.Restored(stat.Estimate{Value: value, Low: d.Low, High: d.High, N: n, NEff: d.NEff, Block: d.Block, Resamples: d.Resamples}, d.Weak)
}

func (c *checker) series(d *probeDoc) Series {
	field := "probe " + d.Name
	c.times(field, d.Interval, d.LatenessP99, d.LatenessMax, d.Resolution)
	s := Series{Name: d.Name, Kind: d.Kind, Target: d.Target, Address: d.Address, Interval: orZero(d.Interval), DSCP: d.DSCP, Primary: d.Primary,
		Reason: orZero(d.Reason), Error: orZero(d.Error), Count: c.count(field, d.Count), Uncounted: d.Count == nil, Void: d.Void, Resolution: orZero(d.Resolution),
		Stamps: d.Stamps, ECN: d.ECN, Size: d.Size, Hop: d.Hop, Voice: d.Voice, Marks: d.Marks, MarkWays: d.MarkWays}
	s.LatenessP99, s.HasLateness = of(d.LatenessP99)
	s.LatenessMax = orZero(d.LatenessMax)
	t := &s.Tally
	t.Duplicates, t.Reordered, t.Corrupt, t.Stray, t.Rejected = orZero(d.Duplicates), orZero(d.Reordered), orZero(d.Corrupt), orZero(d.Stray), orZero(d.Rejected)
	t.FirstError = orZero(d.FirstError)
	if w := d.Waking; w != nil {
		c.times(field, &w.P50, &w.P99, &w.Max)
		t.Waking = probe.Waking{N: w.N, P50: w.P50, P99: w.P99, Max: w.Max}
	}
	if d.Stamps != nil {
		t.StackSends = d.Stamps.KernelSends
	}
	for _, text := range d.RejectedBy {
		a, err := netip.ParseAddr(text)
		if err != nil {
			c.complain(field, "%v", err)
		}
		t.RejectedBy = append(t.RejectedBy, a)
	}
	return s
}

func (c *checker) induced(r *Result, d *inducedDoc) Induced {
	field := "induced, phase " + d.Phase
	out := Induced{Phase: d.Phase, Series: d.Series, Why: orZero(d.Reason), NearResolution: d.NearResolution, BaselineMoved: d.BaselineMoved}
	for i := range r.Phases {
		if l := r.Phases[i].Primary(); r.Phases[i].Name == d.Phase && l != nil {
			out.Loaded = l.Summary
		}
	}
	idle := r.baseline(bufferbloat.Idle)
	if idle != nil {
		out.Idle = idle.Primary().Summary
	}
	if d.Median == nil || d.P90 == nil {
		return out
	}
	if idle == nil || !out.Loaded.OK() {
		c.complain(field, "there is no latency that it could be of")
	}
	out.OK = true
	n := min(out.Idle.N, out.Loaded.N)
	out.Median, out.P90 = c.estimate(field, *d.Median, n, d.MedianInterval), c.estimate(field, *d.P90, n, d.P90Interval)
	if d.MedianInterval == nil || d.P90Interval == nil || d.Factor == nil {
		out.NoInterval = cmp.Or(orZero(d.NoInterval), noSamples)
	} else {
		out.NoInterval = noInterval(n)
	}
	f := d.Factor
	if f == nil {
		return out
	}
	out.Factor = stat.Ratio{State: stat.State(f.State), Value: orZero(f.Value), Low: orZero(f.Low), High: orZero(f.High), Why: orZero(f.Reason)}
	if out.Factor.State == stat.AtLeast && f.High == nil {
		out.Factor.High = math.Inf(1)
	}
	return out
}

func (d *gradeDoc) grade() Grade {
	g := Grade{Scheme: d.Scheme, Version: d.Version, Source: d.Source, Statistic: d.Statistic, Cuts: d.Cuts, Value: orZero(d.Grade), Why: orZero(d.Reason)}
	for _, in := range d.Inputs {
		v, ok := of(in.Value)
		g.Inputs = append(g.Inputs, GradeInput{in.Name, in.Unit, v, ok})
	}
	return g
}
