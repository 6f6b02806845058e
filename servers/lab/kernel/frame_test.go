package kernel

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"bufferbloat/servers/lab/link"
)

// superPacket describes a frame for a test.
type superPacket struct {
	ipv6    bool
	proto   uint8
	options []byte // of TCP, a multiple of four bytes
	flags   uint8
	payload int
	segment int // 0 for no super-packet
	ds      uint8
}

// Both wrap around within the packet.
const (
	firstSequence = uint32(0xffff_ff00)
	firstID       = uint16(0xfffe)
)

// build returns the frame as a packet socket would: with the sum over the pseudo header in the place of the checksum.
func (s superPacket) build() *frame {
	l4 := etherHeader + ipv4Header
	if s.ipv6 {
		l4 = etherHeader + ipv6Header
	}
	headers := l4 + udpHeader
	if s.proto == protoTCP {
		headers = l4 + tcpHeader + len(s.options)
	}
	b := make([]byte, headers+s.payload)
	for i := range s.payload {
		b[headers+i] = byte(i * 7)
	}
	ip, tail := b[etherHeader:], b[l4:]
	if s.ipv6 {
		b[12], b[13] = 0x86, 0xdd
		ip[0], ip[1], ip[6], ip[7] = 6<<4|s.ds>>4, s.ds<<4, s.proto, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(b)-l4))
		copy(ip[8:], ClientIPv6.AsSlice())
		copy(ip[24:], ServerIPv6.AsSlice())
	} else {
		b[12], b[13] = 0x08, 0x00
		ip[0], ip[1], ip[8], ip[9] = 4<<4|5, s.ds, 64, s.proto
		binary.BigEndian.PutUint16(ip[2:], uint16(len(b)-etherHeader))
		binary.BigEndian.PutUint16(ip[4:], firstID)
		copy(ip[12:], ClientIPv4.AsSlice())
		copy(ip[16:], ServerIPv4.AsSlice())
		setIPv4Sum(ip[:ipv4Header])
	}
	binary.BigEndian.PutUint16(tail, 1234)
	binary.BigEndian.PutUint16(tail[2:], 5678)
	v := vnet{flags: vnetNeedsCsum, headers: uint16(headers), csumStart: uint16(l4), csumAddress: 6}
	if s.proto == protoTCP {
		binary.BigEndian.PutUint32(tail[4:], firstSequence)
		binary.BigEndian.PutUint32(tail[8:], 99)
		tail[12], tail[13] = byte((tcpHeader+len(s.options))/4)<<4, s.flags
		copy(tail[tcpHeader:], s.options)
		v.csumAddress = 16
	} else {
		binary.BigEndian.PutUint16(tail[4:], uint16(len(b)-l4))
	}
	if s.segment > 0 {
		v.segment = uint16(s.segment)
		switch {
		case s.proto == protoUDP:
			v.gso = gsoUDP
		case s.ipv6:
			v.gso = gsoTCPv6
		default:
			v.gso = gsoTCPv4
		}
		if s.flags&flagCWR != 0 {
			v.gso |= gsoECN
		}
	}
	p := &pool{}
	f := p.frame(append(make([]byte, 0, bigBuffer), b...)[:bigBuffer], len(b), v)
	f.proto, f.ipv6 = s.proto, s.ipv6 // for pseudoSum
	binary.BigEndian.PutUint16(tail[v.csumAddress:], f.pseudoSum(uint32(len(b)-l4)))
	copy(f.buf, b)
	return f
}

// onTheWire returns the packet as its receiver's stack checks it: the checksum finished, as a device would.
func onTheWire(t *testing.T, f *frame, s *segment, count int, marked bool) []byte {
	t.Helper()
	from, to := s.bounds()
	if count > 1 {
		to = min(from+count*int(f.v.segment), len(f.buf))
	}
	headers, rest, v := f.appendHeaders(nil, s.index, from, to, marked)
	b := append(slices.Clone(headers), rest...)
	if v.flags&vnetNeedsCsum != 0 {
		tail := b[v.csumStart:]
		if len(tail)%2 == 1 {
			tail = append(slices.Clone(tail), 0)
		}
		binary.BigEndian.PutUint16(b[v.csumStart+v.csumAddress:], ^fold(sum(0, tail)))
	}
	return b
}

