package bufferbloat

import (
	"encoding/binary"
	"fmt"
)

// blocks are bytes that only ever become more. They are in blocks, each twice the size of the one before it up to mostBlock, so that a short series takes
// little, and a long one is never copied and allocates seldom. Where there is a shelf, full blocks go there once it says so.
type blocks struct {
	list  []block
	shelf *shelf // nil where all of it stays in memory
}

type block struct {
	b  []byte // nil where it is on the shelf
	at int64  // where on the shelf, with n bytes
	n  int
}

const (
	leastBlock = 128
	mostBlock  = 8 << 10
)

// put appends a piece, which is never divided between two blocks.
func (b *blocks) put(p *piece) {
	k := len(b.list)
	if k == 0 || cap(b.list[k-1].b)-len(b.list[k-1].b) < p.n {
		b.list = append(b.list, block{b: b.space()})
		k++
	}
	last := &b.list[k-1]
	last.b = append(last.b, p.b[:p.n]...)
}

// space returns the space of a new block, which is that of the last one where it could be shelved.
func (b *blocks) space() []byte {
	k := len(b.list)
	if b.shelf != nil && k > 0 {
		if space := b.shelf.take(&b.list[k-1]); space != nil {
			return space
		}
	}
	size := min(leastBlock<<min(k, 16), mostBlock)
	if b.shelf != nil {
		b.shelf.held += size
	}
	return make([]byte, 0, size)
}

// size is how many bytes were put.
func (b *blocks) size() (n int) {
	for i := range b.list {
		n += len(b.list[i].b) + b.list[i].n
	}
	return n
}

// mostHeld is how many bytes of blocks a recording holds in memory before it shelves what is full.
const mostHeld = 4 << 20

// shelf holds the full blocks of a recording that is long in a file.
type shelf struct {
	file Scratch
	most int   // bytes of blocks in memory, from which on full ones are shelved
	held int   // bytes of blocks in memory
	end  int64 // of the file
	full bool  // it takes no more: what comes stays in memory
}

// take shelves a block and returns its space, or returns nil where the block stays where it is.
func (s *shelf) take(b *block) []byte {
	if s.full || s.held < s.most || cap(b.b) < mostBlock {
		return nil
	}
	if _, err := s.file.WriteAt(b.b, s.end); err != nil {
		s.full = true
		return nil
	}
	space := b.b[:0]
	*b = block{at: s.end, n: len(b.b)}
	s.end += int64(b.n)
	return space
}

// piece is one entry of blocks while it is put together: a byte and up to six numbers.
type piece struct {
	b [1 + 6*binary.MaxVarintLen64]byte
	n int
}

func (p *piece) byte(v byte) { p.b[p.n] = v; p.n++ }

func (p *piece) varint(v int64) { p.uvarint(zigzag(v)) }

func (p *piece) uvarint(v uint64) { p.n += binary.PutUvarint(p.b[p.n:], v) }

// bits puts a number as its eight bytes.
func (p *piece) bits(v uint64) {
	binary.LittleEndian.PutUint64(p.b[p.n:], v)
	p.n += 8
}

// zigzag makes a small number of one that is near zero.
func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }

// cursor reads blocks, while they may grow, from the beginning: more before each piece, and then what was put into it.
type cursor struct {
	from    *blocks
	block   int
	at      int    // in the block
	b       []byte // the block, as far as it was when more was asked
	shelved []byte // space for a block that is on the shelf
	loaded  int    // which is in it, counted from 1
}

func (c *cursor) more() bool {
	list := c.from.list
	if c.block == len(list) {
		return false
	}
	if c.load(&list[c.block]); c.at == len(c.b) && c.block+1 < len(list) {
		c.block, c.at = c.block+1, 0
		c.load(&list[c.block])
	}
	return c.at < len(c.b)
}

// load has the block at which the cursor stands in b.
func (c *cursor) load(k *block) {
	switch {
	case k.b != nil:
		c.b = k.b
		return
	case c.loaded == c.block+1:
		return
	case c.shelved == nil:
		c.shelved = make([]byte, mostBlock)
	}
	c.b, c.loaded = c.shelved[:k.n], c.block+1
	if n, err := c.from.shelf.file.ReadAt(c.b, k.at); n < k.n {
		panic(fmt.Errorf("what a run put into its scratch file can't be read back: %w", err)) // like memory that fails
	}
}

func (c *cursor) byte() byte {
	v := c.b[c.at]
	c.at++
	return v
}

func (c *cursor) varint() int64 { return unzigzag(c.uvarint()) }

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.b[c.at:])
	c.at += n
	return v
}

func (c *cursor) bits() uint64 {
	v := binary.LittleEndian.Uint64(c.b[c.at:])
	c.at += 8
	return v
}
