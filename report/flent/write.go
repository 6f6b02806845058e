package flent

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bufferbloat"
	"bufferbloat/internal/bitrate"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// generic is the test of flent that draws what a recording has whose own plan is none of flent's: streams in both directions, in any number.
const generic = "rrul_be_nflows"

const (
	defaultStep   = 200 * time.Millisecond
	minStep       = 50 * time.Millisecond
	maxGridPoints = 100_000
	timeLayout    = "2006-01-02T15:04:05.000000Z" // the one form that flent takes
)

// Write writes rec as a data file of version 4, compressed, which flent reads, plots and summarises, and from which Read makes rec again. The series have
// flent's names where rec's plan is one of flent's tests; other plans become the test rrul_be_nflows. rec is not modified.
func Write(w io.Writer, rec *bufferbloat.Recording) error {
	gz := gzip.NewWriter(w)
	b := bufio.NewWriterSize(gz, 64<<10)
	o := newWriter(b, rec)
	o.file()
	if o.err != nil {
		return fmt.Errorf("write a flent data file: %w", o.err)
	}
	if err := b.Flush(); err != nil {
		return err
	}
	return gz.Close()
}

// writer is a file under way.
type writer struct {
	b    *bufio.Writer
	rec  *bufferbloat.Recording
	err  error
	test string
	base int64 // x = 0, ns since 1970
	step time.Duration
	n    int // points of the grid

	probes []string // names of series in the file, by rec.Probes
	flows  []string
	others []string
	sums   []sum
}

// sum is a series that flent computes from others, and for which it has neither median nor percentile. Written out it has both.
type sum struct {
	name  string
	of    []int // flows
	mean  bool
	value float64 // over all of the load, NaN where it is not known
}

func newWriter(b *bufio.Writer, rec *bufferbloat.Recording) *writer {
	o := &writer{b: b, rec: rec, base: startOf(rec.Started), step: defaultStep}
	for i := range rec.Probes {
		if p := &rec.Probes[i]; p.Primary && p.Interval > 0 {
			o.step = min(max(p.Interval, minStep), time.Second)
		}
	}
	ended := rec.Ended
	for i := range rec.Flows {
		ended = max(ended, rec.Flows[i].Result.Last)
	}
	for o.n = int(ended/o.step) + 1; o.n > maxGridPoints; o.n = int(ended/o.step) + 1 {
		o.step *= 2
	}
	o.names()
	return o
}

func (o *writer) print(format string, args ...any) {
	fmt.Fprintf(o.b, format, args...) // a bufio.Writer keeps its error until Flush
}

// quote is a string as JSON has it.
func quote(s string) string {
	b, _ := json.Marshal(s) // a string never fails
	return string(b)
}

func (o *writer) value(v any) {
	b, err := json.Marshal(v)
	if err != nil && o.err == nil {
		o.err = err
	}
	o.b.Write(b)
}

// file writes the keys in the order in which flent has them.
func (o *writer) file() {
	o.print("{\n\"metadata\": {\n")
	o.metadata()
	o.print("},\n\"raw_values\": {\n")
	o.series(func(i int) { o.rawProbe(&o.rec.Probes[i]) }, func(i int) { o.rawFlow(&o.rec.Flows[i]) },
		func(i int) { o.rawOther(&o.rec.Others[i]) }, func(i int) { o.rawSum(&o.sums[i]) })
	o.print("},\n\"results\": {\n")
	o.series(func(i int) { o.row(o.gridProbe(&o.rec.Probes[i])) }, func(i int) { o.row(o.gridFlow(&o.rec.Flows[i])) },
		func(i int) { o.row(o.gridOther(&o.rec.Others[i])) }, func(i int) { o.row(o.gridSum(&o.sums[i])) })
	o.print("},\n\"version\": %d,\n\"x_values\": ", newest)
	x := make([]float64, o.n)
	for i := range x {
		x[i] = float64(int64(i)*o.step.Microseconds()) / 1e6
	}
	o.row(x)
	o.print("\n}\n")
}

