// Package http is as much of HTTP/1.1 (RFC 9110, RFC 9112) as it takes to fetch an object over a connection that the caller opened, and to serve one.
//
// The client and the server of net/http open sockets, keep goroutines and read the clock by themselves, which a run in virtual time, and a measurement that
// stamps each step, can't have. Its ReadResponse and ReadRequest do not, but they take header fields without a bound, and fold lines, and their errors have
// no type and no place; a fuzz test holds this package against them.
package http

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Limits of what is read from a peer.
const (
	MaxLine    = 8 << 10 // bytes of a line, its end included
	MaxFields  = 100     // header fields
	maxInterim = 16      // 1xx responses before the final one
)

// A FormatError says what is wrong with a message, and in which of its lines, counted from 1; a chunked body counts from its first line.
type FormatError struct {
	Line int
	What string
}

func (e *FormatError) Error() string { return fmt.Sprintf("HTTP message, line %d: %s", e.Line, e.What) }

// Request is the head of a request.
type Request struct {
	Method string // "GET"
	Target string // path and query: "/bytes/1000"
	Host   string
	Agent  string // what the client says it is; "" for nothing
	Close  bool   // the connection ends after the response
	Length int64  // of the body that follows; 0 for none
}

// AppendTo appends the request's head to b. Its fields must have no line breaks and no spaces but for Agent, as CheckTarget and a host's name ensure.
func (r *Request) AppendTo(b []byte) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	if r.Agent != "" {
		b = append(b, "\r\nUser-Agent: "...)
		b = append(b, r.Agent...)
	}
	b = append(b, "\r\nAccept: */*\r\nAccept-Encoding: identity"...)
	if r.Length > 0 || r.Method == "POST" || r.Method == "PUT" {
		b = append(b, "\r\nContent-Length: "...)
		b = strconv.AppendInt(b, r.Length, 10)
	}
	if r.Close {
		b = append(b, "\r\nConnection: close"...)
	}
	return append(b, "\r\n\r\n"...)
}

// CheckTarget returns an error where target can't stand in a request.
func CheckTarget(target string) error {
	if !strings.HasPrefix(target, "/") || len(target) > MaxLine/2 {
		return fmt.Errorf("HTTP path %.40q: want one that begins with / and has at most %d bytes", target, MaxLine/2)
	}
	for i := range len(target) {
		if c := target[i]; c <= ' ' || c >= 0x7f {
			return fmt.Errorf("HTTP path %.40q has a byte at %d that must be escaped", target, i)
		}
	}
	return nil
}

// ReadRequest reads a request's head. An error that wraps io.EOF says that there is none, and io.ErrUnexpectedEOF that it breaks off. A body
// in chunks is a *FormatError.
func ReadRequest(r *bufio.Reader) (Request, error) {
	l := lines{r: r}
	first, err := l.next()
	if err != nil {
		return Request{}, err
	}
	var q Request
	method, rest, _ := strings.Cut(first, " ")
	target, version, _ := strings.Cut(rest, " ")
	if !isToken(method) || CheckTarget(target) != nil || version != "HTTP/1.1" && version != "HTTP/1.0" {
		return Request{}, l.bad("no request line")
	}
	q.Method, q.Target, q.Close = method, target, version == "HTTP/1.0"
	f := fields{length: -1}
	if err := l.fields(&f); err != nil {
		return Request{}, noEnd(err)
	}
	if f.chunked {
		return Request{}, l.bad("a body in chunks")
	}
	q.Host, q.Agent, q.Length = f.host, f.agent, max(f.length, 0)
	q.Close = q.Close && !f.keepAlive || f.close
	return q, nil
}

// Response is the head of a final response.
type Response struct {
	Status   int
	Reason   string
	Location string // where a redirection leads; "" where it does not say
	Length   int64  // of the body: -1 where its end shows only when it is there
	Chunked  bool
	Close    bool // the connection ends after it
}

// AppendTo appends the response's head to b, with the content type where that is not "".
func (r *Response) AppendTo(b []byte, contentType string) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(r.Status), 10)
	b = append(b, ' ')
	b = append(b, r.Reason...)
	if contentType != "" {
		b = append(b, "\r\nContent-Type: "...)
		b = append(b, contentType...)
	}
	if r.Location != "" {
		b = append(b, "\r\nLocation: "...)
		b = append(b, r.Location...)
	}
	if r.Chunked {
		b = append(b, "\r\nTransfer-Encoding: chunked"...)
	} else if r.Length >= 0 {
		b = append(b, "\r\nContent-Length: "...)
		b = strconv.AppendInt(b, r.Length, 10)
	}
	if r.Close {
		b = append(b, "\r\nConnection: close"...)
	}
	return append(b, "\r\nCache-Control: no-store\r\n\r\n"...)
}

