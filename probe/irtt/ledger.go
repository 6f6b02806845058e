package irtt

import "bufferbloat/probe"

// ledger keeps what the server told of the latest requests, and says what is new in each reply's window.
//
// A set bit is always believed: the request reached the server. A clear bit is believed with care, since the stock server's window goes
// wrong when requests are reordered: a late one resets it, and requests from before then show as clear. The server's count of
// requests tells whether that happened: of as many requests as it took since the last time must have become known. Where it took
// more, some that it took are not in the window (or were duplicates), and it might be any of those sent by then: the clear bits
// about these are not believed, in no window. Neither are those in a late request's own window, which shows nothing that the
// next one does not, nor any without a count. What was told to have reached the server is never told otherwise; what was told to
// be missing is, if it turns out to have come late.
type ledger struct {
	ring     [ledgerSize]word
	top      int64  // the highest Seq that was answered, -1 for none; the ring holds top-ledgerSize < n <= top
	count    uint32 // the server's, of the latest reply that was the highest when it came
	since    uint32 // requests that have become known since, by replies with a higher count
	floor    int64  // clear bits are believed only above it
	verdicts [windowSize]probe.Verdict
}

const (
	windowSize = 64
	ledgerSize = 2 * windowSize // a late reply's window reaches back behind the newest one's
)

// word is what is known of one request.
type word uint8

const (
	unknown word = iota
	missing      // told to be clear
	reached      // answered, or told to be set
)

func newLedger() ledger { return ledger{top: -1, floor: -1} }

func (l *ledger) at(seq int64) *word { return &l.ring[uint64(seq)%ledgerSize] }

// reply takes in the reply to request seq and returns what is new about others, valid until the next call. count is the server's, 0 where it
// does not count; lastSent is the highest request sent so far.
func (l *ledger) reply(seq int64, window uint64, count uint32, lastSent int64) []probe.Verdict {
	highest := seq > l.top
	l.advance(seq)
	oldest := max(seq-windowSize+1, l.top-ledgerSize+1, 0)
	if seq < oldest {
		return nil
	}
	later := int32(count-l.count) > 0
	known := uint32(0)
	if l.learn(seq) {
		known++
	}
	v := l.verdicts[:0]
	if window&1 == 1 { // otherwise it has no information
		for n := seq - 1; n >= oldest; n-- {
			if window>>(seq-n)&1 == 1 && l.learn(n) {
				known++
				v = append(v, probe.Verdict{Seq: uint64(n), Reached: true})
			}
		}
	}
	if later {
		l.since += known
	}
	if !highest {
		return v
	}
	if !later || count-l.count != l.since {
		l.floor = lastSent
	}
	if later {
		l.count, l.since = count, 0
	}
	return l.tellMissing(v, seq, max(oldest, l.floor+1))
}

// advance makes room for seq in the ring.
func (l *ledger) advance(seq int64) {
	if seq <= l.top {
		return
	}
	for n := max(l.top+1, seq-ledgerSize+1); n <= seq; n++ {
		*l.at(n) = unknown
	}
	l.top = seq
}

// learn keeps that request seq reached the server and reports whether that is news.
func (l *ledger) learn(seq int64) bool {
	w := l.at(seq)
	news := *w != reached
	*w = reached
	return news
}

// tellMissing appends to v the requests from oldest to seq of which nothing was known.
func (l *ledger) tellMissing(v []probe.Verdict, seq, oldest int64) []probe.Verdict {
	for n := seq - 1; n >= oldest; n-- {
		if w := l.at(n); *w == unknown {
			*w = missing
			v = append(v, probe.Verdict{Seq: uint64(n)})
		}
	}
	return v
}
