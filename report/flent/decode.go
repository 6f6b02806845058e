package flent

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"bufferbloat/internal/inflate"
)

// newest is the format version that is written, and the newest that is read.
const newest = 4

// file is a data file as it stands, its times on no common base yet.
type file struct {
	version int
	meta    meta
	grid    []float64 // x_values: seconds since T0
	order   []*series // in the order of the file
	byName  map[string]*series
	own     []byte // the value of ownKey, as it stands; nil where there is none

	rows, cells int
	widest      int   // of the arrays on the grid so far, for the size of the next
	longest     int   // the same of raw samples
	wrong       error // the first value of another type than expected
}

// meta are the metadata that bear on the figures, and those that describe the run.
type meta struct {
	name, title, time, t0                      string
	host, localHost, program, kernel, release  string
	length, total, step, ipVersion, failedRuns float64 // NaN where absent
}

// series is one series: its raw samples, and what is on the grid.
type series struct {
	name    string
	rows    []row
	columns []*column // what raw samples have beside the fields of row
	hasRaw  bool      // the file has an entry in raw_values
	skipped int       // raw entries that are no numbers in time
	hasGrid bool      // the file has an entry in results
	width   int       // of its values on the grid
	grid    []float64 // them, NaN for null; nil where raw samples say more
	onGrid  int       // values on the grid that are not null
	declare seriesMeta
}

// row is one raw sample. Absent values are NaN.
type row struct {
	at             int64 // ns since 1970, by the clock of the host that wrote it
	val, dur, seq  float64
	up, down       float64 // one-way delays, ms
	due            int64   // ns since 1970; noTime where absent. Only this program writes it
	outcome, stamp int8    // only this program writes them; 0 and -1 where absent
	lost           bool
	direction      int8 // of the loss: 1 up, -1 down, 0 unknown
}

const noTime = math.MinInt64

// column is one further field of raw samples.
type column struct {
	name string
	at   []time.Duration // since 1970
	v    []float64
}

// seriesMeta is an entry of SERIES_META. Absent numbers are NaN.
type seriesMeta struct {
	units, runner, control, command string
	mean, elapsed, sent, received   float64
	retransmits, downTOS            float64
}

// maxAhead is the size of a gzip file up to which it is read whole first, to be decompressed on a second CPU.
const maxAhead = 32 << 20

// expand returns the JSON text of a data file, gzip, bzip2 or plain by its first bytes, and what must be called when it is no longer read.
func expand(r io.Reader) (text io.Reader, end func(), err error) {
	end = func() {}
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(3)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
	case bytes.HasPrefix(head, []byte("BZh")):
		return bzip2.NewReader(b), end, nil
	case len(head) == 0 && errors.Is(err, io.EOF):
		return nil, nil, &FormatError{0, errors.New("the file is empty")}
	case len(head) == 0:
		return nil, nil, err
	default:
		return b, end, nil
	}
	whole := bytes.NewBuffer(make([]byte, 0, 1<<20)) // what is not used of it costs nothing
	if _, err := whole.ReadFrom(io.LimitReader(b, maxAhead)); err != nil {
		return nil, nil, err
	}
	if whole.Len() < maxAhead {
		a := newAhead(inflate.NewReader(whole.Bytes()))
		return a, a.close, nil
	}
	gz, err := gzip.NewReader(io.MultiReader(whole, b)) // the rest comes from r, which may block
	if err != nil {
		return nil, nil, &FormatError{0, fmt.Errorf("gzip header: %w", cutOff(err))}
	}
	return gz, end, nil
}

// decode reads a file.
func decode(r io.Reader) (*file, error) {
	text, end, err := expand(r)
	if err != nil {
		return nil, err
	}
	defer end()
	f := &file{version: 1, byName: map[string]*series{}, meta: meta{length: math.NaN(), total: math.NaN(), step: math.NaN(), ipVersion: math.NaN(), failedRuns: math.NaN()}}
	s := newScanner(text)
	seen := map[string]bool{}
	s.take('{')
	for first := true; s.more(&first, '}'); {
		key := string(s.key())
		if seen[key] {
			s.fail("the key %q comes twice", key)
		}
		if seen[key] = true; len(seen) > maxSeries {
			s.fail("more than %d keys", maxSeries)
		}
		f.member(s, key)
	}
	if s.err == nil && s.peek() != 0 {
		s.fail("%q after the end of the data", s.peek())
	}
	switch {
	case s.err != nil:
		return nil, s.err
	case f.version > newest:
		return nil, &FormatError{s.offset(), &VersionError{f.version}}
	case f.wrong != nil:
		return nil, f.wrong
	}
	for _, k := range []string{"metadata", "results", "x_values"} {
		if !seen[k] {
			return nil, &FormatError{s.offset(), fmt.Errorf("no %s: this is no flent data file", k)}
		}
	}
	return f, f.check(s.offset())
}