// checkSums verifies the checksums as a receiver does.
func checkSums(t *testing.T, b []byte) {
	t.Helper()
	f := &frame{buf: b}
	if !f.parse() || f.l4 == 0 {
		t.Fatalf("%x does not parse", b)
	}
	if !f.ipv6 && fold(sum(0, b[etherHeader:f.l4])) != 0xffff {
		t.Errorf("the IPv4 header's checksum is wrong: %x", b[etherHeader:f.l4])
	}
	tail := slices.Clone(b[f.l4:])
	length := uint32(len(tail))
	if len(tail)%2 == 1 {
		tail = append(tail, 0)
	}
	if got := fold(sum(uint32(f.pseudoSum(length)), tail)); got != 0xffff {
		t.Errorf("the transport checksum is wrong: sums to %#x", got)
	}
}

var timestamps = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}

func TestASuperPacketBecomesTheSegmentsOfAWire(t *testing.T) {
	for name, s := range map[string]superPacket{
		"TCP over IPv4":                        {proto: protoTCP, options: timestamps, flags: flagACK | flagPSH | flagFIN | flagCWR, payload: 5 * 1448, segment: 1448},
		"TCP over IPv6 with a short last one":  {ipv6: true, proto: protoTCP, options: timestamps, flags: flagACK | flagPSH, payload: 3*1428 + 5, segment: 1428},
		"the longest":                          {proto: protoTCP, flags: flagACK, payload: 65535 - 40, segment: 1460},
		"datagrams over IPv4":                  {proto: protoUDP, payload: 3*1000 + 1, segment: 1000},
		"datagrams over IPv6":                  {ipv6: true, proto: protoUDP, payload: 4 * 1200, segment: 1200},
		"segments of odd length":               {proto: protoTCP, flags: flagACK, payload: 5 * 333, segment: 333},
		"one that is a super-packet in name":   {proto: protoTCP, flags: flagACK | flagPSH, payload: 100, segment: 1448},
		"no super-packet":                      {proto: protoTCP, flags: flagACK, payload: 1448},
		"a datagram":                           {proto: protoUDP, payload: 57},
		"a TCP segment of nothing but headers": {proto: protoTCP, flags: flagACK},
	} {
		t.Run(name, func(t *testing.T) {
			f := s.build()
			if !f.parse() {
				t.Fatal("does not parse")
			}
			whole := slices.Clone(f.buf)
			var payload []byte
			n := f.segments()
			if want := max(1, (s.payload+max(s.segment, 1)-1)/max(s.segment, 1)); s.segment > 0 && n != want {
				t.Fatalf("%d segments, want %d", n, want)
			}
			for i := range n {
				seg := f.pool.segment(f, i)
				b := onTheWire(t, f, seg, 1, false)
				checkSums(t, b)
				if got, want := seg.packet().Size, len(b)-etherHeader; got != want {
					t.Errorf("segment %d counts %d bytes, and has %d", i, got, want)
				}
				s.checkSegment(t, b, i, n)
				headers := f.payload
				if headers == 0 {
					headers = len(whole) - s.payload
				}
				payload = append(payload, b[headers:]...)
			}
			if !bytes.Equal(payload, whole[len(whole)-s.payload:]) {
				t.Error("the segments' payload is not that of the super-packet")
			}
			if !bytes.Equal(f.buf, whole) {
				t.Error("the frame was changed")
			}
		})
	}
}

// checkSegment checks what changes from segment i of n to the next.
func (s superPacket) checkSegment(t *testing.T, b []byte, i, n int) {
	t.Helper()
	ip, tail := b[etherHeader:], b[etherHeader+ipv4Header:]
	if s.ipv6 {
		tail = b[etherHeader+ipv6Header:]
	} else if got, want := binary.BigEndian.Uint16(ip[4:]), firstID+uint16(i); got != want {
		t.Errorf("segment %d has ID %d, want %d", i, got, want)
	}
	if s.proto != protoTCP {
		if got := int(binary.BigEndian.Uint16(tail[4:])); got != len(tail) {
			t.Errorf("datagram %d says it has %d bytes, and has %d", i, got, len(tail))
		}
		return
	}
	if got, want := binary.BigEndian.Uint32(tail[4:]), firstSequence+uint32(i*s.segment); got != want {
		t.Errorf("segment %d has sequence number %#x, want %#x", i, got, want)
	}
	want := s.flags
	if i > 0 {
		want &^= flagCWR
	}
	if i < n-1 {
		want &^= flagFIN | flagPSH
	}
	if tail[13] != want {
		t.Errorf("segment %d has flags %#x, want %#x", i, tail[13], want)
	}
}