// series calls one of the functions for each series, with its name before it.
func (o *writer) series(probe, flow, other, sum func(i int)) {
	first := true
	each := func(names []string, write func(i int)) {
		for i, name := range names {
			if !first {
				o.print(",\n")
			}
			first = false
			o.print("%s: ", quote(name))
			write(i)
		}
	}
	each(o.probes, probe)
	each(o.flows, flow)
	each(o.others, other)
	var names []string
	for i := range o.sums {
		names = append(names, o.sums[i].name)
	}
	each(names, sum)
	o.print("\n")
}

// row writes numbers, and null for NaN.
func (o *writer) row(v []float64) {
	buf := make([]byte, 0, 32)
	o.b.WriteByte('[')
	for i, x := range v {
		buf = buf[:0]
		if i > 0 {
			buf = append(buf, ',')
		}
		o.b.Write(appendNumber(buf, x))
	}
	o.b.WriteByte(']')
}

func appendNumber(b []byte, v float64) []byte {
	if !finite(v) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64)
}

// appendTime is a time in seconds since 1970 with all its nanoseconds.
func (o *writer) appendTime(b []byte, at time.Duration) []byte {
	ns := o.base + int64(at)
	b = strconv.AppendInt(b, ns/1e9, 10)
	b = append(b, '.')
	frac := strconv.AppendInt(nil, 1e9+ns%1e9, 10)
	return append(b, frac[1:]...)
}

// metadata writes what describes the run. No key of it may be the name of one of flent's options, each of which it would set.
func (o *writer) metadata() {
	rec := o.rec
	start := time.Unix(0, o.base).UTC().Format(timeLayout)
	from, to := o.loaded()
	for _, kv := range []struct {
		key   string
		value any
	}{
		{"NAME", o.test}, {"TITLE", o.title()}, {"TIME", start}, {"T0", start},
		{"LENGTH", math.Round(o.length(to-from).Seconds()*1000) / 1000}, {"TOTAL_LENGTH", math.Round((time.Duration(o.n-1)*o.step).Seconds()*1000) / 1000},
		{"STEP_SIZE", o.step.Seconds()}, {"HOST", rec.Path.Host}, {"HOSTS", o.hosts()}, {"LOCAL_HOST", "bloat"},
		{"IP_VERSION", o.family()}, {"TEST_PARAMETERS", o.parameters()}, {"KERNEL_NAME", rec.Client.OS}, {"KERNEL_RELEASE", rec.Client.Kernel},
		{ownKey, o.own()}, {"SERIES_META", o.seriesMeta()},
	} {
		o.print("%s: ", quote(kv.key))
		o.value(kv.value)
		if kv.key != "SERIES_META" {
			o.print(",\n")
		}
	}
	o.print("\n")
}

func (o *writer) title() string {
	if s := o.rec.Source; s != nil {
		return s.Title
	}
	if o.rec.Plan.Name == o.test {
		return ""
	}
	return o.rec.Plan.Name
}

func (o *writer) family() any {
	switch o.rec.Path.Family {
	case "IPv4":
		return 4
	case "IPv6":
		return 6
	}
	return nil
}

// loaded is from the beginning of the first load phase to the end of the last, the whole run where there is none.
func (o *writer) loaded() (from, to time.Duration) {
	found := false
	for _, p := range o.rec.Phases {
		if p.Kind != bufferbloat.Load {
			continue
		}
		if !found {
			from, to, found = p.Start, p.End, true
		}
		from, to = min(from, p.Start), max(to, p.End)
	}
	if !found {
		return 0, o.rec.Ended
	}
	return from, to
}

// length is what flent was told of the length: of the load as planned, since flent counts bursts and staggered starts by it, in whole seconds; of all of a test
// of bursts. Where there is no plan, it is what was measured.
func (o *writer) length(measured time.Duration) time.Duration {
	plan := &o.rec.Plan
	if o.rec.Source != nil || o.test == generic {
		return measured
	}
	if strings.HasPrefix(o.test, "bursts") {
		return plan.Length()
	}
	for _, ph := range plan.Phases {
		if ph.Kind == bufferbloat.Load {
			return ph.Length
		}
	}
	return cmp.Or(plan.Length(), measured)
}

// hosts are the servers of the plan, from which flent makes names of series.
func (o *writer) hosts() []string {
	hosts := []string{o.rec.Path.Host}
	for _, s := range o.rec.Plan.Others {
		hosts = append(hosts, s.Host)
	}
	return hosts
}

