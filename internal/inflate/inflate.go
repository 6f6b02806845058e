// Package inflate decompresses gzip data that lies whole in memory.
//
// It is there for speed alone: with all of the input at hand it reads eight bytes at a time, and takes about half the time of compress/gzip, which must
// not read beyond the end of a stream. FuzzInflate holds the two to each other.
package inflate

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// ErrCorrupt says that the data is no gzip, or damaged. Data that ends too early is io.ErrUnexpectedEOF.
var ErrCorrupt = errors.New("gzip: the data is damaged")

const (
	window   = 32 << 10 // how far back a match may reach (RFC 1951, 2)
	longest  = 258      // bytes of a match
	capacity = window + 64<<10
)

// Reader returns the text of gzip data: of all its members, one after the other (RFC 1952, 2.2).
type Reader struct {
	in  []byte
	pos int // in the input; what was read of it and not used is in bits

	bits uint64
	n    int // valid bits; the rest are zero, or what refill reads once more

	buf    [capacity]byte
	r, w   int // what is decompressed and not yet read is buf[r:w]; before it is the window
	known  int // bytes before w that belong to this member: a match may reach as far
	state  func(*Reader) error
	last   bool // the block is the member's last
	stored int  // bytes left of a stored block
	crc    uint32
	size   uint32
	err    error

	lit, dist table
	lengths   [maxLit + maxDist]uint8
}

// NewReader returns a reader of b, which it keeps.
func NewReader(b []byte) *Reader { return &Reader{in: b, state: (*Reader).header} }

// Read returns the next of the text. After the end of the data it is io.EOF; an error ends the text before it.
func (z *Reader) Read(p []byte) (int, error) {
	for z.r == z.w && z.err == nil {
		from := z.room()
		z.err = z.state(z)
		z.crc = crc32.Update(z.crc, crc32.IEEETable, z.buf[from:z.w])
		z.size += uint32(z.w - from)
		if z.err == nil && z.state == nil {
			z.err = z.trailer()
		}
	}
	if z.r == z.w && len(p) > 0 {
		return 0, z.err
	}
	n := copy(p, z.buf[z.r:z.w])
	z.r += n
	return n, nil
}

// room moves the window to the front where there is little space behind it, and returns where the next byte goes.
func (z *Reader) room() int {
	if z.w >= capacity-longest-8 {
		z.w = copy(z.buf[:], z.buf[z.w-window:z.w])
		z.r = z.w
	}
	return z.w
}

// header reads a member's header.
func (z *Reader) header() error {
	const (
		hasCRC = 1 << (iota + 1)
		hasExtra
		hasName
		hasComment
	)
	h := z.in[z.pos:]
	if len(h) < 10 {
		return io.ErrUnexpectedEOF
	}
	if h[0] != 0x1f || h[1] != 0x8b || h[2] != 8 {
		return ErrCorrupt
	}
	flags, at := h[3], 10
	if flags&hasExtra != 0 {
		if len(h) < at+2 {
			return io.ErrUnexpectedEOF
		}
		at += 2 + int(binary.LittleEndian.Uint16(h[at:]))
	}
	for _, f := range []byte{hasName, hasComment} {
		if flags&f == 0 {
			continue
		}
		for {
			if at >= len(h) {
				return io.ErrUnexpectedEOF
			}
			at++
			if h[at-1] == 0 {
				break
			}
		}
	}
	if flags&hasCRC != 0 {
		if len(h) < at+2 {
			return io.ErrUnexpectedEOF
		}
		if binary.LittleEndian.Uint16(h[at:]) != uint16(crc32.ChecksumIEEE(h[:at])) {
			return ErrCorrupt
		}
		at += 2
	}
	if at > len(h) {
		return io.ErrUnexpectedEOF
	}
	z.pos += at
	z.crc, z.size, z.known, z.last, z.state = 0, 0, 0, false, (*Reader).block
	return nil
}

// trailer checks a member's sum and length, and begins the next, or is io.EOF.
func (z *Reader) trailer() error {
	z.pos -= z.n / 8 // whole bytes that were read ahead
	z.bits, z.n = 0, 0
	t := z.in[min(z.pos, len(z.in)):]
	if len(t) < 8 {
		return io.ErrUnexpectedEOF
	}
	if binary.LittleEndian.Uint32(t) != z.crc || binary.LittleEndian.Uint32(t[4:]) != z.size {
		return ErrCorrupt
	}
	if z.pos += 8; z.pos == len(z.in) {
		return io.EOF
	}
	z.state = (*Reader).header
	return nil
}