func TestNeighboursAreJoinedAgain(t *testing.T) {
	f := superPacket{proto: protoTCP, options: timestamps, flags: flagACK | flagPSH | flagCWR, payload: 6*1448 + 10, segment: 1448}.build()
	f.parse()
	for _, tt := range []struct {
		name         string
		index, count int
		gso          uint8
		flags        uint8
	}{
		{"the first three", 0, 3, gsoTCPv4 | gsoECN, flagACK | flagCWR},
		{"three in the middle", 2, 3, gsoTCPv4, flagACK},
		{"the last two, one of them short", 5, 2, gsoTCPv4, flagACK | flagPSH},
		{"the short one alone", 6, 1, gsoNone, flagACK | flagPSH},
		{"all", 0, 7, gsoTCPv4 | gsoECN, flagACK | flagCWR | flagPSH},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := f.pool.segment(f, tt.index)
			checkSums(t, onTheWire(t, f, s, tt.count, false))
			from, to := s.bounds()
			to = min(from+tt.count*1448, len(f.buf))
			headers, _, v := f.appendHeaders(nil, s.index, from, to, false)
			if v.gso != tt.gso || v.flags != vnetNeedsCsum || int(v.headers) != f.payload {
				t.Errorf("offload header %+v, want kind %#x and %d bytes of headers", v, tt.gso, f.payload)
			}
			if got := headers[f.l4+13]; got != tt.flags {
				t.Errorf("flags %#x, want %#x", got, tt.flags)
			}
		})
	}
}

func TestAMarkedPacketSaysCE(t *testing.T) {
	for name, s := range map[string]superPacket{
		"IPv4":                {proto: protoUDP, payload: 10, ds: 0xb8 | 2},
		"IPv6":                {ipv6: true, proto: protoUDP, payload: 10, ds: 0xb8 | 1},
		"a segment over IPv4": {proto: protoTCP, flags: flagACK, payload: 3000, segment: 1000, ds: 2},
		"a segment over IPv6": {ipv6: true, proto: protoTCP, flags: flagACK, payload: 3000, segment: 1000, ds: 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := s.build()
			f.parse()
			if got := f.pool.segment(f, 0).packet().DS; got != s.ds {
				t.Errorf("the link sees the DS byte %#x, want %#x", got, s.ds)
			}
			b := onTheWire(t, f, f.pool.segment(f, 0), 1, true)
			checkSums(t, b)
			marked := &frame{buf: b}
			marked.parse()
			if marked.ds != s.ds|3 {
				t.Errorf("DS byte %#x, want %#x", marked.ds, s.ds|3)
			}
		})
	}
}

