package netperf

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"bufferbloat/internal/bitrate"
	"bufferbloat/internal/host"
	"bufferbloat/internal/pump"
	wire "bufferbloat/internal/wire/netperf"
)

// test is one omni test of a session.
type test struct {
	*session
	kind     wire.Test
	req      wire.Request
	length   time.Duration // valid with timed
	timed    bool
	units    uint64 // 0: not counted
	reqSize  int    // of a transaction
	rspSize  int
	response wire.Response
	began    time.Time // when the response was sent
	results  wire.Results
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
	one := usage{tests: 1}
	if !s.take(s.peer.Addr(), one, s.o.MaxTests, s.o.MaxTestsPerAddress) {
		return s.refuse(refuse(wire.Busy, "%d tests in all or %d of one address are running", s.o.MaxTests, s.o.MaxTestsPerAddress))
	}
	defer s.give(s.peer.Addr(), one)
	s.expect(0)
	run := t.runTCP
	if t.kind == wire.UDPRR {
		run = t.runUDP
	}
	if no := run(ctx); no != nil {
		return s.refuse(no)
	}
	return ctx.Err() == nil && s.send(t.results.AppendTo(nil, s.layout))
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
		return nil, refuse(wire.NotPermitted, "a test of %v, where at most %v is allowed", t.length, s.o.MaxLength)
	case req.Flags&wire.FlagConnect != 0:
		return nil, refuse(wire.UnknownTest, "a test of connections")
	case udp && req.Direction == wire.ServerSends:
		return nil, refuse(wire.NotPermitted, "datagrams from the server without a request")
	}
	switch limit := maxTCPMessage; {
	case tcp && req.Direction == wire.ServerReceives:
		t.kind = wire.TCPStream
		return t, nil
	case tcp && req.Direction == wire.ServerSends:
		t.kind = wire.TCPMaerts
		return t, nil
	case udp && req.Direction == wire.ServerReceives:
		return nil, refuse(wire.UnknownTest, "a stream of datagrams")
	case req.Direction != wire.BothWays:
		return nil, refuse(wire.BadValue, "direction %d", req.Direction)
	case udp:
		limit, t.kind = maxDatagram, wire.UDPRR
		if t.req.Family != familyOf(s.peer.Addr()) && t.rspSize > t.reqSize {
			return nil, refuse(wire.NotPermitted, "answers larger than requests to an address that cannot be checked")
		}
		fallthrough
	default:
		if t.kind == 0 {
			t.kind = wire.TCPRR
		}
		if t.reqSize > limit || t.rspSize > limit {
			return nil, refuse(wire.BadValue, "messages of %d and %d bytes, where at most %d are allowed", t.reqSize, t.rspSize, limit)
		}
		return t, nil
	}
}

func familyOf(a netip.Addr) wire.Family {
	if host.FamilyOf(a) == host.IPv6 {
		return wire.IPv6
	}
	return wire.IPv4
}

// open opens the data socket through listen, at the best address, port and options that can be had, and fills in the response.
func (t *test) open(listen func(at netip.AddrPort, o host.Options) (netip.AddrPort, error)) *refusal {
	var last error
	for _, a := range t.addresses() {
		for _, port := range t.ports() {
			for _, o := range t.options() {
				at, err := listen(netip.AddrPortFrom(a, port), o)
				if err != nil {
					last = err
					continue
				}
				t.respond(at.Port(), o)
				return nil
			}
		}
	}
	if !t.o.DataPorts.isZero() {
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
	if t.kind != wire.UDPRR {
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
	case wire.TCPMaerts:
		p.SendSize = pump.ChunkSize
	default:
		p.RecvSize, p.SendSize = int32(t.reqSize), int32(t.rspSize)
	}
	if t.kind != wire.UDPRR {
		p.Flags = wire.FlagNoDelay
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

// begin sends the response and starts the test's clock.
func (t *test) begin() bool {
	t.began = t.host.Now()
	if !t.send(t.response.AppendTo(nil)) {
		return false
	}
	t.log.printf("netperf: %v begins %s, data port %d", t.peer, t, t.response.DataPort)
	return true
}

// String is the test in words for the log.
func (t *test) String() string {
	name := map[wire.Test]string{
		wire.TCPStream: "an upload", wire.TCPMaerts: "a download", wire.TCPRR: "TCP transactions", wire.UDPRR: "UDP transactions",
	}[t.kind]
	switch {
	case t.timed:
		return fmt.Sprintf("%s of at most %v", name, t.length)
	case t.units > 0 && (t.kind == wire.TCPStream || t.kind == wire.TCPMaerts):
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
	moved := fmt.Sprintf("received %d bytes", t.results.RxBytes)
	switch t.kind {
	case wire.TCPMaerts:
		moved = fmt.Sprintf("sent %d bytes", t.results.TxBytes)
	case wire.TCPRR, wire.UDPRR:
		moved = fmt.Sprintf("%d transactions", t.results.Transactions)
	}
	rate := ""
	if n := t.results.RxBytes + t.results.TxBytes; t.results.Transactions == 0 && n > 0 {
		rate = fmt.Sprintf(" (%.2f Mbit/s)", bitrate.Of(n, elapsed).Mbps())
	}
	t.log.printf("netperf: %v ends %s after %v: %s%s; %s", t.peer, t, elapsed.Round(time.Millisecond), moved, rate, why)
}
