package inflate

import (
	"io"
	"math/bits"
)

// An entry of a table says what a code stands for, in four fields: how many bits the code has (0 is no code), how many extra bits follow it, flags, and
// a value: a byte, the least length or distance, or where a second table begins.
const (
	bitsMask   = 0x1f
	extraShift = 5
	literal    = 1 << 10
	special    = 1 << 11 // the end of the block, or a symbol that must not occur
	second     = 1 << 12 // the code goes on in a second table, for which extra bits more decide
	valueShift = 13

	endOfBlock = 256

	maxLit  = 288
	maxDist = 32
	maxBits = 15
	first   = 10 // bits of the first table
)

// table finds symbols by the bits that begin with their code.
type table struct {
	e    [1<<first + 1<<maxBits]uint32
	used int
}

func (t *table) find(b uint64) uint32 {
	e := t.e[b&(1<<first-1)]
	if e&second != 0 {
		e = t.e[int(e>>valueShift)+int(b>>first&(1<<(e>>extraShift&bitsMask)-1))]
	}
	return e
}

// build fills the table from the lengths of the codes of symbols (RFC 1951, 3.2.2), with entry(symbol) but for its bits. A set of lengths that
// leaves codes without a symbol is refused, other than a single code of one bit and no code at all, which other programs take as well.
func (t *table) build(lengths []uint8, entry func(symbol int) uint32) error {
	var count, next [maxBits + 2]int
	longest := 0
	for _, l := range lengths {
		count[l]++
		longest = max(longest, int(l))
	}
	clear(t.e[:1<<first])
	t.used = 1 << first
	if longest == 0 {
		return nil
	}
	count[0] = 0
	code := 0
	for l := 1; l <= longest; l++ {
		code <<= 1
		next[l] = code
		code += count[l]
	}
	if code != 1<<longest && (code != 1 || longest != 1) {
		return ErrCorrupt
	}
	for symbol, l := range lengths {
		if l == 0 {
			continue
		}
		n := int(l)
		reversed := int(bits.Reverse16(uint16(next[n])) >> (16 - n))
		next[n]++
		e := entry(symbol) | uint32(n)
		if n <= first {
			for i := reversed; i < 1<<first; i += 1 << n {
				t.e[i] = e
			}
			continue
		}
		head := &t.e[reversed&(1<<first-1)]
		if *head == 0 {
			more := longest - first
			*head = uint32(t.used)<<valueShift | second | uint32(more)<<extraShift
			clear(t.e[t.used : t.used+1<<more])
			t.used += 1 << more
		}
		more := longest - first
		base := int(*head >> valueShift)
		for i := reversed >> first; i < 1<<more; i += 1 << (n - first) {
			t.e[base+i] = e
		}
	}
	return nil
}

// lengthEntry and distanceEntry are RFC 1951, 3.2.5.
func lengthEntry(symbol int) uint32 {
	switch {
	case symbol < 256:
		return literal | uint32(symbol)<<valueShift
	case symbol == endOfBlock:
		return special | endOfBlock<<valueShift
	case symbol < 265:
		return uint32(symbol-257+3) << valueShift
	case symbol < 285:
		extra := (symbol - 261) / 4
		return uint32(3+(4+(symbol-261)%4)<<extra)<<valueShift | uint32(extra)<<extraShift
	case symbol == 285:
		return 258 << valueShift
	}
	return special
}

func distanceEntry(symbol int) uint32 {
	switch {
	case symbol < 4:
		return uint32(symbol+1) << valueShift
	case symbol < 30:
		extra := symbol/2 - 1
		return uint32(1+(2+symbol%2)<<extra)<<valueShift | uint32(extra)<<extraShift
	}
	return special
}

// fixed sets the tables of RFC 1951, 3.2.6.
func (z *Reader) fixed() {
	l := z.lengths[:maxLit]
	for i := range l {
		switch {
		case i < 144:
			l[i] = 8
		case i < 256:
			l[i] = 9
		case i < 280:
			l[i] = 7
		default:
			l[i] = 8
		}
	}
	_ = z.lit.build(l, lengthEntry) // the set is complete
	d := z.lengths[maxLit:]
	for i := range d {
		d[i] = 5
	}
	_ = z.dist.build(d, distanceEntry)
}

// dynamic reads the tables of a block (RFC 1951, 3.2.7).
func (z *Reader) dynamic() error {
	counts, ok := z.take(14)
	if !ok {
		return io.ErrUnexpectedEOF
	}
	lits, dists, codes := counts&31+257, counts>>5&31+1, counts>>10+4
	if lits > 286 || dists > 30 {
		return ErrCorrupt
	}
	order := [...]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
	var of [len(order)]uint8
	for _, i := range order[:codes] {
		l, ok := z.take(3)
		if !ok {
			return io.ErrUnexpectedEOF
		}
		of[i] = uint8(l)
	}
	if err := z.dist.build(of[:], func(symbol int) uint32 { return uint32(symbol) << valueShift }); err != nil {
		return err
	}
	all := z.lengths[:lits+dists]
	for i := 0; i < len(all); {
		z.refill()
		e := z.dist.find(z.bits)
		k := int(e & bitsMask)
		if k == 0 {
			return ErrCorrupt
		}
		if _, ok := z.take(k); !ok {
			return io.ErrUnexpectedEOF
		}
		n, value, err := z.repeat(int(e>>valueShift), all[:i])
		if err != nil {
			return err
		}
		if i+n > len(all) {
			return ErrCorrupt
		}
		for ; n > 0; n-- {
			all[i] = value
			i++
		}
	}
	if err := z.lit.build(all[:lits], lengthEntry); err != nil {
		return err
	}
	return z.dist.build(all[lits:], distanceEntry)
}

// repeat returns how often which length comes, by a symbol of the code of lengths.
func (z *Reader) repeat(symbol int, before []uint8) (n int, value uint8, err error) {
	if symbol < 16 {
		return 1, uint8(symbol), nil
	}
	extra, least := 2, 3
	switch symbol {
	case 16:
		if len(before) == 0 {
			return 0, 0, ErrCorrupt
		}
		value = before[len(before)-1]
	case 17:
		extra = 3
	default:
		extra, least = 7, 11
	}
	more, ok := z.take(extra)
	if !ok {
		return 0, 0, io.ErrUnexpectedEOF
	}
	return least + more, value, nil
}
