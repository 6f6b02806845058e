// Package iperf3 is the wire format of the iperf3 protocol: states, cookie, JSON messages, datagrams and login.
//
// It speaks of iperf3 3.0 to 3.21. Nothing in it opens a socket or reads a clock, and nothing is allocated in proportion to a number
// from the other end before that number was found to be within the caller's bound.
package iperf3

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Port is the port of the control connection, of data connections and of datagrams.
const Port = 5201

// State is a one-byte message of the control connection.
type State int8

// The states. TestEnd, ClientTerminate and Done come from the client, all others from the server.
const (
	TestStart       State = 1  // all streams are there
	TestRunning     State = 2  // send now; it follows TestStart at once
	TestEnd         State = 4  // the client ends the test
	ParamExchange   State = 9  // cookie taken, send your parameters
	CreateStreams   State = 10 // parameters taken, open the data streams
	ServerTerminate State = 11 // the server was interrupted
	ClientTerminate State = 12 // the client was interrupted
	ExchangeResults State = 13 // send your results, then read mine
	DisplayResults  State = 14 // the test is over
	Done            State = 16 // goodbye
	AccessDenied    State = -1 // busy, or a foreign cookie
	ServerError     State = -2 // an ErrorCode and an errno follow
)

var stateNames = map[State]string{
	TestStart: "test start", TestRunning: "test running", TestEnd: "test end", ParamExchange: "parameter exchange",
	CreateStreams: "create streams", ServerTerminate: "server terminates", ClientTerminate: "client terminates",
	ExchangeResults: "exchange results", DisplayResults: "display results", Done: "done", AccessDenied: "access denied",
	ServerError: "server error",
}

func (s State) String() string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return fmt.Sprintf("state %d", int8(s))
}

// Known reports whether s is a state that occurs on the wire. Another byte means that the other end does not speak iperf3.
func (s State) Known() bool { _, ok := stateNames[s]; return ok }

// Byte returns s as it is sent.
func (s State) Byte() byte { return byte(s) }

// ParseState returns the state of a byte, or an error where there is none of that number.
func ParseState(b byte) (State, error) {
	s := State(int8(b))
	if !s.Known() {
		return 0, &FormatError{What: "state", Why: fmt.Sprintf("byte 0x%02x is none", b)}
	}
	return s, nil
}

// FormatError says where a message is not what it should be.
type FormatError struct {
	What   string // "parameters", "results", "datagram"
	Offset int    // of the byte in the message
	Why    string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("iperf3 %s, byte %d: %s", e.What, e.Offset, e.Why)
}

// CookieSize is the length of a cookie on the wire.
const CookieSize = 37

// Cookie names a test: 36 characters and a NUL. It is the first that is sent on a control connection and on each data connection.
type Cookie [CookieSize]byte

// NewCookie returns a random cookie.
func NewCookie() Cookie {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	var c Cookie
	_, _ = rand.Read(c[:]) // it never fails
	for i, b := range c[:CookieSize-1] {
		c[i] = alphabet[b%32]
	}
	c[CookieSize-1] = 0
	return c
}

// Matches reports whether two cookies name the same test: what is behind a NUL does not count.
func (c Cookie) Matches(d Cookie) bool { return bytes.Equal(c.text(), d.text()) }

func (c *Cookie) text() []byte {
	if i := bytes.IndexByte(c[:], 0); i >= 0 {
		return c[:i]
	}
	return c[:]
}

// Key returns c without what is behind its NUL, for use as the key of a map: cookies that match have the same.
func (c Cookie) Key() Cookie {
	var k Cookie
	copy(k[:], c.text())
	return k
}

// Limits of messages. A peer that sends more is not served.
const (
	MaxParams  = 8 << 10  // as stock has it from 3.18 on
	MaxResults = 16 << 20 // of the longest test with the server's output in it
	maxNesting = 32
)

// errTooLong is why a message is not read.
var errTooLong = errors.New("too long")

// StateError is a state that came where the length of a message was due.
type StateError struct {
	State State
	Code  ErrorCode // with ServerError
	Errno int32     // with ServerError; 0 where there was none
}

func (e *StateError) Error() string {
	if e.State == ServerError {
		return e.Code.Error()
	}
	return "the other end says " + e.State.String()
}

// Unwrap returns the code of a ServerError.
func (e *StateError) Unwrap() error {
	if e.State == ServerError {
		return e.Code
	}
	return nil
}

// ReadMessage reads the length of a JSON message and the message, of at most limit bytes, which must be less than 0x0b000000. A server
// that gives up may send a state in place of the length, which is a *StateError. Beyond the limit nothing is read or allocated.
func ReadMessage(r io.Reader, limit int) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		// A state byte alone, with the end of the stream behind it, is read as a short length.
		if s := State(int8(length[0])); errors.Is(err, io.ErrUnexpectedEOF) && (s == AccessDenied || s == ServerTerminate) {
			return nil, &StateError{State: s}
		}
		return nil, err
	}
	switch s := State(int8(length[0])); s {
	case AccessDenied, ServerTerminate:
		return nil, &StateError{State: s}
	case ServerError:
		return nil, readErrorAfter(r, length[1:])
	}
	n := binary.BigEndian.Uint32(length[:])
	if uint64(n) > uint64(limit) {
		return nil, &FormatError{What: "message", Why: fmt.Sprintf("%d bytes, where at most %d are taken: %v", n, limit, errTooLong)}
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return b, nil
}

// ReadError reads what follows the state ServerError. The second number is missing in some versions and is then 0.
func ReadError(r io.Reader) *StateError { return readErrorAfter(r, nil) }

// readErrorAfter is ReadError where a few bytes were read already.
func readErrorAfter(r io.Reader, got []byte) *StateError {
	var b [8]byte
	n := copy(b[:], got)
	m, _ := io.ReadFull(r, b[n:])
	e := &StateError{State: ServerError}
	if n+m >= 4 {
		e.Code = ErrorCode(binary.BigEndian.Uint32(b[:4]))
	}
	if n+m == 8 {
		e.Errno = int32(binary.BigEndian.Uint32(b[4:]))
	}
	return e
}

// AppendError appends the state ServerError with its numbers.
func AppendError(b []byte, code ErrorCode, errno int32) []byte {
	b = append(b, ServerError.Byte())
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return binary.BigEndian.AppendUint32(b, uint32(errno))
}

// appendMessage appends a message's length and text.
func appendMessage(b, text []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}
