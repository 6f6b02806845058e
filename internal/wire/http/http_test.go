package http

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
)

func reader(s string) *bufio.Reader { return bufio.NewReader(strings.NewReader(s)) }

func TestResponses(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want Response
		body int64
		err  string
	}{
		"with a length":    {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", Response{Status: 200, Reason: "OK", Length: 5}, 5, ""},
		"in chunks":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n", Response{Status: 200, Reason: "OK", Length: -1, Chunked: true}, 13, ""},
		"until the end":    {"HTTP/1.0 200 Fine\nServer: x\n\nhello", Response{Status: 200, Reason: "Fine", Length: -1, Close: true}, 5, ""},
		"kept open":        {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n", Response{Status: 200, Reason: "OK"}, 0, ""},
		"after an interim": {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx", Response{Status: 404, Reason: "Not Found", Length: 1, Close: true}, 1, ""},
		"elsewhere":        {"HTTP/1.1 301 Moved\r\nLocation: https://x/\r\nContent-Length: 0\r\n\r\n", Response{Status: 301, Reason: "Moved", Location: "https://x/"}, 0, ""},
		"without a body":   {"HTTP/1.1 204 No Content\r\n\r\n", Response{Status: 204, Reason: "No Content"}, 0, ""},
		"equal lengths":    {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", Response{Status: 200, Reason: "OK", Length: 1}, 1, ""},

		"cut off in the body":   {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", Response{Status: 200, Reason: "OK", Length: 5}, 4, "ended 1 bytes before"},
		"cut off in a chunk":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhell", Response{Status: 200, Reason: "OK", Length: -1, Chunked: true}, 4, "ended 1 bytes before"},
		"no last chunk":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", Response{Status: 200, Reason: "OK", Length: -1, Chunked: true}, 1, "unexpected EOF"},
		"a chunk that is long":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n", Response{Status: 200, Reason: "OK", Length: -1, Chunked: true}, 1, "longer than its size"},
		"no chunk size":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nxy\r\n", Response{Status: 200, Reason: "OK", Length: -1, Chunked: true}, 0, "no chunk size"},
		"an object too long":    {"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n", Response{Status: 200, Reason: "OK", Length: 101}, 0, "more than 100 bytes"},
		"chunks too long":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + strings.Repeat("x", 101), Response{Status: 200, Reason: "OK", Length: -1, Chunked: true}, 101, "more than 100 bytes"},
		"without end, too long": {"HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 200), Response{Status: 200, Reason: "OK", Length: -1}, 101, "more than 100 bytes"},
	} {
		r := reader(c.text)
		got, err := ReadResponse(r)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
			continue
		}
		n, err := got.Discard(r, 100)
		if n != c.body || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: body of %d bytes, %v; want %d, %q", name, n, err, c.body, c.err)
		}
	}
}

func TestWhatIsNoResponse(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing":              {"", "EOF"},
		"half a line":          {"HTTP/1.1 2", "unexpected EOF"},
		"no empty line":        {"HTTP/1.1 200 OK\r\nServer: x\r\n", "unexpected EOF"},
		"another protocol":     {"SSH-2.0-x\r\n", "line 1: no status line"},
		"HTTP/2":               {"HTTP/2 200\r\n\r\n", "line 1: no status line"},
		"a status too long":    {"HTTP/1.1 0200 OK\r\n\r\n", "no status line"},
		"two lengths":          {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "line 3: no content length"},
		"a length with a sign": {"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", "no content length"},
		"an empty length":      {"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", "no content length"},
		"a folded field":       {"HTTP/1.1 200 OK\r\nX: y\r\n z: 1\r\n\r\n", "line 3: no header field"},
		"another coding":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "transfer coding"},
		"a line too long":      {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", MaxLine) + "\r\n\r\n", "longer than"},
		"too many fields":      {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", MaxFields+1) + "\r\n", "more than 100 header fields"},
		"a carriage return":    {"HTTP/1.1 200 OK\rX\r\n\r\n", "control character"},
		"switching":            {"HTTP/1.1 101 Switching\r\n\r\n", "another protocol"},
		"interim without end":  {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20), "without end"},
	} {
		if got, err := ReadResponse(reader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want %q", name, got, err, c.want)
		}
	}
}

func TestRequestsReadAsTheyWereWritten(t *testing.T) {
	for _, want := range []Request{
		{Method: "GET", Target: "/", Host: "lab"},
		{Method: "GET", Target: "/bytes/1000?x=%20", Host: "[2001:db8::2]:8080", Agent: "bloat 1 (test)", Close: true},
		{Method: "POST", Target: "/", Host: "lab:80", Length: 7},
		{Method: "POST", Target: "/", Host: "lab:80"},
	} {
		if got, err := ReadRequest(reader(string(want.AppendTo(nil)))); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if _, err := ReadRequest(reader("")); !errors.Is(err, io.EOF) {
		t.Errorf("an ended connection: %v, want io.EOF", err)
	}
	for _, text := range []string{"GET /\r\n\r\n", "GET / HTTP/2\r\n\r\n", "G T / HTTP/1.1\r\n\r\n", "GET http://x/ HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nX\r\n\r\n",
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "GET / HTTP/1.1\r\nHost: x"} {
		if got, err := ReadRequest(reader(text)); err == nil {
			t.Errorf("%q reads as %+v", text, got)
		}
	}
	for _, target := range []string{"", "x", "/a b", "/a\r\nX: y", "/ä", "/" + strings.Repeat("x", MaxLine)} {
		if CheckTarget(target) == nil {
			t.Errorf("target %.20q is taken", target)
		}
	}
}

// A response that reads, written out, reads the same; and its body is within the limit.
func FuzzReadResponse(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
	f.Add("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	f.Add("HTTP/1.0 301 Moved\nLocation: x\nConnection: keep-alive\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := reader(text)
		first, err := ReadResponse(r)
		if err != nil {
			return
		}
		const limit = 1000
		if n, err := first.Discard(r, limit); n > limit+1 || n > limit && err == nil {
			t.Errorf("%q has a body of %d bytes, %v", text, n, err)
		}
		again, err := ReadResponse(reader(string(first.AppendTo(nil, ""))))
		if first.Status == 204 || first.Status == 304 {
			return
		}
		if err != nil || again != first {
			t.Errorf("%q reads as %+v, and that as %+v, %v", text, first, again, err)
		}
	})
}

// A request that reads, written out, reads the same.
func FuzzReadRequest(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	f.Add("POST /x HTTP/1.0\nContent-Length: 3\nUser-Agent: y\nConnection: close\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		first, err := ReadRequest(reader(text))
		if err != nil {
			return
		}
		if again, err := ReadRequest(reader(string(first.AppendTo(nil)))); err != nil || again != first {
			t.Errorf("%q reads as %+v, and that as %+v, %v", text, first, again, err)
		}
	})
}
