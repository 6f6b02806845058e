package netperf

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
	"bufferbloat/servers/internal/listen"
)

// test is one test of a session.
type test struct {
	*session
	kind     wire.Test
	old      bool // asked for in the form before omni
	req      wire.Request
	length   time.Duration // valid with timed
	timed    bool
	units    uint64 // 0: not counted
	reqSize  int    // of a transaction; with rspSize 0 in a test of connections alone
	rspSize  int
	response wire.Response
	began    time.Time // when the response was sent
	flowing  time.Time // when the data connection came; the zero Time in tests without one
	results  wire.Results
	cpu      *cpuUse // nil where it is not measured
}

// omni runs the test that a request describes, and reports whether the connection goes on.
func (s *session) omni(ctx context.Context, record []byte) bool {
	req, err := wire.ParseRequest(record)
	if err != nil {
		return s.refuse(refuse(wire.BadValue, "%v", err))
	}
	t, no := s.plan(req)
	if no != nil {
		return s.refuse(no)
	}
	return t.run(ctx)
}

// legacy is omni for a request in the form before it.
func (s *session) legacy(ctx context.Context, record []byte) bool {
	old, err := wire.ParseLegacy(record)
	if err != nil {
		return s.refuse(refuse(wire.BadValue, "%v", err))
	}
	req := wire.Omni(old.Test, old.Family, old.Length)
	if old.Test == wire.TCPStream {
		req.Length = 0 // which may be seconds or bytes; the client's end of the data ends the test
	}
	req.SendBuffer, req.RecvBuffer, req.DataPort, req.RequestSize, req.ResponseSize = old.SendBuffer, old.RecvBuffer, old.DataPort,
		old.RequestSize, old.ResponseSize
	if old.Test == wire.UDPStream {
		req.RecvSize = old.Size
	}
	if old.CPU {
		req.Flags |= wire.FlagCPU
	}
	t, no := s.plan(req)
	if no != nil {
		return s.refuse(no)
	}
	t.old = true
	return t.run(ctx)
}

// run runs a test that was planned, if the limits allow one more, and sends its results.
func (t *test) run(ctx context.Context) bool {
	s := t.session
	if no := s.takeTest(s.peer.Addr()); no != nil {
		return s.refuse(no)
	}
	s.woke(s)
	no := t.carryOut(ctx)
	s.clients.GiveTest(s.peer.Addr(), t.results.RxBytes+t.results.TxBytes)
	s.rested(s)
	if no != nil {
		return s.refuse(no)
	}
	return ctx.Err() == nil && s.send(t.resultsRecord())
}

// carryOut runs the data phase.
func (t *test) carryOut(ctx context.Context) *refusal {
	t.expect(0)
	t.results.Retransmits = -1
	if t.req.Flags&wire.FlagCPU != 0 {
		t.cpu = t.measureCPU()
	}
	switch t.kind {
	case wire.UDPRR, wire.UDPStream:
		return t.runUDP(ctx)
	}
	return t.runTCP(ctx)
}

// responseRecord is the response in the form of the request.
func (t *test) responseRecord() []byte {
	if !t.old {
		return t.response.AppendTo(nil)
	}
	p := wire.LegacyResponse{Test: t.kind, RecvBuffer: t.response.RecvBuffer, SendBuffer: t.response.SendBuffer, DataPort: t.response.DataPort,
		NoDelay: t.response.Flags&wire.FlagNoDelay != 0, CPU: t.response.Flags&wire.FlagCPU != 0, Length: t.req.Length,
		Size: max(t.response.RecvSize, t.response.SendSize)}
	return p.AppendTo(nil)
}

// resultsRecord is the results in the form of the request.
func (t *test) resultsRecord() []byte {
	if !t.old {
		return t.results.AppendTo(nil, t.layout)
	}
	r := t.results
	p := wire.LegacyResults{Test: t.kind, Bytes: r.RxBytes + r.TxBytes, Calls: r.RxCalls + r.TxCalls, Units: r.Transactions,
		ElapsedSeconds: r.ElapsedSeconds, CPUPercent: r.CPUPercent, CPUMethod: r.CPUMethod, CPUs: r.CPUs}
	if t.kind == wire.UDPStream {
		p.Units = r.RxCalls
		if t.cpu == nil {
			p.CPUPercent = -1
		}
	}
	return p.AppendTo(nil)
}