// VersionError is a file of a newer format than this program knows.
type VersionError struct{ Version int }

func (e *VersionError) Error() string {
	return fmt.Sprintf("format version %d; this program reads versions 1 to %d", e.Version, newest)
}

// check holds the lengths of the series to the grid.
func (f *file) check(offset int64) error {
	n := len(f.grid)
	for _, se := range f.order {
		if se.hasGrid && se.width != n {
			return &FormatError{offset, fmt.Errorf("series %q has %d values on a grid of %d points", se.name, se.width, n)}
		}
	}
	for i, x := range f.grid {
		if x < 0 || x > maxSpan.Seconds() || i > 0 && x < f.grid[i-1] {
			return &FormatError{offset, fmt.Errorf("x_values: %v s at place %d: want times that do not fall, from 0 to %v", x, i, maxSpan)}
		}
	}
	return nil
}

// member reads one top-level value.
func (f *file) member(s *scanner, key string) {
	switch key {
	case "version":
		f.version = f.readVersion(s)
	case "metadata":
		f.object(s, "metadata", func(key string) { f.metadata(s, key) })
	case "x_values":
		f.grid, _ = f.values(s, "x_values", true)
		for i, x := range f.grid {
			if math.IsNaN(x) {
				s.fail("x_values: no number at place %d", i)
			}
		}
	case "results":
		f.object(s, "results", func(name string) {
			se := f.series(s, name)
			// What raw samples tell is not wanted from the grid; its length is.
			se.hasGrid = true
			se.grid, se.width = f.values(s, name, len(se.rows) == 0 && !f.inColumn(name))
			for _, v := range se.grid {
				if !math.IsNaN(v) {
					se.onGrid++
				}
			}
		})
	case "raw_values":
		f.object(s, "raw_values", func(name string) { f.raw(s, f.series(s, name)) })
	default:
		s.skip()
	}
}

func (f *file) readVersion(s *scanner) int {
	switch c := s.peek(); {
	case c == '-' || c >= '0' && c <= '9':
		v, err := s.number().float()
		if err != nil || v != math.Trunc(v) || math.Abs(v) > 1e6 {
			return 1
		}
		return int(v)
	case c == '"':
		if v, err := strconv.Atoi(string(s.str())); err == nil {
			return v
		}
	default:
		s.skip()
	}
	return 1
}

// isA takes a value of another type than expected, remembers that, and is false then. A newer version may have other types, and its number comes
// at the end of the file.
func (f *file) isA(s *scanner, opening byte, what string) bool {
	c := s.peek()
	if c == opening && s.err == nil {
		return true
	}
	if s.err == nil && f.wrong == nil {
		f.wrong = &FormatError{s.offset(), fmt.Errorf("%s begins with %q, want %q", what, c, opening)}
	}
	s.skip()
	return false
}

// object calls member for each member of an object, with its value next. No key may come twice: of two series by one name, one would vanish.
func (f *file) object(s *scanner, what string, member func(key string)) {
	if !f.isA(s, '{', what) {
		return
	}
	s.take('{')
	seen := map[string]bool{}
	for first := true; s.more(&first, '}'); {
		key := string(s.key())
		if seen[key] {
			s.fail("%s: the key %q comes twice", what, key)
			return
		}
		if seen[key] = true; len(seen) > maxSeries {
			s.fail("%s: more than %d keys", what, maxSeries)
			return
		}
		member(key)
	}
}

func (f *file) series(s *scanner, name string) *series {
	se := f.byName[name]
	if se == nil {
		if len(f.order) >= maxSeries {
			s.fail("more than %d series", maxSeries)
		}
		nan := math.NaN()
		se = &series{name: name, declare: seriesMeta{mean: nan, elapsed: nan, sent: nan, received: nan, retransmits: nan, downTOS: nan}}
		f.byName[name] = se
		f.order = append(f.order, se)
	}
	return se
}

// inColumn reports whether what the grid has by this name stands among the raw samples of the series before its last "::".
func (f *file) inColumn(name string) bool {
	parent, key, ok := cutLast(name, "::")
	p := f.byName[parent]
	return ok && p != nil && slices.ContainsFunc(p.columns, func(c *column) bool { return c.name == key })
}

