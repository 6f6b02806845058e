package netperf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// Request is an omni request (type 97): it describes a test to the server. Use Omni for one with netperf's defaults; a zero
// Request is no useful one, since most fields say "leave alone" by -1.
type Request struct {
	Affinity     int32 // CPU that the server shall run on, -1 none
	SendBuffer   int32 // bytes of the server's SO_SNDBUF, negative: leave alone
	SendSize     int32 // bytes per send call of a server that streams, -1: the server chooses
	SendAlign    uint32
	SendOffset   uint32
	SendRing     uint32
	RequestSize  int32 // bytes that the server receives per transaction, not positive in a stream test
	RecvBuffer   int32 // bytes of the server's SO_RCVBUF, negative: leave alone
	RecvSize     int32 // bytes per receive call, -1: the server chooses
	RecvAlign    uint32
	RecvOffset   uint32
	RecvRing     uint32
	ResponseSize int32 // bytes that the server sends per transaction, not positive in a stream test
	Flags        Flags
	CPURate      float32
	Length       int32 // seconds; 0: until the other end stops; negative: minus bytes (streams) or transactions
	RecvAvoid    uint32
	SendAvoid    uint32
	SendDirty    int32
	RecvDirty    int32
	RecvClean    int32
	DataPort     uint16 // port that the server shall use, 0: any
	Family       Family
	SocketType   SocketType
	Protocol     Protocol
	Direction    Direction
	ClientPort   uint16 // port of the client's data socket where it is bound already
	PaceBurst    uint32 // sends per pacing interval, 0: no pacing
	PaceMicros   uint32 // pacing interval, microseconds
	ClientAddr   Addr
	ServerAddr   Addr   // address that the server shall use for data, zero: any
	Priority     int32  // SO_PRIORITY, -1 none
	DS           int32  // the whole DS byte that the server shall send, -1: leave alone
	Congestion   string // congestion control of the server's socket, at most 15 bytes, "": leave alone
	FillFile     string // a file on the server; a server must not open it
}

// Test is one of netperf's named tests, as a combination of the fields of a Request.
type Test uint8

// The tests.
const (
	TCPStream Test = iota + 1 // upload
	TCPMaerts                 // download
	TCPRR
	TCPCRR
	UDPStream
	UDPRR
)

// Omni returns the request that netperf 2.7.1 sends for a test without options, of a length in whole seconds.
func Omni(test Test, family Family, seconds int32) Request {
	r := Request{
		Affinity: -1, SendBuffer: -1, SendSize: -1, SendAlign: 8, RequestSize: -1,
		RecvBuffer: -1, RecvSize: -1, RecvAlign: 8, ResponseSize: -1, Flags: FlagRoute, Length: seconds,
		SendDirty: -1, RecvDirty: -1, RecvClean: -1, Family: family, SocketType: Stream, Protocol: TCP, Priority: -1, DS: -1,
	}
	switch test {
	case TCPStream:
		r.Direction, r.SendRing = ServerReceives, 2
	case TCPMaerts:
		r.Direction, r.RecvRing = ServerSends, 2
	case UDPStream:
		r.Direction, r.SendRing, r.SocketType, r.Protocol = ServerReceives, 2, Datagram, UDP
	case TCPRR, TCPCRR, UDPRR:
		r.Direction, r.SendRing, r.RecvRing, r.RequestSize, r.ResponseSize = BothWays, 1, 1, 1, 1
		if test == TCPCRR {
			r.Flags |= FlagConnect
		}
		if test == UDPRR {
			r.SocketType, r.Protocol = Datagram, UDP
		}
	}
	return r
}

// Duration returns the length of a timed test, or false where the test counts units or has no bound.
func (r Request) Duration() (time.Duration, bool) {
	return time.Duration(r.Length) * time.Second, r.Length > 0
}

// Units returns how many bytes or transactions end the test, or false where it is timed or has no bound.
func (r Request) Units() (uint64, bool) {
	return uint64(-int64(r.Length)), r.Length < 0
}