// plan checks a request and fills in what it leaves to the server.
func (s *session) plan(req wire.Request) (*test, *refusal) {
	t := &test{session: s, req: req, reqSize: max(1, int(req.RequestSize)), rspSize: max(1, int(req.ResponseSize))}
	t.length, t.timed = req.Duration()
	t.units, _ = req.Units()
	if t.req.Family == wire.AnyFamily {
		t.req.Family = familyOf(s.peer.Addr())
	}
	tcp := req.Protocol == wire.TCP && req.SocketType == wire.Stream
	udp := req.Protocol == wire.UDP && req.SocketType == wire.Datagram
	switch {
	case !tcp && !udp:
		return nil, refuse(wire.NoProtocol, "protocol %d with socket type %d", req.Protocol, req.SocketType)
	case t.req.Family != wire.IPv4 && t.req.Family != wire.IPv6:
		return nil, refuse(wire.NoFamily, "address family %d", req.Family)
	case t.timed && t.length > s.o.MaxLength+lengthGrace:
		return nil, refuse(wire.NotPermitted, "a test of %v, where this server allows at most %v", t.length, s.o.MaxLength)
	case udp && req.Flags&wire.FlagConnect != 0:
		return nil, refuse(wire.BadValue, "a test of connections without connections")
	}
	if no := t.planKind(tcp); no != nil {
		return nil, no
	}
	return t, nil
}

// planKind fills in the kind of test, and checks what bounds that kind.
func (t *test) planKind(tcp bool) *refusal {
	limit, connect := maxTCPMessage, t.req.Flags&wire.FlagConnect != 0
	switch {
	case tcp && connect && t.req.Direction == 0:
		t.kind, t.reqSize, t.rspSize = wire.TCPCRR, 0, 0
		return nil
	case tcp && connect && t.req.Direction == wire.BothWays:
		t.kind = wire.TCPCRR
	case connect:
		return refuse(wire.BadValue, "a test of connections in direction %d", t.req.Direction)
	case tcp && t.req.Direction == wire.ServerReceives:
		t.kind = wire.TCPStream
		return nil
	case tcp && t.req.Direction == wire.ServerSends:
		t.kind = wire.TCPMaerts
		return nil
	case t.req.Direction == wire.ServerSends:
		return refuse(wire.NotPermitted, "datagrams from the server without a request")
	case t.req.Direction == wire.ServerReceives:
		if t.o.MaxRate > 0 {
			return refuse(wire.NotPermitted, "a stream of datagrams, which cannot be held to this server's limit of %v", t.o.MaxRate)
		}
		t.kind = wire.UDPStream
		return nil
	case t.req.Direction != wire.BothWays:
		return refuse(wire.BadValue, "direction %d", t.req.Direction)
	case tcp:
		t.kind = wire.TCPRR
	default:
		limit, t.kind = maxDatagram, wire.UDPRR
		if t.req.Family != familyOf(t.peer.Addr()) {
			return refuse(wire.NotPermitted, "answers to an address that has not shown that it is the client's")
		}
	}
	switch {
	case t.reqSize > limit || t.rspSize > limit:
		return refuse(wire.BadValue, "messages of %d and %d bytes, where at most %d are allowed", t.reqSize, t.rspSize, limit)
	case t.kind == wire.UDPRR && t.rspSize > max(t.reqSize, onePacket):
		return refuse(wire.NotPermitted, "answers of %d bytes to datagrams of %d, where this server allows at most the same or %d",
			t.rspSize, t.reqSize, onePacket)
	}
	return nil
}

