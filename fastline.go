package bufferbloat

import (
	"bytes"
	"time"
)

// lineReader reads the two kinds of entry that make up a recording's bulk, in the one form in which this program writes them, some ten times faster
// than encoding/json. Whatever it does not know, encoding/json has to judge. Its columns serve again for the next line.
type lineReader struct {
	samples  sampleColumns
	points   pointColumns
	up, down []time.Duration
	b        []byte // what is left of the line
	bad      bool
}

// read returns the entry of a line, valid until the next call, or false.
func (l *lineReader) read(line []byte) (entry, bool) {
	l.b, l.bad = line, false
	switch {
	case bytes.HasPrefix(line, []byte(`{"samples":`)):
		return entry{Samples: l.readSamples()}, !l.bad
	case bytes.HasPrefix(line, []byte(`{"points":`)):
		return entry{Points: l.readPoints()}, !l.bad
	}
	return entry{}, false
}

func (l *lineReader) readSamples() *sampleColumns {
	c := &l.samples
	l.word(`{"samples":{"series":"`)
	c.Series = l.name(c.Series)
	l.word(`,"seq":`)
	c.Seq = numbers(l, c.Seq)
	l.word(`,"due_ns":`)
	c.Due = numbers(l, c.Due)
	l.word(`,"sent_ns":`)
	c.Sent = numbers(l, c.Sent)
	l.word(`,"outcome":`)
	c.Outcome = numbers(l, c.Outcome)
	l.word(`,"rtt_ns":`)
	c.RTT = numbers(l, c.RTT)
	l.word(`,"stamp":`)
	c.Stamp = numbers(l, c.Stamp)
	c.Up, c.Down = c.Up[:0], c.Down[:0]
	if bytes.HasPrefix(l.b, []byte(`,"up_ns":`)) {
		l.word(`,"up_ns":`)
		c.Up, l.up = l.maybe(c.Up, l.up)
		l.word(`,"down_ns":`)
		c.Down, l.down = l.maybe(c.Down, l.down)
	}
	l.word(`}}`)
	l.bad = l.bad || len(l.b) > 0
	return c
}

func (l *lineReader) readPoints() *pointColumns {
	c := &l.points
	l.word(`{"points":{"flow":"`)
	c.Flow = l.name(c.Flow)
	l.word(`,"at_ns":`)
	c.At = numbers(l, c.At)
	l.word(`,"bytes":`)
	c.Bytes = numbers(l, c.Bytes)
	l.word(`}}`)
	l.bad = l.bad || len(l.b) > 0
	return c
}

func (l *lineReader) word(w string) {
	if len(l.b) < len(w) || string(l.b[:len(w)]) != w {
		l.bad = true
		return
	}
	l.b = l.b[len(w):]
}

// name takes a string up to its quote. One with escapes, or with bytes that are not plain ASCII, is none of its business.
func (l *lineReader) name(last string) string {
	i := bytes.IndexByte(l.b, '"')
	if l.bad || i < 0 {
		l.bad = true
		return ""
	}
	name := l.b[:i]
	for _, c := range name {
		if c < ' ' || c > '~' || c == '\\' {
			l.bad = true
			return ""
		}
	}
	l.b = l.b[i+1:]
	if string(name) == last {
		return last
	}
	return string(name)
}

// number takes a whole number of at most 18 digits.
func (l *lineReader) number() int64 {
	b := l.b
	neg := len(b) > 0 && b[0] == '-'
	i := 0
	if neg {
		i = 1
	}
	from := i
	var v int64
	for i < len(b) && b[i]-'0' <= 9 && i-from < 19 {
		v = v*10 + int64(b[i]-'0')
		i++
	}
	if n := i - from; n == 0 || n > 18 || n > 1 && b[from] == '0' {
		l.bad = true
		return 0
	}
	l.b = b[i:]
	if neg {
		return -v
	}
	return v
}

// numbers takes an array of whole numbers into the space of out.
func numbers[T ~int64 | ~uint64 | ~int](l *lineReader, out []T) []T {
	out = out[:0]
	l.word("[")
	for !l.bad {
		v := l.number()
		if out = append(out, T(v)); v < 0 && T(v) > 0 {
			l.bad = true // unsigned
		}
		if len(l.b) == 0 || l.b[0] != ',' {
			break
		}
		l.b = l.b[1:]
	}
	l.word("]")
	return out
}

// maybe takes an array of whole numbers and nulls. The pointers are into values.
func (l *lineReader) maybe(out []*time.Duration, values []time.Duration) ([]*time.Duration, []time.Duration) {
	if need := len(l.samples.Seq); cap(values) < need { // so that it does not move under the pointers
		values = make([]time.Duration, 0, need)
	}
	values = values[:0]
	l.word("[")
	for !l.bad && len(values) < cap(values) {
		if bytes.HasPrefix(l.b, []byte("null")) {
			l.b = l.b[len("null"):]
			out = append(out, nil)
		} else {
			values = append(values, time.Duration(l.number()))
			out = append(out, &values[len(values)-1])
		}
		if len(l.b) == 0 || l.b[0] != ',' {
			break
		}
		l.b = l.b[1:]
	}
	l.word("]")
	return out, values
}
