package bufferbloat

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/load"
	"bufferbloat/probe"
)

// FileSchema names the format of a recording file: gzip over one JSON object a line, each an entry, in the order in which things
// happened. Entries are only ever added to the format; a reader skips fields that it does not know.
const FileSchema = "bloat/recording/1"

// Bounds of what a reader accepts.
const (
	maxEntryBytes = 16 << 20
	maxFileBytes  = 4 << 30 // after decompression
	maxOffset     = 400 * 24 * time.Hour
	maxNames      = 10_000 // phases, series, flows, findings: each
)

// entry is one line of a recording file; exactly one field is set. A Recording is the fold of its entries (Recording.apply),
// in memory as well as when it is read, so that the two can't differ.
type entry struct {
	Head      *head          `json:"head,omitempty"`
	Phase     *Phase         `json:"phase,omitempty"` // at its start with End 0, and again, by the same name, at its end
	Series    *ProbeSeries   `json:"series,omitempty"`
	Samples   *sampleColumns `json:"samples,omitempty"`
	SeriesEnd *seriesEnd     `json:"series_end,omitempty"`
	Flow      *Flow          `json:"flow,omitempty"`
	Points    *pointColumns  `json:"points,omitempty"`
	FlowEnd   *flowEnd       `json:"flow_end,omitempty"`
	CPU       *cpuColumns    `json:"cpu,omitempty"`
	Finding   *Finding       `json:"finding,omitempty"`
	Quantity  *Quantity      `json:"quantity,omitempty"` // whole, or what it has so far
	Values    *valueColumns  `json:"values,omitempty"`   // further ones of a quantity
	LabCounts *LabCounts     `json:"lab_counts,omitempty"`
	End       *end           `json:"end,omitempty"`
}

