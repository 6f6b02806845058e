// Package irtt is the wire format of the irtt protocol, version 1: the datagrams that an irtt client and server exchange.
//
// Every datagram begins with three magic bytes and a byte of flags; with FlagHMAC, 16 bytes of HMAC-MD5 follow; then the body.
// All fixed-size numbers are little-endian. The forms are Open, Echo and Close; each appends itself to a buffer with the HMAC's place
// zero, which Authenticator.Sign then fills. Parsers check every bound before they read, and keep nothing of what they are given
// but where they say so; their errors are *ParseError.
package irtt

import (
	"encoding/binary"
	"fmt"
)

// Port is the protocol's usual UDP port.
const Port = 2112

// Version is the protocol version that this package speaks.
const Version = 1

// Flags is the fourth byte of every datagram.
type Flags uint8

// The flags. A byte with any other bit set is no flags byte.
const (
	FlagOpen  Flags = 1 << iota // opens a session
	FlagReply                   // comes from the server
	FlagClose                   // ends a session; with FlagOpen: there is none
	FlagHMAC                    // an HMAC follows the flags

	allFlags = FlagOpen | FlagReply | FlagClose | FlagHMAC
)

// Token names a session; the server chooses it. It is opaque, and 0 names none.
type Token uint64

const (
	tokenSize    = 8
	sequenceSize = 4
	hmacSize     = 16
	hmacOffset   = 4 // of the HMAC in a datagram
)

var magic = [...]byte{0x14, 0xa7, 0x5b}

// ParseError says why a datagram is none of this protocol, and where.
type ParseError struct {
	Offset int // in bytes from the beginning of what was parsed
	Reason string
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("irtt: %s at byte %d", e.Reason, e.Offset)
}

// HeaderSize returns the number of bytes before the body of a datagram with these flags: 4, or 20 with an HMAC.
func HeaderSize(f Flags) int {
	if f&FlagHMAC != 0 {
		return hmacOffset + hmacSize
	}
	return hmacOffset
}

// AppendHeader appends magic, flags and, with FlagHMAC, 16 zero bytes.
func AppendHeader(b []byte, f Flags) []byte {
	b = append(b, magic[0], magic[1], magic[2], byte(f))
	if f&FlagHMAC != 0 {
		var zero [hmacSize]byte
		b = append(b, zero[:]...)
	}
	return b
}

// ParseHeader returns the flags of a datagram. It is followed by HeaderSize(flags) bytes at least; the HMAC is not checked.
func ParseHeader(b []byte) (Flags, error) {
	if len(b) < hmacOffset {
		return 0, &ParseError{len(b), "datagram ends before its flags"}
	}
	for i, m := range magic {
		if b[i] != m {
			return 0, &ParseError{i, "wrong magic"}
		}
	}
	f := Flags(b[3])
	if f&^allFlags != 0 {
		return 0, &ParseError{3, "unknown flag"}
	}
	if len(b) < HeaderSize(f) {
		return 0, &ParseError{len(b), "datagram ends within its HMAC"}
	}
	return f, nil
}

// Open is an open request, or with FlagReply the answer to one.
type Open struct {
	Flags  Flags // with FlagOpen
	Token  Token // only in a reply; 0 where no session was opened
	Params Params
}

// AppendTo appends the datagram to b, the HMAC's place zero.
func (o Open) AppendTo(b []byte) []byte {
	b = AppendHeader(b, o.Flags)
	if o.Flags&FlagReply != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(o.Token))
	}
	return o.Params.AppendTo(b)
}

// ParseOpen parses a datagram that has FlagOpen set.
func ParseOpen(b []byte) (Open, error) {
	f, err := ParseHeader(b)
	if err != nil {
		return Open{}, err
	}
	if f&FlagOpen == 0 {
		return Open{}, &ParseError{3, "no open flag"}
	}
	o, at := Open{Flags: f}, HeaderSize(f)
	if f&FlagReply != 0 {
		if len(b) < at+tokenSize {
			return Open{}, &ParseError{len(b), "open reply ends within its token"}
		}
		o.Token = Token(binary.LittleEndian.Uint64(b[at:]))
		at += tokenSize
	}
	p, err := ParseParams(b[at:])
	if err != nil {
		if pe, ok := err.(*ParseError); ok {
			pe.Offset += at
		}
		return Open{}, err
	}
	o.Params = p
	return o, nil
}

// Close is a request to end a session. It has no answer.
type Close struct {
	Flags Flags // with FlagClose
	Token Token
}

// AppendTo appends the datagram to b, the HMAC's place zero.
func (c Close) AppendTo(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(AppendHeader(b, c.Flags), uint64(c.Token))
}

// ParseClose parses a close request. Bytes after the token are allowed and mean nothing.
func ParseClose(b []byte) (Close, error) {
	f, err := ParseHeader(b)
	if err != nil {
		return Close{}, err
	}
	at := HeaderSize(f)
	switch {
	case f&(FlagOpen|FlagReply|FlagClose) != FlagClose:
		return Close{}, &ParseError{3, "flags are not those of a close request"}
	case len(b) < at+tokenSize:
		return Close{}, &ParseError{len(b), "close request ends within its token"}
	}
	return Close{Flags: f, Token: Token(binary.LittleEndian.Uint64(b[at:]))}, nil
}