// open opens the data socket through bind, at the best address, port and options that can be had, and fills in the response.
func (t *test) open(ctx context.Context, bind func(at netip.AddrPort, o host.Options) (netip.AddrPort, error)) *refusal {
	var last error
	for _, a := range t.addresses() {
		for _, port := range t.ports() {
			for _, o := range t.options() {
				var at netip.AddrPort
				err := t.withRoom(ctx, t.session, func() (err error) {
					at, err = bind(netip.AddrPortFrom(a, port), o)
					return err
				})
				if err != nil {
					last = err
					continue
				}
				t.respond(at.Port(), o)
				return nil
			}
		}
	}
	switch {
	case listen.OutOfDescriptors(last):
		return refuse(wire.Busy, "no descriptors are left for a data socket: %v", last)
	case !t.o.DataPorts.isZero():
		return refuse(wire.Busy, "no port of %d to %d is free: %v", t.o.DataPorts.First, t.o.DataPorts.Last, last)
	}
	return refuse(wire.NoAddress, "no data socket: %v", last)
}

// addresses are where data may be taken: the address that the client names, if it is one of ours, otherwise all of the family. A
// server behind NAT is asked for its public address here, which it has not.
func (t *test) addresses() []netip.Addr {
	wildcard := netip.IPv4Unspecified()
	if t.req.Family == wire.IPv6 {
		wildcard = netip.IPv6Unspecified()
	}
	var list []netip.Addr
	for _, a := range t.req.ServerAddr.Candidates(t.req.Family) {
		if !a.IsMulticast() && !a.Is4In6() {
			list = append(list, a)
		}
	}
	return append(list, wildcard)
}

// ports are the data ports to try: the client's wish, then those of the configured range from where the last search ended, or any.
func (t *test) ports() []uint16 {
	const tries = 64
	var list []uint16
	if t.req.DataPort >= 1024 {
		list = append(list, t.req.DataPort)
	}
	if t.o.DataPorts.isZero() {
		return append(list, 0)
	}
	n := uint32(t.o.DataPorts.Last) - uint32(t.o.DataPorts.First) + 1
	t.mu.Lock()
	from := t.nextPort
	t.nextPort = (from + 1) % n
	t.mu.Unlock()
	for i := range min(n, tries) {
		list = append(list, t.o.DataPorts.First+uint16((from+i)%n))
	}
	return list
}

// options are the socket's settings, then the same with fewer of them: a congestion control that this stack does not have is no
// reason to refuse a test, and what was not set is said in the response.
func (t *test) options() []host.Options {
	o := host.Options{SendBuffer: clampBuffer(t.req.SendBuffer), ReceiveBuffer: clampBuffer(t.req.RecvBuffer)}
	if t.req.DS > 0 && t.req.DS <= 255 {
		o.DSCP = codePoint(t.req.DS)
	}
	if t.kind != wire.UDPRR && t.kind != wire.UDPStream {
		o.CongestionControl = t.req.Congestion
	}
	list := []host.Options{o}
	if o.CongestionControl != "" {
		o.CongestionControl = ""
		list = append(list, o)
	}
	if o.DSCP != 0 {
		o.DSCP = 0
		list = append(list, o)
	}
	if o != (host.Options{}) {
		list = append(list, host.Options{})
	}
	return list
}

func clampBuffer(n int32) int { return min(max(0, int(n)), maxSockBuffer) }

// respond fills in the response for a socket with these options. The stack does not tell of a listening socket's buffers, so they
// are unknown unless they were set.
func (t *test) respond(port uint16, o host.Options) {
	p := wire.Response{RecvBuffer: -1, SendBuffer: -1, RecvSize: -1, SendSize: -1, RecvRing: 1, SendRing: 1, DataPort: port,
		Priority: -1, DS: -1}
	if o.ReceiveBuffer > 0 {
		p.RecvBuffer = int32(o.ReceiveBuffer)
	}
	if o.SendBuffer > 0 {
		p.SendBuffer = int32(o.SendBuffer)
	}
	switch t.kind {
	case wire.TCPStream:
		p.RecvSize = pump.ChunkSize
		t.sayPace(&p, t.in)
	case wire.TCPMaerts:
		p.SendSize = int32(t.sendSize())
		t.sayPace(&p, t.out)
	case wire.UDPStream:
		p.RecvSize = maxDatagram
		if t.req.RecvSize > 0 {
			p.RecvSize = min(t.req.RecvSize, maxDatagram)
		}
	default:
		p.RecvSize, p.SendSize = int32(t.reqSize), int32(t.rspSize)
		t.sayPace(&p, t.out)
	}
	p.Echoes = t.kind == wire.UDPRR
	if t.kind != wire.UDPRR && t.kind != wire.UDPStream {
		p.Flags = wire.FlagNoDelay
	}
	if t.cpu != nil {
		p.Flags |= wire.FlagCPU
		p.CPURate = 100
	}
	if t.req.Priority >= 0 {
		p.Priority = -3
	}
	switch asked := t.req.DS > 0 && t.req.DS <= 255; {
	case asked && o.DSCP == codePoint(t.req.DS):
		p.DS = int32(o.DSCP.Byte()) // the ECN bits are the stack's
	case t.req.DS >= 0:
		p.DS = -2
	}
	t.response = p
}