// parameters are what flent builds the names of numbered and labelled series from.
func (o *writer) parameters() map[string]any {
	p := map[string]any{}
	var labels, directions []string
	count := func(prefix, key string) {
		n := 0
		for _, f := range o.flows {
			if rest, ok := strings.CutPrefix(f, prefix); ok {
				if _, number, ok := cutLast(rest, "::"); ok && number != "" {
					n++
				}
			}
		}
		if n > 0 {
			p[key] = n
		}
	}
	switch {
	case o.test == "rrul_var":
		count("TCP upload", "bidir_streams")
		for _, f := range o.flows {
			if _, label, ok := cutLast(f, "TCP upload::"); ok {
				labels = append(labels, label)
			}
		}
	case strings.HasPrefix(o.test, "rtt_fair_var"):
		for _, host := range o.hosts() {
			label, direction := "", ""
			for _, way := range []string{"TCP upload ", "TCP download "} {
				for _, f := range o.flows {
					if rest, ok := strings.CutPrefix(f, way); ok && strings.HasSuffix(rest, " "+host) {
						label, direction = strings.TrimSuffix(rest, " "+host), direction+way[4:5]
					}
				}
			}
			labels, directions = append(labels, label), append(directions, direction)
		}
		p["data_directions"] = strings.Join(directions, ",")
	default:
		count("TCP upload", "upload_streams")
		count("TCP download", "download_streams")
	}
	if len(labels) > 0 {
		p["labels"] = strings.Join(labels, ",")
	}
	return p
}

type metaOut struct {
	Units       string   `json:"UNITS"`
	Runner      string   `json:"RUNNER"`
	Mean        *float64 `json:"MEAN_VALUE,omitempty"`
	Control     string   `json:"CONG_CONTROL,omitempty"`
	Retransmits *uint64  `json:"TCP_RETRANSMIT,omitempty"`
}

func (o *writer) seriesMeta() map[string]metaOut {
	out := map[string]metaOut{}
	for i := range o.probes {
		out[o.probes[i]] = metaOut{Units: "ms", Runner: "bloat"}
	}
	for i, name := range o.flows {
		r := &o.rec.Flows[i].Result
		m := metaOut{Units: rateUnit, Runner: "bloat", Control: r.CongestionControl}
		if d := r.Last - r.First; counted(r) && d > 0 {
			mean := bitrate.Of(r.Bytes, d).Mbps()
			m.Mean = &mean
		}
		if r.HasRetransmits {
			m.Retransmits = &r.Retransmits
		}
		out[name] = m
	}
	for i, name := range o.others {
		out[name] = metaOut{Units: o.rec.Others[i].Unit, Runner: "bloat"}
	}
	for i := range o.sums {
		m := metaOut{Units: rateUnit, Runner: "bloat"}
		if v := o.sums[i].value; finite(v) {
			m.Mean = &v
		}
		out[o.sums[i].name] = m
	}
	return out
}

// counted reports whether the receiver of a flow counted its bytes.
func counted(r *bufferbloat.FlowResult) bool {
	return r.Flowed && r.CountedBy >= load.CountedByServer && r.CountedBy < load.NotCounted
}

// own is what the file has no other place for.
func (o *writer) own() *own {
	rec := o.rec
	x := &own{Schema: ownSchema, Version: rec.Version, Started: rec.Started, Ended: rec.Ended, Stopped: rec.Stopped, Cut: rec.Truncated, Plan: rec.Plan,
		Path: rec.Path, Client: rec.Client, Source: rec.Source, Phases: rec.Phases, Findings: rec.Findings}
	for i, p := range rec.Probes {
		p.Samples = nil
		x.Probes = append(x.Probes, ownProbe{o.probes[i], p, p.Tally, p.Error})
	}
	for i, f := range rec.Flows {
		first, _, _ := f.Ends()
		x.Flows = append(x.Flows, ownFlow{o.flows[i], f, f.Result, f.Error, first.Bytes})
	}
	for i, q := range rec.Others {
		x.Others = append(x.Others, ownOther{o.others[i], q.Name, q.Unit, q.Flow, q.Resampled})
	}
	x.CPU.Why = rec.CPU.Why
	if !rec.CPU.Available && x.CPU.Why == "" {
		x.CPU.Why = "not recorded"
	}
	for _, s := range rec.CPU.Samples {
		x.CPU.At, x.CPU.Busy, x.CPU.Own = append(x.CPU.At, s.At), append(x.CPU.Busy, s.Busy), append(x.CPU.Own, s.Own)
	}
	return x
}

