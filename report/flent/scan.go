package flent

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of what a reader accepts. The largest file of a day's run at flent's shortest step is well below them.
const (
	maxText   = 256 << 20 // bytes of JSON
	maxString = 1 << 20   // flent keeps the output of whole commands as strings
	maxNumber = 64
	maxBlank  = 64 << 10 // white space in one place
	maxDepth  = 64
	maxCopy   = 16 << 20
	maxRows   = 2_000_000 // raw samples
	maxCells  = 8_000_000 // values on the grid, and of quantities
	maxSeries = 10_000
)

// FormatError says where a data file is wrong.
type FormatError struct {
	Offset int64 // in the decompressed text
	Err    error
}

func (e *FormatError) Error() string { return fmt.Sprintf("flent data, byte %d: %v", e.Offset, e.Err) }
func (e *FormatError) Unwrap() error { return e.Err }

// scanner reads JSON, a token at a time, from a bounded buffer. Its first error stays and every later call is a no-op.
type scanner struct {
	r    io.Reader
	buf  []byte
	pos  int
	end  int
	base int64 // offset of buf[0]
	text []byte
	err  error
	// While copying, kept has what was taken before buf[from].
	copying bool
	kept    []byte
	from    int
}

func newScanner(r io.Reader) *scanner { return &scanner{r: r, buf: make([]byte, 64<<10)} }

func (s *scanner) offset() int64 { return s.base + int64(s.pos) }

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = &FormatError{s.offset(), fmt.Errorf(format, args...)}
	}
}

// fill makes at least one more byte available; false at the end of the text or after an error.
func (s *scanner) fill() bool {
	if s.err != nil {
		return false
	}
	if s.copying {
		s.kept = append(s.kept, s.buf[s.from:s.pos]...)
		if s.from = 0; len(s.kept) > maxCopy {
			s.fail("a value of more than %d bytes", maxCopy)
			return false
		}
	}
	if s.pos > 0 {
		s.base += int64(s.pos)
		s.end = copy(s.buf, s.buf[s.pos:s.end])
		s.pos = 0
	}
	if s.base > maxText {
		s.fail("more than %d bytes of text", maxText)
		return false
	}
	for range 100 {
		n, err := s.r.Read(s.buf[s.end:])
		s.end += n
		switch {
		case n > 0:
			return true
		case errors.Is(err, io.EOF):
			return false
		case err != nil:
			s.pos = s.end
			s.fail("%w", cutOff(err))
			return false
		}
	}
	s.fail("%w", io.ErrNoProgress)
	return false
}

// cutOff says what an early end means.
func cutOff(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the compressed data is cut off: %w", err)
	}
	return err
}

// peek returns the next byte that is not white space, without taking it; 0 at the end of the text.
func (s *scanner) peek() byte {
	for blank := 0; ; {
		for s.pos < s.end {
			c := s.buf[s.pos]
			if c > ' ' {
				return c
			}
			if c != ' ' && c != '\n' && c != '\r' && c != '\t' {
				return c
			}
			s.pos++
			if blank++; blank > maxBlank {
				s.fail("more than %d bytes of white space in one place", maxBlank)
				return 0
			}
		}
		if !s.fill() {
			return 0
		}
	}
}

// take takes the byte c, or fails.
func (s *scanner) take(c byte) bool {
	if got := s.peek(); s.err != nil {
		return false
	} else if got != c {
		s.unexpected(string(c))
		return false
	}
	s.pos++
	return true
}

func (s *scanner) unexpected(want string) {
	if c := s.peek(); s.err == nil && s.pos == s.end {
		s.fail("the text ends: want %s: %w", want, io.ErrUnexpectedEOF)
	} else {
		s.fail("%q: want %s", c, want)
	}
}

// more is for the loop over the members of an object or an array, whose first byte is taken: it takes the comma between them, or the closing
// byte, and then is false.
func (s *scanner) more(first *bool, closing byte) bool {
	c := s.peek()
	switch {
	case s.err != nil:
		return false
	case c == closing:
		s.pos++
		return false
	case *first:
		*first = false
		return true
	case c == ',':
		s.pos++
		return true
	}
	s.unexpected("a comma or " + string(closing))
	return false
}

