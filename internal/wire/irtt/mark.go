package irtt

// FillDS asks a server to say in each reply, at the beginning of its payload, with which DS byte the request came in. It is a fill of our own: a server that
// does not know it grants its own fill in its place, as the protocol wants it, and the client is told nothing.
const FillDS = "ds"

// MarkSize is the room that this takes. In a payload that is shorter nothing is told.
const MarkSize = 2

// markTold is the first byte of a payload that tells; the DS byte follows.
const markTold = 'd'

// FillMark fills payload as FillDS wants it. With known false the server's stack did not tell the DS byte, and the payload does not either.
func FillMark(payload []byte, ds uint8, known bool) {
	clear(payload)
	if known && len(payload) >= MarkSize {
		payload[0], payload[1] = markTold, ds
	}
}

// Mark returns the DS byte that a payload filled by FillMark tells, or false where it tells none.
func Mark(payload []byte) (ds uint8, ok bool) {
	if len(payload) < MarkSize || payload[0] != markTold {
		return 0, false
	}
	return payload[1], true
}
