package netperf

import (
	"encoding/binary"
	"strings"
)

// Refusal is an answer that has an error number: no test. Stock programs look at the number alone; where our server refuses, the reason
// stands behind it as text, as netserver puts one behind its 403.
type Refusal struct {
	Number ErrorNumber
	Reason string // "" where the server gives none
}

// reasonMark begins a reason, since stock servers leave anything behind an error number.
const reasonMark = OurName + ": "

// MaxReason is the longest reason, in bytes.
const MaxReason = Size - header - len(reasonMark) - 1

// ParseRefusal reads the error number of an answer, 0 where it is none, from the first Size bytes of b, and the reason where our server
// gives one. The reason is a copy; it comes from outside and is to be escaped before it is printed.
func ParseRefusal(b []byte) (Refusal, error) {
	r, err := newReader("answer", b)
	if err != nil {
		return Refusal{}, err
	}
	p := Refusal{Number: ErrorNumber(binary.BigEndian.Uint32(r.b[4:]))}
	if p.Number != 0 {
		if reason, ours := strings.CutPrefix(r.text(header, Size-header), reasonMark); ours {
			p.Reason = reason
		}
	}
	return p, nil
}

// AppendTo appends the record to b. A reason that is too long is cut.
func (p Refusal) AppendTo(b []byte, t Type) []byte {
	w := newWriter(b, t, int32(p.Number))
	if p.Number != 0 && p.Reason != "" {
		w.text(header, Size-header, reasonMark+p.Reason)
	}
	return w.b
}
