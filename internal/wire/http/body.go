package http

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Discard reads the body of a response and returns its length. It fails where the body is longer than limit, or where the connection ends before the
// body does, which wraps io.ErrUnexpectedEOF.
func (r *Response) Discard(from *bufio.Reader, limit int64) (int64, error) {
	switch {
	case r.Chunked:
		return discardChunks(from, limit)
	case r.Length > limit:
		return 0, tooLong(limit)
	case r.Length >= 0:
		return discard(from, r.Length)
	}
	n, err := io.Copy(io.Discard, io.LimitReader(from, limit+1))
	if err == nil && n > limit {
		err = tooLong(limit)
	}
	return n, err
}

func tooLong(limit int64) error { return fmt.Errorf("the object has more than %d bytes", limit) }

func discard(from *bufio.Reader, n int64) (int64, error) {
	got, err := io.CopyN(io.Discard, from, n)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the connection ended after %d of %d bytes: %w", got, n, io.ErrUnexpectedEOF)
	}
	return got, err
}

// discardChunks reads a body in chunks with its trailer (RFC 9112, 7.1).
func discardChunks(from *bufio.Reader, limit int64) (total int64, err error) {
	l := lines{r: from}
	for {
		line, err := l.next()
		if err != nil {
			return total, noEnd(err)
		}
		digits, _, _ := strings.Cut(line, ";")
		size, err := strconv.ParseUint(strings.Trim(digits, " \t"), 16, 63)
		switch {
		case err != nil:
			return total, l.bad("no chunk size")
		case size == 0:
			return total, noEnd(l.fields(&fields{length: -1}))
		case int64(size) > limit-total:
			return total, tooLong(limit)
		}
		n, err := discard(from, int64(size))
		total += n
		if err != nil {
			return total, err
		}
		if line, err := l.next(); err != nil {
			return total, noEnd(err)
		} else if line != "" {
			return total, l.bad("a chunk longer than its size")
		}
	}
}