type head struct {
	Schema  string    `json:"schema"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Plan    Plan      `json:"plan"`
	Path    Path      `json:"path"`
	Paths   []Path    `json:"paths,omitempty"`
	Client  HostFacts `json:"client"`
	Source  *Source   `json:"source,omitempty"`
}

// sampleColumns are samples of one series, a column for each field. Outcome holds the numbers of probe.Outcome.
type sampleColumns struct {
	Series  string          `json:"series"`
	Seq     []uint64        `json:"seq"`
	Due     []time.Duration `json:"due_ns"`
	Sent    []time.Duration `json:"sent_ns"`
	Outcome []int           `json:"outcome"`
	RTT     []time.Duration `json:"rtt_ns"`
	Stamp   []int           `json:"stamp"`
	// Up and Down are there only in a series that has one-way delays; null where a sample has none.
	Up   []*time.Duration `json:"up_ns,omitempty"`
	Down []*time.Duration `json:"down_ns,omitempty"`
}

type seriesEnd struct {
	Series string      `json:"series"`
	Tally  probe.Tally `json:"tally"`
	Error  string      `json:"error,omitempty"`
}

type pointColumns struct {
	Flow  string          `json:"flow"`
	At    []time.Duration `json:"at_ns"`
	Bytes []uint64        `json:"bytes"`
}

type flowEnd struct {
	Flow   string     `json:"flow"`
	Result FlowResult `json:"result"`
	Error  string     `json:"error,omitempty"`
}

type cpuColumns struct {
	Unavailable string          `json:"unavailable,omitempty"` // why there are no figures
	At          []time.Duration `json:"at_ns,omitempty"`
	Busy        [][]float64     `json:"busy,omitempty"`
	Own         []float64       `json:"own,omitempty"`
}

type valueColumns struct {
	Quantity string          `json:"quantity"`
	At       []time.Duration `json:"at_ns"`
	Values   []float64       `json:"values"`
}

type end struct {
	Ended   time.Duration `json:"ended_ns"`
	Stopped string        `json:"stopped,omitempty"`
}

// fill turns samples into columns, in the space of those that were there. They point into samples.
func (c *sampleColumns) fill(series string, samples []probe.Sample) {
	*c = sampleColumns{Series: series, Seq: c.Seq[:0], Due: c.Due[:0], Sent: c.Sent[:0], Outcome: c.Outcome[:0], RTT: c.RTT[:0], Stamp: c.Stamp[:0], Up: c.Up[:0], Down: c.Down[:0]}
	oneWay := slices.ContainsFunc(samples, func(s probe.Sample) bool { return s.HasOneWay })
	for i := range samples {
		s := &samples[i]
		c.Seq = append(c.Seq, s.Seq)
		c.Due = append(c.Due, s.Due)
		c.Sent = append(c.Sent, s.Sent)
		c.Outcome = append(c.Outcome, int(s.Outcome))
		c.RTT = append(c.RTT, s.RTT)
		c.Stamp = append(c.Stamp, int(s.Stamp))
		if oneWay {
			up, down := &s.Up, &s.Down
			if !s.HasOneWay {
				up, down = nil, nil
			}
			c.Up, c.Down = append(c.Up, up), append(c.Down, down)
		}
	}
}

// rows turns columns back into samples, which it appends to samples, or says which column is wrong.
func (c *sampleColumns) rows(samples []probe.Sample) ([]probe.Sample, error) {
	n := len(c.Seq)
	if len(c.Due) != n || len(c.Sent) != n || len(c.Outcome) != n || len(c.RTT) != n || len(c.Stamp) != n ||
		len(c.Up) != len(c.Down) || len(c.Up) != 0 && len(c.Up) != n {
		return nil, fmt.Errorf("series %q: columns of different lengths", c.Series)
	}
	for i := range n {
		s := probe.Sample{Seq: c.Seq[i], Due: c.Due[i], Sent: c.Sent[i], RTT: c.RTT[i]}
		if c.Outcome[i] < 0 || c.Outcome[i] > math.MaxUint8 {
			return nil, fmt.Errorf("series %q: outcome %d", c.Series, c.Outcome[i])
		}
		if c.Stamp[i] < 0 || c.Stamp[i] > math.MaxUint8 {
			return nil, fmt.Errorf("series %q: stamp %d", c.Series, c.Stamp[i])
		}
		s.Outcome, s.Stamp = probe.Outcome(c.Outcome[i]), host.Stamp(c.Stamp[i])
		if len(c.Up) > 0 && c.Up[i] != nil && c.Down[i] != nil {
			s.Up, s.Down, s.HasOneWay = *c.Up[i], *c.Down[i], true
		}
		if err := checkSample(&s); err != nil {
			return nil, fmt.Errorf("series %q: %w", c.Series, err)
		}
		samples = append(samples, s)
	}
	return samples, nil
}

// checkSample says what no sample can be.
func checkSample(s *probe.Sample) error {
	switch {
	case s.Outcome < probe.Received || s.Outcome > probe.Invalid:
		return fmt.Errorf("outcome %d", s.Outcome)
	case s.Stamp > host.LinkStamp:
		return fmt.Errorf("stamp %d", s.Stamp)
	case s.RTT < 0 || !s.Outcome.HasRTT() && s.RTT != 0:
		return fmt.Errorf("an RTT of %v with outcome %v", s.RTT, s.Outcome)
	}
	return inRun(s.Due, s.Sent, s.RTT)
}

// inRun refuses times that no run can hold.
func inRun(times ...time.Duration) error {
	for _, t := range times {
		if t < 0 || t > maxOffset {
			return fmt.Errorf("a time of %d ns, outside 0 to %v", int64(t), maxOffset)
		}
	}
	return nil
}

// apply folds e into the recording.
func (r *Recording) apply(e *entry) error {
	switch {
	case e.Head != nil:
		r.Version, r.Started, r.Plan, r.Path, r.Client = e.Head.Version, e.Head.Started, e.Head.Plan, e.Head.Path, e.Head.Client
		r.Paths, r.Source = e.Head.Paths, e.Head.Source
		if l := r.Path.Lab; l != nil && l.Counted != nil {
			return l.Counted.check()
		}
	case e.Phase != nil:
		return r.applyPhase(*e.Phase)
	case e.Series != nil:
		if r.series(e.Series.Name) != nil || len(r.Probes) >= maxNames {
			return fmt.Errorf("series %q is declared twice, or is one too many", e.Series.Name)
		}
		r.Probes = append(r.Probes, *e.Series)
		if r.packing {
			r.Probes[len(r.Probes)-1].packed = &packedSamples{shelf: r.shelf}
		}
	case e.Samples != nil:
		return r.applySamples(e.Samples)
	case e.SeriesEnd != nil:
		s := r.series(e.SeriesEnd.Series)
		if s == nil {
			return fmt.Errorf("the end of series %q, which was not declared", e.SeriesEnd.Series)
		}
		s.Tally, s.Error = e.SeriesEnd.Tally, e.SeriesEnd.Error
	case e.Flow != nil:
		if r.flow(e.Flow.Name) != nil || len(r.Flows) >= maxNames {
			return fmt.Errorf("flow %q is declared twice, or is one too many", e.Flow.Name)
		}
		if d := e.Flow.Direction; d != load.Download && d != load.Upload {
			return fmt.Errorf("flow %q without a direction", e.Flow.Name)
		}
		r.Flows = append(r.Flows, *e.Flow)
		if r.packing {
			r.Flows[len(r.Flows)-1].packed = &packedPoints{times: times{blocks: blocks{shelf: r.shelf}}}
		}
	case e.Points != nil:
		return r.applyPoints(e.Points)
	case e.FlowEnd != nil:
		f := r.flow(e.FlowEnd.Flow)
		if f == nil {
			return fmt.Errorf("the end of flow %q, which was not declared", e.FlowEnd.Flow)
		}
		res := e.FlowEnd.Result
		if err := inRun(res.Due, res.Connected, res.First, res.Last, res.Stopped); err != nil {
			return fmt.Errorf("flow %q: %w", f.Name, err)
		}
		f.Result, f.Error = res, e.FlowEnd.Error
	case e.CPU != nil:
		return r.applyCPU(e.CPU)
	case e.Finding != nil:
		if len(r.Findings) >= maxNames {
			return fmt.Errorf("more than %d findings", maxNames)
		}
		r.Findings = append(r.Findings, *e.Finding)
	case e.Quantity != nil:
		return r.applyQuantity(*e.Quantity)
	case e.Values != nil:
		return r.applyValues(e.Values)
	case e.LabCounts != nil:
		return r.applyLabCounts(e.LabCounts)
	case e.End != nil:
		r.Ended, r.Stopped = e.End.Ended, e.End.Stopped
		return inRun(r.Ended)
	}
	return nil
}

func (r *Recording) applyPhase(p Phase) error {
	if err := inRun(p.Start, p.End, p.From, p.To); err != nil {
		return fmt.Errorf("phase %q: %w", p.Name, err)
	}
	for i := range r.Phases {
		if r.Phases[i].Name == p.Name {
			if p.End < p.Start || p.To < p.From {
				return fmt.Errorf("phase %q ends before it begins", p.Name)
			}
			r.Phases[i] = p
			return nil
		}
	}
	if len(r.Phases) >= maxNames {
		return fmt.Errorf("more than %d phases", maxNames)
	}
	r.Phases = append(r.Phases, p)
	return nil
}

func (r *Recording) applySamples(c *sampleColumns) error {
	s := r.series(c.Series)
	if s == nil {
		return fmt.Errorf("samples of series %q, which was not declared", c.Series)
	}
	if s.packed == nil {
		rows, err := c.rows(s.Samples)
		if err == nil {
			s.Samples = rows
		}
		return err
	}
	rows, err := c.rows(s.packed.rows[:0])
	if err == nil {
		s.packed.rows = rows
		for i := range rows {
			s.packed.add(&rows[i])
		}
	}
	return err
}

func (r *Recording) applyPoints(c *pointColumns) error {
	f := r.flow(c.Flow)
	if f == nil || len(c.At) != len(c.Bytes) {
		return fmt.Errorf("points of flow %q: not declared, or columns of different lengths", c.Flow)
	}
	_, last, _ := f.Ends()
	for i := range c.At {
		p := Point{c.At[i], c.Bytes[i]}
		if err := checkPoint(last, p); err != nil {
			return fmt.Errorf("flow %q: %w", f.Name, err)
		}
		if last = p; f.packed != nil {
			f.packed.add(p)
		} else {
			f.Points = append(f.Points, p)
		}
	}
	return nil
}

// checkPoint says why a reading can't follow the last one, which is zero before the first.
func checkPoint(last, p Point) error {
	if err := inRun(p.At); err != nil {
		return err
	}
	if p.At < last.At || p.Bytes < last.Bytes {
		return fmt.Errorf("its counter runs backwards at %v", p.At)
	}
	return nil
}

func (r *Recording) applyCPU(c *cpuColumns) error {
	if c.Unavailable != "" {
		r.CPU.Available, r.CPU.Why = false, c.Unavailable
		return nil
	}
	if len(c.At) != len(c.Busy) || len(c.At) != len(c.Own) {
		return errors.New("CPU: columns of different lengths")
	}
	r.CPU.Available = true
	for i := range c.At {
		if err := inRun(c.At[i]); err != nil {
			return fmt.Errorf("CPU: %w", err)
		}
		r.CPU.Samples = append(r.CPU.Samples, CPUSample{c.At[i], c.Busy[i], c.Own[i]})
	}
	return nil
}

// applyQuantity declares a quantity with the values that it has.
func (r *Recording) applyQuantity(q Quantity) error {
	if err := q.check(); err != nil {
		return err
	}
	if len(r.Others) >= maxNames {
		return fmt.Errorf("more than %d quantities", maxNames)
	}
	if r.packing {
		at, values := q.At, q.Values
		q.At, q.Values, q.packed = nil, nil, &packedValues{shelf: r.shelf}
		if n := len(r.Others); n > 0 {
			q.packed.before = r.Others[n-1].packed
		}
		q.packed.addAll(at, values)
	}
	r.Others = append(r.Others, q)
	return nil
}

func (r *Recording) applyValues(c *valueColumns) error {
	q := r.other(c.Quantity)
	if q == nil {
		return fmt.Errorf("values of quantity %q, which was not declared", c.Quantity)
	}
	more := Quantity{Name: q.Name, At: c.At, Values: c.Values}
	if err := more.check(); err != nil {
		return err
	}
	if q.packed != nil {
		q.packed.addAll(c.At, c.Values)
	} else {
		q.At, q.Values = append(q.At, c.At...), append(q.Values, c.Values...)
	}
	return nil
}

func (q *Quantity) check() error {
	if len(q.At) != len(q.Values) {
		return fmt.Errorf("quantity %q: %d times and %d values", q.Name, len(q.At), len(q.Values))
	}
	if err := inRun(q.At...); err != nil {
		return fmt.Errorf("quantity %q: %w", q.Name, err)
	}
	return nil
}

func (r *Recording) series(name string) *ProbeSeries {
	for i := range r.Probes {
		if r.Probes[i].Name == name {
			return &r.Probes[i]
		}
	}
	return nil
}

func (r *Recording) flow(name string) *Flow {
	n := len(r.Flows)
	for i := range n {
		if f := &r.Flows[(r.nextFlow+i)%n]; f.Name == name {
			r.nextFlow = (r.nextFlow + i + 1) % n
			return f
		}
	}
	return nil
}

func (r *Recording) other(name string) *Quantity {
	n := len(r.Others)
	for i := range n {
		if q := &r.Others[(r.nextOther+i)%n]; q.Name == name {
			r.nextOther = (r.nextOther + i + 1) % n
			return q
		}
	}
	return nil
}

// finish puts samples into the order of their sequence and, in a recording that was cut off, ends what was open at the last time seen.
func (r *Recording) finish() {
	r.nextFlow, r.nextOther = 0, 0
	last := r.Ended
	for i := range r.Probes {
		s := &r.Probes[i]
		slices.SortStableFunc(s.Samples, bySeq)
		if s.packed != nil {
			s.packed.finish()
		}
		if sample, ok := s.lastSample(); ok && r.Truncated {
			last = max(last, sample.Sent)
		}
	}
	if !r.Truncated {
		return
	}
	for i := range r.Flows {
		f := &r.Flows[i]
		if _, end, ok := f.Ends(); ok {
			last = max(last, end.At)
			if !f.Result.Flowed {
				f.Error = cmp.Or(f.Error, "the recording ends before the flow did")
			}
		}
	}
	for i := range r.Phases {
		p := &r.Phases[i]
		if p.End == 0 {
			p.End = max(last, p.Start)
			p.From, p.To, _ = r.window(*p)
		}
	}
	r.Ended = max(last, r.Ended)
}

// FileError says where a recording file is wrong.
type FileError struct {
	Line int // of the decompressed text, from 1; 0 where it is not known
	Err  error
}

func (e *FileError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("recording: %v", e.Err)
	}
	return fmt.Sprintf("recording, line %d: %v", e.Line, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// ReadRecording reads a recording file. A file that was cut off, because the program or the machine died, gives what it holds, with
// Truncated set. Every other fault is a *FileError.
func ReadRecording(r io.Reader) (*Recording, error) { return readRecording(r, &Recording{}) }

// readRecording reads a recording into rec.
func readRecording(r io.Reader, rec *Recording) (*Recording, error) {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return nil, &FileError{Err: fmt.Errorf("not gzip: %w", err)}
	}
	lines := bufio.NewScanner(io.LimitReader(gz, maxFileBytes))
	lines.Buffer(make([]byte, 0, 64<<10), maxEntryBytes)
	rec.Truncated = true
	var fast lineReader
	n := 0
	var pending error // of the line before; the last line of a file that was cut off may be half a line
	for lines.Scan() {
		n++
		if pending != nil {
			return nil, &FileError{Line: n - 1, Err: pending}
		}
		e, ok := fast.read(lines.Bytes())
		if !ok {
			e = entry{}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				pending = err
				continue
			}
		}
		if n == 1 && (e.Head == nil || e.Head.Schema != FileSchema) {
			return nil, &FileError{Line: 1, Err: fmt.Errorf("want a head with schema %q", FileSchema)}
		}
		if n > 1 && e.Head != nil {
			return nil, &FileError{Line: n, Err: errors.New("a second head")}
		}
		if err := rec.apply(&e); err != nil {
			return nil, &FileError{Line: n, Err: err}
		}
		if e.End != nil {
			rec.Truncated = false
		}
	}
	err = lines.Err()
	cut := err == nil || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case !cut:
		return nil, &FileError{Line: n, Err: err}
	case pending != nil && (n == 1 || !rec.Truncated):
		return nil, &FileError{Line: n, Err: pending}
	case n == 0:
		return nil, &FileError{Err: errors.New("empty")}
	}
	rec.finish()
	return rec, nil
}

// WriteRecording writes a whole recording as a file, for one that was not written while it grew. rec must hold to what ReadRecording accepts,
// and is not modified.
func WriteRecording(w io.Writer, rec *Recording) error {
	f := newFileWriter(w)
	var err error
	put := func(e entry) {
		if err == nil {
			err = f.write(&e)
		}
	}
	put(entry{Head: &head{Schema: FileSchema, Version: rec.Version, Started: rec.Started, Plan: rec.Plan, Path: rec.Path, Paths: rec.Paths, Client: rec.Client, Source: rec.Source}})
	for i := range rec.Phases {
		put(entry{Phase: &rec.Phases[i]})
	}
	var c sampleColumns
	for i := range rec.Probes {
		s := &rec.Probes[i]
		put(entry{Series: s})
		for chunk := range chunks(s.All(), chunkRows) {
			c.fill(s.Name, chunk)
			put(entry{Samples: &c})
		}
		put(entry{SeriesEnd: &seriesEnd{s.Name, s.Tally, s.Error}})
	}
	for i := range rec.Flows {
		fl := &rec.Flows[i]
		put(entry{Flow: fl})
		for chunk := range slices.Chunk(fl.Readings(), chunkRows) {
			c := &pointColumns{Flow: fl.Name}
			for _, p := range chunk {
				c.At, c.Bytes = append(c.At, p.At), append(c.Bytes, p.Bytes)
			}
			put(entry{Points: c})
		}
		put(entry{FlowEnd: &flowEnd{fl.Name, fl.Result, fl.Error}})
	}
	for _, c := range rec.cpuColumns() {
		put(entry{CPU: &c})
	}
	for i := range rec.Others {
		q := rec.Others[i]
		at, values := q.Columns()
		n := min(chunkRows, len(at))
		q.At, q.Values = at[:n], values[:n]
		put(entry{Quantity: &q})
		for n < len(at) {
			from := n
			n = min(n+chunkRows, len(at))
			put(entry{Values: &valueColumns{Quantity: q.Name, At: at[from:n], Values: values[from:n]}})
		}
	}
	for i := range rec.Findings {
		put(entry{Finding: &rec.Findings[i]})
	}
	if !rec.Truncated {
		put(entry{End: &end{rec.Ended, rec.Stopped}})
	}
	return errors.Join(err, f.close())
}

// chunks returns what comes in slices of up to n, each valid until the next.
func chunks[T any](all iter.Seq[T], n int) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		chunk := make([]T, 0, n)
		for v := range all {
			if chunk = append(chunk, v); len(chunk) == n {
				if !yield(chunk) {
					return
				}
				chunk = chunk[:0]
			}
		}
		if len(chunk) > 0 {
			yield(chunk)
		}
	}
}

// chunkRows is how many rows an entry has at most that this program writes.
const chunkRows = 1000

// cpuColumns returns the entries of a recording's CPU use, one at least.
func (r *Recording) cpuColumns() []cpuColumns {
	if !r.CPU.Available {
		return []cpuColumns{{Unavailable: cmp.Or(r.CPU.Why, "not recorded")}}
	}
	if len(r.CPU.Samples) == 0 {
		return []cpuColumns{{}}
	}
	var all []cpuColumns
	for chunk := range slices.Chunk(r.CPU.Samples, chunkRows) {
		c := cpuColumns{}
		for _, s := range chunk {
			c.At, c.Busy, c.Own = append(c.At, s.At), append(c.Busy, s.Busy), append(c.Own, s.Own)
		}
		all = append(all, c)
	}
	return all
}

// Check says what is wrong with a recording that was put together by other means than Run and ReadRecording, or returns nil.
func (r *Recording) Check() error {
	var c Recording // what was taken so far
	take := func(e entry) error { return c.apply(&e) }
	errs := []error{inRun(r.Ended)}
	for _, p := range r.Phases {
		errs = append(errs, take(entry{Phase: &p}))
		if p.End < p.Start || p.To < p.From {
			errs = append(errs, fmt.Errorf("phase %q ends before it begins", p.Name))
		}
	}
	for _, s := range r.Probes {
		errs = append(errs, take(entry{Series: &ProbeSeries{Name: s.Name}}))
		for sample := range s.All() {
			if err := checkSample(&sample); err != nil {
				errs = append(errs, fmt.Errorf("series %q: %w", s.Name, err))
				break
			}
		}
	}
	for _, f := range r.Flows {
		errs = append(errs, take(entry{Flow: &Flow{Name: f.Name, Direction: f.Direction}}), take(entry{FlowEnd: &flowEnd{Flow: f.Name, Result: f.Result}}))
		var last Point
		for _, p := range f.Readings() {
			if err := checkPoint(last, p); err != nil {
				errs = append(errs, fmt.Errorf("flow %q: %w", f.Name, err))
				break
			}
			last = p
		}
	}
	for i := range r.Others {
		errs = append(errs, r.Others[i].check())
	}
	for _, s := range r.CPU.Samples {
		errs = append(errs, inRun(s.At))
	}
	return errors.Join(errs...)
}

// fileWriter writes entries to a recording file.
type fileWriter struct {
	gz  *gzip.Writer
	enc *json.Encoder
}

func newFileWriter(w io.Writer) *fileWriter {
	gz := gzip.NewWriter(w)
	return &fileWriter{gz, json.NewEncoder(gz)}
}

func (w *fileWriter) write(e *entry) error { return w.enc.Encode(e) }

// flush makes what was written so far readable even if nothing more comes.
func (w *fileWriter) flush() error { return w.gz.Flush() }

func (w *fileWriter) close() error { return w.gz.Close() }