// key takes a member's name and its colon. The name is valid until the next call of key or str.
func (s *scanner) key() []byte {
	k := s.str()
	if s.err == nil {
		s.take(':')
	}
	return k
}

// str takes a string. It is valid until the next call of key or str.
func (s *scanner) str() []byte {
	if !s.take('"') {
		return nil
	}
	for i, c := range s.buf[s.pos:s.end] { // most strings lie whole in the buffer and have no escapes
		if c == '"' {
			s.text = append(s.text[:0], s.buf[s.pos:s.pos+i]...)
			s.pos += i + 1
			return s.text
		}
		if c == '\\' || c < ' ' {
			break
		}
	}
	return s.oddString()
}

func (s *scanner) next() (byte, bool) {
	if s.pos == s.end && !s.fill() {
		if s.err == nil {
			s.fail("the text ends in a string: %w", io.ErrUnexpectedEOF)
		}
		return 0, false
	}
	s.pos++
	return s.buf[s.pos-1], true
}

func (s *scanner) oddString() []byte {
	s.text = s.text[:0]
	for len(s.text) <= maxString {
		c, ok := s.next()
		switch {
		case !ok:
			return nil
		case c == '"':
			return s.text
		case c == '\\':
			s.escape()
		case c < ' ':
			s.fail("a control character in a string")
			return nil
		default:
			s.text = append(s.text, c)
		}
	}
	s.fail("a string of more than %d bytes", maxString)
	return nil
}

func (s *scanner) escape() {
	c, _ := s.next()
	switch c {
	case '"', '\\', '/':
		s.text = append(s.text, c)
	case 'b':
		s.text = append(s.text, '\b')
	case 'f':
		s.text = append(s.text, '\f')
	case 'n':
		s.text = append(s.text, '\n')
	case 'r':
		s.text = append(s.text, '\r')
	case 't':
		s.text = append(s.text, '\t')
	case 'u':
		r := s.hex()
		if utf16.IsSurrogate(r) {
			low := rune(utf8.RuneError)
			if a, _ := s.next(); a == '\\' {
				if b, _ := s.next(); b == 'u' {
					low = s.hex()
				}
			}
			r = utf16.DecodeRune(r, low)
		}
		s.text = utf8.AppendRune(s.text, r)
	default:
		s.fail("an escape that JSON does not know")
	}
}

func (s *scanner) hex() (r rune) {
	for range 4 {
		c, _ := s.next()
		d, err := strconv.ParseUint(string(c), 16, 4)
		if err != nil {
			s.fail("an escape that is not four hexadecimal digits")
			return utf8.RuneError
		}
		r = r<<4 | rune(d)
	}
	return r
}

// A number is a decimal as it was written: mantissa x 10^exp, where it is exact.
type number struct {
	mantissa uint64
	exp      int
	neg      bool
	exact    bool   // the mantissa holds all digits
	text     []byte // as written; valid until the next token
}

// number takes a number. The words that Python writes for what is none (NaN, Infinity) are refused like every other fault.
func (s *scanner) number() (n number) {
	c := s.peek()
	if s.err != nil {
		return n
	}
	if c != '-' && (c < '0' || c > '9') {
		s.unexpected("a number")
		return n
	}
	if s.end-s.pos < maxNumber {
		if s.refill(); s.err != nil {
			return n
		}
	}
	b := s.buf[s.pos:s.end]
	i := 0
	if b[0] == '-' {
		n.neg = true
		i++
	}
	whole := i
	var m uint64 // wraps around where there are more than 19 digits, and is not used then
	for i < len(b) && b[i]-'0' <= 9 {
		m = m*10 + uint64(b[i]-'0')
		i++
	}
	digits := i - whole
	if digits == 0 || digits > 1 && b[whole] == '0' {
		s.fail("a number without digits, or with a zero before them")
		return number{}
	}
	if i < len(b) && b[i] == '.' {
		i++
		point := i
		for i < len(b) && b[i]-'0' <= 9 {
			m = m*10 + uint64(b[i]-'0')
			i++
		}
		if n.exp = point - i; n.exp == 0 {
			s.fail("a number that ends in its point")
			return number{}
		}
		digits -= n.exp
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		e, used := exponent(b[i:])
		if used == 0 {
			s.fail("a number that ends in its exponent")
			return number{}
		}
		n.exp += e
		i += used
	}
	if i >= maxNumber {
		s.fail("a number of more than %d characters", maxNumber)
		return number{}
	}
	n.mantissa, n.exact, n.text = m, digits <= 19, b[:i]
	s.pos += i
	return n
}