// values reads an array of numbers and nulls, and returns its length. Without keep, the values are forgotten.
func (f *file) values(s *scanner, what string, keep bool) (out []float64, n int) {
	if !f.isA(s, '[', what) {
		return nil, 0
	}
	if keep {
		out = make([]float64, 0, max(len(f.grid), f.widest))
	}
	s.take('[')
	for first := true; s.more(&first, ']'); n++ {
		if f.cells++; f.cells > maxCells {
			s.fail("more than %d values", maxCells)
			return nil, 0
		}
		switch c := s.peek(); {
		case keep:
			out = append(out, f.float(s, what))
		case c == 'n':
			s.word("null")
		default:
			s.number()
		}
	}
	f.widest = min(n, 100_000)
	return out, n
}

// float reads a number, or NaN for null and for what is of another type.
func (f *file) float(s *scanner, what string) float64 {
	c := s.peek()
	if c == 'n' {
		s.word("null")
		return math.NaN()
	}
	if c != '-' && (c < '0' || c > '9') {
		f.isA(s, '0', what)
		return math.NaN()
	}
	v, err := s.number().float()
	if err != nil {
		s.fail("%s: %w", what, err)
		return math.NaN()
	}
	return v
}

// raw reads the raw samples of one series.
func (f *file) raw(s *scanner, se *series) {
	if !f.isA(s, '[', "the raw samples of "+strconv.Quote(se.name)) {
		return
	}
	se.hasRaw = true
	s.take('[')
	if s.peek() == '{' && se.rows == nil {
		se.rows = make([]row, 0, max(f.longest, 64))
	}
	for first := true; s.more(&first, ']'); {
		if f.rows++; f.rows > maxRows {
			s.fail("more than %d raw samples", maxRows)
			return
		}
		if s.peek() != '{' {
			f.isA(s, '{', "a raw sample of "+strconv.Quote(se.name))
			continue
		}
		f.row(s, se)
	}
	f.longest = min(len(se.rows), 100_000)
}

// fields of a raw sample that are known, as bits, to find one that comes twice.
const (
	hasT = 1 << iota
	hasVal
	hasDur
	hasSeq
	hasLost
	hasDir
	hasUp
	hasDown
	hasDue
	hasOutcome
	hasStamp
)

// row reads one raw sample. Fields that are not a row's go to columns, once the sample's time is known.
func (f *file) row(s *scanner, se *series) {
	nan := math.NaN()
	r := row{val: nan, dur: nan, seq: nan, up: nan, down: nan, due: noTime, stamp: -1}
	type more struct {
		c *column
		v float64
	}
	var buf [32]more
	others := buf[:0]
	have := 0
	once := func(bit int) {
		if have&bit != 0 {
			s.fail("a raw sample of %q has a field twice", se.name)
		}
		have |= bit
	}
	s.take('{')
	for first := true; s.more(&first, '}'); {
		switch key := s.key(); string(key) {
		case "t":
			once(hasT)
			at, err := f.time(s)
			if err != nil {
				s.fail("series %q: %w", se.name, err)
			}
			r.at = at
		case "val":
			once(hasVal)
			r.val = f.float(s, "val")
		case "dur":
			once(hasDur)
			r.dur = f.float(s, "dur")
		case "seq":
			once(hasSeq)
			r.seq = f.float(s, "seq")
		case "owd_up":
			once(hasUp)
			r.up = f.float(s, "owd_up")
		case "owd_down":
			once(hasDown)
			r.down = f.float(s, "owd_down")
		case "lost":
			once(hasLost)
			r.lost = s.peek() == 't'
			s.skip()
		case "lost_dir":
			once(hasDir)
			r.direction = direction(s)
		case dueKey:
			once(hasDue)
			r.due, _ = f.time(s)
		case outcomeKey:
			once(hasOutcome)
			r.outcome = outcomeOf(s)
		case stampKey:
			once(hasStamp)
			r.stamp = int8(min(max(f.float(s, stampKey), -1), 100))
		case "ipdv", "ipdv_up", "ipdv_down": // the differences of what is kept
			s.skip()
		default:
			if c := s.peek(); c != '-' && (c < '0' || c > '9') {
				s.skip()
				continue
			}
			c := se.column(s, key)
			others = append(others, more{c, f.float(s, "a raw sample")})
		}
	}
	if have&hasT == 0 {
		se.skipped++
		return
	}
	for _, o := range others {
		if f.cells++; f.cells > maxCells {
			s.fail("more than %d values", maxCells)
			return
		}
		if o.c.at == nil {
			o.c.at, o.c.v = make([]time.Duration, 0, max(f.widest, 64)), make([]float64, 0, max(f.widest, 64))
		}
		o.c.at, o.c.v = append(o.c.at, time.Duration(r.at)), append(o.c.v, o.v)
	}
	if have&(hasVal|hasLost|hasOutcome) != 0 {
		se.rows = append(se.rows, r)
	}
}