// ParseRequest reads an omni request from the first Size bytes of b. The strings are copies.
func ParseRequest(b []byte) (Request, error) {
	const record = "omni request"
	r, err := newReader(record, b)
	if err != nil {
		return Request{}, err
	}
	if t := Type(binary.BigEndian.Uint32(r.b)); t != TypeOmni {
		return Request{}, &ParseError{Record: record, Offset: 0, Reason: fmt.Sprintf("type %d is not %d", t, TypeOmni)}
	}
	for _, port := range []int{20, 25} {
		if v := r.u32(port); v > 65535 {
			return Request{}, &ParseError{Record: record, Offset: header + 4*port, Reason: fmt.Sprintf("%d is no port", v)}
		}
	}
	return Request{
		Affinity: int32(binary.BigEndian.Uint32(r.b[4:])), SendBuffer: r.i32(0), SendSize: r.i32(1), SendAlign: r.u32(2),
		SendOffset: r.u32(3), SendRing: r.u32(4), RequestSize: r.i32(5), RecvBuffer: r.i32(6), RecvSize: r.i32(7),
		RecvAlign: r.u32(8), RecvOffset: r.u32(9), RecvRing: r.u32(10), ResponseSize: r.i32(11), Flags: Flags(r.u32(12)),
		CPURate: r.f32(13), Length: r.i32(14), RecvAvoid: r.u32(15), SendAvoid: r.u32(16), SendDirty: r.i32(17),
		RecvDirty: r.i32(18), RecvClean: r.i32(19), DataPort: uint16(r.u32(20)), Family: Family(r.u32(21)),
		SocketType: SocketType(r.u32(22)), Protocol: Protocol(r.u32(23)), Direction: Direction(r.u32(24)),
		ClientPort: uint16(r.u32(25)), PaceBurst: r.u32(26), PaceMicros: r.u32(27), ClientAddr: Addr(r.b[120:136]),
		ServerAddr: Addr(r.b[136:152]), Priority: r.i32(36), DS: r.i32(37), Congestion: r.text(160, 16),
		FillFile: r.text(176, 32),
	}, nil
}

// AppendTo appends the record to b. Strings that are too long are cut.
func (r Request) AppendTo(b []byte) []byte {
	w := newWriter(b, TypeOmni, r.Affinity)
	for i, v := range [...]uint32{
		uint32(r.SendBuffer), uint32(r.SendSize), r.SendAlign, r.SendOffset, r.SendRing, uint32(r.RequestSize),
		uint32(r.RecvBuffer), uint32(r.RecvSize), r.RecvAlign, r.RecvOffset, r.RecvRing, uint32(r.ResponseSize),
		uint32(r.Flags),
	} {
		w.u32(i, v)
	}
	w.f32(13, r.CPURate)
	for i, v := range [...]uint32{
		uint32(r.Length), r.RecvAvoid, r.SendAvoid, uint32(r.SendDirty), uint32(r.RecvDirty), uint32(r.RecvClean),
		uint32(r.DataPort), uint32(r.Family), uint32(r.SocketType), uint32(r.Protocol), uint32(r.Direction),
		uint32(r.ClientPort), r.PaceBurst, r.PaceMicros,
	} {
		w.u32(14+i, v)
	}
	copy(w.b[w.base+120:], r.ClientAddr[:])
	copy(w.b[w.base+136:], r.ServerAddr[:])
	w.i32(36, r.Priority)
	w.i32(37, r.DS)
	w.text(160, 16, r.Congestion)
	w.text(176, 32, r.FillFile)
	return w.b
}

// Addr is an address as an omni request carries it: IPv4 in the first four bytes, IPv6 with every group of four bytes reversed
// where the sender is little-endian, and in its natural order where it is not.
type Addr [16]byte

// AddrFrom returns a as a little-endian program sends it.
func AddrFrom(a netip.Addr) Addr {
	if a = a.Unmap(); a.Is4() {
		four := a.As4()
		return Addr{four[0], four[1], four[2], four[3]}
	}
	return Addr(a.As16()).reversed()
}