// exponent reads what follows an e, and says how many bytes it took.
func exponent(b []byte) (e, used int) {
	sign := 1
	if len(b) > 0 && (b[0] == '+' || b[0] == '-') {
		if b[0] == '-' {
			sign = -1
		}
		used = 1
	}
	from := used
	for ; used < len(b) && b[used]-'0' <= 9; used++ {
		e = min(e*10+int(b[used]-'0'), 100_000)
	}
	if used == from {
		return 0, 0
	}
	return sign * e, used
}

// refill moves what is left to the front of the buffer and reads on until a number fits, or the text ends.
func (s *scanner) refill() {
	for s.end-s.pos < maxNumber && s.fill() {
	}
}

// tens are the powers of ten that a float64 holds exactly.
var tens = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// float returns the nearest float64; it is finite.
func (n number) float() (float64, error) {
	if n.exact && n.mantissa < 1<<53 && n.exp >= -22 && n.exp <= 22 { // one rounding, as strconv does it
		v := float64(n.mantissa)
		if n.exp < 0 {
			v /= tens[-n.exp]
		} else {
			v *= tens[n.exp]
		}
		if n.neg {
			v = -v
		}
		return v, nil
	}
	v, err := strconv.ParseFloat(string(n.text), 64)
	if err != nil || math.IsInf(v, 0) {
		return 0, fmt.Errorf("the number %s is out of range", n.text)
	}
	return v, nil
}

// nanos returns seconds as nanoseconds, exactly where there are at most nine decimals.
func (n number) nanos() (int64, error) {
	const most = 9e18 // ns
	if n.exact && n.exp <= 0 && n.exp >= -9 && n.mantissa < most {
		v := n.mantissa
		for range 9 + n.exp {
			if v > most/10 {
				return 0, errTime
			}
			v *= 10
		}
		if n.neg {
			return -int64(v), nil
		}
		return int64(v), nil
	}
	f, err := n.float()
	if err != nil || math.Abs(f) > most/1e9 {
		return 0, errTime
	}
	return int64(math.Round(f * 1e9)), nil
}

var errTime = errors.New("a time that is outside what a clock can say")

// skip takes a value of whatever kind.
func (s *scanner) skip() { s.skipDeep(0) }

func (s *scanner) skipDeep(depth int) {
	if depth > maxDepth {
		s.fail("nested more than %d deep", maxDepth)
	}
	switch c := s.peek(); {
	case s.err != nil:
	case c == '{':
		s.pos++
		for first := true; s.more(&first, '}'); {
			s.key()
			s.skipDeep(depth + 1)
		}
	case c == '[':
		s.pos++
		for first := true; s.more(&first, ']'); {
			s.skipDeep(depth + 1)
		}
	case c == '"':
		s.str()
	case c == 't':
		s.word("true")
	case c == 'f':
		s.word("false")
	case c == 'n':
		s.word("null")
	default:
		s.number()
	}
}

// copyValue takes a value and returns its text.
func (s *scanner) copyValue() []byte {
	s.peek()
	s.copying, s.kept, s.from = true, nil, s.pos
	s.skip()
	s.copying = false
	return append(s.kept, s.buf[s.from:s.pos]...)
}

// word takes one of JSON's words.
func (s *scanner) word(w string) {
	s.peek()
	if rest := s.buf[s.pos:s.end]; len(rest) >= len(w) && string(rest[:len(w)]) == w {
		s.pos += len(w)
		return
	}
	for i := range len(w) {
		if s.pos == s.end && !s.fill() || s.buf[s.pos] != w[i] {
			s.unexpected(w)
			return
		}
		s.pos++
	}
}
