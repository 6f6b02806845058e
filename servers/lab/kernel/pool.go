package kernel

// The sizes of the buffers. Nearly all frames are at most as long as the middle one, or super-packets.
const (
	tinyBuffer  = 256
	smallBuffer = 2048
	bigBuffer   = maxFrame
)

// pool keeps frames, their buffers and segments for use again. It grows to the most that was ever inside the links. It is not safe for
// concurrent use.
type pool struct {
	tiny, small, big [][]byte
	frames           []*frame
	segments         []*segment
}

func take[T any](list *[]T) (T, bool) {
	var zero T
	last := len(*list) - 1
	if last < 0 {
		return zero, false
	}
	v := (*list)[last]
	(*list)[last] = zero
	*list = (*list)[:last]
	return v, true
}

// buffer returns one of exactly this size, which is one of the three.
func (p *pool) buffer(size int) []byte {
	list := p.list(size)
	if b, ok := take(list); ok {
		return b
	}
	return make([]byte, size)
}

func (p *pool) list(size int) *[][]byte {
	switch size {
	case tinyBuffer:
		return &p.tiny
	case smallBuffer:
		return &p.small
	}
	return &p.big
}

// frame returns one whose bytes are the first n of buf, which it takes over.
func (p *pool) frame(buf []byte, n int, v vnet) *frame {
	f, ok := take(&p.frames)
	if !ok {
		f = &frame{pool: p}
	}
	f.buf, f.kept, f.v, f.refs = buf[:n], buf, v, 0
	return f
}

// segment returns the one with this index of f.
func (p *pool) segment(f *frame, index int) *segment {
	s, ok := take(&p.segments)
	if !ok {
		s = &segment{}
	}
	s.frame, s.index = f, index
	f.refs++
	return s
}

// clone returns a copy of a segment, for a link that duplicates.
func (p *pool) clone(handle any) any {
	s := handle.(*segment)
	return p.segment(s.frame, s.index)
}

// release takes a segment back, and its frame with the last of them.
func (p *pool) release(s *segment) {
	f := s.frame
	s.frame = nil
	p.segments = append(p.segments, s)
	if f.refs--; f.refs == 0 {
		p.discard(f)
	}
}

// discard takes a frame back of which there are no segments.
func (p *pool) discard(f *frame) {
	list := p.list(len(f.kept))
	*list = append(*list, f.kept)
	f.buf, f.kept = nil, nil
	p.frames = append(p.frames, f)
}