// refill makes 56 bits valid at least, or all that are left.
func (z *Reader) refill() {
	if z.pos+8 <= len(z.in) {
		z.bits |= binary.LittleEndian.Uint64(z.in[z.pos:]) << z.n
		z.pos += (63 - z.n) >> 3
		z.n |= 56
		return
	}
	for z.n <= 56 && z.pos < len(z.in) {
		z.bits |= uint64(z.in[z.pos]) << z.n
		z.pos++
		z.n += 8
	}
}

// take returns the next k bits, at most 16; false where they are not there.
func (z *Reader) take(k int) (int, bool) {
	if z.n < k {
		if z.refill(); z.n < k {
			return 0, false
		}
	}
	v := int(z.bits & (1<<k - 1))
	z.bits >>= k
	z.n -= k
	return v, true
}

// block reads the head of a block.
func (z *Reader) block() error {
	if z.last {
		z.state = nil
		return nil
	}
	head, ok := z.take(3)
	if !ok {
		return io.ErrUnexpectedEOF
	}
	z.last = head&1 != 0
	switch head >> 1 {
	case 0:
		return z.openStored()
	case 1:
		z.fixed()
	case 2:
		if err := z.dynamic(); err != nil {
			return err
		}
	default:
		return ErrCorrupt
	}
	z.state = (*Reader).huffman
	return nil
}

// openStored reads the head of a block that is not compressed.
func (z *Reader) openStored() error {
	z.take(z.n & 7)
	z.pos -= z.n / 8
	z.bits, z.n = 0, 0
	h := z.in[z.pos:]
	if len(h) < 4 {
		return io.ErrUnexpectedEOF
	}
	size, check := binary.LittleEndian.Uint16(h), binary.LittleEndian.Uint16(h[2:])
	if size != ^check {
		return ErrCorrupt
	}
	z.pos += 4
	z.stored, z.state = int(size), (*Reader).copyStored
	return nil
}

func (z *Reader) copyStored() error {
	n := copy(z.buf[z.w:], z.in[z.pos:min(z.pos+z.stored, len(z.in))])
	z.pos += n
	z.w += n
	z.known += n
	z.stored -= n
	switch {
	case z.stored == 0:
		z.state = (*Reader).block
	case n == 0:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// huffman decompresses until the block ends or the buffer is nearly full.
func (z *Reader) huffman() error {
	began := z.w
	err := z.symbols()
	z.known += z.w - began
	return err
}

// symbols is the loop in which all the time goes. Its variables are its own, so that they stay in registers.
func (z *Reader) symbols() (err error) {
	const full = capacity - longest - 8
	b, n, w, reach := z.bits, z.n, z.w, z.known-z.w
	buf := &z.buf
loop:
	for w < full {
		if n < 48 { // the longest length and distance with their extra bits
			if z.pos+8 <= len(z.in) {
				b |= binary.LittleEndian.Uint64(z.in[z.pos:]) << (n & 63)
				z.pos += (63 - n) >> 3
				n |= 56
			} else {
				z.bits, z.n = b, n
				z.refill()
				b, n = z.bits, z.n
			}
		}
		e := z.lit.find(b)
		k := int(e & bitsMask)
		b >>= k & 63
		n -= k
		if e&literal != 0 && n >= 0 {
			buf[w] = byte(e >> valueShift)
			w++
			continue
		}
		switch {
		case n < 0:
			err = io.ErrUnexpectedEOF
			break loop
		case k == 0:
			err = ErrCorrupt
			break loop
		case e&special != 0:
			if e>>valueShift != endOfBlock {
				err = ErrCorrupt
			}
			z.state = (*Reader).block
			break loop
		}
		extra := int(e >> extraShift & bitsMask)
		length := int(e>>valueShift) + int(b&(1<<(extra&63)-1))
		b >>= extra & 63
		d := z.dist.find(b)
		k = int(d & bitsMask)
		b >>= k & 63
		more := int(d >> extraShift & bitsMask)
		back := int(d>>valueShift) + int(b&(1<<(more&63)-1))
		b >>= more & 63
		n -= extra + k + more
		switch {
		case n < 0:
			err = io.ErrUnexpectedEOF
			break loop
		case k == 0 || d&special != 0 || back > w+reach:
			err = ErrCorrupt
			break loop
		}
		from := w - back
		if back >= length {
			copy(buf[w:w+length], buf[from:from+length])
		} else {
			for i := range length {
				buf[w+i] = buf[from+i]
			}
		}
		w += length
	}
	z.bits, z.n, z.w = b, max(n, 0), w
	return err
}