// ReadResponse reads the head of the final response to a GET or POST; interim ones (1xx) are passed over. An error that wraps io.EOF or
// io.ErrUnexpectedEOF says that the connection ended before.
func ReadResponse(r *bufio.Reader) (Response, error) {
	l := lines{r: r}
	for range maxInterim {
		p, err := l.response()
		if err != nil || p.Status >= 200 {
			return p, err
		}
		if p.Status == 101 {
			return p, l.bad("another protocol, which was not asked for")
		}
	}
	return Response{}, l.bad("interim responses without end")
}

func (l *lines) response() (Response, error) {
	first, err := l.next()
	if err != nil {
		return Response{}, err
	}
	version, rest, _ := strings.Cut(first, " ")
	digits, reason, _ := strings.Cut(rest, " ")
	status, err := strconv.ParseUint(digits, 10, 16)
	if version != "HTTP/1.1" && version != "HTTP/1.0" || err != nil || len(digits) != 3 || status < 100 || status > 599 {
		return Response{}, l.bad("no status line of HTTP/1.1")
	}
	f := fields{length: -1}
	if err := l.fields(&f); err != nil {
		return Response{}, noEnd(err)
	}
	p := Response{Status: int(status), Reason: reason, Location: f.location, Length: f.length, Chunked: f.chunked, Close: f.close || version == "HTTP/1.0" && !f.keepAlive}
	switch {
	case p.Status < 200 || p.Status == 204 || p.Status == 304:
		p.Length, p.Chunked = 0, false
	case p.Chunked:
		p.Length = -1
	}
	return p, nil
}

// fields are the header fields that matter here.
type fields struct {
	length           int64 // -1 for none
	chunked          bool
	close, keepAlive bool
	host, agent      string
	location         string
}

// fields reads header fields until the empty line.
func (l *lines) fields(f *fields) error {
	for range MaxFields {
		line, err := l.next()
		if err != nil {
			return err
		}
		if line == "" {
			return nil
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return l.bad("no header field")
		}
		if err := l.field(f, name, strings.Trim(value, " \t")); err != nil {
			return err
		}
	}
	return l.bad(fmt.Sprintf("more than %d header fields", MaxFields))
}

func (l *lines) field(f *fields, name, value string) error {
	switch strings.ToLower(name) {
	case "content-length":
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil || value[0] == '+' || f.length >= 0 && f.length != int64(n) {
			return l.bad("no content length, or a second one")
		}
		f.length = int64(n)
	case "transfer-encoding":
		if !strings.EqualFold(value, "chunked") || f.chunked {
			return l.bad("a transfer coding other than chunked")
		}
		f.chunked = true
	case "connection":
		for word := range strings.SplitSeq(value, ",") {
			word = strings.Trim(word, " \t")
			f.close = f.close || strings.EqualFold(word, "close")
			f.keepAlive = f.keepAlive || strings.EqualFold(word, "keep-alive")
		}
	case "host":
		f.host = value
	case "user-agent":
		f.agent = value
	case "location":
		f.location = value
	}
	return nil
}

// isToken reports whether s is a token (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

// lines reads a message's lines.
type lines struct {
	r    *bufio.Reader
	read int
}

func (l *lines) bad(what string) error { return &FormatError{l.read, what} }

// next returns the next line without its end. It is io.EOF where nothing is left, io.ErrUnexpectedEOF in the middle of a line.
func (l *lines) next() (string, error) {
	var whole []byte
	for {
		part, err := l.r.ReadSlice('\n')
		whole = append(whole, part...)
		switch {
		case len(whole) > MaxLine:
			l.read++
			return "", l.bad(fmt.Sprintf("longer than %d bytes", MaxLine))
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(whole) > 0:
			return "", io.ErrUnexpectedEOF
		case err != nil:
			return "", err
		}
		l.read++
		line := strings.TrimSuffix(strings.TrimSuffix(string(whole), "\n"), "\r")
		if strings.ContainsAny(line, "\x00\r") {
			return "", l.bad("a control character")
		}
		return line, nil
	}
}

// noEnd says that a message that had begun has no end.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
