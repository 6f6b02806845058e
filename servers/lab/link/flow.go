package link

import (
	"encoding/binary"
	"net/netip"
)

// Flow is the 5-tuple that fair queues keep apart. Protocols without ports have both ports 0.
type Flow struct {
	From, To         netip.Addr
	FromPort, ToPort uint16
	Protocol         uint8 // IP protocol number
}

// Hash returns a hash of f that is the same in every run.
func (f Flow) Hash() uint64 {
	var b [40]byte
	from, to := f.From.As16(), f.To.As16()
	copy(b[:16], from[:])
	copy(b[16:32], to[:])
	binary.BigEndian.PutUint16(b[32:], f.FromPort)
	binary.BigEndian.PutUint16(b[34:], f.ToPort)
	b[36] = f.Protocol
	h := uint64(0)
	for i := 0; i < len(b); i += 8 {
		h = mix(h ^ binary.BigEndian.Uint64(b[i:]))
	}
	return h
}

// Hosts returns hashes of the two addresses that are the same in every run.
func (f Flow) Hosts() (from, to uint32) { return hostHash(f.From), hostHash(f.To) }

func hostHash(a netip.Addr) uint32 {
	b := a.As16()
	return uint32(mix(mix(binary.BigEndian.Uint64(b[:8])) ^ binary.BigEndian.Uint64(b[8:])))
}

// mix is a bijection of 64 bits in which every bit of x bears on every bit of the result (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
