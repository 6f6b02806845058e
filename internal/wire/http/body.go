package http

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Body returns a reader of the payload of r's body: without chunk sizes where it is chunked, and up to the connection's end where nothing else ends it. It
// reads no byte beyond the body, gives io.EOF at its end, and io.ErrUnexpectedEOF where the connection ends before.
func (r *Response) Body(from *bufio.Reader) io.Reader {
	return &body{from: from, left: r.Length, chunked: r.Chunked}
}

// Discard reads the body of a response and returns its length. It fails where the body is longer than limit, or where the connection ends before the
// body does, which wraps io.ErrUnexpectedEOF.
func (r *Response) Discard(from *bufio.Reader, limit int64) (int64, error) {
	if r.Length > limit {
		return 0, tooLong(limit)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(r.Body(from), limit+1))
	if err == nil && n > limit {
		err = tooLong(limit)
	}
	return n, err
}

func tooLong(limit int64) error { return fmt.Errorf("the object has more than %d bytes", limit) }

// body reads a body. left is what remains of it, or of a chunk; -1 is to the connection's end, and for chunks the state before the first.
type body struct {
	from    *bufio.Reader
	left    int64
	chunked bool
	within  bool // a chunk has begun, whose end is to be read
	over    bool
}

func (b *body) Read(p []byte) (int, error) {
	if b.chunked && !b.over && b.left <= 0 {
		if err := b.nextChunk(); err != nil {
			return 0, err
		}
	}
	switch {
	case b.over || b.left == 0:
		return 0, io.EOF
	case b.left > 0:
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err := b.from.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
		if err == io.EOF {
			err = fmt.Errorf("the connection ended %d bytes before the object: %w", b.left, io.ErrUnexpectedEOF)
		}
	}
	return n, err
}

// nextChunk reads a chunk's head, and the end of the one before; after the last one, the trailer.
func (b *body) nextChunk() error {
	l := lines{r: b.from}
	if b.within {
		line, err := l.next()
		if err != nil {
			return noEnd(err)
		}
		if line != "" {
			return l.bad("a chunk longer than its size")
		}
	}
	line, err := l.next()
	if err != nil {
		return noEnd(err)
	}
	digits, _, _ := strings.Cut(line, ";")
	size, err := strconv.ParseUint(strings.Trim(digits, " \t"), 16, 63)
	if err != nil {
		return l.bad("no chunk size")
	}
	b.left, b.within = int64(size), true
	if size == 0 {
		b.over = true
		return noEnd(l.fields(&fields{length: -1}))
	}
	return nil
}
