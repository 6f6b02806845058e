// Package nonce draws bytes that nobody can foresee.
package nonce

import (
	"encoding/binary"
	"io"
)

// Reader reads random bytes of the system's. It always fills what it is given, and is safe for concurrent use.
var Reader io.Reader = reader{}

type reader struct{}

func (reader) Read(b []byte) (int, error) {
	Fill(b)
	return len(b), nil
}

// Fill fills b with random bytes. It panics where the system has none, which no system that this program runs on does.
func Fill(b []byte) { fill(b) }

// Uint16 returns a random number.
func Uint16() uint16 {
	var b [2]byte
	Fill(b[:])
	return binary.BigEndian.Uint16(b[:])
}