func TestAPureAcknowledgementIsKnown(t *testing.T) {
	sack := []byte{1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	for name, tt := range map[string]struct {
		s    superPacket
		pure bool
	}{
		"one with time stamps":        {superPacket{proto: protoTCP, options: timestamps, flags: flagACK}, true},
		"one over IPv6":               {superPacket{ipv6: true, proto: protoTCP, flags: flagACK}, true},
		"one with payload is none":    {superPacket{proto: protoTCP, flags: flagACK, payload: 1}, false},
		"one with SACK is none":       {superPacket{proto: protoTCP, options: sack, flags: flagACK}, false},
		"one with FIN is none":        {superPacket{proto: protoTCP, flags: flagACK | flagFIN}, false},
		"a datagram is none":          {superPacket{proto: protoUDP}, false},
		"one with bad options is not": {superPacket{proto: protoTCP, options: []byte{8, 0, 0, 0}, flags: flagACK}, false},
	} {
		f := tt.s.build()
		f.parse()
		p := f.pool.segment(f, 0).packet()
		if p.PureACK != tt.pure || tt.pure && p.ACK != 99 {
			t.Errorf("%s: got %v and %d, want %v", name, p.PureACK, p.ACK, tt.pure)
		}
	}
}

func TestFlowsAreToldApart(t *testing.T) {
	tcp, udp := superPacket{proto: protoTCP}.build(), superPacket{proto: protoUDP}.build()
	six := superPacket{ipv6: true, proto: protoTCP}.build()
	hash := func(f *frame) link.Packet { f.parse(); return f.pool.segment(f, 0).packet() }
	if hash(tcp).Flow == hash(udp).Flow || hash(tcp).Flow == hash(six).Flow || hash(tcp).From == hash(tcp).To || hash(tcp).From != hash(udp).From {
		t.Error("flows or hosts that differ have the same hash, or the same host has two")
	}
	fragment := superPacket{proto: protoUDP, payload: 100}.build()
	fragment.buf[etherHeader+7] = 1
	if hash(fragment).Flow == hash(udp).Flow || fragment.l4 != 0 {
		t.Error("a fragment was taken to have ports")
	}
}

func TestWhatCannotBeTakenApartIsRefused(t *testing.T) {
	whole := superPacket{proto: protoTCP, flags: flagACK, payload: 3000, segment: 1000}
	for name, spoil := range map[string]func(*frame){
		"of an unknown kind":    func(f *frame) { f.v.gso = 9 },
		"of another family":     func(f *frame) { f.v.gso = gsoTCPv6 },
		"without segment size":  func(f *frame) { f.v.segment = 0 },
		"without payload":       func(f *frame) { f.buf = f.buf[:f.payload+etherHeader+ipv4Header+tcpHeader] },
		"with a short header":   func(f *frame) { f.buf[etherHeader+ipv4Header+12] = 1 << 4 },
		"that is no IP packet":  func(f *frame) { f.buf[12] = 0x12 },
		"of another transport":  func(f *frame) { f.buf[etherHeader+9] = 132 },
		"that is a fragment":    func(f *frame) { f.buf[etherHeader+6] = 0x20 },
		"cut in the IP header":  func(f *frame) { f.buf = f.buf[:etherHeader+10] },
		"cut in the TCP header": func(f *frame) { f.buf = f.buf[:etherHeader+ipv4Header+10] },
	} {
		f := whole.build()
		spoil(f)
		if f.parse() {
			t.Errorf("a super-packet %s was taken", name)
		}
	}
}

// Whatever a device hands over is taken apart into packets that count as many bytes as they have, or refused.
func FuzzFrame(f *testing.F) {
	for _, s := range []superPacket{
		{proto: protoTCP, options: timestamps, flags: flagACK, payload: 2000, segment: 1000},
		{ipv6: true, proto: protoUDP, payload: 2000, segment: 600},
		{proto: protoUDP, payload: 5},
	} {
		b := s.build()
		var head [vnetHeader]byte
		b.v.put(&head)
		f.Add(head[:], b.buf)
	}
	buf := make([]byte, bigBuffer)
	f.Fuzz(func(t *testing.T, head, b []byte) {
		if len(head) != vnetHeader || len(b) < etherHeader || len(b) > maxFrame {
			return
		}
		v := parseVnet((*[vnetHeader]byte)(head))
		var again [vnetHeader]byte
		v.put(&again)
		if !bytes.Equal(again[:], head) {
			t.Fatalf("%x parses to %+v, encodes to %x", head, v, again)
		}
		p := &pool{}
		fr := p.frame(buf, copy(buf, b), v)
		if !fr.parse() {
			return
		}
		fr.refs = 1
		total := 0
		for i := range fr.segments() {
			s := p.segment(fr, i)
			from, to := s.bounds()
			headers, rest, _ := fr.appendHeaders(nil, i, from, to, i%2 == 1)
			if got := s.packet().Size; got != len(headers)+len(rest)-etherHeader {
				t.Fatalf("segment %d of %d counts %d bytes, and has %d", i, fr.segments(), got, len(headers)+len(rest)-etherHeader)
			}
			if total += len(rest); fr.payload > 0 && len(headers) > maxHeaders {
				t.Fatalf("headers of %d bytes", len(headers))
			}
			p.release(s)
		}
		if fr.refs != 1 {
			t.Errorf("%d segments hold the frame", fr.refs-1)
		}
		if want := len(b) - fr.payload; fr.payload > 0 && total != want {
			t.Errorf("%d bytes of payload, want %d", total, want)
		}
	})
}
