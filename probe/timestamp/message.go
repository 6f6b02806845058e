package timestamp

import (
	"encoding/binary"
	"fmt"
	"time"
)

// The layout of a timestamp message (RFC 792): type, code, checksum, identifier, sequence number, and three times.
const (
	// MessageSize is the size of a probe from the ICMP header on.
	MessageSize = 20

	request, reply = 13, 14

	// nonstandard marks a time that is not milliseconds since midnight UTC.
	nonstandard = 1 << 31
	day         = 24 * 60 * 60 * 1000 // milliseconds
)

// message is a timestamp request or reply. Its checksum is the stack's business. The times are milliseconds since midnight UTC where they are
// below day.
type message struct {
	kind                         uint8
	id, seq                      uint16
	originate, receive, transmit uint32
}

// AppendTo appends the message to b, MessageSize bytes with a checksum of zero.
func (m message) AppendTo(b []byte) []byte {
	b = append(b, m.kind, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, m.id)
	b = binary.BigEndian.AppendUint16(b, m.seq)
	b = binary.BigEndian.AppendUint32(b, m.originate)
	b = binary.BigEndian.AppendUint32(b, m.receive)
	return binary.BigEndian.AppendUint32(b, m.transmit)
}

// A parseError says what is wrong with an ICMP message, and at which of its bytes.
type parseError struct {
	offset int
	reason string
}

func (e *parseError) Error() string {
	return fmt.Sprintf("ICMP message, byte %d: %s", e.offset, e.reason)
}

var (
	errShort = &parseError{0, "too short for a timestamp message"}
	errKind  = &parseError{0, "no timestamp message"}
	errCode  = &parseError{1, "the code is not 0"}
)

// parse reads a timestamp message, whatever its checksum and what follows it: some hosts pad it. Its errors are *parseError.
func parse(b []byte) (message, error) {
	switch {
	case len(b) < MessageSize:
		return message{}, errShort
	case b[0] != request && b[0] != reply:
		return message{}, errKind
	case b[1] != 0:
		return message{}, errCode
	}
	return message{kind: b[0], id: binary.BigEndian.Uint16(b[4:]), seq: binary.BigEndian.Uint16(b[6:]), originate: binary.BigEndian.Uint32(b[8:]),
		receive: binary.BigEndian.Uint32(b[12:]), transmit: binary.BigEndian.Uint32(b[16:])}, nil
}

// sinceMidnight returns the time of the wall clock as a message has it.
func sinceMidnight(t time.Time) uint32 {
	ms := t.UnixMilli() % day
	if ms < 0 {
		ms += day
	}
	return uint32(ms)
}

// oneWay returns the delays by the two hosts' clocks of a probe sent at sent and answered at at, or false where the peer's times are no times
// of the day. They are taken round the nearest midnight: clocks that disagree by more than 12 hours can't be told from those that agree
// better.
func (m message) oneWay(sent, at time.Time) (up, down time.Duration, ok bool) {
	if m.receive >= day || m.transmit >= day {
		return 0, 0, false
	}
	return nearest(ofDay(m.receive) - sinceMidnightExact(sent)), nearest(sinceMidnightExact(at) - ofDay(m.transmit)), true
}

func ofDay(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

func sinceMidnightExact(t time.Time) time.Duration {
	const wholeDay = day * time.Millisecond
	d := time.Duration(t.UnixNano() % int64(wholeDay))
	if d < 0 {
		d += wholeDay
	}
	return d
}

// nearest brings a difference of two times of the day to at most 12 hours.
func nearest(d time.Duration) time.Duration {
	const wholeDay = day * time.Millisecond
	switch {
	case d > wholeDay/2:
		return d - wholeDay
	case d < -wholeDay/2:
		return d + wholeDay
	}
	return d
}
