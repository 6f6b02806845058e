package irtt

import (
	"crypto/subtle"
	"hash"
)

// Authenticator computes and checks the HMAC-MD5 (RFC 2104) of datagrams with one key. It allocates nothing per datagram and is not safe for
// concurrent use.
type Authenticator struct {
	mac hash.Hash
	sum [hmacSize]byte
}

// NewAuthenticator returns an Authenticator by the keyed hash that mac makes, of 16 bytes, as those of package hmacmd5 do; or nil for nil.
func NewAuthenticator(mac func() hash.Hash) *Authenticator {
	if mac == nil {
		return nil
	}
	return &Authenticator{mac: mac()}
}

// Sign fills in the HMAC of a datagram that has FlagHMAC and is at least HeaderSize(FlagHMAC) bytes long.
func (a *Authenticator) Sign(datagram []byte) {
	copy(datagram[hmacOffset:hmacOffset+hmacSize], a.compute(datagram))
}

// Verify reports whether the datagram has FlagHMAC and the right HMAC.
func (a *Authenticator) Verify(datagram []byte) bool {
	f, err := ParseHeader(datagram)
	if err != nil || f&FlagHMAC == 0 {
		return false
	}
	return subtle.ConstantTimeCompare(datagram[hmacOffset:hmacOffset+hmacSize], a.compute(datagram)) == 1
}

// compute returns the HMAC over the datagram with the HMAC's own place zero, valid until the next call.
func (a *Authenticator) compute(datagram []byte) []byte {
	a.mac.Reset()
	a.mac.Write(datagram[:hmacOffset])
	clear(a.sum[:])
	a.mac.Write(a.sum[:])
	a.mac.Write(datagram[hmacOffset+hmacSize:])
	return a.mac.Sum(a.sum[:0])
}
