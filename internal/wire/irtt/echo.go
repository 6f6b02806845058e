package irtt

import (
	"encoding/binary"
	"math/bits"
)

// Fields is the set of optional fields in an echo. Nothing in an echo tells which it has: it follows from the parameters of the open
// reply. The bits are in the order of the fields in the datagram.
type Fields uint8

// The fields.
const (
	HasCount Fields = 1 << iota
	HasWindow
	receiveWall
	receiveMono
	midpointWall
	midpointMono
	sendWall
	sendMono
)

// Size returns the number of bytes of these fields.
func (f Fields) Size() int {
	const countSize, otherSize = 4, 8
	n := otherSize * bits.OnesCount8(uint8(f&^HasCount))
	if f&HasCount != 0 {
		n += countSize
	}
	return n
}

// Time is a stamp by the server's clocks in nanoseconds: Wall since 1970 UTC, Mono since a moment of the server's choice. 0 means absent.
type Time struct{ Wall, Mono int64 }

// Echo is an echo request, or with FlagReply the answer to one. Of Count, Window and the stamps, those count that are among the fields
// agreed on; in a request all are zero.
type Echo struct {
	Flags  Flags
	Token  Token
	Seq    uint32
	Count  uint32 // requests of its session received so far, itself and duplicates included
	Window uint64 // bit k: request Seq-k was received; nothing is known where bit 0 is clear

	Receive, Midpoint, Send Time
}

// AppendTo appends the datagram to b with the fields f and without payload, the HMAC's place zero.
func (e *Echo) AppendTo(b []byte, f Fields) []byte {
	b = AppendHeader(b, e.Flags)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Token))
	b = binary.LittleEndian.AppendUint32(b, e.Seq)
	if f&HasCount != 0 {
		b = binary.LittleEndian.AppendUint32(b, e.Count)
	}
	if f&HasWindow != 0 {
		b = binary.LittleEndian.AppendUint64(b, e.Window)
	}
	for i, t := range [...]*Time{&e.Receive, &e.Midpoint, &e.Send} {
		if f&(receiveWall<<(2*i)) != 0 {
			b = binary.LittleEndian.AppendUint64(b, uint64(t.Wall))
		}
		if f&(receiveMono<<(2*i)) != 0 {
			b = binary.LittleEndian.AppendUint64(b, uint64(t.Mono))
		}
	}
	return b
}

// ParseEcho parses an echo with the fields f. With f 0 it parses no more than token and sequence, which is all that a server needs of a
// request. The payload is a part of b.
func ParseEcho(b []byte, f Fields) (e Echo, payload []byte, err error) {
	e.Flags, err = ParseHeader(b)
	if err != nil {
		return Echo{}, nil, err
	}
	at := HeaderSize(e.Flags)
	switch {
	case e.Flags&FlagOpen != 0, e.Flags&(FlagReply|FlagClose) == FlagClose:
		return Echo{}, nil, &ParseError{3, "flags are not those of an echo"}
	case len(b) < at+tokenSize+sequenceSize+f.Size():
		return Echo{}, nil, &ParseError{len(b), "echo ends within its fields"}
	}
	e.Token = Token(binary.LittleEndian.Uint64(b[at:]))
	e.Seq = binary.LittleEndian.Uint32(b[at+tokenSize:])
	at += tokenSize + sequenceSize
	if f&HasCount != 0 {
		e.Count = binary.LittleEndian.Uint32(b[at:])
		at += 4
	}
	if f&HasWindow != 0 {
		e.Window = binary.LittleEndian.Uint64(b[at:])
		at += 8
	}
	for i, t := range [...]*Time{&e.Receive, &e.Midpoint, &e.Send} {
		if f&(receiveWall<<(2*i)) != 0 {
			t.Wall = int64(binary.LittleEndian.Uint64(b[at:]))
			at += 8
		}
		if f&(receiveMono<<(2*i)) != 0 {
			t.Mono = int64(binary.LittleEndian.Uint64(b[at:]))
			at += 8
		}
	}
	return e, b[at:], nil
}
