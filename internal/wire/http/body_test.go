package http

import (
	"bufio"
	"errors"
	"io"
	nethttp "net/http"
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

// Where net/http takes a response as well, it has the same status, the same place elsewhere, the same body and the same end. That does not hold for chunks in
// HTTP/1.0, which may not be, and a body to the connection's end, of which Close says nothing here.
func FuzzAgainstNetHTTP(f *testing.F) {
	for _, text := range []string{"200 OK\r\nContent-Length: 5\r\n\r\nhello, next", "200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: x\r\n\r\nnext",
		"301 Moved\r\nLocation: /x\r\nConnection: keep-alive, close\r\nContent-Length: 0\r\n\r\n", "200 OK\n\nto the end", "204 None\r\nContent-Length: 3\r\n\r\n"} {
		f.Add("HTTP/1.1 " + text)
		f.Add("HTTP/1.0 " + text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		theirs, err := nethttp.ReadResponse(bufio.NewReader(strings.NewReader(text)), &nethttp.Request{Method: "GET"})
		if err != nil || theirs.StatusCode < 200 {
			return
		}
		defer theirs.Body.Close()
		from := bufio.NewReader(strings.NewReader(text))
		ours, err := ReadResponse(from)
		if err != nil || ours.Chunked && theirs.ProtoMinor == 0 {
			return
		}
		if ours.Length < 0 && !ours.Chunked {
			ours.Close = theirs.Close
		}
		if ours.Status != theirs.StatusCode || ours.Location != theirs.Header.Get("Location") || ours.Chunked != (len(theirs.TransferEncoding) > 0) || ours.Close != theirs.Close {
			t.Errorf("%q is %+v, and for net/http %+v", text, ours, theirs)
		}
		want, theirErr := io.ReadAll(theirs.Body)
		got, ourErr := io.ReadAll(ours.Body(from))
		if ourErr == nil && theirErr == nil && string(got) != string(want) {
			t.Errorf("%q has the body %q, and for net/http %q", text, got, want)
		}
	})
}
