package netperf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// The tests as netperf 2.4 and before asked for them, and as a netperf without omni tests still does. Every word of their records is
// an integer or a float: there are no strings.
const (
	TypeTCPStream         Type = 10
	TypeTCPStreamResponse Type = 11
	TypeTCPRR             Type = 13
	TypeTCPRRResponse     Type = 14
	TypeUDPStream         Type = 16
	TypeUDPStreamResponse Type = 17
	TypeUDPStreamResults  Type = 18
	TypeUDPRR             Type = 19
	TypeUDPRRResponse     Type = 20
	TypeTCPCRR            Type = 34
	TypeTCPCRRResponse    Type = 35
	TypeTCPMaerts         Type = 94
	TypeTCPMaertsResponse Type = 95
)

// legacyPlaces are the words of a legacy request where a test has what this package looks at; -1 where it has not.
type legacyPlaces struct {
	test                                            Test
	sendBuffer, recvBuffer, size, request, response int
	noDelay, cpu, length, port, family              int
}

func (t Type) legacyPlaces() (legacyPlaces, bool) {
	switch t {
	case TypeTCPStream, TypeTCPMaerts:
		test := TCPStream
		if t == TypeTCPMaerts {
			test = TCPMaerts
		}
		return legacyPlaces{test: test, sendBuffer: 0, recvBuffer: 1, size: 2, request: -1, response: -1, noDelay: 5, cpu: 6, length: 8, port: 13,
			family: 14}, true
	case TypeTCPRR, TypeUDPRR, TypeTCPCRR:
		test := map[Type]Test{TypeTCPRR: TCPRR, TypeUDPRR: UDPRR, TypeTCPCRR: TCPCRR}[t]
		return legacyPlaces{test: test, sendBuffer: 1, recvBuffer: 0, size: -1, request: 6, response: 7, noDelay: 8, cpu: 9, length: 11, port: 14,
			family: 15}, true
	case TypeUDPStream:
		return legacyPlaces{test: UDPStream, sendBuffer: -1, recvBuffer: 0, size: 1, request: -1, response: -1, noDelay: -1, cpu: 6, length: 8,
			port: 11, family: 12}, true
	}
	return legacyPlaces{}, false
}

// Legacy is a request of one of the tests before omni: type 10, 13, 16, 19, 34 or 94.
type Legacy struct {
	Test         Test
	SendBuffer   int32 // bytes of the server's SO_SNDBUF; not positive: leave alone
	RecvBuffer   int32 // bytes of the server's SO_RCVBUF; not positive: leave alone
	Size         int32 // bytes per call of the server, and of each datagram of a UDP_STREAM; not positive: the server chooses
	RequestSize  int32 // of a transaction
	ResponseSize int32
	NoDelay, CPU bool
	Length       int32  // seconds; of a transaction test negative: minus their number. TCP_STREAM has a number of bytes here, too, unmarked
	DataPort     uint16 // port that the server shall use, 0: any
	Family       Family
}

// ParseLegacy reads a legacy request from the first Size bytes of b.
func ParseLegacy(b []byte) (Legacy, error) {
	const record = "legacy request"
	r, err := newReader(record, b)
	if err != nil {
		return Legacy{}, err
	}
	t := Type(binary.BigEndian.Uint32(r.b))
	at, known := t.legacyPlaces()
	if !known {
		return Legacy{}, &ParseError{Record: record, Offset: 0, Reason: fmt.Sprintf("type %d is none of the tests before omni", t)}
	}
	if v := r.u32(at.port); v > 65535 {
		return Legacy{}, &ParseError{Record: record, Offset: header + 4*at.port, Reason: fmt.Sprintf("%d is no port", v)}
	}
	word := func(i int) int32 {
		if i < 0 {
			return 0
		}
		return r.i32(i)
	}
	return Legacy{
		Test: at.test, SendBuffer: word(at.sendBuffer), RecvBuffer: word(at.recvBuffer), Size: word(at.size), RequestSize: word(at.request),
		ResponseSize: word(at.response), NoDelay: word(at.noDelay) != 0, CPU: word(at.cpu) != 0, Length: word(at.length),
		DataPort: uint16(r.u32(at.port)), Family: Family(r.u32(at.family)),
	}, nil
}

