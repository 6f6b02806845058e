// Package netperf is the wire format of netperf's control connection: records of 656 bytes, as netperf and netserver 2.6.0 to
// 2.7.1 exchange them.
//
// A record is a type, a word and 648 bytes of data. Integers are big-endian 32-bit words, floats are IEEE-754 binary32, strings
// are raw bytes that end at the first NUL. There is no length, no checksum and no version, so the parsers here refuse only what
// cannot be held: a record that is too short, of another type, or with a port that is none. What the stock programs leave
// uninitialised is not looked at.
//
// The requests of all records begin with the same two words; ParseType tells them apart.
package netperf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Size is the length of every record, in bytes.
const Size = 656

// OldSize is the record length of the generations before 2.6.0, which this package does not speak.
const OldSize = 256

// Port is the control port unless the user names another.
const Port = 12865

// header is the length of the type and the word behind it; data word n stands at header + 4n.
const header = 8

// Type is the first word of a record. It is true in requests only: what a server puts there is not to be relied on.
type Type uint32

// The types that current programs send, and the answers to them.
const (
	TypeDebugOn      Type = 1
	TypeDebugOff     Type = 2
	TypeDebugOK      Type = 3
	TypeCPUCalibrate Type = 5
	TypePassphrase   Type = 6
	TypeOmni         Type = 97
	TypeOmniResponse Type = 98
	TypeSysInfo      Type = 600
	TypeSysInfoReply Type = 601
)

// Direction is the way of a test's payload as the server sees it. The two bits together are a request/response test, and so is
// zero with FlagConnect.
type Direction uint32

// The directions.
const (
	ServerSends    Direction = 2
	ServerReceives Direction = 4
	BothWays       Direction = ServerSends | ServerReceives
)

// Family is netperf's own number for an address family.
type Family uint32

// The families.
const (
	AnyFamily Family = 0
	IPv4      Family = 4
	IPv6      Family = 6
)

// SocketType is netperf's own number for a kind of socket.
type SocketType uint32

// The kinds of socket.
const (
	Stream   SocketType = 1
	Datagram SocketType = 2
)

// Protocol is an IANA protocol number.
type Protocol uint32

// The protocols.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// Flags are the switches of an omni test.
type Flags uint32

// The flags that mean something to us.
const (
	FlagNoDelay Flags = 0x1
	FlagConnect Flags = 0x4  // every transaction on a connection of its own
	FlagCPU     Flags = 0x8  // measure CPU; in a response: it will be measured
	FlagRoute   Flags = 0x20 // routing is allowed, and the results shall name the congestion control
)

// ParseError says where a record cannot be what it was taken for.
type ParseError struct {
	Record string // "omni request"
	Offset int    // byte in the record
	Reason string
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("netperf %s, offset %d: %s", e.Record, e.Offset, e.Reason)
}

// ParseType returns the first two words of a record: its type, and what stands behind it, which is the CPU affinity in a
// request and the error number in an answer. b may be longer than a record.
func ParseType(b []byte) (Type, int32, error) {
	r, err := newReader("record", b)
	if err != nil {
		return 0, 0, err
	}
	return Type(binary.BigEndian.Uint32(r.b)), int32(binary.BigEndian.Uint32(r.b[4:])), nil
}

// AppendTo appends a record of this type with the word and no data: a request without parameters (word -1: no affinity) or an
// answer that says no more than its error number.
func (t Type) AppendTo(b []byte, word int32) []byte {
	w := newWriter(b, t, word)
	return w.b
}

// reader reads words and strings of one record.
type reader struct {
	b []byte // exactly Size bytes
}

func newReader(record string, b []byte) (reader, error) {
	if len(b) < Size {
		return reader{}, &ParseError{Record: record, Offset: len(b), Reason: fmt.Sprintf("ends after %d of %d bytes", len(b), Size)}
	}
	return reader{b: b[:Size]}, nil
}

func (r reader) u32(word int) uint32  { return binary.BigEndian.Uint32(r.b[header+4*word:]) }
func (r reader) i32(word int) int32   { return int32(r.u32(word)) }
func (r reader) f32(word int) float32 { return math.Float32frombits(r.u32(word)) }
func (r reader) u64(word int) uint64  { return uint64(r.u32(word))<<32 | uint64(r.u32(word+1)) }

// text returns the string in the size bytes at offset. The last of them is never part of it, as it must be a NUL.
func (r reader) text(offset, size int) string {
	field := r.b[offset : offset+size-1]
	for i, c := range field {
		if c == 0 {
			return string(field[:i])
		}
	}
	return string(field)
}

// writer writes words and strings of the record that it has appended to b.
type writer struct {
	b    []byte
	base int
}

func newWriter(b []byte, t Type, word int32) writer {
	w := writer{b: append(b, make([]byte, Size)...), base: len(b)}
	binary.BigEndian.PutUint32(w.b[w.base:], uint32(t))
	binary.BigEndian.PutUint32(w.b[w.base+4:], uint32(word))
	return w
}

func (w writer) u32(word int, v uint32)  { binary.BigEndian.PutUint32(w.b[w.base+header+4*word:], v) }
func (w writer) i32(word int, v int32)   { w.u32(word, uint32(v)) }
func (w writer) f32(word int, v float32) { w.u32(word, math.Float32bits(v)) }
func (w writer) u64(word int, v uint64)  { w.u32(word, uint32(v>>32)); w.u32(word+1, uint32(v)) }

// text puts s into the size bytes at offset, up to its first NUL and cut to leave one.
func (w writer) text(offset, size int, s string) {
	field := w.b[w.base+offset : w.base+offset+size-1]
	for i := range min(len(s), len(field)) {
		if s[i] == 0 {
			return
		}
		field[i] = s[i]
	}
}
