package bufferbloat

import "encoding/binary"

// blocks are bytes that only ever become more. They are in blocks, each twice the size of the one before it up to mostBlock, so that a short series takes
// little, and a long one is never copied and allocates seldom.
type blocks [][]byte

const (
	leastBlock = 128
	mostBlock  = 8 << 10
)

// put appends a piece, which is never divided between two blocks.
func (b *blocks) put(p *piece) {
	k := len(*b)
	if k == 0 || cap((*b)[k-1])-len((*b)[k-1]) < p.n {
		*b = append(*b, make([]byte, 0, min(leastBlock<<min(k, 16), mostBlock)))
		k++
	}
	(*b)[k-1] = append((*b)[k-1], p.b[:p.n]...)
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

// cursor reads blocks, while they may grow, from the beginning. What is read must be there: more tells of whole pieces.
type cursor struct {
	from  *blocks
	block int
	at    int // in the block
}

func (c *cursor) more() bool {
	list := *c.from
	if c.block+1 < len(list) && c.at == len(list[c.block]) {
		c.block, c.at = c.block+1, 0
	}
	return c.block < len(list) && c.at < len(list[c.block])
}

func (c *cursor) byte() byte {
	v := (*c.from)[c.block][c.at]
	c.at++
	return v
}

func (c *cursor) varint() int64 { return unzigzag(c.uvarint()) }

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint((*c.from)[c.block][c.at:])
	c.at += n
	return v
}

func (c *cursor) bits() uint64 {
	v := binary.LittleEndian.Uint64((*c.from)[c.block][c.at:])
	c.at += 8
	return v
}

// size is how many bytes were put.
func (b blocks) size() (n int) {
	for _, block := range b {
		n += len(block)
	}
	return n
}