// sendSize is the most bytes of a write of a download.
func (t *test) sendSize() int {
	if n := t.req.SendSize; n > 0 && n < pump.ChunkSize {
		return int(n)
	}
	return pump.ChunkSize
}

// sayPace tells the client that its payload is held to a rate, as one send, or receive, per interval, or as many more as an interval of whole
// microseconds takes to be exact.
func (t *test) sayPace(p *wire.Response, by *throttle) {
	if by == nil {
		return
	}
	const exact = 10_000 // microseconds
	size := p.SendSize
	if t.kind == wire.TCPStream {
		size = p.RecvSize
	}
	every := float64(size) * 8 / float64(by.rate) * 1e6
	burst := min(max(1, math.Ceil(exact/every)), math.MaxUint32)
	p.PaceBurst, p.PaceMicros = uint32(burst), uint32(min(max(1, math.Round(burst*every)), math.MaxUint32))
}

// begin sends the response and starts the test's clock.
func (t *test) begin() bool {
	t.began = t.host.Now()
	if !t.send(t.responseRecord()) {
		return false
	}
	t.log.Printf("netperf: %v begins %s, data port %d", t.peer, t, t.response.DataPort)
	return true
}

// String is the test in words for the log.
func (t *test) String() string {
	name := map[wire.Test]string{
		wire.TCPStream: "an upload", wire.TCPMaerts: "a download", wire.TCPRR: "TCP transactions", wire.UDPRR: "UDP transactions",
		wire.TCPCRR: "TCP connections", wire.UDPStream: "a stream of datagrams",
	}[t.kind]
	switch {
	case t.timed:
		return fmt.Sprintf("%s of at most %v", name, t.length)
	case t.units > 0 && (t.kind == wire.TCPStream || t.kind == wire.TCPMaerts || t.kind == wire.UDPStream):
		return fmt.Sprintf("%s of %d bytes", name, t.units)
	case t.units > 0:
		return fmt.Sprintf("%d %s", t.units, name)
	}
	return name + " without an end"
}

// end fills in the elapsed time and logs what the test did.
func (t *test) end(at time.Time, why string) {
	elapsed := max(0, at.Sub(t.began))
	t.results.ElapsedSeconds = float32(elapsed.Seconds())
	t.cpu.fill(t)
	moved := fmt.Sprintf("received %d bytes", t.results.RxBytes)
	switch t.kind {
	case wire.TCPMaerts:
		moved = fmt.Sprintf("sent %d bytes", t.results.TxBytes)
	case wire.TCPRR, wire.UDPRR, wire.TCPCRR:
		moved = fmt.Sprintf("%d transactions", t.results.Transactions)
	}
	rate := ""
	if n := t.results.RxBytes + t.results.TxBytes; t.results.Transactions == 0 && n > 0 {
		from := t.began
		if !t.flowing.IsZero() {
			from = t.flowing // flows are asked for before their time
		}
		rate = fmt.Sprintf(" (%.2f Mbit/s)", bitrate.Of(n, max(0, at.Sub(from))).Mbps())
	}
	t.log.Printf("netperf: %v ends %s after %v: %s%s; %s", t.peer, t, elapsed.Round(time.Millisecond), moved, rate, why)
}
