// Package http2 is as much of HTTP/2's framing (RFC 9113) as a client takes that has one stream at a time on a connection.
//
// The Framer of golang.org/x/net/http2 reads and writes whole frames. Here the content of one is counted as it comes, since on a slow link a frame of 16 KiB takes
// longer than the step between two readings of a counter; and one is sent from where it stands, without a copy. Header blocks are for that module's hpack.
package http2

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Preface is what a client's connection begins with.
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Sizes and bounds of the protocol.
const (
	HeadSize      = 9
	DefaultFrame  = 16384     // bytes of payload at most, where a peer says nothing
	LargestFrame  = 1<<24 - 1 // that a peer may permit
	DefaultWindow = 65535
	LargestWindow = 1<<31 - 1
	MaxHeaders    = 64 << 10 // of one header block, that this package takes
)

// Type says what a frame is.
type Type uint8

// The types.
const (
	Data         Type = 0
	Headers      Type = 1
	Priority     Type = 2
	Reset        Type = 3
	SettingsType Type = 4
	PushPromise  Type = 5
	Ping         Type = 6
	GoAway       Type = 7
	WindowUpdate Type = 8
	Continuation Type = 9
)

// Flags of frames.
const (
	EndStream  = 0x1 // of Data and Headers
	Ack        = 0x1 // of Settings and Ping
	EndHeaders = 0x4
	Padded     = 0x8
	HasPrio    = 0x20
)

// Head begins a frame.
type Head struct {
	Length uint32 // of the payload
	Type   Type
	Flags  uint8
	Stream uint32
}

// A FormatError is a frame that can't be.
type FormatError struct{ What string }

func (e *FormatError) Error() string { return "HTTP/2: " + e.What }

func bad(format string, args ...any) error { return &FormatError{fmt.Sprintf(format, args...)} }

// AppendTo appends the head to b.
func (h Head) AppendTo(b []byte) []byte {
	b = append(b, byte(h.Length>>16), byte(h.Length>>8), byte(h.Length), byte(h.Type), h.Flags)
	return binary.BigEndian.AppendUint32(b, h.Stream)
}

// ReadHead reads a frame's head. A payload above most bytes is a *FormatError. An error that wraps io.EOF says that the connection ended between frames.
func ReadHead(r *bufio.Reader, most uint32) (Head, error) {
	b, err := r.Peek(HeadSize)
	switch {
	case err != nil && len(b) > 0:
		return Head{}, noEnd(err)
	case err != nil:
		return Head{}, err
	}
	h := Head{Length: uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]), Type: Type(b[3]), Flags: b[4], Stream: binary.BigEndian.Uint32(b[5:]) & LargestWindow}
	_, _ = r.Discard(HeadSize) // they are in the buffer
	if h.Length > most {
		return h, bad("a frame of %d bytes: want at most %d", h.Length, most)
	}
	return h, nil
}

// ReadPayload reads the whole payload of a frame. It is for frames of control, whose size ReadHead has bounded.
func (h Head) ReadPayload(r io.Reader) ([]byte, error) {
	b := make([]byte, h.Length)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, noEnd(err)
	}
	return b, nil
}

// Unpad returns how many bytes of padding follow the content of a Data frame, whose first payload byte it reads where the frame is padded, and how many
// bytes of content there are.
func (h Head) Unpad(r *bufio.Reader) (content, padding uint32, err error) {
	if h.Flags&Padded == 0 {
		return h.Length, 0, nil
	}
	if h.Length == 0 {
		return 0, 0, bad("a padded frame without a payload")
	}
	n, err := r.ReadByte()
	if err != nil {
		return 0, 0, noEnd(err)
	}
	if uint32(n) > h.Length-1 {
		return 0, 0, bad("padding of %d bytes in a frame of %d", n, h.Length)
	}
	return h.Length - 1 - uint32(n), uint32(n), nil
}

// Fragment returns the part of a Headers frame's payload that is the header block.
func (h Head) Fragment(payload []byte) ([]byte, error) {
	padding := 0
	if h.Flags&Padded != 0 {
		if len(payload) < 1 {
			return nil, bad("a padded frame without a payload")
		}
		padding, payload = int(payload[0]), payload[1:]
	}
	if h.Flags&HasPrio != 0 {
		if len(payload) < 5 {
			return nil, bad("headers without their priority")
		}
		payload = payload[5:]
	}
	if padding > len(payload) {
		return nil, bad("padding of %d bytes in a frame of %d", padding, h.Length)
	}
	return payload[:len(payload)-padding], nil
}

// Setting is a parameter of the peer.
type Setting struct {
	ID    uint16
	Value uint32
}

// The settings that matter here.
const (
	HeaderTableSize   = 1
	EnablePush        = 2
	InitialWindowSize = 4
	MaxFrameSize      = 5
)

// AppendSettings appends a Settings frame.
func AppendSettings(b []byte, list ...Setting) []byte {
	b = Head{Length: uint32(6 * len(list)), Type: SettingsType}.AppendTo(b)
	for _, s := range list {
		b = binary.BigEndian.AppendUint16(b, s.ID)
		b = binary.BigEndian.AppendUint32(b, s.Value)
	}
	return b
}

// ParseSettings reads the payload of a Settings frame.
func ParseSettings(payload []byte) ([]Setting, error) {
	if len(payload)%6 != 0 {
		return nil, bad("settings of %d bytes", len(payload))
	}
	var list []Setting
	for ; len(payload) > 0; payload = payload[6:] {
		s := Setting{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint32(payload[2:])}
		switch {
		case s.ID == InitialWindowSize && s.Value > LargestWindow:
			return nil, bad("an initial window of %d bytes", s.Value)
		case s.ID == MaxFrameSize && (s.Value < DefaultFrame || s.Value > LargestFrame):
			return nil, bad("a frame size of %d bytes", s.Value)
		}
		list = append(list, s)
	}
	return list, nil
}

// AppendWindowUpdate appends a WindowUpdate frame.
func AppendWindowUpdate(b []byte, stream, bytes uint32) []byte {
	b = Head{Length: 4, Type: WindowUpdate, Stream: stream}.AppendTo(b)
	return binary.BigEndian.AppendUint32(b, bytes)
}

// Number reads the 31 or 32 bits that the payload of WindowUpdate and Reset is.
func Number(payload []byte) (uint32, error) {
	if len(payload) != 4 {
		return 0, bad("a number of %d bytes", len(payload))
	}
	return binary.BigEndian.Uint32(payload), nil
}

// ErrorCode is why a peer ends a stream or the connection.
type ErrorCode uint32

func (c ErrorCode) String() string {
	names := [...]string{"no error", "protocol error", "internal error", "flow control error", "settings timeout", "stream closed", "frame size error",
		"refused stream", "cancel", "compression error", "connect error", "enhance your calm", "inadequate security", "HTTP/1.1 required"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("error %d", uint32(c))
}

// ParseGoAway reads the payload of a GoAway frame.
func ParseGoAway(payload []byte) (last uint32, code ErrorCode, err error) {
	if len(payload) < 8 {
		return 0, 0, bad("a goodbye of %d bytes", len(payload))
	}
	return binary.BigEndian.Uint32(payload) & LargestWindow, ErrorCode(binary.BigEndian.Uint32(payload[4:])), nil
}

func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
