package icmp

import (
	"encoding/binary"
	"fmt"

	"bufferbloat/internal/host"
)

// The layout of an echo message (RFC 792, RFC 4443 4.1): type, code, checksum, identifier, sequence number, data. The data is ours:
// a token of 8 bytes, the full sequence number in 8, and a filler that follows from the token.
const (
	headerSize = 8
	tokenAt    = headerSize
	seqAt      = tokenAt + 8
	fillerAt   = seqAt + 8
	// MessageSize is the size of a probe from the ICMP header on. It is less than ping's 64 because a probe takes from the link what it
	// measures: ten of these a second are 0.6 % of 1 Mbit/s.
	MessageSize = 40
)

const (
	echoReply4, echoRequest4 = 0, 8
	echoRequest6, echoReply6 = 128, 129
)

// message is an echo request or reply of ours. Its checksum is the stack's business, on the way out and on the way in.
type message struct {
	kind  uint8 // ICMP type
	id    uint16
	seq   uint64
	token uint64
}

// AppendTo appends the message to b, MessageSize bytes with a checksum of zero.
func (m message) AppendTo(b []byte) []byte {
	b = append(b, m.kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, m.id)
	b = binary.BigEndian.AppendUint16(b, uint16(m.seq))
	b = binary.BigEndian.AppendUint64(b, m.token)
	b = binary.BigEndian.AppendUint64(b, m.seq)
	for i := range MessageSize - fillerAt {
		b = append(b, fill(m.token, i))
	}
	return b
}

// fill is byte i of the filler. It depends on the token, so that a message is recognised as ours where one of them was altered.
func fill(token uint64, i int) byte { return byte(token>>(8*(i%8))) ^ byte(i+1)*37 }

// A parseError says what is wrong with an ICMP message, and at which of its bytes.
type parseError struct {
	offset int
	reason string
}

func (e *parseError) Error() string {
	return fmt.Sprintf("ICMP message, byte %d: %s", e.offset, e.reason)
}

var (
	errShort    = &parseError{0, "too short for an echo header"}
	errCode     = &parseError{1, "the code is not 0"}
	errSize     = &parseError{headerSize, "not of the size that was sent"}
	errSequence = &parseError{6, "the sequence numbers in header and data differ"}
	errFiller   = &parseError{fillerAt, "the filler is not what belongs to the token"}
)

// parse reads a message that AppendTo could have written, whatever its checksum. Its errors are *parseError.
func parse(b []byte) (message, error) {
	if len(b) < headerSize {
		return message{}, errShort
	}
	if b[1] != 0 {
		return message{}, errCode
	}
	if len(b) != MessageSize {
		return message{}, errSize
	}
	m := message{kind: b[0], id: binary.BigEndian.Uint16(b[4:]), token: binary.BigEndian.Uint64(b[tokenAt:]),
		seq: binary.BigEndian.Uint64(b[seqAt:])}
	if binary.BigEndian.Uint16(b[6:]) != uint16(m.seq) {
		return message{}, errSequence
	}
	if !fillerMatches(b, m.token) {
		return message{}, errFiller
	}
	return m, nil
}

// fillerMatches reports whether b has as much filler as is hard to hit by chance, and all of it belongs to the token.
func fillerMatches(b []byte, token uint64) bool {
	if len(b) < fillerAt+8 {
		return false
	}
	for i, c := range b[fillerAt:min(len(b), MessageSize)] {
		if c != fill(token, i) {
			return false
		}
	}
	return true
}

// looksLike reports whether a message that parse refuses, or that carries another token, was ours before it was altered: it has
// the token or the filler.
func looksLike(b []byte, token uint64) bool {
	return len(b) >= seqAt && binary.BigEndian.Uint64(b[tokenAt:]) == token || fillerMatches(b, token)
}

// types returns the ICMP types of an echo request and its reply.
func types(f host.Family) (request, reply uint8) {
	if f == host.IPv6 {
		return echoRequest6, echoReply6
	}
	return echoRequest4, echoReply4
}
