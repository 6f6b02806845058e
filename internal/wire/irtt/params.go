package irtt

import (
	"encoding/binary"
	"math"
	"time"
)

// Params is what client and server agree on in the open handshake. A zero value means that the parameter is absent.
type Params struct {
	Version  int64
	Duration time.Duration // of the test; Endless for no end
	Interval time.Duration // between echo requests
	Length   int           // bytes of an echo's whole UDP payload; less than its fields need means just those
	Stats    Stats
	Stamps   Stamps
	Clock    Clock
	DS       uint8  // the whole DS byte that echoes carry, not the code point
	Fill     string // the payload of echo replies: "rand", "none", "pattern:HEX", FillDS; "" for the server's own
}

// Endless is the duration of a test without an end.
const Endless time.Duration = math.MaxInt64

const (
	maxParams = 128 // bytes of a parameter list
	maxFill   = 32  // bytes of a fill
)

// Stats says what an echo reply tells of the requests received so far; the bits may be combined.
type Stats uint8

// The statistics.
const (
	CountStats  Stats = 1
	WindowStats Stats = 2
)

// Stamps says which time stamps an echo reply carries.
type Stamps uint8

// The stamps.
const (
	NoStamps      Stamps = 0
	SendStamp     Stamps = 1
	ReceiveStamp  Stamps = 2
	BothStamps    Stamps = 3
	MidpointStamp Stamps = 4 // half way between receive and send
)

// Clock says which clocks the stamps are of; the bits may be combined.
type Clock uint8

// The clocks.
const (
	WallClock      Clock = 1
	MonotonicClock Clock = 2
	BothClocks     Clock = 3
)

func (c Clock) String() string { return [...]string{"none", "wall", "monotonic", "both"}[c&BothClocks] }

// Numbers of the parameters on the wire.
const (
	numVersion = iota + 1
	numDuration
	numInterval
	numLength
	numStats
	numStamps
	numClock
	numDS
	numFill
)

// AppendTo appends the list to b: ascending, without what is zero.
func (p Params) AppendTo(b []byte) []byte {
	b = appendParam(b, numVersion, p.Version)
	b = appendParam(b, numDuration, int64(p.Duration))
	b = appendParam(b, numInterval, int64(p.Interval))
	b = appendParam(b, numLength, int64(p.Length))
	b = appendParam(b, numStats, int64(p.Stats))
	b = appendParam(b, numStamps, int64(p.Stamps))
	b = appendParam(b, numClock, int64(p.Clock))
	b = appendParam(b, numDS, int64(p.DS))
	if p.Fill != "" {
		b = binary.AppendUvarint(b, numFill)
		b = binary.AppendUvarint(b, uint64(len(p.Fill)))
		b = append(b, p.Fill...)
	}
	return b
}

func appendParam(b []byte, number uint64, value int64) []byte {
	if value == 0 {
		return b
	}
	return binary.AppendVarint(binary.AppendUvarint(b, number), value)
}

// ParseParams parses a list that fills b, in any order; of a number that is there twice, the last counts. Unknown numbers are skipped as
// signed integers. It allocates only for a Fill.
func ParseParams(b []byte) (Params, error) {
	if len(b) > maxParams {
		return Params{}, &ParseError{maxParams, "parameter list is too long"}
	}
	var p Params
	for at := 0; at < len(b); {
		number, n := binary.Uvarint(b[at:])
		if n <= 0 {
			return Params{}, &ParseError{at, "bad parameter number"}
		}
		at += n
		if number == numFill {
			fill, n, err := parseFill(b, at)
			if err != nil {
				return Params{}, err
			}
			p.Fill, at = fill, at+n
			continue
		}
		value, n := binary.Varint(b[at:])
		if n <= 0 {
			return Params{}, &ParseError{at, "bad parameter value"}
		}
		if !p.set(number, value) {
			return Params{}, &ParseError{at, "parameter out of range"}
		}
		at += n
	}
	return p, nil
}

func parseFill(b []byte, at int) (fill string, n int, err error) {
	size, n := binary.Uvarint(b[at:])
	switch {
	case n <= 0:
		return "", 0, &ParseError{at, "bad length of the fill"}
	case size > maxFill:
		return "", 0, &ParseError{at, "fill is too long"}
	case uint64(len(b)-at-n) < size:
		return "", 0, &ParseError{len(b), "parameter list ends within its fill"}
	}
	return string(b[at+n : at+n+int(size)]), n + int(size), nil
}

// set stores an integer parameter and reports whether its value is possible.
func (p *Params) set(number uint64, v int64) bool {
	switch number {
	case numVersion:
		p.Version = v
	case numDuration:
		p.Duration = time.Duration(v)
		return v > 0
	case numInterval:
		p.Interval = time.Duration(v)
		return v > 0
	case numLength:
		p.Length = int(v)
		return v >= 0 && v <= math.MaxInt32
	case numStats:
		p.Stats = Stats(v)
		return v >= 0 && v <= int64(CountStats|WindowStats)
	case numStamps:
		p.Stamps = Stamps(v)
		return v >= 0 && v <= int64(MidpointStamp)
	case numClock:
		p.Clock = Clock(v)
		return v > 0 && v <= int64(BothClocks)
	case numDS:
		p.DS = uint8(v)
		return v >= 0 && v <= math.MaxUint8
	}
	return true
}

// Fields returns the optional fields of echoes under these parameters.
func (p Params) Fields() Fields {
	var f Fields
	if p.Stats&CountStats != 0 {
		f |= HasCount
	}
	if p.Stats&WindowStats != 0 {
		f |= HasWindow
	}
	var clocks Fields
	if p.Clock&WallClock != 0 {
		clocks |= receiveWall
	}
	if p.Clock&MonotonicClock != 0 {
		clocks |= receiveMono
	}
	if p.Stamps == MidpointStamp {
		return f | clocks<<2
	}
	if p.Stamps&ReceiveStamp != 0 {
		f |= clocks
	}
	if p.Stamps&SendStamp != 0 {
		f |= clocks << 4
	}
	return f
}

// EchoSize returns the length of echo requests and replies under these parameters: Length, or what the fields need if that is more.
func (p Params) EchoSize(hmac bool) int {
	var f Flags
	if hmac {
		f = FlagHMAC
	}
	return max(p.Length, HeaderSize(f)+tokenSize+sequenceSize+p.Fields().Size())
}
