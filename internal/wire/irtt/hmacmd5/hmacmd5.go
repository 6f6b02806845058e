// Package hmacmd5 makes the keyed hash that irtt signs datagrams with, apart from the rest of the protocol because the library's cryptography takes 0.2 MB of a
// program and few use a key.
package hmacmd5

import (
	"crypto/hmac"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
)

// New returns what makes HMAC-MD5 (RFC 2104) hashes with a key, or nil for an empty one. It keeps key.
func New(key []byte) func() hash.Hash {
	if len(key) == 0 {
		return nil
	}
	return func() hash.Hash { return hmac.New(md5.New, key) }
}

// Parse is New with a key as irtt's --hmac takes it: text, or hexadecimal digits behind 0x.
func Parse(text string) (func() hash.Hash, error) {
	digits, ok := strings.CutPrefix(text, "0x")
	if !ok {
		return New([]byte(text)), nil
	}
	key, err := hex.DecodeString(digits)
	if err != nil || len(key) == 0 {
		return nil, fmt.Errorf("key 0x...: want an even number of hexadecimal digits behind 0x")
	}
	return New(key), nil
}
