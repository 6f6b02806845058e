package iperf3

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Limits of a datagram's payload.
const (
	MinDatagram = 16
	MaxDatagram = 65507
)

// Datagram is the header of a datagram of data.
type Datagram struct {
	Sent time.Duration // on the sender's own clock, whole microseconds: only differences mean anything
	Seq  uint64        // the first is 1
}

// HeaderSize is the length of a datagram's header.
func HeaderSize(wide bool) int {
	if wide {
		return 16
	}
	return 12
}

// Put writes the header to the beginning of b, which must be HeaderSize(wide) long. Where the counter is not wide only its low 32 bits go out.
func (d Datagram) Put(b []byte, wide bool) {
	binary.BigEndian.PutUint32(b, uint32(d.Sent/time.Second))
	binary.BigEndian.PutUint32(b[4:], uint32(d.Sent%time.Second/time.Microsecond))
	if wide {
		binary.BigEndian.PutUint64(b[8:], d.Seq)
	} else {
		binary.BigEndian.PutUint32(b[8:], uint32(d.Seq))
	}
}

// ParseDatagram reads the header at the beginning of b.
func ParseDatagram(b []byte, wide bool) (Datagram, error) {
	if len(b) < HeaderSize(wide) {
		return Datagram{}, &FormatError{"datagram", len(b), fmt.Sprintf("shorter than its header of %d bytes", HeaderSize(wide))}
	}
	micro := binary.BigEndian.Uint32(b[4:])
	if micro > 999_999 {
		return Datagram{}, &FormatError{"datagram", 4, fmt.Sprintf("%d microseconds", micro)}
	}
	d := Datagram{Sent: time.Duration(binary.BigEndian.Uint32(b))*time.Second + time.Duration(micro)*time.Microsecond}
	if wide {
		d.Seq = binary.BigEndian.Uint64(b[8:])
	} else {
		d.Seq = uint64(binary.BigEndian.Uint32(b[8:]))
	}
	return d, nil
}

// The datagrams that open a stream, and those of versions before 3.12.
var (
	hello    = [4]byte{'9', '8', '7', '6'}
	welcome  = [4]byte{'6', '7', '8', '9'}
	oldHello = [4]byte{0x15, 0xcd, 0x5b, 0x07}
	oldReply = [4]byte{0xb1, 0x68, 0xde, 0x3a}
)

// HelloSize is the length of a datagram that opens a stream and names its test.
const HelloSize = len(hello) + CookieSize

// Hello returns the datagram with which a client opens a stream of a test. Behind the protocol's word, of which alone a stock server reads, it has the test's
// cookie: with Params.NamedStreams our own server tells by it which of a client's tests the stream is of.
func Hello(c Cookie) (b [HelloSize]byte) {
	copy(b[copy(b[:], hello[:]):], c[:])
	return b
}

// Welcome returns the answer to a datagram that opens a stream: in the words of its version, which is never longer than the question.
func Welcome(question []byte) [4]byte {
	if len(question) >= len(oldHello) && isEither(question[:len(oldHello)], oldHello) {
		return oldReply
	}
	return welcome
}

// ParseHello reports whether b opens a stream, and returns the Key of the cookie that it has; without one, as stock clients send it, the zero Cookie.
func ParseHello(b []byte) (Cookie, bool) {
	var c Cookie
	if len(b) == HelloSize {
		c, b = Cookie(b[len(hello):]).Key(), b[:len(hello)]
	}
	if !isEither(b, hello) && !isEither(b, oldHello) {
		return Cookie{}, false
	}
	return c, true
}

// IsWelcome reports whether b is the answer to that.
func IsWelcome(b []byte) bool { return isEither(b, welcome) || isEither(b, oldReply) }

// isEither compares in both byte orders.
func isEither(b []byte, word [4]byte) bool {
	if len(b) != 4 {
		return false
	}
	return [4]byte(b) == word || [4]byte{b[3], b[2], b[1], b[0]} == word
}

// seen is how many sequence numbers back a datagram is still told from a duplicate.
const seen = 1024

// Tally counts the datagrams of one stream at its receiver. The zero Tally is ready.
type Tally struct {
	Received  uint64 // different ones
	Bytes     uint64 // their payload
	Reordered uint64 // of these: behind one that was sent later (RFC 4737, type P reordered)
	Duplicate uint64 // more of the same; not in Received
	Highest   uint64 // sequence number
	Jitter    time.Duration

	transit, least, most, last time.Duration
	begun                      bool
	recent                     [seen / 64]uint64 // of the sequence numbers up to Highest
}

// Lost returns how many are missing below the highest that came.
func (t *Tally) Lost() uint64 {
	if t.Received >= t.Highest {
		return 0
	}
	return t.Highest - t.Received
}

// Delay returns how much longer the latest datagram was under way than the fastest so far. The clocks of both ends need not agree,
// and what they drift apart is in it.
func (t *Tally) Delay() (time.Duration, bool) { return t.last, t.begun }

// Take counts a datagram with n bytes of payload that arrived at a time of the receiver's own clock. It reports false for one that came
// before, and for a sequence number so far off that it is none: these change nothing but Duplicate.
func (t *Tally) Take(d Datagram, n int, arrived time.Duration, wide bool) bool {
	seq := d.Seq
	if !wide {
		// The counter's upper half is what brings it closest to the highest.
		seq = t.Highest + uint64(int64(int32(uint32(seq)-uint32(t.Highest))))
	}
	if seq == 0 || seq > t.Highest && seq-t.Highest > 1<<30 {
		return false
	}
	switch {
	case seq > t.Highest:
		t.advance(seq)
	case t.Highest-seq >= seen:
		// Too old to tell: a duplicate of what came would make others' loss vanish.
		if t.Lost() == 0 {
			t.Duplicate++
			return false
		}
		t.Reordered++
	case t.bit(seq):
		t.Duplicate++
		return false
	default:
		t.Reordered++
	}
	if t.Highest-seq < seen {
		t.recent[seq%seen/64] |= 1 << (seq % 64)
	}
	t.Received++
	t.Bytes += uint64(n)
	t.time(arrived - d.Sent)
	return true
}

func (t *Tally) bit(seq uint64) bool { return t.recent[seq%seen/64]&(1<<(seq%64)) != 0 }

// advance makes seq the highest, and forgets what lies more than the window behind it.
func (t *Tally) advance(seq uint64) {
	if seq-t.Highest >= seen {
		clear(t.recent[:])
	} else {
		for s := t.Highest + 1; s <= seq; s++ {
			t.recent[s%seen/64] &^= 1 << (s % 64)
		}
	}
	t.Highest = seq
}

// time takes the transit time, whose zero is arbitrary, into the RTP jitter (RFC 3550, 6.4.1) and the delay.
func (t *Tally) time(transit time.Duration) {
	if !t.begun {
		t.begun, t.least, t.most = true, transit, transit
	} else {
		d := transit - t.transit
		if d < 0 {
			d = -d
		}
		t.Jitter += (d - t.Jitter) / 16
	}
	t.transit = transit
	t.least, t.most = min(t.least, transit), max(t.most, transit)
	t.last = transit - t.least
}
