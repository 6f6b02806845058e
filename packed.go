package bufferbloat

import (
	"cmp"
	"encoding/binary"
	"io"
	"iter"
	"slices"
	"time"

	"bufferbloat/internal/host"
	"bufferbloat/probe"
)

// ReadPacked is ReadRecording for a recording of which only the whole is wanted and that may be long: the samples of its series take some ten bytes
// each. They are not in Samples, which is nil; All has them.
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

// packed holds samples in the order of their sequence numbers, each as a byte of outcome, stamp and one-way delays, and differences as
// varints: of the sequence number from the next one, of the due time from the last step, of the send from the due time; the RTT; and the delays.
// Samples come nearly in order. Those that came last wait in fresh until it is full, so that they can be put in order among each other.
type packed struct {
	chunks [][]byte
	n      int
	last   probe.Sample  // packed last
	step   time.Duration // between the two packed last
	fresh  []probe.Sample
	rows   []probe.Sample // space for those that are read next
	mixed  bool           // a sample came so late that its place was packed already
}

const (
	packedChunk = 256 << 10
	packedMost  = 1 + 6*binary.MaxVarintLen64 // bytes of a sample
	freshMost   = 8192

	oneWayBit = 1 << 7
	stampBits = 4
)

func bySeq(a, b probe.Sample) int { return cmp.Compare(a.Seq, b.Seq) }

func (p *packed) add(samples []probe.Sample) {
	for _, s := range samples {
		if len(p.fresh) == freshMost {
			p.settle(freshMost / 2)
		}
		p.fresh = append(p.fresh, s)
	}
}

// settle packs the first n of the fresh samples.
func (p *packed) settle(n int) {
	slices.SortStableFunc(p.fresh, bySeq)
	for i := range p.fresh[:n] {
		p.put(&p.fresh[i])
	}
	p.fresh = p.fresh[:copy(p.fresh, p.fresh[n:])]
}

// finish packs what is left and, where a sample missed its place, puts all in order anew.
func (p *packed) finish() {
	p.settle(len(p.fresh))
	p.fresh, p.rows = nil, nil
	if !p.mixed {
		return
	}
	all := slices.AppendSeq(make([]probe.Sample, 0, p.n), p.all)
	slices.SortStableFunc(all, bySeq)
	*p = packed{}
	for i := range all {
		p.put(&all[i])
	}
}

func (p *packed) put(s *probe.Sample) {
	p.mixed = p.mixed || p.n > 0 && s.Seq < p.last.Seq
	c := len(p.chunks) - 1
	if c < 0 || cap(p.chunks[c])-len(p.chunks[c]) < packedMost {
		p.chunks = append(p.chunks, make([]byte, 0, packedChunk))
		c++
	}
	b := p.chunks[c]
	flags := byte(s.Outcome) | byte(s.Stamp)<<stampBits
	if s.HasOneWay {
		flags |= oneWayBit
	}
	b = append(b, flags)
	b = binary.AppendVarint(b, int64(s.Seq-p.last.Seq-1))
	b = binary.AppendVarint(b, int64(s.Due-p.last.Due-p.step))
	b = binary.AppendVarint(b, int64(s.Sent-s.Due))
	b = binary.AppendVarint(b, int64(s.RTT))
	if s.HasOneWay {
		b = binary.AppendVarint(binary.AppendVarint(b, int64(s.Up)), int64(s.Down))
	}
	p.chunks[c] = b
	p.n++
	p.step, p.last = s.Due-p.last.Due, *s
}

func (p *packed) all(yield func(probe.Sample) bool) {
	var last probe.Sample
	var step time.Duration
	for _, b := range p.chunks {
		at := 0
		next := func() int64 {
			v, n := binary.Varint(b[at:])
			at += n
			return v
		}
		for at < len(b) {
			flags := b[at]
			at++
			s := probe.Sample{Outcome: probe.Outcome(flags & (1<<stampBits - 1)), Stamp: host.Stamp(flags &^ oneWayBit >> stampBits), HasOneWay: flags&oneWayBit != 0}
			s.Seq = last.Seq + 1 + uint64(next())
			s.Due = last.Due + step + time.Duration(next())
			s.Sent = s.Due + time.Duration(next())
			s.RTT = time.Duration(next())
			if s.HasOneWay {
				s.Up, s.Down = time.Duration(next()), time.Duration(next())
			}
			if !yield(s) {
				return
			}
			step, last = s.Due-last.Due, s
		}
	}
}