func (se *series) column(s *scanner, name []byte) *column {
	for _, c := range se.columns {
		if c.name == string(name) {
			return c
		}
	}
	if len(se.columns) >= maxSeries/10 {
		s.fail("series %q: raw samples with more than %d different fields", se.name, maxSeries/10)
	}
	c := &column{name: string(name)}
	se.columns = append(se.columns, c)
	return c
}

// time reads a time in seconds.
func (f *file) time(s *scanner) (int64, error) {
	if c := s.peek(); c != '-' && (c < '0' || c > '9') {
		f.isA(s, '0', "a time")
		return 0, nil
	}
	return s.number().nanos()
}

func direction(s *scanner) int8 {
	if s.peek() != '"' {
		s.skip()
		return 0
	}
	switch string(s.str()) {
	case "up":
		return 1
	case "down":
		return -1
	}
	return 0
}

// metadata reads one value of the metadata.
func (f *file) metadata(s *scanner, key string) {
	m := &f.meta
	for _, t := range []struct {
		key string
		to  *string
	}{{"NAME", &m.name}, {"TITLE", &m.title}, {"TIME", &m.time}, {"T0", &m.t0}, {"HOST", &m.host}, {"LOCAL_HOST", &m.localHost},
		{"FLENT_VERSION", &m.program}, {"NETPERF_WRAPPER_VERSION", &m.program}, {"KERNEL_NAME", &m.kernel}, {"KERNEL_RELEASE", &m.release}} {
		if key == t.key {
			readText(s, t.to)
			return
		}
	}
	for _, t := range []struct {
		key string
		to  *float64
	}{{"LENGTH", &m.length}, {"TOTAL_LENGTH", &m.total}, {"STEP_SIZE", &m.step}, {"IP_VERSION", &m.ipVersion}, {"FAILED_RUNNERS", &m.failedRuns}} {
		if key == t.key {
			readNumber(s, t.to)
			return
		}
	}
	switch key {
	case "SERIES_META":
		f.object(s, key, func(name string) {
			se := f.series(s, name)
			f.object(s, "SERIES_META of "+strconv.Quote(name), func(key string) { f.seriesMeta(s, se, key) })
		})
	case ownKey:
		f.own = s.copyValue()
	default:
		s.skip()
	}
}

func (f *file) seriesMeta(s *scanner, se *series, key string) {
	d := &se.declare
	switch key {
	case "UNITS":
		readText(s, &d.units)
	case "RUNNER":
		readText(s, &d.runner)
	case "CONG_CONTROL":
		readText(s, &d.control)
	case "COMMAND":
		readText(s, &d.command)
	case "MEAN_VALUE":
		readNumber(s, &d.mean)
	case "ELAPSED_TIME":
		readNumber(s, &d.elapsed)
	case "BYTES_SENT":
		readNumber(s, &d.sent)
	case "BYTES_RECVD":
		readNumber(s, &d.received)
	case "TCP_RETRANSMIT":
		readNumber(s, &d.retransmits)
	case "DOWNSTREAM_TOS":
		readNumber(s, &d.downTOS)
	case "RAW_VALUES": // version 1
		f.raw(s, se)
	default:
		s.skip()
	}
}

// readText reads a string; what is of another type, null among it, counts as absent.
func readText(s *scanner, to *string) {
	if s.peek() != '"' {
		s.skip()
		return
	}
	*to = string(s.str())
}

// readNumber reads a number, or a string that holds one; what is of another type counts as absent.
func readNumber(s *scanner, to *float64) {
	switch c := s.peek(); {
	case c == '"':
		if v, err := strconv.ParseFloat(string(s.str()), 64); err == nil && !math.IsInf(v, 0) {
			*to = v
		}
	case c == '-' || c >= '0' && c <= '9':
		v, err := s.number().float()
		if err != nil {
			s.fail("%w", err)
		}
		*to = v
	default:
		s.skip()
	}
}
