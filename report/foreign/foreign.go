// Package foreign reads what other measurement programs printed, and turns it into the same results as our own recordings.
//
// Sources are speedtest.sh and its family (our own speedtest text too), ping of iputils, BusyBox, BSD and inetutils, fping, and the JSON of irtt and
// iperf3. What a source does not tell is absent with its reason; a line that cannot be read is an error with its place, and never skipped in silence.
package foreign

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"bufferbloat"
	"bufferbloat/report"
)

// ErrUnknown says that a text is none of the kinds that this package reads.
var ErrUnknown = errors.New("not a result that can be read here: want the output of speedtest.sh and its family, ping or fping, or the JSON of irtt or iperf3")

// Bounds of what is read.
const (
	maxBytes   = 64 << 20  // after decompression
	maxSamples = 1_000_000 // of a series, those that only a closing line tells of among them
	maxRTT     = time.Hour
)

// Error is a place of a text that cannot be read.
type Error struct {
	Line   int    // from 1; 0 where lines mean nothing (JSON)
	Offset int64  // in bytes, from 0
	Text   string // what stands there, "" where nothing is to be shown
	Why    string
}

// Error says where and why, with the text quoted and escaped.
func (e *Error) Error() string {
	place := fmt.Sprintf("byte %d", e.Offset)
	if e.Line > 0 {
		place = fmt.Sprintf("line %d (byte %d)", e.Line, e.Offset)
	}
	if e.Text == "" {
		return place + ": " + e.Why
	}
	const long = 160
	text, dots := e.Text, ""
	if len(text) > long {
		text, dots = text[:long], "..."
	}
	return place + ": " + strconv.QuoteToASCII(text) + dots + ": " + e.Why
}

// Read reads one result. The error is ErrUnknown where the text is of no known kind, an *Error where a place of it can't be read.
func Read(r io.Reader) (*report.Result, error) {
	result, _, err := ReadRaw(r)
	return result, err
}

// ReadRaw is Read that also returns the samples as a recording for Result.WriteNDJSON, nil where the source kept none. Its times mean nothing
// where the result's phases are Untimed.
func ReadRaw(r io.Reader) (*report.Result, *bufferbloat.Recording, error) {
	b, err := readAll(r)
	if err != nil {
		return nil, nil, err
	}
	if t := bytes.TrimLeft(b, " \t\r\n"); len(t) > 0 && t[0] == '{' {
		return readJSON(b)
	}
	lines := split(b)
	for _, k := range []struct {
		is   func(string) bool
		read func([]line) (*report.Result, *bufferbloat.Recording, error)
	}{{isSpeedtest, readSpeedtest}, {isFping, readFping}, {isPing, readPing}} {
		if slices.ContainsFunc(lines, func(l line) bool { return k.is(l.text) }) {
			return k.read(lines)
		}
	}
	return nil, nil, ErrUnknown
}

// readAll reads all of r, decompressed where it is gzip, without a byte order mark.
func readAll(r io.Reader) ([]byte, error) {
	read := func(r io.Reader) ([]byte, error) {
		b, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
		if err == nil && len(b) > maxBytes {
			err = fmt.Errorf("more than %d MiB of text", maxBytes>>20)
		}
		return b, err
	}
	b, err := read(r)
	if err == nil && bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
			b, err = read(z)
		}
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")), nil
}

// line is one line of a text with its place.
type line struct {
	n      int
	offset int64
	text   string // without the line's end, and without the marks of a quoted letter
}

// bad is an error at this line.
func (l line) bad(format string, args ...any) error {
	return &Error{Line: l.n, Offset: l.offset, Text: l.text, Why: fmt.Sprintf(format, args...)}
}

func split(b []byte) []line {
	var out []line
	var at int64
	for t := range strings.Lines(string(b)) {
		text := strings.TrimRight(t, "\r\n")
		for strings.HasPrefix(text, ">") {
			text = strings.TrimPrefix(text[1:], " ")
		}
		out = append(out, line{len(out) + 1, at, text})
		at += int64(len(t))
	}
	return out
}

// number reads a decimal number, with a point or, as some locales print it, a comma.
func number(s string) (float64, bool) {
	s = strings.Replace(s, ",", ".", 1)
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && !math.IsInf(v, 0)
}

// msec reads a time in milliseconds, and the smallest difference that its digits show.
func msec(s string) (d, step time.Duration, ok bool) {
	v, ok := number(s)
	if !ok || v*1e6 > float64(maxRTT) {
		return 0, 0, false
	}
	step = time.Millisecond
	if i := strings.IndexAny(s, ".,"); i >= 0 {
		for range min(len(s)-i-1, 6) {
			step /= 10
		}
	}
	return time.Duration(math.Round(v * 1e6)), step, true
}

// count reads a whole number of at most maxSamples.
func count(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n <= maxSamples
}

// clip returns text that goes into a result: a name or a message of the source, shortened.
func clip(s string) string {
	const long = 253
	if len(s) <= long {
		return s
	}
	cut := long
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// finding is short for a finding of the run.
func finding(code string, severity bufferbloat.Severity, format string, args ...any) bufferbloat.Finding {
	return bufferbloat.Finding{Code: code, Severity: severity, Text: fmt.Sprintf(format, args...)}
}

// many is "1 error reply", "2 error replies".
func many(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + more
}