// rawProbe writes samples as flent's irtt has them: a reply by when it came, a lost probe by when it left.
func (o *writer) rawProbe(p *bufferbloat.ProbeSeries) {
	buf := make([]byte, 0, 256)
	o.b.WriteByte('[')
	first := true
	for s := range p.All() {
		buf = buf[:0]
		if !first {
			buf = append(buf, ",\n"...)
		}
		first = false
		buf = append(buf, `{"t":`...)
		buf = o.appendTime(buf, s.Sent+s.RTT)
		buf = append(buf, `,"seq":`...)
		buf = strconv.AppendUint(buf, s.Seq, 10)
		if s.Outcome.HasRTT() {
			buf = append(buf, `,"val":`...)
			buf = appendMillis(buf, s.RTT)
			if s.HasOneWay {
				buf = append(buf, `,"owd_up":`...)
				buf = appendMillis(buf, s.Up)
				buf = append(buf, `,"owd_down":`...)
				buf = appendMillis(buf, s.Down)
			}
		} else {
			buf = appendLoss(buf, s.Outcome)
		}
		if s.Due != s.Sent {
			buf = append(buf, `,"`+dueKey+`":`...)
			buf = o.appendTime(buf, s.Due)
		}
		if s.Outcome != probe.Received && !s.Outcome.IsLost() {
			buf = append(buf, `,"`+outcomeKey+`":"`...)
			buf = append(buf, s.Outcome.String()...)
			buf = append(buf, '"')
		}
		if s.Stamp != 0 {
			buf = append(buf, `,"`+stampKey+`":`...)
			buf = strconv.AppendUint(buf, uint64(s.Stamp), 10)
		}
		o.b.Write(append(buf, '}'))
	}
	o.b.WriteByte(']')
}

func appendMillis(b []byte, d time.Duration) []byte {
	if d < 0 {
		b = append(b, '-')
		d = -d
	}
	b = strconv.AppendInt(b, int64(d/time.Millisecond), 10)
	b = append(b, '.')
	frac := strconv.AppendInt(nil, 1e6+int64(d%time.Millisecond), 10)
	return append(b, frac[1:]...)
}

func appendLoss(b []byte, o probe.Outcome) []byte {
	switch o {
	case probe.Lost:
		return append(b, `,"lost":true,"lost_dir":null`...)
	case probe.LostUp:
		return append(b, `,"lost":true,"lost_dir":"up"`...)
	case probe.LostDown:
		return append(b, `,"lost":true,"lost_dir":"down"`...)
	}
	return b
}

// rawFlow writes what a flow delivered between one reading of its counter and the next.
func (o *writer) rawFlow(f *bufferbloat.Flow) {
	var rows []rate
	last := 0
	points := f.Readings()
	for i := 1; i < len(points); i++ {
		if a, b := points[last], points[i]; b.At > a.At {
			rows = append(rows, rate{b.At, b.At - a.At, mbps(b.Bytes-a.Bytes, b.At-a.At)})
			last = i
		}
	}
	o.rates(rows)
}

// rate is one raw sample of a rate: when its interval ended, how long it was, and Mbit/s.
type rate struct {
	end, dur time.Duration
	val      float64
}

func mbps(bytes uint64, d time.Duration) float64 { return float64(bytes) * 8 / 1e6 / d.Seconds() }

func (o *writer) rates(rows []rate) {
	buf := make([]byte, 0, 128)
	o.b.WriteByte('[')
	for i, r := range rows {
		buf = buf[:0]
		if i > 0 {
			buf = append(buf, ",\n"...)
		}
		buf = append(buf, `{"t":`...)
		buf = o.appendTime(buf, r.end)
		buf = append(buf, `,"dur":`...)
		buf = strconv.AppendFloat(buf, r.dur.Seconds(), 'f', 9, 64)
		buf = append(buf, `,"val":`...)
		o.b.Write(append(appendNumber(buf, r.val), '}'))
	}
	o.b.WriteByte(']')
}