// legacyTypes are the types of a test's request, response and results.
func (t Test) legacyTypes() (request, response, results Type) {
	switch t {
	case TCPStream:
		return TypeTCPStream, TypeTCPStreamResponse, TypeTCPStreamResponse
	case TCPMaerts:
		return TypeTCPMaerts, TypeTCPMaertsResponse, TypeTCPMaertsResponse
	case TCPRR:
		return TypeTCPRR, TypeTCPRRResponse, TypeTCPRRResponse
	case TCPCRR:
		return TypeTCPCRR, TypeTCPCRRResponse, TypeTCPCRRResponse
	case UDPRR:
		return TypeUDPRR, TypeUDPRRResponse, TypeUDPRRResponse
	}
	return TypeUDPStream, TypeUDPStreamResponse, TypeUDPStreamResults
}

// AppendTo appends the record to b.
func (l Legacy) AppendTo(b []byte) []byte {
	request, _, _ := l.Test.legacyTypes()
	at, _ := request.legacyPlaces()
	w := newWriter(b, request, -1)
	set := func(i int, v int32) {
		if i >= 0 {
			w.i32(i, v)
		}
	}
	set(at.sendBuffer, l.SendBuffer)
	set(at.recvBuffer, l.RecvBuffer)
	set(at.size, l.Size)
	set(at.request, l.RequestSize)
	set(at.response, l.ResponseSize)
	set(at.noDelay, flag(l.NoDelay))
	set(at.cpu, flag(l.CPU))
	set(at.length, l.Length)
	set(at.port, int32(l.DataPort))
	set(at.family, int32(l.Family))
	return w.b
}

func flag(on bool) int32 {
	if on {
		return 1
	}
	return 0
}

// LegacyResponse is the answer to a legacy request, sent once the server is ready for data.
type LegacyResponse struct {
	Test       Test
	Error      ErrorNumber // with one that is not zero nothing else means anything
	RecvBuffer int32       // bytes in effect
	SendBuffer int32
	Size       int32 // bytes per call that the server will use, of TCP streams
	NoDelay    bool
	CPU        bool // it will measure its CPU use
	Length     int32
	DataPort   uint16 // where the client must connect or send
}

// legacyAnswer are the words of a legacy response; -1 where a test has not.
type legacyAnswer struct{ recvBuffer, sendBuffer, size, noDelay, cpu, length, rate, port int }

func (t Test) legacyAnswer() legacyAnswer {
	switch t {
	case TCPStream, TCPMaerts:
		return legacyAnswer{recvBuffer: 0, size: 1, noDelay: 2, cpu: 3, length: -1, sendBuffer: 5, port: 6, rate: 7}
	case UDPStream:
		return legacyAnswer{recvBuffer: 0, sendBuffer: 1, cpu: 2, length: 3, port: 4, rate: 5, size: -1, noDelay: -1}
	}
	return legacyAnswer{recvBuffer: 0, noDelay: 1, cpu: 2, length: 3, sendBuffer: 4, port: 5, rate: 6, size: -1}
}

// ParseLegacyResponse reads the answer to a request for test from the first Size bytes of b, whatever its type.
func ParseLegacyResponse(b []byte, test Test) (LegacyResponse, error) {
	const record = "legacy response"
	r, err := newReader(record, b)
	if err != nil {
		return LegacyResponse{}, err
	}
	if e := ErrorNumber(binary.BigEndian.Uint32(r.b[4:])); e != 0 {
		return LegacyResponse{Test: test, Error: e}, nil
	}
	at := test.legacyAnswer()
	if v := r.u32(at.port); v > 65535 {
		return LegacyResponse{}, &ParseError{Record: record, Offset: header + 4*at.port, Reason: fmt.Sprintf("%d is no port", v)}
	}
	p := LegacyResponse{Test: test, RecvBuffer: r.i32(at.recvBuffer), SendBuffer: r.i32(at.sendBuffer), CPU: r.i32(at.cpu) != 0,
		DataPort: uint16(r.u32(at.port))}
	if at.size >= 0 {
		p.Size = r.i32(at.size)
	}
	if at.noDelay >= 0 {
		p.NoDelay = r.i32(at.noDelay) != 0
	}
	if at.length >= 0 {
		p.Length = r.i32(at.length)
	}
	return p, nil
}

