package bufferbloat

import (
	"cmp"
	"io"
	"iter"
	"slices"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// ReadPacked is ReadRecording for a recording that may be long. What grows with its length, the samples of series, the readings of flows and the values of
// quantities, takes some 2 to 10 bytes each and is not in Samples, Points, At and Values, which are nil: All, Readings, Each and Columns have it.
func ReadPacked(r io.Reader) (*Recording, error) { return readRecording(r, &Recording{packing: true}) }

// All returns the samples in the order of their sequence numbers, wherever they are.
func (s *ProbeSeries) All() iter.Seq[probe.Sample] {
	if s.packed != nil {
		return s.packed.all
	}
	return slices.Values(s.Samples)
}

// Len is the number of samples that All has.
func (s *ProbeSeries) Len() int {
	if s.packed != nil {
		return s.packed.n
	}
	return len(s.Samples)
}

// lastSample returns the last sample of All, or false where there is none.
func (s *ProbeSeries) lastSample() (probe.Sample, bool) {
	switch n := s.Len(); {
	case n == 0:
		return probe.Sample{}, false
	case s.packed != nil:
		return s.packed.runs[0].last, true
	default:
		return s.Samples[n-1], true
	}
}

// Readings returns Points, or what would be in it where the recording is packed: then the slice is new.
func (f *Flow) Readings() []Point {
	if f.packed != nil {
		return f.packed.all()
	}
	return f.Points
}

// Ends returns the first and the last of Readings, or false where there is none.
func (f *Flow) Ends() (first, last Point, ok bool) {
	if p := f.packed; p != nil {
		return p.first, p.last, p.n > 0
	}
	if len(f.Points) == 0 {
		return first, last, false
	}
	return f.Points[0], f.Points[len(f.Points)-1], true
}

// Each yields the times and values, wherever they are.
func (q *Quantity) Each(yield func(at time.Duration, value float64) bool) {
	if q.packed != nil {
		q.packed.each(yield)
		return
	}
	for i := range min(len(q.At), len(q.Values)) {
		if !yield(q.At[i], q.Values[i]) {
			return
		}
	}
}

// Columns returns At and Values, or what would be in them where the recording is packed: then the slices are new.
func (q *Quantity) Columns() (at []time.Duration, values []float64) {
	if q.packed != nil {
		return q.packed.all()
	}
	return q.At, q.Values
}

// packedSamples holds samples in runs whose sequence numbers ascend: a sample goes to the first run that it can continue, so that the replies are in one
// and what is given up for lost long after them in another. Reading merges the runs. No sample is moved once it is packed.
type packedSamples struct {
	shelf *shelf
	runs  []*sampleRun
	n     int
	mixed bool           // the last run does not ascend
	rows  []probe.Sample // space for those that are read next
}

// mostRuns bounds how many runs reading has to merge.
const mostRuns = 16

func (p *packedSamples) add(s *probe.Sample) {
	p.n++
	for _, r := range p.runs {
		if r.last.Seq <= s.Seq {
			r.add(s)
			return
		}
	}
	if len(p.runs) < mostRuns {
		p.runs = append(p.runs, &sampleRun{blocks: blocks{shelf: p.shelf}})
	} else {
		p.mixed = true
	}
	p.runs[len(p.runs)-1].add(s)
}

// finish puts all in order anew where it does not come in so many runs.
func (p *packedSamples) finish() {
	p.rows = nil
	if !p.mixed {
		return
	}
	all := slices.AppendSeq(make([]probe.Sample, 0, p.n), p.all)
	slices.SortStableFunc(all, bySeq)
	*p = packedSamples{shelf: p.shelf}
	for i := range all {
		p.add(&all[i])
	}
}

func (p *packedSamples) all(yield func(probe.Sample) bool) {
	heads := make([]sampleReader, 0, mostRuns)
	for _, r := range p.runs {
		if h := (sampleReader{cursor: cursor{from: &r.blocks}}); h.next() {
			heads = append(heads, h)
		}
	}
	for len(heads) > 0 {
		first := 0
		for i := range heads[1:] {
			if heads[i+1].sample.Seq < heads[first].sample.Seq {
				first = i + 1
			}
		}
		if !yield(heads[first].sample) {
			return
		}
		if !heads[first].next() {
			heads = slices.Delete(heads, first, first+1)
		}
	}
}

func bySeq(a, b probe.Sample) int { return cmp.Compare(a.Seq, b.Seq) }

// sampleRun packs a sample as a byte of outcome, stamp and one-way delays, and as varints: how long after its due time it left, with a bit that says that its
// sequence number and due time are not those that were to follow; then how far they are off; the RTT, of outcomes that have one; the delays.
type sampleRun struct {
	blocks
	last probe.Sample
	step time.Duration // between the due times of the last two
}

const (
	oneWayBit = 1 << 7
	stampBits = 4
)

func (r *sampleRun) add(s *probe.Sample) {
	var p piece
	flags := byte(s.Outcome) | byte(s.Stamp)<<stampBits
	if s.HasOneWay {
		flags |= oneWayBit
	}
	p.byte(flags)
	leap, drift := int64(s.Seq-r.last.Seq-1), int64(s.Due-r.last.Due-r.step)
	late := zigzag(int64(s.Sent-s.Due)) << 1
	if leap != 0 || drift != 0 {
		p.uvarint(late | 1)
		p.varint(leap)
		p.varint(drift)
	} else {
		p.uvarint(late)
	}
	if s.Outcome.HasRTT() {
		p.varint(int64(s.RTT))
	}
	if s.HasOneWay {
		p.varint(int64(s.Up))
		p.varint(int64(s.Down))
	}
	r.put(&p)
	r.step, r.last = s.Due-r.last.Due, *s
}

// sampleReader reads a run.
type sampleReader struct {
	cursor
	sample probe.Sample // read last
	step   time.Duration
}

func (h *sampleReader) next() bool {
	if !h.more() {
		return false
	}
	flags := h.byte()
	last := h.sample
	h.sample = probe.Sample{Seq: last.Seq + 1, Due: last.Due + h.step, Outcome: probe.Outcome(flags & (1<<stampBits - 1)),
		Stamp: host.Stamp(flags &^ oneWayBit >> stampBits), HasOneWay: flags&oneWayBit != 0}
	s := &h.sample
	late := h.uvarint()
	if late&1 != 0 {
		s.Seq += uint64(h.varint())
		s.Due += time.Duration(h.varint())
	}
	s.Sent = s.Due + time.Duration(unzigzag(late>>1))
	if s.Outcome.HasRTT() {
		s.RTT = time.Duration(h.varint())
	}
	if s.HasOneWay {
		s.Up, s.Down = time.Duration(h.varint()), time.Duration(h.varint())
	}
	h.step = s.Due - last.Due
	return true
}