func (o *writer) rawOther(q *bufferbloat.Quantity) {
	buf := make([]byte, 0, 64)
	o.b.WriteByte('[')
	at, values := q.Columns()
	for i := range at {
		buf = buf[:0]
		if i > 0 {
			buf = append(buf, ",\n"...)
		}
		buf = o.appendTime(append(buf, `{"t":`...), at[i])
		o.b.Write(append(appendNumber(append(buf, `,"val":`...), values[i]), '}'))
	}
	o.b.WriteByte(']')
}

// gridProbe holds the last reply for one step, so that a probe that was lost is a gap.
func (o *writer) gridProbe(p *bufferbloat.ProbeSeries) []float64 {
	type reply struct{ at, rtt time.Duration }
	var replies []reply
	for s := range p.All() {
		if s.Outcome.HasRTT() {
			replies = append(replies, reply{s.Sent + s.RTT, s.RTT})
		}
	}
	slices.SortFunc(replies, func(a, b reply) int { return int(min(max(a.at-b.at, -1), 1)) })
	return o.hold(len(replies), func(i int) (time.Duration, float64) { return replies[i].at, float64(replies[i].rtt) / 1e6 })
}

func (o *writer) gridOther(q *bufferbloat.Quantity) []float64 {
	at, values := q.Columns()
	return o.hold(len(at), func(i int) (time.Duration, float64) { return at[i], values[i] })
}

// hold puts samples in order of time onto the grid: each point has the last sample before it that is at most two steps old.
func (o *writer) hold(n int, sample func(i int) (time.Duration, float64)) []float64 {
	out := make([]float64, o.n)
	next := 0
	at, v := time.Duration(math.MinInt64/2), math.NaN()
	for i := range out {
		x := time.Duration(i) * o.step
		for next < n {
			t, value := sample(next)
			if t > x {
				break
			}
			at, v = t, value
			next++
		}
		out[i] = math.NaN()
		if x-at <= 2*o.step {
			out[i] = v
		}
	}
	return out
}

// gridFlow is the mean rate over the step before each point, null where the flow did not carry data for all of it.
func (o *writer) gridFlow(f *bufferbloat.Flow) []float64 {
	out := make([]float64, o.n)
	c := counter{points: f.Readings()}
	for i := range out {
		out[i] = math.NaN()
		if i == 0 {
			continue
		}
		x := time.Duration(i) * o.step
		a, ok := c.at(x - o.step)
		b, ok2 := c.at(x)
		if ok && ok2 {
			out[i] = (b - a) * 8 / 1e6 / o.step.Seconds()
		}
	}
	return out
}

// counter reads a flow's counter between its points, forward in time.
type counter struct {
	points []bufferbloat.Point
	next   int
}

func (c *counter) at(t time.Duration) (float64, bool) {
	n := len(c.points)
	if n == 0 || t < c.points[0].At || t > c.points[n-1].At {
		return 0, false
	}
	for c.next > 0 && c.points[c.next-1].At > t {
		c.next--
	}
	for c.next < n-1 && c.points[c.next].At < t {
		c.next++
	}
	b := c.points[c.next]
	if c.next == 0 || b.At <= t {
		return float64(b.Bytes), true
	}
	a := c.points[c.next-1]
	return float64(a.Bytes) + float64(b.Bytes-a.Bytes)*float64(t-a.At)/float64(b.At-a.At), true
}

// gridSum adds up or averages the flows that have a value.
func (o *writer) gridSum(s *sum) []float64 {
	out := make([]float64, o.n)
	have := make([]int, o.n)
	for _, i := range s.of {
		for k, v := range o.gridFlow(&o.rec.Flows[i]) {
			if finite(v) {
				out[k] += v
				have[k]++
			}
		}
	}
	for k := range out {
		switch {
		case have[k] == 0:
			out[k] = math.NaN()
		case s.mean:
			out[k] /= float64(have[k])
		}
	}
	return out
}

func (o *writer) rawSum(s *sum) {
	var rows []rate
	for i, v := range o.gridSum(s) {
		if finite(v) {
			rows = append(rows, rate{time.Duration(i) * o.step, o.step, v})
		}
	}
	o.rates(rows)
}
