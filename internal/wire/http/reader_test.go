package http

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestBodiesAreReadToTheirEndAndNoFurther(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		r          Response
		text       string
		want, rest string
		err        error
	}{
		"with a length":               {Response{Length: 5}, "hello, next", "hello", ", next", nil},
		"of nothing":                  {Response{Length: 0}, "next", "", "next", nil},
		"to the connection's end":     {Response{Length: -1}, "all of it", "all of it", "", nil},
		"in chunks":                   {Response{Length: -1, Chunked: true}, "3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: x\r\n\r\nnext", "abc0123456789", "next", nil},
		"broken off":                  {Response{Length: 9}, "hello", "hello", "", io.ErrUnexpectedEOF},
		"broken off in a chunk":       {Response{Length: -1, Chunked: true}, "9\r\nhello", "hello", "", io.ErrUnexpectedEOF},
		"broken off between chunks":   {Response{Length: -1, Chunked: true}, "5\r\nhello\r\n", "hello", "", io.ErrUnexpectedEOF},
		"broken off before a chunk":   {Response{Length: -1, Chunked: true}, "", "", "", io.ErrUnexpectedEOF},
		"broken off in the last line": {Response{Length: -1, Chunked: true}, "5\r\nhello\r\n0\r\n", "hello", "", io.ErrUnexpectedEOF},
	} {
		for _, one := range []bool{false, true} {
			var source io.Reader = strings.NewReader(tt.text)
			if one {
				source = iotest.OneByteReader(source)
			}
			from := bufio.NewReader(source)
			got, err := io.ReadAll(tt.r.Body(from))
			if string(got) != tt.want || !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Errorf("%s: read %q, %v, want %q, %v", name, got, err, tt.want, tt.err)
			}
			if rest, _ := io.ReadAll(from); err == nil && string(rest) != tt.rest {
				t.Errorf("%s: %q is left, want %q", name, rest, tt.rest)
			}
		}
	}
	for _, text := range []string{"x\r\n", "-1\r\n", "3\r\nabcd\r\n", "FFFFFFFFFFFFFFFFF\r\n"} {
		r := Response{Length: -1, Chunked: true}
		var format *FormatError
		if _, err := io.ReadAll(r.Body(bufio.NewReader(strings.NewReader(text)))); !errors.As(err, &format) {
			t.Errorf("%q: %v, want a *FormatError", text, err)
		}
	}
}

// What Body reads is what Discard counts, for every input.
func FuzzBody(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\n"), int64(-1), true)
	f.Add([]byte("abc"), int64(2), false)
	f.Add([]byte("ff\r\n"), int64(-1), true)
	f.Fuzz(func(t *testing.T, b []byte, length int64, chunked bool) {
		r := Response{Length: max(-1, length), Chunked: chunked}
		if chunked {
			r.Length = -1
		}
		first, second := bufio.NewReader(strings.NewReader(string(b))), bufio.NewReader(strings.NewReader(string(b)))
		got, err := io.ReadAll(r.Body(first))
		want, wantErr := r.Discard(second, 1<<62)
		if int64(len(got)) != want || (err == nil) != (wantErr == nil) {
			t.Errorf("%q as %+v: %d bytes, %v, and Discard has %d, %v", b, r, len(got), err, want, wantErr)
		}
	})
}