func (a Addr) reversed() Addr {
	for i := 0; i < len(a); i += 4 {
		a[i], a[i+1], a[i+2], a[i+3] = a[i+3], a[i+2], a[i+1], a[i]
	}
	return a
}

// Candidates returns what a may mean in the given family, the likelier first: one IPv4 address, or an IPv6 address in the two
// orders. It returns nothing for the zero Addr, which means no address.
func (a Addr) Candidates(f Family) []netip.Addr {
	switch {
	case a == Addr{}:
		return nil
	case f == IPv6:
		return []netip.Addr{netip.AddrFrom16(a.reversed()), netip.AddrFrom16(a)}
	}
	return []netip.Addr{netip.AddrFrom4([4]byte(a[:4]))}
}

// Response is the answer to an omni request (type 98), sent once the server is ready for data. With an Error that is not zero
// nothing else in it means anything.
type Response struct {
	Error      ErrorNumber
	RecvBuffer int32 // bytes in effect, -1 unknown
	RecvSize   int32 // bytes per receive call, -1: it does not receive
	RecvRing   int32
	SendBuffer int32 // bytes in effect, -1 unknown
	SendSize   int32 // bytes per send call, -1: it does not send
	SendRing   int32
	Flags      Flags   // only FlagNoDelay and FlagCPU are to be believed
	CPURate    float32 // valid with FlagCPU
	RecvAvoid  uint32
	SendAvoid  uint32
	DataPort   uint16 // where the client must connect or send
	PaceBurst  uint32
	PaceMicros uint32
	Priority   int32 // in effect; -1 not asked, -2 could not be set, -3 not to be had
	DS         int32 // DS byte in effect; -1 not asked, -2 could not be set
	// Echoes says that each response of a test of transactions begins with its request. Our server alone says so, where stock ones of 2.6 name their
	// machine and later ones nothing.
	Echoes bool
}

// echoes is what a response says that Echoes, in the field for the machine's model.
const echoes, modelOffset, modelSize = "answers begin as their requests", 80, 33

// ParseResponse reads a response from the first Size bytes of b, whatever its type. A response with an error number parses to
// that number alone.
func ParseResponse(b []byte) (Response, error) {
	const record = "omni response"
	r, err := newReader(record, b)
	if err != nil {
		return Response{}, err
	}
	if e := ErrorNumber(binary.BigEndian.Uint32(r.b[4:])); e != 0 {
		return Response{Error: e}, nil
	}
	if v := r.u32(11); v > 65535 {
		return Response{}, &ParseError{Record: record, Offset: header + 4*11, Reason: fmt.Sprintf("%d is no port", v)}
	}
	return Response{
		RecvBuffer: r.i32(0), RecvSize: r.i32(1), RecvRing: r.i32(2), SendBuffer: r.i32(3), SendSize: r.i32(4),
		SendRing: r.i32(5), Flags: Flags(r.u32(6)), CPURate: r.f32(7), RecvAvoid: r.u32(9), SendAvoid: r.u32(10),
		DataPort: uint16(r.u32(11)), PaceBurst: r.u32(12), PaceMicros: r.u32(13), Priority: r.i32(16), DS: r.i32(17),
		Echoes: r.text(modelOffset, modelSize) == echoes,
	}, nil
}

// AppendTo appends the record to b; with an error, that is all it says.
func (p Response) AppendTo(b []byte) []byte {
	w := newWriter(b, TypeOmniResponse, int32(p.Error))
	if p.Error != 0 {
		return w.b
	}
	for i, v := range [...]int32{p.RecvBuffer, p.RecvSize, p.RecvRing, p.SendBuffer, p.SendSize, p.SendRing, int32(p.Flags)} {
		w.i32(i, v)
	}
	w.f32(7, p.CPURate)
	for i, v := range [...]uint32{p.RecvAvoid, p.SendAvoid, uint32(p.DataPort), p.PaceBurst, p.PaceMicros} {
		w.u32(9+i, v)
	}
	w.i32(16, p.Priority)
	w.i32(17, p.DS)
	if p.Echoes {
		w.text(modelOffset, modelSize, echoes)
	}
	return w.b
}
