// Package rtnl asks the kernel about links, routes and queues over rtnetlink(7), or about more over generic netlink, and reads its answers.
//
// What comes from the kernel is read with its bounds, as everything from outside is. Numbers are in the order of the machine's bytes.
package rtnl

import (
	"encoding/binary"
	"fmt"
)

// MalformedError says where a message is not what it should be.
type MalformedError struct {
	Offset int // of the byte in what was parsed
	What   string
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("netlink: byte %d: %s", e.Offset, e.What)
}

// Message is one message of an answer. Body is valid until the next is asked for.
type Message struct {
	Type uint16
	Body []byte // behind the header of netlink
}

// The sizes of the headers, and what they are aligned to (linux/netlink.h, linux/rtnetlink.h).
const (
	headerSize = 16
	attrSize   = 4
	align      = 4
)

func aligned(n int) int { return (n + align - 1) &^ (align - 1) }

// messages calls each for all messages in b with this sequence number, until one ends the answer. It returns whether that one came.
func messages(b []byte, sequence uint32, each func(m Message, flags uint16) (over bool, err error)) (over bool, err error) {
	for at := 0; at < len(b); {
		rest := b[at:]
		if len(rest) < headerSize {
			return false, &MalformedError{at, "half a header"}
		}
		n := int(binary.NativeEndian.Uint32(rest))
		if n < headerSize || n > len(rest) {
			return false, &MalformedError{at, fmt.Sprintf("a message of %d bytes in %d", n, len(rest))}
		}
		if binary.NativeEndian.Uint32(rest[8:]) == sequence {
			over, err := each(Message{binary.NativeEndian.Uint16(rest[4:]), rest[headerSize:n]}, binary.NativeEndian.Uint16(rest[6:]))
			if over || err != nil {
				return over, err
			}
		}
		at += aligned(n)
	}
	return false, nil
}

// Attrs calls each for every attribute in b: its type, without the flags for nesting and byte order, and its value. A value is a part of b.
func Attrs(b []byte, each func(kind uint16, value []byte) error) error {
	const flags = 0xc000
	for at := 0; at < len(b); {
		rest := b[at:]
		if len(rest) < attrSize {
			return &MalformedError{at, "half an attribute"}
		}
		n := int(binary.NativeEndian.Uint16(rest))
		if n < attrSize || n > len(rest) {
			return &MalformedError{at, fmt.Sprintf("an attribute of %d bytes in %d", n, len(rest))}
		}
		if err := each(binary.NativeEndian.Uint16(rest[2:])&^flags, rest[attrSize:n]); err != nil {
			return err
		}
		at += aligned(n)
	}
	return nil
}

// AppendAttr appends an attribute to b, with what fills it up behind it.
func AppendAttr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrSize+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for range aligned(len(value)) - len(value) {
		b = append(b, 0)
	}
	return b
}

// Uint16 is Uint32 for numbers of two bytes.
func Uint16(value []byte) (uint16, bool) {
	if len(value) < 2 {
		return 0, false
	}
	return binary.NativeEndian.Uint16(value), true
}

// Uint32 returns the number in an attribute's value, false where it is too short.
func Uint32(value []byte) (uint32, bool) {
	if len(value) < 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(value), true
}

// Uint64 is Uint32 for numbers of eight bytes.
func Uint64(value []byte) (uint64, bool) {
	if len(value) < 8 {
		return 0, false
	}
	return binary.NativeEndian.Uint64(value), true
}

// String returns the text in an attribute's value, which ends with its first zero byte.
func String(value []byte) string {
	for i, c := range value {
		if c == 0 {
			return string(value[:i])
		}
	}
	return string(value)
}