// AppendTo appends the record to b; with an error, that is all it says.
func (p LegacyResponse) AppendTo(b []byte) []byte {
	_, response, _ := p.Test.legacyTypes()
	w := newWriter(b, response, int32(p.Error))
	if p.Error != 0 {
		return w.b
	}
	at := p.Test.legacyAnswer()
	w.i32(at.recvBuffer, p.RecvBuffer)
	w.i32(at.sendBuffer, p.SendBuffer)
	w.i32(at.cpu, flag(p.CPU))
	if p.CPU {
		w.f32(at.rate, 100)
	}
	w.i32(at.port, int32(p.DataPort))
	if at.size >= 0 {
		w.i32(at.size, p.Size)
	}
	if at.noDelay >= 0 {
		w.i32(at.noDelay, flag(p.NoDelay))
	}
	if at.length >= 0 {
		w.i32(at.length, p.Length)
	}
	return w.b
}

// LegacyResults is the server's last message of a legacy test.
type LegacyResults struct {
	Test           Test
	Error          ErrorNumber
	Bytes          uint64  // of a TCP stream: received or sent; of the others, modulo 2^32
	Calls          uint32  // of a TCP stream: the server's receive or send calls
	Units          uint32  // transactions, or datagrams received
	ElapsedSeconds float32 // that the server ran
	CPUPercent     float32 // of all its CPUs, where the response said that it is measured
	CPUMethod      uint32
	CPUs           uint32
}

// ParseLegacyResults reads the results of a test from the first Size bytes of b, whatever their type. A count of bytes that is no
// number is an error.
func ParseLegacyResults(b []byte, test Test) (LegacyResults, error) {
	const record = "legacy results"
	r, err := newReader(record, b)
	if err != nil {
		return LegacyResults{}, err
	}
	p := LegacyResults{Test: test, Error: ErrorNumber(binary.BigEndian.Uint32(r.b[4:]))}
	switch test {
	case TCPStream, TCPMaerts:
		v := math.Float64frombits(r.u64(0))
		if !(v >= 0 && v < 1<<63) {
			return LegacyResults{}, &ParseError{Record: record, Offset: header, Reason: fmt.Sprintf("%v is no count of bytes", v)}
		}
		p.Bytes, p.Calls, p.ElapsedSeconds, p.CPUPercent = uint64(v), r.u32(2), r.f32(3), r.f32(4)
		p.CPUMethod, p.CPUs = r.u32(6), r.u32(7)
	case UDPStream:
		p.Units, p.Bytes, p.ElapsedSeconds, p.CPUPercent = r.u32(0), uint64(r.u32(1)), r.f32(2), r.f32(3)
		p.CPUMethod, p.CPUs = r.u32(4), r.u32(5)
	default:
		p.Bytes, p.Units, p.ElapsedSeconds, p.CPUPercent = uint64(r.u32(0)), r.u32(2), r.f32(3), r.f32(4)
		p.CPUMethod, p.CPUs = r.u32(6), r.u32(7)
	}
	return p, nil
}

// AppendTo appends the record to b.
func (p LegacyResults) AppendTo(b []byte) []byte {
	_, _, results := p.Test.legacyTypes()
	w := newWriter(b, results, int32(p.Error))
	switch p.Test {
	case TCPStream, TCPMaerts:
		w.u64(0, math.Float64bits(float64(p.Bytes)))
		w.u32(2, p.Calls)
		w.f32(3, p.ElapsedSeconds)
		w.f32(4, p.CPUPercent)
		w.u32(6, p.CPUMethod)
		w.u32(7, p.CPUs)
	case UDPStream:
		w.u32(0, p.Units)
		w.u32(1, uint32(p.Bytes))
		w.f32(2, p.ElapsedSeconds)
		w.f32(3, p.CPUPercent)
		w.u32(4, p.CPUMethod)
		w.u32(5, p.CPUs)
	default:
		w.u32(0, uint32(p.Bytes))
		w.u32(2, p.Units)
		w.f32(3, p.ElapsedSeconds)
		w.f32(4, p.CPUPercent)
		w.u32(6, p.CPUMethod)
		w.u32(7, p.CPUs)
	}
	return w.b
}
